//! The pages that are still to be stored, shared by the flush workers (take), the watcher and the engine `slots`
//! (promote, slot).
//!
//! Three queues, chosen from in this order: pages a thread waits for, pages that hold a slot, the list made by
//! [`crate::order`] when the flush begins. A bit per page says whether it is still here: who hands a page out
//! clears it, so that each page goes out exactly once although it may stand in several queues. Every step of a
//! selection removes an entry or a page: O(1) amortised.
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

use crate::chunk::{Bits, WORDS, has, locate, masks, pieces, run_at, set};
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
    /// Is in `waited`.
    waited: Bits,
    /// Is in `slots`.
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
    /// `most` > 0): all is taken. Pages a thread waits for come alone, without others behind which they would wait.
    pub fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.lock().take(most.0, into);
    }
    /// A thread waits for `page`: it goes out next. `false`: it is not here (handed out already, or was never dirty).
    pub fn promote(&self, page: Addr) -> bool {
        self.put_ahead(page, |chunk| &mut chunk.waited, |state| &mut state.waited)
    }
    /// `page` holds a slot: it goes out after the pages a thread waits for. `false`: it is not here.
    pub fn slot(&self, page: Addr) -> bool {
        self.put_ahead(page, |chunk| &mut chunk.slots, |state| &mut state.slots)
    }
    /// Puts a page into one of the queues that come before the order, unless the chunk's bits say that it is there.
    fn put_ahead(
        &self,
        page: Addr,
        bits: fn(&mut Chunk) -> &mut Bits,
        queue: fn(&mut State) -> &mut VecDeque<Addr>,
    ) -> bool {
        let (number, place) = locate(page);
        let state = &mut *self.lock();
        let chunk = state.chunks.get_mut(&number).filter(|chunk| has(&chunk.left, place));
        let fresh = chunk.map(|chunk| set(bits(chunk), place));
        if fresh == Some(true) {
            queue(state).push_back(page.page_floor());
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::access::{Access, Tick};
    use crate::history::History;
    use crate::rank::Rank;
    use crate::recorder::Recorder;
    use proptest::prelude::*;

    const WORLD: std::ops::Range<u64> = 480..560;

    fn run(from: u64, pages: u64) -> PageRun {
        PageRun { start: Addr(from * PAGE_SIZE), pages: PageCount(pages) }
    }
    fn numbers(runs: &[PageRun]) -> Vec<u64> {
        runs.iter().flat_map(|run| run.start.0 / PAGE_SIZE..run.end().0 / PAGE_SIZE).collect()
    }
    fn take(queue: &FlushQueue, most: u64) -> Vec<u64> {
        let mut runs = Vec::new();
        queue.take(PageCount(most), &mut runs);
        numbers(&runs)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u64),
        Promote(u64),
        Slot(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0..20_u64).prop_map(Step::Take),
            2 => WORLD.prop_map(Step::Promote),
            2 => WORLD.prop_map(Step::Slot),
        ];
        prop::collection::vec(step, 0..60)
    }

    /// First writes at random times, over pages that are flushed before, after or never.
    fn prediction(writes: &[(u64, u64)]) -> Prediction {
        let all: PageSet = [run(WORLD.start, WORLD.end - WORLD.start)].into_iter().collect();
        let mut recorder = Recorder::new(&all, &all);
        for (index, (page, kind)) in writes.iter().enumerate() {
            let at_us = index as u64 * 20_000;
            match kind {
                0 => recorder.waited(Addr(page * PAGE_SIZE), at_us),
                1 => recorder.stored(run(*page, 1)),
                2 if index > 30 => recorder.flush_done(at_us),
                _ => {}
            }
            recorder.written(run(*page, 1), at_us);
        }
        let mut history = History::new();
        history.push(recorder.finish());
        history.predict()
    }

    /// The naive list: pages in the order of the flush, and what is ahead of them.
    struct Model {
        list: Vec<u64>,
        waited: Vec<u64>,
        slots: Vec<u64>,
    }

    impl Model {
        fn take(&mut self, most: usize) -> Vec<u64> {
            let mut taken = Vec::new();
            let mut from = |queue: &mut Vec<u64>| {
                let count = (most - taken.len()).min(queue.len());
                taken.extend(queue.drain(..count));
                !taken.is_empty()
            };
            if !from(&mut self.waited) {
                self.slots.retain(|page| self.list.contains(page));
                from(&mut self.slots);
                let mut rest: Vec<u64> =
                    self.list.iter().copied().filter(|page| !taken.contains(page)).collect();
                let count = (most - taken.len()).min(rest.len());
                taken.extend(rest.drain(..count));
            }
            self.list.retain(|page| !taken.contains(page));
            taken
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 1000 }))]
        #[test]
        fn the_queue_is_what_the_naive_list_says(
            dirty in prop::collection::vec((WORLD, 1..12_u64), 0..8),
            first in prop::collection::vec((WORLD, 1..12_u64), 0..3),
            writes in prop::collection::vec((WORLD, 0..4_u64), 0..60),
            order in prop::sample::select(vec![Order::History, Order::Classes, Order::Address]),
            room in 0..40_u64,
            steps in steps(),
        ) {
            let dirty: PageSet = dirty.iter().map(|(from, pages)| run(*from, *pages)).collect();
            let first: Vec<PageRun> = first.iter().map(|(from, pages)| run(*from, *pages)).collect();
            let prediction = prediction(&writes).with_copies(PageCount(room));
            let queue = FlushQueue::new(&dirty, order, Some(&prediction), &first);

            let first: PageSet = first.into_iter().collect();
            let mut list = numbers(&arrange(&dirty.intersection(&first), order, Some(&prediction)));
            list.extend(numbers(&arrange(&dirty.difference(&first), order, Some(&prediction))));
            prop_assert_eq!(list.len() as u64, dirty.pages().0);
            let mut model = Model { list, waited: Vec::new(), slots: Vec::new() };
            for step in &steps {
                match *step {
                    Step::Take(most) => prop_assert_eq!(take(&queue, most), model.take(most as usize)),
                    Step::Promote(page) => {
                        let here = model.list.contains(&page);
                        prop_assert_eq!(queue.promote(Addr(page * PAGE_SIZE + 17)), here);
                        if here && !model.waited.contains(&page) {
                            model.waited.push(page);
                        }
                    }
                    Step::Slot(page) => {
                        let here = model.list.contains(&page);
                        prop_assert_eq!(queue.slot(Addr(page * PAGE_SIZE)), here);
                        if here && !model.slots.contains(&page) {
                            model.slots.push(page);
                        }
                    }
                }
                prop_assert_eq!(queue.left().0, model.list.len() as u64);
            }
            while !model.list.is_empty() {
                prop_assert_eq!(take(&queue, 7), model.take(7));
            }
            prop_assert!(take(&queue, 7).is_empty());
            prop_assert_eq!(queue.pages(), dirty.pages());
        }

        #[test]
        fn the_order_is_that_of_the_ranks_but_for_joined_neighbours(
            writes in prop::collection::vec((WORLD, 0..4_u64), 0..80),
        ) {
            let dirty: PageSet = [run(WORLD.start - 5, WORLD.end - WORLD.start + 10)].into_iter().collect();
            let prediction = prediction(&writes);
            let runs = arrange(&dirty, Order::Classes, Some(&prediction));
            let earliest = |run: &PageRun| {
                let ranks = numbers(&[*run]).into_iter().map(|page| prediction.rank(Addr(page * PAGE_SIZE)));
                ranks.min().unwrap()
            };
            prop_assert!(runs.iter().map(earliest).is_sorted());
            for run in &runs {
                let accesses = numbers(&[*run]).into_iter().map(|page| prediction.get(Addr(page * PAGE_SIZE)));
                let classes: Vec<Option<Access>> = accesses.map(|page| page.map(|page| page.access)).collect();
                prop_assert!(classes.windows(2).all(|pair| pair[0] == pair[1]), "{classes:?}");
            }
        }
    }

    #[test]
    fn classes_come_in_the_order_of_the_paper() {
        let page =
            |access, at_us| Some(crate::PageAccess { access, at: Tick::from_us(at_us), flushed: true });
        let order = [
            page(Access::Wait, 900_000),
            page(Access::Cow, 100),
            page(Access::Cow, 800_000),
            page(Access::Avoided, 50),
            page(Access::After, 1_000_000),
            None,
            page(Access::Untouched, 0),
        ];
        assert!(order.map(Rank::of).is_sorted());
        let elsewhere = crate::PageAccess { access: Access::Avoided, at: Tick::from_us(200), flushed: false };
        assert!(
            Rank::of(Some(elsewhere)) > Rank::of(order[1]) && Rank::of(Some(elsewhere)) < Rank::of(order[2])
        );
    }

    #[test]
    fn a_descending_program_is_flushed_descending_in_long_runs() {
        let all = run(4096, 4096);
        let dirty: PageSet = [all].into_iter().collect();
        let mut recorder = Recorder::new(&dirty, &dirty);
        for step in 0..128_u64 {
            recorder.written(run(4096 + 4096 - (step + 1) * 32, 32), step * 2000);
        }
        let mut history = History::new();
        history.push(recorder.finish());
        let prediction = history.predict();
        assert!(prediction.is_hot(all.start));
        assert_eq!(prediction.hot(&dirty), dirty);
        let runs = arrange(&dirty, Order::History, Some(&prediction));
        assert!(runs.len() <= 128, "{} runs", runs.len());
        assert!(runs.windows(2).all(|pair| pair[0].start > pair[1].start));
        // Within a run the flush goes upwards, against the program.
        assert!(runs.iter().all(|run| run.pages.0 <= 64), "{runs:?}");
        for first in [&[][..], &[all]] {
            let queue = FlushQueue::new(&dirty, Order::History, Some(&prediction), first);
            assert_eq!(take(&queue, 32), (8160..8192).collect::<Vec<_>>());
        }
    }
}

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
            queue.take(PageCount(4), &mut runs);
            let mut seen: Vec<u64> = numbers(&runs).collect();
            seen.sort_unstable();
            assert_eq!(seen, [512, 513]);
        });
    }
}
