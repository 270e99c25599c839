//! Running a table of system calls in one stopped thread.
//!
//! Order matters for the agent's death (docs/stop.md, B.1): frame and table are in place first, then the registers, then
//! the mask; on the way back mask, then registers. At every instant in between the thread, let go, returns to where
//! it was.
//!
//! Scratch layout: table at 0, buffers for results from [`BUFFERS`] on, frame at [`FRAME`] (with room below it for a
//! signal that hits before the registers are back).

use super::frame;
use super::stub::{self, Row};
use crate::error::TraceError;
use holdfast_image::record::InjectArea;
use holdfast_sys::fault;
use holdfast_sys::procfs;
use holdfast_sys::procmem;
use holdfast_sys::ptrace::{self, Registers, Wait};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Offset in the scratch range where results of calls (structures) may be put.
pub const BUFFERS: u64 = 64 * 1024;
/// Offset in the scratch range of the signal frame.
pub const FRAME: u64 = 192 * 1024;
/// Rows that fit before [`BUFFERS`].
pub const MAX_ROWS: usize = BUFFERS as usize / stub::ROW_LEN - 2;
/// No injected call of ours waits for anything outside; past this the thread is stuck.
const LIMIT: Duration = Duration::from_secs(2);

/// A stopped thread in which calls can be run, with everything needed to put it back.
#[derive(Clone, Debug)]
pub struct Host {
    /// Process id as the agent sees it.
    pub process: i32,
    /// Thread id as the agent sees it.
    pub tid: i32,
    /// Process and thread id as the program sees them (arguments of the marker's tgkill).
    pub inner: (i32, i32),
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
    /// The same signal came from elsewhere while it was unblocked for the marker: to be sent again. One for all
    /// clones of this.
    pub resend: Arc<AtomicBool>,
}

/// From then on a thread that does not stop is looked at: a main thread that was killed is not reported to its tracer
/// before all others were waited for (ptrace(2), "Death under ptrace").
const SUSPICIOUS: Duration = Duration::from_millis(5);

/// So long the next stop at a call is looked for without sleeping.
const SOON: Duration = Duration::from_micros(100);

fn is_dead(pid: i32, tid: i32) -> bool {
    procfs::stat_fields(pid, tid)
        .map_or(true, |fields| fields.first().is_none_or(|state| state == "Z" || state == "X"))
}

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
/// them all, one that nobody waits for in practice; should it come from elsewhere at that moment, it is sent again.
/// A program that handles them all (Go does) is watched call by call.
pub fn choose_marker(caught: u64, blocked: u64, pending: u64) -> Marker {
    let free = |mask: u64| move |signal: &i32| mask >> (signal - 1) & 1 == 0;
    [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD]
        .into_iter()
        .find(free(caught | blocked | pending))
        .or_else(|| [libc::SIGURG, libc::SIGWINCH].into_iter().find(free(caught | pending)))
        .map_or(Marker::Call, Marker::Signal)
}

/// What the batch does when a row created a process: gets the new tid, while the creator stands at the event.
pub type OnClone<'a> = &'a mut dyn FnMut(i32) -> Result<(), TraceError>;

