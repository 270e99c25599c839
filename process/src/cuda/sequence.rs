//! In which order the driver is called around a cut, and how every failure is undone.
//!
//! Called by the agent's checkpoint thread, before the stop ([`suspend`]) and after it ([`Suspended::resume`]), by the
//! agent of a restart ([`restore_all`]), and by a caller whose agent has died ([`settle_all`]). What must hold: no
//! process is checkpointed before all are locked, none unlocked before all are restored; whatever fails, every process
//! that was touched is RUNNING again afterwards, or the error says which one is not and in which state it is; what has
//! ended meanwhile is no failure. After an error the driver is asked for the state: an answer that was lost may have
//! been a success.
//!
//! Where a driver leaves its addresses at a Checkpoint ([`PartialStops`]), no thread of the program runs until these
//! are kept free, but for those that the driver needs: what is mapped there Restore would replace.
//! The driver's documentation lets a process's own threads run meanwhile: their calls of CUDA wait, and host memory,
//! pinned memory too, stays valid (README of NVIDIA's cuda-checkpoint, "The Utility").

use super::data::Held;
use super::driver::{Cause, CudaState, DriverCheckpoint, DriverError, names};
use super::uses::{self, CudaUse, Places};
use crate::refuse;
use crate::stop::interrupt::has_ended;
use holdfast_image::cuda::CudaStop;
use holdfast_image::refusal::Refusal;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::fault;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How often a process is asked for its state, and brought one step on, until it is given up.
const TRIES: u32 = 4;
/// How long a process is waited for that is between two states (27 s were seen for 3 GB), and between two looks.
const LONGEST_MOVE: Duration = Duration::from_secs(60);
const MOVE_LOOK: Duration = Duration::from_millis(20);
/// Codes of the driver (cuda.h, CUresult): the time of a lock is over; not permitted; not supported.
const NOT_READY: i32 = 600;
const TIMEOUT: i32 = 909;
const NOT_PERMITTED: i32 = 800;
const NOT_SUPPORTED: i32 = 801;
/// Out of memory; a call of the operating system failed; unknown error.
const OUT_OF_MEMORY: i32 = 2;
const OPERATING_SYSTEM: i32 = 304;
const UNKNOWN: i32 = 999;

/// Stops all threads of a process but a few, and maps in it.
pub trait PartialStops {
    /// Whether the driver may leave its addresses at a Checkpoint.
    fn is_needed(&self) -> bool;
    /// Stops all threads of a process but these, until the answer is dropped. With the places that it may leave.
    ///
    /// # Errors
    /// They run, in words.
    fn stop(&self, places: &Places, spared: &[i32]) -> Result<Box<dyn PartialStop>, String>;
}

/// A process of which all threads but a few are stopped.
pub trait PartialStop: Send {
    /// Keeps its places free, where nothing is mapped.
    ///
    /// # Errors
    /// In words.
    fn reserve(&self) -> Result<(), String>;
}

/// Why no image can be made. All processes run on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuspendError {
    /// The driver cannot, or something of a device is left: another try says the same.
    Refused(Vec<Refusal>),
    /// A call failed. With what could not be undone, if anything.
    Failed(String),
}

impl SuspendError {
    /// The same, with what could not be undone of it.
    fn with(self, undone: Result<(), String>) -> SuspendError {
        match (self, undone) {
            (error, Ok(())) => error,
            (SuspendError::Failed(what), Err(left)) => SuspendError::Failed(format!("{what}; {left}")),
            (SuspendError::Refused(refusals), Err(left)) => {
                let lines: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
                SuspendError::Failed(format!("{}; {left}", lines.join("; ")))
            }
        }
    }
}

/// A process in words.
fn process(pid: i32) -> String {
    format!("process {pid} ({})", refuse::name_of(pid))
}

/// What to do about a call that failed.
fn remedy(error: &DriverError) -> &'static str {
    match (error.function, &error.cause) {
        (names::LOCK, Cause::Code(NOT_READY | TIMEOUT)) => {
            "its work on devices was not done in time; try again later, or give it more seconds (HOLDFAST_CUDA_LOCK, \
             10 by default)"
        }
        (_, Cause::Code(NOT_PERMITTED)) => {
            "this driver lets only root call it for another process; run as root"
        }
        (_, Cause::Code(NOT_SUPPORTED)) => {
            "the driver does not support that for something that the process uses (managed memory, IPC, MPS, MIG: \
             docs/cuda.md)"
        }
        (names::CHECKPOINT, Cause::Code(OUT_OF_MEMORY | UNKNOWN)) => {
            "its device is full, or was at an earlier checkpoint: the driver (580.159.04) checkpoints such a process \
             never again, although it runs on. Free device memory, end it, and restart its newest image; without one \
             let it run to its end"
        }
        (names::RESTORE, Cause::Code(OUT_OF_MEMORY | OPERATING_SYSTEM)) => {
            "without enough free memory on its device the driver restores it never again: end it, free device memory, \
             and restart the newest image"
        }
        (names::CHECKPOINT, Cause::Code(_)) => {
            "the driver says no more; docs/cuda.md has what it does not support (managed memory, IPC, MPS, MIG)"
        }
        (_, Cause::Deadline(_)) => "it may need more seconds (HOLDFAST_CUDA_DEADLINE), or hang: docs/cuda.md",
        _ => "docs/cuda.md has what the driver supports",
    }
}

