//! Calls on descriptors that std does not offer.
//!
//! By hand: fcntl(2), of which `nix` has neither F_GETSIG and F_GETOWN_EX nor descriptors by their number alone;
//! ioctl(2), for which it has macros that make unsafe functions; getxattr(2), which it lacks.
//!
//! # Safety
//! All calls take descriptors that the caller owns, borrows or names, numbers, and locals of the right size.
#![allow(unsafe_code)]

use nix::fcntl::{OFlag, SpliceFFlags};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType};
use nix::sys::statvfs::FsFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// The descriptor that a call has just made; callers pass the result of one that returns a new descriptor.
pub(crate) fn owned(result: i64) -> io::Result<OwnedFd> {
    let fd = crate::check(result)?;
    // SAFETY: as said above, nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// `pipe2(2)` with O_CLOEXEC: read end, write end.
///
/// # Errors
/// EMFILE.
pub fn pipe(flags: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::from_bits_retain(flags))?)
}

/// `socketpair(2)` of AF_UNIX with SOCK_CLOEXEC.
///
/// # Errors
/// EMFILE; EINVAL: no such type.
pub fn socketpair(socket_type: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let socket_type = SockType::try_from(socket_type)?;
    Ok(nix::sys::socket::socketpair(AddressFamily::Unix, socket_type, None, SockFlag::SOCK_CLOEXEC)?)
}

/// `fcntl(2)` with a number as argument.
///
/// # Errors
/// As fcntl.
pub fn fcntl(fd: BorrowedFd<'_>, command: i32, argument: i64) -> io::Result<i32> {
    fcntl_of_number(fd.as_raw_fd(), command, argument)
}

/// The same for a descriptor that is known by its number alone, or may not be open at all.
pub(crate) fn fcntl_of_number(fd: RawFd, command: i32, argument: i64) -> io::Result<i32> {
    // SAFETY: commands of this project take numbers.
    let result = unsafe { libc::fcntl(fd, command, argument) };
    crate::check(i64::from(result)).map(|value| i32::try_from(value).unwrap_or(0))
}

/// Who gets the signals that a file causes, and which: kind and id as F_GETOWN_EX gives them, and F_GETSIG (fcntl(2)).
///
/// # Errors
/// EBADF: it was opened by O_PATH.
pub fn owner(fd: BorrowedFd<'_>) -> io::Result<(i32, i32, i32)> {
    /// include/uapi/asm-generic/fcntl.h.
    const F_GETSIG: i32 = 11;
    const F_GETOWN_EX: i32 = 16;
    let mut owner = [0_i32; 2];
    // SAFETY: the call writes a struct f_owner_ex, two ints, into `owner`.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETOWN_EX, owner.as_mut_ptr()) };
    crate::check(i64::from(result))?;
    Ok((owner[0], owner[1], fcntl(fd, F_GETSIG, 0)?))
}

/// Real and effective user id of who has set that (F_GETOWNER_UIDS): they decide whom the signals may reach
/// (fs/fcntl.c, sigio_perm).
///
/// # Errors
/// EINVAL: the kernel has no CONFIG_CHECKPOINT_RESTORE.
pub fn owner_set_by(fd: BorrowedFd<'_>) -> io::Result<[u32; 2]> {
    /// include/uapi/asm-generic/fcntl.h.
    const F_GETOWNER_UIDS: i32 = 17;
    let mut users = [0_u32; 2];
    // SAFETY: the call writes two user ids into `users`.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETOWNER_UIDS, users.as_mut_ptr()) };
    crate::check(i64::from(result))?;
    Ok(users)
}

/// `tee(2)`: copies up to `len` bytes from one pipe into another without consuming them.
///
/// # Errors
/// EAGAIN (SPLICE_F_NONBLOCK): nothing there.
pub fn tee(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    Ok(nix::fcntl::tee(from, to, len, SpliceFFlags::SPLICE_F_NONBLOCK)?)
}

/// `ioctl` that returns one int (FIONREAD and the like).
///
/// # Errors
/// As ioctl.
pub fn ioctl_int(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<i32> {
    let mut value = 0_i32;
    // SAFETY: the requests of this project write one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) };
    crate::check(i64::from(result)).map(|_| value)
}

/// `recv(2)`.
///
/// # Errors
/// As recv.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    Ok(nix::sys::socket::recv(fd.as_raw_fd(), buffer, MsgFlags::from_bits_retain(flags))?)
}

/// POLLHUP, POLLERR and the like of a descriptor, now (poll(2)).
///
/// # Errors
/// As poll.
pub fn poll_state(fd: BorrowedFd<'_>) -> io::Result<i16> {
    poll_for(fd, 0)
}

