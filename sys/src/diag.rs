//! Peers of unix sockets, by NETLINK_SOCK_DIAG (sock_diag(7); allowed to every user).
//!
//! # Safety
//! A netlink socket, one send and one recv with local buffers; the answer is parsed from bytes with bounds checked.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;

/// Inode of the socket that the unix socket with this inode is connected to; `None`: not connected.
///
/// # Errors
/// The kernel has no unix diag, or no such socket.
pub fn unix_peer(inode: u64) -> io::Result<Option<u64>> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    const NETLINK_SOCK_DIAG: i32 = 4;
    // SAFETY: numbers only; the result is a new descriptor.
    let fd = crate::check(i64::from(unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG) }))?;
    // SAFETY: as above.
    let socket = unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) };
    let mut request = Vec::with_capacity(40);
    request.extend_from_slice(&40_u32.to_ne_bytes()); // struct nlmsghdr
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    request.extend_from_slice(&[1, 0, 0, 0]); // struct unix_diag_req: AF_UNIX
    request.extend_from_slice(&u32::MAX.to_ne_bytes()); // all states
    request.extend_from_slice(&u32::try_from(inode).unwrap_or(0).to_ne_bytes());
    request.extend_from_slice(&UDIAG_SHOW_PEER.to_ne_bytes());
    request.extend_from_slice(&[0xff; 8]); // no cookie
    crate::fd::send(socket.as_fd(), &request, 0)?;
    let mut answer = [0_u8; 1024];
    let len = crate::fd::receive(socket.as_fd(), &mut answer, 0)?;
    parse(answer.get(..len).unwrap_or(&[]))
}

fn parse(answer: &[u8]) -> io::Result<Option<u64>> {
    const NLMSG_ERROR: u16 = 2;
    let half = |at: usize| answer.get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    let word = |at: usize| answer.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    if half(4) == Some(NLMSG_ERROR) {
        let errno = word(16).unwrap_or(0).cast_signed();
        return Err(io::Error::from_raw_os_error(errno.wrapping_neg()));
    }
    let mut at = 16 + 16; // nlmsghdr, unix_diag_msg
    while let (Some(len), Some(kind)) = (half(at), half(at + 2)) {
        if kind == UNIX_DIAG_PEER {
            return Ok(word(at + 4).map(u64::from));
        }
        if len < 4 {
            break;
        }
        at += usize::from(len).next_multiple_of(4);
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    #[test]
    fn the_two_ends_of_a_pair_find_each_other() {
        use std::os::fd::AsRawFd;
        let (a, b) = crate::fd::socketpair(libc::SOCK_STREAM).unwrap();
        let inode = |fd: &std::os::fd::OwnedFd| {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().ino()
        };
        assert_eq!(super::unix_peer(inode(&a)).unwrap(), Some(inode(&b)));
    }
}