fn failed(pid: i32, error: &DriverError) -> SuspendError {
    if let Cause::NoRoom(why) = &error.cause {
        return SuspendError::Refused(vec![refuse::process(pid, why)]);
    }
    let reason = format!("{error}: {}", remedy(error));
    match error.cause {
        Cause::Code(NOT_SUPPORTED | NOT_PERMITTED) => {
            SuspendError::Refused(vec![refuse::process(pid, reason)])
        }
        _ => SuspendError::Failed(format!("{}: {reason}", process(pid))),
    }
}

/// What is in the way of checkpointing these processes, found without changing anything.
pub fn obstacles(driver: &dyn DriverCheckpoint, uses: &[CudaUse]) -> Vec<Refusal> {
    let mut found = Vec::new();
    let first = uses.first().map(|first| &first.library);
    for one in uses {
        let pid = one.pid;
        if first.is_some_and(|first| *first != one.library) {
            found.push(refuse::process(pid, "it has another libcuda than the job's first process"));
            continue;
        }
        match state_of(driver, pid) {
            Ok(CudaState::Running) => {}
            Ok(state) => found.push(refuse::process(pid, in_state(state))),
            Err(_) if has_ended(pid) => {}
            Err(error) => {
                let no_caller = matches!(error.cause, Cause::NoCaller(_));
                let reason = match (&error.cause, error.function) {
                    (Cause::NoCaller(why), _) => format!("its CUDA state cannot be checkpointed: {why}"),
                    (Cause::Code(_), names::RESTORE_THREAD) => format!(
                        "it has devices of the CUDA driver, which does not know it ({error}): it was forked from a \
                         process that uses CUDA; start it by exec, or before CUDA is used"
                    ),
                    _ => format!("{error}: {}", remedy(&error)),
                };
                found.push(refuse::process(pid, reason));
                if no_caller {
                    break;
                }
            }
        }
    }
    found
}

fn state_of(driver: &dyn DriverCheckpoint, pid: i32) -> Result<CudaState, DriverError> {
    driver.restore_thread(pid)?;
    settled_state(driver, pid)
}

/// The state of a process: what is CHECKPOINTING or RESTORING is waited for, a while.
fn settled_state(driver: &dyn DriverCheckpoint, pid: i32) -> Result<CudaState, DriverError> {
    let begun = Instant::now();
    loop {
        let state = driver.state(pid)?;
        let moves = matches!(state, CudaState::Checkpointing | CudaState::Restoring);
        if !moves || begun.elapsed() > LONGEST_MOVE || has_ended(pid) {
            return Ok(state);
        }
        thread::sleep(MOVE_LOOK);
    }
}

fn in_state(state: CudaState) -> String {
    match state {
        CudaState::Failed => {
            format!(
                "its CUDA is {state}: the driver cannot go on with it; end it, and restart the newest image"
            )
        }
        _ => {
            format!(
                "its CUDA is {state} already, by another program (cuda-checkpoint?), or because the driver could not \
                 restore it: end the other program first, or end this process and restart the newest image"
            )
        }
    }
}

/// Brings one process a step on: what is CHECKPOINTED is restored.
fn restored(driver: &dyn DriverCheckpoint, pid: i32) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..TRIES {
        let error = match settled_state(driver, pid) {
            Ok(CudaState::Running | CudaState::Locked) => return Ok(()),
            Ok(CudaState::Checkpointed) => match driver.restore(pid) {
                Ok(()) => return Ok(()),
                Err(error) => format!("{error}: {}", remedy(&error)),
            },
            Ok(state) => return Err(format!("{} is {state}: its CUDA calls fail", process(pid))),
            Err(error) => error.to_string(),
        };
        if has_ended(pid) {
            return Ok(());
        }
        last = error;
    }
    Err(format!("{} cannot use its devices again, and its CUDA calls wait: {last}", process(pid)))
}

