//! Processes that job control has stopped: they are stopped again before their parents get what waits for them, so that a
//! parent hears of it as often as it would have, and not once more.
//!
//! Called by [`super::site`] while everybody is traced: [`stand_still`] at the end of a process, then [`heard`] at the
//! beginning of its parent, whose turn comes later. How it fails: a process ended.

use super::error::RebuildError;
use super::hand::{Batch, Hand, Need, Task, Workplace, ended};
use super::member::Member;
use crate::error::TraceError;
use crate::inject::stub::Row;
use holdfast_sys::ptrace::{self, Wait};

/// Stops a process whose threads stand, their registers set. They do not run on the way: a thread that is let go enters
/// the stop before it leaves the kernel (kernel/signal.c, do_signal_stop and do_jobctl_trap), and stays in it when it is
/// detached.
///
/// # Errors
/// It ended.
pub fn stand_still(tasks: &[Task]) -> Result<(), RebuildError> {
    let Some(leader) = tasks.first() else { return Ok(()) };
    ptrace::kill(leader.tid, libc::SIGSTOP).map_err(TraceError::from)?;
    for task in tasks {
        let mut deliver = 0;
        loop {
            ptrace::cont(task.tid, deliver).map_err(TraceError::from)?;
            deliver = match ptrace::wait(task.tid, true).map_err(TraceError::from)? {
                Wait::GroupStop(_) => break,
                Wait::Signal(libc::SIGSTOP) => libc::SIGSTOP,
                Wait::Exited(status) => return Err(ended(status)),
                _ => 0,
            };
        }
    }
    Ok(())
}

/// Has a process forget what it was just told of its children that were stopped again: the signal always, what wait(2)
/// would tell if the old process had asked for it.
///
/// # Errors
/// It ended.
pub fn heard(hand: &Hand, place: Workplace, leader: Task, member: Member<'_>) -> Result<(), RebuildError> {
    let own = member.own.pid;
    let stopped = |child: &Member<'_>| child.own.ppid == own && child.own.signals.job_stopped;
    let children: Vec<Member<'_>> = member.job.members().skip(1).filter(stopped).collect();
    if children.is_empty() {
        return Ok(());
    }
    // The tracer takes the signal away while this table is worked through.
    hand.hear(leader, libc::SIGCHLD)?;
    let mut batch = Batch::new(hand, place, leader);
    for child in children.iter().filter(|child| child.own.signals.stop_told) {
        let options = u64::from((libc::WSTOPPED | libc::WNOHANG).cast_unsigned());
        let args = [libc::P_PID.into(), u64::from(child.own.pid.cast_unsigned()), 0, options, 0];
        batch.call(libc::SYS_waitid, &args, Need::May)?;
    }
    batch.row(Row::new(libc::SYS_getpid, &[]), Need::May);
    batch.finish()?;
    hand.prepare(leader)
}
