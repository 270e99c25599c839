//! What a program that has failed leaves: processes that go on without it.
//!
//! Called by what restarts it (`--restart-on-failure`), which the kernel makes the parent of whatever below it loses
//! its own (`PR_SET_CHILD_SUBREAPER`, prctl(2)). Invariant: only own children are ended, which were not waited for yet:
//! no number can have become another process's. Those that are of this program (agents, which end by themselves and may
//! be writing an image; other jobs' fronts) are left alone, and so is what is traced: an image is being made of it.
//! Fails by: what does not end, which the restart names.

use holdfast_sys::procfs::{self, Existence, Status};
use holdfast_sys::{attributes, children, ptrace};
use std::fs;
use std::os::unix::fs::MetadataExt;
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
        let own = children::children(std::process::id().cast_signed()).unwrap_or_default();
        let left: Vec<i32> = own.into_iter().filter(|pid| is_left(*pid)).collect();
        if left.is_empty() || begun.elapsed() > ENDING {
            return;
        }
        for pid in left {
            let _ = ptrace::kill(pid, libc::SIGKILL);
        }
        thread::sleep(PAUSE);
    }
}

fn is_left(pid: i32) -> bool {
    let program = |process: &str| {
        let file = fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((file.dev(), file.ino()))
    };
    let is_ours = program("self").is_some_and(|own| program(&pid.to_string()) == Some(own));
    let is_traced = || {
        Status::read(pid, pid).is_ok_and(|status| status.get("TracerPid").is_some_and(|it| it.trim() != "0"))
    };
    procfs::existence(pid) == Existence::Living && !is_ours && !is_traced()
}