/// The same: what is LOCKED is unlocked. What is CHECKPOINTED was told by [`restored`].
fn unlocked(driver: &dyn DriverCheckpoint, pid: i32) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..TRIES {
        let error = match settled_state(driver, pid) {
            Ok(CudaState::Locked) => match driver.unlock(pid) {
                Ok(()) => return Ok(()),
                Err(error) => error.to_string(),
            },
            Ok(_) => return Ok(()),
            Err(error) => error.to_string(),
        };
        if has_ended(pid) {
            return Ok(());
        }
        last = error;
    }
    Err(format!("{} stays locked, and its CUDA calls wait: {last}", process(pid)))
}

/// What failed, in one line.
fn together(results: impl Iterator<Item = Result<(), String>>) -> Result<(), String> {
    let mut lines: Vec<String> = results.filter_map(Result::err).collect();
    lines.dedup();
    if lines.is_empty() { Ok(()) } else { Err(lines.join("; ")) }
}

/// Brings all of these processes to RUNNING, in whatever state each is.
///
/// # Errors
/// Which are not, and why.
pub fn settle_all(driver: &dyn DriverCheckpoint, pids: &[i32]) -> Result<(), String> {
    // Not lazily: all are restored before one is unlocked.
    let restored: Vec<_> = pids.iter().map(|pid| (*pid, restored(driver, *pid))).collect();
    // One that is not restored cannot be unlocked.
    let step = |(pid, restored): (i32, Result<(), String>)| restored.and_then(|()| unlocked(driver, pid));
    together(restored.into_iter().map(step))
}

/// Restores and unlocks processes that are CHECKPOINTED, and notes how long that took.
///
/// # Errors
/// Which are not RUNNING, and why.
pub fn restore_all(
    driver: &dyn DriverCheckpoint,
    pids: &[i32],
    figures: &mut CudaStop,
) -> Result<(), String> {
    let step = |act: &dyn Fn(i32) -> Result<(), DriverError>, settle: &dyn Fn(i32) -> Result<(), String>| {
        let one = |pid: &i32| act(*pid).or_else(|error| told(*pid, &error, settle(*pid)));
        together(pids.iter().map(one).collect::<Vec<_>>().into_iter())
    };
    let begun = Instant::now();
    let restored = step(&|pid| driver.restore(pid), &|pid| restored(driver, pid));
    figures.restore_ns = elapsed_ns(begun);
    fault::point("cuda-restored");
    let begun = Instant::now();
    // A restore that was said to have succeeded need not have.
    let unlocked = match &restored {
        Ok(()) => step(&|pid| driver.unlock(pid), &|pid| settle_all(driver, &[pid])),
        // Each is told of once.
        Err(_) => step(&|pid| driver.unlock(pid), &|pid| unlocked(driver, pid)),
    };
    figures.unlock_ns = elapsed_ns(begun);
    together([restored, unlocked].into_iter())
}

/// A failure that was made up for is a line in the log; of one that was not the first cause is told, too.
fn told(pid: i32, error: &DriverError, settled: Result<(), String>) -> Result<(), String> {
    match settled {
        Ok(()) if has_ended(pid) => {}
        Ok(()) => {
            tracing::warn!("{}: {error}; its state was looked up, and all is well", process(pid));
        }
        Err(left) if left.contains(&error.to_string()) => return Err(left),
        Err(left) => return Err(format!("{error}; {left}")),
    }
    Ok(())
}

/// Processes that are CHECKPOINTED. Dropped, they are RUNNING again.
pub struct Suspended {
    driver: Arc<dyn DriverCheckpoint>,
    pids: Vec<i32>,
    figures: CudaStop,
    begun: Instant,
    /// Nothing is to be undone any more.
    over: bool,
    /// Which process cannot go on, and why.
    left: Option<String>,
    /// Device memory that is away, and gates: back and open when all else is done: the last to be dropped.
    held: Option<Held>,
    /// A process whose places could not be kept free: it is stopped until it is restored.
    part: Option<Box<dyn PartialStop>>,
}

impl fmt::Debug for Suspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Suspended").field("pids", &self.pids).finish_non_exhaustive()
    }
}

/// Has the driver bring all that these processes have on devices into their memory. `held`: their gates, and what of
/// it libholdfast has moved.
///
/// # Errors
/// Why not; they are RUNNING again, as they were.
pub fn suspend(
    driver: Arc<dyn DriverCheckpoint>,
    uses: &[CudaUse],
    held: Held,
    stops: &dyn PartialStops,
) -> Result<Suspended, SuspendError> {
    Suspended::make(driver, uses, uses::devices_of, Some(held), stops)
}

