//! The pages that are still to be stored, shared by the flush workers (take), the watcher and the engine `slots`
//! (promote, slot).
//!
//! Three queues, chosen from in this order: pages a thread waits for, pages that hold a slot, the list made by
//! [`crate::order`] when the flush begins. A bit per page says whether it is still here: who hands a page out
//! clears it, so that each page goes out exactly once although it may stand in several queues. Every step of a
//! selection removes an entry or a page: O(1) amortised.
//!
//! A worker takes many pages at once. While a thread waits it gives back those that it has not read
//! ([`FlushQueue::make_way`]): the page that is waited for may be among them, or would have to wait for them. A page
//! that a thread waits for near one that was waited for before brings the next ones in that direction along,
//! [`TOGETHER`] in all: the thread is likely to write them next. Others come alone: it would wait for more in vain.
//!
//! AI-Ckpt, algorithm 4 (SELECT_PAGE, HPDC'13). Avoided here: `WaitedPage` is one variable there, which several
//! waiting threads overwrite (here a set, first come first served); the search for the next page is linear, O(n^2) for
//! a flush; and CHECKPOINT waits for a flag that is never signalled (here the end is [`FlushQueue::take`] handing out
//! nothing, and a thread that waits for pages is told when they are stored).
//!
//! Invariants: a page of the dirty set is either still here or has been handed out; `left` counts the former. Runs in:
//! any thread of the agent; the lock is held for at most the pages of one `take`, never across I/O.
//!
//! All interleavings: `RUSTFLAGS="--cfg loom" cargo test -p holdfast-pager --release`.

use crate::chunk::{Bits, Piece, WORDS, has, locate, masks, pieces, run_at, set};
use crate::order::{Order, arrange};
use crate::prediction::Prediction;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use std::collections::{BTreeMap, VecDeque};

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use parking_lot::{Mutex, MutexGuard};

/// So many pages go out when a thread waits for one of them and for its neighbours before: a frame that takes a store
/// of 55 MB/s 0.3 ms, which the pipeline stores in one piece.
const TOGETHER: u64 = 4;
/// So many of the pages that were waited for last are remembered: programs write several arrays in turn.
const RECENT: usize = 8;
/// Pages that are no farther apart were written one after the other.
const NEAR: u64 = 8 * PAGE_SIZE;

/// See the head of the file.
pub struct FlushQueue {
    pages: PageCount,
    state: Mutex<State>,
}

/// A chunk of 2 MiB of which pages are (or were) to be stored.
#[derive(Default)]
struct Chunk {
    /// Of the dirty set.
    own: Bits,
    /// Not handed out yet.
    left: Bits,
    /// Is in `waited`.
    waited: Bits,
    /// Is in `slots`.
    slots: Bits,
}

/// The direction of a sweep.
#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

#[derive(Default)]
struct State {
    chunks: BTreeMap<u64, Chunk>,
    left: u64,
    waited: VecDeque<Addr>,
    slots: VecDeque<Addr>,
    /// Pages that threads wait for and that have been handed out.
    out: Vec<Addr>,
    /// Pages that were waited for, the last ones.
    recent: VecDeque<Addr>,
    /// What was given back; the last run is the next.
    returned: Vec<PageRun>,
    /// All pages, in the order of the flush.
    runs: Vec<PageRun>,
    /// Index of the run that is being handed out, and the first page of it that has not been looked at.
    next: (usize, u64),
}

