//! A set of pages, as ascending runs that neither overlap nor touch.
//!
//! Used for dirty sets by `process`, `pager`, `tiers` and the agent. Invariants: runs are valid, ascending, with a gap
//! between neighbours. All operations walk both sets once and sort nothing, because they run inside the stop; only what
//! is made from a list that does not ascend is sorted. A set of n runs takes 16 n bytes.

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

/// Puts a run behind others that begin no later than it.
fn push(runs: &mut Vec<PageRun>, next: PageRun) {
    match runs.last_mut() {
        Some(last) if next.start <= last.end() => {
            *last = PageRun::between(last.start, last.end().max(next.end()));
        }
        _ => runs.push(next),
    }
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
    /// Adds a run. Constant time when runs come in ascending order; else what lies behind it is moved.
    pub fn insert(&mut self, new: PageRun) {
        let Some(last) = self.runs.last_mut().filter(|last| new.start <= last.end()) else {
            self.runs.push(new);
            return;
        };
        if last.start <= new.start {
            *last = PageRun::between(last.start, last.end().max(new.end()));
            return;
        }
        // Those that overlap or touch it become one with it.
        let from = self.runs.partition_point(|run| run.end() < new.start);
        let to = self.runs.partition_point(|run| run.start <= new.end());
        let met = self.runs.get(from..to).unwrap_or_default();
        let start = met.first().map_or(new.start, |first| first.start.min(new.start));
        let end = met.last().map_or(new.end(), |last| last.end().max(new.end()));
        self.runs.splice(from..to, [PageRun::between(start, end)]);
    }
    /// Adds all pages of another set. Without a look at the runs that are here where the other one lies behind them.
    pub fn append(&mut self, other: PageSet) {
        match (self.runs.last(), other.runs.first()) {
            (None, _) => *self = other,
            (_, None) => {}
            (Some(last), Some(first)) if last.end() <= first.start => {
                let mut others = other.runs.into_iter();
                others.next().into_iter().for_each(|first| self.insert(first));
                self.runs.extend(others);
            }
            _ => *self = self.union(&other),
        }
    }
    /// All pages of some sets; cheapest where each lies behind the one before.
    pub fn concat(sets: Vec<PageSet>) -> PageSet {
        let mut runs = Vec::with_capacity(sets.iter().map(|set| set.runs.len()).sum());
        let mut sets = sets.into_iter();
        // Into memory that has room for all, so that it does not grow set by set.
        runs.extend(sets.next().unwrap_or_default().runs);
        let mut all = PageSet { runs };
        sets.for_each(|set| all.append(set));
        all
    }
    /// Pages that are in either.
    #[must_use]
    pub fn union(&self, other: &PageSet) -> PageSet {
        if other.is_empty() {
            return self.clone();
        }
        if self.is_empty() {
            return other.clone();
        }
        let (mut a, mut b) = (self.runs.as_slice(), other.runs.as_slice());
        let mut runs = Vec::with_capacity(a.len() + b.len());
        while let ([left, after_left @ ..], [right, after_right @ ..]) = (a, b) {
            if left.start <= right.start {
                push(&mut runs, *left);
                a = after_left;
            } else {
                push(&mut runs, *right);
                b = after_right;
            }
        }
        let mut rest = if a.is_empty() { b } else { a };
        // What was put in last may reach over several of them.
        while let [next, after @ ..] = rest
            && runs.last().is_some_and(|last| next.start <= last.end())
        {
            push(&mut runs, *next);
            rest = after;
        }
        runs.extend_from_slice(rest);
        PageSet { runs }
    }
    /// Pages that are in both.
    #[must_use]
    pub fn intersection(&self, other: &PageSet) -> PageSet {
        let (Some(first), Some(last)) = (other.runs.first(), other.runs.last()) else {
            return PageSet::new();
        };
        let (mut a, mut b) =
            (self.touching(PageRun::between(first.start, last.end())), other.runs.as_slice());
        // The runs of the result end where one of either does, and no two at the same place.
        let mut runs = Vec::with_capacity(a.len());
        while let ([left, after_left @ ..], [right, after_right @ ..]) = (a, b) {
            runs.extend(run(left.start.max(right.start), left.end().min(right.end())));
            if left.end() <= right.end() {
                a = after_left;
            } else {
                b = after_right;
            }
        }
        PageSet { runs }
    }
    /// Pages of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &PageSet) -> PageSet {
        let (Some(first), Some(last)) = (self.runs.first(), self.runs.last()) else { return PageSet::new() };
        let holes = other.touching(PageRun::between(first.start, last.end()));
        if holes.is_empty() {
            return self.clone();
        }
        let mut runs = Vec::with_capacity(self.runs.len());
        let mut holes = holes.iter().copied().peekable();
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
            let mut appended = sa.clone();
            appended.append(sb.clone());
            prop_assert_eq!(&appended, &sa.union(&sb));
            let mut one_by_one = PageSet::new();
            for run in &a {
                one_by_one.insert(*run);
            }
            prop_assert_eq!(&one_by_one, &sa);
            for run in a.iter().rev() {
                one_by_one.insert(*run);
            }
            prop_assert_eq!(&one_by_one, &sa, "again, from the other end");
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

        #[test]
        fn sets_one_behind_the_other_are_put_together(
            a in runs(),
            cuts in prop::collection::vec(0..WORLD + 10, 0..6),
        ) {
            let whole = PageSet::from(a);
            let mut borders: Vec<u64> = cuts.into_iter().chain([0, 2 * WORLD]).collect();
            borders.sort_unstable();
            let at = |page: u64| Addr(page * PAGE_SIZE);
            let part = |pair: &[u64]| {
                PageSet::from(vec![PageRun::between(at(pair[0]), at(pair[1]))]).intersection(&whole)
            };
            let ranges = borders.windows(2).filter(|pair| pair[0] < pair[1]);
            let parts: Vec<PageSet> = ranges.map(part).collect();
            prop_assert_eq!(&PageSet::concat(parts.clone()), &whole);
            prop_assert_eq!(&PageSet::concat(parts.into_iter().rev().collect()), &whole, "in any order");
        }
    }
}
