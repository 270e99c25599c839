//! Running tables of system calls in the threads of the process that is being rebuilt.
//!
//! Unlike `inject::batch` there is nothing to return to: a table ends with exit_group, and between two tables a thread
//! stands at its marker, a signal that it sends to itself and that never arrives because the tracer takes it away.
//! Called by everything in this folder that runs in the agent. How it fails: the process ended, or a call that must
//! succeed did not; the error names the call's object.

use crate::error::TraceError;
use crate::inject::live_thread;
use crate::inject::stub::{self, ROW_LEN, Row};
use crate::rebuild::error::RebuildError;
use crate::stop::xstate::array;
use holdfast_image::record::{InjectArea, ProcessRecord};
use holdfast_sys::procmem;
use holdfast_sys::ptrace::{self, Registers, Wait};
use std::io;
use std::time::{Duration, Instant};

/// A table of ordinary calls is done in milliseconds; a file system that hangs is not waited for longer than this.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes of a call's buffers are aligned to this.
const ALIGN: usize = 16;

/// Where the stub, its table and the buffers of its calls lie.
#[derive(Clone, Copy, Debug)]
pub struct Workplace {
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

impl Workplace {
    /// In the area that libholdfast keeps in the program: as `inject::batch` lays it out.
    pub fn in_area(area: &InjectArea) -> Workplace {
        Workplace {
            code: area.code.0,
            table: area.scratch.0,
            table_len: usize::try_from(live_thread::BUFFERS).unwrap_or(0),
            buffers: area.scratch.0 + live_thread::BUFFERS,
            buffers_len: usize::try_from(live_thread::FRAME - live_thread::BUFFERS).unwrap_or(0),
        }
    }
}

/// A thread of the new process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// Its id as the agent sees it.
    pub tid: i32,
    /// Its id as it sees it itself.
    pub inner: i32,
}

/// What all tables have in common.
#[derive(Clone, Debug)]
pub struct Hand {
    /// Process id as the process sees it itself.
    pub inner_pid: i32,
    /// Registers to start from: segments and flags of a fresh program.
    template: Registers,
    /// The marker signal.
    marker: i32,
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

impl Hand {
    /// For a process that stands at its exec.
    ///
    /// # Errors
    /// The process is gone.
    pub fn new(record: &ProcessRecord, leader: Task) -> Result<Hand, RebuildError> {
        let template = ptrace::registers(leader.tid).map_err(TraceError::from)?;
        let hand = Hand { inner_pid: leader.inner, template, marker: choose_marker(record)? };
        hand.prepare(leader)?;
        Ok(hand)
    }

    /// Blocks all signals but the marker in a thread that stands.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn prepare(&self, task: Task) -> Result<(), RebuildError> {
        ptrace::set_signal_mask(task.tid, !(1 << (self.marker - 1))).map_err(TraceError::from)?;
        Ok(())
    }

