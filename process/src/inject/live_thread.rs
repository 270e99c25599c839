//! Running a table of system calls in a stopped thread of a running program, which goes on by itself if the agent dies.
//!
//! Order matters for the agent's death (docs/stop.md, B.1): frame and table are in place first, then the registers,
//! then the mask; on the way back mask, then registers. At every instant in between the thread, resumed, returns to
//! where it was.
//!
//! Scratch layout: table at 0, buffers for results from [`BUFFERS`] on, frame at [`FRAME`] (with space below it for a
//! signal that hits before the registers are back).

use super::born::Born;
use super::frame;
use super::permission::Permission;
use super::remote_thread::{Patience, RemoteThread, Step, StubEntry};
use super::stub::{self, Row};
use crate::error::TraceError;
use holdfast_image::record::InjectArea;
use holdfast_sys::fault;
use holdfast_sys::procmem;
use holdfast_sys::ptrace::{self, Registers, Wait};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Offset in the scratch range where results of calls (structures) may be put.
pub const BUFFERS: u64 = 64 * 1024;
/// Offset in the scratch range of the signal frame.
pub const FRAME: u64 = 192 * 1024;
/// Rows that fit before [`BUFFERS`].
pub const MAX_ROWS: usize = BUFFERS as usize / stub::ROW_LEN - 2;
/// No injected call of ours waits for anything outside; past this the thread is stuck.
const LIMIT: Duration = Duration::from_secs(2);
/// How long the end of a table is waited for that was given up.
const LATE: Duration = Duration::from_secs(10);

/// A stopped thread in which calls can be run, with everything needed to put it back.
#[derive(Clone, Debug)]
pub struct LiveThread {
    /// Which.
    pub thread: RemoteThread,
    /// The registers with which it goes on.
    pub regs: Registers,
    /// The same for going on by itself, through a signal frame: returning from one drops the restart block
    /// (arch/x86/kernel/signal_64.c, restore_sigcontext), so timed calls are made anew with the rest of their time.
    pub alone: Registers,
    /// Its signal mask at the stop.
    pub mask: u64,
    /// Its extended state at the stop, cut to size.
    pub xstate: Vec<u8>,
    /// See [`choose_marker`].
    pub marker: Marker,
    /// Which calls may be made in it.
    pub permission: Permission,
    /// The same signal came from elsewhere while it was unblocked for the marker: to be sent again. One for all
    /// clones of this.
    pub resend: Arc<AtomicBool>,
}

/// See [`Patience`].
const SUSPICIOUS: Duration = Duration::from_millis(5);
/// So long the next stop at a call is looked for without sleeping.
const SOON: Duration = Duration::from_micros(100);

/// How the end of a batch is known. The last call of its table sends a signal to the thread itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marker {
    /// The signal: its arrival is a stop.
    Signal(i32),
    /// There is none that the program would not notice, should the agent die at that instant. No signal is sent
    /// then: the thread stops at each call, and is interrupted after the last one. Two stops per call, some 10 us
    /// each.
    Call,
}

impl Marker {
    /// The signal that the last call sends; 0: none (kill(2)).
    fn signal(self) -> i32 {
        match self {
            Marker::Signal(signal) => signal,
            Marker::Call => 0,
        }
    }
    /// How the thread runs until something happens.
    fn step(self) -> Step {
        match self {
            Marker::Signal(_) => Step::Run(0),
            Marker::Call => Step::ToCall(0),
        }
    }
    /// All signals but this one, as a mask.
    fn others(self) -> u64 {
        match self {
            Marker::Signal(signal) => !(1 << (signal - 1)),
            Marker::Call => !0,
        }
    }
}

/// A signal whose arrival the program cannot notice: default action "ignore" in force, not blocked, not pending
/// (natively such a signal is discarded when it is sent; kernel/signal.c, sig_ignored). In a thread that blocks
/// them all, one that no program waits for in practice; should it come from elsewhere at that moment, it is sent again.
/// A program that handles them all (Go does) is watched call by call.
pub fn choose_marker(caught: u64, blocked: u64, pending: u64) -> Marker {
    let free = |mask: u64| move |signal: &i32| mask >> (signal - 1) & 1 == 0;
    [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD]
        .into_iter()
        .find(free(caught | blocked | pending))
        .or_else(|| [libc::SIGURG, libc::SIGWINCH].into_iter().find(free(caught | pending)))
        .map_or(Marker::Call, Marker::Signal)
}

