//! The rank of a page in the order of the flush, by what is predicted for it. Used by [`crate::order`], which says why.

use crate::access::{Access, PageAccess, Tick};

/// The place of a page in the order of the flush: less goes first. Class in the high half, time in the low half.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rank(u32);

impl Rank {
    const WAIT: u32 = 0;
    const COW: u32 = 1;
    const AVOIDED: u32 = 2;
    const AFTER: u32 = 3;
    /// The rank of a page of which nothing is known.
    pub const UNKNOWN: Rank = Rank(4 << 16);
    const UNTOUCHED: Rank = Rank(5 << 16);
    /// Neighbours are joined as long as their ticks lie no further apart than this: 1 ms at first, one part in 32 of
    /// the time later. Not more for pages written after the flush either: where the program was held, the next flush
    /// will have time to reach them first, and a program that goes downwards would meet each long run at its wrong
    /// end.
    const JOIN: u32 = 16;

    /// The rank of what is predicted for a page.
    pub fn of(page: Option<PageAccess>) -> Rank {
        let Some(page) = page else { return Rank::UNKNOWN };
        let class = match page.access {
            Access::Wait => Rank::WAIT,
            // Nothing of it had to be stored then, now there is: a write at that time will cost a copy.
            Access::Avoided if !page.flushed => Rank::COW,
            Access::Cow => Rank::COW,
            Access::Avoided => Rank::AVOIDED,
            Access::After => Rank::AFTER,
            Access::Untouched => return Rank::UNTOUCHED,
        };
        Rank(class << 16 | u32::from(page.at.raw()))
    }
    /// The rank in the order [`crate::Order::History`]: all classes of pages written during the flush are one.
    pub(crate) fn by_time(page: Option<PageAccess>) -> Rank {
        let rank = Rank::of(page);
        if rank.is_during() { Rank(rank.0 & 0xffff) } else { rank }
    }
    fn class(self) -> u32 {
        self.0 >> 16
    }
    /// Whether the page is predicted to be written while the flush runs.
    pub(crate) fn is_during(self) -> bool {
        self.class() < Rank::AFTER
    }
    /// When the page is predicted to be written first, in microseconds since the cut.
    pub(crate) fn us(self) -> u64 {
        Tick::from_raw(self.0 as u16).us()
    }
    /// Whether pages of these two ranks, and of those between them, may be in one run.
    pub(crate) fn joins(self, other: Rank) -> bool {
        self.class() == other.class() && self.0.abs_diff(other.0) <= Rank::JOIN
    }
}
