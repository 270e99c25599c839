//! The two calls that std does not have: who we are, and a lock that can be asked about without taking it.
//!
//! Called by `store` and `job`.
//! Locks are "open file description locks" (fcntl(2), F_OFD_SETLK): they belong to the open file as those of flock(2)
//! do and vanish with the agent however it dies, but F_OFD_GETLK can ask for them: a test with flock would have to
//! take the lock for a moment and could make a starting agent believe that the job is in use.
//!
//! # Safety
//! Calls with numbers, a borrowed descriptor and a local of the right type.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The effective uid.
pub(crate) fn euid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn whole_file(kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0, // must be 0 for F_OFD_* (fcntl(2))
    }
}

/// Takes the exclusive lock of a file open for writing, without waiting. `false`: another one has it.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match set(file, libc::F_WRLCK) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases it, although others have copies of the descriptor.
pub(crate) fn unlock(file: &File) -> io::Result<()> {
    set(file, libc::F_UNLCK)
}

fn set(file: &File, kind: i32) -> io::Result<()> {
    let lock = whole_file(kind);
    // SAFETY: needed because std locks by flock(2) only; the descriptor is open as long as `file` is borrowed, and the
    // kernel only reads `lock`, which outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Whether another one has the lock; changes nothing.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: needed because std cannot ask for a lock; the descriptor is open as long as `file` is borrowed, and the
    // kernel writes one struct flock into `lock`.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_a_lock() {
        let path = std::env::temp_dir().join(format!("holdfast-lock-{}", std::process::id()));
        let open =
            || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (file, other) = (open(), open());
        assert!(try_lock(&file).unwrap() && !try_lock(&other).unwrap() && is_locked(&other).unwrap());
        let copy = file.try_clone().unwrap();
        unlock(&file).unwrap();
        drop(file);
        assert!(!is_locked(&other).unwrap() && try_lock(&other).unwrap());
        drop(copy);
        std::fs::remove_file(path).unwrap();
    }
}
