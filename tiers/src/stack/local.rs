//! The images of the first tier, with the segments that they name. Read once: images never change. Those that cannot be
//! read are looked at again each time: they may have been repaired.
//!
//! Used by the cascade's threads and by the agent after a commit.

use super::inventory::Inventory;
use super::plan::{HeldVersion, SegmentIds};
use crate::format::manifest::SegmentEntry;
use crate::tier::TierError;
use crate::{Job, TierFolder};
use holdfast_image::Epoch;
use parking_lot::Mutex;
use std::collections::btree_map::Entry::Vacant;
use std::collections::{BTreeMap, BTreeSet};

/// See the head of the file.
pub(crate) struct LocalVersions {
    job: Job,
    known: Mutex<BTreeMap<u64, Vec<SegmentEntry>>>,
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
        LocalVersions { job, known: Mutex::default() }
    }

    /// Looks what is there.
    ///
    /// # Errors
    /// The folder cannot be listed: then nothing is known, not that there is nothing.
    pub(crate) fn look(&self) -> Result<Here, TierError> {
        let folder = self.job.folder();
        let there = folder.inventory()?.versions;
        let mut known = self.known.lock();
        known.retain(|number, _| there.contains(number));
        let mut here = Here::default();
        for number in there {
            if let Vacant(entry) = known.entry(number) {
                match folder.segments(Epoch(number)) {
                    Ok(table) => drop(entry.insert(table)),
                    // Removed meanwhile.
                    Err(TierError::NotFound { .. }) => continue,
                    Err(error) => {
                        here.bad.insert(number, error);
                        continue;
                    }
                }
            }
            here.good.insert(number);
        }
        Ok(here)
    }

    /// The segments of an image, if that is known.
    pub(crate) fn table(&self, number: u64) -> Option<Vec<SegmentEntry>> {
        self.known.lock().get(&number).cloned()
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
        let known = self.known.lock();
        let held = known.iter().map(|(&number, table)| {
            let segments = ids.of(table, |entry| entry.len);
            let waits = waiting.contains(&number);
            HeldVersion { number, segments, waits, pinned: stays(number) }
        });
        held.collect()
    }
}
