//! All interleavings of [`table`]'s protocol: threads of the program that write, and an agent that stores.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p holdfast-preload --lib --release model`. The file `table.rs` is compiled
//! once more here, over tables and pages that loom knows; the agent's half follows
//! `process/src/freeze/guard/pages.rs` step by step.
//!
//! # Safety
//! `unsafe` only as `table.rs` wants it of its platform: nothing here is.
#![allow(unsafe_code)]

use holdfast_abi::{GuardArea, PAGE};
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;
use std::collections::BTreeSet;

#[path = "table.rs"]
#[allow(dead_code)]
mod table;

/// As the real one, with few entries of each table.
mod layout {
    use super::Machine;
    pub use crate::guard::layout::Range;
    use holdfast_abi::GuardArea;
    pub const MAX_WAITERS: usize = 2;
    use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

    #[derive(Clone, Copy)]
    pub struct Area(pub &'static Machine);

    impl Area {
        pub fn word(self, offset: usize) -> &'static AtomicU64 {
            let name = [
                GuardArea::ABANDONED,
                GuardArea::ARMED,
                GuardArea::DOUBT,
                GuardArea::FREE_HEAD,
                GuardArea::FREE_TAIL,
                GuardArea::GROUP,
                GuardArea::HEARTBEAT,
                GuardArea::INSIDE,
                GuardArea::LOG_HEAD,
                GuardArea::POOL,
                GuardArea::RANGES,
            ]
            .iter()
            .position(|name| *name == offset);
            match name {
                Some(name) => &self.0.words[name],
                None => &self.0.waiters[(offset - GuardArea::WAITERS) / 8],
            }
        }
        pub fn flag(self, page: usize) -> &'static AtomicU8 {
            &self.0.flags[page]
        }
        pub fn state(self, page: usize) -> &'static AtomicU32 {
            &self.0.states[page]
        }
        pub fn log(self, index: usize) -> &'static AtomicU32 {
            &self.0.log[index]
        }
        pub fn ring(self, index: usize) -> &'static AtomicU32 {
            &self.0.ring[index]
        }
        pub fn slot(self, number: usize) -> &'static AtomicU64 {
            &self.0.slots[number]
        }
        pub fn range(self, _: usize) -> Range {
            self.0.range
        }
    }
}

/// Memory, protections and time of the model.
mod platform {
    use super::{Machine, START, machine};
    use holdfast_abi::PAGE;
    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// As the real one; a page is one word here.
    pub unsafe fn copy_page(from: usize, to: &AtomicU64) {
        let page = (from - START) / PAGE;
        to.store(machine().data[page].load(Ordering::Relaxed), Ordering::Relaxed);
    }
    pub unsafe fn open_memory(start: usize, len: usize) -> Result<(), i32> {
        let Machine { open, .. } = machine();
        let first = (start - START) / PAGE;
        (first..first + len / PAGE).for_each(|page| open[page].store(true, Ordering::SeqCst));
        Ok(())
    }
    pub fn nap(_: i64) {
        loom::thread::yield_now();
    }
    pub fn monotonic_ms() -> i64 {
        0
    }
    pub fn agent_is_there() -> bool {
        true
    }
    /// Loom takes SeqCst operations for AcqRel ones; its fences are right.
    pub fn order_of_seqcst() {
        fence(Ordering::SeqCst);
    }
}

/// Address of the first page.
const START: usize = 16 * PAGE;
const PAGES: usize = 2;
const WORDS: usize = 11;

/// The area, the pages of the program, and what the kernel knows of them.
pub struct Machine {
    range: layout::Range,
    words: [AtomicU64; WORDS],
    waiters: [AtomicU64; layout::MAX_WAITERS],
    flags: [loom::sync::atomic::AtomicU8; PAGES],
    states: [loom::sync::atomic::AtomicU32; PAGES],
    log: [loom::sync::atomic::AtomicU32; 8],
    ring: [loom::sync::atomic::AtomicU32; PAGES],
    slots: [AtomicU64; PAGES],
    data: [AtomicU64; PAGES],
    open: [AtomicBool; PAGES],
    /// The tracker's bit.
    written: [AtomicBool; PAGES],
}

std::thread_local! {
    static MACHINE: std::cell::Cell<Option<&'static Machine>> = const { std::cell::Cell::new(None) };
}

/// That of the iteration: loom runs all threads of a model on one.
fn machine() -> &'static Machine {
    MACHINE.get().expect("a machine")
}

/// What page `number` holds at the cut, and what a thread writes.
fn at_cut(number: usize) -> u64 {
    10 + number as u64
}
const NEW: u64 = 99;

