//! Job control inside the stop: which processes it has stopped, and what wait(2) has told their parents of it.
//!
//! Called by `cut`, on the tracer thread: [`settled`] before anything is run in a process, [`stops`] afterwards.
//! Parents are asked with WNOWAIT: they are told nothing. Fails by: [`CutError`]; the caller resumes all processes.

use crate::error::{CutError, TraceError};
use crate::inject::live_thread::BUFFERS;
use crate::inject::stub::Row;
use crate::job::stopped_process::StoppedProcess;
use crate::job::tracer_state::TracerState;
use crate::refuse;
use crate::stop::interrupt;
use crate::stop::resume::StoppedProgram;
use crate::stop::stages::{Observed, Repaired, Seen};
use crate::stop::threads::{Thread, pending_mask};
use holdfast_image::record::InjectArea;
use holdfast_sys::procmem;
use std::time::{Duration, Instant};

/// So long a parent may not have heard yet that a child goes on. Most never ask.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks whether a signal of job control has come while its receiver was stopped by us already: SIGSTOP would take
/// effect when the first call is run in it, and its parent hear of that behind our back; SIGCONT ends a stop that we
/// have seen already (kernel/signal.c, prepare_signal), and leaves no trace when another stop follows it. All are over
/// as soon as the process is resumed.
///
/// # Errors
/// One is on its way.
pub fn settled(all: &[StoppedProcess<Repaired>]) -> Result<(), CutError> {
    let moves = |one: &&StoppedProcess<Repaired>| {
        let (held, repaired) = (&one.held, &one.stage);
        let state = |t: &Thread| (t.stop_signal.is_some(), t.mask, pending_mask(&t.pending));
        let now = Now {
            threads: held.threads.iter().map(state).collect(),
            shared: pending_mask(&repaired.shared_pending),
            own: repaired.status.mask("SigCgt") | repaired.status.mask("SigIgn"),
        };
        now.moves() || has_gone_on(held)
    };
    match all.iter().find(moves) {
        Some(one) => {
            let reason = "it is just being stopped or continued by job control (SIGSTOP, SIGCONT)";
            Err(CutError::Unsettled(vec![refuse::process(one.target.pid, reason)]))
        }
        None => Ok(()),
    }
}

/// Whether a stop that was seen is not in force any more.
fn has_gone_on(held: &StoppedProgram) -> bool {
    let again = |tid| interrupt::stop_signal_again(held.pid, tid);
    held.threads.iter().any(|thread| thread.stop_signal.is_some() && again(thread.tid) != thread.stop_signal)
}

/// A process between stopping and going on.
struct Now {
    /// Of each thread: whether it takes part in a group stop, what it blocks, and what waits for it.
    threads: Vec<(bool, u64, u64)>,
    /// What waits for any of them.
    shared: u64,
    /// What is caught or ignored.
    own: u64,
}

impl Now {
    fn moves(&self) -> bool {
        const fn bit(signal: i32) -> u64 {
            1 << (signal - 1)
        }
        const STOPS: u64 = bit(libc::SIGSTOP) | bit(libc::SIGTSTP) | bit(libc::SIGTTIN) | bit(libc::SIGTTOU);
        let stopped = self.threads.iter().filter(|(stopped, ..)| *stopped).count();
        if stopped == 0 {
            let stops =
                |(_, mask, own): &(bool, u64, u64)| (own | self.shared) & !mask & !self.own & STOPS != 0;
            return self.threads.iter().any(stops);
        }
        let goes_on = |(.., own): &(bool, u64, u64)| (own | self.shared) & bit(libc::SIGCONT) != 0;
        stopped < self.threads.len() || self.threads.iter().any(goes_on)
    }
}

