//! Messages over unix sockets that say who sent them, in the ids of whoever reads (SCM_CREDENTIALS, unix(7)): how a
//! process inside a pid namespace tells one outside which process it is. A number may be another process's by the time
//! it is read, so a message may bring a descriptor along (SCM_RIGHTS), such as one of the sender itself.
//!
//! # Safety
//! Control messages are built and taken apart in local arrays of words, by the layout of struct cmsghdr (cmsg(3)):
//! length, level, type, then struct ucred or the number of the descriptor; padded to words.
#![allow(unsafe_code)]

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of a control message's header, of one with a ucred (pid, uid, gid), and of one with a descriptor.
const HEAD_LEN: usize = 16;
const IDS_LEN: usize = HEAD_LEN + 12;
const PASSED_LEN: usize = HEAD_LEN + 4;
/// Words of both.
const IDS_WORDS: usize = IDS_LEN.div_ceil(8);
const PASSED_WORDS: usize = PASSED_LEN.div_ceil(8);

/// A message that was read.
#[derive(Debug)]
pub struct Received {
    /// Its length, bytes. 0: the other end was closed.
    pub len: usize,
    /// The process that sent it; 0: not told, or without an id here.
    pub pid: i32,
    /// What came along.
    pub passed: Option<OwnedFd>,
}

/// Level and type of a control message, as one word.
const fn kind(of: i32) -> u64 {
    libc::SOL_SOCKET.cast_unsigned() as u64 | (of.cast_unsigned() as u64) << 32
}

/// Asks for the sender with every message that is read here.
///
/// # Errors
/// ENOTSOCK.
pub fn expect(socket: BorrowedFd<'_>) -> io::Result<()> {
    crate::fd::set_socket_option(socket, libc::SO_PASSCRED, 1)
}

/// Sends a message with the ids of the caller, and a descriptor if one is given.
///
/// # Errors
/// EPIPE: the other end is gone. ETOOMANYREFS: the user has too many descriptors under way in sockets.
pub fn send(socket: BorrowedFd<'_>, data: &[u8], passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
    // SAFETY: no arguments; cannot fail.
    let (pid, uid, gid) = unsafe { (libc::getpid(), libc::getuid(), libc::getgid()) };
    let ids = u64::from(pid.cast_unsigned()) | u64::from(uid) << 32;
    let number = passed.map_or(0, |passed| passed.as_raw_fd().cast_unsigned());
    let mut control = [
        IDS_LEN as u64,
        kind(libc::SCM_CREDENTIALS),
        ids,
        u64::from(gid),
        PASSED_LEN as u64,
        kind(libc::SCM_RIGHTS),
        u64::from(number),
    ];
    let mut vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 8 * if passed.is_some() { IDS_WORDS + PASSED_WORDS } else { IDS_WORDS };
    // SAFETY: the message describes `data` and `control`, both only read and alive through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    check(sent as i64).map(|_| ())
}

/// Reads a message from a socket that was asked for the senders ([`expect`]).
///
/// # Errors
/// EAGAIN; ECONNRESET.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = [0_u64; IDS_WORDS + PASSED_WORDS];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // Without the padding at the end: after the sender there is room for one, and the kernel closes all others
    // (net/core/scm.c, scm_detach_fds).
    message.msg_controllen = IDS_WORDS * 8 + PASSED_LEN;
    let got = loop {
        // SAFETY: the message describes `buffer` and `control`, both writable and alive through the call.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match check(got as i64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    let mut received = Received { len: usize::try_from(got).unwrap_or(0), pid: 0, passed: None };
    let mut rest = &control[..message.msg_controllen.div_ceil(8).min(control.len())];
    while let &[len, of, first, ..] = rest {
        let len = usize::try_from(len).unwrap_or(0);
        let number = (first as u32).cast_signed();
        if of == kind(libc::SCM_CREDENTIALS) && len >= IDS_LEN {
            received.pid = number;
        } else if of == kind(libc::SCM_RIGHTS) && len >= PASSED_LEN {
            // SAFETY: the kernel has just opened it for this message, and nobody else knows its number.
            received.passed = Some(unsafe { OwnedFd::from_raw_fd(number) });
        }
        rest = rest.get(len.div_ceil(8).max(1)..).unwrap_or(&[]);
    }
    Ok(received)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn the_sender_is_told() {
        let (one, two) = crate::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        expect(two.as_fd()).unwrap();
        send(one.as_fd(), b"hello", None).unwrap();
        let mut buffer = [0_u8; 16];
        let Received { len, pid, passed } = receive(two.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..len], pid), (&b"hello"[..], std::process::id().cast_signed()));
        assert!(passed.is_none());
        drop(one);
        assert_eq!(receive(two.as_fd(), &mut buffer).unwrap().len, 0);
    }

    #[test]
    fn a_descriptor_comes_along() {
        let (one, two) = crate::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        expect(two.as_fd()).unwrap();
        let (reading, writing) = crate::fd::pipe(0).unwrap();
        send(one.as_fd(), b"x", Some(writing.as_fd())).unwrap();
        drop(writing);
        let Received { len, pid, passed } = receive(two.as_fd(), &mut [0_u8; 16]).unwrap();
        assert_eq!((len, pid), (1, std::process::id().cast_signed()));
        let mut passed = File::from(passed.unwrap());
        assert!(!crate::fd::is_inherited_by_programs(passed.as_raw_fd()));
        passed.write_all(b"through it").unwrap();
        drop(passed);
        let mut text = String::new();
        File::from(reading).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    }
}
