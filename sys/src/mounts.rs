//! Making mounts in a namespace of the caller's own (mount(2), open_tree(2), move_mount(2), pivot_root(2)).
//!
//! By hand: the two calls of the newer interface, which `nix` and libc lack. How they fail: as the kernel says.
//!
//! # Safety
//! Paths end with a zero byte; a call that returns a descriptor returns a new one.
#![allow(unsafe_code)]

use crate::check;
use nix::mount::{MntFlags, MsFlags};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// include/uapi/linux/mount.h.
const OPEN_TREE_CLONE: libc::c_uint = 1;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
/// include/uapi/linux/fcntl.h.
const AT_RECURSIVE: libc::c_uint = 0x8000;

/// How the caller's mounts and those that they were cloned from hear of each other: MS_PRIVATE or MS_SLAVE, for all.
///
/// # Errors
/// EPERM.
pub fn propagate_all(kind: u64) -> io::Result<()> {
    let flags = MsFlags::from_bits_retain(kind) | MsFlags::MS_REC;
    Ok(nix::mount::mount(None::<&Path>, "/", None::<&Path>, flags, None::<&Path>)?)
}

/// Mounts a file system.
///
/// # Errors
/// EPERM, ENODEV, EINVAL: the options.
pub fn mount(kind: &str, source: &Path, at: &Path, flags: u64, options: &str) -> io::Result<()> {
    let flags = MsFlags::from_bits_retain(flags);
    Ok(nix::mount::mount(Some(source), at, Some(kind), flags, Some(options))?)
}

/// Gives a mount exactly these flags.
///
/// # Errors
/// EPERM: a flag is locked, as it was one of a mount that more may use.
pub fn set_flags(at: &Path, flags: u64) -> io::Result<()> {
    let flags = MsFlags::from_bits_retain(flags) | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    Ok(nix::mount::mount(None::<&Path>, at, None::<&Path>, flags, None::<&Path>)?)
}

/// Lets a file system be written to nowhere any more.
///
/// # Errors
/// EPERM, EBUSY.
pub fn make_read_only(at: &Path) -> io::Result<()> {
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    Ok(nix::mount::mount(None::<&Path>, at, None::<&Path>, flags, None::<&Path>)?)
}

/// Takes a mount away, with all that is below.
///
/// # Errors
/// EINVAL: none is there, or it is locked.
pub fn remove(at: &Path) -> io::Result<()> {
    Ok(nix::mount::umount2(at, MntFlags::MNT_DETACH)?)
}

/// Another mount of what is open, which lies nowhere yet. `recursive`: with all that is mounted below.
///
/// # Errors
/// EINVAL: of another namespace, or something is locked below.
pub fn another(file: BorrowedFd<'_>, recursive: bool) -> io::Result<OwnedFd> {
    let recursive = if recursive { AT_RECURSIVE } else { 0 };
    let flags =
        OPEN_TREE_CLONE | libc::O_CLOEXEC.cast_unsigned() | libc::AT_EMPTY_PATH.cast_unsigned() | recursive;
    // SAFETY: see the head.
    let fd = check(unsafe { libc::syscall(libc::SYS_open_tree, file.as_raw_fd(), c"".as_ptr(), flags) })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: it was made for us just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Puts it where it shall lie.
///
/// # Errors
/// ENOTDIR: one is a folder, the other none.
pub fn place(mount: BorrowedFd<'_>, at: &CStr) -> io::Result<()> {
    // SAFETY: see the head.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            at.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    };
    check(result).map(drop)
}

/// Makes the working folder, on which a mount lies, the root of the namespace, and takes the old one away.
///
/// # Errors
/// EINVAL: the root is none that can be changed (in an initramfs).
pub fn pivot() -> io::Result<()> {
    // The old root lies on the new one then (pivot_root(2), "pivot_root(".", ".")").
    nix::unistd::pivot_root(".", ".")?;
    remove(Path::new("."))?;
    std::env::set_current_dir("/")
}
