//! Where pages are while an image is being made: lists of runs with the place of each.
//!
//! Called by the pipeline, which makes the lists, and by the writer, which joins them to the page index.
//! Invariants: lists that are worked on are ascending by address and without overlap; every function here walks its
//! lists once, so that a million runs cost milliseconds.

use crate::format::manifest::{IndexRun, Place};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE};

/// Where the first page of a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// All zero bytes; stored nowhere.
    Zero,
    /// In a frame of a segment of the image that is being made.
    Own {
        /// Number in the segment's name.
        segment: u32,
        /// Number of the frame within the segment.
        frame: u32,
        page: u32,
    },
    /// In a frame of the parent's frame table.
    Parent { frame: u32, page: u32 },
}

impl Origin {
    fn skip(self, pages: u64) -> Origin {
        // A frame has at most 256 pages.
        let by = u32::try_from(pages).unwrap_or(u32::MAX);
        match self {
            Origin::Zero => Origin::Zero,
            Origin::Own { segment, frame, page } => {
                Origin::Own { segment, frame, page: page.saturating_add(by) }
            }
            Origin::Parent { frame, page } => Origin::Parent { frame, page: page.saturating_add(by) },
        }
    }
}

/// A run of pages and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Located {
    pub(crate) run: PageRun,
    pub(crate) origin: Origin,
}

impl Located {
    /// An entry of the parent's page index.
    pub(crate) fn in_parent(entry: &IndexRun) -> Located {
        let origin = match entry.place {
            Place::Zero => Origin::Zero,
            Place::Frame { frame, page } => Origin::Parent { frame, page },
        };
        Located { run: entry.run, origin }
    }

    /// The part of the run from `start` to `end`, both within it.
    pub(crate) fn part(&self, start: Addr, end: Addr) -> Located {
        let origin = self.origin.skip((start.0 - self.run.start.0) / PAGE_SIZE);
        Located { run: PageRun::between(start, end), origin }
    }

    /// Adds the run to a list, to the last entry if it goes on where that ends, in the program and in its place.
    pub(crate) fn push_to(self, list: &mut Vec<Located>) {
        match list.last_mut() {
            Some(last)
                if last.run.end() == self.run.start && last.origin.skip(last.run.pages.0) == self.origin =>
            {
                last.run.pages.0 += self.run.pages.0;
            }
            _ => list.push(self),
        }
    }
}

/// The pages of a list in any order.
pub(crate) fn pages_of(list: &[Located]) -> PageSet {
    list.iter().map(|entry| entry.run).collect()
}

/// Puts the parts of `list` that lie in `wanted` into `found`; returns the pages of `wanted` that the list has not.
pub(crate) fn pick<T>(
    list: &[T],
    located: impl Fn(&T) -> Located,
    wanted: &PageSet,
    found: &mut Vec<Located>,
) -> PageSet {
    let mut missing = PageSet::new();
    let mut at = 0;
    for run in wanted.runs() {
        let mut start = run.start;
        while let Some(entry) = list.get(at).map(&located) {
            if entry.run.end() <= start {
                at += 1;
                continue;
            }
            if entry.run.start >= run.end() {
                break;
            }
            if entry.run.start > start {
                missing.insert(PageRun::between(start, entry.run.start));
                start = entry.run.start;
            }
            let end = entry.run.end().min(run.end());
            entry.part(start, end).push_to(found);
            start = end;
            if start >= run.end() {
                break;
            }
            at += 1;
        }
        if start < run.end() {
            missing.insert(PageRun::between(start, run.end()));
        }
    }
    missing
}

/// `older` with everything in `newer` replaced by it.
pub(crate) fn overlay(older: &[Located], newer: Vec<Located>) -> Vec<Located> {
    if older.is_empty() {
        return newer;
    }
    let kept = pages_of(older).difference(&pages_of(&newer));
    let mut list = newer;
    pick(older, |entry| *entry, &kept, &mut list);
    list.sort_unstable_by_key(|entry| entry.run);
    list
}

/// The first two runs of an ascending list that have a page in common.
pub(crate) fn overlap(list: &[Located]) -> Option<(PageRun, PageRun)> {
    list.array_windows::<2>().find(|[a, b]| a.run.end() > b.run.start).map(|[a, b]| (a.run, b.run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::PageCount;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Each page of a list, with the place that it alone would have.
    fn model(list: &[Located]) -> BTreeMap<u64, Origin> {
        list.iter()
            .flat_map(|entry| {
                let first = entry.run.start.0 / PAGE_SIZE;
                (0..entry.run.pages.0).map(move |n| (first + n, entry.origin.skip(n)))
            })
            .collect()
    }

    fn lists(own: bool) -> impl Strategy<Value = Vec<Located>> {
        prop::collection::vec((0..4_u64, 1..6_u64, 0..3_u32), 0..12).prop_map(move |parts| {
            let mut page = 1;
            let mut list = Vec::new();
            for (gap, pages, frame) in parts {
                page += gap;
                let origin = match (frame, own) {
                    (0, _) => Origin::Zero,
                    (_, true) => Origin::Own { segment: frame, frame: 7, page: 3 },
                    (_, false) => Origin::Parent { frame, page: 100 },
                };
                let run = PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) };
                list.push(Located { run, origin });
                page += pages;
            }
            list
        })
    }

    proptest! {
        #[test]
        fn lists_are_cut_and_laid_over_each_other_page_by_page(a in lists(false), b in lists(true)) {
            let (ma, mb) = (model(&a), model(&b));
            let both = overlay(&a, b.clone());
            let mut expected = ma.clone();
            expected.extend(mb.clone());
            prop_assert_eq!(model(&both), expected);
            prop_assert!(overlap(&both).is_none());
            let mut found = Vec::new();
            let missing = pick(&a, |entry| *entry, &pages_of(&b), &mut found);
            let both = ma.iter().filter(|(n, _)| mb.contains_key(n));
            let expected: BTreeMap<_, _> = both.map(|(n, o)| (*n, *o)).collect();
            prop_assert_eq!(model(&found), expected);
            prop_assert_eq!(missing, pages_of(&b).difference(&pages_of(&a)));
        }
    }
}
