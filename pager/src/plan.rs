//! Whether to copy the dirty pages inside the stop or to freeze the program by a fork, and which memory to keep out of
//! the clone. Asked by the agent between the last scan and the copy, with the program stopped: two walks over the sets.
//!
//! The choice is by stop time alone. Costs are from docs/mechanics.md, measured on Linux 6.18, one thread, but for
//! those that say otherwise.

use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE};

/// Copying a page out of the stopped program (docs/mechanics.md, 7: 0.9 us per page, one thread).
pub const COPY_PAGE_NS: u64 = 900;
/// Each run of pages on top of that: one entry of process_vm_readv and its lookup. Assumed, not measured.
pub const COPY_RUN_NS: u64 = 400;
/// A fork whatever the size: the clone and its intermediate parent (docs/mechanics.md, 7: 0.4 ms with nothing mapped).
pub const FORK_NS: u64 = 350_000;
/// Each present page that stays in the clone: 17 ms per GiB of 4 KiB pages (docs/mechanics.md, 7: 11.7 to 20).
pub const FORK_PAGE_NS: u64 = 65;
/// One call of MADV_DONTFORK or MADV_DOFORK on a range, the split of its mapping included. Assumed, for calls made in
/// one batch; injected one by one they were measured at 18 and 14 us (docs/stop.md, B.2).
pub const ADVICE_NS: u64 = 2_000;
/// Ranges kept out of the clone are at least so long, and begin and end at multiples of it inside a mapping, so that no
/// huge page is split.
pub const KEEP_OUT_BYTES: u64 = 2 << 20;
/// Ranges kept out of the clone, at most: no more than one batch of injected calls takes (`process`, KEEP_OUT_MAX),
/// so that what is dropped there is never a range that this estimate counted.
pub const KEEP_OUT_MOST: usize = 400;

/// How the state of memory at the cut is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// Dirty pages are copied inside the stop.
    Copy,
    /// The program is forked; the kernel copies on write.
    Fork,
}

/// The decision, and the estimates behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The cheaper one.
    pub engine: Engine,
    /// Ranges without dirty pages that are worth keeping out of a clone; the one with most present pages first. Each
    /// lies inside one mapping. Also filled in if the engine is `copy`.
    pub keep_out: Vec<PageRun>,
    /// Estimated stop time of a copy.
    pub copy_ns: u64,
    /// Estimated stop time of a fork that keeps `keep_out` out.
    pub fork_ns: u64,
}

/// Decides. `dirty`: pages that must be read. `present`: pages of private memory that are present (or an upper bound).
/// `ranges`: the mappings that would be cloned, ascending, one run each.
pub fn plan(dirty: &PageSet, present: &PageSet, ranges: &[PageRun]) -> Plan {
    let mut cloned = 0;
    // Present pages and range; only what saves more than its two calls cost.
    let mut candidates: Vec<(u64, PageRun)> = Vec::new();
    for range in ranges {
        cloned += pages_in(present, *range);
        for clean in clean_parts(dirty, *range) {
            let pages = pages_in(present, clean);
            if pages * FORK_PAGE_NS > 2 * ADVICE_NS {
                candidates.push((pages, clean));
            }
        }
    }
    candidates.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    candidates.truncate(KEEP_OUT_MOST);
    let kept_out: u64 = candidates.iter().map(|(pages, _)| pages).sum();
    let keep_out: Vec<PageRun> = candidates.into_iter().map(|(_, range)| range).collect();
    let copy_ns = dirty.pages().0 * COPY_PAGE_NS + dirty.runs().len() as u64 * COPY_RUN_NS;
    let fork_ns =
        FORK_NS + cloned.saturating_sub(kept_out) * FORK_PAGE_NS + keep_out.len() as u64 * 2 * ADVICE_NS;
    let engine = if copy_ns <= fork_ns { Engine::Copy } else { Engine::Fork };
    Plan { engine, keep_out, copy_ns, fork_ns }
}

/// The parts of a mapping without dirty pages that are long enough, cut at multiples of 2 MiB where they end inside it.
fn clean_parts(dirty: &PageSet, range: PageRun) -> impl Iterator<Item = PageRun> {
    let touching = dirty.touching(range).iter().map(|run| (run.start, run.end()));
    let mut start = range.start;
    touching.chain([(range.end(), range.end())]).filter_map(move |(from, to)| {
        let mut clean = (start, from.min(range.end()));
        start = to;
        if clean.0 > range.start {
            clean.0 = Addr(clean.0.0.next_multiple_of(KEEP_OUT_BYTES));
        }
        if clean.1 < range.end() {
            clean.1 = Addr(clean.1.0 - clean.1.0 % KEEP_OUT_BYTES);
        }
        Some(PageRun::between(clean.0, clean.1)).filter(|clean| clean.pages.bytes() >= KEEP_OUT_BYTES)
    })
}

