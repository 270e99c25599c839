//! A block that small requests share: which parts of it are taken, and what each allocation is.
//!
//! Called by: `tables.rs`, with the lock held. Pure: no calls, no memory but the record itself. Parts are whole units
//! of 512 bytes: cuMemAlloc promises addresses that suit any type (256 bytes: CUDA C++ Programming Guide, "Device
//! Memory Accesses"), today's drivers give multiples of 512. Taken is the lowest run that is long enough. Invariants:
//! a unit is taken if and only if it is of an allocation; `free` counts those that are not.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Bytes of a block, and of all physical memory a multiple.
pub const GRANULE: u64 = 2 << 20;
/// Bytes of a unit.
pub const UNIT: u64 = 512;
/// Units of a block.
pub const UNITS: usize = (GRANULE / UNIT) as usize;
/// Requests that have fewer units share blocks: those below 1 MiB.
pub const SMALL_UNITS: usize = UNITS / 2;

/// What an allocation is, in one word: bytes - 1 (20 bits), flags, number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(u64);

impl Entry {
    /// The program has freed it; its memory is still taken.
    pub const ENDED: u64 = 1 << 20;
    /// Synchronous operations are to be so wherever they could return early (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS).
    pub const SYNC: u64 = 1 << 21;
    const NUMBER: u32 = 22;
    /// Most bytes.
    const BYTES: u64 = 1 << 20;

    /// Of `bytes` (1 to 1 MiB), with a number that is not 0.
    pub fn new(bytes: u64, number: u64) -> Entry {
        Entry(bytes.wrapping_sub(1) & (Entry::BYTES - 1) | number << Entry::NUMBER)
    }

    /// As the program has asked for it.
    pub fn bytes(self) -> u64 {
        (self.0 & (Entry::BYTES - 1)) + 1
    }

    /// Unlike that of any other allocation.
    pub fn number(self) -> u64 {
        self.0 >> Entry::NUMBER
    }

    /// Flags that are set.
    pub fn flags(self) -> u64 {
        self.0 & (Entry::ENDED | Entry::SYNC)
    }
}

/// The record of a block. All zero: not in use.
#[repr(C)]
pub struct Small {
    /// The block's index in the table of blocks.
    pub block: AtomicU32,
    /// Next record of the same list, + 1: of those with room of a context, or of those that are not in use.
    pub next: AtomicU32,
    /// The one before, + 1.
    pub previous: AtomicU32,
    /// Units that are free.
    free: AtomicU32,
    /// No run is longer than this; where it is not known, [`UNITS`].
    longest: AtomicU32,
    taken: [AtomicU64; UNITS / 64],
    starts: [AtomicU64; UNITS],
}

/// Units of so many bytes.
pub fn units(bytes: u64) -> usize {
    bytes.div_ceil(UNIT) as usize
}

impl Small {
    /// Everything is free.
    pub fn begin(&self, block: u32) {
        self.block.store(block, Relaxed);
        self.free.store(UNITS as u32, Relaxed);
        self.longest.store(UNITS as u32, Relaxed);
        self.taken.iter().for_each(|word| word.store(0, Relaxed));
        self.starts.iter().filter(|word| word.load(Relaxed) != 0).for_each(|word| word.store(0, Relaxed));
    }

