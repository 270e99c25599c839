//! A set of pages, as ascending runs that neither overlap nor touch.
//!
//! Used for dirty sets by `process`, `pager`, `tiers` and the agent. Invariants: runs are valid, ascending, with a gap
//! between neighbours. All operations walk both sets once; a set of n runs takes 16 n bytes.

use crate::pages::{PageRun, coalesce};
use crate::{Addr, PageCount};

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageSet {
    runs: Vec<PageRun>,
}

/// The run from `start` to `end` (bytes, page-aligned); `None` if it is empty.
fn run(start: Addr, end: Addr) -> Option<PageRun> {
    (start < end).then(|| PageRun::between(start, end))
}

impl PageSet {
    /// The empty set.
    pub fn new() -> PageSet {
        PageSet::default()
    }
    /// The runs, ascending.
    pub fn runs(&self) -> &[PageRun] {
        &self.runs
    }
    /// The runs, ascending.
    pub fn into_runs(self) -> Vec<PageRun> {
        self.runs
    }
    /// Whether there is no page in it.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
    /// Number of pages.
    pub fn pages(&self) -> PageCount {
        PageCount(self.runs.iter().map(|run| run.pages.0).sum())
    }
    /// Whether the page at `address` is in it.
    pub fn contains(&self, address: Addr) -> bool {
        let index = self.runs.partition_point(|run| run.end() <= address);
        self.runs.get(index).is_some_and(|run| run.start <= address)
    }
    /// The runs that have a page in common with `range`, whole.
    pub fn touching(&self, range: PageRun) -> &[PageRun] {
        let from = self.runs.partition_point(|run| run.end() <= range.start);
        let to = self.runs.partition_point(|run| run.start < range.end());
        self.runs.get(from..to).unwrap_or_default()
    }
    /// Adds a run. Cheap when runs come in ascending order.
    pub fn insert(&mut self, new: PageRun) {
        match self.runs.last_mut() {
            Some(last) if new.start < last.start || new.start < last.end() && new.end() > last.end() => {
                self.runs.push(new);
                coalesce(&mut self.runs);
            }
            Some(last) if new.start <= last.end() => {
                let end = last.end().max(new.end());
                *last = PageRun::between(last.start, end);
            }
            _ => self.runs.push(new),
        }
    }
    /// Pages that are in either.
    #[must_use]
    pub fn union(&self, other: &PageSet) -> PageSet {
        if other.is_empty() {
            return self.clone();
        }
        let mut runs = Vec::with_capacity(self.runs.len() + other.runs.len());
        runs.extend_from_slice(&self.runs);
        runs.extend_from_slice(&other.runs);
        coalesce(&mut runs);
        PageSet { runs }
    }
    /// Pages that are in both.
    #[must_use]
    pub fn intersection(&self, other: &PageSet) -> PageSet {
        let (mut a, mut b) = (self.runs.iter().copied().peekable(), other.runs.iter().copied().peekable());
        let mut runs = Vec::new();
        while let (Some(left), Some(right)) = (a.peek(), b.peek()) {
            runs.extend(run(left.start.max(right.start), left.end().min(right.end())));
            if left.end() <= right.end() {
                a.next();
            } else {
                b.next();
            }
        }
        PageSet { runs }
    }
    /// Pages of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &PageSet) -> PageSet {
        let mut runs = Vec::with_capacity(self.runs.len());
        let mut holes = other.runs.iter().copied().peekable();
        for own in &self.runs {
            let mut start = own.start;
            while let Some(hole) = holes.peek() {
                if hole.end() <= start {
                    holes.next();
                    continue;
                }
                if hole.start >= own.end() {
                    break;
                }
                runs.extend(run(start, hole.start.min(own.end())));
                start = start.max(hole.end());
                if start >= own.end() {
                    break;
                }
                holes.next();
            }
            runs.extend(run(start, own.end()));
        }
        PageSet { runs }
    }
}

impl From<Vec<PageRun>> for PageSet {
    fn from(mut runs: Vec<PageRun>) -> PageSet {
        coalesce(&mut runs);
        PageSet { runs }
    }
}

impl FromIterator<PageRun> for PageSet {
    fn from_iter<I: IntoIterator<Item = PageRun>>(runs: I) -> PageSet {
        PageSet::from(runs.into_iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_SIZE;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const WORLD: u64 = 64;

    fn runs() -> impl Strategy<Value = Vec<PageRun>> {
        prop::collection::vec((1..WORLD, 1..8_u64), 0..12).prop_map(|pairs| {
            pairs
                .into_iter()
                .map(|(page, pages)| PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) })
                .collect()
        })
    }

    fn model(runs: &[PageRun]) -> BTreeSet<u64> {
        runs.iter().flat_map(|r| r.start.0 / PAGE_SIZE..r.end().0 / PAGE_SIZE).collect()
    }

    fn check(set: &PageSet, expected: &BTreeSet<u64>) {
        assert_eq!(&model(set.runs()), expected);
        assert_eq!(set.pages().0, expected.len() as u64);
        assert!(set.runs().windows(2).all(|pair| pair[0].end() < pair[1].start), "{set:?}");
        for page in 0..WORLD + 10 {
            assert_eq!(set.contains(Addr(page * PAGE_SIZE)), expected.contains(&page));
        }
    }

    proptest! {
        #[test]
        fn sets_are_what_the_naive_model_says(a in runs(), b in runs()) {
            let (ma, mb) = (model(&a), model(&b));
            let (sa, sb) = (PageSet::from(a.clone()), PageSet::from(b));
            check(&sa, &ma);
            check(&sa.union(&sb), &ma.union(&mb).copied().collect());
            check(&sa.intersection(&sb), &ma.intersection(&mb).copied().collect());
            check(&sa.difference(&sb), &ma.difference(&mb).copied().collect());
            let mut one_by_one = PageSet::new();
            for run in a {
                one_by_one.insert(run);
            }
            prop_assert_eq!(&one_by_one, &sa);
            for run in sb.runs() {
                let met: Vec<PageRun> = sa
                    .runs()
                    .iter()
                    .copied()
                    .filter(|own| own.start < run.end() && run.start < own.end())
                    .collect();
                prop_assert_eq!(sa.touching(*run), &met[..]);
            }
        }
    }
}
