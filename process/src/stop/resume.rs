//! Programs that stand still: resumed, ended, or held for a while because there is no room for more copies.
//!
//! Called by the tracer thread. What must hold: every thread goes on with its own registers and mask, and with its
//! interrupted call repaired, as after a cut.

use crate::error::CutError;
use crate::error::TraceError;
use crate::inject::area;
use crate::inject::live_thread::LiveThread;
use crate::job::relatives;
use crate::job::target::Target;
use crate::job::tracer_state::{Kept, TracerState};
use crate::refuse;
use crate::stop::continuation::Slots;
use crate::stop::interrupt::{self, Interrupted, StopFailure, Stopped, Stragglers, Whom, Why};
use crate::stop::process_errors;
use crate::stop::threads::{self, Repairer, Samples, Thread};
use holdfast_image::record::InjectArea;
use holdfast_sys::fault;
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::ptrace::{self, Registers};
use std::time::Duration;

/// A stopped program.
#[derive(Debug)]
pub struct StoppedProgram {
    /// Process.
    pub pid: i32,
    /// Its threads, stopped.
    pub stopped: Stopped,
    /// The same, read.
    pub threads: Vec<Thread>,
    /// The thread that calls were injected into: mask and registers must be put back.
    pub host: Option<LiveThread>,
    /// Injected calls that were not waited for yet, with the area that they run in.
    pub under_way: Option<InjectArea>,
}

impl StoppedProgram {
    /// One that was stopped just now, and not read yet.
    pub fn new(pid: i32, stopped: Stopped) -> StoppedProgram {
        StoppedProgram { pid, stopped, threads: Vec::new(), host: None, under_way: None }
    }

    /// Puts every thread back and lets it go.
    pub fn resume(self, stragglers: &mut Stragglers) {
        if let (Some(host), Some(area)) = (&self.host, &self.under_way)
            && let Err(error) = host.finish(area, 0, &mut |_| Ok(()))
        {
            tracing::debug!(pid = self.pid, %error, "calls that are not needed any more");
        }
        if let Some(host) = &self.host
            && let Err(error) = host.put_back()
        {
            tracing::debug!(tid = host.thread.tid, %error, "putting a thread back");
        }
        fault::point("resume");
        let computing: Vec<i32> =
            self.threads.iter().filter(|thread| !thread.in_call()).map(|thread| thread.tid).collect();
        stragglers.add(self.stopped.detach_all(&computing));
        fault::point("resumed");
    }

    /// Any of its threads.
    pub fn living(&self) -> Option<i32> {
        self.stopped.threads.keys().next().copied()
    }

    /// Whether its main thread is among them: it may have ended while others run.
    pub fn has_main(&self) -> bool {
        self.stopped.threads.contains_key(&self.pid)
    }

    /// See [`procfs::shown_by`].
    pub fn shown_by(&self) -> Option<i32> {
        if self.has_main() { Some(self.pid) } else { self.living() }
    }

    /// All of them.
    pub fn tids(&self) -> Vec<i32> {
        self.stopped.threads.keys().copied().collect()
    }

    /// Ends the program.
    pub fn kill(self, stragglers: &mut Stragglers) {
        let _ = ptrace::kill(self.pid, libc::SIGKILL);
        stragglers.add(self.stopped.detach_all(&[]));
    }
}

/// Lets several programs run on.
pub fn resume_all(all: Vec<StoppedProgram>, stragglers: &mut Stragglers) {
    all.into_iter().for_each(|held| held.resume(stragglers));
}

/// Stops programs just to hold them.
///
/// # Errors
/// They could not be stopped (in time), or one has become another program; they run on.
pub fn park(
    targets: &[Target],
    deadline: Duration,
    state: &mut TracerState,
) -> Result<Vec<StoppedProgram>, CutError> {
    park_but(targets, &[], deadline, state)
}

/// The same, but for these threads, which run on.
///
/// # Errors
/// See [`park`].
pub fn park_but(
    targets: &[Target],
    spared: &[i32],
    deadline: Duration,
    state: &mut TracerState,
) -> Result<Vec<StoppedProgram>, CutError> {
    let whom = |target: &Target| Whom { pid: target.pid, vdso: 0..0, spared: spared.to_vec() };
    let whom: Vec<Whom> = targets.iter().map(whom).collect();
    let sampled: Vec<(&Target, Samples)> =
        targets.iter().map(|target| (target, threads::sample(target.pid))).collect();
    let stopped = match interrupt::stop(&whom, deadline) {
        Ok((stopped, _)) => stopped,
        Err(failure) => {
            let sampled = sampled.iter().map(|(target, samples)| (*target, samples));
            return Err(resume_interrupted(failure, sampled, state));
        }
    };
    let mut all = Vec::with_capacity(targets.len());
    let mut result = Ok(());
    for ((target, samples), stopped) in sampled.iter().zip(stopped) {
        let mut held = StoppedProgram::new(target.pid, stopped);
        // Each of them: a call that was interrupted must be repaired whatever became of the others.
        let ready = ready(target, state.of(target), samples, &mut held, spared.is_empty());
        result = result.and(ready);
        all.push(held);
    }
    match result {
        Ok(()) => Ok(all),
        Err(error) => {
            resume_all(all, &mut state.stragglers);
            Err(error)
        }
    }
}

