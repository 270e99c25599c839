//! Programs that stand still: let go again, ended, or held for a while because there is no room for more copies.
//!
//! Called by the tracer thread. What must hold: every thread goes on with its own registers and mask, and with its
//! interrupted call repaired, as after a cut.

use crate::error::CutError;
use crate::error::TraceError;
use crate::inject::area;
use crate::inject::live_thread::Host;
use crate::job::relatives;
use crate::job::target::Target;
use crate::job::tracer_state::{Kept, KeptAll};
use crate::stop::continuation::Slots;
use crate::stop::interrupt::{self, StopFailure, Stopped, Stragglers, Whom, Why};
use crate::stop::process_errors;
use crate::stop::threads::{self, Repairer, Samples, Thread};
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::{fault, ptrace};
use std::time::Duration;

/// A stopped program.
#[derive(Debug)]
pub struct HeldProgram {
    /// Process.
    pub pid: i32,
    /// Its threads, stopped.
    pub stopped: Stopped,
    /// The same, read.
    pub threads: Vec<Thread>,
    /// The thread that calls were injected into: mask and registers must be put back.
    pub host: Option<Host>,
}

impl HeldProgram {
    /// Puts every thread back and lets it go.
    pub fn resume(self, stragglers: &mut Stragglers) {
        if let Some(host) = &self.host
            && let Err(error) = host.put_back()
        {
            tracing::debug!(tid = host.tid, %error, "putting a thread back");
        }
        fault::point("resume");
        let computing: Vec<i32> =
            self.threads.iter().filter(|thread| !thread.in_call()).map(|thread| thread.tid).collect();
        stragglers.add(self.stopped.let_go(&computing));
        fault::point("resumed");
    }

    /// Any of its threads.
    pub fn living(&self) -> Option<i32> {
        self.stopped.threads.keys().next().copied()
    }

    /// All of them.
    pub fn tids(&self) -> Vec<i32> {
        self.stopped.threads.keys().copied().collect()
    }

    /// Ends the program.
    pub fn kill(self, stragglers: &mut Stragglers) {
        let _ = ptrace::kill(self.pid, libc::SIGKILL);
        stragglers.add(self.stopped.let_go(&[]));
    }
}

/// Lets several programs run on.
pub fn resume_all(all: Vec<HeldProgram>, stragglers: &mut Stragglers) {
    all.into_iter().for_each(|held| held.resume(stragglers));
}

/// Those that were stopped, not read yet.
pub fn held(targets: &[Target], stopped: Vec<Stopped>) -> Vec<HeldProgram> {
    let one = |(target, stopped): (&Target, Stopped)| HeldProgram {
        pid: target.pid,
        stopped,
        threads: Vec::new(),
        host: None,
    };
    targets.iter().zip(stopped).map(one).collect()
}

/// Stops programs just to hold them.
///
/// # Errors
/// They could not be stopped (in time), or one has become another program; they run on.
pub fn park(
    targets: &[Target],
    deadline: Duration,
    kept: &mut KeptAll,
    stragglers: &mut Stragglers,
) -> Result<Vec<HeldProgram>, CutError> {
    let whom: Vec<Whom> = targets.iter().map(|target| Whom { pid: target.pid, vdso: 0..0 }).collect();
    let samples: Vec<Samples> = whom.iter().map(|one| threads::sample(one.pid)).collect();
    let samples: Vec<&Samples> = samples.iter().collect();
    let stopped = match interrupt::stop(&whom, deadline) {
        Ok((stopped, _)) => stopped,
        Err(failure) => return Err(let_go_again(failure, targets, kept, &samples, stragglers)),
    };
    let mut all = held(targets, stopped);
    let mut result = Ok(());
    for ((target, samples), held) in targets.iter().zip(samples).zip(&mut all) {
        // Each of them: a call that was interrupted must be repaired whatever became of the others.
        result = result.and(ready(target, kept.of(target), samples, held, true));
    }
    match result {
        Ok(()) => Ok(all),
        Err(error) => {
            resume_all(all, stragglers);
            Err(error)
        }
    }
}

/// After a stop that did not come about in time: the calls of those threads that did stop are repaired before they go
/// on, as after any stop. `samples`: of each program.
pub fn let_go_again(
    failure: StopFailure,
    targets: &[Target],
    kept: &mut KeptAll,
    samples: &[&Samples],
    stragglers: &mut Stragglers,
) -> CutError {
    let StopFailure { why, partly, late } = failure;
    let mut repair = |stopped: Vec<Stopped>, stragglers: &mut Stragglers| {
        for ((mut held, target), samples) in held(targets, stopped).into_iter().zip(targets).zip(samples) {
            if held.stopped.threads.is_empty() {
                continue;
            }
            if let Err(error) = ready(target, kept.of(target), samples, &mut held, false) {
                tracing::warn!(%error, "repairing calls after a stop that came too late");
            }
            held.resume(stragglers);
        }
    };
    repair(partly, stragglers);
    // They have been interrupted, too.
    let late =
        targets.iter().zip(&late).map(|(target, late)| interrupt::await_late(target.pid, late, stragglers));
    let late: Vec<Stopped> = late.collect();
    repair(late, stragglers);
    let what = match error_of(why) {
        CutError::Busy { what } => what,
        error => return error,
    };
    // Of several processes: one that came or went meanwhile is no reason to wait for long.
    match targets.iter().find(|target| targets.len() > 1 && interrupt::has_ended(target.pid)) {
        Some(ended) => process_errors::just_ended(ended.pid),
        None => relatives::relatives(targets).err().unwrap_or(CutError::Busy { what }),
    }
}

