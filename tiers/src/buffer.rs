//! Page-aligned buffers (O_DIRECT wants them: open(2)) and the test for zero pages.

use holdfast_image::PAGE_SIZE;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

const PAGE: usize = PAGE_SIZE as usize;
/// So many a thread keeps for its next images: what one of them needs. New memory would be cleared each time, which
/// costs a small image more than its codec.
const SPARE: usize = 3;

thread_local! {
    static SPARES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer that begins on a page boundary. Never grows, so that it stays where it is. What is in it at first may be
/// what the one before it has left.
pub(crate) struct AlignedBuffer {
    raw: Vec<u8>,
    from: usize,
    len: usize,
}

impl AlignedBuffer {
    pub(crate) fn new(len: usize) -> AlignedBuffer {
        let spare = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            let at = spares.iter().position(|spare| spare.len() == len + PAGE)?;
            Some(spares.swap_remove(at))
        });
        let raw = spare.ok().flatten().unwrap_or_else(|| vec![0; len + PAGE]);
        let address = raw.as_ptr().addr();
        AlignedBuffer { from: address.next_multiple_of(PAGE) - address, raw, len }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        let raw = std::mem::take(&mut self.raw);
        // A thread that ends keeps none.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE {
                spares.push(raw);
            }
        });
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.raw[self.from..self.from + self.len]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.raw[self.from..self.from + self.len]
    }
}

/// Whether all bytes are zero. Most pages that are not zero show it in their first cache lines.
pub(crate) fn is_zero(page: &[u8]) -> bool {
    let (lines, rest) = page.as_chunks::<128>();
    lines.iter().all(|line| line.iter().fold(0, |sum, &byte| sum | byte) == 0) && rest.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_buffers_for_the_next_image_and_no_more() {
        let kept = |len: usize| {
            SPARES.with_borrow(|spares| spares.iter().filter(|spare| spare.len() == len + PAGE).count())
        };
        let (one, other) = (3 * PAGE, 5 * PAGE);
        let first = AlignedBuffer::new(one);
        let place = first.as_ptr().addr();
        drop(first);
        assert_eq!((kept(one), kept(other)), (1, 0));
        let others: Vec<AlignedBuffer> = (0..5).map(|_| AlignedBuffer::new(other)).collect();
        assert_eq!(AlignedBuffer::new(one).as_ptr().addr(), place);
        drop(others);
        assert_eq!((kept(one), kept(other)), (1, SPARE - 1));
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        let mut page = AlignedBuffer::new(PAGE + 5);
        assert!(page.as_ptr().addr().is_multiple_of(PAGE));
        assert!(is_zero(&page));
        for at in [0, 1, 127, 128, 4095, 4096, PAGE + 4] {
            page[at] = 0x10;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }
}