/// The same, and what of `wanted` it is ready for (POLLPRI, POLLRDHUP ...).
///
/// # Errors
/// As poll.
pub fn poll_for(fd: BorrowedFd<'_>, wanted: i16) -> io::Result<i16> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: wanted, revents: 0 };
    // SAFETY: one entry, which lives until the call returns. (`nix` has no name for POLLRDHUP.)
    crate::check(i64::from(unsafe { libc::poll(&raw mut entry, 1, 0) }))?;
    Ok(entry.revents)
}

/// `send(2)`.
///
/// # Errors
/// As send.
pub fn send(fd: BorrowedFd<'_>, data: &[u8], flags: i32) -> io::Result<usize> {
    Ok(nix::sys::socket::send(fd.as_raw_fd(), data, MsgFlags::from_bits_retain(flags))?)
}

/// `getsockopt(2)`: an option, of which the call may be told more by what is in the buffer (MCAST_MSFILTER); returns
/// its length.
///
/// # Errors
/// As `getsockopt(2)`.
pub fn option_of(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut len = u32::try_from(value.len()).unwrap_or(0);
    // SAFETY: the call writes at most `len` bytes into `value`.
    let result =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut len) };
    crate::check(i64::from(result))?;
    Ok(usize::try_from(len).unwrap_or(0).min(value.len()))
}

/// `setsockopt(2)`.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    // SAFETY: the call reads `len` bytes of `value`.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), len) };
    crate::check(i64::from(result)).map(|_| ())
}

/// `getsockopt(2)` of an int option of SOL_SOCKET.
///
/// # Errors
/// As getsockopt.
pub fn socket_option(fd: BorrowedFd<'_>, option: i32) -> io::Result<i32> {
    let mut value = [0; 4];
    option_of(fd, libc::SOL_SOCKET, option, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// `setsockopt(2)` of an int option of SOL_SOCKET.
///
/// # Errors
/// As setsockopt.
pub fn set_socket_option(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, option, &value.to_ne_bytes())
}

/// Whether a file has an extended attribute of this name.
pub fn has_attribute(path: &std::path::Path, name: &std::ffi::CStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are NUL-terminated; with length 0 nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Has a number lead to another open file, for this process and what it executes.
///
/// # Errors
/// As dup2(2).
pub fn replace(number: i32, by: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: numbers only. Standard streams, for which this is, have no owner: `std` uses them by number.
    crate::check(i64::from(unsafe { libc::dup2(by.as_raw_fd(), number) })).map(|_| ())
}

/// Takes over a descriptor that was inherited by number (said on the command line), and sets FD_CLOEXEC.
///
/// # Errors
/// EBADF: nothing is open there.
pub fn inherited(fd: i32) -> io::Result<OwnedFd> {
    fcntl_of_number(fd, libc::F_SETFD, i64::from(libc::FD_CLOEXEC))?;
    // SAFETY: it is open, as the call before has shown; the caller is told the number by the program that left it open
    // for it, and nothing else in this process knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The type of the file system that holds `path` (`f_type` of statfs(2)).
///
/// # Errors
/// As statfs.
pub fn file_system_type(path: &std::path::Path) -> io::Result<u64> {
    Ok(nix::sys::statfs::statfs(path)?.filesystem_type().0.cast_unsigned())
}

/// Whether the file system that holds `path` is mounted `noexec`: nothing mapped from it can ever be executed.
///
/// # Errors
/// As statvfs.
pub fn is_noexec(path: &std::path::Path) -> io::Result<bool> {
    Ok(nix::sys::statvfs::statvfs(path)?.flags().contains(FsFlags::ST_NOEXEC))
}

/// How much a file system has, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskRoom {
    /// For who is not root.
    pub free: u64,
    /// In all.
    pub all: u64,
}

/// Gives a file room for its first `bytes`, so that no later write to a mapping of it finds none.
///
/// # Errors
/// As fallocate(2): ENOSPC.
pub fn allocate(file: &std::fs::File, bytes: u64) -> io::Result<()> {
    let bytes = i64::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    Ok(nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::empty(), 0, bytes)?)
}

/// The room on the file system that holds `path`.
///
/// # Errors
/// As statvfs.
pub fn disk_room(path: &std::path::Path) -> io::Result<DiskRoom> {
    let about = nix::sys::statvfs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(about.fragment_size());
    Ok(DiskRoom { free: bytes(about.blocks_available()), all: bytes(about.blocks()) })
}

/// Whether something may be made in a folder, by the effective ids.
pub fn may_make_in(folder: &std::path::Path) -> bool {
    let wanted = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
    nix::unistd::faccessat(nix::fcntl::AT_FDCWD, folder, wanted, nix::fcntl::AtFlags::AT_EACCESS).is_ok()
}

/// Whether a descriptor is open and stays open across exec.
pub fn is_inherited_by_programs(fd: i32) -> bool {
    fcntl_of_number(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
}
