//! Making descriptors at chosen numbers, and the kernel objects that only raw calls make: eventfd, timerfd, signalfd,
//! epoll. Used by a restart before the program exists.
//!
//! By hand: descriptors by number alone, and timerfd, whose type in `nix` keeps its descriptor; signalfd, because `nix`
//! makes signal sets of signals that have a name, which real-time ones do not.
//!
//! # Safety
//! Calls take descriptors that the caller owns, borrows or names by number in a process that is being made, numbers,
//! and locals of the right type.
#![allow(unsafe_code)]

use crate::fd::{fcntl_of_number, owned};
use crate::{check, socket};
use nix::fcntl::OFlag;
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::Mode;
use nix::unistd::Whence;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// `open(2)` with exactly these flags and O_CLOEXEC.
///
/// # Errors
/// As open.
pub fn open(path: &CStr, flags: u32, mode: u32) -> io::Result<OwnedFd> {
    let flags = OFlag::from_bits_retain(flags.cast_signed()) | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, Mode::from_bits_retain(mode))?)
}

/// `mkfifo(3)`.
///
/// # Errors
/// As mknod.
pub fn make_fifo(path: &CStr, mode: u32) -> io::Result<()> {
    Ok(nix::unistd::mkfifo(path, Mode::from_bits_retain(mode))?)
}

/// The same open file description at a number of at least `floor`, close-on-exec.
///
/// # Errors
/// EBADF: not open; EINVAL or EMFILE: RLIMIT_NOFILE is too low.
pub fn duplicate_above(fd: RawFd, floor: i32) -> io::Result<OwnedFd> {
    fcntl_of_number(fd, libc::F_DUPFD_CLOEXEC, i64::from(floor)).and_then(|fd| owned(i64::from(fd)))
}

/// The same open file description at exactly this number, which stays open and has no owner in this program:
/// it is for the one that is going to be executed.
///
/// # Errors
/// EBADF: RLIMIT_NOFILE is too low.
pub fn duplicate_to(fd: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    // SAFETY: numbers only. Callers give targets that no owned descriptor has.
    check(i64::from(unsafe { libc::dup3(fd.as_raw_fd(), target, 0) })).map(|_| ())
}

/// Has a number lead to another open file while `act` is done, and to its own, if it has one, again. The owner of the
/// number, if there is one, must not use it meanwhile. `floor`: where its own file is kept, at least.
///
/// # Errors
/// Of `act`; EBADF: RLIMIT_NOFILE is too low.
pub fn with_number<T>(
    file: BorrowedFd<'_>,
    number: RawFd,
    floor: i32,
    act: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    // dup3(2) refuses what is there already.
    if file.as_raw_fd() == number {
        return act();
    }
    let own = match descriptor_flags(number) {
        Ok(flags) => Some((duplicate_above(number, floor)?, flags & libc::FD_CLOEXEC)),
        Err(_) => None,
    };
    duplicate_to(file, number)?;
    let result = act();
    match own {
        Some((own, flags)) => {
            duplicate_to(own.as_fd(), number)?;
            fcntl_of_number(number, libc::F_SETFD, i64::from(flags))?;
        }
        None => close_range(number.cast_unsigned(), number.cast_unsigned())?,
    }
    result
}

/// FD_CLOEXEC of a descriptor (F_GETFD).
///
/// # Errors
/// EBADF: not open.
pub fn descriptor_flags(fd: RawFd) -> io::Result<i32> {
    fcntl_of_number(fd, libc::F_GETFD, 0)
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
    nix::unistd::lseek(fd, position, Whence::SeekSet)?;
    Ok(())
}

/// SO_RCVTIMEO or SO_SNDTIMEO of a socket, microseconds; 0: none.
///
/// # Errors
/// ENOTSOCK.
pub fn socket_timeout_us(fd: BorrowedFd<'_>, option: i32) -> io::Result<u64> {
    let mut time = [0; 16];
    socket::option_of(fd, libc::SOL_SOCKET, option, &mut time)?;
    // struct timeval: seconds, microseconds.
    let [seconds, microseconds] = [0, 8].map(|at| time[at..at + 8].try_into().map_or(0, u64::from_ne_bytes));
    Ok(seconds.saturating_mul(1_000_000).saturating_add(microseconds))
}

/// Sets it.
///
/// # Errors
/// As [`socket_timeout_us`].
pub fn set_socket_timeout_us(fd: BorrowedFd<'_>, option: i32, time_us: u64) -> io::Result<()> {
    let time = [time_us / 1_000_000, time_us % 1_000_000].map(u64::to_ne_bytes);
    socket::set_option(fd, libc::SOL_SOCKET, option, time.as_flattened())
}

/// `eventfd(2)`.
///
/// # Errors
/// EMFILE.
pub fn eventfd(semaphore: bool) -> io::Result<OwnedFd> {
    let kind = if semaphore { EfdFlags::EFD_SEMAPHORE } else { EfdFlags::empty() };
    Ok(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | kind)?.into())
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
    new_signalfd(mask, libc::SFD_CLOEXEC)
}

/// The same with these flags.
pub(crate) fn new_signalfd(mask: u64, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the mask is 8 bytes, as the size says.
    owned(unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const mask, size_of::<u64>(), flags) })
}

/// `epoll_create1(2)`.
///
/// # Errors
/// EMFILE.
pub fn epoll() -> io::Result<OwnedFd> {
    Ok(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?.0)
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
