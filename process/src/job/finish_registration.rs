//! Processes that job control has stopped while libholdfast was connecting to the agent, mostly to tell of a fork(2).
//!
//! As long as they stand they would never be done with it, and half a connection cannot be in an image. So such a
//! process is let run on, call by call, until it is; it stays stopped for all others to see: a tracer may let a
//! thread run in spite of a group stop, which is in force again when it is resumed (kernel/ptrace.c,
//! `__ptrace_unlink`), also by the death of the tracer. Nothing of the program itself runs: the last call of
//! libholdfast follows the end of its connection (`preload/src/agent.rs`).
//!
//! Called by `stopped_group` inside the stop, on the tracer thread. How it fails: the process is stopped as before, or
//! a little later, and [`area::own_descriptor`] says what is in the way.

use crate::inject::area;
use crate::inject::remote_thread::pause;
use crate::stop::interrupt::{self, Stopped};
use holdfast_image::record::InjectArea;
use holdfast_sys::procfs::Status;
use holdfast_sys::ptrace::{self, Wait};
use std::time::{Duration, Instant};

/// A connection takes some ten calls, each of which is two steps.
const STEPS: usize = 64;
/// How long it may take.
const LIMIT: Duration = Duration::from_millis(20);

/// Lets a stopped process finish what it has to say. Only if it has one thread: of several it cannot be told which it
/// is.
pub fn finish(pid: i32, area: &InjectArea, stopped: &mut Stopped) {
    if stopped.threads.len() != 1 {
        return;
    }
    let Some((&tid, held)) = stopped.threads.iter_mut().find(|(_, held)| held.stop_signal.is_some()) else {
        return;
    };
    if !area::is_connecting(tid, area) || has_signals(pid, tid) {
        return;
    }
    walk(tid, area);
    match interrupt::again(pid, tid) {
        Some(now) => *held = now,
        None => {
            tracing::warn!(pid, "a process that was resumed to finish its registration does not stop again")
        }
    }
}

/// Whether a signal would run a handler.
fn has_signals(pid: i32, tid: i32) -> bool {
    Status::read(pid, tid)
        .map_or(true, |status| (status.mask("SigPnd") | status.mask("ShdPnd")) & !status.mask("SigBlk") != 0)
}

/// From call to call until the connection is closed, or something comes in between. The thread runs then.
fn walk(tid: i32, area: &InjectArea) {
    let begun = Instant::now();
    let mut steps = 0;
    let mut go = ptrace::cont_to_call(tid, 0);
    while go.is_ok() {
        go = match ptrace::wait(tid, false) {
            Ok(Wait::Nothing) if begun.elapsed() < LIMIT => {
                pause(begun);
                continue;
            }
            // The first stop may be a second interrupt, which was sent to a thread that was stopped already.
            Ok(Wait::Syscall | Wait::Interrupted | Wait::GroupStop(_))
                if steps < STEPS && area::is_connecting(tid, area) =>
            {
                steps += 1;
                ptrace::cont_to_call(tid, 0)
            }
            Ok(last) => {
                let signal = if let Wait::Signal(signal) = last { signal } else { 0 };
                let _ = ptrace::interrupt(tid);
                let _ = ptrace::cont(tid, signal);
                return;
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_abi::SharedPage;
    use holdfast_image::Addr;
    use std::collections::BTreeMap;

    fn stopped(pid: i32) -> Stopped {
        ptrace::seize(pid, libc::PTRACE_O_TRACESYSGOOD).unwrap();
        Stopped { threads: BTreeMap::from([(pid, interrupt::again(pid, pid).unwrap())]) }
    }

    /// The page of shared variables is a part of its stack that nothing uses.
    #[test]
    fn only_who_is_connecting_runs_on() {
        let mut child = std::process::Command::new("sleep").arg("20").spawn().unwrap();
        let pid = child.id().cast_signed();
        ptrace::kill(pid, libc::SIGSTOP).unwrap();
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        let mut stopped = stopped(pid);
        assert_eq!(stopped.threads[&pid].stop_signal, Some(libc::SIGSTOP));
        let regs = ptrace::registers(pid).unwrap();
        let page = regs.rsp - 8192;
        let area = InjectArea { shared: Addr(page), ..InjectArea::default() };
        finish(pid, &area, &mut stopped);
        assert_eq!(ptrace::registers(pid).unwrap(), regs);
        // It "connects" for ever: after the limit it is stopped again, in its call.
        let memory = holdfast_sys::procmem::ForcedMemory::open(pid, pid).unwrap();
        memory.write(page + SharedPage::OWN_FD as u64, &SharedPage::OWN_FD_CHANGING.to_ne_bytes()).unwrap();
        finish(pid, &area, &mut stopped);
        assert_eq!(stopped.threads[&pid].stop_signal, Some(libc::SIGSTOP));
        assert!(ptrace::registers(pid).unwrap().orig_rax.cast_signed() >= 0);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
