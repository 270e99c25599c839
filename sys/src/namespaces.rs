//! Namespaces of the caller (unshare(2), setns(2)), what belongs to them, and how they belong to each other
//! (ioctl_nsfs(2)); sockets of other network namespaces.
//!
//! By hand: the requests of nsfs, which `nix` lacks, and the flags of a network device.
//!
//! # Safety
//! Requests return a descriptor that is new; names are slices with their lengths. What runs in a process of its own
//! ([`Network`]) makes system calls alone.
#![allow(unsafe_code)]

use crate::fd::owned;
use crate::{check, spawn};
use nix::sched::CloneFlags;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
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
    owned(i64::from(unsafe { libc::ioctl(namespace.as_raw_fd(), request) }))
}

/// Which network namespace a socket is of (SO_NETNS_COOKIE, include/uapi/asm-generic/socket.h; Linux 5.14): a number
/// that no other one has until the kernel is started again.
///
/// # Errors
/// ENOPROTOOPT: the kernel does not tell.
pub fn of_socket(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut cookie = [0; 8];
    crate::fd::option_of(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// A network namespace in which sockets are made. A socket stays in the one in which it was made, whatever is done to
/// it by others.
#[derive(Debug)]
pub struct Network {
    network: OwnedFd,
    /// The user namespace that it belongs to, if that is not the caller's.
    owner: Option<OwnedFd>,
}

impl Network {
    /// Of one that is open. `owner`: the user namespace that it belongs to, if that is not the caller's.
    pub fn new(network: OwnedFd, owner: Option<OwnedFd>) -> Network {
        Network { network, owner }
    }

    /// `socket(2)`, close-on-exec.
    ///
    /// # Errors
    /// As the call; EPERM: the caller has no right to it.
    pub fn socket(&self, domain: i32, socket_type: i32, protocol: i32) -> io::Result<OwnedFd> {
        // SAFETY: numbers only; the result is a new descriptor, as the two processes have one table.
        let call = || unsafe { libc::socket(domain, socket_type | libc::SOCK_CLOEXEC, protocol) };
        self.inside(call).and_then(|made| owned(i64::from(made)))
    }

    /// `socketpair(2)` of unix sockets, close-on-exec.
    ///
    /// # Errors
    /// As [`Network::socket`].
    pub fn pair(&self, socket_type: i32) -> io::Result<(OwnedFd, OwnedFd)> {
        let mut both = [-1; 2];
        let kind = socket_type | libc::SOCK_CLOEXEC;
        // SAFETY: the kernel writes two numbers.
        self.inside(|| unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, both.as_mut_ptr()) })?;
        let [one, two] = both.map(|made| owned(i64::from(made)));
        Ok((one?, two?))
    }

    /// Makes a system call in it: in a process of its own, as only who has one thread may go into a user namespace
    /// (kernel/user_namespace.c, userns_install).
    fn inside(&self, mut call: impl FnMut() -> i32) -> io::Result<i32> {
        let owner = self.owner.as_ref().map(AsRawFd::as_raw_fd);
        let network = self.network.as_raw_fd();
        let (mut result, mut error) = (-1, 0);
        let dumpable = prctl(libc::PR_GET_DUMPABLE, 0);
        spawn::undying(&mut || {
            // SAFETY: numbers only.
            let enter = |fd: i32, kind: i32| unsafe { libc::setns(fd, kind) } == 0;
            if owner.is_none_or(|owner| enter(owner, libc::CLONE_NEWUSER))
                && enter(network, libc::CLONE_NEWNET)
            {
                result = call();
            }
            // SAFETY: it is this thread's, and that of the caller, who waits.
            error = unsafe { *libc::__errno_location() };
        })?;
        // Who goes into another's user namespace is not dumpable any more, nor is what has the same memory
        // (kernel/cred.c, commit_creds).
        if dumpable == 1 && prctl(libc::PR_GET_DUMPABLE, 0) != 1 {
            prctl(libc::PR_SET_DUMPABLE, 1);
        }
        if result < 0 { Err(io::Error::from_raw_os_error(error)) } else { Ok(result) }
    }
}

/// Of an attribute that is one number.
fn prctl(what: i32, value: libc::c_ulong) -> i32 {
    // SAFETY: numbers only.
    unsafe { libc::prctl(what, value, 0, 0, 0) }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sock_diag::Diag;
    use crate::{attributes, clone};
    use std::fs::File;
    use std::io::{Read, Write};

    /// A process in namespaces of its own, which lives as long as the second pipe is open.
    fn apart() -> Option<(i32, OwnedFd)> {
        let (tell, told) = (crate::fd::pipe(0).unwrap(), crate::fd::pipe(0).unwrap());
        match clone::fork_with(0, 0).unwrap() {
            0 => {
                drop(told.1);
                let made = leave(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).is_ok();
                let _ = File::from(tell.1).write_all(&[u8::from(made)]);
                let _ = File::from(told.0).read(&mut [0]);
                attributes::exit_now(0)
            }
            child => {
                drop(tell.1);
                let mut made = [0];
                File::from(tell.0).read_exact(&mut made).unwrap();
                (made == [1]).then_some((child, told.1))
            }
        }
    }

    #[test]
    fn a_socket_is_made_in_the_network_of_another_process() {
        let Some((child, lives)) = apart() else {
            return println!("not run: this test needs user namespaces");
        };
        let open = |kind: &str| OwnedFd::from(File::open(format!("/proc/{child}/ns/{kind}")).unwrap());
        let network = Network::new(open("net"), Some(open("user")));
        let own = crate::socket::new(libc::AF_UNIX, libc::SOCK_DGRAM, 0).unwrap();
        let Ok(here) = of_socket(own.as_fd()) else { return };
        let made = network.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let (one, two) = network.pair(libc::SOCK_STREAM).unwrap();
        let there = of_socket(made.as_fd()).unwrap();
        assert_ne!(there, here);
        assert_eq!([&one, &two].map(|end| of_socket(end.as_fd()).unwrap()), [there; 2]);
        let inode = |end: &OwnedFd| {
            use std::os::unix::fs::MetadataExt;
            File::from(end.try_clone().unwrap()).metadata().unwrap().ino()
        };
        let found = Diag::of(&network).unwrap().unix_socket(inode(&one)).unwrap();
        assert_eq!(found.peer, Some(inode(&two)));
        assert!(Diag::here().unwrap().unix_socket(inode(&one)).is_err(), "it is not in this one");
        drop(lives);
        crate::spawn::wait(child, true).unwrap();
    }
}
