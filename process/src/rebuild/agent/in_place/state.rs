//! What the kernel keeps of a process and its threads, put back by calls of its own: those of a restart where it has
//! them, and what a new process needs not: to take away what came since.
//!
//! Called by [`super::restore`] when the process's memory is that of the image. How it fails: names what the kernel
//! refused.

use crate::error::TraceError;
use crate::inject::stub::Row;
use crate::rebuild::agent::process_state;
use crate::rebuild::agent::remote_calls::{Batch, Need, SeedThread};
use crate::rebuild::agent::threads::{self, NewThread};
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Member;
use crate::stop::continuation;
use holdfast_image::record::{Object, PosixTimer, ProcessRecord, ThreadRecord};
use holdfast_sys::attributes as sched_attributes;
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::ptrace;
use std::collections::BTreeSet;

const SECOND: u64 = 1_000_000_000;

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn number(id: i32) -> u64 {
    i64::from(id).cast_unsigned()
}

/// Stops all timers, so that none expires any more. `now`: the process's record of now; `own`: the numbers of its own
/// timers' descriptors.
pub fn stop_timers(leader: SeedThread, now: &ProcessRecord, own: &[i32]) -> Result<(), RebuildError> {
    let mut batch = leader.batch();
    for (which, timer) in (0_u64..).zip(&now.itimers) {
        if timer.value_us != 0 || timer.interval_us != 0 {
            batch.reserve(32)?;
            let none = batch.data(&[0; 32]);
            batch.row(
                Row::new(libc::SYS_setitimer, &[which, none, 0]),
                Need::Must("stop interval timer", which),
            );
        }
    }
    for timer in &now.posix_timers {
        set_timer(&mut batch, timer, (0, 0))?;
    }
    for fd in own {
        batch.reserve(32)?;
        let none = batch.data(&[0; 32]);
        let args = [number(*fd), 0, none, 0];
        let need = Need::Must("stop the timer of descriptor", number(*fd));
        batch.row(Row::new(libc::SYS_timerfd_settime, &args), need);
    }
    batch.finish().map(|_| ())
}

fn set_timer(
    batch: &mut Batch,
    timer: &PosixTimer,
    (interval, value): (u64, u64),
) -> Result<(), RebuildError> {
    batch.reserve(32)?;
    let times = batch.data(&words(&[interval / SECOND, interval % SECOND, value / SECOND, value % SECOND]));
    let args = [number(timer.id), 0, times, 0];
    batch.row(Row::new(libc::SYS_timer_settime, &args), Need::Must("set the POSIX timer", number(timer.id)));
    Ok(())
}

/// Takes all signals away that wait for a thread, or for the process: by the thread itself.
pub fn drain(seed: SeedThread) -> Result<(), RebuildError> {
    let tid = seed.remote.tid;
    let pending = |shared| ptrace::pending_signals(tid, shared).map_err(TraceError::from);
    let count = pending(false)?.len() + pending(true)?.len();
    let mut batch = seed.batch();
    for _ in 0..count {
        batch.reserve(32)?;
        let (all, at_once) = (batch.data(&u64::MAX.to_le_bytes()), batch.data(&[0; 16]));
        batch.call(libc::SYS_rt_sigtimedwait, &[all, 0, at_once, 8], Need::May)?;
    }
    batch.finish().map(|_| ())
}

/// Flags of descriptors, handlers, mask of permissions, layout.
pub fn settings(leader: SeedThread, now: &ProcessRecord, member: Member<'_>) -> Result<(), RebuildError> {
    let then = member.own;
    let mut batch = leader.batch();
    let marked: BTreeSet<i32> =
        now.files.descriptors.iter().filter(|one| one.cloexec).map(|one| one.fd).collect();
    for one in then.files.descriptors.iter().filter(|one| !one.cloexec && marked.contains(&one.fd)) {
        let fd = number(one.fd);
        let need = Need::Must("take the mark close-on-exec from descriptor", fd);
        batch.call(libc::SYS_fcntl, &[fd, libc::F_SETFD as u64, 0], need)?;
    }
    let handled: BTreeSet<u32> = then.signals.actions.iter().map(|action| action.signal).collect();
    for action in now.signals.actions.iter().filter(|action| !handled.contains(&action.signal)) {
        batch.reserve(32)?;
        let default = batch.data(&[0; 32]);
        let signal = u64::from(action.signal);
        let need = Need::Must("take the handler from signal", signal);
        batch.row(Row::new(libc::SYS_rt_sigaction, &[signal, default, 0, 8]), need);
    }
    if now.umask != then.umask {
        batch.call(libc::SYS_umask, &[u64::from(then.umask)], Need::May)?;
    }
    batch.finish()?;
    process_state::descriptors_and_signals(leader, member)?;
    if now.layout == then.layout { Ok(()) } else { process_state::layout(leader, then) }
}

/// Signals and timers as they were: time runs from here. `timers`: those of timer_create.
pub fn signals_and_timers(
    all: &[NewThread<'_>],
    member: Member<'_>,
    timers: &[PosixTimer],
) -> Result<(), RebuildError> {
    for thread in all {
        threads::equip_again(thread)?;
    }
    let Some(leader) = all.first().map(|leader| leader.seed) else { return Ok(()) };
    process_state::pending_and_timers(leader, member)?;
    let mut batch = leader.batch();
    for timer in timers {
        set_timer(&mut batch, timer, (timer.interval_ns, timer.value_ns))?;
    }
    batch.finish().map(|_| ())
}

/// Registers, extended states and masks of all threads, and what is left of timed waits; limits. The last.
pub fn registers(
    all: &[NewThread<'_>],
    now: &ProcessRecord,
    then: &ProcessRecord,
    memory: &ForcedMemory,
) -> Result<(), RebuildError> {
    for thread in all {
        let regs = threads::final_registers(memory, thread.record)?;
        threads::restore(thread, &regs)?;
        let before = now.threads.iter().find(|now| now.tid == thread.record.tid);
        scheduling(thread.seed.remote.tid, before, thread.record);
    }
    for wait in then.threads.iter().filter_map(|thread| thread.wait) {
        continuation::rearm(memory, &then.inject, wait.slot, wait.remaining_ns)
            .map_err(RebuildError::io(format!("setting the rest of the wait of slot {}", wait.slot)))?;
    }
    if let Some(leader) = all.first() {
        let pid = leader.seed.remote.process;
        process_state::coredump_filter(pid, then);
        if (&now.limits, now.flags.oom_score_adj) != (&then.limits, then.flags.oom_score_adj) {
            process_state::limits(pid, then);
        }
    }
    Ok(())
}

/// A new thread has the usual policy already; this one may have another.
fn scheduling(tid: i32, now: Option<&ThreadRecord>, then: &ThreadRecord) {
    let of = |thread: &ThreadRecord| (thread.policy, thread.priority, thread.nice, thread.affinity.clone());
    if now.is_some_and(|now| of(now) == of(then)) {
        return;
    }
    if now.is_some_and(|now| now.policy != then.policy) {
        let _ = sched_attributes::set_scheduler(tid, then.policy, then.priority);
    }
    process_state::scheduling(tid, then);
}

/// The numbers of the timers (timerfd) that a process holds.
pub fn timer_descriptors(member: Member<'_>) -> Vec<i32> {
    let all = member.job.descriptions().iter().enumerate();
    let timers = all.filter(|(_, description)| matches!(description.object, Object::TimerFd { .. }));
    timers.filter_map(|(index, _)| member.held(index)).collect()
}