/// What a stop that did not come about is called.
pub fn error_of(why: Why) -> CutError {
    match why {
        Why::Gone => CutError::Gone,
        Why::Refused(refusal) => CutError::Refused(vec![refusal]),
        Why::Late(what) => CutError::Busy { what },
    }
}

/// Repairs the calls of a process that was stopped just now. `whole`: all threads are there, so that continuation slots which none of them is in are free.
///
/// # Errors
/// It has ended or executed another program; a call that cannot be repaired.
pub fn ready(
    target: &Target,
    kept: &mut Kept,
    samples: &Samples,
    held: &mut HeldProgram,
    whole: bool,
) -> Result<(), CutError> {
    let pid = target.pid;
    let live = held.living().ok_or(CutError::Gone)?;
    let maps = procfs::maps(pid, live)?;
    if !area::is_ours(live, &target.area, maps.iter()) {
        return Err(CutError::Busy { what: "the program has executed another program".into() });
    }
    let status = Status::read(pid, live)?;
    held.threads = read_threads(pid, &held.stopped, status.is_nested())?;
    let shared_pending = ptrace::pending_signals(live, true)?;
    let memory = ForcedMemory::open(pid, live)?;
    area::ready_stub(&memory, &target.area)?;
    if whole {
        collect_slots(target, kept, &memory, held)?;
    }
    repair_calls(target, kept, samples, &memory, held, &shared_pending)
}

/// Frees continuation slots that no thread is in. With all threads stopped.
///
/// # Errors
/// The program's memory cannot be read.
pub fn collect_slots(
    target: &Target,
    kept: &mut Kept,
    memory: &ForcedMemory,
    held: &HeldProgram,
) -> Result<(), CutError> {
    let places: Vec<(i32, u64, u64)> =
        held.threads.iter().map(|t| (t.inner, t.regs.rip, t.regs.rsp)).collect();
    let stack = |from: u64, len: usize| memory.read_some(from, len);
    slots_of(target, kept, memory)?.collect(&target.area, &places, stack);
    Ok(())
}

fn slots_of<'a>(
    target: &Target,
    kept: &'a mut Kept,
    memory: &ForcedMemory,
) -> Result<&'a mut Slots, CutError> {
    match &mut kept.slots {
        Some(slots) => Ok(slots),
        none => Ok(none.insert(Slots::load(memory, &target.area)?)),
    }
}

/// Registers and states of all threads. `nested`: of [`Status::is_nested`].
///
/// # Errors
/// One ended.
pub fn read_threads(pid: i32, stopped: &Stopped, nested: bool) -> Result<Vec<Thread>, TraceError> {
    let mut all = Vec::with_capacity(stopped.threads.len());
    let mut buffer = vec![0_u8; threads::XSTATE_ROOM];
    for (&tid, held) in &stopped.threads {
        let inner = if nested { Status::read(pid, tid)?.innermost("NSpid").unwrap_or(tid) } else { tid };
        let mut thread = threads::read(tid, inner, *held, &mut buffer)?;
        thread.leave_rseq()?;
        all.push(thread);
    }
    Ok(all)
}

/// Repairs the calls that the stop has interrupted, in the threads themselves.
///
/// # Errors
/// A thread ended, or is in a call that cannot be repaired.
pub fn repair_calls(
    target: &Target,
    kept: &mut Kept,
    samples: &Samples,
    memory: &ForcedMemory,
    held: &mut HeldProgram,
    shared_pending: &[[u8; 128]],
) -> Result<(), CutError> {
    slots_of(target, kept, memory)?;
    let Some(slots) = &mut kept.slots else { return Ok(()) };
    let mut repairer = Repairer {
        pid: target.pid,
        area: &target.area,
        memory,
        slots,
        samples,
        continuing: &mut kept.continuing,
        shared_pending: threads::pending_mask(shared_pending),
    };
    // A failure for one thread must not keep the others from being repaired.
    let mut failure = Ok(());
    for thread in &mut held.threads {
        if let Err(error) = repairer.repair(thread) {
            failure = Err(error);
        }
        // At once: from here on the agent may die, and the thread goes on as if nothing had been.
        if let Some(regs) = &thread.repaired
            && let Err(error) = ptrace::set_registers(thread.tid, regs)
        {
            failure = Err(error.into());
        }
    }
    failure.map_err(CutError::from)
}
