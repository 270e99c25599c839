//! The queue beside a naive list, and single cases.

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
    /// Takes so many, and gives the second half back because a thread waits for a page.
    Back(u64, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..20_u64).prop_map(Step::Take),
        2 => WORLD.prop_map(Step::Promote),
        2 => WORLD.prop_map(Step::Slot),
        2 => (0..20_u64, WORLD).prop_map(|(most, page)| Step::Back(most, page)),
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
    /// Waited for before.
    recent: Vec<u64>,
}

impl Model {
    fn take_back(&mut self, pages: &[u64]) {
        self.list.splice(0..0, pages.iter().copied());
    }
    fn take(&mut self, most: usize) -> Vec<u64> {
        let (mut taken, mut swept) = (Vec::new(), Vec::new());
        let mut from = |queue: &mut Vec<u64>| {
            let count = (most - taken.len()).min(queue.len());
            taken.extend(queue.drain(..count));
            !taken.is_empty()
        };
        // Who was taken along is waited for no longer.
        self.waited.retain(|page| self.list.contains(page));
        if from(&mut self.waited) {
            for page in taken.clone() {
                let last =
                    self.recent.iter().rev().take(8).find(|last| (1..=8).contains(&last.abs_diff(page)));
                let last = last.copied();
                self.recent.push(page);
                let Some(last) = last else { continue };
                swept.push((page, last < page));
            }
            for (page, up) in swept {
                let more = 4_u64.saturating_sub(taken.len() as u64);
                let next = if up { page + 1..page + 1 + more } else { page - more..page };
                let next: Vec<u64> =
                    next.filter(|page| self.list.contains(page) && !taken.contains(page)).collect();
                taken.extend(next.into_iter().take(most - taken.len()));
            }
        } else {
            self.slots.retain(|page| self.list.contains(page));
            from(&mut self.slots);
            let mut rest: Vec<u64> = self.list.iter().copied().filter(|page| !taken.contains(page)).collect();
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
        let mut model = Model { list, waited: Vec::new(), slots: Vec::new(), recent: Vec::new() };
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
                Step::Back(most, page) => {
                    let (mut kept, back) = (model.take(most as usize), most / 2);
                    let mut rest = Vec::new();
                    prop_assert_eq!(take(&queue, most), kept.clone());
                    let back = kept.split_off(kept.len().saturating_sub(back as usize));
                    rest.extend(back.iter().rev().map(|number| run(*number, 1)));
                    let awaited = dirty.intersection(&[run(page, 1)].into_iter().collect()).pages().0 > 0;
                    queue.wait_for(&[Addr(page * PAGE_SIZE + 5)]);
                    if model.list.contains(&page) && !model.waited.contains(&page) {
                        model.waited.push(page);
                    }
                    let made_way = queue.make_way(&mut rest);
                    prop_assert_eq!(made_way, awaited || !model.waited.is_empty());
                    prop_assert_eq!(rest.is_empty(), made_way || back.is_empty());
                    if made_way {
                        model.take_back(&back);
                        if back.contains(&page) {
                            model.waited.push(page);
                        }
                    } else {
                        // Who is not asked to keeps it.
                        kept.extend(back);
                    }
                    queue.wait_for(&[]);
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
fn what_is_waited_for_goes_out_before_the_rest_of_a_part_also_when_it_is_in_it() {
    let dirty: PageSet = [run(500, 40)].into_iter().collect();
    let queue = FlushQueue::new(&dirty, Order::Address, None, &[]);
    let mut part = Vec::new();
    queue.take(PageCount(20), &mut part);
    assert_eq!(part, [run(500, 20)]);
    // No thread waits; the worker has stored four pages by now.
    let mut rest = vec![run(504, 16)];
    assert!(!queue.make_way(&mut rest));
    // One for a page of the rest, one for a page further on, one for what is no page of the flush.
    queue.wait_for(&[run(515, 1).start, run(530, 1).start, run(90, 1).start]);
    rest.push(run(9000, 1));
    assert!(queue.make_way(&mut rest));
    assert_eq!(rest, [run(9000, 1)], "it is another source's");
    assert_eq!((queue.left(), take(&queue, 10)), (PageCount(36), vec![530, 515]));
    assert_eq!(take(&queue, 11), (504..515).collect::<Vec<_>>());
    // What another worker is just storing.
    queue.wait_for(&[run(515, 1).start]);
    assert!(queue.make_way(&mut Vec::new()));
    queue.wait_for(&[]);
    assert!(!queue.make_way(&mut Vec::new()));
    assert_eq!(take(&queue, 40), (516..530).chain(531..540).collect::<Vec<_>>());
}

#[test]
fn a_page_that_is_waited_for_after_its_neighbours_brings_the_next_ones_along() {
    // 500 to 539 without 513, and pages of another area.
    let dirty: PageSet = [run(500, 13), run(514, 26), run(600, 20)].into_iter().collect();
    let queue = FlushQueue::new(&dirty, Order::Address, None, &[]);
    let wait = |pages: &[u64]| {
        pages.iter().for_each(|page| assert!(queue.promote(run(*page, 1).start)));
        let mut runs = Vec::new();
        queue.take(PageCount(256), &mut runs);
        runs
    };
    assert_eq!(wait(&[500]), [run(500, 1)], "nothing is known yet");
    assert_eq!(wait(&[501]), [run(501, 4)], "one frame");
    assert_eq!(wait(&[505]), [run(505, 4)]);
    assert_eq!(wait(&[620 - 1]), [run(619, 1)], "elsewhere");
    assert_eq!(wait(&[618]), [run(618, 1), run(615, 3)], "downwards");
    // The other array goes on; a page of it is not to be stored.
    assert_eq!(wait(&[510]), [run(510, 3)]);
    // Several: first they, then so many others that they are four.
    assert_eq!(numbers(&wait(&[614, 515])), [614, 515, 612, 613]);
    assert_eq!(numbers(&wait(&[516, 517, 518, 610, 611])), [516, 517, 518, 610, 611]);
    assert_eq!(wait(&[538]), [run(538, 1)], "too far on");
    assert_eq!(
        numbers(&wait(&[])),
        [vec![509, 514], (519..538).collect(), vec![539], (600..610).collect()].concat()
    );
}

#[test]
fn classes_come_in_the_order_of_the_paper() {
    let page = |access, at_us| Some(crate::PageAccess { access, at: Tick::from_us(at_us), flushed: true });
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
    assert!(Rank::of(Some(elsewhere)) > Rank::of(order[1]) && Rank::of(Some(elsewhere)) < Rank::of(order[2]));
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
