//! Messages over unix sockets that say who sent them, in the ids of whoever reads (SCM_CREDENTIALS, unix(7)): how a
//! process inside a pid namespace tells one outside which process it is.
//!
//! # Safety
//! Control messages are built and taken apart in local arrays of words, by the layout of struct cmsghdr (cmsg(3)):
//! length, level, type, then struct ucred.
#![allow(unsafe_code)]

use crate::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of a control message with a ucred: header 16, pid, uid, gid; padded to words.
const CONTROL_WORDS: usize = 4;
const CONTROL_LEN: usize = 16 + 12;

/// Asks for the sender with every message that is read here.
///
/// # Errors
/// ENOTSOCK.
pub fn expect(socket: BorrowedFd<'_>) -> io::Result<()> {
    crate::fd::set_socket_option(socket, libc::SO_PASSCRED, 1)
}

/// Sends a message with the ids of the caller.
///
/// # Errors
/// EPIPE: the other end is gone.
pub fn send(socket: BorrowedFd<'_>, data: &[u8]) -> io::Result<()> {
    // SAFETY: no arguments; cannot fail.
    let (pid, uid, gid) = unsafe { (libc::getpid(), libc::getuid(), libc::getgid()) };
    let head =
        u64::from(libc::SOL_SOCKET.cast_unsigned()) | u64::from(libc::SCM_CREDENTIALS.cast_unsigned()) << 32;
    let ids = u64::from(pid.cast_unsigned()) | u64::from(uid) << 32;
    let mut control = [CONTROL_LEN as u64, head, ids, u64::from(gid)];
    let mut vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_WORDS * 8;
    // SAFETY: the message describes `data` and `control`, both only read and alive through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    check(sent as i64).map(|_| ())
}

/// Reads a message: its length and the process that sent it (0: not told, or without an id here). Length 0: the other
/// end was closed.
///
/// # Errors
/// EAGAIN; ECONNRESET.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, i32)> {
    let mut control = [0_u64; CONTROL_WORDS * 2];
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let got = loop {
        // SAFETY: the message describes `buffer` and `control`, both writable and alive through the call.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match check(got as i64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    let head =
        u64::from(libc::SOL_SOCKET.cast_unsigned()) | u64::from(libc::SCM_CREDENTIALS.cast_unsigned()) << 32;
    let told =
        message.msg_controllen >= CONTROL_LEN && control[0] >= CONTROL_LEN as u64 && control[1] == head;
    let pid = if told { (control[2] as u32).cast_signed() } else { 0 };
    Ok((usize::try_from(got).unwrap_or(0), pid))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_sender_is_told() {
        let (one, two) = crate::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        expect(two.as_fd()).unwrap();
        send(one.as_fd(), b"hello").unwrap();
        let mut buffer = [0_u8; 16];
        let (len, pid) = receive(two.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..len], pid), (&b"hello"[..], std::process::id().cast_signed()));
        drop(one);
        assert_eq!(receive(two.as_fd(), &mut buffer).unwrap().0, 0);
    }
}
