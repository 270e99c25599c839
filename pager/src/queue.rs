//! The pages that are still to be stored, shared by the flush workers (take), the watcher and the engine `slots`
//! (promote, slot).
//!
//! Three queues, chosen from in this order: pages somebody waits for, pages that hold a slot, the list made by
//! [`crate::order`] when the flush begins. A bit per page says whether it is still here: whoever hands a page out
//! clears it, so that each page goes out exactly once although it may stand in several queues. Every step of a
//! selection removes an entry or a page: O(1) amortised.
//!
//! AI-Ckpt, algorithm 4 (SELECT_PAGE, HPDC'13). Avoided here: `WaitedPage` is one variable there, which several
//! waiting threads overwrite (here a set, first come first served); the search for the next page is linear, O(n^2) for
//! a flush; and CHECKPOINT waits for a flag that nobody signals (here the end is [`FlushQueue::take`] handing out
//! nothing, and who waits for pages is told by whoever stored them).
//!
//! Invariants: a page of the dirty set is either still here or has been handed out; `left` counts the former. Runs in:
//! any thread of the agent; the lock is held for at most the pages of one `take`, never across I/O.
//!
//! All interleavings: `RUSTFLAGS="--cfg loom" cargo test -p holdfast-pager --release`.

use crate::chunk::{Bits, WORDS, has, locate, masks, pieces, run_at, set};
use crate::order::{Order, arrange};
use crate::prediction::Prediction;
use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use std::collections::{BTreeMap, VecDeque};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// See the head of the file.
pub struct FlushQueue {
    pages: PageCount,
    state: Mutex<State>,
}

/// A chunk of 2 MiB of which pages are (or were) to be stored.
#[derive(Default)]
struct Chunk {
    /// Not handed out yet.
    left: Bits,
    /// Stands in `waited`.
    waited: Bits,
    /// Stands in `slots`.
    slots: Bits,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<u64, Chunk>,
    left: u64,
    waited: VecDeque<Addr>,
    slots: VecDeque<Addr>,
    /// All pages, in the order of the flush.
    runs: Vec<PageRun>,
    /// Index of the run that is being handed out, and the first page of it that has not been looked at.
    next: (usize, u64),
}

impl FlushQueue {
    /// All of `dirty`. `first`: runs that go out before everything else but waited pages and slots (what is not dirty
    /// of them is ignored). Without a prediction the order is that of the addresses.
    pub fn new(
        dirty: &PageSet,
        order: Order,
        prediction: Option<&Prediction>,
        first: &[PageRun],
    ) -> FlushQueue {
        let mut state = State { left: dirty.pages().0, ..State::default() };
        for piece in dirty.runs().iter().copied().flat_map(pieces) {
            let chunk = state.chunks.entry(piece.chunk).or_default();
            for (word, mask) in masks(piece) {
                chunk.left[word] |= mask;
            }
        }
        state.runs.extend_from_slice(first);
        state.runs.extend(arrange(dirty, order, prediction));
        FlushQueue { pages: dirty.pages(), state: Mutex::new(state) }
    }
    /// Nothing panics while it holds the lock, and the state is consistent between statements.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Number of pages at the start.
    pub fn pages(&self) -> PageCount {
        self.pages
    }
    /// Number of pages that have not been handed out.
    pub fn left(&self) -> PageCount {
        PageCount(self.lock().left)
    }
    /// Takes what is to be stored next: appends runs of at most `most` pages in all to `into`. Nothing appended (with
    /// `most` > 0): all is taken. Pages somebody waits for come alone, without others behind which they would wait.
    pub fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.lock().take(most.0, into);
    }
    /// Somebody waits for `page`: it goes out next. `false`: it is not here (handed out already, or was never dirty).
    pub fn promote(&self, page: Addr) -> bool {
        let (number, place) = locate(page);
        let state = &mut *self.lock();
        let chunk = state.chunks.get_mut(&number).filter(|chunk| has(&chunk.left, place));
        let fresh = chunk.map(|chunk| set(&mut chunk.waited, place));
        if fresh == Some(true) {
            state.waited.push_back(page.page_floor());
        }
        fresh.is_some()
    }
    /// `page` holds a slot: it goes out after the pages somebody waits for. `false`: it is not here.
    pub fn slot(&self, page: Addr) -> bool {
        let (number, place) = locate(page);
        let state = &mut *self.lock();
        let chunk = state.chunks.get_mut(&number).filter(|chunk| has(&chunk.left, place));
        let fresh = chunk.map(|chunk| set(&mut chunk.slots, place));
        if fresh == Some(true) {
            state.slots.push_back(page.page_floor());
        }
        fresh.is_some()
    }
}

/// What one `take` has handed out so far.
struct Batch<'a> {
    into: &'a mut Vec<PageRun>,
    /// Runs that were in `into` before: never touched.
    before: usize,
    room: u64,
}

impl Batch<'_> {
    fn push(&mut self, run: PageRun) {
        self.room -= run.pages.0;
        match self.into.get_mut(self.before..).and_then(<[PageRun]>::last_mut) {
            Some(last) if last.end() == run.start => last.pages = PageCount(last.pages.0 + run.pages.0),
            _ => self.into.push(run),
        }
    }
}

impl State {
    fn take(&mut self, most: u64, into: &mut Vec<PageRun>) {
        let before = into.len();
        let mut batch = Batch { into, before, room: most };
        while batch.room > 0
            && let Some(page) = self.waited.pop_front()
        {
            self.claim(PageRun { start: page, pages: PageCount(1) }, &mut batch);
        }
        if batch.room < most {
            return;
        }
        while batch.room > 0
            && let Some(page) = self.slots.pop_front()
        {
            self.claim(PageRun { start: page, pages: PageCount(1) }, &mut batch);
        }
        while batch.room > 0
            && let (index, done) = self.next
            && let Some(run) = self.runs.get(index)
        {
            let rest = PageRun {
                start: Addr(run.start.0 + done * PAGE_SIZE),
                pages: PageCount(run.pages.0.saturating_sub(done)),
            };
            let looked_at = self.claim(rest, &mut batch);
            self.next = if looked_at < rest.pages.0 { (index, done + looked_at) } else { (index + 1, 0) };
        }
    }

    /// Hands out the pages of `run` that are still here, as long as there is room. Returns how many pages of it have
    /// been looked at.
    fn claim(&mut self, run: PageRun, batch: &mut Batch<'_>) -> u64 {
        for piece in pieces(run) {
            let Some(chunk) = self.chunks.get_mut(&piece.chunk) else { continue };
            for (word, mask) in masks(piece) {
                while batch.room > 0 && chunk.left[word] & mask != 0 {
                    let bits = chunk.left[word] & mask;
                    let bit = bits.trailing_zeros();
                    let pages = u64::from((bits >> bit).trailing_ones()).min(batch.room);
                    chunk.left[word] &= !((u64::MAX >> (64 - pages)) << bit);
                    self.left -= pages;
                    batch.push(run_at(piece.chunk, word * 64 + bit as usize, pages));
                }
                if batch.room == 0 {
                    // The word may have more: it is looked at again. What is before it has been handed out.
                    let word_start = run_at(piece.chunk, word * 64, 1).start;
                    return word_start.0.saturating_sub(run.start.0) / PAGE_SIZE;
                }
            }
        }
        run.pages.0
    }
}

const _: () = assert!(WORDS == 8);
