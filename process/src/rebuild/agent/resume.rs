//! The end of a restart: all processes run, or none is left.

use super::rebuild_process::ProcessBuilder;
use crate::error::TraceError;
use crate::rebuild::error::RebuildError;
use crate::stop::interrupt;
use holdfast_sys::fault;
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::ptrace::{self, Wait};
use std::time::{Duration, Instant};

/// Longest wait for threads that enter a call.
const ENTERING: Duration = Duration::from_secs(1);
/// Longest wait for main threads that end.
const ENDING: Duration = Duration::from_secs(1);

/// Kills the new processes unless they were resumed.
pub struct KillOnDrop(pub Vec<i32>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Process 1 of a pid namespace ends when all others there are taken note of (kernel/pid_namespace.c,
        // zap_pid_ns_processes).
        let is_init = |pid: &i32| {
            let status = procfs::Status::read(*pid, *pid);
            status.is_ok_and(|status| status.is_nested() && status.innermost("NSpid") == Some(1))
        };
        self.0.sort_by_key(is_init);
        for pid in &self.0 {
            let mut threads = procfs::tasks(*pid).unwrap_or_default();
            // A tracer must take note of the end of each thread, the leader's last, or its parent never hears of it.
            threads.sort_by_key(|tid| tid == pid);
            let _ = ptrace::kill(*pid, libc::SIGKILL);
            for tid in threads {
                while let Ok(state) = ptrace::wait(tid, true) {
                    if let Wait::Exited(_) = state {
                        break;
                    }
                }
            }
        }
    }
}

/// Lets main threads go that had ended, and waits until they have: the others are stopped still, and the program never
/// sees one of them. One that job control has stopped with its process ends when that goes on.
fn end_main_threads(processes: &[ProcessBuilder<'_>]) {
    let begun = Instant::now();
    for process in processes {
        let Some(tid) = process.ending() else { continue };
        // One that was killed meanwhile has ended, too.
        let _ = ptrace::detach(tid, 0);
        let stays = process.member.own.signals.job_stopped;
        while !stays && begun.elapsed() < ENDING && !has_ended(tid) {
            std::thread::yield_now();
        }
    }
}

fn has_ended(tid: i32) -> bool {
    Status::read(tid, tid).map_or(true, |status| status.has_ended())
}

/// Takes the options away (the program must not die with the agent) and resumes all threads, children before
/// parents; before them all those enter pause(2) that waited there. `resuming` is called before the first of them is:
/// from then on the program runs, should the agent die meanwhile, as the kernel resumes what a dead tracer has stopped.
pub fn resume_all(
    processes: &[ProcessBuilder<'_>],
    not_resumed: &mut KillOnDrop,
    resuming: &dyn Fn(),
) -> Result<(), RebuildError> {
    let all: Vec<i32> = processes.iter().rev().flat_map(ProcessBuilder::tids).collect();
    for tid in &all {
        ptrace::set_options(*tid, libc::PTRACE_O_TRACESYSGOOD).map_err(TraceError::from)?;
    }
    let running = processes.iter().filter(|process| !process.member.own.signals.job_stopped);
    let pauses = |tid: &i32| ptrace::registers(*tid).is_ok_and(|regs| interrupt::pauses(&regs));
    let pausing: Vec<i32> = running.flat_map(ProcessBuilder::tids).filter(pauses).collect();
    let signals = interrupt::enter_pauses(&pausing, ENTERING);
    resuming();
    fault::point("seed-resuming");
    end_main_threads(processes);
    let ended: Vec<i32> = processes.iter().filter_map(ProcessBuilder::ending).collect();
    for (number, tid) in all.iter().filter(|tid| !ended.contains(tid)).enumerate() {
        match ptrace::detach(*tid, signals.get(tid).copied().unwrap_or(0)) {
            Ok(()) => {}
            // Those before it run already, and one of them has ended this one. Its parent hears of that when a tracer
            // has taken note of the end of each thread (ptrace(2), "Death under ptrace").
            Err(error) if number > 0 && error.raw_os_error() == Some(libc::ESRCH) => {
                match ptrace::wait(*tid, true) {
                    Ok(Wait::Exited(_)) | Err(_) => {}
                    // It had no processor to enter its call in time.
                    Ok(Wait::Signal(signal)) => ptrace::detach(*tid, signal).map_err(TraceError::from)?,
                    Ok(_) => ptrace::detach(*tid, 0).map_err(TraceError::from)?,
                }
            }
            Err(error) => return Err(TraceError::from(error).into()),
        }
    }
    not_resumed.0.clear();
    Ok(())
}
