//! The agent's half of a restart: takes over the new process at its exec, and lets the program go.
//!
//! Order (reference of the kernel's demands in each module): seize, exec, address space, pages, executable and break,
//! descriptors and handlers, threads, signals and timers, registers. Until the last step the process dies with the
//! agent (PTRACE_O_EXITKILL), and any error kills it: there is no half-restarted program.

use super::error::RebuildError;
use super::figures::RebuildFigures;
use super::fill::Plan;
use super::hand::{Hand, Task, Workplace, ended};
use super::place::Builder;
use super::report::{GO, Handover};
use super::seed::{self, Layout};
use super::{last, lazy, mirror, regular, tasks, tracker};
use crate::error::TraceError;
use crate::slots;
use crate::track::Tracking;
use holdfast_image::pages::PageProvider;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::fault;
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::ptrace::{self, Wait};
use holdfast_sys::{credentials, fd, poll, procfs};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// How the agent finishes a restart.
#[derive(Clone, Debug)]
pub struct FinishOptions {
    /// Map pages from the image where that is possible, instead of copying all of them first.
    pub lazy: bool,
    /// The agent's socket, told to the library in the program.
    pub socket_path: PathBuf,
    /// Where ends of files go that are cut off because they were written after the checkpoint.
    pub saved_dir: PathBuf,
}

/// A program that runs again.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// Its process id as the agent sees it.
    pub pid: i32,
    /// Restarts that it has behind it, this one included.
    pub restarts: u64,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
    /// Where the time went.
    pub figures: RebuildFigures,
    /// What is written from now on.
    pub tracking: Arc<Tracking>,
}

/// Kills the new process unless it was let go.
struct Victim {
    pid: i32,
    let_go: bool,
}

impl Drop for Victim {
    fn drop(&mut self) {
        if self.let_go {
            return;
        }
        let mut threads = procfs::tasks(self.pid).unwrap_or_default();
        // A tracer must take note of the end of each thread, the leader's last, or its parent never hears of it.
        threads.sort_by_key(|&tid| tid == self.pid);
        let _ = ptrace::kill(self.pid, libc::SIGKILL);
        for tid in threads {
            while let Ok(state) = ptrace::wait(tid, true) {
                if let Wait::Exited(_) = state {
                    break;
                }
            }
        }
    }
}

/// Takes over a process made by [`super::birth`] at the other end of `front` and makes the program of `record` of it.
/// Returns when the program runs. All of it on the calling thread, but for the copying of pages.
///
/// # Errors
/// Names what failed; the new process is dead then.
pub fn finish(
    record: &ProcessRecord,
    pages: &dyn PageProvider,
    front: OwnedFd,
    options: &FinishOptions,
) -> Result<Rebuilt, RebuildError> {
    let begun = Instant::now();
    record.check().map_err(RebuildError::Image)?;
    let layout = Layout::choose(record)?;
    // Without its page the library could not make up for the difference (see `lazy`).
    let map_lazily = options.lazy && record.inject.shared.0 != 0;
    let plan = Plan::new(record, pages.extents(), map_lazily)?;
    let (pid, handover) = meet(&front)?;
    let mut figures = RebuildFigures {
        files_ns: elapsed_ns(begun),
        copied_bytes: plan.copied_bytes(),
        mapped_bytes: plan.mapped_bytes(),
        mapped_runs: plan.mapped.len() as u64,
        ..RebuildFigures::default()
    };
    let phase = Instant::now();
    let leader = Task { tid: pid, inner: handover.inner_pid };
    let mut victim = Victim { pid, let_go: false };
    wait_for_exec(pid, &front)?;
    drop(front);
    let hand = Hand::new(record, leader)?;
    let memory =
        ForcedMemory::open(pid, pid).map_err(RebuildError::io("opening the memory of the new process"))?;
    seed::plant(&hand, leader, &layout, &memory)?;
    fault::point("seed-ready");
    let builder = Builder { hand: &hand, leader, layout, record };
    builder.build(&plan, pages)?;
    figures.map_ns = elapsed_ns(phase);

    let phase = Instant::now();
    let memory =
        ForcedMemory::open(pid, pid).map_err(RebuildError::io("opening the memory of the new process"))?;
    plan.carry_out(pages, pid, &memory)?;
    builder.protect(&plan)?;
    let tracking = tracker::make(&builder, pid, pages.extents());
    fault::point("seed-memory");
    figures.memory_ns = elapsed_ns(phase);

    let phase = Instant::now();
    let place = Workplace::in_area(&record.inject);
    tasks::write_stub(&memory, &place)?;
    let chosen = handover.ids_chosen;
    last::identity(&hand, place, leader, record, (layout.base, layout.end))?;
    mirror::reopen(&hand, place, leader, record)?;
    last::descriptors_and_signals(&hand, place, leader, record)?;
    let all = tasks::create(&hand, place, leader, record, chosen)?;
    fault::point("seed-threads");
    for (task, thread) in all.iter().zip(&record.threads) {
        tasks::equip(&hand, place, *task, thread, handover.drop_capabilities)?;
    }
    if !chosen {
        last::virtual_ids(&memory, record, &all)?;
    }
    lazy::tell(&memory, record, pid, &plan.mapped)?;
    let restarts = last::tell_library(&memory, record, &options.socket_path)?;
    last::pending_and_timers(&hand, place, leader, record)?;
    restore(record, &memory, &all)?;
    last::limits(pid, record);
    let notes = regular::put_back(&record.files, &options.saved_dir)?;
    fault::point("seed-let-go");
    let_go(record, &all)?;
    victim.let_go = true;
    figures.threads_ns = elapsed_ns(phase);
    figures.total_ns = elapsed_ns(begun);
    Ok(Rebuilt { pid, restarts, notes, figures, tracking: Arc::new(tracking) })
}

