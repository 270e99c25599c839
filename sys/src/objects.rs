//! Making descriptors at chosen numbers, and the kernel objects that only raw calls make: eventfd, timerfd, signalfd,
//! epoll. Used by a restart before the program exists.
//!
//! # Safety
//! Calls take descriptors that the caller owns, borrows or names by number in a process that is being made, numbers,
//! NUL-terminated strings, and locals of the right type.
#![allow(unsafe_code)]

use crate::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

fn owned(result: i64) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: callers pass the result of a call that returns a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// `open(2)` with exactly these flags and O_CLOEXEC.
///
/// # Errors
/// As open.
pub fn open(path: &CStr, flags: u32, mode: u32) -> io::Result<OwnedFd> {
    let flags = flags.cast_signed() | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated string and numbers.
    owned(i64::from(unsafe { libc::open(path.as_ptr(), flags, mode) }))
}

/// `mkfifo(3)`.
///
/// # Errors
/// As mknod.
pub fn make_fifo(path: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: a NUL-terminated string and a number.
    check(i64::from(unsafe { libc::mkfifo(path.as_ptr(), mode) })).map(|_| ())
}

/// The same open file description at a number of at least `floor`, close-on-exec.
///
/// # Errors
/// EBADF: not open; EINVAL or EMFILE: RLIMIT_NOFILE is too low.
pub fn duplicate_above(fd: RawFd, floor: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; the result is a new descriptor.
    owned(i64::from(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) }))
}

/// The same open file description at exactly this number, which stays open and belongs to nobody in this program:
/// it is for the one that is going to be executed.
///
/// # Errors
/// EBADF: RLIMIT_NOFILE is too low.
pub fn duplicate_to(fd: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: numbers only. Callers give targets that no owned descriptor has.
    check(i64::from(unsafe { libc::dup3(fd.as_raw_fd(), target, 0) })).map(|_| ())
}

/// FD_CLOEXEC of a descriptor (F_GETFD).
///
/// # Errors
/// EBADF: not open.
pub fn descriptor_flags(fd: RawFd) -> io::Result<i32> {
    // SAFETY: numbers only.
    let flags = check(i64::from(unsafe { libc::fcntl(fd, libc::F_GETFD) }))?;
    Ok(i32::try_from(flags).unwrap_or(0))
}

/// Closes all descriptors of a range, the last included. No owned descriptor may be among them.
///
/// # Errors
/// EINVAL: `first` is above `last`.
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: numbers only; see above.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }).map(|_| ())
}

/// Sets the offset.
///
/// # Errors
/// ESPIPE, EINVAL.
pub fn seek(fd: BorrowedFd<'_>, position: u64) -> io::Result<()> {
    let position = i64::try_from(position).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: numbers only.
    check(unsafe { libc::lseek(fd.as_raw_fd(), position, libc::SEEK_SET) }).map(|_| ())
}

/// SO_RCVTIMEO or SO_SNDTIMEO of a socket, microseconds; 0: none.
///
/// # Errors
/// ENOTSOCK.
pub fn socket_timeout_us(fd: BorrowedFd<'_>, option: i32) -> io::Result<u64> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of_val(&time) as libc::socklen_t;
    // SAFETY: the call writes at most `len` bytes into `time`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut time).cast(), &raw mut len)
    };
    check(i64::from(result))?;
    Ok(time.tv_sec.cast_unsigned().saturating_mul(1_000_000).saturating_add(time.tv_usec.cast_unsigned()))
}

/// Sets it.
///
/// # Errors
/// As [`socket_timeout_us`].
pub fn set_socket_timeout_us(fd: BorrowedFd<'_>, option: i32, time_us: u64) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: (time_us / 1_000_000).cast_signed(),
        tv_usec: (time_us % 1_000_000).cast_signed(),
    };
    let len = size_of_val(&time) as libc::socklen_t;
    // SAFETY: the call reads `len` bytes of `time`.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const time).cast(), len) };
    check(i64::from(result)).map(|_| ())
}

/// `eventfd(2)`.
///
/// # Errors
/// EMFILE.
pub fn eventfd(semaphore: bool) -> io::Result<OwnedFd> {
    let flags = libc::EFD_CLOEXEC | if semaphore { libc::EFD_SEMAPHORE } else { 0 };
    // SAFETY: numbers only.
    owned(i64::from(unsafe { libc::eventfd(0, flags) }))
}

/// `timerfd_create(2)`, not armed.
///
/// # Errors
/// EINVAL: unknown clock; EPERM: an alarm clock needs privilege.
pub fn timerfd(clock: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    owned(i64::from(unsafe { libc::timerfd_create(clock, libc::TFD_CLOEXEC) }))
}

/// `signalfd(2)` for a mask of the kernel's form.
///
/// # Errors
/// EMFILE.
pub fn signalfd(mask: u64) -> io::Result<OwnedFd> {
    // SAFETY: the mask is 8 bytes, as the size says.
    owned(unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, 8, libc::SFD_CLOEXEC) })
}

/// `epoll_create1(2)`.
///
/// # Errors
/// EMFILE.
pub fn epoll() -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    owned(i64::from(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))
}

/// Has an epoll instance watch a descriptor; both by number, because an entry belongs to the number it was added with.
///
/// # Errors
/// EBADF, EPERM: cannot be watched; EEXIST.
pub fn epoll_add(epoll: RawFd, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the call reads one epoll_event.
    check(i64::from(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) })).map(|_| ())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_duplicate_lies_above_the_floor_and_shares_the_offset() {
        let file = open(c"/proc/self/maps", 0, 0).unwrap();
        let high = duplicate_above(file.as_raw_fd(), 700).unwrap();
        assert!(high.as_raw_fd() >= 700);
        seek(file.as_fd(), 5).unwrap();
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", high.as_raw_fd())).unwrap();
        assert!(info.starts_with("pos:\t5\n"), "{info}");
    }
}
