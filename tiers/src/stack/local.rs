//! The images of the first tier, with the segments that they name. Read once: images never change.
//!
//! Used by the cascade's threads and by the agent after a commit.

use super::inventory::Inventory;
use super::plan::{HeldVersion, SegmentIds};
use crate::format::manifest::SegmentEntry;
use crate::tier::TierError;
use crate::{Job, StoreError, TierFolder};
use holdfast_image::Epoch;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// See the head of the file.
pub(crate) struct LocalVersions {
    job: Job,
    /// None: its manifest cannot be read.
    known: Mutex<BTreeMap<u64, Option<Vec<SegmentEntry>>>>,
}

impl LocalVersions {
    pub(crate) fn new(job: Job) -> LocalVersions {
        LocalVersions { job, known: Mutex::default() }
    }

    /// Numbers of the images whose manifests can be read.
    pub(crate) fn numbers(&self) -> Result<BTreeSet<u64>, StoreError> {
        let folder = self.job.folder();
        let there = folder.inventory()?.versions;
        let mut known = self.known.lock();
        known.retain(|number, _| there.contains(number));
        for number in there {
            known.entry(number).or_insert_with(|| folder.segments(Epoch(number)).ok());
        }
        Ok(known.iter().filter(|(_, table)| table.is_some()).map(|(&number, _)| number).collect())
    }

    /// The segments of an image, if that is known.
    pub(crate) fn table(&self, number: u64) -> Option<Vec<SegmentEntry>> {
        self.known.lock().get(&number)?.clone()
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
    pub(crate) fn held(&self, waiting: &BTreeSet<u64>, pinned: Option<u64>) -> Vec<HeldVersion> {
        let mut ids = SegmentIds::default();
        let known = self.known.lock();
        let held = known.iter().filter_map(|(&number, table)| {
            let segments = ids.of(table.as_ref()?, |entry| entry.len);
            let waits = waiting.contains(&number);
            Some(HeldVersion { number, segments, waits, pinned: pinned == Some(number) })
        });
        held.collect()
    }
}