/// What the batch does when a row created a process: gets the new tid, while the creator is stopped at the event.
pub type OnClone<'a> = &'a mut dyn FnMut(i32) -> Result<(), TraceError>;

impl LiveThread {
    /// Writes frame and table and points the thread at the stub. `rows` must be at most [`MAX_ROWS`].
    fn arm(&self, area: &InjectArea, rows: &[Row]) -> Result<(), TraceError> {
        debug_assert!(rows.len() <= MAX_ROWS);
        let frame_at = area.scratch.0 + FRAME;
        let back = frame::rewound(&self.alone);
        let frame = frame::bytes(frame_at, &back, self.mask, &self.xstate);
        let mut table = Vec::with_capacity((rows.len() + 2) * stub::ROW_LEN);
        // sigaltstack(NULL, &frame.uc_stack): the frame then sets what is already set.
        let query = Row::new(libc::SYS_sigaltstack, &[0, frame_at + frame::ALT_STACK_OFFSET]);
        let mut all = vec![query];
        all.extend_from_slice(rows);
        self.permission.leave_out(&mut all, self.thread.inner);
        self.may_make(&all)?;
        table.extend(stub::table(&all, self.thread.inner.0, self.thread.inner.1, self.marker.signal()));
        procmem::write(self.thread.tid, frame_at, &frame)?;
        self.thread.write_table(area.scratch.0, &table)?;
        let entry = StubEntry { code: area.code.0, table: area.scratch.0, stack: frame_at };
        self.thread.enter_stub(&self.regs, entry)?;
        ptrace::set_signal_mask(self.thread.tid, self.marker.others())?;
        Ok(())
    }

    /// Whether filters of the program's own allow a table with these rows, and the way back.
    ///
    /// # Errors
    /// They do not.
    pub fn may_make(&self, rows: &[Row]) -> Result<(), TraceError> {
        let (pid, tid) = self.thread.inner;
        let id = |id: i32| u64::from(id.cast_unsigned());
        let marker = Row::new(libc::SYS_tgkill, &[id(pid), id(tid), id(self.marker.signal())]);
        self.permission.ask(tid, rows)?;
        self.permission.ask(tid, &[marker, Row::new(libc::SYS_rt_sigreturn, &[])])
    }

    /// Runs the rows; returns their results. The thread is stopped at the marker afterwards: run another batch, or
    /// [`LiveThread::put_back`].
    ///
    /// # Errors
    /// The thread died or did not come back in time; it is put back then, if it lives.
    pub fn run(
        &self,
        area: &InjectArea,
        rows: &[Row],
        on_clone: OnClone<'_>,
    ) -> Result<Vec<i64>, TraceError> {
        self.begin(area, rows)?;
        self.finish(area, rows.len(), on_clone)
    }

    /// The first half of [`LiveThread::run`]: until [`LiveThread::finish`] the thread runs, and others may be begun.
    ///
    /// # Errors
    /// The thread died.
    pub fn begin(&self, area: &InjectArea, rows: &[Row]) -> Result<(), TraceError> {
        self.arm(area, rows)?;
        self.thread.go_on(self.marker.step())?;
        fault::point("inject");
        Ok(())
    }

    /// The second half; `count`: of rows.
    ///
    /// # Errors
    /// As [`LiveThread::run`].
    pub fn finish(
        &self,
        area: &InjectArea,
        count: usize,
        on_clone: OnClone<'_>,
    ) -> Result<Vec<i64>, TraceError> {
        if fault::fails("inject") {
            self.give_up();
            return Err(TraceError::Stuck { tid: self.thread.tid });
        }
        if let Err(error) = self.wait_for_marker(LIMIT, on_clone) {
            self.give_up();
            return Err(error);
        }
        let mut results = self.thread.results(area.scratch.0, count + 1)?;
        fault::point("inject");
        results.remove(0);
        Ok(results)
    }

    /// After a failure in the middle of a table: the thread is where it was before. What the table has begun (a file
    /// that it opens and closes, ranges that it keeps out of a clone) it ends, if it only needs time; of a process that
    /// it makes nothing is left.
    fn give_up(&self) {
        // The table waits for the child's end, which the thread hears of when its tracer has.
        let mut end = |child: i32| -> Result<(), TraceError> {
            drop(Born(child));
            Ok(())
        };
        let ended = self.wait_for_marker(LATE, &mut end).or_else(|_| self.thread.halt());
        if let Err(error) = ended.and_then(|()| self.put_back()) {
            tracing::warn!(tid = self.thread.tid, %error, "a thread is not put back after injected calls");
        }
    }

