//! Which blocks of a context have room for small requests, which blocks leave, and which freed memory is still in use.
//!
//! Called by: `memory.rs`, with the lock of `tables.rs` held. Invariants: a block that small requests share is in the
//! list of its context if and only if it has room; one that is empty is kept, others leave. What is pending is freed
//! for the program, and taken until its context has done its work.
//! Fails by: `None`: the driver's own allocation takes over.

use super::small::{Entry, Small, UNIT, UNITS};
use super::tables::{Found, Leaving, Tables, add, index, put, subtract};
use crate::lent::Lent;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};
use holdfast_abi::CudaBlock;

impl Tables {
    /// A record for a block of small requests, in the list of its context.
    pub(super) fn begin_small(&self, owner: usize, block: usize) -> Option<usize> {
        let place = match index(&self.head.free_small) {
            Some(place) => {
                let next = self.smalls.get(place)?.next.load(Relaxed);
                self.head.free_small.store(next, Relaxed);
                place
            }
            None => {
                let place = self.head.small_count.load(Relaxed);
                self.smalls.get(place as usize)?;
                self.head.small_count.store(place + 1, Relaxed);
                place as usize
            }
        };
        self.smalls.get(place)?.begin(block as u32);
        self.link(owner, place);
        self.owners.get(owner)?.empty.fetch_add(1, Relaxed);
        Some(place)
    }

    fn link(&self, owner: usize, place: usize) {
        let (Some(owner), Some(small)) = (self.owners.get(owner), self.smalls.get(place)) else { return };
        small.previous.store(0, Relaxed);
        small.next.store(owner.open.load(Relaxed), Relaxed);
        if let Some(next) = index(&owner.open).and_then(|next| self.smalls.get(next)) {
            put(&next.previous, Some(place));
        }
        put(&owner.open, Some(place));
    }

    fn unlink(&self, owner: usize, place: usize) {
        let (Some(owner), Some(small)) = (self.owners.get(owner), self.smalls.get(place)) else { return };
        let (next, previous) = (small.next.load(Relaxed), small.previous.load(Relaxed));
        match index(&small.previous).and_then(|previous| self.smalls.get(previous)) {
            Some(before) => before.next.store(next, Relaxed),
            None => owner.open.store(next, Relaxed),
        }
        if let Some(after) = index(&small.next).and_then(|next| self.smalls.get(next)) {
            after.previous.store(previous, Relaxed);
        }
    }

    /// Memory for a small request out of the blocks that a context has.
    pub fn take_small(&self, owner: usize, bytes: u64) -> Option<u64> {
        let context = self.owners.get(owner)?;
        let mut next = index(&context.open);
        for _ in 0..self.smalls.len() {
            let place = next?;
            let small = self.smalls.get(place)?;
            let was_empty = small.is_empty();
            if let Some(unit) = small.take(Entry::new(bytes, self.number())) {
                if was_empty {
                    context.empty.fetch_sub(1, Relaxed);
                }
                if small.is_full() {
                    self.unlink(owner, place);
                }
                add(&super::words().requested_bytes, bytes);
                let block = self.blocks.get(small.block.load(Relaxed) as usize)?;
                return Some(block.address.load(Relaxed) + unit as u64 * UNIT);
            }
            next = index(&small.next);
        }
        None
    }

    /// The memory of an allocation is not in use any more; the block, if it is to go with it.
    pub fn release(&self, address: u64) -> Option<Leaving> {
        let found = self.find(address).filter(|found| found.start == address)?;
        let note = self.notes.get(found.block)?;
        subtract(&super::words().requested_bytes, found.bytes);
        let (Some(unit), Some(place)) = (found.unit, index(&note.small)) else {
            return self.leave(found.block);
        };
        let (owner, small) = (note.owner.load(Relaxed) as usize, self.smalls.get(place)?);
        let was_full = small.is_full();
        small.give(unit)?;
        if was_full {
            self.link(owner, place);
        }
        if !small.is_empty() {
            return None;
        }
        let empty = &self.owners.get(owner)?.empty;
        if empty.fetch_add(1, Relaxed) == 0 { None } else { self.leave(found.block) }
    }

