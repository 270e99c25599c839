//! The frozen copy: a clone of the program's memory that never runs an instruction of the program.
//!
//! Made by way of an intermediate clone, so that the program's own waits, signals and parent notice nothing
//! (docs/stop.md, B.2). The copy belongs to the tracer: EXITKILL ends it with the agent, and between its birth and
//! EXITKILL the stub's child branch does (exit_group).
//!
//! Invariants: one copy per cut; all ptrace calls on it come from the tracer thread; others may read its memory.
//! Whatever fails, neither the copy nor the child on the way to it lives on ([`Born`]), and the thread is put back.

use crate::error::TraceError;
use crate::inject::born::Born;
use crate::inject::live_thread::{FRAME, LiveThread};
use crate::inject::remote_thread::{Patience, RemoteThread, Step, StubEntry};
use crate::inject::stub::{self, LEAVE_CHILD, PREVIOUS, Row};
use holdfast_image::PAGE_SIZE;
use holdfast_image::pages::PageRun;
use holdfast_image::record::InjectArea;
use holdfast_sys::ptrace::{self, Registers, Wait};
use holdfast_sys::{attributes, fault, procfs, procmem};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TRACE_CLONE: i32 = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE;
/// Second table, for the intermediate child, which shares the program's memory.
const CHILD_TABLE: u64 = 128 * 1024;
const LIMIT: Duration = Duration::from_secs(10);
const PATIENCE: Patience = Patience { limit: LIMIT, look_after: None, yield_for: Duration::ZERO };
/// The signal that tells that a table was worked through.
const MARKER: i32 = libc::SIGURG;
/// All descriptors, of a table of its own: CLOSE_RANGE_UNSHARE (close_range(2)).
const CLOSE_ALL: [u64; 3] = [0, u32::MAX as u64, 2];
/// Ranges that can be kept out of a copy: two rows each in one table.
pub const KEEP_OUT_MAX: usize = 400;
/// Ranges released per batch.
const RELEASE_ROWS: usize = 256;

/// A frozen copy, as the tracer thread holds it. Dropped, it ends.
#[derive(Debug)]
pub struct Copy {
    /// Its pid as the agent sees it.
    pub pid: i32,
    inner: i32,
    area: InjectArea,
    regs: Registers,
    /// Calls in it have not come to their end: it may be working through their table, which must stay as it is.
    is_stuck: AtomicBool,
    _born: Born,
}

/// Makes the copy from a stopped thread, without the ranges `keep_out`. The thread is stopped at its marker afterwards.
///
/// The ranges are marked and unmarked (MADV_DONTFORK) in the table that holds the clone: should the agent die
/// meanwhile, the thread works through it to its end, and a later fork of the program has all its memory.
///
/// # Errors
/// The kernel refused a clone (EAGAIN: process limit; ENOMEM; EPERM: seccomp), or a thread died. Nothing is left over.
pub fn freeze(host: &LiveThread, area: &InjectArea, keep_out: &[PageRun]) -> Result<Copy, TraceError> {
    allow(host)?;
    ptrace::set_options(host.thread.tid, host.permission.options(TRACE_CLONE))?;
    let flags = (libc::CLONE_VM | libc::CLONE_FILES) as u64;
    let wall = u64::from(libc::__WALL.cast_unsigned());
    let keep_out = keep_out.get(..KEEP_OUT_MAX).unwrap_or(keep_out);
    let advise = |advice: i32| {
        let advice = u64::from(advice.cast_unsigned());
        let row = move |run: &PageRun| Row::new(libc::SYS_madvise, &[run.start.0, run.pages.bytes(), advice]);
        keep_out.iter().map(row).collect::<Vec<Row>>()
    };
    let mut rows = advise(libc::MADV_DONTFORK);
    rows.push(Row::new(libc::SYS_clone, &[flags]).with(LEAVE_CHILD));
    rows.push(Row::new(libc::SYS_wait4, &[0, 0, wall, 0]).with(PREVIOUS));
    rows.extend(advise(libc::MADV_DOFORK));
    let mut made: Option<Result<Born, TraceError>> = None;
    let results = host.run(area, &rows, &mut |child| {
        made = Some(by_way_of(child, host, area));
        Ok(())
    })?;
    let born = match made {
        Some(result) => result?,
        None => return Err(call_failed("clone", results.get(keep_out.len()).copied().unwrap_or(0))),
    };
    if let Some(failed) = results.iter().skip(keep_out.len() + 2).find(|&&result| result < 0) {
        tracing::error!("a range of the program stays out of its children: madvise(MADV_DOFORK): {failed}");
    }
    let pid = born.0;
    // The program is the last to die of memory.
    if let Err(error) = attributes::end_first(pid) {
        tracing::warn!("the kernel may kill another process before the frozen copy: oom_score_adj: {error}");
    }
    fault::point("clone-done");
    fails("clone-done", pid)?;
    let inner = procfs::Status::read(pid, pid)?.innermost("NSpid").unwrap_or(pid);
    // It never runs, so it notices no signal.
    ptrace::set_signal_mask(pid, !(1 << (MARKER - 1)))?;
    let regs = ptrace::registers(pid)?;
    Ok(Copy { pid, inner, area: *area, regs, is_stuck: AtomicBool::new(false), _born: born })
}