    fn wait_for_marker(&self, limit: Duration, on_clone: OnClone<'_>) -> Result<(), TraceError> {
        let yield_for = if self.marker == Marker::Call { SOON } else { Duration::ZERO };
        let patience = Patience { limit, look_after: Some(SUSPICIOUS), yield_for };
        let mut at_end = false;
        self.thread.run_until(patience, |stop| match stop {
            Wait::Signal(signal) if self.marker == Marker::Signal(signal) => {
                if self.thread.has_sent_the_signal()? {
                    return Ok(Step::Done);
                }
                // From elsewhere: discarded natively, unless it was blocked.
                if self.mask >> (signal - 1) & 1 == 1 {
                    self.resend.store(true, Ordering::Relaxed);
                }
                Ok(Step::Run(0))
            }
            // Behind the last call. A thread at the end of a call may not be given the registers of another one:
            // only where it looks for signals the kernel makes interrupted calls anew (arch/x86/kernel/signal.c,
            // arch_do_signal_or_restart). So it is interrupted, and stops there.
            Wait::Syscall if self.marker == Marker::Call && self.has_made_the_last_call()? => {
                at_end = true;
                ptrace::interrupt(self.thread.tid)?;
                Ok(Step::Run(0))
            }
            Wait::Interrupted | Wait::GroupStop(_) if at_end => Ok(Step::Done),
            Wait::Event(libc::PTRACE_EVENT_CLONE) => {
                on_clone(self.thread.created()?)?;
                Ok(self.marker.step())
            }
            Wait::Exited(_) => Err(TraceError::Died { tid: self.thread.tid }),
            // Cannot be blocked away: SIGSTOP. Keep it for after the cut by sending it again is not needed: the
            // process enters the group stop when it is resumed.
            Wait::Signal(signal) => Ok(Step::Run(signal)),
            // SIGKILL apart nothing is unblocked; an event stop of a late INTERRUPT or a group stop may come.
            _ => Ok(self.marker.step()),
        })
    }

    /// Whether the thread is at the end of the call that sends no signal; at its beginning the result is ENOSYS
    /// (arch/x86/entry/entry_64.S).
    fn has_made_the_last_call(&self) -> io::Result<bool> {
        let regs = ptrace::registers(self.thread.tid)?;
        Ok(regs.orig_rax.cast_signed() == libc::SYS_tgkill && regs.rdx == 0 && regs.rax == 0)
    }

    /// Gives the thread its own mask and registers back.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn put_back(&self) -> Result<(), TraceError> {
        ptrace::set_signal_mask(self.thread.tid, self.mask)?;
        fault::point("inject-done");
        ptrace::set_registers(self.thread.tid, &self.regs)?;
        if self.resend.swap(false, Ordering::Relaxed) {
            ptrace::kill(self.thread.process, self.marker.signal())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn mask(signals: &[i32]) -> u64 {
        let (mut mask, mut at) = (0, 0);
        while at < signals.len() {
            mask |= 1 << (signals[at] - 1);
            at += 1;
        }
        mask
    }

    #[test]
    fn the_marker_is_a_signal_that_no_program_notices_or_none() {
        const ALL: u64 = mask(&[libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD]);
        assert_eq!(choose_marker(0, 0, 0), Marker::Signal(libc::SIGURG));
        assert_eq!(choose_marker(mask(&[libc::SIGURG]), 0, 0), Marker::Signal(libc::SIGWINCH));
        assert_eq!(
            choose_marker(mask(&[libc::SIGURG]), mask(&[libc::SIGWINCH]), 0),
            Marker::Signal(libc::SIGCHLD)
        );
        assert_eq!(choose_marker(0, ALL, 0), Marker::Signal(libc::SIGURG));
        assert_eq!(choose_marker(mask(&[libc::SIGURG]), ALL, 0), Marker::Signal(libc::SIGWINCH));
        assert_eq!(choose_marker(0, ALL, ALL), Marker::Call);
        assert_eq!(choose_marker(ALL, 0, 0), Marker::Call);
        assert_eq!(Marker::Call.signal(), 0);
        assert_eq!(Marker::Call.others() & mask(&[libc::SIGURG]), mask(&[libc::SIGURG]));
        assert_eq!(Marker::Signal(libc::SIGURG).others() & ALL, mask(&[libc::SIGWINCH, libc::SIGCHLD]));
    }
}
