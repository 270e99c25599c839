//! What an epoch knew of the first write to each page: how it went, and when. Written by [`crate::recorder`], kept by
//! [`crate::history`], read by [`crate::prediction`].
//!
//! Two bytes per page: three bits of class, thirteen bits of time, in chunks of 2 MiB (1 KiB each). A chunk that is
//! absent, and an entry of zero, mean that nothing is known. Memory per epoch is therefore at most two bytes per page
//! of memory that has been written or stored, apart from chunks with few such pages.
//!
//! AI-Ckpt (HPDC'13, section 3.2) keeps a class and an index of the order of access per page; we keep the time in
//! place of the index: sampled pages have no order among themselves, and a time can be compared between epochs.

use crate::chunk::{CHUNK_PAGES, locate};
use holdfast_image::manifest::AccessCounts;
use holdfast_image::{Addr, PageCount};
use std::collections::BTreeMap;

/// How the first write to a page after the cut went.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// The writer had to wait until the page was stored, or until there was room for a copy.
    Wait,
    /// The page was copied first.
    Cow,
    /// The page needed no copy any more (it was stored, or copied inside the stop); the flush still ran.
    Avoided,
    /// After the flush.
    After,
    /// Not written up to the next cut.
    Untouched,
}

/// A time since the cut, in 13 bits: 4 bits of exponent, 9 of mantissa, in units of 64 us.
///
/// Exact to 64 us up to 32 ms, then to one part in 512: the early part of the flush, where the order matters most, is
/// the finest. Ends at 1072 s (later is the same as 1072 s). Ordered as the times are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Tick(u16);

impl Tick {
    const UNIT_US: u64 = 64;
    const MANTISSA_BITS: u32 = 9;
    const BITS: u32 = 13;
    /// The last one.
    pub const MAX: Tick = Tick((1 << Tick::BITS) - 1);

    /// The tick of a time since the cut.
    pub fn from_us(at_us: u64) -> Tick {
        let units = at_us / Tick::UNIT_US;
        let exponent = (u64::BITS - units.leading_zeros()).saturating_sub(Tick::MANTISSA_BITS);
        if exponent == 0 {
            return Tick(units as u16);
        }
        let mantissa = (units >> (exponent - 1)) & ((1 << Tick::MANTISSA_BITS) - 1);
        let raw = u64::from(exponent) << Tick::MANTISSA_BITS | mantissa;
        u16::try_from(raw).map_or(Tick::MAX, |raw| Tick(raw).min(Tick::MAX))
    }
    /// The earliest time of this tick, in microseconds since the cut.
    pub fn us(self) -> u64 {
        let exponent = u32::from(self.0) >> Tick::MANTISSA_BITS;
        let mantissa = u64::from(self.0) & ((1 << Tick::MANTISSA_BITS) - 1);
        let units = match exponent {
            0 => mantissa,
            e => (mantissa | 1 << Tick::MANTISSA_BITS) << (e - 1),
        };
        units * Tick::UNIT_US
    }
    /// Number of ticks from `earlier` to this one; 0 if it is not earlier.
    pub(crate) fn since(self, earlier: Tick) -> u16 {
        self.0.saturating_sub(earlier.0)
    }
    pub(crate) fn raw(self) -> u16 {
        self.0
    }
    /// The inverse of [`Tick::raw`]; other bits than the 13 are dropped.
    pub(crate) fn from_raw(raw: u16) -> Tick {
        Tick(raw & Tick::MAX.0)
    }
}

/// What is known of one page in one epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageAccess {
    /// How its first write went.
    pub access: Access,
    /// When; meaningless if it was not written.
    pub at: Tick,
    /// Whether the page was in the flush of that epoch. If not, its write cost nothing because there was nothing to
    /// store, and says only when the program wants the page.
    pub flushed: bool,
}

/// [`PageAccess`] or nothing, in two bytes. Every value of the 16 bits is valid.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Packed(pub u16);

impl Packed {
    pub(crate) const UNKNOWN: Packed = Packed(0);
    const UNTOUCHED: u16 = 5;
    const ELSEWHERE_DURING: u16 = 6;
    const ELSEWHERE_AFTER: u16 = 7;

    pub(crate) fn new(page: PageAccess) -> Packed {
        let class = match (page.flushed, page.access) {
            (true, Access::Wait) => 1,
            (true, Access::Cow) => 2,
            (true, Access::Avoided) => 3,
            (true, Access::After) => 4,
            (_, Access::Untouched) => return Packed(Packed::UNTOUCHED << Tick::BITS),
            (false, Access::After) => Packed::ELSEWHERE_AFTER,
            (false, _) => Packed::ELSEWHERE_DURING,
        };
        Packed(class << Tick::BITS | page.at.0)
    }
    pub(crate) fn is_known(self) -> bool {
        self.0 >> Tick::BITS != 0
    }
    pub(crate) fn get(self) -> Option<PageAccess> {
        let (access, flushed) = match self.0 >> Tick::BITS {
            0 => return None,
            1 => (Access::Wait, true),
            2 => (Access::Cow, true),
            3 => (Access::Avoided, true),
            4 => (Access::After, true),
            Packed::UNTOUCHED => (Access::Untouched, true),
            Packed::ELSEWHERE_DURING => (Access::Avoided, false),
            _ => (Access::After, false),
        };
        Some(PageAccess { access, at: Tick::from_raw(self.0), flushed })
    }
}