/// Number of pages of `set` within `range`.
fn pages_in(set: &PageSet, range: PageRun) -> u64 {
    let part = |run: &PageRun| {
        let (start, end) = (run.start.max(range.start), run.end().min(range.end()));
        end.0.saturating_sub(start.0) / PAGE_SIZE
    };
    set.touching(range).iter().map(part).sum()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use holdfast_image::PageCount;
    use proptest::prelude::*;

    const HUGE: u64 = KEEP_OUT_BYTES / PAGE_SIZE;

    fn run(from: u64, pages: u64) -> PageRun {
        PageRun { start: Addr(from * PAGE_SIZE), pages: PageCount(pages) }
    }
    fn set(runs: &[PageRun]) -> PageSet {
        runs.iter().copied().collect()
    }

    #[test]
    fn little_is_copied_and_much_is_forked() {
        // 4 GiB in one mapping.
        let heap = run(1 << 20, 1 << 20);
        let present = set(&[heap]);
        let nothing = plan(&PageSet::new(), &present, &[heap]);
        assert_eq!((nothing.engine, nothing.copy_ns), (Engine::Copy, 0));
        assert_eq!(nothing.keep_out, [heap]);
        let all = plan(&present, &present, &[heap]);
        assert_eq!((all.engine, all.keep_out.len()), (Engine::Fork, 0));
        assert!((60_000_000..80_000_000).contains(&all.fork_ns), "{}", all.fork_ns);
        // One tenth of the heap dirty, in one piece: the rest is kept out, and the stop follows what is dirty.
        let tenth = plan(&set(&[run((1 << 20) + 5000, (1 << 20) / 10)]), &present, &[heap]);
        assert_eq!((tenth.engine, tenth.keep_out.len()), (Engine::Fork, 2));
        assert!(tenth.fork_ns < 8_000_000, "{}", tenth.fork_ns);
    }

    #[test]
    fn mappings_that_touch_stay_apart_and_huge_pages_whole() {
        let ranges = [run(HUGE * 10 + 3, HUGE * 2), run(HUGE * 12 + 3, HUGE * 4)];
        let present = set(&ranges);
        let dirty = set(&[run(HUGE * 14 + 7, 1)]);
        let plan = plan(&dirty, &present, &ranges);
        // The first as a whole; of the second what lies before and after the dirty page, cut inside at 2 MiB.
        let before = run(HUGE * 12 + 3, HUGE * 2 - 3);
        let after = run(HUGE * 15, HUGE + 3);
        assert_eq!(plan.keep_out, [ranges[0], before, after]);
    }

    proptest! {
        #[test]
        fn what_is_kept_out_is_clean_and_worth_it(
            dirty in prop::collection::vec((0..20_000_u64, 1..300_u64), 0..30),
            present in prop::collection::vec((0..20_000_u64, 1..6000_u64), 0..10),
            lengths in prop::collection::vec((0..500_u64, 1..6000_u64), 1..12),
        ) {
            let dirty: PageSet = dirty.into_iter().map(|(from, pages)| run(from, pages)).collect();
            let present: PageSet = present.into_iter().map(|(from, pages)| run(from, pages)).collect();
            let mut next = 100;
            let ranges: Vec<PageRun> = lengths
                .into_iter()
                .map(|(gap, pages)| {
                    let range = run(next + gap, pages);
                    next += gap + pages;
                    range
                })
                .collect();
            let plan = plan(&dirty, &present, &ranges);
            let kept = set(&plan.keep_out);
            prop_assert_eq!(kept.pages().0, plan.keep_out.iter().map(|run| run.pages.0).sum::<u64>(), "overlap");
            prop_assert!(kept.intersection(&dirty).is_empty());
            prop_assert!(plan.keep_out.len() <= KEEP_OUT_MOST);
            let weight = |run: &PageRun| set(&[*run]).intersection(&present).pages().0;
            prop_assert!(plan.keep_out.iter().map(weight).is_sorted_by(|a, b| a >= b));
            for out in &plan.keep_out {
                prop_assert!(out.is_valid() && out.pages.0 >= HUGE);
                prop_assert!(ranges.iter().any(|range| range.start <= out.start && out.end() <= range.end()));
                prop_assert!(weight(out) * FORK_PAGE_NS > 2 * ADVICE_NS);
            }
            let whole = FORK_NS + set(&ranges).intersection(&present).pages().0 * FORK_PAGE_NS;
            prop_assert!(plan.fork_ns <= whole, "keeping out must never cost time");
            prop_assert_eq!(plan.engine == Engine::Copy, plan.copy_ns <= plan.fork_ns);
            // Whatever is long, clean and full is kept out.
            for range in &ranges {
                if range.pages.0 >= HUGE && dirty.touching(*range).is_empty() && weight(range) > 100 {
                    prop_assert!(plan.keep_out.contains(range));
                }
            }
        }
    }
}
