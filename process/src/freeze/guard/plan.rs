//! Which pages are guarded, and in which ranges: sets only, no system calls.
//!
//! Ranges are joined across small gaps, because each costs a mapping; a page in a gap is clean, so nothing has to be
//! saved when it is written. What threads may be using at this instant in a way that a handler cannot help with
//! (stacks, buffers of calls under way) is left out, and copied at the stop.

use super::options::Unsuited;
use holdfast_abi::GuardArea;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};

/// Gaps of at most so many pages are closed as well.
const GAP: u64 = 16;
/// Most ranges: each may split a mapping in three, and a process has 65530 (vm.max_map_count).
const MAX_RANGES: usize = 20_000;
const _: () = assert!(MAX_RANGES <= GuardArea::MAX_RANGES);
/// Mappings left to the program.
const SPARE_MAPPINGS: u64 = 2_000;

/// A range to be made read-only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Its pages.
    pub run: PageRun,
    /// Number of its first page in the tables.
    pub first: u64,
}

impl Range {
    /// Address of the page with that number.
    pub fn address(&self, page: u64) -> Addr {
        Addr(self.run.start.0 + (page - self.first) * PAGE_SIZE)
    }
}

/// What is guarded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// Ascending.
    pub ranges: Vec<Range>,
    /// The dirty pages in them; the others are gaps.
    pub pages: PageSet,
    /// Number of pages of all ranges.
    pub total: u64,
    /// Slots: as many as asked for, or as the limit on mappings allows.
    pub slots: u64,
}

impl Layout {
    /// The range and the number of the page at `address`.
    pub fn find(&self, address: Addr) -> Option<(Range, u64)> {
        let index = self.ranges.partition_point(|range| range.run.end() <= address);
        let range = self.ranges.get(index).filter(|range| range.run.start <= address)?;
        Some((*range, range.first + (address.0 - range.run.start.0) / PAGE_SIZE))
    }
    /// Address of a page by its number.
    pub fn address(&self, page: u64) -> Option<Addr> {
        let index = self.ranges.partition_point(|range| range.first + range.run.pages.0 <= page);
        self.ranges.get(index).filter(|range| range.first <= page).map(|range| range.address(page))
    }
    /// The parts of `run` inside ranges: number of the first page, pages.
    pub fn parts(&self, run: PageRun) -> impl Iterator<Item = (u64, u64)> + '_ {
        let index = self.ranges.partition_point(|range| range.run.end() <= run.start);
        self.ranges[index..].iter().take_while(move |range| range.run.start < run.end()).map(move |range| {
            let start = run.start.max(range.run.start);
            let end = run.end().min(range.run.end());
            (range.first + (start.0 - range.run.start.0) / PAGE_SIZE, (end.0 - start.0) / PAGE_SIZE)
        })
    }
}

/// The whole pages inside `len` bytes from `start` on.
pub fn inside(start: u64, len: u64) -> Option<PageRun> {
    let first = start.checked_next_multiple_of(PAGE_SIZE)?;
    let end = start.checked_add(len)? / PAGE_SIZE * PAGE_SIZE;
    let run = PageRun::between(Addr(first), Addr(end));
    run.is_valid().then_some(run)
}

/// All pages that `len` bytes from `start` on touch.
pub fn touched(start: u64, len: u64) -> Option<PageRun> {
    let first = start / PAGE_SIZE * PAGE_SIZE;
    let end = start.checked_add(len.max(1))?.checked_next_multiple_of(PAGE_SIZE)?;
    let run = PageRun::between(Addr(first), Addr(end));
    run.is_valid().then_some(run)
}

