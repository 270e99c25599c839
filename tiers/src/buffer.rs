//! Page-aligned buffers (O_DIRECT wants them: open(2)) and the test for zero pages.

use holdfast_image::PAGE_SIZE;
use std::ops::{Deref, DerefMut};

const PAGE: usize = PAGE_SIZE as usize;

/// A buffer that begins on a page boundary. Never grows, so that it stays where it is.
pub(crate) struct AlignedBuffer {
    raw: Vec<u8>,
    from: usize,
    len: usize,
}

impl AlignedBuffer {
    pub(crate) fn new(len: usize) -> AlignedBuffer {
        let raw = vec![0; len + PAGE];
        let address = raw.as_ptr().addr();
        AlignedBuffer { from: address.next_multiple_of(PAGE) - address, raw, len }
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
