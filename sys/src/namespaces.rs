//! Namespaces of the caller (unshare(2), setns(2)), what belongs to them, and how they belong to each other
//! (ioctl_nsfs(2)).
//!
//! By hand: the requests of nsfs, which `nix` lacks, and the flags of a network device.
//!
//! # Safety
//! Requests return a descriptor that is new; names are slices with their lengths.
#![allow(unsafe_code)]

use crate::check;
use nix::sched::CloneFlags;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Requests (include/uapi/linux/nsfs.h).
const NS_GET_USERNS: libc::c_ulong = 0xb701;
const NS_GET_PARENT: libc::c_ulong = 0xb702;

/// Leaves namespaces for new ones (CLONE_NEW...).
///
/// # Errors
/// EPERM; ENOSPC: user.max_user_namespaces and its like.
pub fn leave(kinds: i32) -> io::Result<()> {
    Ok(nix::sched::unshare(CloneFlags::from_bits_retain(kinds))?)
}

/// Goes into one.
///
/// # Errors
/// EPERM; EINVAL: of a user namespace, the caller has several threads.
pub fn join(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::sched::setns(namespace, CloneFlags::empty())?)
}

/// The user namespace that owns one.
///
/// # Errors
/// EPERM: it is not below that of the caller.
pub fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    opened(namespace, NS_GET_USERNS)
}

/// The user namespace above one.
///
/// # Errors
/// As [`owner`].
pub fn above(user_namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    opened(user_namespace, NS_GET_PARENT)
}

fn opened(namespace: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<OwnedFd> {
    // SAFETY: see the head; the request has no argument.
    let fd = check(i64::from(unsafe { libc::ioctl(namespace.as_raw_fd(), request) }))?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: it was made for us just now.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `sethostname(2)`.
///
/// # Errors
/// EPERM.
pub fn set_host_name(name: &OsStr) -> io::Result<()> {
    let name = name.as_bytes();
    // SAFETY: pointer and length of a slice.
    check(i64::from(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) })).map(drop)
}

/// `setdomainname(2)`.
///
/// # Errors
/// EPERM.
pub fn set_domain_name(name: &OsStr) -> io::Result<()> {
    let name = name.as_bytes();
    // SAFETY: pointer and length of a slice.
    check(i64::from(unsafe { libc::setdomainname(name.as_ptr().cast(), name.len()) })).map(drop)
}

/// Switches the loopback device of the caller's network namespace on (netdevice(7)).
///
/// # Errors
/// EPERM.
pub fn loopback_up() -> io::Result<()> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: all zero is a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_LOOPBACK | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads a struct ifreq.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    check(i64::from(result)).map(drop)
}