    /// Leaves one more signal unblocked until the next [`Hand::prepare`]: it is taken away when it comes.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn hear(&self, task: Task, signal: i32) -> Result<(), RebuildError> {
        let heard = 1 << (self.marker - 1) | 1 << (signal - 1);
        ptrace::set_signal_mask(task.tid, !heard).map_err(TraceError::from)?;
        Ok(())
    }

    /// Runs one table; returns the results, and appends the ids of threads that were created to `born`.
    fn run(
        &self,
        place: &Workplace,
        task: Task,
        rows: &[Row],
        born: &mut Vec<i32>,
    ) -> Result<Vec<i64>, RebuildError> {
        let io = RebuildError::io("writing a table of calls");
        let mut table = stub::table(rows, self.inner_pid, task.inner, self.marker);
        // Where rt_sigreturn would be asked for there is no frame: end instead.
        table.truncate(table.len() - stub::END.len());
        table.extend(Row::new(libc::SYS_exit_group, &[127]).to_bytes());
        table.extend(stub::END);
        procmem::write(task.tid, place.table, &table).map_err(io)?;
        let mut regs = self.template;
        regs.rip = place.code;
        regs.rbx = place.table;
        regs.rsp = place.buffers + place.buffers_len as u64;
        regs.orig_rax = u64::MAX;
        regs.eflags = 0x202;
        ptrace::set_registers(task.tid, &regs).map_err(TraceError::from)?;
        ptrace::cont(task.tid, 0).map_err(TraceError::from)?;
        self.wait_for_marker(task, born)?;
        let mut raw = vec![0_u8; rows.len() * ROW_LEN];
        procmem::read(task.tid, place.table, &mut raw)
            .map_err(RebuildError::io("reading the results of a table of calls"))?;
        Ok(raw.chunks_exact(ROW_LEN).map(|row| i64::from_le_bytes(array(row, 56))).collect())
    }

    fn wait_for_marker(&self, task: Task, born: &mut Vec<i32>) -> Result<(), RebuildError> {
        let begun = Instant::now();
        loop {
            match ptrace::wait(task.tid, false).map_err(TraceError::from)? {
                Wait::Nothing if begun.elapsed() > LIMIT => {
                    return Err(TraceError::Stuck { tid: task.tid }.into());
                }
                Wait::Nothing => {
                    live_thread::pause(begun);
                    continue;
                }
                Wait::Signal(signal) if signal == self.marker => {
                    let info = ptrace::signal_info(task.tid).map_err(TraceError::from)?;
                    let word =
                        |at: usize| i32::from_le_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
                    if word(8) == libc::SI_TKILL && word(16) == self.inner_pid {
                        return Ok(());
                    }
                }
                Wait::Event(libc::PTRACE_EVENT_CLONE) => {
                    let child = ptrace::event_message(task.tid).map_err(TraceError::from)?;
                    let child = i32::try_from(child).unwrap_or(0);
                    wait_for_birth(child)?;
                    born.push(child);
                }
                Wait::Exited(status) => return Err(ended(status)),
                // Group stops and late event stops. SIGSTOP cannot be blocked; it would stop what does not exist yet.
                _ => {}
            }
            ptrace::cont(task.tid, 0).map_err(TraceError::from)?;
        }
    }
}

/// Waits for the first stop of a thread that was just created.
fn wait_for_birth(tid: i32) -> Result<(), RebuildError> {
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

/// Calls that are collected and run in as few tables as fit.
#[derive(Debug)]
pub struct Batch<'a> {
    hand: &'a Hand,
    place: Workplace,
    task: Task,
    rows: Vec<Row>,
    needs: Vec<Need>,
    data: Vec<u8>,
    results: Vec<i64>,
    born: Vec<i32>,
}

impl<'a> Batch<'a> {
    /// An empty one.
    pub fn new(hand: &'a Hand, place: Workplace, task: Task) -> Batch<'a> {
        Batch {
            hand,
            place,
            task,
            rows: Vec::new(),
            needs: Vec::new(),
            data: Vec::new(),
            results: Vec::new(),
            born: Vec::new(),
        }
    }

    /// Makes room for the next call with `data` bytes of arguments in memory; call it before [`Batch::data`].
    ///
    /// # Errors
    /// A call that was collected before fails.
    pub fn reserve(&mut self, data: usize) -> Result<(), RebuildError> {
        let rows_left = self.place.table_len / ROW_LEN - 3 - self.rows.len();
        let data_left = self.place.buffers_len - self.data.len();
        if rows_left < 4 || data_left < data + 4 * ALIGN {
            self.flush()?;
        }
        Ok(())
    }

    /// Puts bytes where calls can point to; returns their address. They stay until the table has been run.
    pub fn data(&mut self, bytes: &[u8]) -> u64 {
        let address = self.place.buffers + self.data.len() as u64;
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
            procmem::write(self.task.tid, self.place.buffers, &self.data)
                .map_err(RebuildError::io("writing arguments of calls"))?;
        }
        let results = self.hand.run(&self.place, self.task, &self.rows, &mut self.born)?;
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
        Ok((self.results, self.born))
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
