//! inotify(7), and files by their handle (open_by_handle_at(2)).
//!
//! By hand: watches, whose numbers `nix` does not give out; handles, which it lacks.
//!
//! # Safety
//! Calls take descriptors that the caller borrows, numbers, NUL-terminated strings, and local buffers of the right
//! size.
#![allow(unsafe_code)]

use crate::check;
use crate::fd::owned;
use nix::sched::{CloneFlags, unshare};
use nix::sys::inotify::{InitFlags, Inotify};
use nix::unistd::chdir;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Longest file handle (include/linux/exportfs.h, MAX_HANDLE_SZ).
const HANDLE_ROOM: usize = 128;

/// `inotify_init1(2)`, close-on-exec.
///
/// # Errors
/// EMFILE: also when the user has too many.
pub fn inotify() -> io::Result<OwnedFd> {
    Ok(Inotify::init(InitFlags::IN_CLOEXEC)?.into())
}

/// `inotify_add_watch(2)`: the number of the watch.
///
/// # Errors
/// As the call.
pub fn add(inotify: BorrowedFd<'_>, path: &CStr, mask: u32) -> io::Result<i32> {
    // SAFETY: a NUL-terminated string and numbers.
    let result =
        check(i64::from(unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), mask) }));
    result.map(|wd| i32::try_from(wd).unwrap_or(-1))
}

/// `inotify_rm_watch(2)`.
///
/// # Errors
/// EINVAL: no such watch.
pub fn remove(inotify: BorrowedFd<'_>, wd: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    check(i64::from(unsafe { libc::inotify_rm_watch(inotify.as_raw_fd(), wd) })).map(|_| ())
}

/// Opens a file by its handle, as a path only. `near`: a folder of the same file system, which is not opened: a thread
/// has it as its own working folder for the call.
///
/// # Errors
/// EPERM: for CAP_DAC_READ_SEARCH only; ESTALE: no such file; as unshare(2) and chdir(2).
pub fn open_by_handle(near: &Path, kind: i32, handle: &[u8]) -> io::Result<OwnedFd> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            unshare(CloneFlags::CLONE_FS)?;
            chdir(near)?;
            open_here(kind, handle)
        })?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread has ended in the middle")))
    })
}

/// The same in the working folder.
fn open_here(kind: i32, handle: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Handle {
        len: u32,
        kind: i32,
        bytes: [u8; HANDLE_ROOM],
    }
    let mut whole = Handle { len: 0, kind, bytes: [0; HANDLE_ROOM] };
    let room =
        whole.bytes.get_mut(..handle.len()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    room.copy_from_slice(handle);
    whole.len = u32::try_from(handle.len()).unwrap_or(0);
    let flags = libc::O_PATH | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: `whole` is a struct file_handle with room for `len` bytes, which the call reads.
    owned(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            libc::AT_FDCWD,
            (&raw mut whole).cast::<libc::c_void>(),
            flags,
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn numbers_of_watches_rise() {
        let inotify = inotify().unwrap();
        assert_eq!(add(inotify.as_fd(), c"/", libc::IN_CREATE).unwrap(), 1);
        remove(inotify.as_fd(), 1).unwrap();
        assert_eq!(add(inotify.as_fd(), c"/", libc::IN_CREATE).unwrap(), 2);
        assert!(remove(inotify.as_fd(), 1).is_err());
        assert!(open_by_handle(Path::new("/"), 1, &[0; 200]).is_err());
    }
}
