//! Why a descriptor has no object in the image. Used by all of [`super`].

use std::io;

/// Why there is no object.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// It cannot be restored.
    Refused(String),
    /// Not now; it passes while the programs run on.
    Passing(String),
    /// It was closed while it was looked at.
    Closed(String),
    /// No process of the job has the other end. It may be on its way from one to another, in a message that waits in
    /// the way too: then both go by.
    Apart(String),
}

impl From<String> for Obstacle {
    fn from(reason: String) -> Obstacle {
        Obstacle::Refused(reason)
    }
}
impl From<&str> for Obstacle {
    fn from(reason: &str) -> Obstacle {
        Obstacle::Refused(reason.to_owned())
    }
}
impl Obstacle {
    /// A call on it failed.
    pub(super) fn of(what: &str, error: &io::Error) -> Obstacle {
        let text = format!("{what}{error}");
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::EBADF | libc::ESRCH) => Obstacle::Closed(text),
            _ => Obstacle::Refused(text),
        }
    }
}