/// Waits until the new process has all its files; its id as seen here, and what it says of itself.
fn meet(front: &OwnedFd) -> Result<(i32, Handover), RebuildError> {
    let io = || RebuildError::io("waiting for the new process");
    credentials::expect(front.as_fd()).map_err(io())?;
    let mut buffer = [0_u8; 64];
    let (len, pid) = loop {
        if poll::readable(&[front.as_fd()], None).map_err(io())? == [true] {
            match credentials::receive(front.as_fd(), &mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => break other.map_err(io())?,
            }
        }
    };
    if len == 0 {
        return Err(RebuildError::Left("holdfast restart"));
    }
    let handover = Handover::from_bytes(&buffer[..len]).ok_or_else(|| {
        RebuildError::Image("holdfast restart and the agent are of different versions".into())
    })?;
    if pid <= 0 {
        return Err(RebuildError::Ids("the new process has no id in the agent's pid namespace".into()));
    }
    Ok((pid, handover))
}

/// Seizes the process and waits until it has executed the program's executable.
fn wait_for_exec(pid: i32, front: &OwnedFd) -> Result<(), RebuildError> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).map_err(TraceError::from)?;
    fault::point("seed-born");
    fd::send(front.as_fd(), GO, libc::MSG_NOSIGNAL)
        .map_err(RebuildError::io("telling the new process to go on"))?;
    loop {
        match ptrace::wait(pid, true).map_err(TraceError::from)? {
            Wait::Event(libc::PTRACE_EVENT_EXEC) => return Ok(()),
            Wait::Exited(status) => return Err(ended(status)),
            _ => ptrace::cont(pid, 0).map_err(TraceError::from)?,
        }
    }
}

/// Registers, states and masks of all threads, and what is left of timed waits.
fn restore(record: &ProcessRecord, memory: &ForcedMemory, all: &[Task]) -> Result<(), RebuildError> {
    for (task, thread) in all.iter().zip(&record.threads) {
        let regs = tasks::final_registers(memory, thread)?;
        tasks::restore(*task, thread, &regs)?;
        last::scheduling(task.tid, thread);
    }
    for wait in record.threads.iter().filter_map(|thread| thread.wait) {
        slots::rearm(memory, &record.inject, wait.slot, wait.remaining_ns)
            .map_err(RebuildError::io(format!("setting the rest of the wait of slot {}", wait.slot)))?;
    }
    Ok(())
}

/// Takes the options away (the program must not die with the agent) and lets all threads run.
fn let_go(record: &ProcessRecord, all: &[Task]) -> Result<(), RebuildError> {
    for task in all {
        ptrace::set_options(task.tid, 0).map_err(TraceError::from)?;
    }
    if record.signals.job_stopped
        && let Some(leader) = all.first()
    {
        ptrace::kill(leader.tid, libc::SIGSTOP).map_err(TraceError::from)?;
    }
    for (number, task) in all.iter().enumerate() {
        match ptrace::detach(task.tid, 0) {
            Ok(()) => {}
            // Those before it run already, and one of them has ended the program. Its parent hears of that when a tracer
            // has taken note of the end of each thread (ptrace(2), "Death under ptrace").
            Err(error) if number > 0 && error.raw_os_error() == Some(libc::ESRCH) => {
                while !matches!(ptrace::wait(task.tid, true), Ok(Wait::Exited(_)) | Err(_)) {}
            }
            Err(error) => return Err(TraceError::from(error).into()),
        }
    }
    Ok(())
}
