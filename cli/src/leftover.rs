//! What a program that has failed leaves: processes that go on without it.
//!
//! Called by what restarts it (`--restart-on-failure`), which the kernel makes the parent of whatever below it loses
//! its own (`PR_SET_CHILD_SUBREAPER`, prctl(2)). Invariant: only own children are ended, which were not waited for yet:
//! no number can have become another process's. Those that are of this program (agents, which end by themselves and may
//! be writing an image; other jobs' fronts) are left alone, but for those that programs run (`holdfast rsh`), and so is
//! what is traced: an image is being made of it. Fails by: what does not end, which the restart names.

use crate::entries::RSH;
use holdfast_sys::procfs::{self, Existence, Status};
use holdfast_sys::{attributes, children, ptrace};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// How long it is looked for more of them.
const ENDING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Ends them.
pub fn end() {
    let begun = Instant::now();
    loop {
        while matches!(attributes::wait_any_ended(), Ok(Some(_))) {}
        let own = children::all_children(&[std::process::id().cast_signed()], ENDING);
        let left: Vec<i32> = own.iter().flatten().copied().filter(|pid| is_left(*pid)).collect();
        if own.is_ok() && left.is_empty() || begun.elapsed() > ENDING {
            return;
        }
        for pid in left {
            let _ = ptrace::kill(pid, libc::SIGKILL);
        }
        thread::sleep(PAUSE);
    }
}

fn is_left(pid: i32) -> bool {
    let is_traced = || Status::read(pid, pid).is_ok_and(|status| status.tracer().is_some());
    let is_alone = || procfs::executes_own(pid) && !is_of_program(pid);
    procfs::existence(pid) == Existence::Living && !is_traced() && !is_alone()
}

/// Whether it is one of those of this program that a job runs: a command on another host waits for its client.
fn is_of_program(pid: i32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let called_so = words.next().is_some_and(|name| name.ends_with(RSH.as_bytes()));
    called_so || words.next().is_some_and(|word| [&b"rsh"[..], b"__rsh-server"].contains(&word))
}
