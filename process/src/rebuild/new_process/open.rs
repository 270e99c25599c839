//! Descriptors out of the way of the program's numbers, and those of processes.

use crate::rebuild::error::RebuildError;
use holdfast_sys::{clone, objects};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Moves a descriptor above the program's numbers.
///
/// # Errors
/// EMFILE.
pub fn raise(fd: &OwnedFd, floor: i32) -> Result<OwnedFd, RebuildError> {
    objects::duplicate_above(fd.as_raw_fd(), floor)
        .map_err(RebuildError::io("moving a descriptor out of the way"))
}

/// A descriptor of a process.
///
/// # Errors
/// ESRCH; EINVAL: the kernel does not know a flag.
pub fn open_process(pid: i32, flags: u32) -> io::Result<OwnedFd> {
    // O_EXCL is PIDFD_THREAD, for a single thread (include/uapi/linux/pidfd.h).
    clone::pidfd_open_with(pid, flags & (libc::O_NONBLOCK | libc::O_EXCL).cast_unsigned())
}
