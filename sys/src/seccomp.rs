//! What the seccomp filter over this process does at a call that it does not allow: containers let the call fail
//! (EPERM), service managers end the process (systemd.exec(5), SystemCallFilter=).
//!
//! # Safety
//! The child of fork(2) makes system calls without memory, and ends.
#![allow(unsafe_code)]

use crate::{attributes, clone, spawn};

/// Calls that this kernel has no more, or that fail at once: no filter that lists what a program needs has them
/// (man 2 _sysctl, nfsservctl, uselib; seccomp(2)).
const NEEDLESS: [libc::c_long; 3] = [libc::SYS__sysctl, libc::SYS_nfsservctl, libc::SYS_uselib];

/// Whether it ends a process: tried in a child.
pub fn ends_processes() -> bool {
    let child = clone::fork_with(0, 0);
    match child {
        Ok(0) => {
            attributes::leave_no_core();
            for call in NEEDLESS {
                // SAFETY: no argument leads to memory.
                unsafe { libc::syscall(call, 0, 0, 0) };
            }
            attributes::exit_now(0)
        }
        // What cannot be tried counts as the worse.
        Ok(child) => !spawn::wait(child, true).is_ok_and(|ended| ended.is_some_and(|ended| ended.success())),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_filter_nothing_is_ended() {
        assert!(!ends_processes());
    }
}
