//! Process creation and descriptors of processes.
//!
//! By hand: `nix` has no clone3(2), pidfd or kcmp(2).
//!
//! # Safety
//! `clone3` without CLONE_VM behaves as fork: the child has its own copy of everything, and only the calling thread.
//! Callers must be single-threaded, because the child may meet locks that a vanished thread held.
#![allow(unsafe_code)]

use crate::fd::owned;
use crate::{attributes, spawn};
use std::cmp::Ordering;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// struct clone_args (include/uapi/linux/sched.h), version 2 (set_tid).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Forks with the given CLONE_* flags and pid (0: any). Returns 0 in the child.
///
/// The caller must be the only thread of its process.
///
/// # Errors
/// EPERM: the pid may not be chosen; EEXIST: it is taken; EAGAIN: process limit; ENOSYS: as EPERM, in a container
/// whose filter knows no clone3(2).
pub fn fork_with(flags: u64, pid: i32) -> io::Result<i32> {
    if pid == 0 { fork_any(flags) } else { fork_as(flags, &[pid]) }
}

/// The same with an id for each pid namespace from that of the child on outwards.
///
/// # Errors
/// As [`fork_with`].
pub fn fork_as(flags: u64, wanted: &[i32]) -> io::Result<i32> {
    let args = CloneArgs {
        flags,
        exit_signal: libc::SIGCHLD as u64,
        set_tid: wanted.as_ptr() as u64,
        set_tid_size: wanted.len() as u64,
        ..CloneArgs::default()
    };
    // SAFETY: `args` is complete and `wanted` lives through the call; without CLONE_VM the child goes on in a copy of
    // this stack, as after fork(2).
    let result = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    crate::check(result).map(|pid| i32::try_from(pid).unwrap_or(0))
}

/// By clone(2), which every container allows: clone3(2) is not there in those with the default filter (moby,
/// profiles/seccomp/default.json).
fn fork_any(flags: u64) -> io::Result<i32> {
    // SAFETY: without CLONE_VM the child goes on in a copy of this stack, as after fork(2).
    let result = unsafe { libc::syscall(libc::SYS_clone, flags | libc::SIGCHLD as u64, 0, 0, 0, 0) };
    crate::check(result).map(|pid| i32::try_from(pid).unwrap_or(0))
}

/// Forks until the child has this id, where ids cannot be chosen: the kernel gives one after the other (kernel/pid.c,
/// alloc_pid). Those before end at once. Returns 0 in the child. `flags`: of clone(2). As for
/// [`fork_with`], the caller must be the only thread.
///
/// # Errors
/// EEXIST: the kernel has gone past it; EAGAIN: process limit.
pub fn fork_when_due(flags: u64, pid: i32) -> io::Result<i32> {
    loop {
        let made = fork_any(flags)?;
        let own = if made == 0 { attributes::own_pid() } else { made };
        if own == pid {
            return Ok(made);
        }
        if made == 0 {
            attributes::exit_now(0);
        }
        spawn::wait(made, true)?;
        if made > pid {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
    }
}

/// Has the next ids lie behind this one, by processes that end at once.
///
/// # Errors
/// EAGAIN: process limit.
pub fn pass_ids(last: i32) -> io::Result<()> {
    loop {
        match fork_any(0)? {
            0 => attributes::exit_now(0),
            made => {
                spawn::wait(made, true)?;
                if made >= last {
                    return Ok(());
                }
            }
        }
    }
}

/// `pidfd_open(2)`.
///
/// # Errors
/// ESRCH: no such process.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    pidfd_open_with(pid, 0)
}

/// The same with flags (PIDFD_NONBLOCK, PIDFD_THREAD).
///
/// # Errors
/// ESRCH; EINVAL: the kernel does not know a flag.
pub fn pidfd_open_with(pid: i32, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; the result is a new descriptor.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) })
}

/// A duplicate of descriptor `fd` of the process behind `pidfd` (pidfd_getfd(2)).
///
/// # Errors
/// EPERM: not traceable; EBADF: no such descriptor there.
pub fn pidfd_getfd(pidfd: &OwnedFd, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; the result is a new descriptor.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })
}

/// Whether [`pidfd_getfd`] may be called at all: the default filter of containers forbids it (moby,
/// profiles/seccomp/default.json).
pub fn can_take_descriptors() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    let forbidden = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS));
    let own = || pidfd_open(attributes::own_pid()).and_then(|own| pidfd_getfd(&own, own.as_raw_fd()));
    *CAN.get_or_init(|| !own().is_err_and(|error| forbidden(&error)))
}

/// Descriptor `fd` of a process, for what is done to the file: a duplicate, or, where those are forbidden and the
/// file can be opened by way of /proc, another description of it.
///
/// # Errors
/// As [`pidfd_getfd`] and open(2).
pub fn file_of(pid: i32, fd: i32) -> io::Result<File> {
    if can_take_descriptors() {
        return pidfd_getfd(&pidfd_open(pid)?, fd).map(File::from);
    }
    let path = format!("/proc/{pid}/fd/{fd}");
    let open = |read, write| File::options().read(read).write(write).open(&path);
    open(true, true).or_else(|_| open(false, true)).or_else(|_| open(true, false))
}

/// What the threads of a process share (the last two unless one of them has called unshare(2)), and a child of vfork(2)
/// and its parent; the values are those of kcmp(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    /// Memory.
    Memory = 1,
    /// Descriptors.
    Files = 2,
    /// Current directory, root and umask.
    Folders = 3,
}

/// Whether two threads have it in common (kcmp(2)).
///
/// # Errors
/// EPERM, ESRCH, ENOSYS.
pub fn have_in_common(tid_a: i32, tid_b: i32, what: Common) -> io::Result<bool> {
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, tid_a, tid_b, what as i32, 0, 0) };
    crate::check(result).map(|order| order == 0)
}

/// Whether an epoll instance (pid and descriptor) watches a file (pid and descriptor) under a number: the `nth` that it
/// has under it (kcmp(2), KCMP_EPOLL_TFD).
///
/// # Errors
/// EPERM, EBADF, ENOENT, ENOSYS.
pub fn is_watched(file: (i32, i32), epoll: (i32, i32), number: i32, nth: u32) -> io::Result<bool> {
    const KCMP_EPOLL_TFD: i32 = 7;
    // struct kcmp_epoll_slot: efd, tfd, toff.
    let slot = [epoll.1.cast_unsigned(), number.cast_unsigned(), nth];
    // SAFETY: the kernel reads the three numbers of `slot`.
    let result =
        unsafe { libc::syscall(libc::SYS_kcmp, file.0, epoll.0, KCMP_EPOLL_TFD, file.1, slot.as_ptr()) };
    crate::check(result).map(|order| order == 0)
}

/// How the open file description of one descriptor compares with that of another, in an order that the kernel keeps
/// until it is started again (kcmp(2), KCMP_FILE, NOTES): to find one among many takes a few questions.
///
/// # Errors
/// EPERM, EBADF, ENOSYS.
pub fn order_of_descriptions(pid_a: i32, fd_a: i32, pid_b: i32, fd_b: i32) -> io::Result<Ordering> {
    const KCMP_FILE: i32 = 0;
    // SAFETY: numbers only.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, pid_a, pid_b, KCMP_FILE, fd_a, fd_b) };
    crate::check(result).map(|order| match order {
        0 => Ordering::Equal,
        1 => Ordering::Less,
        _ => Ordering::Greater,
    })
}
