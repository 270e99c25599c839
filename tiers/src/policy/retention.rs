//! Which versions a tier takes, and which it keeps: `keep=N`, `every=N`, `max=BYTES`.
//!
//! Called when a version is committed on a tier or has moved down. Pure: over the versions that the tier has now.
//! Invariants: the newest version of a tier is never removed, nor one that a slower tier has yet to get.

use super::SegmentId;
use std::collections::{BTreeMap, BTreeSet};

/// A version of an object on a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its number: newer ones have greater ones.
    pub number: u64,
    /// The segments that it needs, with their sizes; several versions may need the same.
    pub segments: Vec<(SegmentId, u64)>,
    /// A slower tier is to get it, and has not yet.
    pub wanted_below: bool,
}

/// The rules of a tier. Without any: everything is taken and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Retention {
    /// So many of the newest versions.
    pub keep: Option<u64>,
    /// Only versions whose number is a multiple of this.
    pub every: Option<u64>,
    /// So many bytes at most; a segment of several versions counts once.
    pub max_bytes: Option<u64>,
}

/// Versions that no rule removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The one that the program was restarted from: it may be mapped from it.
    pub restarted_from: Option<u64>,
    /// The first and the last number of an earlier run that did not come to its end.
    pub run_before: Option<(u64, u64)>,
}

impl Pinned {
    /// Whether this version is one of them.
    pub fn has(&self, number: u64) -> bool {
        self.restarted_from == Some(number)
            || self.run_before.is_some_and(|(first, last)| (first..=last).contains(&number))
    }
}

impl Retention {
    /// Whether the tier is to get a version of this number.
    pub fn takes(&self, number: u64) -> bool {
        self.every.is_none_or(|every| every <= 1 || number.is_multiple_of(every))
    }

    /// The numbers of the versions to be removed, oldest first. Going from the newest to the oldest, a version stays as
    /// long as there are fewer than `keep` and its bytes fit; after the first that does not, none does: what is left is
    /// always an unbroken row of newest ones, and those that must stay.
    pub fn removes(&self, versions: &[Version]) -> Vec<u64> {
        let mut newest: Vec<&Version> = versions.iter().collect();
        newest.sort_by_key(|version| std::cmp::Reverse(version.number));
        let mut segments = BTreeMap::new();
        // What must stay has its bytes before all others.
        for version in
            newest.iter().enumerate().filter(|(index, v)| *index == 0 || v.wanted_below).map(|(_, v)| v)
        {
            segments.extend(version.segments.iter().copied());
        }
        let mut bytes: u64 = segments.values().sum();
        let (mut over, mut removed) = (false, Vec::new());
        for (index, version) in newest.iter().enumerate() {
            if index == 0 || version.wanted_below {
                continue;
            }
            let own: BTreeMap<SegmentId, u64> = version.segments.iter().copied().collect();
            let fresh = own.into_iter().filter(|(id, _)| !segments.contains_key(id));
            let fresh: Vec<(SegmentId, u64)> = fresh.collect();
            let with = bytes + fresh.iter().map(|(_, len)| len).sum::<u64>();
            over |= self.keep.is_some_and(|keep| index as u64 >= keep);
            over |= self.max_bytes.is_some_and(|most| with > most);
            if over {
                removed.push(version.number);
            } else {
                segments.extend(fresh);
                bytes = with;
            }
        }
        removed.reverse();
        removed
    }
}

/// Of each of the last days (UTC) that have versions the newest. `dates`: CLOCK_REALTIME of each version, nanoseconds.
pub fn newest_of_days(dates: &BTreeMap<u64, u64>, days: u64) -> BTreeSet<u64> {
    const DAY: u64 = 86_400 * 1_000_000_000;
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    for (&number, &created) in dates {
        let one = newest.entry(created / DAY).or_insert(number);
        *one = number.max(*one);
    }
    newest.into_values().rev().take(usize::try_from(days).unwrap_or(usize::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions of one segment of their own of 10 bytes, and one of 100 that all share.
    fn versions(count: u64) -> Vec<Version> {
        (0..count)
            .map(|number| Version {
                number,
                segments: vec![(SegmentId(1000), 100), (SegmentId(number), 10)],
                wanted_below: false,
            })
            .collect()
    }

    #[test]
    fn keep_has_the_newest() {
        let rule = Retention { keep: Some(2), ..Retention::default() };
        assert_eq!(rule.removes(&versions(5)), [0, 1, 2]);
        assert_eq!(Retention { keep: Some(0), ..rule }.removes(&versions(3)), [0, 1], "the newest stays");
        assert!(Retention::default().removes(&versions(5)).is_empty());
    }

    #[test]
    fn every_decides_what_comes() {
        let rule = Retention { every: Some(4), ..Retention::default() };
        assert_eq!((0..10).filter(|&number| rule.takes(number)).collect::<Vec<_>>(), [0, 4, 8]);
        assert!(Retention { every: Some(0), ..rule }.takes(3));
    }

    #[test]
    fn shared_segments_count_once() {
        let rule = Retention { max_bytes: Some(130), ..Retention::default() };
        assert_eq!(rule.removes(&versions(5)), [0, 1]);
        assert_eq!(Retention { max_bytes: Some(5), ..rule }.removes(&versions(5)), [0, 1, 2, 3]);
    }

    #[test]
    fn of_a_day_the_newest_counts() {
        const HOUR: u64 = 3_600 * 1_000_000_000;
        let dates: BTreeMap<u64, u64> = [(1, 1), (2, 23), (3, 25), (4, 47), (5, 100)].into();
        let dates = dates.into_iter().map(|(number, hours)| (number, hours * HOUR)).collect();
        assert_eq!(newest_of_days(&dates, 2), BTreeSet::from([4, 5]), "of days that have some");
        assert_eq!(newest_of_days(&dates, 9), BTreeSet::from([2, 4, 5]));
        assert!(newest_of_days(&BTreeMap::new(), 1).is_empty() && newest_of_days(&dates, 0).is_empty());
    }

    #[test]
    fn what_is_still_to_move_down_stays() {
        let mut list = versions(5);
        list[1].wanted_below = true;
        let rule = Retention { keep: Some(1), max_bytes: Some(1), ..Retention::default() };
        assert_eq!(rule.removes(&list), [0, 2, 3]);
    }
}
