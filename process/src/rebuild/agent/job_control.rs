//! Processes that job control has stopped: they are stopped again before their parents get what waits for them, so
//! that a parent hears of it as often as it would have, and not once more.
//!
//! Called by [`super::rebuild_process`] while all are traced: [`stop_again`] at the end of a process, then
//! [`forget_stops`] at the beginning of its parent, whose turn comes later. How it fails: a process ended.

use super::remote_calls::{Need, SeedThread, ended};
use super::threads::NewThread;
use crate::error::TraceError;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Member;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::ptrace::{self, Wait};

/// Stops a process whose threads are stopped, their registers set. They do not run on the way: a thread that is resumed
/// enters the stop before it leaves the kernel (kernel/signal.c, do_signal_stop and do_jobctl_trap), and stays in
/// it when it is detached.
///
/// # Errors
/// It ended.
pub fn stop_again(threads: &[NewThread<'_>], record: &ProcessRecord) -> Result<(), RebuildError> {
    let tids: Vec<i32> = threads.iter().map(|thread| thread.seed.remote.tid).collect();
    let Some(&leader) = tids.first() else { return Ok(()) };
    ptrace::kill(leader, libc::SIGSTOP).map_err(TraceError::from)?;
    let mut signal = stop_signal(record);
    for tid in tids {
        let mut deliver = 0;
        loop {
            ptrace::cont(tid, deliver).map_err(TraceError::from)?;
            deliver = match ptrace::wait(tid, true).map_err(TraceError::from)? {
                Wait::GroupStop(_) => break,
                Wait::Signal(libc::SIGSTOP) => {
                    // Any but SIGSTOP may do nothing (kernel/signal.c, get_signal: an orphaned process group): then
                    // it is stopped here.
                    ptrace::interrupt(tid).map_err(TraceError::from)?;
                    signal
                }
                Wait::Interrupted => {
                    signal = libc::SIGSTOP;
                    ptrace::kill(leader, libc::SIGSTOP).map_err(TraceError::from)?;
                    0
                }
                Wait::Exited(status) => return Err(ended(status)),
                _ => 0,
            };
        }
        // A thread can be waited for before it has told its parent of the stop (kernel/signal.c, ptrace_stop); a
        // request waits until it is off its processor (kernel/ptrace.c, ptrace_check_attach), and so for the
        // parent's signal.
        ptrace::signal_mask(tid).map_err(TraceError::from)?;
    }
    Ok(())
}

/// The signal that stops it as it was stopped, for its parent is told which; SIGSTOP where that does not stop it
/// any more.
fn stop_signal(record: &ProcessRecord) -> i32 {
    const OTHERS: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let (signals, signal) = (&record.signals, record.signals.stop_signal);
    let handled = signals
        .actions
        .iter()
        .any(|action| i32::try_from(action.signal) == Ok(signal) && action.handler != 0);
    let blocked = |mask: u64| mask >> (signal - 1).clamp(0, 63) & 1 == 1;
    let leader = record.threads.first().is_some_and(|leader| blocked(leader.signal_mask));
    if OTHERS.contains(&signal) && !handled && !leader { signal } else { libc::SIGSTOP }
}

/// Has a process forget what it was just told of its children that were stopped again: the signal always, what wait(2)
/// would tell if the old process had asked for it.
///
/// # Errors
/// It ended.
pub fn forget_stops(leader: SeedThread, member: Member<'_>) -> Result<(), RebuildError> {
    let own = member.own.pid;
    let stopped = |child: &Member<'_>| child.own.ppid == own && child.own.signals.job_stopped;
    let children: Vec<Member<'_>> = member.job.members().skip(1).filter(stopped).collect();
    if children.is_empty() {
        return Ok(());
    }
    // The tracer takes the signal away while this table is worked through.
    leader.discard_signal(libc::SIGCHLD)?;
    let mut batch = leader.batch();
    for child in children.iter().filter(|child| child.own.signals.stop_told) {
        let options = u64::from((libc::WSTOPPED | libc::WNOHANG).cast_unsigned());
        let Some(pid) = child.own.known_to(member.own) else { continue };
        let args = [libc::P_PID.into(), u64::from(pid.cast_unsigned()), 0, options, 0];
        batch.call(libc::SYS_waitid, &args, Need::May)?;
    }
    batch.row(Row::new(libc::SYS_getpid, &[]), Need::May);
    batch.finish()?;
    leader.block_signals()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;
    use holdfast_image::record::SignalAction;

    #[test]
    fn a_process_is_stopped_by_the_same_signal_as_far_as_that_still_stops_it() {
        let mut record = record(Vec::new());
        assert_eq!(stop_signal(&record), libc::SIGSTOP, "of an older image");
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGSTOP] {
            record.signals.stop_signal = signal;
            assert_eq!(stop_signal(&record), signal);
        }
        record.signals.stop_signal = libc::SIGTSTP;
        let action = |handler| SignalAction { signal: 20, handler, flags: 0, restorer: 0, mask: 0 };
        record.signals.actions = vec![action(0)];
        assert_eq!(stop_signal(&record), libc::SIGTSTP);
        record.signals.actions = vec![action(0x1234)];
        assert_eq!(stop_signal(&record), libc::SIGSTOP);
        record.signals.stop_signal = libc::SIGKILL;
        assert_eq!(stop_signal(&record), libc::SIGSTOP, "an image may hold anything");
    }
}