/// After a stop that did not come about in time: the calls of those threads that did stop are repaired before they go
/// on, as after any stop. `processes`: those that were to be stopped, with their samples.
pub fn resume_interrupted<'a>(
    failure: StopFailure,
    processes: impl Iterator<Item = (&'a Target, &'a Samples)>,
    state: &mut TracerState,
) -> CutError {
    let StopFailure { why, interrupted } = failure;
    let processes: Vec<(&Target, &Samples, Interrupted)> = processes
        .zip(interrupted)
        .map(|((target, samples), interrupted)| (target, samples, interrupted))
        .collect();
    let mut late_ones = Vec::with_capacity(processes.len());
    let targets: Vec<Target> = processes.iter().map(|(target, ..)| (*target).clone()).collect();
    for (target, samples, Interrupted { stopped, late }) in processes {
        repair_and_resume(target, samples, stopped, state);
        late_ones.push((target, samples, late));
    }
    // They have been interrupted, too.
    for (target, samples, late) in late_ones {
        let stopped = interrupt::await_late(target.pid, &late, &mut state.stragglers);
        repair_and_resume(target, samples, stopped, state);
    }
    let what = match error_of(why) {
        CutError::Busy { what } => what,
        error => return error,
    };
    // Of several processes: one that came or went meanwhile is no reason to wait for long.
    match targets.iter().find(|target| targets.len() > 1 && interrupt::has_ended(target.pid)) {
        Some(ended) => process_errors::just_ended(ended.pid),
        None => relatives::relatives(&targets).err().unwrap_or(CutError::Busy { what }),
    }
}

fn repair_and_resume(target: &Target, samples: &Samples, stopped: Stopped, state: &mut TracerState) {
    if stopped.threads.is_empty() {
        return;
    }
    let mut held = StoppedProgram::new(target.pid, stopped);
    if let Err(error) = ready(target, state.of(target), samples, &mut held, false) {
        tracing::warn!(%error, "repairing calls after a stop that came too late");
    }
    held.resume(&mut state.stragglers);
}

/// What a stop that did not come about is called.
pub fn error_of(why: Why) -> CutError {
    match why {
        Why::Gone => CutError::Gone,
        Why::Refused(refusal) => CutError::Refused(vec![refusal]),
        Why::Late(what) => CutError::Busy { what },
    }
}

/// Repairs the calls of a process that was stopped just now. `whole`: all threads are there, so that continuation
/// slots which none of them is in are free.
///
/// # Errors
/// It has ended or executed another program; a call that cannot be repaired.
pub fn ready(
    target: &Target,
    kept: &mut Kept,
    samples: &Samples,
    held: &mut StoppedProgram,
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
    held: &StoppedProgram,
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
    let mut buffer = vec![0_u8; threads::XSTATE_LEN_MAX];
    for (&tid, held) in &stopped.threads {
        let status = if nested { Some(Status::read(pid, tid)?) } else { None };
        let inner = status.as_ref().and_then(|status| status.innermost("NSpid")).unwrap_or(tid);
        let mut thread = threads::read(tid, inner, *held, &mut buffer)?;
        thread.below = status.and_then(|status| status.at_depth("NSpid", 2));
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
    held: &mut StoppedProgram,
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
        if !is_64_bit(&thread.regs) {
            failure = Err(CutError::Unsettled(vec![refuse::other_code(thread.inner)]));
            continue;
        }
        if let Err(error) = repairer.repair(thread) {
            failure = Err(error.into());
        }
        // At once: from here on the agent may die, and the thread goes on as if nothing had been.
        if let Some(regs) = &thread.repaired
            && let Err(error) = ptrace::set_registers(thread.tid, regs)
        {
            failure = Err(TraceError::from(error).into());
        }
    }
    failure
}

/// Whether a thread runs in the code segment of 64 bits: the kernel's, or that under Xen
/// (arch/x86/include/asm/ptrace.h, user_64bit_mode).
fn is_64_bit(regs: &Registers) -> bool {
    [0x33, 0xe033].contains(&(regs.cs & 0xffff))
}