    /// Takes a block out of force.
    fn leave(&self, block: usize) -> Option<Leaving> {
        let (entry, note) = (self.blocks.get(block)?, self.notes.get(block)?);
        let leaving = Leaving {
            block,
            address: entry.address.load(Relaxed),
            bytes: entry.bytes.load(Relaxed),
            lent: Lent { name: entry.name.load(Relaxed), handle: entry.handle.load(Relaxed) },
        };
        entry.address.store(0, Release);
        if let Some(place) = index(&note.small)
            && let Some(small) = self.smalls.get(place)
        {
            let owner = note.owner.load(Relaxed) as usize;
            if !small.is_full() {
                self.unlink(owner, place);
            }
            if small.is_empty()
                && let Some(owner) = self.owners.get(owner)
            {
                owner.empty.fetch_sub(1, Relaxed);
            }
            small.next.store(self.head.free_small.load(Relaxed), Relaxed);
            put(&self.head.free_small, Some(place));
        }
        subtract(&super::words().block_bytes, leaving.bytes);
        self.changed();
        Some(leaving)
    }

    /// It is unmapped: its addresses can be used again.
    pub fn left(&self, leaving: &Leaving) {
        self.vacate(leaving.block, leaving.address, leaving.bytes);
    }

    /// Takes any block of a context out of force that is `fit` (whether it is an empty one of small requests).
    fn leave_first(&self, fit: impl Fn(&CudaBlock, bool) -> bool) -> Option<Leaving> {
        let count = super::words().block_count.load(Relaxed) as usize;
        let found = self.blocks.iter().zip(&self.notes).take(count).position(|(block, note)| {
            let small = || index(&note.small).and_then(|small| self.smalls.get(small));
            block.address.load(Relaxed) != 0 && fit(block, small().is_some_and(Small::is_empty))
        })?;
        self.leave(found)
    }

    /// Takes a block of a context out of force, with what is allocated there; what was freed is not pending any more.
    pub fn leave_of(&self, context: u64) -> Option<Leaving> {
        let leaving = self.leave_first(|block, _| block.context.load(Relaxed) == context)?;
        let range = leaving.address..leaving.address + leaving.bytes;
        let of = |place: &&AtomicU64| range.contains(&place.load(Relaxed));
        self.head.pending.iter().filter(of).for_each(|place| self.forget_pending(place));
        subtract(&super::words().requested_bytes, self.requested_in(&leaving));
        Some(leaving)
    }

    fn requested_in(&self, leaving: &Leaving) -> u64 {
        let Some(note) = self.notes.get(leaving.block) else { return 0 };
        match index(&note.small).and_then(|small| self.smalls.get(small)) {
            Some(small) => (0..UNITS).filter_map(|unit| small.at(unit)).map(Entry::bytes).sum(),
            None => note.requested.load(Relaxed),
        }
    }

    /// Takes a block out of force that nothing is allocated in.
    pub fn leave_empty(&self) -> Option<Leaving> {
        self.leave_first(|_, is_empty| is_empty)
    }

    /// Keeps a freed allocation, whose memory may be in use, for later; false: there is no room.
    pub fn keep_pending(&self, address: u64) -> bool {
        let Some(free) = self.head.pending.iter().find(|place| place.load(Relaxed) == 0) else {
            return false;
        };
        free.store(address, Relaxed);
        self.head.pending_count.fetch_add(1, Relaxed);
        true
    }

    /// One that was kept, of any context or of this one; it is kept no longer.
    pub fn take_pending(&self, context: Option<u64>) -> Option<Found> {
        if self.head.pending_count.load(Relaxed) == 0 {
            return None;
        }
        self.head.pending.iter().find_map(|place| {
            let found = self.find(place.load(Relaxed))?;
            let of = context.is_none_or(|context| found.context == context);
            of.then(|| self.forget_pending(place)).map(|()| found)
        })
    }

    fn forget_pending(&self, place: &AtomicU64) {
        place.store(0, Relaxed);
        self.head.pending_count.fetch_sub(1, Relaxed);
    }
}
