//! Whether to copy the dirty pages inside the stop or to freeze the program by a fork, and which memory to keep out of
//! the clone. Asked by the agent between the last scan and the copy, with the program stopped: two walks over the sets.
//!
//! The choice is by stop time alone. Costs are from `reference/mechanics.md`, measured on Linux 6.18, one thread.

use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};

/// Copying a page out of the stopped program (section 7, point 3: 0.9 us per page, one thread).
pub const COPY_PAGE_NS: u64 = 900;
/// Each run of pages on top of that: one entry of process_vm_readv and its lookup.
pub const COPY_RUN_NS: u64 = 400;
/// A fork whatever the size: the clone and its intermediate parent (design, section 4: 0.4 ms with nothing dirty).
pub const FORK_NS: u64 = 350_000;
/// Each present page that stays in the clone: 17 ms per GiB of 4 KiB pages (section 7: 11.7 to 20).
pub const FORK_PAGE_NS: u64 = 65;
/// One call of MADV_DONTFORK or MADV_DOFORK on a range, the split of its mapping included.
pub const ADVICE_NS: u64 = 2_000;
/// Ranges kept out of the clone are at least so long, and begin and end at multiples of it inside a mapping, so that no
/// huge page is split.
pub const KEEP_OUT_BYTES: u64 = 2 << 20;
/// Ranges kept out of the clone, at most: each may split a mapping in three (the default limit is 65530 mappings,
/// Documentation/admin-guide/sysctl/vm.rst, max_map_count).
pub const KEEP_OUT_MOST: usize = 1000;

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
    /// Ranges without dirty pages that are worth keeping out of a clone; the one with most present pages first. Each lies
    /// inside one mapping. Also filled in if the engine is `copy`.
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
        let bytes = clean.1.0.saturating_sub(clean.0.0);
        (bytes >= KEEP_OUT_BYTES).then_some(PageRun { start: clean.0, pages: PageCount(bytes / PAGE_SIZE) })
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
