//! The buffers of a socket: their sizes, and data that were on their way.
//!
//! Runs in the new process; called by [`super::objects`] and [`super::sockets`]. How it fails: an error of send(2); the
//! sizes are best effort.

use super::socket_addresses::PATIENCE;
use crate::connection::{self, Local};
use holdfast_sys::{fd, scm};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// SO_BUF_LOCK (asm-generic/socket.h).
const SO_BUF_LOCK: i32 = 72;

/// Puts a piece of a stream on its way again, as of this sender. The receiver reads later: all must fit into the
/// buffers.
///
/// # Errors
/// ENOBUFS: it does not fit.
pub fn refill(
    (end, _): (&OwnedFd, &OwnedFd),
    data: &[u8],
    sender: Option<scm::Sender>,
    passed: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let (mut rest, mut passed, begun) = (data, passed, Instant::now());
    while !rest.is_empty() {
        match scm::send_along(end.as_fd(), rest, sender, &[], passed) {
            // They come with the first byte.
            Ok(sent) => (rest, passed) = (&rest[sent..], &[]),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if begun.elapsed() > PATIENCE => return Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Err(_) => {
                grow(end, data.len());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    Ok(())
}

/// The same of TCP, which tells of no sender and takes nothing along: the receiver gets the room.
///
/// # Errors
/// ENOBUFS: it does not fit.
pub fn fill(
    (from, to): (&OwnedFd, &OwnedFd),
    data: &[u8],
    _: Option<scm::Sender>,
    _: &[BorrowedFd<'_>],
) -> io::Result<()> {
    connection::fill(&Local::in_the_making(from), &Local::in_the_making(to), data)
}

/// Sets the buffer to so much, and leaves the size to the kernel again.
fn grow(end: &OwnedFd, len: usize) {
    let locked = fd::socket_option(end.as_fd(), SO_BUF_LOCK).unwrap_or(0);
    set_buffer(end, libc::SO_SNDBUF, u32::try_from(len.saturating_mul(4)).unwrap_or(u32::MAX));
    let _ = fd::set_socket_option(end.as_fd(), SO_BUF_LOCK, locked);
}

/// Sets SO_SNDBUF or SO_RCVBUF as the kernel reports it (twice what is asked for), where it differs. Best effort: the
/// limits of this host may be lower.
pub fn set_buffer(socket: &OwnedFd, option: i32, wanted: u32) {
    // For the privileged, beyond the limits (asm-generic/socket.h).
    const SO_SNDBUFFORCE: i32 = 32;
    const SO_RCVBUFFORCE: i32 = 33;
    if fd::socket_option(socket.as_fd(), option).is_ok_and(|now| now.cast_unsigned() == wanted) {
        return;
    }
    let force = if option == libc::SO_SNDBUF { SO_SNDBUFFORCE } else { SO_RCVBUFFORCE };
    let half = (wanted / 2).cast_signed();
    if fd::set_socket_option(socket.as_fd(), force, half).is_err() {
        let _ = fd::set_socket_option(socket.as_fd(), option, half);
    }
}