fn armed(slots: usize) -> layout::Area {
    use std::array::from_fn;
    let machine: &'static Machine = Box::leak(Box::new(Machine {
        range: layout::Range { start: START, end: START + PAGES * PAGE, first: 0 },
        words: from_fn(|_| AtomicU64::new(0)),
        waiters: from_fn(|_| AtomicU64::new(0)),
        flags: from_fn(|_| loom::sync::atomic::AtomicU8::new(0)),
        states: from_fn(|_| loom::sync::atomic::AtomicU32::new(0)),
        log: from_fn(|_| loom::sync::atomic::AtomicU32::new(0)),
        ring: from_fn(|index| loom::sync::atomic::AtomicU32::new(index as u32)),
        slots: from_fn(|_| AtomicU64::new(0)),
        data: from_fn(|number| AtomicU64::new(at_cut(number))),
        open: from_fn(|_| AtomicBool::new(false)),
        written: from_fn(|_| AtomicBool::new(false)),
    }));
    MACHINE.set(Some(machine));
    let area = layout::Area(machine);
    for (word, value) in [
        (GuardArea::RANGES, 1),
        (GuardArea::GROUP, 1),
        (GuardArea::POOL, slots),
        (GuardArea::FREE_TAIL, slots),
    ] {
        area.word(word).store(value as u64, Ordering::SeqCst);
    }
    area
}

/// A thread of the program writes a page: a fault first if it is closed.
fn write(area: layout::Area, page: usize) {
    if !area.0.open[page].load(Ordering::SeqCst) {
        table::resolve(area, START + page * PAGE, false);
    }
    assert!(area.0.open[page].load(Ordering::SeqCst), "page {page} is closed");
    // The kernel clears the tracker's bit in the fault, before the store.
    area.0.written[page].store(true, Ordering::SeqCst);
    area.0.data[page].store(NEW, Ordering::SeqCst);
}

/// The agent.
struct Agent {
    area: layout::Area,
    slots: usize,
    tail: usize,
    late: BTreeSet<usize>,
    freed: usize,
}

impl Agent {
    fn new(area: layout::Area, slots: usize) -> Agent {
        Agent { area, slots, tail: slots, late: BTreeSet::new(), freed: 0 }
    }
    /// `Guard::read`.
    fn read(&self, page: usize) -> u64 {
        let machine = self.area.0;
        let data = machine.data[page].load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let intact = !machine.written[page].load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        match self.area.state(page).load(Ordering::SeqCst) & !(GuardArea::BUSY | GuardArea::GONE) {
            0 => {
                assert!(intact, "a page that is closed was written");
                data
            }
            GuardArea::OPENED => panic!("opened without a copy before it was stored"),
            slot => self.area.slot(slot as usize - 1).load(Ordering::SeqCst),
        }
    }
    /// `Guard::release`.
    fn release(&mut self, page: usize) {
        self.area.flag(page).store(GuardArea::DONE, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.free(page);
    }
    fn free(&mut self, page: usize) {
        let state = self.area.state(page).load(Ordering::SeqCst);
        match state & !(GuardArea::BUSY | GuardArea::GONE) {
            0 if state & GuardArea::BUSY != 0 => {
                self.late.insert(page);
                return;
            }
            0 | GuardArea::OPENED => {}
            slot => {
                self.area.ring(self.tail % self.slots).store(slot - 1, Ordering::SeqCst);
                self.tail += 1;
                self.freed += 1;
                fence(Ordering::SeqCst);
                self.area.word(GuardArea::FREE_TAIL).store(self.tail as u64, Ordering::SeqCst);
            }
        }
        self.late.remove(&page);
    }
    fn store(&mut self, page: usize) {
        assert_eq!(self.read(page), at_cut(page), "the image has what was written after the cut");
        self.release(page);
    }
    /// When all threads are done: every slot that was taken has been given back.
    fn end(mut self) {
        self.late.clone().into_iter().for_each(|page| self.free(page));
        let taken = self.area.word(GuardArea::FREE_HEAD).load(Ordering::SeqCst) as usize;
        assert_eq!((self.late.len(), taken), (0, self.freed), "slots are lost");
        for page in 0..PAGES {
            assert_eq!(
                self.area.state(page).load(Ordering::SeqCst) & GuardArea::BUSY,
                0,
                "page {page} is busy"
            );
        }
        assert_eq!(self.area.word(GuardArea::DOUBT).load(Ordering::SeqCst), 0);
    }
}

/// `pages`: what each thread writes. The agent stores both pages meanwhile, the second first if it is waited for.
fn check(slots: usize, pages: &'static [usize]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let area = armed(slots);
        let mut writers: Vec<_> =
            pages.iter().map(|page| thread::spawn(move || write(area, *page))).collect();
        let mut agent = Agent::new(area, slots);
        (0..PAGES).for_each(|page| agent.store(page));
        writers.drain(..).for_each(|writer| writer.join().unwrap());
        agent.end();
        let expected: Vec<u64> =
            (0..PAGES).map(|page| if pages.contains(&page) { NEW } else { at_cut(page) }).collect();
        let found: Vec<u64> = area.0.data.iter().map(|word| word.load(Ordering::SeqCst)).collect();
        assert_eq!(found, expected);
    });
}

/// Two threads come to the same page.
#[test]
fn two_writers_of_one_page() {
    check(1, &[0, 0]);
}

/// Two threads, one slot: one of them may have to wait.
#[test]
fn two_writers_and_one_slot() {
    check(1, &[0, 1]);
}

/// Room for all.
#[test]
fn two_writers_and_two_slots() {
    check(2, &[0, 1]);
}
