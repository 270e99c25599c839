//! Explicit huge pages (MAP_HUGETLB, private): what the tracker cannot tell of them.
//!
//! One that was given back (MADV_DONTNEED) leaves a marker of its protection, and is protected when a read brings it
//! in again, as zeros (mm/hugetlb.c, hugetlb_no_page): to the tracker nothing has written to it. But it holds zeros
//! until a thread does, which the tracker reports. So what is found unchanged and holds something is unchanged; the
//! rest counts as written.
//!
//! Called by `tracking`, inside the stop. Cost: 1 us per huge page that holds something in its first word.

use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::procmem;

/// Name of such a mapping in the maps file (fs/hugetlbfs/inode.c, HUGETLB_ANON_FILE).
pub const NAME: &[u8] = b"/anon_hugepage (deleted)";
/// The largest huge page of a processor of today, bytes.
pub const LARGEST: u64 = 1 << 30;
/// The smallest, bytes.
const BLOCK: u64 = 2 << 20;

/// Those of these pages that may have been given back since: in whose huge page no word was found that is not zero.
pub fn perhaps_given_back(tid: i32, pages: &PageSet) -> PageSet {
    pages.runs().iter().flat_map(blocks).filter(|block| !holds_something(tid, block)).collect()
}

/// A run, cut where huge pages begin.
fn blocks(run: &PageRun) -> impl Iterator<Item = PageRun> + use<> {
    let (mut start, end) = (run.start.0, run.end().0);
    std::iter::from_fn(move || {
        let next = end.min((start / BLOCK + 1) * BLOCK);
        let block = (start < end).then(|| PageRun::between(Addr(start), Addr(next)));
        start = next;
        block
    })
}

/// Looks at a word of each small page, at that of the first one first. What cannot be read is not known to hold
/// anything.
fn holds_something(tid: i32, block: &PageRun) -> bool {
    const WORD: usize = size_of::<u64>();
    let words: Vec<(u64, usize)> =
        (0..block.pages.0).map(|page| (block.start.0 + page * PAGE_SIZE, WORD)).collect();
    let mut bytes = vec![0_u8; words.len() * WORD];
    let (first, others) = words.split_at(1);
    [first, others].into_iter().filter(|some| !some.is_empty()).any(|some| {
        let found = &mut bytes[..some.len() * WORD];
        procmem::read_many(tid, some, found).is_ok() && found.iter().any(|byte| *byte != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::PageCount;

    #[test]
    fn runs_are_cut_where_huge_pages_begin() {
        let run = |start: u64, pages: u64| PageRun { start: Addr(start), pages: PageCount(pages) };
        let all: Vec<PageRun> = blocks(&run(BLOCK - PAGE_SIZE, 514)).collect();
        assert_eq!(all, [run(BLOCK - PAGE_SIZE, 1), run(BLOCK, 512), run(2 * BLOCK, 1)]);
    }

    #[test]
    fn what_holds_a_word_was_not_given_back() {
        let own = std::process::id().cast_signed();
        let mut memory = vec![0_u64; 3 * BLOCK as usize / 8];
        let begin = (memory.as_ptr().addr() as u64).next_multiple_of(BLOCK);
        let both = PageRun::between(Addr(begin), Addr(begin + 2 * BLOCK));
        let at = |address: u64| ((address - memory.as_ptr().addr() as u64) / 8) as usize;
        let (early, late) = (at(begin), at(begin + 2 * BLOCK - PAGE_SIZE));
        let second: PageSet = vec![PageRun::between(Addr(begin + BLOCK), both.end())].into();
        assert_eq!(perhaps_given_back(own, &vec![both].into()), vec![both].into());
        memory[early] = 7;
        assert_eq!(perhaps_given_back(own, &vec![both].into()), second);
        memory[late] = 7 << 56;
        assert!(perhaps_given_back(own, &vec![both].into()).is_empty());
        let nowhere = PageRun { start: Addr(PAGE_SIZE), pages: PageCount(1) };
        assert_eq!(perhaps_given_back(own, &vec![nowhere].into()), vec![nowhere].into());
    }
}
