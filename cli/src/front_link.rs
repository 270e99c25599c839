//! The link between `holdfast run`/`restart` and the agent that it started: a socketpair, one JSON message each.
//!
//! The agent tells of its readiness and of what the front must know for its exit code; the front tells when the program
//! has ended in a way that leaves no child to be followed, and its end of the link closes when it ends itself.

use crate::exit::{Exit, Failure, FailureKind};
use holdfast_image::Epoch;
use holdfast_process::rebuild::addresses::Pair;
use holdfast_sys::{fd, poll};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "tell", rename_all = "snake_case")]
pub enum Tell {
    /// At a restart, before it is ready: some of the addresses that sockets of the image, or their peers, have, and
    /// those that they get.
    Sockets {
        /// From, to.
        moved: Vec<Pair>,
    },
    /// The socket listens, the job is locked.
    Ready,
    /// Memory is being copied into the new processes.
    Progress {
        /// Bytes copied.
        done: u64,
        /// Bytes to be copied, as far as is known by now.
        total: u64,
    },
    /// Nothing is missing: the program runs as soon as the front has answered, or a moment later, whatever becomes of
    /// the agent.
    Resuming {
        /// What the user should know before it does.
        notes: Vec<String>,
    },
    /// From the front: that was said.
    Said,
    /// The program runs again.
    Restarted {
        /// Ids, restarts and times, one line.
        figures: String,
        /// What the user should know.
        notes: Vec<String>,
        /// Why not all memory was mapped, for who has asked for that.
        copied: Option<String>,
    },
    /// It could not be done; the agent ends.
    Failed {
        /// Exit code of the front.
        exit: Exit,
        /// What and why.
        message: String,
        /// See [`FailureKind`].
        kind: FailureKind,
    },
    /// At which signals an image is taken from now on, and the program is ended.
    Settings {
        /// An image.
        signal: Option<i32>,
        /// An image, and the end of the program.
        stop_signal: Option<i32>,
    },
    /// An image is committed.
    Committed {
        /// Its figures: one line.
        figures: String,
    },
    /// From the front: the program runs, and libholdfast is not in it.
    Started {
        /// Its id.
        pid: i32,
    },
    /// From the front: the program was killed or failed, so no daemon was left behind.
    Over,
    /// What the user should know of an image.
    Warning {
        /// One line.
        text: String,
    },
    /// Another member of the gang has failed or was lost.
    GangLost {
        /// Which, and why.
        why: String,
    },
    /// Checkpoints without a caller have failed again and again, and the job is `--strict`.
    Unprotected,
    /// The image is committed and the program is about to be ended.
    Stopping {
        /// Number of the image.
        epoch: Epoch,
    },
}

/// Pairs of addresses in one message: 100 bytes each, at most.
const PAIRS: usize = 500;

/// One end.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl From<OwnedFd> for Link {
    fn from(fd: OwnedFd) -> Link {
        Link(fd)
    }
}

impl Link {
    /// Sends; a front that has ended is no error.
    pub fn tell(&self, message: &Tell) {
        self.say(message, libc::MSG_DONTWAIT);
    }

    fn say(&self, message: &Tell, flags: i32) {
        if let Ok(text) = serde_json::to_vec(message) {
            let _ = fd::send(self.0.as_fd(), &text, libc::MSG_NOSIGNAL | flags);
        }
    }

    /// The agent is ready; the front, which waits for that, learns which sockets have other addresses. There may be
    /// more than one message can hold.
    pub fn tell_ready(&self, sockets: &[Pair]) {
        for moved in sockets.chunks(PAIRS) {
            self.say(&Tell::Sockets { moved: moved.to_vec() }, 0);
        }
        self.say(&Tell::Ready, 0);
    }

    /// Waits until the other end has said something, or has ended; no longer than that.
    pub fn wait(&self, most: Duration) {
        // A signal only makes it shorter.
        let _ = poll::readable(&[self.0.as_fd()], Some(most));
    }
    /// The next message; `None`: nothing there yet.
    ///
    /// # Errors
    /// UnexpectedEof: the other end is closed. InvalidData: not a message of ours.
    pub fn next(&self, block: bool) -> io::Result<Option<Tell>> {
        let mut buffer = vec![0_u8; holdfast_image::control::MAX_MESSAGE];
        match fd::receive(self.0.as_fd(), &mut buffer, if block { 0 } else { libc::MSG_DONTWAIT }) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => serde_json::from_slice(&buffer[..len]).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The failure that a closed link means.
pub fn lost(log: &std::path::Path) -> Failure {
    Failure::new(Exit::Internal, format!("the agent ended unexpectedly; see {}", log.display()))
}
