//! The order of the flush: ranks of pages, and how dirty pages become runs in that order. Used by [`crate::queue`].
//!
//! Pages somebody waits for and pages that hold a slot are the queue's business; what is left goes by the class of the
//! predicted epoch: WAIT, COW, AVOIDED, each earliest first, then AFTER by time, then pages of which nothing is known,
//! then UNTOUCHED ones (AI-Ckpt, HPDC'13, section 3.2 and algorithm 4). Within a rank: by address.
//!
//! Why WAIT before COW even where the copied page was written earlier: the earliest writes come before the flush can
//! reach their pages in any order, and that is what the copies are for; pages that had to wait found no room left.

use crate::access::{Access, Packed, PageAccess};
use crate::chunk::{pieces, run_at};
use crate::prediction::Prediction;
use holdfast_image::PageCount;
use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
use std::fmt;
use std::str::FromStr;

/// In which order the pages of a flush go out, apart from those that somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Order {
    /// As the access history says.
    #[default]
    History,
    /// By address.
    Address,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::History => "history",
            Order::Address => "address",
        })
    }
}

/// Not an order.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an order of pages; use history or address")]
pub struct OrderError(String);

impl FromStr for Order {
    type Err = OrderError;
    fn from_str(text: &str) -> Result<Order, OrderError> {
        match text {
            "history" => Ok(Order::History),
            "address" => Ok(Order::Address),
            _ => Err(OrderError(text.to_owned())),
        }
    }
}

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
    /// Runs of pages written during the flush are joined as long as their ticks lie no further apart than this: 1 ms
    /// at first, one part in 32 of the time later.
    const JOIN_DURING: u32 = 16;
    /// The same for pages written after the flush, where the order hardly matters and long runs are worth more.
    const JOIN_AFTER: u32 = 256;

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
    fn class(self) -> u32 {
        self.0 >> 16
    }
    /// How far ticks of one run may lie apart.
    fn join(self) -> u32 {
        if self.class() < Rank::AFTER { Rank::JOIN_DURING } else { Rank::JOIN_AFTER }
    }
}

/// A run that is being built: the ranks of its pages lie between `first` and `last`.
struct Open {
    run: PageRun,
    first: Rank,
    last: Rank,
}

impl Open {
    /// Takes in the page that follows if it fits.
    fn extend(&mut self, page: PageRun, rank: Rank) -> bool {
        let (first, last) = (self.first.min(rank), self.last.max(rank));
        let fits =
            self.run.end() == page.start && first.class() == last.class() && last.0 - first.0 <= first.join();
        if fits {
            self.run.pages = PageCount(self.run.pages.0 + page.pages.0);
            (self.first, self.last) = (first, last);
        }
        fits
    }
}

/// The pages of `dirty` as runs in the order of the flush. Neighbours of nearly the same rank are in one run, which
/// has the rank of its earliest page: a read or a write of many pages costs far less than many of one.
pub(crate) fn arrange(dirty: &PageSet, order: Order, prediction: Option<&Prediction>) -> Vec<PageRun> {
    let (Order::History, Some(prediction)) = (order, prediction) else {
        return dirty.runs().to_vec();
    };
    let mut ranked: Vec<(Rank, PageRun)> = Vec::new();
    let mut open: Option<Open> = None;
    let mut close = |open: Open| ranked.push((open.first, open.run));
    for piece in dirty.runs().iter().copied().flat_map(pieces) {
        let known = prediction.chunk(piece.chunk);
        for place in piece.from..piece.to {
            let packed = known.and_then(|chunk| chunk.get(place)).copied().unwrap_or(Packed::UNKNOWN);
            let (rank, page) = (Rank::of(packed.get()), run_at(piece.chunk, place, 1));
            if !open.as_mut().is_some_and(|open| open.extend(page, rank)) {
                let next = Open { run: page, first: rank, last: rank };
                open.replace(next).into_iter().for_each(&mut close);
            }
        }
    }
    open.into_iter().for_each(&mut close);
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, run)| run).collect()
}
