//! Memory in chunks of 2 MiB: 512 pages, eight words of one bit per page. Used by all modules that keep a state per
//! page. A chunk that was not mentioned takes no room.
//!
//! Runs come from the tracker and from the frozen copy; they end below 2^57, so that page numbers never overflow.

use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};

/// Pages in a chunk: one entry of the second level of x86-64 page tables, so that a huge page is one chunk.
pub(crate) const CHUNK_PAGES: usize = 512;
/// [`CHUNK_PAGES`] for arithmetic with addresses.
pub(crate) const CHUNK_PAGES_U64: u64 = 512;
/// Words of 64 bits, one bit per page of a chunk.
pub(crate) const WORDS: usize = CHUNK_PAGES / 64;
/// One bit per page of a chunk.
pub(crate) type Bits = [u64; WORDS];

/// The part of a run that lies within one chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Number of the chunk: address / 2 MiB.
    pub chunk: u64,
    /// First page, counted within the chunk.
    pub from: usize,
    /// One past the last page; `from < to <= 512`.
    pub to: usize,
}

/// The chunk of a page and its place in it.
pub(crate) fn locate(page: Addr) -> (u64, usize) {
    let number = page.0 / PAGE_SIZE;
    (number / CHUNK_PAGES_U64, (number % CHUNK_PAGES_U64) as usize)
}

/// The run of `pages` pages that starts at place `index` of `chunk`.
pub(crate) fn run_at(chunk: u64, index: usize, pages: u64) -> PageRun {
    PageRun { start: Addr((chunk * CHUNK_PAGES_U64 + index as u64) * PAGE_SIZE), pages: PageCount(pages) }
}

/// Cuts a run at the borders of chunks.
pub(crate) fn pieces(run: PageRun) -> impl Iterator<Item = Piece> {
    let mut next = run.start.0 / PAGE_SIZE;
    let end = next.saturating_add(run.pages.0);
    std::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let chunk = next / CHUNK_PAGES_U64;
        let base = chunk * CHUNK_PAGES_U64;
        let stop = end.min(base + CHUNK_PAGES_U64);
        let piece = Piece { chunk, from: (next - base) as usize, to: (stop - base) as usize };
        next = stop;
        Some(piece)
    })
}

/// The words that a piece touches: index and mask.
pub(crate) fn masks(piece: Piece) -> impl Iterator<Item = (usize, u64)> {
    (piece.from / 64..piece.to.div_ceil(64)).map(move |word| {
        let low = piece.from.saturating_sub(word * 64);
        let high = (piece.to - word * 64).min(64);
        (word, (u64::MAX >> (64 - (high - low))) << low)
    })
}

/// The places of the bits that are set in word `word`, as places within the chunk.
pub(crate) fn places(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (bits != 0).then(|| {
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            word * 64 + bit
        })
    })
}

/// Whether the bit of place `index` is set.
pub(crate) fn has(bits: &Bits, index: usize) -> bool {
    bits.get(index / 64).is_some_and(|word| word & 1 << (index % 64) != 0)
}

/// Sets the bit of place `index`; says whether it was clear before.
pub(crate) fn set(bits: &mut Bits, index: usize) -> bool {
    let Some(word) = bits.get_mut(index / 64) else { return false };
    let bit = 1 << (index % 64);
    let fresh = *word & bit == 0;
    *word |= bit;
    fresh
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_and_masks_cover_a_run_exactly(first in 0..3000_u64, pages in 0..3000_u64) {
            let run = PageRun { start: Addr(first * PAGE_SIZE), pages: PageCount(pages) };
            let mut seen = Vec::new();
            for piece in pieces(run) {
                for (word, mask) in masks(piece) {
                    seen.extend(places(word, mask).map(|place| piece.chunk * 512 + place as u64));
                }
            }
            prop_assert_eq!(seen, (first..first + pages).collect::<Vec<_>>());
        }
    }

    #[test]
    fn places_are_found_again() {
        let page = Addr((7 * 512 + 65) * PAGE_SIZE);
        assert_eq!(locate(page), (7, 65));
        assert_eq!(run_at(7, 65, 1).start, page);
        let mut bits = Bits::default();
        assert!(set(&mut bits, 65) && !set(&mut bits, 65));
        assert!(has(&bits, 65) && !has(&bits, 64));
    }
}