/// Whether filters over the thread, which are over its children, too, allow all that is called on the way. What is not
/// known yet (ids, addresses) counts as open.
///
/// # Errors
/// They do not.
pub fn allow(host: &LiveThread) -> Result<(), TraceError> {
    let number = |number: i32| u64::from(number.cast_unsigned());
    let madvise = |advice: i32| Row::new(libc::SYS_madvise, &[0, PAGE_SIZE, number(advice)]).with(PREVIOUS);
    host.may_make(&[
        Row::new(libc::SYS_clone, &[number(libc::CLONE_VM | libc::CLONE_FILES)]),
        Row::new(libc::SYS_clone, &[number(libc::CLONE_FILES)]),
        Row::new(libc::SYS_wait4, &[0, 0, number(libc::__WALL), 0]).with(PREVIOUS),
        Row::new(libc::SYS_exit_group, &[0]),
        Row::new(libc::SYS_close_range, &CLOSE_ALL),
        Row::new(libc::SYS_setsid, &[]),
        Row::new(libc::SYS_tgkill, &[0, 0, number(MARKER)]).with(PREVIOUS),
        madvise(libc::MADV_DONTFORK),
        madvise(libc::MADV_DOFORK),
        madvise(libc::MADV_DONTNEED),
    ])
}

/// For the tests: here it does not go on.
fn fails(name: &str, tid: i32) -> Result<(), TraceError> {
    if fault::fails(name) { Err(TraceError::Stuck { tid }) } else { Ok(()) }
}

fn call_failed(call: &str, result: i64) -> TraceError {
    let errno = i32::try_from(-result).unwrap_or(libc::EIO);
    TraceError::Io(io::Error::other(format!(
        "{call} in the program: {}",
        io::Error::from_raw_os_error(errno)
    )))
}

/// Lets the intermediate child make the copy and end.
fn by_way_of(child: i32, host: &LiveThread, area: &InjectArea) -> Result<Born, TraceError> {
    let child = Born(child);
    let copy = make(child.0, host, area);
    if copy.is_err() {
        abandon(child.0);
    }
    copy
}

/// Stops the child before it is killed: a clone that it is in the middle of comes to nothing (kernel/fork.c,
/// copy_process: signal_pending), or is told of, and killed, too.
fn abandon(child: i32) {
    let thread = remote(child, child);
    let _ = ptrace::interrupt(child);
    // One that runs is not let run.
    let _ = thread.go_on(Step::Run(0));
    let stopped = thread.run_until(PATIENCE, |stop| match stop {
        Wait::Interrupted | Wait::GroupStop(_) | Wait::Exited(_) => Ok(Step::Done),
        Wait::Event(libc::PTRACE_EVENT_CLONE) => {
            drop(Born(thread.created()?));
            ptrace::interrupt(child)?;
            Ok(Step::Run(0))
        }
        _ => Ok::<Step, TraceError>(Step::Run(0)),
    });
    if let Err(error) = stopped {
        tracing::warn!(pid = child, %error, "stopping a child that was to make the frozen copy");
    }
}