/// One chunk of 2 MiB.
pub(crate) type PackedChunk = Box<[Packed; CHUNK_PAGES]>;

/// A chunk of which nothing is known.
pub(crate) fn unknown_chunk() -> PackedChunk {
    Box::new([Packed::UNKNOWN; CHUNK_PAGES])
}

/// What a finished epoch knew of the pages of its flush, and of other pages that were written in it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct EpochAccess {
    chunks: BTreeMap<u64, PackedChunk>,
    counts: AccessCounts,
    /// Duration of the flush; 0: it did not end.
    flush_us: u64,
}

impl EpochAccess {
    pub(crate) fn new(chunks: BTreeMap<u64, PackedChunk>, flush_us: u64) -> EpochAccess {
        let mut counts = AccessCounts::default();
        let known = chunks.values().flat_map(|chunk| chunk.iter().filter_map(|packed| packed.get()));
        for page in known.filter(|page| page.flushed) {
            count(&mut counts, page.access, 1);
        }
        EpochAccess { chunks, counts, flush_us }
    }
    pub(crate) fn chunks(&self) -> &BTreeMap<u64, PackedChunk> {
        &self.chunks
    }
    pub(crate) fn packed(&self, page: Addr) -> Packed {
        let (chunk, place) = locate(page);
        self.chunks.get(&chunk).and_then(|chunk| chunk.get(place)).copied().unwrap_or_default()
    }
    /// What is known of a page; `None`: it was neither in the flush nor written.
    pub fn get(&self, page: Addr) -> Option<PageAccess> {
        self.packed(page).get()
    }
    /// The pages of the flush by how their first write went, up to the end of the epoch.
    pub fn counts(&self) -> AccessCounts {
        self.counts
    }
    /// How long the flush took, in microseconds since the cut; `None`: it did not come to its end in this epoch.
    pub fn flush_us(&self) -> Option<u64> {
        (self.flush_us > 0).then_some(self.flush_us)
    }
    /// Number of pages of the flush.
    pub fn flushed(&self) -> PageCount {
        let AccessCounts { wait, cow, avoided, after, untouched } = self.counts;
        PageCount(wait + cow + avoided + after + untouched)
    }
}

/// Adds `pages` to the count of a class.
pub(crate) fn count(counts: &mut AccessCounts, access: Access, pages: u64) {
    *counter(counts, access) += pages;
}

/// The count of a class.
pub(crate) fn counter(counts: &mut AccessCounts, access: Access) -> &mut u64 {
    match access {
        Access::Wait => &mut counts.wait,
        Access::Cow => &mut counts.cow,
        Access::Avoided => &mut counts.avoided,
        Access::After => &mut counts.after,
        Access::Untouched => &mut counts.untouched,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ticks_are_ordered_and_close(a in 0..2_000_000_000_u64, b in 0..2_000_000_000_u64) {
            if a <= b {
                prop_assert!(Tick::from_us(a) <= Tick::from_us(b));
            }
            let back = Tick::from_us(a).us();
            prop_assert!(back <= a);
            prop_assert_eq!(Tick::from_us(back), Tick::from_us(a));
            if a < Tick::MAX.us() {
                prop_assert!(a - back < 64.max(a / 512 + 64), "{a} became {back}");
            }
        }
        #[test]
        fn every_two_bytes_have_a_meaning(raw: u16) {
            if let Some(page) = Packed(raw).get() {
                let again = Packed::new(page).get();
                prop_assert_eq!(again.map(|p| (p.access, p.flushed)), Some((page.access, page.flushed)));
                if page.access != Access::Untouched {
                    prop_assert_eq!(Packed::new(page), Packed(raw));
                }
            }
        }
    }

    #[test]
    fn ticks_at_the_ends() {
        assert_eq!(Tick::from_us(0).us(), 0);
        assert_eq!(Tick::from_us(63), Tick::from_us(0));
        assert_eq!(Tick::from_us(511 * 64).us(), 511 * 64);
        assert_eq!(Tick::from_us(512 * 64).us(), 512 * 64);
        assert_eq!(Tick::from_us(u64::MAX), Tick::MAX);
        assert_eq!(Tick::MAX.us(), (1023 << 14) * 64);
    }
}
