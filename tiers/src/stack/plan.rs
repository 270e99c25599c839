//! What a lower tier is to get next, and what may go from the first one. Pure.
//!
//! Called by the cascade and, after a commit, by the agent. Invariants: the newest version is wanted first; what a tier
//! would remove at once is not wanted; the newest image of the first tier never goes.

use crate::format::manifest::SegmentEntry;
use crate::policy::{Retention, SegmentId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Without `max=`, images of the first tier that wait for a lower one may have so many times the bytes of the newest
/// image.
const WAITING: u64 = 4;

/// Numbers for segments, by which the policy knows them.
#[derive(Default)]
pub(crate) struct SegmentIds(BTreeMap<(u64, u32), u64>);

impl SegmentIds {
    /// The segments of a version, with the bytes that `len` says.
    pub(crate) fn of(
        &mut self,
        table: &[SegmentEntry],
        len: impl Fn(&SegmentEntry) -> u64,
    ) -> Vec<(SegmentId, u64)> {
        let mut id = |entry: &SegmentEntry| {
            let next = self.0.len() as u64;
            SegmentId(*self.0.entry((entry.epoch.0, entry.number)).or_insert(next))
        };
        table.iter().map(|entry| (id(entry), len(entry))).collect()
    }
}

/// The versions that a tier with these rules is to get, the newest first: of those that are at the source (`here`) and
/// not on the tier (`there`). What is not newer than `removed`, the newest version that was removed there, is over.
pub fn wanted(
    rules: &Retention,
    here: &BTreeSet<u64>,
    there: &BTreeSet<u64>,
    removed: Option<u64>,
) -> Vec<u64> {
    let keep = usize::try_from(rules.keep.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    // With a bound on bytes, what is older than all that is there was probably removed for want of space.
    let oldest = there.first().copied().filter(|_| rules.max_bytes.is_some());
    let floor = oldest.max(removed).unwrap_or(0);
    let taken: BTreeSet<u64> = here.iter().copied().filter(|&number| rules.takes(number)).collect();
    let all: BTreeSet<u64> = taken.union(there).copied().collect();
    all.into_iter()
        .rev()
        .take(keep)
        .filter(|number| taken.contains(number) && !there.contains(number) && *number > floor)
        .collect()
}

/// The rules of the first tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalRules {
    /// So many of the newest images.
    pub keep: Option<u64>,
    /// Bytes of images.
    pub max_bytes: Option<u64>,
}

/// An image of the first tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldVersion {
    /// Its number.
    pub number: u64,
    /// Names of its segments with their bytes; its manifest may be one of them.
    pub segments: Vec<(SegmentId, u64)>,
    /// A lower tier wants it, and has not got it.
    pub waits: bool,
    /// It must stay whatever the rules say.
    pub pinned: bool,
}

/// Which images go, oldest first, and which of them a lower tier would have got: those that wait stay beyond `keep`,
/// but not beyond `max` (or [`WAITING`] times the newest image), from which the oldest are given up.
pub fn local_removals(rules: &LocalRules, held: &[HeldVersion]) -> (Vec<u64>, Vec<u64>) {
    let Some(newest) = held.iter().max_by_key(|version| version.number) else { return Default::default() };
    let needed: u64 = newest.segments.iter().map(|(_, bytes)| bytes).sum();
    let retention = Retention { keep: rules.keep, every: None, max_bytes: rules.max_bytes };
    let most = rules.max_bytes.unwrap_or(needed.saturating_mul(WAITING));
    let removes = |waits: &dyn Fn(&HeldVersion) -> bool| {
        let version = |version: &HeldVersion| Version {
            number: version.number,
            segments: version.segments.clone(),
            wanted_below: version.pinned || waits(version),
        };
        retention.removes(&held.iter().map(version).collect::<Vec<_>>())
    };
    // What would go if nothing waited.
    let without: BTreeSet<u64> = removes(&|_| false).into_iter().collect();
    let mut given_up: BTreeSet<u64> = BTreeSet::new();
    loop {
        let waits = |version: &HeldVersion| version.waits && !given_up.contains(&version.number);
        let removes = removes(&waits);
        let oldest = held.iter().filter(|v| waits(v) && without.contains(&v.number)).map(|v| v.number).min();
        match oldest {
            Some(oldest) if bytes_of(held, &removes) > most => given_up.insert(oldest),
            _ => {
                let lost = removes.iter().copied().filter(|number| given_up.contains(number)).collect();
                return (removes, lost);
            }
        };
    }
}

