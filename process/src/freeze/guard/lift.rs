//! Lifting the guard: a short stop in which what is still closed is opened.
//!
//! Called by the tracer thread, after the flush or after its failure. What must hold: pages that the program has
//! unmapped, moved or protected itself meanwhile (marked by the wrappers of libholdfast) are left as they are.
//! Fails by: trying again a few times; if the program cannot be stopped, it opens what it writes to by itself, as long
//! as the agent gives signs of life, or none at all.

use super::pages::Guard;
use super::rows::run;
use crate::error::CutError;
use crate::inject::stub::Row;
use crate::job::target::Target;
use crate::job::tracer_state::TracerState;
use crate::stop::resume::{self, StoppedProgram};
use crate::stop::threads;
use holdfast_abi::GuardArea;
use holdfast_image::record::InjectArea;
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::procfs::Status;
use holdfast_sys::ptrace;
use std::slice;
use std::time::Duration;

/// Longest stop that is tried.
const DEADLINE: Duration = Duration::from_millis(50);
/// How often, and the pause in between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(2);

/// Opens everything and forgets the epoch.
///
/// # Errors
/// The program could not be stopped; what it writes to is opened all the same.
pub fn lift(guard: &Guard, target: &Target, state: &mut TracerState) -> Result<(), CutError> {
    let remote = guard.remote();
    // Threads that wait go on; from here on nothing needs a slot.
    let done = remote.flag(0, guard.layout().total, GuardArea::DONE);
    if done.is_err() {
        // Ended, or another program by now.
        return Err(CutError::Gone);
    }
    let mut last = CutError::Busy { what: "the program could not be stopped".into() };
    for attempt in 0..TRIES {
        // A waiting thread must see that the agent lives.
        let _ = guard.poll();
        match resume::park(slice::from_ref(target), DEADLINE, state).map(|mut all| all.pop()) {
            Ok(None) => return Err(CutError::Gone),
            Ok(Some(mut held)) => {
                let result = stopped(guard, &target.area, &mut held, attempt + 1 == TRIES);
                held.resume(&mut state.stragglers);
                match result {
                    Ok(true) => return Ok(()),
                    Ok(false) => last = CutError::Busy { what: "a thread is opening a page".into() },
                    Err(error) => last = error,
                }
            }
            Err(CutError::Gone) => return Err(CutError::Gone),
            Err(error) => last = error,
        }
        state.stragglers.tend();
        std::thread::sleep(PAUSE);
    }
    Err(last)
}

/// Inside the stop. False: a thread looks at the tables; try again, unless this is the last time.
fn stopped(
    guard: &Guard,
    area: &InjectArea,
    held: &mut StoppedProgram,
    last: bool,
) -> Result<bool, CutError> {
    let remote = guard.remote();
    let alone = remote.word(GuardArea::INSIDE)? == 0;
    if !alone && !last {
        return Ok(false);
    }
    let live = held.living().ok_or(CutError::Gone)?;
    let status = Status::read(held.pid, live)?;
    let inner = status.innermost("NStgid").unwrap_or(held.pid);
    let shared = threads::pending_mask(&ptrace::pending_signals(live, true)?);
    let host = threads::host_of(&held.threads, held.pid, inner, status.mask("SigCgt"), shared);
    let host = host.ok_or(CutError::Gone)?;
    held.host = Some(host.clone());
    let mut rows = Vec::new();
    for (start, len) in closed(guard)? {
        rows.push(Row::new(libc::SYS_mprotect, &[start.0, len, super::arm::READ_WRITE]));
    }
    run(&host, area, &rows)?;
    remote.set(GuardArea::ARMED, 0)?;
    remote.set(GuardArea::RANGES, 0)?;
    if alone {
        run(&host, area, &[super::arm::forget(&remote)])?;
    }
    Ok(true)
}

/// What is to be opened: runs of pages that the program has left as they were, with a closed one among them.
fn closed(guard: &Guard) -> Result<Vec<(Addr, u64)>, CutError> {
    let mut found = Vec::new();
    for range in &guard.layout().ranges {
        let states = guard.remote().states(range.first, range.run.pages.0)?;
        let mut begin = 0;
        for part in states.split(|state| state & GuardArea::GONE != 0) {
            if part.contains(&0) || part.contains(&GuardArea::BUSY) {
                let start = range.address(range.first + begin as u64);
                found.push((start, part.len() as u64 * PAGE_SIZE));
            }
            begin += part.len() + 1;
        }
    }
    Ok(found)
}