impl Host {
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
        table.extend(stub::table(&all, self.inner.0, self.inner.1, self.marker.signal()));
        procmem::write(self.tid, frame_at, &frame)?;
        procmem::write(self.tid, area.scratch.0, &table)?;
        let mut regs = self.regs;
        regs.rip = area.code.0;
        regs.rbx = area.scratch.0;
        regs.rsp = frame_at;
        regs.orig_rax = u64::MAX;
        regs.eflags &= !(1 << 8 | 1 << 10); // no single step, direction up
        ptrace::set_registers(self.tid, &regs)?;
        ptrace::set_signal_mask(self.tid, self.marker.others())?;
        Ok(())
    }

    /// Runs the rows; returns their results. The thread stands at the marker afterwards: run another batch, or
    /// [`Host::put_back`].
    ///
    /// # Errors
    /// The thread died or did not come back within two seconds; it is then not in a known state.
    pub fn run(
        &self,
        area: &InjectArea,
        rows: &[Row],
        on_clone: OnClone<'_>,
    ) -> Result<Vec<i64>, TraceError> {
        self.begin(area, rows)?;
        self.finish(area, rows.len(), on_clone)
    }

    /// The first half of [`Host::run`]: until [`Host::finish`] the thread runs, and others may be begun.
    ///
    /// # Errors
    /// The thread died.
    pub fn begin(&self, area: &InjectArea, rows: &[Row]) -> Result<(), TraceError> {
        self.arm(area, rows)?;
        self.go_on()?;
        fault::point("inject");
        Ok(())
    }

    /// The second half; `count`: of rows.
    ///
    /// # Errors
    /// As [`Host::run`].
    pub fn finish(
        &self,
        area: &InjectArea,
        count: usize,
        on_clone: OnClone<'_>,
    ) -> Result<Vec<i64>, TraceError> {
        self.wait_for_marker(on_clone)?;
        let mut raw = vec![0_u8; (count + 1) * stub::ROW_LEN];
        procmem::read(self.tid, area.scratch.0, &mut raw)?;
        fault::point("inject");
        let results = raw.chunks_exact(stub::ROW_LEN).skip(1);
        Ok(results.map(|row| i64::from_le_bytes(crate::stop::xstate::array(row, 56))).collect())
    }

    /// Lets the thread run until something happens.
    fn go_on(&self) -> io::Result<()> {
        match self.marker {
            Marker::Signal(_) => ptrace::cont(self.tid, 0),
            Marker::Call => ptrace::cont_to_call(self.tid, 0),
        }
    }

    fn wait_for_marker(&self, on_clone: OnClone<'_>) -> Result<(), TraceError> {
        let begun = Instant::now();
        let (mut at_end, mut since) = (false, begun);
        loop {
            match ptrace::wait(self.tid, false)? {
                Wait::Nothing if begun.elapsed() > LIMIT => {
                    return Err(TraceError::Stuck { tid: self.tid });
                }
                Wait::Nothing if begun.elapsed() > SUSPICIOUS && is_dead(self.process, self.tid) => {
                    return Err(TraceError::Died { tid: self.tid });
                }
                // Stops at calls come one after the other, and each is there in no time.
                Wait::Nothing if self.marker == Marker::Call && since.elapsed() < SOON => {
                    std::thread::yield_now();
                }
                Wait::Nothing => pause(since),
                Wait::Signal(signal) if self.marker == Marker::Signal(signal) => {
                    let info = ptrace::signal_info(self.tid)?;
                    let code = i32::from_le_bytes([info[8], info[9], info[10], info[11]]);
                    let sender = i32::from_le_bytes([info[16], info[17], info[18], info[19]]);
                    if code == libc::SI_TKILL && sender == self.inner.0 {
                        return Ok(());
                    }
                    // From elsewhere: discarded natively, unless it was blocked.
                    if self.mask >> (signal - 1) & 1 == 1 {
                        self.resend.store(true, Ordering::Relaxed);
                    }
                    ptrace::cont(self.tid, 0)?;
                }
                // Behind the last call. A thread that stands at the end of a call may not be given the registers of
                // another one: only where it looks for signals the kernel makes interrupted calls anew
                // (arch/x86/kernel/signal.c, arch_do_signal_or_restart). So it is interrupted, and stops there.
                Wait::Syscall if self.marker == Marker::Call && self.has_made_the_last_call()? => {
                    at_end = true;
                    ptrace::interrupt(self.tid)?;
                    ptrace::cont(self.tid, 0)?;
                }
                Wait::Interrupted | Wait::GroupStop(_) if at_end => return Ok(()),
                Wait::Event(libc::PTRACE_EVENT_CLONE) => {
                    let child = i32::try_from(ptrace::event_message(self.tid)?).unwrap_or(0);
                    on_clone(child)?;
                    self.go_on()?;
                }
                Wait::Exited(_) => return Err(TraceError::Died { tid: self.tid }),
                // SIGKILL apart nothing is unblocked; an event stop of a late INTERRUPT or a group stop may come.
                Wait::Interrupted | Wait::GroupStop(_) | Wait::Event(_) | Wait::Syscall => {
                    self.go_on()?;
                    since = Instant::now();
                }
                // Cannot be blocked away: SIGSTOP. Keep it for after the cut by sending it again is not needed: the
                // process enters the group stop when it is let go.
                Wait::Signal(signal) => ptrace::cont(self.tid, signal)?,
            }
        }
    }

    /// Whether the thread stands at the end of the call that sends no signal; at its beginning the result is ENOSYS
    /// (arch/x86/entry/entry_64.S).
    fn has_made_the_last_call(&self) -> io::Result<bool> {
        let regs = ptrace::registers(self.tid)?;
        Ok(regs.orig_rax.cast_signed() == libc::SYS_tgkill && regs.rdx == 0 && regs.rax == 0)
    }

    /// Gives the thread its own mask and registers back.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn put_back(&self) -> Result<(), TraceError> {
        ptrace::set_signal_mask(self.tid, self.mask)?;
        fault::point("inject-done");
        ptrace::set_registers(self.tid, &self.regs)?;
        if self.resend.swap(false, Ordering::Relaxed) {
            ptrace::kill(self.process, self.marker.signal())?;
        }
        Ok(())
    }
}

/// Waits a little for a stop, which arrives within microseconds: spins first, then sleeps in the shortest steps the
/// kernel has (the tracer thread has no timer slack). Sleeping, not yielding: a sleeper that wakes up goes before
/// whatever else computes on its processor, one that yields goes behind it.
pub fn pause(begun: Instant) {
    if begun.elapsed() < Duration::from_micros(10) {
        std::hint::spin_loop();
    } else {
        // Longer the longer it takes (a clone of GiBs): polling would slow down the very thread that is waited for.
        let step = (begun.elapsed() / 8).clamp(Duration::from_micros(5), Duration::from_micros(200));
        std::thread::sleep(step);
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
    fn the_marker_is_a_signal_that_nobody_notices_or_none() {
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