impl FlushQueue {
    /// All of `dirty`. `first`: runs that go out before everything else but waited pages and slots, in the same order
    /// among themselves (what is not dirty of them is ignored). Without a prediction the order is that of the
    /// addresses.
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
                chunk.own[word] |= mask;
                chunk.left[word] |= mask;
            }
        }
        let first = dirty.intersection(&first.iter().copied().collect());
        for part in [&first, &dirty.difference(&first)] {
            state.runs.extend(arrange(part, order, prediction));
        }
        FlushQueue { pages: dirty.pages(), state: Mutex::new(state) }
    }
    /// Nothing panics while it holds the lock, and the state is consistent between statements.
    #[cfg(not(loom))]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    /// As above; a panic ends the model.
    #[cfg(loom)]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
    /// `most` > 0): all is taken. Pages a thread waits for come without others that they would wait for, but for a few
    /// that it will write next.
    pub fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.lock().take(most.0, into);
    }
    /// A thread waits for `page`: it goes out next. `false`: it is not here (handed out already, or was never dirty).
    pub fn promote(&self, page: Addr) -> bool {
        self.lock().promote(page)
    }
    /// These are all pages for which threads wait just now: they go out next, also those that a worker has and gives
    /// back.
    pub fn wait_for(&self, pages: &[Addr]) {
        let state = &mut *self.lock();
        state.out.clear();
        for page in pages {
            if !state.promote(*page) && state.is_own(*page) {
                state.out.push(page.page_floor());
            }
        }
    }
    /// Whether a thread waits for a page. If so, takes back the runs of `rest`, of which nothing was read: they go out
    /// after what is waited for and what holds a slot, the last run first.
    pub fn make_way(&self, rest: &mut Vec<PageRun>) -> bool {
        self.lock().make_way(rest)
    }
    /// `page` holds a slot: it goes out after the pages a thread waits for. `false`: it is not here.
    pub fn slot(&self, page: Addr) -> bool {
        self.lock().put_ahead(page, |chunk| &mut chunk.slots, |state| &mut state.slots)
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
    fn promote(&mut self, page: Addr) -> bool {
        self.put_ahead(page, |chunk| &mut chunk.waited, |state| &mut state.waited)
    }
    /// Puts a page into one of the queues that come before the order, unless the chunk's bits say that it is there.
    fn put_ahead(
        &mut self,
        page: Addr,
        bits: fn(&mut Chunk) -> &mut Bits,
        queue: fn(&mut State) -> &mut VecDeque<Addr>,
    ) -> bool {
        let (number, place) = locate(page);
        let chunk = self.chunks.get_mut(&number).filter(|chunk| has(&chunk.left, place));
        let fresh = chunk.map(|chunk| set(bits(chunk), place));
        if fresh == Some(true) {
            queue(self).push_back(page.page_floor());
        }
        fresh.is_some()
    }
    fn is_own(&self, page: Addr) -> bool {
        let (number, place) = locate(page);
        self.chunks.get(&number).is_some_and(|chunk| has(&chunk.own, place))
    }

    fn make_way(&mut self, rest: &mut Vec<PageRun>) -> bool {
        if self.out.is_empty() && self.waited.is_empty() {
            return false;
        }
        rest.retain(|run| !self.take_back(*run));
        for page in std::mem::take(&mut self.out) {
            if !self.promote(page) {
                self.out.push(page);
            }
        }
        true
    }
    /// `false`: it is not of the dirty set as a whole, and so of another source.
    fn take_back(&mut self, run: PageRun) -> bool {
        let is_own = |piece: Piece| {
            let chunk = self.chunks.get(&piece.chunk);
            chunk.is_some_and(|chunk| masks(piece).all(|(word, mask)| chunk.own[word] & mask == mask))
        };
        if !pieces(run).all(is_own) {
            return false;
        }
        for piece in pieces(run) {
            let Some(chunk) = self.chunks.get_mut(&piece.chunk) else { continue };
            for (word, mask) in masks(piece) {
                self.left += u64::from((mask & !chunk.left[word]).count_ones());
                chunk.left[word] |= mask;
                chunk.waited[word] &= !mask;
                chunk.slots[word] &= !mask;
            }
        }
        self.returned.push(run);
        true
    }

    fn take(&mut self, most: u64, into: &mut Vec<PageRun>) {
        let before = into.len();
        let mut batch = Batch { into, before, room: most };
        self.take_waited(&mut batch);
        if batch.room < most {
            return;
        }
        while batch.room > 0
            && let Some(page) = self.slots.pop_front()
        {
            self.claim(PageRun { start: page, pages: PageCount(1) }, &mut batch);
        }
        while batch.room > 0
            && let Some(run) = self.returned.pop()
        {
            let looked_at = self.claim(run, &mut batch);
            if looked_at < run.pages.0 {
                let start = Addr(run.start.0 + looked_at * PAGE_SIZE);
                self.returned.push(PageRun::between(start, run.end()));
            }
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

    /// Pages that threads wait for; if they are few also those that will be next.
    fn take_waited(&mut self, batch: &mut Batch<'_>) {
        let most = batch.room;
        let mut swept = Vec::new();
        while batch.room > 0
            && let Some(page) = self.waited.pop_front()
        {
            let room = batch.room;
            self.claim(PageRun { start: page, pages: PageCount(1) }, batch);
            if batch.room < room {
                swept.extend(self.way(page).map(|way| (page, way)));
            }
        }
        for (page, way) in swept {
            let bytes = TOGETHER.saturating_sub(most - batch.room) * PAGE_SIZE;
            let next = match way {
                Way::Up => PageRun::between(Addr(page.0 + PAGE_SIZE), Addr(page.0 + PAGE_SIZE + bytes)),
                Way::Down => PageRun::between(Addr(page.0.saturating_sub(bytes)), page),
            };
            self.claim(next, batch);
        }
    }
    /// In which direction a thread writes that waits for this page, as far as is known. Takes note of the page.
    fn way(&mut self, page: Addr) -> Option<Way> {
        let near = |from: u64, to: u64| (1..=NEAR).contains(&to.saturating_sub(from));
        let mut recent = self.recent.iter().rev();
        let way = recent.find_map(|last| {
            let up = near(last.0, page.0).then_some(Way::Up);
            up.or_else(|| near(page.0, last.0).then_some(Way::Down))
        });
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(page);
        way
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

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    fn page(number: u64) -> Addr {
        Addr(number * PAGE_SIZE)
    }
    fn numbers(runs: &[PageRun]) -> impl Iterator<Item = u64> {
        runs.iter().flat_map(|run| run.start.0 / PAGE_SIZE..run.end().0 / PAGE_SIZE)
    }

    /// Two takers empty the queue while a third promotes a page in the middle of a run. Each page goes out exactly
    /// once; after a promotion that found the page still here, the next batch of pages begins with it.
    #[test]
    fn takers_and_a_promoter() {
        loom::model(|| {
            let dirty: PageSet = [PageRun { start: page(510), pages: PageCount(4) }].into_iter().collect();
            let queue = Arc::new(FlushQueue::new(&dirty, Order::Address, None, &[]));
            let taker = |queue: Arc<FlushQueue>| {
                thread::spawn(move || {
                    let mut runs = Vec::new();
                    queue.take(PageCount(1), &mut runs);
                    queue.take(PageCount(2), &mut runs);
                    runs
                })
            };
            let takers = [taker(queue.clone()), taker(queue.clone())];
            let here = queue.promote(page(512));
            let mut own = Vec::new();
            queue.take(PageCount(4), &mut own);
            let mut seen: Vec<u64> = numbers(&own).collect();
            for taker in takers {
                seen.extend(numbers(&taker.join().unwrap()));
            }
            assert_eq!(queue.left(), PageCount(4 - seen.len() as u64));
            let mut rest = Vec::new();
            queue.take(PageCount(4), &mut rest);
            seen.extend(numbers(&rest));
            seen.sort_unstable();
            assert_eq!(seen, [510, 511, 512, 513]);
            // Promoted and not taken by anyone else before: our own batch was that page alone.
            if here && numbers(&own).any(|number| number == 512) {
                assert_eq!(own, [PageRun { start: page(512), pages: PageCount(1) }]);
            }
            assert!(!queue.promote(page(512)));
        });
    }

    /// A worker gives pages back while a thread begins to wait for one of them and another worker takes: each page
    /// goes out once more than it was given back.
    #[test]
    fn giving_back_and_waiting() {
        loom::model(|| {
            let dirty: PageSet = [PageRun { start: page(510), pages: PageCount(4) }].into_iter().collect();
            let queue = Arc::new(FlushQueue::new(&dirty, Order::Address, None, &[]));
            let waiter = {
                let queue = queue.clone();
                thread::spawn(move || queue.wait_for(&[page(512)]))
            };
            let other = {
                let queue = queue.clone();
                thread::spawn(move || {
                    let mut runs = Vec::new();
                    queue.take(PageCount(1), &mut runs);
                    runs
                })
            };
            let (mut own, mut seen) = (Vec::new(), Vec::new());
            queue.take(PageCount(3), &mut own);
            while let Some(run) = own.pop() {
                if queue.make_way(&mut own) {
                    assert!(own.is_empty());
                }
                seen.extend(numbers(&[run]));
            }
            waiter.join().unwrap();
            seen.extend(numbers(&other.join().unwrap()));
            queue.take(PageCount(1), &mut own);
            queue.take(PageCount(4), &mut own);
            seen.extend(numbers(&own));
            seen.sort_unstable();
            assert_eq!((queue.left(), seen), (PageCount(0), vec![510, 511, 512, 513]));
        });
    }

    /// Two waiters at once: neither overwrites the other, both pages go out before the rest.
    #[test]
    fn two_waiters() {
        loom::model(|| {
            let dirty: PageSet = [PageRun { start: page(510), pages: PageCount(4) }].into_iter().collect();
            let queue = Arc::new(FlushQueue::new(&dirty, Order::Address, None, &[]));
            let waiter =
                |queue: Arc<FlushQueue>, number| thread::spawn(move || assert!(queue.promote(page(number))));
            let waiters = [waiter(queue.clone(), 513), waiter(queue.clone(), 512)];
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            let mut runs = Vec::new();
            // No room for those that may come along.
            queue.take(PageCount(2), &mut runs);
            let mut seen: Vec<u64> = numbers(&runs).collect();
            seen.sort_unstable();
            assert_eq!(seen, [512, 513]);
        });
    }
}
