//! Bytes out of band (MSG_OOB) in what waited in a stream: sent again where they were, and received again where they
//! had been.
//!
//! Runs in the new process; called by [`super::objects`] for a stream with marks. How it fails: an error of send(2) or
//! recv(2); EINVAL: a mark lies outside of the data.

use crate::rebuild::socket_addresses::PATIENCE;
use holdfast_image::record::UrgentMark;
use holdfast_sys::fd;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Sends a stream again, from its sender to its receiver. `put_back` sends a piece of it so.
///
/// # Errors
/// See the head.
pub fn send_again(
    (sender, receiver): (&OwnedFd, &OwnedFd),
    data: &[u8],
    marks: &[UrgentMark],
    put_back: impl Fn(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let outside = || io::Error::from_raw_os_error(libc::EINVAL);
    let mut sent = 0;
    for mark in marks {
        let at = usize::try_from(mark.at).map_err(|_| outside())?;
        put_back(data.get(sent..at).ok_or_else(outside)?)?;
        // Of one that was received no reader will see what it is.
        let byte = if mark.waits { data.get(at..=at).ok_or_else(outside)? } else { &[0] };
        let flags = libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        fd::send(sender.as_fd(), byte, flags)?;
        sent = if mark.waits { at + 1 } else { at };
        if !mark.waits {
            receive(receiver)?;
        }
    }
    put_back(data.get(sent..).ok_or_else(outside)?)
}

/// Receives the byte, wherever the program wants it.
fn receive(receiver: &OwnedFd) -> io::Result<()> {
    let in_line = fd::socket_option(receiver.as_fd(), libc::SO_OOBINLINE)?;
    fd::set_socket_option(receiver.as_fd(), libc::SO_OOBINLINE, 0)?;
    let begun = Instant::now();
    let received = loop {
        match fd::receive(receiver.as_fd(), &mut [0], libc::MSG_OOB | libc::MSG_DONTWAIT) {
            // It is on its way.
            Err(error)
                if [Some(libc::EAGAIN), Some(libc::EINVAL)].contains(&error.raw_os_error())
                    && begun.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => break result.map(|_| ()),
        }
    };
    fd::set_socket_option(receiver.as_fd(), libc::SO_OOBINLINE, in_line)?;
    received
}
