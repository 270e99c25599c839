//! The buffers of a socket: their sizes, and data that were on their way.
//!
//! Runs in the new process; called by [`super::objects`] and [`super::sockets`]. How it fails: an error of send(2); the
//! sizes are best effort.

use crate::connection::{self, Local};
use crate::rebuild::socket_addresses::PATIENCE;
use holdfast_sys::{fd, scm};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// SO_BUF_LOCK (asm-generic/socket.h).
const SO_BUF_LOCK: i32 = 72;

/// Puts a piece of a unix stream on its way again, as of this sender. The receiver reads later: all must fit into the
/// buffer of the sender, which gets more room meanwhile. It may have been smaller than what waits: it counts memory, so
/// that a part of a message that was read takes as much as the whole (net/unix/af_unix.c, unix_stream_read_generic),
/// and the program may have made it smaller since.
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
    let before = fd::socket_option(end.as_fd(), libc::SO_SNDBUF)?.cast_unsigned();
    let locked = fd::socket_option(end.as_fd(), SO_BUF_LOCK).unwrap_or(0);
    let sent = loop {
        if rest.is_empty() {
            break Ok(());
        }
        match scm::send_along(end.as_fd(), rest, sender, &[], passed) {
            // They come with the first byte.
            Ok(sent) => (rest, passed) = (&rest[sent..], &[]),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break Err(error),
            Err(_) if begun.elapsed() > PATIENCE => break Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Err(_) => {
                let room = data.len().saturating_mul(4).saturating_add(before as usize);
                set_buffer(end, libc::SO_SNDBUF, u32::try_from(room).unwrap_or(u32::MAX));
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    set_buffer(end, libc::SO_SNDBUF, before);
    let _ = fd::set_socket_option(end.as_fd(), SO_BUF_LOCK, locked);
    sent
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
