//! Several address spaces in one page index: an address of process number n is n times 2^47 higher than the process
//! knows it.
//!
//! User space of x86-64 with four-level page tables ends one page below 2^47 (arch/x86/include/asm/page_64_types.h,
//! TASK_SIZE_MAX), so runs of two spaces never touch. What has pages of several processes (cut, store, restart) uses
//! global addresses; what works in one process, its own. Space 0 is that of the first process: its addresses are
//! the same either way. Invariant: a run lies in one space.

use crate::Addr;
use crate::page_set::PageSet;
use crate::pages::PageRun;
use crate::units::SPACE_BITS as BITS;
pub use crate::units::SPACES;

/// The space that belongs to no process: what was in files is there ([`crate::record::FileContent`]).
pub const FILES: u32 = SPACES - 1;

/// The space of device memory that a keeper has ([`crate::cuda::KeptMemory`]): chunks at their slots, and, from
/// [`DIGESTS`] on, their digests.
pub const DEVICES: u32 = SPACES - 2;

/// Where digests begin in the space of devices: that of slot n is n * 16 bytes behind.
pub const DIGESTS: u64 = 1 << (BITS - 1);

fn base(space: u32) -> u64 {
    u64::from(space) << BITS
}

/// The global address of a process's own one.
pub fn global(space: u32, own: Addr) -> Addr {
    Addr(base(space) | own.0)
}

/// The space of a global address, and the process's own address.
pub fn split(global: Addr) -> (u32, Addr) {
    ((global.0 >> BITS) as u32, Addr(global.0 & (base(1) - 1)))
}

/// A run at its global addresses.
pub fn global_run(space: u32, own: PageRun) -> PageRun {
    PageRun { start: global(space, own.start), ..own }
}

/// The space of a run, and the run at the process's own addresses.
pub fn split_run(run: PageRun) -> (u32, PageRun) {
    let (space, start) = split(run.start);
    (space, PageRun { start, ..run })
}

/// A process's own pages at their global addresses.
pub fn global_set(space: u32, own: PageSet) -> PageSet {
    if space == 0 { own } else { own.runs().iter().map(|run| global_run(space, *run)).collect() }
}

/// Those pages of a global set that are in one space, at the process's own addresses.
pub fn own_set(space: u32, all: &PageSet) -> PageSet {
    let runs = all.runs();
    let from = runs.partition_point(|run| run.start.0 < base(space));
    let to = runs.partition_point(|run| run.start.0 < base(space + 1));
    runs.get(from..to).unwrap_or_default().iter().map(|run| split_run(*run).1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PAGE_SIZE, PageCount};

    fn run(page: u64, pages: u64) -> PageRun {
        PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) }
    }

    #[test]
    fn addresses_go_there_and_back() {
        let last = Addr((1 << BITS) - 2 * PAGE_SIZE);
        for space in [0, 1, 77, SPACES - 1] {
            for own in [Addr(0), Addr(PAGE_SIZE), last] {
                assert_eq!(split(global(space, own)), (space, own));
            }
            assert!(global_run(space, PageRun { start: last, pages: PageCount(1) }).is_valid());
        }
        assert!(!global_run(SPACES, run(1, 1)).is_valid());
    }

    #[test]
    fn sets_are_taken_apart_by_space() {
        let own = [PageSet::from(vec![run(1, 2), run(9, 1)]), PageSet::new(), PageSet::from(vec![run(1, 7)])];
        let all = (0..)
            .zip(&own)
            .fold(PageSet::new(), |all, (space, set)| all.union(&global_set(space, set.clone())));
        assert_eq!(all.pages(), PageCount(10));
        for (space, set) in (0..).zip(&own) {
            assert_eq!(&own_set(space, &all), set);
        }
        assert_eq!(own_set(0, &own[0]), own[0]);
    }
}
