//! The order of calls, and that whatever fails is undone, with a driver that fails at every call in every way.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::cuda::uses::Libcuda;
use holdfast_image::refusal::Subject;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// How one call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Code(i32),
    /// Carried out, and the answer is lost.
    LostAnswer,
    /// Not carried out, and said to have been.
    Lies,
    Hangs,
    Dies,
}

/// A driver that keeps the states of processes, as documented, and fails at chosen calls.
#[derive(Default)]
struct Fake {
    states: Mutex<BTreeMap<i32, CudaState>>,
    calls: Mutex<Vec<(&'static str, i32)>>,
    /// Which call, of all, fails how.
    faults: BTreeMap<usize, Fault>,
    /// A function that always fails.
    broken: Option<(&'static str, Fault)>,
    over: Mutex<Vec<i32>>,
    /// So many questions for a state find it on its way.
    moving: Mutex<usize>,
}

impl Fake {
    fn call(&self, function: &'static str, pid: i32) -> Result<CudaState, DriverError> {
        let mut calls = self.calls.lock();
        let broken = self.broken.filter(|(broken, _)| *broken == function).map(|(_, fault)| fault);
        let fault = self.faults.get(&calls.len()).copied().or(broken);
        calls.push((function, pid));
        let error = |cause| DriverError { function, cause };
        match fault {
            Some(Fault::Code(code)) => return Err(error(Cause::Code(code))),
            Some(Fault::Hangs) => return Err(error(Cause::Deadline(Duration::from_secs(1)))),
            Some(Fault::Dies) => return Err(error(Cause::CallerEnded)),
            Some(Fault::LostAnswer | Fault::Lies) | None => {}
        }
        let mut states = self.states.lock();
        let state = states.entry(pid).or_insert(CudaState::Running);
        if fault == Some(Fault::Lies) {
            return Ok(*state);
        }
        let mut moving = self.moving.lock();
        if function == names::STATE && *moving > 0 {
            *moving -= 1;
            return Ok(CudaState::Restoring);
        }
        use CudaState::{Checkpointed, Locked, Running};
        *state = match (function, *state) {
            (names::LOCK, Running) | (names::RESTORE, Checkpointed) => Locked,
            (names::CHECKPOINT, Locked) => Checkpointed,
            (names::UNLOCK, Locked) => Running,
            (names::STATE | names::RESTORE_THREAD, state) => state,
            // CUDA_ERROR_ILLEGAL_STATE.
            _ => return Err(error(Cause::Code(401))),
        };
        match fault {
            Some(_) => Err(error(Cause::CallerEnded)),
            None => Ok(*state),
        }
    }

    fn all_are(&self, expected: CudaState) -> bool {
        self.states.lock().values().all(|state| *state == expected)
    }

    /// Places of the calls of a function.
    fn places(&self, function: &str) -> Vec<usize> {
        let calls = self.calls.lock();
        let all = calls.iter().enumerate();
        all.filter(|(_, call)| call.0 == function).map(|(place, _)| place).collect()
    }
}

impl DriverCheckpoint for Fake {
    fn state(&self, pid: i32) -> Result<CudaState, DriverError> {
        self.call(names::STATE, pid)
    }
    fn restore_thread(&self, pid: i32) -> Result<i32, DriverError> {
        self.call(names::RESTORE_THREAD, pid).map(|_| pid)
    }
    fn lock(&self, pid: i32) -> Result<(), DriverError> {
        self.call(names::LOCK, pid).map(drop)
    }
    fn checkpoint(&self, pid: i32) -> Result<(), DriverError> {
        self.call(names::CHECKPOINT, pid).map(drop)
    }
    fn restore(&self, pid: i32) -> Result<(), DriverError> {
        self.call(names::RESTORE, pid).map(drop)
    }
    fn unlock(&self, pid: i32) -> Result<(), DriverError> {
        self.call(names::UNLOCK, pid).map(drop)
    }
    fn over(&self, pid: i32) {
        self.over.lock().push(pid);
    }
}

/// This process and its parent: two that live.
pub(super) fn uses() -> Vec<CudaUse> {
    let of = |pid: u32| CudaUse {
        pid: pid.cast_signed(),
        library: Libcuda { path: "/lib/libcuda.so.1".into(), inode: 1 },
    };
    vec![of(std::process::id()), of(std::os::unix::process::parent_id())]
}

/// Nothing is stopped.
pub(super) struct Runs;

impl PartialStops for Runs {
    fn is_needed(&self) -> bool {
        false
    }
    fn stop(&self, _: &Places, _: &[i32]) -> Result<Box<dyn PartialStop>, String> {
        Err("nothing is stopped here".into())
    }
}

pub(super) fn nothing(_: i32) -> Vec<Refusal> {
    Vec::new()
}

fn make(driver: &Arc<Fake>, uses: &[CudaUse]) -> Result<Suspended, SuspendError> {
    Suspended::make(Arc::clone(driver) as Arc<dyn DriverCheckpoint>, uses, nothing, None, &Runs)
}

#[test]
fn all_are_locked_before_one_is_checkpointed_and_restored_before_one_is_unlocked() {
    let driver = Arc::new(Fake::default());
    let suspended = make(&driver, &uses()).unwrap();
    assert!(driver.all_are(CudaState::Checkpointed) && suspended.pids().len() == 2);
    let (figures, total_ns, result) = suspended.resume(7);
    result.unwrap();
    assert!(driver.all_are(CudaState::Running));
    assert_eq!((figures.processes, figures.host_ns), (2, 7));
    assert!(total_ns >= figures.lock_ns + figures.checkpoint_ns + figures.restore_ns + figures.unlock_ns);
    let order =
        [names::LOCK, names::CHECKPOINT, names::RESTORE, names::UNLOCK].map(|name| driver.places(name));
    assert!(order.iter().all(|places| places.len() == 2));
    assert!(order.iter().flatten().is_sorted(), "{order:?}");
}

#[test]
fn whatever_call_fails_in_whatever_way_it_is_undone_or_made_up_for() {
    let kinds = [Fault::Code(999), Fault::Code(NOT_READY), Fault::LostAnswer, Fault::Hangs, Fault::Dies];
    for fault in kinds {
        let mut place = 0;
        loop {
            let driver = Arc::new(Fake { faults: BTreeMap::from([(place, fault)]), ..Fake::default() });
            match make(&driver, &uses()) {
                Ok(suspended) => {
                    assert!(driver.all_are(CudaState::Checkpointed), "{fault:?} at {place}");
                    let (_, _, result) = suspended.resume(0);
                    assert_eq!(result, Ok(()), "{fault:?} at {place}");
                }
                Err(error) => assert!(matches!(error, SuspendError::Failed(_)), "{error:?}"),
            }
            assert!(driver.all_are(CudaState::Running), "{fault:?} at {place}: {:?}", driver.calls.lock());
            if driver.calls.lock().len() <= place {
                break;
            }
            place += 1;
        }
        assert!(place >= 10, "{place} calls");
    }
}

#[test]
fn a_step_that_was_said_to_be_made_and_was_not_is_noticed() {
    for function in [names::LOCK, names::CHECKPOINT] {
        let driver = Arc::new(Fake { broken: Some((function, Fault::Lies)), ..Fake::default() });
        let Err(SuspendError::Failed(text)) = make(&driver, &uses()) else { unreachable!("{function}") };
        assert!(text.contains(names::CHECKPOINT), "{text}");
        assert!(driver.all_are(CudaState::Running), "{function}");
    }
    // The first of the two restores: after Lock, Checkpoint and a look at the state of each.
    let driver = Arc::new(Fake { faults: BTreeMap::from([(6, Fault::Lies)]), ..Fake::default() });
    let (_, _, result) = make(&driver, &uses()).unwrap().resume(0);
    assert_eq!((result, driver.places(names::RESTORE)[0]), (Ok(()), 6));
    assert!(driver.all_are(CudaState::Running));
}

#[test]
fn two_failures_in_a_row_are_made_up_for_too() {
    for place in 0..12 {
        let faults = BTreeMap::from([(place, Fault::Dies), (place + 1, Fault::LostAnswer)]);
        let driver = Arc::new(Fake { faults, ..Fake::default() });
        drop(make(&driver, &uses()));
        assert!(driver.all_are(CudaState::Running), "at {place}: {:?}", driver.calls.lock());
    }
}

#[test]
fn what_is_on_its_way_is_waited_for() {
    let driver = Arc::new(Fake { moving: Mutex::new(3), ..Fake::default() });
    assert!(obstacles(&*driver, &uses()).is_empty(), "{:?}", driver.calls.lock());
    *driver.moving.lock() = 2;
    drop(make(&driver, &uses()).unwrap());
    assert!(driver.all_are(CudaState::Running), "{:?}", driver.calls.lock());
}

#[test]
fn what_cannot_be_restored_is_named() {
    let broken = Some((names::RESTORE, Fault::Code(304)));
    let driver = Arc::new(Fake { broken, ..Fake::default() });
    let (_, _, result) = make(&driver, &uses()).unwrap().resume(0);
    let text = result.unwrap_err();
    let own = std::process::id();
    assert!(text.contains(&format!("process {own} (")) && text.contains("error 304"), "{text}");
    assert!(text.contains("its CUDA calls wait"), "{text}");
    // Nothing is unlocked that is not restored.
    assert!(driver.all_are(CudaState::Checkpointed));
    // The same where a checkpoint fails.
    let faults = BTreeMap::from([(3, Fault::Code(999))]);
    let driver = Arc::new(Fake { broken, faults, ..Fake::default() });
    let Err(SuspendError::Failed(text)) = make(&driver, &uses()) else { unreachable!() };
    assert!(text.contains(names::CHECKPOINT) && text.contains("error 304"), "{text}");
}

#[test]
fn what_is_left_of_a_device_is_refused_and_all_is_undone() {
    let left = |pid| {
        let subject = Subject::Descriptor { fd: pid, name: "/dev/nvidiactl".into() };
        vec![Refusal { subject, reason: refuse::CUDA_DEVICE.into() }]
    };
    let driver = Arc::new(Fake::default());
    let error = Suspended::make(Arc::clone(&driver) as Arc<dyn DriverCheckpoint>, &uses(), left, None, &Runs)
        .unwrap_err();
    let SuspendError::Refused(refusals) = error else { unreachable!() };
    assert!(refusals.len() == 2 && refusals[0].to_string().contains("nvmlShutdown"), "{refusals:?}");
    assert!(driver.all_are(CudaState::Running));
}

#[test]
fn a_process_that_ended_is_no_failure() {
    let mut uses = uses();
    uses[1].pid = i32::MAX;
    let faults = BTreeMap::from([(1, Fault::Code(1))]);
    let driver = Arc::new(Fake { faults, ..Fake::default() });
    let suspended = make(&driver, &uses).unwrap();
    assert_eq!(suspended.pids(), [uses[0].pid]);
    suspended.undo().unwrap();
    assert!(driver.all_are(CudaState::Running));
}

#[test]
fn what_is_ended_as_it_is_is_left_alone() {
    let driver = Arc::new(Fake::default());
    make(&driver, &uses()).unwrap().ending();
    assert!(driver.all_are(CudaState::Checkpointed));
    assert_eq!(driver.over.lock().len(), 2);
}

#[test]
fn obstacles_are_named_and_nothing_is_changed() {
    let found = |driver: &Fake, uses: &[CudaUse]| {
        obstacles(driver, uses).iter().map(Refusal::to_string).collect::<Vec<String>>()
    };
    let driver = Fake::default();
    assert!(found(&driver, &uses()).is_empty());
    let mut other = uses();
    other[1].library.inode = 2;
    assert!(found(&driver, &other)[0].contains("another libcuda"));
    driver.states.lock().insert(other[0].pid, CudaState::Failed);
    assert!(found(&driver, &uses())[0].contains("FAILED"));
    driver.states.lock().insert(other[0].pid, CudaState::Locked);
    assert!(found(&driver, &uses())[0].contains("LOCKED already"));
    let child = Fake { broken: Some((names::RESTORE_THREAD, Fault::Code(1))), ..Fake::default() };
    assert!(found(&child, &uses())[0].contains("forked from a process that uses CUDA"));
    assert!(driver.places(names::LOCK).is_empty());
}

/// Stops nothing, and takes note of what the driver was asked for by then.
struct JobStops<'a> {
    driver: &'a Fake,
    fails: bool,
    asked: Mutex<Vec<(i32, Vec<i32>, usize)>>,
}

struct JobStop;

impl PartialStops for JobStops<'_> {
    fn is_needed(&self) -> bool {
        true
    }
    fn stop(&self, places: &Places, spared: &[i32]) -> Result<Box<dyn PartialStop>, String> {
        let checkpoints = self.driver.places(names::CHECKPOINT).len();
        self.asked.lock().push((places.pid, spared.to_vec(), checkpoints));
        if self.fails { Err("thread 7 did not stop".into()) } else { Ok(Box::new(JobStop)) }
    }
}

impl PartialStop for JobStop {
    fn reserve(&self) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn each_process_is_stopped_before_the_driver_may_leave_its_addresses_or_is_not_checkpointed() {
    for fails in [false, true] {
        let driver = Arc::new(Fake::default());
        let stops = JobStops { driver: &driver, fails, asked: Mutex::default() };
        let of = Arc::clone(&driver) as Arc<dyn DriverCheckpoint>;
        let made = Suspended::make(of, &uses(), nothing, None, &stops);
        let asked = stops.asked.lock().clone();
        // The thread that answers runs on: the number that this driver gives.
        let all: Vec<_> = uses().iter().enumerate().map(|(at, one)| (one.pid, vec![one.pid], at)).collect();
        if fails {
            let Err(SuspendError::Failed(text)) = made else { unreachable!() };
            assert!(text.contains("thread 7 did not stop; try again later"), "{text}");
            assert_eq!(asked, all[..1]);
            assert_eq!(driver.places(names::CHECKPOINT), [0_usize; 0]);
        } else {
            assert_eq!(asked, all);
            drop(made.unwrap());
        }
        assert!(driver.all_are(CudaState::Running));
    }
}
