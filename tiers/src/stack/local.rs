//! The images of the first tier, with the segments that they name, as its catalogue has them.
//!
//! Used by the cascade's threads and by the agent after a commit.

use super::inventory::Inventory;
use super::plan::{HeldVersion, SegmentIds};
use crate::Job;
use crate::catalog::Table;
use crate::format::manifest::{Identity, SegmentEntry};
use crate::tier::TierError;
use std::collections::{BTreeMap, BTreeSet};

/// See the head of the file.
pub(crate) struct LocalVersions {
    job: Job,
}

/// What the first tier has.
#[derive(Default)]
pub(crate) struct Here {
    /// Numbers of the images whose manifests can be read.
    pub(crate) good: BTreeSet<u64>,
    /// Those of the others, and why not.
    pub(crate) bad: BTreeMap<u64, TierError>,
}

impl Here {
    pub(crate) fn has(&self, number: u64) -> bool {
        self.good.contains(&number) || self.bad.contains_key(&number)
    }
}

impl LocalVersions {
    pub(crate) fn new(job: Job) -> LocalVersions {
        LocalVersions { job }
    }

    /// Looks what is there.
    ///
    /// # Errors
    /// The folder cannot be listed: then nothing is known, not that there is nothing.
    pub(crate) fn look(&self) -> Result<Here, TierError> {
        let catalog = self.job.catalog()?;
        let mut here = Here::default();
        for (&number, version) in &catalog.versions {
            match &version.table {
                Table::Known { .. } => drop(here.good.insert(number)),
                Table::Damaged(error) | Table::Unseen(error) => drop(here.bad.insert(number, error.again())),
            }
        }
        Ok(here)
    }

    /// The segments of an image, if that is known.
    pub(crate) fn table(&self, number: u64) -> Option<Vec<SegmentEntry>> {
        self.job.last_catalog().table(number).map(<[SegmentEntry]>::to_vec)
    }

    /// Which image this is, if that is known.
    pub(crate) fn identity(&self, number: u64) -> Option<Identity> {
        self.job.last_catalog().identity(number)
    }

    /// A version of ours on a lower tier that lacks a segment there (another host that continues the job has removed
    /// it) is taken out of what is there, so that it is copied again. `is_other`: it is not ours.
    pub(crate) fn forget_lost(&self, there: &mut Inventory, is_other: &dyn Fn(u64) -> bool) {
        let catalog = self.job.last_catalog();
        let segments = &there.segments;
        let lacks = |number: u64| {
            catalog.table(number).into_iter().flatten().any(|entry| !segments.contains_key(&entry.key()))
        };
        there.versions.retain(|&number| is_other(number) || !lacks(number));
    }

    /// All images, for the decision which of them go.
    pub(crate) fn held(&self, waiting: &BTreeSet<u64>, stays: &dyn Fn(u64) -> bool) -> Vec<HeldVersion> {
        let mut ids = SegmentIds::default();
        let catalog = self.job.last_catalog();
        let known = catalog.readable().filter_map(|number| Some((number, catalog.table(number)?)));
        let held = known.map(|(number, table)| {
            let segments = ids.of(table, |entry| entry.len);
            let waits = waiting.contains(&number);
            HeldVersion { number, segments, waits, pinned: stays(number) }
        });
        held.collect()
    }
}
