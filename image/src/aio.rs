//! Contexts of Linux AIO (io_setup(2)) that no request is under way in: where a new one has to be put, and what its
//! ring has to say.
//!
//! Written by `process::capture::aio`, read by `process::rebuild`. What is in the ring is among the pages, as memory of
//! the program's own. Invariants: plain data; who makes the context checks it ([`AioContext::is_valid`]).

use crate::{Addr, PAGE_SIZE};
use serde::{Deserialize, Serialize};

/// See the head of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AioContext {
    /// Its id: the address of its ring.
    pub start: Addr,
    /// Bytes of the ring.
    pub len: u64,
    /// How many events the ring has room for, one less than may wait in it.
    pub room: u32,
    /// The first event that the program has not taken.
    pub head: u32,
    /// Behind the last one.
    pub tail: u32,
}

impl AioContext {
    /// Bytes of an event, and of what is before them (fs/aio.c, struct aio_ring; include/uapi/linux/aio_abi.h).
    pub const EVENT: u64 = 32;

    /// Of its ring, as it is mapped: `head`: at least the first 20 bytes. `None`: it is none.
    pub fn of_ring(start: Addr, len: u64, head: &[u8]) -> Option<AioContext> {
        /// fs/aio.c, AIO_RING_MAGIC.
        const MAGIC: u32 = 0xa10a_10a1;
        let word = |index: usize| {
            let bytes = head.get(index * 4..index * 4 + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let (room, head, tail) = (word(1)?, word(2)?, word(3)?);
        let context = AioContext { start, len, room, head, tail };
        (word(4) == Some(MAGIC) && context.is_valid()).then_some(context)
    }

    /// Whether the numbers fit together, as the kernel makes them (fs/aio.c, aio_setup_ring).
    pub fn is_valid(&self) -> bool {
        let events = (self.len / AioContext::EVENT).checked_sub(1);
        self.len.is_multiple_of(PAGE_SIZE)
            && events == Some(u64::from(self.room))
            && self.head < self.room
            && self.tail < self.room
    }

    /// How many requests `io_setup(2)` is asked for to make a ring of this size: it makes room for twice as many, at
    /// least for eight times the number of processors, and two more (fs/aio.c, ioctx_alloc, aio_setup_ring).
    pub fn requests(&self) -> u32 {
        self.room.saturating_sub(2) / 2
    }

    /// How many events the program has not taken yet.
    pub fn waiting(&self) -> u32 {
        (self.tail + self.room - self.head) % self.room
    }

    /// How many requests are under way when it has taken so many in all.
    pub fn under_way(&self, submitted: u64) -> u64 {
        let room = u64::from(self.room);
        (submitted % room + room - u64::from(self.tail)) % room
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ring(words: [u32; 5]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_ring_tells_what_waits_in_it_and_with_a_count_what_is_under_way() {
        let of = |words, len| AioContext::of_ring(Addr(0x7000), len, &ring(words));
        let magic = 0xa10a_10a1;
        let context = of([3, 127, 120, 2, magic], 4096).unwrap();
        assert_eq!((context.waiting(), context.requests()), (9, 62));
        assert_eq!([context.under_way(127 * 4 + 2), context.under_way(127 * 4 + 7)], [0, 5]);
        // Ring and number of requests for all sizes of rings (2 * requests + 2 events, in whole pages).
        for pages in 1..300_u64 {
            let context = AioContext { len: pages * 4096, room: (pages * 128 - 1) as u32, ..context };
            let made = (u64::from(context.requests() * 2 + 2 + 1) * 32).next_multiple_of(4096);
            assert!(context.is_valid() && made == context.len, "{context:?}");
        }
        for (words, len) in [
            ([3, 127, 120, 2, 5], 4096),
            ([3, 126, 0, 0, magic], 4096),
            ([3, 127, 0, 0, magic], 8192),
            ([3, 127, 127, 0, magic], 4096),
            ([3, 127, 0, 500, magic], 4096),
            ([0, u32::MAX, 0, 0, magic], 0),
        ] {
            assert_eq!(of(words, len), None, "{words:?}");
        }
        assert_eq!(AioContext::of_ring(Addr(0), 4096, &[0; 7]), None);
    }
}