/// The stopped processes whose parents have been told so, by their own ids.
///
/// # Errors
/// A parent has not been told yet that a child goes on: no restart brings that about again, and it may ask in a moment.
pub fn stops(all: &[StoppedProcess<Observed>], state: &mut TracerState) -> Result<Vec<i32>, CutError> {
    let mut told = Vec::new();
    for StoppedProcess { target, stage: parent, .. } in all {
        let is_child = |one: &&StoppedProcess<Observed>| {
            one.stage.seen.status.number("PPid") == Some(i64::from(target.pid))
        };
        let children = all.iter().filter(is_child).map(|child| &child.stage.seen);
        let what =
            |child: &Seen| if child.stop_signal().is_some() { libc::WSTOPPED } else { libc::WCONTINUED };
        let children: Vec<&Seen> = children.collect();
        let ask = |child: &&Seen| (child.known_to(&parent.seen), what(child));
        let asked: Vec<(i32, i32)> = children.iter().map(ask).collect();
        let waiting = to_be_told(&parent.seen, &target.area, &asked)?;
        let kept = state.of(target);
        let before = std::mem::take(&mut kept.going_on);
        for (&(pid, what), (child, waits)) in asked.iter().zip(children.into_iter().zip(waiting)) {
            if what == libc::WCONTINUED && waits {
                let since = before.get(&pid).copied().unwrap_or_else(Instant::now);
                kept.going_on.insert(pid, since);
            } else if what == libc::WSTOPPED && !waits {
                told.push(child.job_pid);
            }
        }
        if kept.going_on.values().any(|since| since.elapsed() < PATIENCE) {
            let reason = "it has not been told yet that a child goes on after a stop (WCONTINUED)";
            return Err(CutError::Unsettled(vec![refuse::process(target.pid, reason)]));
        }
    }
    Ok(told)
}

/// Whether wait(2) has something to tell a process of its children, each with what is asked for (WSTOPPED, WCONTINUED).
fn to_be_told(parent: &Seen, area: &InjectArea, children: &[(i32, i32)]) -> Result<Vec<bool>, TraceError> {
    /// More than siginfo_t has; the results of so many fit the buffers.
    const LEN: usize = 128;
    const MOST: usize = 64;
    let at = |index: usize| area.scratch.0 + BUFFERS + (index * LEN) as u64;
    let ask = |(index, &(child, what)): (usize, &(i32, i32))| {
        let options = what | libc::WNOHANG | libc::WNOWAIT;
        let (child, options) = (u64::from(child.cast_unsigned()), u64::from(options.cast_unsigned()));
        Row::new(libc::SYS_waitid, &[libc::P_PID.into(), child, at(index), options, 0])
    };
    let mut told = Vec::with_capacity(children.len());
    for some in children.chunks(MOST) {
        let rows: Vec<Row> = some.iter().enumerate().map(ask).collect();
        procmem::write(parent.live, at(0), &vec![0; some.len() * LEN])?;
        let results = parent.host.run(area, &rows, &mut |_| Ok(()))?;
        let mut infos = vec![0_u8; some.len() * LEN];
        procmem::read(parent.live, at(0), &mut infos)?;
        for ((&(_, what), result), info) in some.iter().zip(results).zip(infos.chunks_exact(LEN)) {
            // Nothing to tell: siginfo_t stays as it is, all zero. What cannot be asked counts as usual: a stop is
            // told when it is asked for; a go-on is not asked for.
            told.push(if result == 0 { info[..4] != [0; 4] } else { what == libc::WSTOPPED });
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: u64 = 1 << (libc::SIGSTOP - 1);
    const TSTP: u64 = 1 << (libc::SIGTSTP - 1);
    const CONT: u64 = 1 << (libc::SIGCONT - 1);

    fn moves(threads: &[(bool, u64, u64)], shared: u64, own: u64) -> bool {
        Now { threads: threads.to_vec(), shared, own }.moves()
    }

    #[test]
    fn a_stop_that_is_coming_is_seen() {
        assert!(!moves(&[(false, 0, 0), (false, 0, 0)], 0, 0));
        assert!(moves(&[(false, 0, 0), (false, 0, 0)], STOP, 0));
        assert!(moves(&[(false, 0, 0), (false, 0, TSTP)], 0, 0));
        assert!(moves(&[(true, 0, 0), (false, 0, 0)], 0, 0));
    }

    #[test]
    fn what_is_blocked_or_handled_stops_no_process() {
        assert!(!moves(&[(false, TSTP, 0)], TSTP, 0));
        assert!(moves(&[(false, TSTP, 0), (false, 0, 0)], TSTP, 0));
        assert!(!moves(&[(false, 0, 0)], TSTP, TSTP));
        assert!(!moves(&[(false, 0, 0)], CONT, 0));
    }

    #[test]
    fn the_end_of_a_stop_is_seen_even_if_its_signal_is_blocked() {
        assert!(!moves(&[(true, 0, 0)], 0, 0));
        assert!(moves(&[(true, CONT, 0)], CONT, CONT));
        assert!(moves(&[(true, 0, CONT)], 0, 0));
    }
}
