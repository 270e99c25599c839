//! The order of a whole checkpoint: gates, libholdfast's thread and the driver, as they see it themselves. What is
//! right is a table of rules; a sequence that breaks one of them is found, which a table of wrong ones shows.
//!
//! On the stand-in driver wrong orders end otherwise: a service thread that comes between Lock and Unlock waits there
//! for ever, and memory behind an open gate that is away is unmapped memory (`cuda-hooks/tests/service.rs`).
#![allow(clippy::unwrap_used)]

use super::tests::{Runs, nothing, uses};
use super::*;
use crate::cuda::{Closed, Hooks, Limits};
use holdfast_abi::{CudaArea, CudaData};
use parking_lot::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Drain,
    Leave,
    Lock,
    Checkpoint,
    /// The threads of the program are stopped, and the image is cut.
    Cut,
    Restore,
    Unlock,
    Return,
}

/// A step, and whether the gate was closed then.
type Seen = Vec<(Step, bool)>;

/// All of the first before any of the second, and what it would mean otherwise.
const RULES: &[(Step, Step, &str)] = &[
    (Step::Drain, Step::Leave, "memory is copied while work on it is under way"),
    (Step::Leave, Step::Lock, "the thread that unmaps is locked out"),
    (Step::Lock, Step::Checkpoint, "a process is checkpointed while another one's calls go on"),
    (Step::Checkpoint, Step::Cut, "the image has no device"),
    (Step::Cut, Step::Restore, "the image has a device that is in use"),
    (Step::Restore, Step::Unlock, "calls go on without their devices"),
    (Step::Unlock, Step::Return, "the thread that maps is locked out"),
];
const OPEN: &str = "calls of the program come in between";
const MISSING: &str = "a step is missing";

/// What is wrong with it.
fn wrong(seen: &Seen) -> Option<&'static str> {
    let has = |step: Step| seen.iter().any(|(other, _)| *other == step);
    let rules = RULES.iter().filter(|(first, second, _)| {
        let last = seen.iter().rposition(|(step, _)| step == first);
        let next = seen.iter().position(|(step, _)| step == second);
        last.zip(next).is_some_and(|(last, next)| last > next)
    });
    let all = RULES.iter().all(|(first, second, _)| has(*first) && has(*second));
    let closed = seen.iter().all(|(_, closed)| *closed);
    rules.map(|(_, _, what)| *what).next().or((!closed).then_some(OPEN)).or((!all).then_some(MISSING))
}

/// A process, which is this one: its words, its thread, and its driver, all of which write down what they see.
struct Bed {
    area: &'static CudaArea,
    data: &'static CudaData,
    seen: Mutex<Seen>,
    over: AtomicBool,
}

impl Bed {
    fn new() -> Arc<Bed> {
        let area: &CudaArea = Box::leak(Box::new(CudaArea::new()));
        let data: &CudaData = Box::leak(Box::new(CudaData::new()));
        data.owner.store(CudaData::BY_LIBRARY, SeqCst);
        data.block_count.store(1, SeqCst);
        area.data.store(std::ptr::from_ref(data).addr() as u64, SeqCst);
        let bed = Arc::new(Bed { area, data, seen: Mutex::default(), over: AtomicBool::new(false) });
        let own = Arc::clone(&bed);
        thread::spawn(move || own.serve());
        bed
    }

    fn see(&self, step: Step) {
        self.seen.lock().push((step, self.area.closed.load(SeqCst) != 0));
    }

    /// What libholdfast's thread does.
    fn serve(&self) {
        while !self.over.load(SeqCst) {
            let number = self.data.asked.load(SeqCst);
            if number == self.data.done.load(SeqCst) {
                thread::yield_now();
                continue;
            }
            let (step, state) = match self.data.command.load(SeqCst) {
                CudaData::COMMAND_DRAIN => (Step::Drain, CudaData::RESIDENT),
                CudaData::COMMAND_LEAVE => (Step::Leave, CudaData::AWAY),
                _ => (Step::Return, CudaData::RESIDENT),
            };
            self.see(step);
            self.data.state.store(state, SeqCst);
            self.data.done.store(number, SeqCst);
        }
    }
}

impl DriverCheckpoint for Bed {
    fn state(&self, _: i32) -> Result<CudaState, DriverError> {
        Ok(CudaState::Checkpointed)
    }
    fn restore_thread(&self, pid: i32) -> Result<i32, DriverError> {
        Ok(pid)
    }
    fn lock(&self, _: i32) -> Result<(), DriverError> {
        self.see(Step::Lock);
        Ok(())
    }
    fn checkpoint(&self, _: i32) -> Result<(), DriverError> {
        self.see(Step::Checkpoint);
        Ok(())
    }
    fn restore(&self, _: i32) -> Result<(), DriverError> {
        self.see(Step::Restore);
        Ok(())
    }
    fn unlock(&self, _: i32) -> Result<(), DriverError> {
        self.see(Step::Unlock);
        Ok(())
    }
    fn over(&self, _: i32) {}
}

/// What a checkpoint does.
fn checkpoint() -> Seen {
    let bed = Bed::new();
    let hooks = Hooks::at(std::process::id().cast_signed(), std::ptr::from_ref(bed.area).addr() as u64);
    let gates = Closed::close(vec![hooks], Duration::ZERO).unwrap();
    let limit = Duration::from_secs(60);
    let held = Held::leave(gates, Limits { drain: limit, data: limit }, &mut |_| unreachable!()).unwrap();
    let driver = Arc::clone(&bed) as Arc<dyn DriverCheckpoint>;
    let suspended = Suspended::make(driver, &uses(), nothing, Some(held), &Runs).unwrap();
    bed.see(Step::Cut);
    suspended.resume(0).2.unwrap();
    bed.over.store(true, SeqCst);
    assert_eq!(bed.area.closed.load(SeqCst), 0, "the gate is open in the end");
    let seen = bed.seen.lock();
    seen.clone()
}

#[test]
fn a_checkpoint_is_made_in_the_right_order() {
    let seen = checkpoint();
    assert_eq!(wrong(&seen), None, "{seen:?}");
}

/// Exchanges two steps.
fn exchanged(seen: &Seen, one: Step, other: Step) -> Seen {
    let of = |step: Step| match step {
        step if step == one => other,
        step if step == other => one,
        step => step,
    };
    seen.iter().map(|(step, closed)| (of(*step), *closed)).collect()
}

#[test]
fn every_wrong_order_is_noticed() {
    let right = checkpoint();
    for (first, second, what) in RULES {
        let found = wrong(&exchanged(&right, *first, *second));
        assert!(found.is_some(), "{first:?} after {second:?}: {what}");
        // The two alone: nothing else is wrong with them.
        let pair = vec![(*second, true), (*first, true)];
        assert_eq!(wrong(&pair), Some(*what));
    }
    for place in 0..right.len() {
        let mut open = right.clone();
        open[place].1 = false;
        assert_eq!(wrong(&open), Some(OPEN), "the gate is open at {place}");
        // There are two processes: one of several locks may be missing.
        let missing: Seen = right.iter().filter(|(step, _)| *step != right[place].0).copied().collect();
        assert_eq!(wrong(&missing), Some(MISSING));
    }
}
