//! Slots: numbers for the chunks of blocks. A block has as many as it has chunks, one behind the other, for as long as
//! it lasts; the first one is its name.
//!
//! Used by [`super::blocks`]. A slot is also the place of a chunk in the image: of the space of devices, `slot` times
//! the size of a chunk. Invariants: blocks do not overlap; no block has the number 0.

use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_image::address_space::DIGESTS;
use std::collections::BTreeMap;

/// First slot that is given out, and the end of all: below it is half of an address space, digests are in the other
/// half.
const FIRST: u64 = 32;
pub const END: u64 = DIGESTS / CHUNK;

/// Which are in use: first one and how many.
#[derive(Debug, Default)]
pub struct Slots(BTreeMap<u64, u64>);

impl Slots {
    /// The lowest that are free.
    pub fn take(&mut self, count: u64) -> Option<u64> {
        let mut first = FIRST;
        for (&start, &len) in &self.0 {
            if start.saturating_sub(first) >= count {
                break;
            }
            first = start + len;
        }
        self.take_at(first, count).then_some(first)
    }

    /// These very ones, if they are free.
    pub fn take_at(&mut self, first: u64, count: u64) -> bool {
        let Some(end) = first.checked_add(count).filter(|&end| count > 0 && first >= FIRST && end <= END)
        else {
            return false;
        };
        let is_free = self.0.range(..end).next_back().is_none_or(|(&start, &len)| start + len <= first);
        if is_free {
            self.0.insert(first, count);
        }
        is_free
    }

    /// The other way.
    pub fn give(&mut self, first: u64) {
        self.0.remove(&first);
    }

    /// One more than the highest in use.
    pub fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(start, len)| start + len)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_found_and_nothing_overlaps() {
        let mut slots = Slots::default();
        assert_eq!((slots.take(10), slots.take(5), slots.take(7)), (Some(32), Some(42), Some(47)));
        slots.give(42);
        assert_eq!(slots.take(6), Some(54));
        assert_eq!(slots.take(5), Some(42));
        assert!(!slots.take_at(40, 4) && !slots.take_at(0, 1) && !slots.take_at(END - 1, 2));
        assert!(!slots.take_at(u64::MAX, 2) && !slots.take_at(100, 0));
        assert!(slots.take_at(100, 28));
        assert_eq!((slots.end(), slots.take(40)), (128, Some(60)));
    }

    #[test]
    fn any_sequence_keeps_them_apart() {
        let mut state = 7_u64;
        let mut random = move |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let (mut slots, mut held) = (Slots::default(), Vec::<(u64, u64)>::new());
        for _ in 0..2000 {
            if random(3) == 0 && !held.is_empty() {
                let (first, _) = held.swap_remove(random(held.len() as u64) as usize);
                slots.give(first);
            } else {
                let count = 1 + random(40);
                let first = slots.take(count).unwrap();
                assert!(held.iter().all(|(other, len)| first + count <= *other || other + len <= first));
                held.push((first, count));
            }
        }
    }
}