fn make(child: i32, host: &LiveThread, area: &InjectArea) -> Result<Born, TraceError> {
    wait_event_stop(child)?;
    fails("clone-child", child)?;
    let table_at = area.scratch.0 + CHILD_TABLE;
    let mut table: Vec<u8> = Vec::new();
    let flags = libc::CLONE_FILES as u64;
    table.extend(Row::new(libc::SYS_clone, &[flags]).with(LEAVE_CHILD).to_bytes());
    table.extend(Row::new(libc::SYS_exit_group, &[0]).to_bytes());
    procmem::write(host.thread.tid, table_at, &table)?;
    let thread = remote(child, child);
    let regs = ptrace::registers(child)?;
    thread.enter_stub(&regs, StubEntry { code: area.code.0, table: table_at, stack: regs.rsp })?;
    thread.go_on(Step::Run(0))?;
    let mut copy: Option<Born> = None;
    thread.run_until(PATIENCE, |stop| match stop {
        Wait::Event(libc::PTRACE_EVENT_CLONE) => {
            let born = Born(thread.created()?);
            fault::point("clone-born");
            fails("clone-born", born.0)?;
            wait_event_stop(born.0)?;
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
            ptrace::set_options(born.0, host.permission.options(options))?;
            fault::point("copy-owned");
            fails("clone-owned", born.0)?;
            copy = Some(born);
            Ok(Step::Run(0))
        }
        Wait::Exited(_) => Ok(Step::Done),
        _ => Ok::<Step, TraceError>(Step::Run(0)),
    })?;
    copy.ok_or_else(|| {
        let mut row = [0_u8; stub::ROW_LEN];
        let _ = procmem::read(host.thread.tid, table_at, &mut row);
        call_failed("clone", i64::from_le_bytes(crate::stop::xstate::array(&row, 56)))
    })
}

/// Waits for the event stop in which a new tracee begins.
fn wait_event_stop(pid: i32) -> Result<(), TraceError> {
    remote(pid, pid).run_until(PATIENCE, |stop| match stop {
        Wait::Interrupted | Wait::GroupStop(_) => Ok(Step::Done),
        Wait::Exited(_) => Err(TraceError::Died { tid: pid }),
        _ => Ok(Step::Run(0)),
    })
}

/// The only thread of a process; `inner`: its id as it sees it itself.
fn remote(pid: i32, inner: i32) -> RemoteThread {
    RemoteThread { process: pid, tid: pid, inner: (inner, inner) }
}

impl Copy {
    /// Runs a table in the copy. After a failure: none any more.
    fn run(&self, rows: &[Row]) -> Result<(), TraceError> {
        if self.is_stuck.swap(true, Ordering::Relaxed) {
            return Err(TraceError::Stuck { tid: self.pid });
        }
        fails("copy-call", self.pid)?;
        self.work_through(rows)?;
        self.is_stuck.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn work_through(&self, rows: &[Row]) -> Result<(), TraceError> {
        let mut table = stub::table(rows, self.inner, self.inner, MARKER);
        // Nothing to return to: behind the marker the copy would end.
        table.truncate(table.len() - stub::END.len());
        table.extend(Row::new(libc::SYS_exit_group, &[0]).to_bytes());
        let thread = remote(self.pid, self.inner);
        thread.write_table(self.area.scratch.0, &table)?;
        let (code, table) = (self.area.code.0, self.area.scratch.0);
        thread.enter_stub(&self.regs, StubEntry { code, table, stack: table + FRAME })?;
        thread.go_on(Step::Run(0))?;
        thread.run_until(PATIENCE, |stop| match stop {
            Wait::Signal(MARKER) => Ok(Step::Done),
            Wait::Exited(_) => Err(TraceError::Died { tid: self.pid }),
            _ => Ok(Step::Run(0)),
        })
    }

    /// Gives up the program's file table and session: otherwise a pipe's reader sees no end of file, and Ctrl-C hits
    /// the copy.
    ///
    /// # Errors
    /// The copy died.
    pub fn detach_from_program(&self) -> Result<(), TraceError> {
        self.run(&[Row::new(libc::SYS_close_range, &CLOSE_ALL), Row::new(libc::SYS_setsid, &[])])
    }

    /// Drops pages that are stored: later writes of the program to them cost no copy.
    ///
    /// # Errors
    /// The copy died.
    pub fn release(&self, runs: &[PageRun]) -> Result<(), TraceError> {
        if self.is_stuck.load(Ordering::Relaxed) {
            return Ok(());
        }
        // The stub and its table are needed to the end.
        let area = &self.area;
        let own = |run: &PageRun| {
            let touches = |start: u64, len: u64| run.start.0 < start + len && start < run.end().0;
            touches(area.code.0, area.code_len) || touches(area.scratch.0, area.scratch_len)
        };
        let runs: Vec<PageRun> = runs.iter().filter(|run| !own(run)).copied().collect();
        for batch in runs.chunks(RELEASE_ROWS) {
            let advice = libc::MADV_DONTNEED as u64;
            let rows: Vec<Row> = batch
                .iter()
                .map(|run| Row::new(libc::SYS_madvise, &[run.start.0, run.pages.bytes(), advice]))
                .collect();
            self.run(&rows)?;
            fault::point("release");
        }
        Ok(())
    }
}
