//! The foreground of the terminal from which a job was started, while its program has it.
//!
//! A shell puts itself into the foreground and at its end gives it back to the group that had it: it cannot where it
//! was killed, nor after a restart, when that is another one. What reads from the terminal next would stop for ever.
//! Made at the start of `run` and `restart`, dropped at their end. Invariant: nothing is taken from a group that has
//! processes.

use holdfast_sys::{attributes, ptrace, signals, terminal};
use std::os::fd::{AsFd, OwnedFd};

/// See the head of the file; the terminal, if our group was in its foreground.
#[derive(Debug)]
pub struct Foreground(Option<OwnedFd>);

impl Foreground {
    /// As it is now.
    pub fn look() -> Foreground {
        Foreground(terminal::held().1)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let Some(held) = &self.0 else { return };
        let Ok(group) = terminal::foreground(held.as_fd()) else { return };
        let own = attributes::own_process_group();
        let is_gone =
            || ptrace::kill(-group, 0).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH));
        if group == own || group <= 0 || !is_gone() {
            return;
        }
        // Who is in the background is stopped for this, else.
        signals::block(signals::bit(libc::SIGTTOU));
        let _ = terminal::set_foreground(held.as_fd(), own);
    }
}
