//! The images of the first tier, with the segments that they name, as its catalogue has them.
//!
//! Used by the cascade's threads and by the agent after a commit.

use super::inventory::Inventory;
use super::plan::{HeldVersion, SegmentIds};
use crate::catalog::Table;
use crate::format::manifest::SegmentEntry;
use crate::tier::TierError;
use crate::{Job, TierFolder};
use holdfast_image::Epoch;
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

    /// A version of ours on a lower tier that lacks a segment there (another host that continues the job has removed
    /// it) is taken out of what is there, so that it is copied again.
    pub(crate) fn forget_lost(&self, to: &TierFolder, there: &mut Inventory) -> Result<(), TierError> {
        let lacks = |number: &u64| {
            let table = self.table(*number);
            table.iter().flatten().any(|entry| !there.segments.contains_key(&entry.key()))
        };
        let lacking: Vec<u64> = there.versions.iter().copied().filter(lacks).collect();
        for number in lacking {
            // It may be another host's of that number.
            let ours = self.job.folder().manifest(Epoch(number)).ok();
            if ours.is_some() && ours == Some(to.manifest(Epoch(number))?) {
                there.versions.remove(&number);
            }
        }
        Ok(())
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
