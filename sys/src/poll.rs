//! Waiting for several descriptors at once, and a descriptor that makes threads waitable.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// What a descriptor is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Something can be read.
    Read,
    /// Something can be read, or written.
    ReadOrWrite,
}

/// Waits until one of `fds` is readable, was hung up or failed, or until the time is over (`None`: for ever).
/// Answers for each of them in order. An interruption by a signal answers "none".
///
/// # Errors
/// ENOMEM.
pub fn readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let fds: Vec<_> = fds.iter().map(|fd| (*fd, Wanted::Read)).collect();
    ready(&fds, timeout)
}

/// The same, of descriptors some of which are to be written to.
///
/// # Errors
/// ENOMEM.
pub fn ready(fds: &[(BorrowedFd<'_>, Wanted)], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let flags = |wanted: &Wanted| match wanted {
        Wanted::Read => PollFlags::POLLIN,
        Wanted::ReadOrWrite => PollFlags::POLLIN | PollFlags::POLLOUT,
    };
    let mut entries: Vec<PollFd<'_>> =
        fds.iter().map(|(fd, wanted)| PollFd::new(*fd, flags(wanted))).collect();
    // Rounded up: a timeout that is about to be reached must not become a busy loop.
    let timeout = timeout.map_or(PollTimeout::NONE, |time| {
        PollTimeout::try_from(time.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut entries, timeout) {
        // An answer that is not known is one.
        Ok(_) => Ok(entries.iter().map(|entry| entry.any().unwrap_or(true)).collect()),
        Err(Errno::EINTR) => Ok(vec![false; fds.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Whether one is readable, was hung up or failed within this time, however often a signal interrupts.
///
/// # Errors
/// ENOMEM.
pub fn readable_within(fd: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if readable(&[fd], Some(left))? == [true] {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
    }
}

/// An eventfd: rung by any thread, waited for in a poll loop.
#[derive(Debug)]
pub struct Bell(EventFd);

impl Bell {
    /// A silent one.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> io::Result<Bell> {
        Ok(Bell(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?))
    }
    /// Makes it readable. Cannot fail in a way that matters: a full counter is readable already.
    pub fn ring(&self) {
        let _ = self.0.write(1);
    }
    /// Makes it silent again.
    pub fn hush(&self) {
        let _ = self.0.read();
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

    #[test]
    fn a_pipe_is_ready_to_write_until_it_is_full() {
        use nix::fcntl::OFlag;
        let (_read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let state = || ready(&[(write.as_fd(), Wanted::ReadOrWrite)], Some(Duration::ZERO)).unwrap();
        assert_eq!(state(), [true]);
        while nix::unistd::write(&write, &[0; 4096]).is_ok() {}
        assert_eq!(state(), [false]);
    }

    #[test]
    fn what_is_not_readable_within_the_time_is_not() {
        let bell = Bell::new().unwrap();
        assert!(!readable_within(bell.as_fd(), Duration::from_millis(1)).unwrap());
        bell.ring();
        assert!(readable_within(bell.as_fd(), Duration::ZERO).unwrap());
    }
}
