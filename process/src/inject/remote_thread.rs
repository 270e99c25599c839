//! A stopped thread of another process that makes system calls for us: what all ways of doing that have in common.
//!
//! Used by [`super::live_thread`] (tables in a thread of a running program), [`super::vdso_call`] (single calls
//! where there is no memory for the stub) and `rebuild::agent::remote_calls` (tables in a new process).
//! [`RemoteThread::run_until`] is the one loop that lets the thread run, waits for its stops and notices its death;
//! what a stop means is its user's. What must hold: the thread is in a ptrace stop of ours.

use super::stub::{ROW_LEN, Row};
use crate::error::TraceError;
use holdfast_sys::procfs;
use holdfast_sys::procmem;
use holdfast_sys::ptrace::{self, Registers, Wait};
use std::io;
use std::time::{Duration, Instant};

/// Which thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteThread {
    /// Process id as the agent sees it.
    pub process: i32,
    /// Thread id as the agent sees it.
    pub tid: i32,
    /// Process and thread id as the thread sees them itself (arguments of a tgkill to itself).
    pub inner: (i32, i32),
}

/// See [`Patience::limit`].
const IN_ALL: u32 = 20;

/// How long a thread may take to stop that is to be put back: nothing but a processor is missing then.
const HALT_LIMIT: Duration = Duration::from_secs(10);

/// How long stops are waited for, and how.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// So long without a stop, or [`IN_ALL`] times as long in all, and the thread is stuck. Without a stop: one that
    /// stops at every call waits for a processor at each of them, on a machine that has too few.
    pub limit: Duration,
    /// From then on it is looked at whether the thread still lives: a main thread that was killed is not reported
    /// to its tracer before all others were waited for (ptrace(2), "Death under ptrace"). `None`: never.
    pub look_after: Option<Duration>,
    /// So long after each stop the next one is looked for without sleeping.
    pub yield_for: Duration,
}

/// How a thread goes on after a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It does not: this is the stop that was waited for.
    Done,
    /// It runs, with a signal (0: none).
    Run(i32),
    /// It runs to the beginning or end of a system call, with a signal.
    ToCall(i32),
}

/// Where the stub finds what it needs.
#[derive(Clone, Copy, Debug)]
pub struct StubEntry {
    /// The stub.
    pub code: u64,
    /// Its table.
    pub table: u64,
    /// Its stack pointer: the signal frame behind the table's end, or any address.
    pub stack: u64,
}

impl RemoteThread {
    /// Points the thread at the stub. `from`: all other registers.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn enter_stub(&self, from: &Registers, entry: StubEntry) -> io::Result<()> {
        let mut regs = *from;
        regs.rip = entry.code;
        regs.rbx = entry.table;
        regs.rsp = entry.stack;
        regs.orig_rax = u64::MAX;
        regs.eflags &= !(1 << 8 | 1 << 10); // no single step, direction up
        ptrace::set_registers(self.tid, &regs)
    }

    /// Lets the thread go on.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn go_on(&self, step: Step) -> io::Result<()> {
        match step {
            Step::Done => Ok(()),
            Step::Run(signal) => ptrace::cont(self.tid, signal),
            Step::ToCall(signal) => ptrace::cont_to_call(self.tid, signal),
        }
    }

    /// Waits for one stop after the other, of a thread that runs, until `at_stop` says that it was the last. Its end
    /// (`Wait::Exited`) is a stop, too.
    ///
    /// # Errors
    /// The thread is dead or stuck; or of `at_stop`.
    pub fn run_until<E: From<TraceError>>(
        &self,
        patience: Patience,
        mut at_stop: impl FnMut(Wait) -> Result<Step, E>,
    ) -> Result<(), E> {
        let begun = Instant::now();
        let mut since = begun;
        loop {
            match ptrace::wait(self.tid, false).map_err(TraceError::from)? {
                Wait::Nothing => self.wait_a_little(patience, begun, since)?,
                stop => match at_stop(stop)? {
                    Step::Done => return Ok(()),
                    step => {
                        self.go_on(step).map_err(TraceError::from)?;
                        since = Instant::now();
                    }
                },
            }
        }
    }

    /// Has a thread that runs, or is at a stop in the middle of a call, stop where it can be given any registers: where
    /// it looks for signals (see `LiveThread::finish`). For what has failed.
    ///
    /// # Errors
    /// It is dead, or stuck in the kernel.
    pub fn halt(&self) -> Result<(), TraceError> {
        ptrace::interrupt(self.tid)?;
        // One that runs already is not let run.
        let _ = ptrace::cont(self.tid, 0);
        let patience = Patience { limit: HALT_LIMIT, look_after: None, yield_for: Duration::ZERO };
        self.run_until(patience, |stop| match stop {
            Wait::Interrupted | Wait::GroupStop(_) => Ok(Step::Done),
            Wait::Exited(_) => Err(TraceError::Died { tid: self.tid }),
            // Any stop makes the kernel forget an interrupt that came before it (kernel/signal.c, ptrace_stop).
            Wait::Syscall | Wait::Event(_) => {
                ptrace::interrupt(self.tid)?;
                Ok(Step::Run(0))
            }
            Wait::Signal(signal) => {
                ptrace::interrupt(self.tid)?;
                Ok(Step::Run(signal))
            }
            Wait::Nothing => Ok(Step::Run(0)),
        })
    }

    fn wait_a_little(&self, patience: Patience, begun: Instant, since: Instant) -> Result<(), TraceError> {
        let waited = begun.elapsed();
        if since.elapsed() > patience.limit || waited > patience.limit * IN_ALL {
            return Err(TraceError::Stuck { tid: self.tid });
        }
        if patience.look_after.is_some_and(|after| waited > after) && self.is_dead() {
            return Err(TraceError::Died { tid: self.tid });
        }
        if since.elapsed() < patience.yield_for {
            std::thread::yield_now();
        } else {
            pause(since);
        }
        Ok(())
    }

    fn is_dead(&self) -> bool {
        procfs::stat_fields(self.process, self.tid)
            .map_or(true, |fields| fields.first().is_none_or(|state| state == "Z" || state == "X"))
    }

    /// Whether the signal of the stop that the thread is in was sent by its process with tgkill(2): the marker.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn has_sent_the_signal(&self) -> Result<bool, TraceError> {
        let info = ptrace::signal_info(self.tid)?;
        let word = |at: usize| i32::from_le_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        Ok(word(8) == libc::SI_TKILL && word(16) == self.inner.0)
    }

    /// Id of the thread or process that this one has just created, at the event stop of that.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn created(&self) -> Result<i32, TraceError> {
        Ok(i32::try_from(ptrace::event_message(self.tid)?).unwrap_or(0))
    }

    /// Writes a table of calls.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn write_table(&self, at: u64, table: &[u8]) -> io::Result<()> {
        procmem::write(self.tid, at, table)
    }

    /// The results of so many rows of a table.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn results(&self, table: u64, count: usize) -> io::Result<Vec<i64>> {
        let mut raw = vec![0_u8; count * ROW_LEN];
        procmem::read(self.tid, table, &mut raw)?;
        Ok(raw.chunks_exact(ROW_LEN).map(Row::result_of).collect())
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
