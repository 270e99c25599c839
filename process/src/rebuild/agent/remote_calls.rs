//! Running tables of system calls in the threads of the process that is being rebuilt.
//!
//! Unlike with [`live_thread`] there is nothing to return to: a table ends with exit_group, and between two tables
//! a thread is stopped at its marker, a signal that it sends to itself and that never arrives because the tracer
//! takes it away. Called by everything in this folder that runs in the agent. How it fails: the process ended, or a
//! call that must succeed did not; the error names the call's object.

use crate::error::TraceError;
use crate::inject::live_thread;
use crate::inject::remote_thread::{Patience, RemoteThread, Step, StubEntry};
use crate::inject::stub::{self, ROW_LEN, Row};
use crate::rebuild::error::RebuildError;
use holdfast_image::record::{InjectArea, ProcessRecord};
use holdfast_sys::procmem;
use holdfast_sys::ptrace::{self, Registers, Wait};
use std::io;
use std::time::Duration;

/// A table of ordinary calls is done in milliseconds; a file system that hangs is not waited for longer than this.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of a call's buffers are aligned to this.
const ALIGN: usize = 16;

/// Where the stub, its table and the buffers of its calls lie.
#[derive(Clone, Copy, Debug)]
pub struct CallArea {
    /// The stub.
    pub code: u64,
    /// The table.
    pub table: u64,
    /// Its length, bytes.
    pub table_len: usize,
    /// Buffers.
    pub buffers: u64,
    /// Their length, bytes.
    pub buffers_len: usize,
}

impl CallArea {
    /// In the area that libholdfast keeps in the program: as [`live_thread`] lays it out.
    pub fn of(area: &InjectArea) -> CallArea {
        CallArea {
            code: area.code.0,
            table: area.scratch.0,
            table_len: usize::try_from(live_thread::BUFFERS).unwrap_or(0),
            buffers: area.scratch.0 + live_thread::BUFFERS,
            buffers_len: usize::try_from(live_thread::FRAME - live_thread::BUFFERS).unwrap_or(0),
        }
    }
}

/// A signal that nothing pending in the record could be mistaken for.
fn choose_marker(record: &ProcessRecord) -> Result<i32, RebuildError> {
    let number = |info: &[u8]| i32::from_le_bytes([info[0], info[1], info[2], info[3]]);
    let pending: Vec<i32> = record
        .threads
        .iter()
        .flat_map(|thread| &thread.pending)
        .chain(&record.signals.pending)
        .map(|info| number(&info.0))
        .collect();
    // The process is traced, so every signal but SIGKILL is a stop before it is anything else.
    [libc::SIGURG, libc::SIGWINCH, libc::SIGCHLD, libc::SIGUSR1, libc::SIGUSR2, libc::SIGIO]
        .into_iter()
        .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
        .find(|signal| !pending.contains(signal))
        .ok_or_else(|| RebuildError::Image("every signal is pending in the program".into()))
}

/// A thread of the new process, and how it makes calls.
#[derive(Clone, Copy, Debug)]
pub struct SeedThread {
    /// Which.
    pub remote: RemoteThread,
    /// Registers to start from: segments and flags of a fresh program.
    registers: Registers,
    /// The marker signal.
    marker: i32,
    area: CallArea,
}

impl SeedThread {
    /// Those to start from.
    pub fn registers(&self) -> Registers {
        self.registers
    }

    /// The only thread of a process that is stopped at its exec; `pid`, `inner`: its ids as the agent and it itself
    /// see them.
    ///
    /// # Errors
    /// The process is gone.
    pub fn new(
        record: &ProcessRecord,
        (pid, inner): (i32, i32),
        area: CallArea,
    ) -> Result<SeedThread, RebuildError> {
        let mut registers = ptrace::registers(pid).map_err(TraceError::from)?;
        registers.eflags = 0x202;
        let remote = RemoteThread { process: pid, tid: pid, inner: (inner, inner) };
        let thread = SeedThread { remote, registers, marker: choose_marker(record)?, area };
        thread.block_signals()?;
        Ok(thread)
    }

    /// The same thread with its tables elsewhere.
    pub fn with_area(self, area: CallArea) -> SeedThread {
        SeedThread { area, ..self }
    }