    /// Whether nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.free.load(Relaxed) as usize == UNITS
    }

    /// Whether everything is.
    pub fn is_full(&self) -> bool {
        self.free.load(Relaxed) == 0
    }

    /// Takes a run for an allocation; its first unit.
    pub fn take(&self, entry: Entry) -> Option<usize> {
        let wanted = units(entry.bytes());
        if wanted > self.longest.load(Relaxed) as usize {
            return None;
        }
        let Some(at) = self.run(wanted) else {
            self.longest.store((wanted as u32).saturating_sub(1), Relaxed);
            return None;
        };
        self.starts.get(at)?.store(entry.0, Relaxed);
        self.mark(at, wanted, true);
        self.free.fetch_sub(wanted as u32, Relaxed);
        Some(at)
    }

    /// Gives back the allocation that begins at a unit.
    pub fn give(&self, at: usize) -> Option<Entry> {
        let start = self.starts.get(at)?;
        let entry = Entry(start.load(Relaxed));
        if entry.0 == 0 {
            return None;
        }
        start.store(0, Relaxed);
        let count = units(entry.bytes());
        self.mark(at, count, false);
        self.free.fetch_add(count as u32, Relaxed);
        self.longest.store(UNITS as u32, Relaxed);
        Some(entry)
    }

    /// The allocation that begins at a unit.
    pub fn at(&self, at: usize) -> Option<Entry> {
        let entry = Entry(self.starts.get(at)?.load(Relaxed));
        (entry.0 != 0).then_some(entry)
    }

    /// The allocation that a byte of the block is of, and its first unit.
    pub fn of(&self, offset: u64) -> Option<(usize, Entry)> {
        let unit = (offset / UNIT) as usize;
        let low = unit.saturating_sub(SMALL_UNITS);
        let at = (low..=unit).rev().find(|&at| self.at(at).is_some())?;
        let entry = self.at(at)?;
        (offset - at as u64 * UNIT < entry.bytes()).then_some((at, entry))
    }

    /// Sets or clears flags of the allocation that begins at a unit.
    pub fn flag(&self, at: usize, set: u64, clear: u64) {
        if let Some(start) = self.starts.get(at) {
            start.store(start.load(Relaxed) & !clear | set, Relaxed);
        }
    }

    /// The first unit at or behind `from` that is taken, or not; [`UNITS`] if there is none.
    fn next_that(&self, is_taken: bool, from: usize) -> usize {
        let mut at = from;
        while at < UNITS {
            let Some(word) = self.taken.get(at / 64) else { break };
            let word = word.load(Relaxed);
            let word = (if is_taken { word } else { !word }) >> (at % 64);
            if word != 0 {
                return at + word.trailing_zeros() as usize;
            }
            at = (at / 64 + 1) * 64;
        }
        UNITS
    }

    fn run(&self, wanted: usize) -> Option<usize> {
        let mut at = self.next_that(false, 0);
        while at < UNITS {
            let end = self.next_that(true, at);
            if end - at >= wanted {
                return Some(at);
            }
            at = self.next_that(false, end);
        }
        None
    }

    fn mark(&self, at: usize, count: usize, is_taken: bool) {
        let (mut from, end) = (at, at + count);
        while from < end {
            let Some(word) = self.taken.get(from / 64) else { return };
            let here = (end - from).min(64 - from % 64);
            let bits = (u64::MAX >> (64 - here)) << (from % 64);
            let now = word.load(Relaxed);
            word.store(if is_taken { now | bits } else { now & !bits }, Relaxed);
            from += here;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn new() -> Box<Small> {
        let zero = || AtomicU32::new(0);
        let small = Box::new(Small {
            block: zero(),
            next: zero(),
            previous: zero(),
            free: zero(),
            longest: zero(),
            taken: [const { AtomicU64::new(0) }; UNITS / 64],
            starts: [const { AtomicU64::new(0) }; UNITS],
        });
        small.begin(7);
        small
    }

    /// The lowest run that is long enough, by looking at every unit.
    fn lowest(model: &BTreeMap<usize, Entry>, wanted: usize) -> Option<usize> {
        let mut taken = [false; UNITS];
        for (at, entry) in model {
            taken[*at..at + units(entry.bytes())].fill(true);
        }
        (0..=UNITS - wanted).find(|at| taken[*at..at + wanted].iter().all(|taken| !taken))
    }

    fn steps() -> impl Strategy<Value = Vec<(bool, u64, usize)>> {
        proptest::collection::vec((any::<bool>(), 1_u64..1 << 20, any::<usize>()), 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn it_is_as_the_model(steps in steps()) {
            let small = new();
            let mut model: BTreeMap<usize, Entry> = BTreeMap::new();
            for (number, (gives, bytes, which)) in steps.into_iter().enumerate() {
                if gives && !model.is_empty() {
                    let at = *model.keys().nth(which % model.len()).unwrap();
                    prop_assert_eq!(small.give(at), model.remove(&at));
                    prop_assert_eq!(small.give(at), None, "once");
                } else {
                    let bytes = if which % 3 == 0 { bytes } else { bytes % 8192 + 1 };
                    let entry = Entry::new(bytes, number as u64 + 1);
                    let at = small.take(entry);
                    prop_assert_eq!(at, lowest(&model, units(bytes)));
                    if let Some(at) = at {
                        prop_assert_eq!((entry.bytes(), entry.number()), (bytes, number as u64 + 1));
                        model.insert(at, entry);
                    }
                }
                let taken: usize = model.values().map(|entry| units(entry.bytes())).sum();
                prop_assert_eq!(small.is_empty(), taken == 0);
                prop_assert_eq!(small.is_full(), taken == UNITS);
                let offset = which as u64 % GRANULE;
                let inside = model
                    .iter()
                    .find(|(at, entry)| (0..entry.bytes()).contains(&offset.wrapping_sub(**at as u64 * UNIT)))
                    .map(|(at, entry)| (*at, *entry));
                prop_assert_eq!(small.of(offset), inside);
            }
        }
    }

    #[test]
    fn a_block_is_filled_to_its_last_unit() {
        let small = new();
        let places: Vec<usize> =
            (0..UNITS as u64).map(|number| small.take(Entry::new(1, number + 1)).unwrap()).collect();
        assert_eq!(places, (0..UNITS).collect::<Vec<_>>());
        assert!(small.is_full());
        assert_eq!(small.take(Entry::new(1, 1)), None);
        small.flag(9, Entry::ENDED, 0);
        assert_eq!(small.at(9).unwrap().flags(), Entry::ENDED);
        assert_eq!(small.give(9).unwrap().number(), 10);
        assert_eq!(small.take(Entry::new(513, 1)), None);
        assert_eq!(small.take(Entry::new(512, 1)), Some(9));
    }
}
