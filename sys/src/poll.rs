//! Waiting for several descriptors at once, and the two descriptors that make threads and signals waitable.
//!
//! # Safety
//! All calls take descriptors that the caller borrows, numbers, and locals of the right type.
#![allow(unsafe_code)]

use crate::check;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Waits until one of `fds` is readable, was hung up or failed, or until the time is over (`None`: for ever).
/// Answers for each of them in order. An interruption by a signal answers "none".
///
/// # Errors
/// ENOMEM.
pub fn readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let mut entries: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    // Rounded up: a timeout that is about to be reached must not become a busy loop.
    let milliseconds =
        timeout.map_or(-1, |time| i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or(0);
    // SAFETY: `entries` holds `count` valid pollfds and is alive through the call.
    match check(i64::from(unsafe { libc::poll(entries.as_mut_ptr(), count, milliseconds) })) {
        Ok(_) => Ok(entries.iter().map(|entry| entry.revents != 0).collect()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(vec![false; fds.len()]),
        Err(error) => Err(error),
    }
}

/// An eventfd: rung by any thread, waited for in a poll loop.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent one.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> io::Result<Bell> {
        // SAFETY: numbers only.
        let fd = check(i64::from(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }))?;
        // SAFETY: the call returned a new descriptor.
        Ok(Bell(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) }))
    }
    /// Makes it readable. Cannot fail in a way that matters: a full counter is readable already.
    pub fn ring(&self) {
        let one = 1_u64;
        // SAFETY: writes 8 bytes from a local.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
    /// Makes it silent again.
    pub fn hush(&self) {
        let mut count = 0_u64;
        // SAFETY: reads 8 bytes into a local; does not block.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_is_readable_from_ring_to_hush() {
        let (one, two) = (Bell::new().unwrap(), Bell::new().unwrap());
        let state = || readable(&[one.as_fd(), two.as_fd()], Some(Duration::ZERO)).unwrap();
        assert_eq!(state(), [false, false]);
        two.ring();
        two.ring();
        assert_eq!(state(), [false, true]);
        two.hush();
        assert_eq!(state(), [false, false]);
    }
}
