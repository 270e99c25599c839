//! What is running, from `/proc`.
//!
//! A test recognises its processes by its folder: each of them has it in its arguments, environment, directory or
//! executable. Nothing else on the machine does, so nothing else is ever killed.

use memchr::memmem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn mentions(process: &Path, needle: &[u8]) -> bool {
    // By a crate that is optimised: this one is not, and looks at all processes of the machine again and again.
    let contains = |haystack: &[u8]| memmem::find(haystack, needle).is_some();
    let in_file = |name: &str| std::fs::read(process.join(name)).is_ok_and(|bytes| contains(&bytes));
    let in_link = |name: &str| {
        std::fs::read_link(process.join(name)).is_ok_and(|to| contains(to.as_os_str().as_bytes()))
    };
    in_file("cmdline") || in_file("environ") || in_link("cwd") || in_link("exe")
}

/// Pids of the living processes that have to do with `folder`, this one excepted.
pub fn of(folder: &Path) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|&pid| pid != std::process::id().cast_signed())
        .filter(|pid| {
            mentions(Path::new(&format!("/proc/{}", shown_by(*pid))), folder.as_os_str().as_bytes())
        })
        .filter(|&pid| runs(pid))
        .collect()
}

/// The thread whose folder in `/proc` shows a process: where its main thread has ended while others run, another one.
fn shown_by(pid: i32) -> i32 {
    if state(pid) != Some('Z') {
        return pid;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let mut ids = threads.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.find(|tid| *tid != pid && state(*tid) != Some('Z')).unwrap_or(pid)
}

/// Whether a process has not ended: it lives, or its main thread has ended while others run.
pub fn runs(pid: i32) -> bool {
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state(pid).is_some_and(|state| state != 'Z' || threads() > 1)
}

/// The state letter of a process, or `None` if it is gone.
pub fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The children of a process's main thread.
pub fn children(pid: i32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The command line, for messages.
pub fn command_line(pid: i32) -> String {
    let raw = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&raw).replace('\0', " ").trim().to_owned()
}

/// Sends a signal by name (`KILL`, `TERM`); a process that is gone already is no error.
pub fn signal(pid: i32, name: &str) {
    let _ = Command::new("kill").args(["-s", name, "--", &pid.to_string()]).stderr(Stdio::null()).status();
}

/// `kill -9`, at one go, the youngest first: the end of a terminal's owner would wake up those in it, stopped or not.
/// Those that are gone already are no error.
pub fn kill(pids: &[i32]) {
    if !pids.is_empty() {
        let pids = pids.iter().rev().map(i32::to_string);
        let _ = Command::new("kill").args(["-s", "KILL", "--"]).args(pids).stderr(Stdio::null()).status();
    }
}

/// Kills whatever has to do with `folder`, until nothing is left or five seconds have passed.
pub fn kill_all(folder: &Path) {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let pids = of(folder);
        if pids.is_empty() || Instant::now() > end {
            return;
        }
        kill(&pids);
        std::thread::sleep(Duration::from_millis(10));
    }
}
