//! Making mounts in a namespace of the caller's own (mount(2), open_tree(2), fsopen(2), move_mount(2),
//! pivot_root(2)).
//!
//! By hand: the calls of the newer interface, which `nix` and libc lack. How they fail: as the kernel says.
//!
//! # Safety
//! Paths end with a zero byte; a call that returns a descriptor returns a new one.
#![allow(unsafe_code)]

use crate::check;
use nix::mount::{MntFlags, MsFlags};
use std::ffi::{CStr, CString};
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

/// A mount of a file system that the kernel fills, which lies nowhere yet. One of proc shows the pid namespace of the
/// caller (fs/proc/root.c, proc_init_fs_context).
///
/// # Errors
/// As [`mount`].
pub fn kernel_file_system(kind: &CStr, options: &str) -> io::Result<OwnedFd> {
    // include/uapi/linux/mount.h.
    const FSCONFIG_SET_FLAG: libc::c_long = 0;
    const FSCONFIG_SET_STRING: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    // SAFETY: see the head.
    let context = opened(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), 1) })?;
    let configure = |command: libc::c_long, key: Option<&CStr>, value: Option<&CStr>| {
        let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        let (key, value) = (pointer(key), pointer(value));
        // SAFETY: see the head; both may be null where the command has none.
        check(unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0) })
            .map(drop)
    };
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some((key, value)) => {
                let (key, value) = (CString::new(key)?, CString::new(value)?);
                configure(FSCONFIG_SET_STRING, Some(&key), Some(&value))?;
            }
            None => configure(FSCONFIG_SET_FLAG, Some(&CString::new(option)?), None)?,
        }
    }
    configure(FSCONFIG_CMD_CREATE, None, None)?;
    // SAFETY: see the head. Its flags are given to it where it lies.
    opened(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0) })
}

fn opened(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(check(result)?).map_err(io::Error::other)?;
    // SAFETY: it was made for us just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
    opened(unsafe { libc::syscall(libc::SYS_open_tree, file.as_raw_fd(), c"".as_ptr(), flags) })
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