/// The bytes of all but the removed; what several have counts once.
fn bytes_of(held: &[HeldVersion], removed: &[u64]) -> u64 {
    let left = held.iter().filter(|version| !removed.contains(&version.number));
    let segments: BTreeSet<(SegmentId, u64)> =
        left.flat_map(|version| version.segments.iter().copied()).collect();
    segments.into_iter().map(|(_, bytes)| bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(numbers: &[u64]) -> BTreeSet<u64> {
        numbers.iter().copied().collect()
    }

    #[test]
    fn the_newest_is_wanted_first_and_nothing_that_would_go_at_once() {
        let all = Retention::default();
        assert_eq!(wanted(&all, &set(&[1, 2, 3]), &set(&[2]), None), [3, 1]);
        let keep = Retention { keep: Some(2), ..all };
        assert_eq!(wanted(&keep, &set(&[1, 2, 3, 4]), &set(&[]), None), [4, 3]);
        assert_eq!(wanted(&keep, &set(&[1, 2, 3, 4]), &set(&[2, 4]), None), [3]);
        let every = Retention { every: Some(4), keep: Some(2), ..all };
        assert_eq!(wanted(&every, &set(&[1, 2, 3, 4, 5, 8, 9, 12]), &set(&[4]), None), [12, 8]);
        assert!(wanted(&all, &set(&[]), &set(&[7]), None).is_empty());
    }

    #[test]
    fn what_was_removed_for_space_is_not_copied_again() {
        let max = Retention { max_bytes: Some(1), ..Retention::default() };
        assert_eq!(wanted(&max, &set(&[1, 2, 3, 4]), &set(&[2]), None), [4, 3]);
        assert_eq!(wanted(&max, &set(&[1, 2, 3, 4]), &set(&[2]), Some(3)), [4]);
        let all = Retention::default();
        assert_eq!(wanted(&all, &set(&[1, 2]), &set(&[]), Some(1)), [2]);
    }

    /// Images of 10 bytes of their own, and 100 that all share.
    fn held(waiting: &[u64]) -> Vec<HeldVersion> {
        (1..=6)
            .map(|number| HeldVersion {
                number,
                segments: vec![(SegmentId(1000), 100), (SegmentId(number), 10)],
                waits: waiting.contains(&number),
                pinned: false,
            })
            .collect()
    }

    #[test]
    fn images_that_wait_for_a_lower_tier_stay() {
        let rules = LocalRules { keep: Some(2), max_bytes: None };
        assert_eq!(local_removals(&rules, &held(&[])), (vec![1, 2, 3, 4], vec![]));
        assert_eq!(local_removals(&rules, &held(&[1, 3, 6])), (vec![2, 4], vec![]));
        assert_eq!(local_removals(&LocalRules::default(), &held(&[])), (vec![], vec![]));
        assert_eq!(local_removals(&rules, &[]), (vec![], vec![]));
    }

    #[test]
    fn but_not_beyond_the_bound() {
        let rules = LocalRules { keep: Some(1), max_bytes: Some(130) };
        assert_eq!(local_removals(&rules, &held(&[1, 2, 3, 4, 5, 6])), (vec![1, 2, 3], vec![1, 2, 3]));
        // Without max=: 440 bytes.
        let mut big = held(&[1, 2, 3, 4, 5, 6]);
        big.iter_mut().for_each(|version| version.segments[1].1 = 100);
        let rules = LocalRules { keep: Some(1), max_bytes: None };
        assert_eq!(local_removals(&rules, &big), (vec![], vec![]));
        for version in &mut big {
            version.segments.remove(0);
        }
        assert_eq!(local_removals(&rules, &big), (vec![1, 2], vec![1, 2]));
    }

    #[test]
    fn what_must_stay_stays() {
        let mut held = held(&[]);
        held[0].pinned = true;
        let rules = LocalRules { keep: Some(1), max_bytes: Some(1) };
        assert_eq!(local_removals(&rules, &held), (vec![2, 3, 4, 5], vec![]));
    }
}
