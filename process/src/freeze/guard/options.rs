//! How much is guarded, and why it may not be possible. Plain data, used by the other files of the folder and by the
//! agent.

use holdfast_image::PageCount;
use holdfast_image::page_set::PageSet;

/// A number of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotCount {
    /// So many.
    Pages(PageCount),
    /// So many ten-thousandths of the program's tracked pages.
    Share(u64),
}

impl Default for SlotCount {
    /// 5 %.
    fn default() -> SlotCount {
        SlotCount::Share(500)
    }
}

impl SlotCount {
    /// For a program with so many pages.
    pub fn of(self, tracked: PageCount) -> PageCount {
        match self {
            SlotCount::Pages(pages) => pages,
            SlotCount::Share(share) => {
                let pages = u128::from(tracked.0) * u128::from(share) / 10_000;
                PageCount(u64::try_from(pages).unwrap_or(u64::MAX))
            }
        }
    }
}

/// How to guard.
#[derive(Clone, Debug, Default)]
pub struct GuardOptions {
    /// Slots for copies: the hard bound.
    pub slots: SlotCount,
    /// Pages that one fault may resolve, 1 to 64, a power of two; 0: the default of 16.
    pub group: u64,
    /// Pages that will probably be written soon: they are copied along with a neighbour.
    pub likely: PageSet,
}

/// Why the engine cannot be used for this epoch; another one is used instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unsuited(pub String);
