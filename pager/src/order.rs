//! The order of the flush: ranks of pages, and how dirty pages become runs in that order. Used by [`crate::queue`].
//!
//! Pages a thread waits for and pages that hold a slot are the queue's business. What is left goes, in the order
//! [`Order::Classes`], by the class of the predicted epoch as in AI-Ckpt (HPDC'13, section 3.2 and algorithm 4):
//! WAIT, COW, AVOIDED, each earliest first, then AFTER by time, then pages of which nothing is known, then UNTOUCHED
//! ones. Within a rank: by address.
//!
//! [`Order::History`] makes one class of WAIT, COW and AVOIDED, by time alone. What became of a page last time
//! follows from the order then more than from the program: the paper's order stores last time's waits first, which
//! lets this time's waits come elsewhere, and so on. By the time of the first write the program is held as little as
//! any order allows (`tests/simulation.rs`); what the paper's order gains, fewer copies, is gained by leaving for
//! last what the program will write before the flush can be there ([`Prediction::with_copies`]).

use crate::access::Packed;
use crate::chunk::{pieces, run_at};
use crate::prediction::Prediction;
use crate::rank::Rank;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use std::fmt;
use std::str::FromStr;

/// In which order the pages of a flush go out, apart from those that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Order {
    /// As the access history says: pages written during the flush by the time of their first write, whatever became of
    /// it then; the earliest go last if the program will be there before the flush (see [`crate::order`]).
    #[default]
    History,
    /// As the access history says, in the order of the paper: WAIT, COW, AVOIDED, each earliest first.
    Classes,
    /// By address.
    Address,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::History => "history",
            Order::Classes => "classes",
            Order::Address => "address",
        })
    }
}

/// Not an order.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an order of pages; use history, classes or address")]
pub struct OrderError(String);

impl FromStr for Order {
    type Err = OrderError;
    fn from_str(text: &str) -> Result<Order, OrderError> {
        match text {
            "history" => Ok(Order::History),
            "classes" => Ok(Order::Classes),
            "address" => Ok(Order::Address),
            _ => Err(OrderError(text.to_owned())),
        }
    }
}

/// A run that is being built: the ranks of its pages lie between `first` and `last`.
struct Open {
    run: PageRun,
    first: Rank,
    last: Rank,
    /// Rank of its first page, by address, and of its last one.
    ends: (Rank, Rank),
}

impl Open {
    /// Takes in the page that follows if it fits.
    fn extend(&mut self, page: PageRun, rank: Rank) -> bool {
        let (first, last) = (self.first.min(rank), self.last.max(rank));
        let fits = self.run.end() == page.start && first.joins(last);
        if fits {
            self.run.pages = PageCount(self.run.pages.0 + page.pages.0);
            (self.first, self.last, self.ends.1) = (first, last, rank);
        }
        fits
    }
    /// In the direction in which the program writes it. A run goes out upwards: downwards, many short ones do.
    fn directed(self) -> impl Iterator<Item = PageRun> {
        let PageRun { start, pages } = self.run;
        let piece = if self.ends.1 < self.ends.0 { DOWN_PAGES } else { pages.0 };
        (0..pages.0.div_ceil(piece)).map(move |number| {
            let to = pages.0 - number * piece;
            let from = to.saturating_sub(piece);
            PageRun { start: Addr(start.0 + from * PAGE_SIZE), pages: PageCount(to - from) }
        })
    }
}

/// Pages of a piece of a run that the program writes downwards.
const DOWN_PAGES: u64 = 64;

/// The pages of `dirty` as runs in the order of the flush. Neighbours of nearly the same rank are in one run, which
/// has the rank of its earliest page: a read or a write of many pages costs far less than many of one.
pub(crate) fn arrange(dirty: &PageSet, order: Order, prediction: Option<&Prediction>) -> Vec<PageRun> {
    let (rank_of, prediction): (fn(_) -> Rank, _) = match (order, prediction) {
        (Order::Address, _) | (_, None) => return dirty.runs().to_vec(),
        (Order::History, Some(prediction)) => (Rank::by_time, prediction),
        (Order::Classes, Some(prediction)) => (Rank::of, prediction),
    };
    let mut ranked: Vec<Open> = Vec::new();
    let mut open: Option<Open> = None;
    for piece in dirty.runs().iter().copied().flat_map(pieces) {
        let known = prediction.chunk(piece.chunk);
        for place in piece.from..piece.to {
            let packed = known.and_then(|chunk| chunk.get(place)).copied().unwrap_or(Packed::UNKNOWN);
            let (rank, page) = (rank_of(packed.get()), run_at(piece.chunk, place, 1));
            if !open.as_mut().is_some_and(|open| open.extend(page, rank)) {
                let next = Open { run: page, first: rank, last: rank, ends: (rank, rank) };
                ranked.extend(open.replace(next));
            }
        }
    }
    ranked.extend(open);
    ranked.sort_unstable_by_key(|open| (open.first, open.run));
    let mut directed: Vec<(Rank, PageRun)> = Vec::with_capacity(ranked.len());
    for open in ranked {
        let rank = open.first;
        directed.extend(open.directed().map(|run| (rank, run)));
    }
    if order == Order::History {
        concede(&mut directed, prediction);
    }
    directed.into_iter().map(|(_, run)| run).collect()
}

/// See [`concede`].
const MARGIN_PART: u64 = 8;

/// Moves the pages to which the program will come before the flush in any case behind the others that it will write
/// during the flush, up to the room for copies.
///
/// With `flushed(t)` pages stored by the time t, the flush is late for the i-th page, written at `t(i)`, by `i -
/// flushed(t(i))` pages. The greatest such lead of the program, taken off the front, makes it in time for all others:
/// as many copies as the lead, and none for the rest, where the plain order would copy every page just before it is
/// stored. The time that the program is held stays the least possible: at any time it can have written no more pages
/// than are stored and copied, and only pages that it writes early are stored.
///
/// A page counts as stored some time after it was handed out, and the flush begins some time after the cut: the flush
/// is to be half of the room ahead, or one part in [`MARGIN_PART`] of these pages if that is less.
fn concede(ranked: &mut [(Rank, PageRun)], prediction: &Prediction) {
    let during = ranked.partition_point(|(rank, _)| rank.is_during());
    let (during, _) = ranked.split_at_mut(during);
    let all: u64 = during.iter().map(|(_, run)| run.pages.0).sum();
    let mut before = (prediction.copies().0 / 2).min(all / MARGIN_PART);
    let mut lead = 0;
    for (rank, run) in during.iter() {
        let Some(flushed) = prediction.flushed_by(rank.us()) else { return };
        lead = before.saturating_sub(flushed).max(lead);
        before += run.pages.0;
    }
    let mut left = lead.min(prediction.copies().0);
    let ahead = during.iter().take_while(|(_, run)| {
        let fits = run.pages.0 <= left;
        left = left.saturating_sub(run.pages.0);
        fits
    });
    let ahead = ahead.count();
    during.rotate_left(ahead);
}