/// Gives device memory back, and opens the gates: now, or, where the driver does not let a process go on, when it does.
fn release(held: Option<Held>, settled: &Result<(), String>, figures: &mut CudaStop) -> Result<(), String> {
    match (held, settled) {
        (Some(held), Ok(())) => held.back(figures),
        (Some(held), Err(_)) => {
            held.leave_to_thread();
            Ok(())
        }
        (None, _) => Ok(()),
    }
}

impl Suspended {
    /// `devices`: what a process has of devices.
    fn make(
        driver: Arc<dyn DriverCheckpoint>,
        uses: &[CudaUse],
        devices: fn(i32) -> Vec<Refusal>,
        held: Option<Held>,
        stops: &dyn PartialStops,
    ) -> Result<Suspended, SuspendError> {
        let figures = CudaStop { processes: uses.len() as u64, ..CudaStop::default() };
        let begun = held.as_ref().map_or_else(Instant::now, Held::begun);
        let (pids, left, part) = Default::default();
        let mut made = Suspended { driver, pids, figures, begun, over: false, left, held, part };
        match made.bring(uses, devices, stops) {
            Ok(()) => Ok(made),
            Err(error) => Err(error.with(made.undo())),
        }
    }

    fn bring(
        &mut self,
        uses: &[CudaUse],
        devices: fn(i32) -> Vec<Refusal>,
        stops: &dyn PartialStops,
    ) -> Result<(), SuspendError> {
        let driver = Arc::clone(&self.driver);
        let begun = Instant::now();
        for one in uses {
            self.pids.push(one.pid);
            self.step(one.pid, driver.lock(one.pid))?;
        }
        self.figures.lock_ns = elapsed_ns(begun);
        fault::point("cuda-locked");
        // Not earlier: what libholdfast has unmapped for the checkpoint is no place of the driver's any more.
        let before: Vec<Places> = self.pids.iter().map(|pid| uses::places(*pid)).collect();
        let begun = Instant::now();
        for places in &before {
            self.checkpoint(places, stops)?;
        }
        for pid in self.pids.clone() {
            let state = settled_state(&*driver, pid);
            let is = state.clone();
            self.step(pid, state.map(drop))?;
            if let Ok(other) = is
                && other != CudaState::Checkpointed
                && self.pids.contains(&pid)
            {
                let what = format!("{} is {other} after {}", process(pid), names::CHECKPOINT);
                return Err(SuspendError::Failed(what));
            }
        }
        self.figures.checkpoint_ns = elapsed_ns(begun);
        fault::point("cuda-checkpointed");
        self.nothing_is_left(uses, devices)?;
        self.nothing_is_in_the_way(&before)
    }

    /// Has the driver checkpoint a process, and keeps the places free that it leaves.
    fn checkpoint(&mut self, places: &Places, stops: &dyn PartialStops) -> Result<(), SuspendError> {
        let pid = places.pid;
        let mut part = None;
        if stops.is_needed() {
            part = self.stop(places, stops)?;
        }
        let done = self.driver.checkpoint(pid);
        // Whatever the answer is: it may have been carried out.
        if !uses::unmapped(pid, &places.all).is_empty() && !has_ended(pid) {
            if part.is_none() {
                part = self.stop(places, stops)?;
            }
            let kept = part.as_ref().map_or(Ok(()), |part| part.reserve());
            if let Err(why) = kept
                && !has_ended(pid)
            {
                self.part = part;
                return Err(SuspendError::Failed(format!("{}: {why}", process(pid))));
            }
        }
        self.step(pid, done)
    }

    /// Stops all threads of a process but those that the driver and libholdfast need. None: it has ended.
    fn stop(
        &self,
        places: &Places,
        stops: &dyn PartialStops,
    ) -> Result<Option<Box<dyn PartialStop>>, SuspendError> {
        let pid = places.pid;
        let answers = self.driver.restore_thread(pid);
        let answers = match answers.map(|tid| uses::answering(pid, tid)) {
            Err(_) | Ok(None) if has_ended(pid) => return Ok(None),
            Err(error) => return Err(failed(pid, &error)),
            // Without it the driver would wait for ever.
            Ok(None) => {
                let what = format!("{} has no thread by the number that the driver gives", process(pid));
                return Err(SuspendError::Failed(what));
            }
            Ok(Some(tid)) => tid,
        };
        let own = self.held.as_ref().and_then(|held| held.thread(pid));
        let spared: Vec<i32> = own.into_iter().chain([answers]).collect();
        match stops.stop(places, &spared) {
            Ok(part) => Ok(Some(part)),
            Err(_) if has_ended(pid) => Ok(None),
            Err(why) => Err(SuspendError::Failed(format!(
                "{} could not be stopped for a moment, which this driver needs: {why}; try again later",
                process(pid)
            ))),
        }
    }