    /// Another thread of the same process, which was just created.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn sibling(self, tid: i32, inner: i32) -> Result<SeedThread, RebuildError> {
        let thread = self.beside(tid, inner);
        thread.block_signals()?;
        Ok(thread)
    }

    /// Another thread of the same process, before its signals are blocked.
    pub fn beside(self, tid: i32, inner: i32) -> SeedThread {
        let remote = RemoteThread { tid, inner: (self.remote.inner.0, inner), ..self.remote };
        SeedThread { remote, ..self }
    }

    /// Where its stub and tables are.
    pub fn area(&self) -> CallArea {
        self.area
    }

    /// An empty table.
    pub fn batch(self) -> Batch {
        Batch {
            thread: self,
            rows: Vec::new(),
            needs: Vec::new(),
            data: Vec::new(),
            results: Vec::new(),
            created: Vec::new(),
        }
    }

    /// Blocks all signals but the marker, while the thread is stopped.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn block_signals(&self) -> Result<(), RebuildError> {
        self.block_all_but(1 << (self.marker - 1))
    }

    /// Leaves one more signal unblocked until the next [`SeedThread::block_signals`]: it is taken away when it comes.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn discard_signal(&self, signal: i32) -> Result<(), RebuildError> {
        self.block_all_but(1 << (self.marker - 1) | 1 << (signal - 1))
    }

    fn block_all_but(&self, signals: u64) -> Result<(), RebuildError> {
        Ok(ptrace::set_signal_mask(self.remote.tid, !signals).map_err(TraceError::from)?)
    }

    /// Runs one table; returns the results, and appends the ids of threads that were created.
    fn run(&self, rows: &[Row], created: &mut Vec<i32>) -> Result<Vec<i64>, RebuildError> {
        let (inner_pid, inner_tid) = self.remote.inner;
        let mut table = stub::table(rows, inner_pid, inner_tid, self.marker);
        // Where rt_sigreturn would be asked for there is no frame: end instead.
        table.truncate(table.len() - stub::END.len());
        table.extend(Row::new(libc::SYS_exit_group, &[127]).to_bytes());
        table.extend(stub::END);
        self.remote
            .write_table(self.area.table, &table)
            .map_err(RebuildError::io("writing a table of calls"))?;
        let CallArea { code, table, buffers, buffers_len, .. } = self.area;
        let entry = StubEntry { code, table, stack: buffers + buffers_len as u64 };
        self.remote.enter_stub(&self.registers, entry).map_err(TraceError::from)?;
        self.remote.go_on(Step::Run(0)).map_err(TraceError::from)?;
        self.wait_for_marker(created)?;
        self.remote
            .results(table, rows.len())
            .map_err(RebuildError::io("reading the results of a table of calls"))
    }

    /// Makes one call after which no other may be allowed, with `data` in the buffers; its result. The thread is
    /// stopped at its end.
    ///
    /// # Errors
    /// The process ended.
    pub fn run_and_stop(&self, row: Row, data: &[u8]) -> Result<i64, RebuildError> {
        let CallArea { code, table, buffers, buffers_len, .. } = self.area;
        if data.len() > buffers_len {
            return Err(RebuildError::Image(format!("a call needs {} bytes of arguments", data.len())));
        }
        procmem::write(self.remote.tid, buffers, data)
            .map_err(RebuildError::io("writing arguments of a call"))?;
        let (inner_pid, inner_tid) = self.remote.inner;
        let rows = stub::table(&[row], inner_pid, inner_tid, self.marker);
        self.remote.write_table(table, &rows).map_err(RebuildError::io("writing a table of calls"))?;
        let entry = StubEntry { code, table, stack: buffers + buffers_len as u64 };
        self.remote.enter_stub(&self.registers, entry).map_err(TraceError::from)?;
        self.remote.go_on(Step::ToCall(0)).map_err(TraceError::from)?;
        // At its beginning, and at its end. There registers of another call may not be given to it: it is
        // interrupted, and stops once more before it executes anything (as in `inject::live_thread`).
        let mut stops = 0;
        let patience = Patience { limit: LIMIT, look_after: None, yield_for: Duration::ZERO };
        self.remote.run_until(patience, |stop| match stop {
            Wait::Syscall if stops == 0 => {
                stops = 1;
                Ok(Step::ToCall(0))
            }
            Wait::Syscall => {
                stops = 2;
                ptrace::interrupt(self.remote.tid).map_err(TraceError::from)?;
                Ok(Step::Run(0))
            }
            Wait::Interrupted | Wait::GroupStop(_) if stops == 2 => Ok(Step::Done),
            Wait::Exited(status) => Err(ended(status)),
            _ if stops == 2 => Ok(Step::Run(0)),
            _ => Ok(Step::ToCall(0)),
        })?;
        Ok(ptrace::registers(self.remote.tid).map_err(TraceError::from)?.rax.cast_signed())
    }

    fn wait_for_marker(&self, created: &mut Vec<i32>) -> Result<(), RebuildError> {
        let patience = Patience { limit: LIMIT, look_after: None, yield_for: Duration::ZERO };
        self.remote.run_until(patience, |stop| match stop {
            Wait::Signal(signal) if signal == self.marker && self.remote.has_sent_the_signal()? => {
                Ok(Step::Done)
            }
            Wait::Event(libc::PTRACE_EVENT_CLONE) => {
                let child = self.remote.created()?;
                wait_for_first_stop(child)?;
                created.push(child);
                Ok(Step::Run(0))
            }
            Wait::Exited(status) => Err(ended(status)),
            // Group stops and late event stops. SIGSTOP cannot be blocked; it would stop what does not exist yet.
            _ => Ok(Step::Run(0)),
        })
    }
}