/// Lays out the dirty pages among those that are `allowed`.
///
/// # Errors
/// Nothing to guard, or too much of it.
pub fn lay_out(
    dirty: &PageSet,
    allowed: &PageSet,
    slots: PageCount,
    mappings: u64,
    max_mappings: u64,
) -> Result<Layout, Unsuited> {
    let pages = dirty.intersection(allowed);
    let mut joined: Vec<PageRun> = Vec::new();
    for run in pages.runs() {
        if let Some(last) = joined.last_mut() {
            let both = PageRun::between(last.start, run.end());
            let gap = (run.start.0 - last.end().0) / PAGE_SIZE;
            let whole =
                matches!(allowed.touching(both), [one] if one.start <= both.start && both.end() <= one.end());
            if gap <= GAP && whole {
                *last = both;
                continue;
            }
        }
        joined.push(*run);
    }
    if joined.is_empty() {
        return Err(Unsuited("no dirty page lies in a large allocation or in protected memory".into()));
    }
    let count = joined.len() as u64;
    let room = max_mappings.saturating_sub(mappings + 2 * count + SPARE_MAPPINGS);
    let slots = slots.0.min(room / 2).min(GuardArea::MAX_SLOTS as u64);
    if joined.len() > MAX_RANGES || room == 0 {
        return Err(Unsuited(format!(
            "the dirty pages lie in {count} ranges beside {mappings} mappings; the kernel allows {max_mappings}"
        )));
    }
    let mut layout = Layout { pages, slots, ..Layout::default() };
    for run in joined {
        layout.ranges.push(Range { run, first: layout.total });
        layout.total += run.pages.0;
    }
    if layout.total > GuardArea::MAX_PAGES as u64 {
        return Err(Unsuited(format!("{} dirty pages are more than can be guarded", layout.total)));
    }
    Ok(layout)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn run(start: u64, pages: u64) -> PageRun {
        PageRun { start: Addr(start * PAGE_SIZE), pages: PageCount(pages) }
    }
    fn set(runs: &[(u64, u64)]) -> PageSet {
        runs.iter().map(|&(start, pages)| run(start, pages)).collect()
    }
    fn lay(dirty: &[(u64, u64)], allowed: &[(u64, u64)]) -> Result<Layout, Unsuited> {
        lay_out(&set(dirty), &set(allowed), PageCount(100), 50, 65_530)
    }

    #[test]
    fn small_gaps_are_joined_inside_what_is_allowed() {
        let layout = lay(&[(10, 2), (20, 1), (40, 5), (100, 1)], &[(0, 60), (90, 50)]).unwrap();
        // 28 to 40 would be a gap of 19 pages.
        assert_eq!(
            layout.ranges.iter().map(|r| r.run).collect::<Vec<_>>(),
            [run(10, 11), run(40, 5), run(100, 1)]
        );
        assert_eq!(layout.ranges.iter().map(|r| r.first).collect::<Vec<_>>(), [0, 11, 16]);
        assert_eq!((layout.total, layout.pages.pages().0), (17, 9));
        // A hole in what is allowed is never closed over.
        let layout = lay(&[(10, 2), (14, 2)], &[(0, 13), (14, 10)]).unwrap();
        assert_eq!(layout.ranges.len(), 2);
        assert_eq!(lay(&[(10, 1)], &[(11, 5)]).unwrap_err().0.split(' ').next(), Some("no"));
    }

    #[test]
    fn numbers_and_addresses_are_inverse() {
        let layout = lay(&[(10, 2), (40, 5), (100, 1)], &[(0, 200)]).unwrap();
        for page in 0..layout.total {
            let address = layout.address(page).unwrap();
            assert_eq!(layout.find(address).unwrap().1, page);
        }
        assert_eq!(layout.address(layout.total), None);
        assert!(layout.find(Addr(12 * PAGE_SIZE)).is_none());
        assert_eq!(layout.parts(run(0, 200)).collect::<Vec<_>>(), [(0, 2), (2, 5), (7, 1)]);
        assert_eq!(layout.parts(run(42, 59)).collect::<Vec<_>>(), [(4, 3), (7, 1)]);
        assert_eq!(layout.parts(run(12, 5)).count(), 0);
    }

    #[test]
    fn slots_are_bounded_by_the_mappings_that_are_left() {
        let few = lay_out(&set(&[(1, 5)]), &set(&[(0, 9)]), PageCount(1_000_000), 60_000, 65_530).unwrap();
        assert_eq!(few.slots, (65_530 - 60_000 - 2 - SPARE_MAPPINGS) / 2);
        assert!(lay_out(&set(&[(1, 5)]), &set(&[(0, 9)]), PageCount(5), 65_000, 65_530).is_err());
        let many: Vec<(u64, u64)> = (0..MAX_RANGES as u64 + 1).map(|n| (n * 20, 1)).collect();
        assert!(lay(&many, &[(0, 1 << 24)]).is_err());
    }

    #[test]
    fn only_whole_pages_are_inside_and_all_pages_are_touched() {
        assert_eq!(inside(PAGE_SIZE, 2 * PAGE_SIZE), Some(run(1, 2)));
        assert_eq!(inside(PAGE_SIZE + 64, 2 * PAGE_SIZE), Some(run(2, 1)));
        assert_eq!(inside(PAGE_SIZE + 64, PAGE_SIZE), None);
        assert_eq!(inside(u64::MAX - 5, 100), None);
        assert_eq!(touched(PAGE_SIZE + 64, 1), Some(run(1, 1)));
        assert_eq!(touched(PAGE_SIZE - 1, 2), Some(run(0, 2)));
        assert_eq!(touched(u64::MAX - 5, 1), None);
    }
}
