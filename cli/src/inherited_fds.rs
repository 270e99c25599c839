//! Descriptors that were handed down to `holdfast` and are meant for the program: its standard streams, a batch
//! system's sockets, a shell's `3>log`.
//!
//! Their identities go to the agent: pipes and sockets among them lead outside, and are taken from `holdfast restart`
//! again. Once the program runs the front closes its own copies of those above 2, or their readers would never see
//! the end of file.

use crate::exit::Failure;
use holdfast_sys::{fd, procfs};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InheritedFd {
    /// Its number.
    pub fd: i32,
    /// Device of what it refers to.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

impl fmt::Display for InheritedFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.fd, self.device, self.inode)
    }
}

impl FromStr for InheritedFd {
    type Err = String;
    fn from_str(text: &str) -> Result<InheritedFd, String> {
        let wrong = || format!("{text:?} is not FD:DEVICE:INODE");
        let mut parts = text.split(':');
        let mut next = || parts.next().and_then(|part| part.parse::<u64>().ok()).ok_or_else(wrong);
        let (number, device, inode) = (next()?, next()?, next()?);
        let fd = i32::try_from(number).map_err(|_| wrong())?;
        if parts.next().is_some() { Err(wrong()) } else { Ok(InheritedFd { fd, device, inode }) }
    }
}

impl InheritedFd {
    /// Number, device and inode.
    pub fn identity(&self) -> (i32, u64, u64) {
        (self.fd, self.device, self.inode)
    }

    /// What a process that has just been started has open.
    ///
    /// # Errors
    /// It is gone.
    pub fn of_process(pid: i32) -> std::io::Result<Vec<InheritedFd>> {
        let numbers = procfs::descriptors(pid, pid)?;
        Ok(numbers.into_iter().filter_map(|number| InheritedFd::look(pid, number)).collect())
    }

    /// What a process has under a number.
    pub fn look(pid: i32, number: i32) -> Option<InheritedFd> {
        let about = fs::metadata(format!("/proc/{pid}/fd/{number}")).ok()?;
        Some(InheritedFd { fd: number, device: about.dev(), inode: about.ino() })
    }
}

/// All that the program will inherit. Called before any descriptor of ours is opened without FD_CLOEXEC (none ever is).
///
/// # Errors
/// /proc cannot be read.
pub fn all() -> Result<Vec<InheritedFd>, Failure> {
    let own = std::process::id().cast_signed();
    let numbers = procfs::descriptors(own, own)
        .map_err(|error| Failure::system("listing our own descriptors in /proc", &error))?;
    Ok(numbers
        .into_iter()
        .filter(|&number| number <= 2 || fd::is_inherited_by_programs(number))
        .filter_map(|number| InheritedFd::look(own, number))
        .collect())
}

/// Closes our copies. Standard streams stay: messages go to standard error.
pub fn close_own(inherited_fds: &[InheritedFd]) {
    for entry in inherited_fds.iter().filter(|entry| entry.fd > 2) {
        // Closed when dropped; one that is closed already is no loss.
        drop(fd::inherited(entry.fd));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn identities_survive_the_command_line() {
        let entry = InheritedFd { fd: 7, device: u64::MAX, inode: 12 };
        assert_eq!(entry.to_string().parse::<InheritedFd>().unwrap(), entry);
        for text in ["", "7", "7:1", "7:1:2:3", "-7:1:2", "x:1:2", "99999999999:1:2"] {
            assert!(text.parse::<InheritedFd>().is_err(), "{text}");
        }
    }
}
