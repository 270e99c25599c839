//! A process that an injected call has made, as its tracer holds it.
//!
//! Used by `freeze::clone`, and where a table is given up that may still make one. Invariant: when this is dropped the
//! process is killed, and its end is taken note of: its parent, the program, would wait for it for ever otherwise, for
//! a parent hears of the end of a traced child when its tracer has (ptrace(2), "Death under ptrace"; kernel/exit.c,
//! wait_consider_task). Fails by: a line in the log, after [`LIMIT`].

use super::remote_thread::pause;
use holdfast_sys::ptrace::{self, Wait};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(10);

/// Its id. See the head of the file.
#[derive(Debug)]
pub struct Born(pub i32);

impl Drop for Born {
    fn drop(&mut self) {
        // 0 would be all processes of this group: a process whose id is not seen here.
        if self.0 <= 0 {
            return;
        }
        let _ = ptrace::kill(self.0, libc::SIGKILL);
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            match ptrace::wait(self.0, false) {
                Ok(Wait::Exited(_)) | Err(_) => return,
                Ok(_) => pause(begun),
            }
        }
        tracing::error!(pid = self.0, "a process made by an injected call has not ended within {LIMIT:?}");
    }
}
