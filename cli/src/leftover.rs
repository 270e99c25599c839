//! What is left of a program that has failed: processes that go on without it, or whose front was killed.
//!
//! Called under `--restart-on-failure`, by the front and by what restarts it. Invariant: only processes that are of the
//! job are ended: those whose environments name its agent, and those below them. Fails by: what does not end, which the
//! restart names.

use holdfast_abi::environment::ENV_SOCKET;
use holdfast_sys::environment::{self, Environment};
use holdfast_sys::procfs::{self, Existence, Status};
use holdfast_sys::{children, ptrace, unix_socket};
use holdfast_tiers::Job;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long it is looked for more of them.
const ENDING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Ends them.
pub fn end(job: &Job) {
    let begun = Instant::now();
    loop {
        let left = processes_naming(&job.socket_path());
        if left.is_empty() || begun.elapsed() > ENDING {
            return;
        }
        for pid in left {
            let _ = ptrace::kill(pid, libc::SIGKILL);
        }
        thread::sleep(PAUSE);
    }
}

/// All processes of the user whose environments name the agent at `socket`, and those below them. None that is traced:
/// of a frozen copy an image is being made.
fn processes_naming(socket: &Path) -> BTreeSet<i32> {
    let entry = [ENV_SOCKET.as_bytes(), b"=", socket.as_os_str().as_bytes()].concat();
    let has_entry = |text: &[u8]| text.split(|&c| c == 0).any(|one| one == entry);
    let names = |pid: &i32| {
        is_own(*pid) && matches!(environment::of(*pid), Ok(Environment::Is(text)) if has_entry(&text))
    };
    let mut left: Vec<i32> = procfs::processes().unwrap_or_default().into_iter().filter(names).collect();
    let mut found = BTreeSet::new();
    while let Some(pid) = left.pop() {
        if is_own(pid) && found.insert(pid) {
            left.extend(children::children(pid).unwrap_or_default());
        }
    }
    found.retain(|pid| procfs::existence(*pid) == Existence::Living && !is_traced(*pid));
    found
}

/// Whether a process has the ids of our user, and is not this one.
fn is_own(pid: i32) -> bool {
    let own = unix_socket::effective_user().to_string();
    let status = Status::read(pid, pid);
    let has_ids =
        |status: &Status| status.get("Uid").is_some_and(|ids| ids.split_whitespace().all(|id| id == own));
    pid != std::process::id().cast_signed() && status.is_ok_and(|status| has_ids(&status))
}

fn is_traced(pid: i32) -> bool {
    Status::read(pid, pid)
        .is_ok_and(|status| status.get("TracerPid").is_some_and(|tracer| tracer.trim() != "0"))
}