/// Waits for the first stop of a thread that was just created.
fn wait_for_first_stop(tid: i32) -> Result<(), RebuildError> {
    match ptrace::wait(tid, true).map_err(TraceError::from)? {
        Wait::Exited(status) => Err(ended(status)),
        _ => Ok(()),
    }
}

/// How a process ended, in words.
pub fn ended(status: i32) -> RebuildError {
    let how = if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit status {}", libc::WEXITSTATUS(status))
    };
    RebuildError::Ended { how }
}

/// Whether a call of a table must succeed, and what it is called in an error.
#[derive(Clone, Debug)]
pub enum Need {
    /// Failure ends the restart: what the call was for, and on which address or number.
    Must(&'static str, u64),
    /// The same, on an object with a name.
    MustOn(&'static str, String),
    /// Failure is accepted.
    May,
}

/// Calls that are collected and run by one thread in as few tables as fit.
#[derive(Debug)]
pub struct Batch {
    thread: SeedThread,
    rows: Vec<Row>,
    needs: Vec<Need>,
    data: Vec<u8>,
    results: Vec<i64>,
    created: Vec<i32>,
}

impl Batch {
    /// Reserves space for the next call with `data` bytes of arguments in memory; call it before [`Batch::data`].
    ///
    /// # Errors
    /// A call that was collected before fails.
    pub fn reserve(&mut self, data: usize) -> Result<(), RebuildError> {
        let rows_left = self.thread.area.table_len / ROW_LEN - 3 - self.rows.len();
        let data_left = self.thread.area.buffers_len - self.data.len();
        if rows_left < 4 || data_left < data + 4 * ALIGN {
            self.flush()?;
        }
        Ok(())
    }

    /// Puts bytes where calls can point to; returns their address. They stay until the table has been run.
    pub fn data(&mut self, bytes: &[u8]) -> u64 {
        let address = self.thread.area.buffers + self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.data.resize(self.data.len().next_multiple_of(ALIGN), 0);
        address
    }

    /// Adds a call.
    pub fn row(&mut self, row: Row, need: Need) {
        self.rows.push(row);
        self.needs.push(need);
    }

    /// Adds a call without arguments in memory.
    ///
    /// # Errors
    /// As [`Batch::reserve`].
    pub fn call(&mut self, number: libc::c_long, args: &[u64], need: Need) -> Result<(), RebuildError> {
        self.reserve(0)?;
        self.row(Row::new(number, args), need);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), RebuildError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        if !self.data.is_empty() {
            procmem::write(self.thread.remote.tid, self.thread.area.buffers, &self.data)
                .map_err(RebuildError::io("writing arguments of calls"))?;
        }
        let results = self.thread.run(&self.rows, &mut self.created)?;
        for (result, need) in results.iter().zip(&self.needs) {
            check(*result, need)?;
        }
        self.results.extend(results);
        self.rows.clear();
        self.needs.clear();
        self.data.clear();
        Ok(())
    }

    /// Runs what is left; returns the results of all calls, and the ids of the threads that were created.
    ///
    /// # Errors
    /// A call that must succeed did not, or the process ended.
    pub fn finish(mut self) -> Result<(Vec<i64>, Vec<i32>), RebuildError> {
        self.flush()?;
        Ok((self.results, self.created))
    }
}

fn check(result: i64, need: &Need) -> Result<(), RebuildError> {
    if !(-4095..0).contains(&result) {
        return Ok(());
    }
    let what = match need {
        Need::May => return Ok(()),
        Need::Must(what, object) => format!("{what} {object:#x}"),
        Need::MustOn(what, name) => format!("{what} {name}"),
    };
    let source = io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0));
    Err(RebuildError::Call { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_is_named() {
        assert!(check(0, &Need::Must("map", 1)).is_ok());
        assert!(check(-2, &Need::May).is_ok());
        assert!(check(i64::MIN, &Need::Must("map", 1)).is_ok());
        let error = check(-12, &Need::Must("map memory at", 0x7000)).err();
        let text = error.map(|e| e.to_string()).unwrap_or_default();
        assert!(text.contains("map memory at 0x7000") && text.contains("Cannot allocate"), "{text}");
    }
}