    /// What a call came to. One that failed in a process that has ended meanwhile is none.
    fn step(&mut self, pid: i32, result: Result<(), DriverError>) -> Result<(), SuspendError> {
        match result {
            Err(_) if has_ended(pid) => {
                self.pids.retain(|other| *other != pid);
                Ok(())
            }
            result => result.map_err(|error| failed(pid, &error)),
        }
    }

    fn nothing_is_left(
        &self,
        uses: &[CudaUse],
        devices: fn(i32) -> Vec<Refusal>,
    ) -> Result<(), SuspendError> {
        let several = uses.len() > 1;
        let named = |pid: i32, refusal: Refusal| match several {
            true => refusal.of(pid, &refuse::name_of(pid)),
            false => refusal,
        };
        let of = |&pid: &i32| devices(pid).into_iter().map(move |refusal| named(pid, refusal));
        let left: Vec<Refusal> = self.pids.iter().flat_map(of).collect();
        if !left.is_empty() {
            return Err(SuspendError::Refused(left));
        }
        Ok(())
    }

    /// What the program has put into a place of a device meanwhile Restore would replace (driver 580.159.04 maps with
    /// MAP_FIXED): such a process is not restored. It can be there only if its threads had to run for a moment.
    fn nothing_is_in_the_way(&mut self, before: &[Places]) -> Result<(), SuspendError> {
        for one in before {
            if let Some((start, end)) = uses::taken(one.pid, &one.devices) {
                self.pids.retain(|pid| *pid != one.pid);
                self.left = Some(format!(
                    "{} is left CHECKPOINTED: its memory at {start:#x}-{end:#x} lies where the driver had mapped a \
                     device, and would be replaced; end it, and restart the newest image",
                    process(one.pid)
                ));
            }
        }
        match self.left {
            None => Ok(()),
            Some(_) => Err(SuspendError::Failed("addresses of the driver's were taken meanwhile".to_owned())),
        }
    }

    /// What the image need not have: process, first address and bytes of its memory.
    pub fn discarded(&self) -> Vec<(i32, u64, u64)> {
        self.held.as_ref().map_or_else(Vec::new, Held::discarded)
    }

    /// Their ids.
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// Restores and unlocks them, after their threads were resumed. Returns where the time went, the stop of their
    /// threads included, and how long all of it took, nanoseconds.
    ///
    /// # Errors
    /// Which are not RUNNING, and why: beside the figures, as the image that was cut is as good as any.
    pub fn resume(mut self, host_ns: u64) -> (CudaStop, u64, Result<(), String>) {
        self.over = true;
        self.figures.host_ns = host_ns;
        let restored = restore_all(&*self.driver, &self.pids, &mut self.figures);
        let back = release(self.held.take(), &restored, &mut self.figures);
        (self.figures, elapsed_ns(self.begun), together([restored, back].into_iter()))
    }

    /// They are about to end as they are.
    pub fn ending(mut self) {
        self.over = true;
        self.pids.iter().for_each(|pid| self.driver.over(*pid));
        if let Some(held) = self.held.take() {
            held.ending();
        }
    }

    /// Where the time went up to now; see [`Suspended::resume`].
    pub fn figures(&self, host_ns: u64) -> (CudaStop, u64) {
        let mut figures = CudaStop { host_ns, ..self.figures };
        if let Some(held) = &self.held {
            held.note(&mut figures);
        }
        (figures, elapsed_ns(self.begun))
    }

    /// All are RUNNING, but for those of which it says otherwise.
    fn settled(&mut self) -> Result<(), String> {
        let settled = settle_all(&*self.driver, &self.pids);
        self.part = None;
        together([settled, self.left.take().map_or(Ok(()), Err)].into_iter())
    }

    /// There is no image: all is undone.
    ///
    /// # Errors
    /// Which are not RUNNING, and why.
    pub fn undo(mut self) -> Result<(), String> {
        self.over = true;
        let settled = self.settled();
        let back = release(self.held.take(), &settled, &mut self.figures);
        together([settled, back].into_iter())
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let settled = self.settled();
        let back = release(self.held.take(), &settled, &mut self.figures);
        if let Err(left) = together([settled, back].into_iter()) {
            tracing::error!("{left}");
        }
    }
}

#[cfg(test)]
mod order;
#[cfg(test)]
mod tests;
