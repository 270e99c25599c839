//! The environment that a process was started with, whole or not at all.
//!
//! Called by `process`, for which it is what ties an orphan to a job. What must hold: the text comes by one read.
//! Between two of them the process may execute another program, and the memory that the file was opened for is gone
//! then: the second yields nothing (fs/proc/base.c, environ_read: mmget_not_zero), and what the first has read looks
//! like all of it.

use crate::{procfs, proctext};
use std::io;

/// What /proc shows of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Environment {
    /// All of it, `NAME=VALUE` with a zero behind each; nothing: it was started with none.
    Is(Vec<u8>),
    /// The process is executing a program just now.
    Executing,
    /// It has no memory any more (or never had any): it is about to end.
    Ending,
}

/// Fields of proc_pid_stat(5), counted from the third.
const VSIZE: usize = 23 - 3;
const START_CODE: usize = 26 - 3;
const ENV_START: usize = 50 - 3;
const ENV_END: usize = 51 - 3;

/// Reads it.
///
/// # Errors
/// The process is gone, or is not ours to look at.
pub fn of(pid: i32) -> io::Result<Environment> {
    // The first thread may have ended long ago.
    for tid in procfs::tasks(pid)? {
        match proctext::at_once(format!("/proc/{pid}/task/{tid}/environ")) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => return Ok(Environment::Is(text)),
            // Without memory; older kernels show nothing then (fs/proc/base.c, proc_mem_open).
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {}
            Err(error) => return Err(error),
        }
        let Ok(fields) = procfs::stat_fields(pid, tid) else { continue };
        match shown(&fields) {
            Environment::Ending => {}
            other => return Ok(other),
        }
    }
    Ok(Environment::Ending)
}

/// Of a thread that shows no environment. Where its code begins is noted after the environment is in its place
/// (fs/binfmt_elf.c, load_elf_binary: `create_elf_tables` comes before `start_code`).
fn shown(fields: &[String]) -> Environment {
    let number = |field: usize| fields.get(field).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    if number(VSIZE) == 0 {
        Environment::Ending
    } else if number(START_CODE) != 0 && number(ENV_START) == number(ENV_END) {
        Environment::Is(Vec::new())
    } else {
        Environment::Executing
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn it_is_what_the_process_was_started_with() {
        for count in [0_usize, 1, 10_000] {
            let mut command = Command::new("/bin/sleep");
            command.arg("20").env_clear().envs((0..count).map(|i| (format!("NAME{i}"), "x".repeat(20))));
            let mut child = command.spawn().unwrap();
            let pid = child.id().cast_signed();
            let exe =
                || std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("sleep"));
            let call = || procfs::current_call(pid, pid).ok().flatten().map(|call| call[0]);
            while !exe() || call() != Some(libc::SYS_clock_nanosleep.cast_unsigned()) {
                thread::yield_now();
            }
            let Environment::Is(text) = of(pid).unwrap() else { panic!("{:?}", of(pid)) };
            assert_eq!(text.iter().filter(|&&byte| byte == 0).count(), count);
            assert_eq!(text, std::fs::read(format!("/proc/{pid}/environ")).unwrap());
            child.kill().unwrap();
            while procfs::Status::read(pid, pid).is_ok_and(|status| !status.has_ended()) {
                thread::yield_now();
            }
            assert_eq!(of(pid).unwrap(), Environment::Ending);
            child.wait().unwrap();
            assert!(of(pid).is_err());
        }
        // Its main thread has ended.
        let script = "import ctypes, threading, time\n\
                      threading.Thread(target=lambda: (print(flush=True), time.sleep(20))).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .env("HOLDFAST_TEST_MARK", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let begun = Instant::now();
        let has_ended = || procfs::Status::read(pid, pid).is_ok_and(|status| status.has_ended());
        while !has_ended() && begun.elapsed() < Duration::from_secs(10) {
            thread::yield_now();
        }
        let Environment::Is(text) = of(pid).unwrap() else { panic!("{:?}", of(pid)) };
        assert!(text.split(|&byte| byte == 0).any(|entry| entry == b"HOLDFAST_TEST_MARK=1"));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    fn one_that_executes_all_the_time_shows_all_or_says_so() {
        let again = ["-c", "exec sh -c \"$0\" \"$0\"", "exec sh -c \"$0\" \"$0\""];
        // The shell has an order of its own. No failure of the test leaves it behind.
        let mut command = Command::new("sh");
        let long = format!("LONG={}", "x".repeat(3000)).into_bytes();
        command
            .args(again)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LONG", "x".repeat(3000))
            .env("MARK", "1");
        let child = Killed(command.spawn().unwrap());
        let pid = child.0.id().cast_signed();
        let has = |text: &[u8], entry: &[u8]| text.split(|&byte| byte == 0).any(|one| one == entry);
        let marked = |text: &[u8]| has(text, b"MARK=1") && has(text, &long);
        let (mut whole, mut executing) = (0, 0);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) {
            match of(pid).unwrap() {
                // The child of this test before it has executed anything.
                Environment::Is(text) if whole == 0 && !marked(&text) => {}
                Environment::Is(text) => {
                    assert!(marked(&text), "{}", String::from_utf8_lossy(&text));
                    whole += 1;
                }
                _ => executing += 1,
            }
        }
        assert!(whole > 0 && executing > 0, "{whole} {executing}");
    }
}
