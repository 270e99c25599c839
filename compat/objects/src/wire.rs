//! Messages between a client and the server of a store, one each way at a time, over a unix socket that keeps message
//! boundaries (SOCK_SEQPACKET). JSON: they are few, and the objects themselves go through buffers.
//!
//! A client is one rank of one set of objects. It sends a [`Request`] and reads one [`Answer`], but for those requests
//! that [`Request::is_answered`] says have none: what goes wrong with them is told by the next [`Request::Wait`].
//! ```text
//! Open -> Opened
//! put:      Room -> Buffer (with a descriptor) ... the client copies ... Put          (no answer)
//! next put:                                        the client copies ... Put ahead -> Buffer, or NoBuffer
//! restore:  Restore -> Buffer (with a descriptor) ... the client copies ... Restored  (no answer)
//! ```
//! A put that asks for a buffer ahead gets it while its client computes: the next put waits for no answer. The server
//! may take such a buffer back by its `closed`, as long as the client has not set `claimed` (see [`crate::buffer`]).
//!
//! The server ends with its last client. A client whose server has died may start another one, which finds what was
//! put: buffers are files.

use crate::buffer::check_name;
use holdfast_sys::scm;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Version of these messages and of the layout of buffers.
pub const PROTOCOL: u32 = 3;

/// Longest message, bytes.
pub const MAX_LEN: usize = 16 << 10;

/// Most buffers that one answer says are gone.
pub const MAX_GONE: usize = 256;

/// Most ranks of a set.
pub const MAX_RANKS: u32 = 1 << 16;

/// The folder of all sets of objects in a store.
pub fn folder(store: &Path) -> PathBuf {
    store.join("objects")
}

/// The server's socket.
pub fn socket(store: &Path) -> PathBuf {
    folder(store).join("serve.sock")
}

/// From a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The first message: [`Answer::Opened`].
    Open {
        /// [`PROTOCOL`].
        protocol: u32,
        /// Name of the set.
        set: String,
        /// This rank.
        rank: u32,
        /// How many ranks have versions of it: a version is whole when all of them have put theirs.
        ranks: u32,
        /// Lower tiers (`dir=PATH,keep=N`), the fastest first: those of the first client of the set count.
        tiers: Vec<String>,
        /// So many of the newest whole versions are kept in the store; `None`: all.
        keep: Option<u64>,
        /// The run that this client is of already, where its server has died: it goes on with that run. `None`: a
        /// client that begins.
        run: Option<u64>,
        /// The highest number of a version that it has put in that run. Higher ones were put after an image from which
        /// it was restarted since: they go.
        highest: Option<u64>,
    },
    /// Room for a version: [`Answer::Buffer`]. A version of this rank that is there already is replaced by what is
    /// [`Request::Put`]: by a program that was started again, or by a client whose server died in a put and which does
    /// not know whether its buffer was found.
    Room {
        /// Its number.
        version: u64,
        /// Bytes of the whole buffer ([`crate::buffer::Layout::len`]).
        bytes: u64,
    },
    /// The buffer has a version. No answer: it is in the server's hands; unless a buffer is asked for.
    Put {
        /// The buffer.
        buffer: u64,
        /// [`Answer::Buffer`] for the next version, of the same length, or [`Answer::NoBuffer`]: without waiting.
        ahead: bool,
    },
    /// The buffer is not needed: nothing is put. No answer.
    Abandon {
        /// The buffer.
        buffer: u64,
    },
    /// [`Answer::Done`] when all that this rank has put is in the store, [`Answer::Failed`] if something of it is not;
    /// each failure is told once.
    Wait,
    /// [`Answer::Finished`]: whether a [`Request::Wait`] would be answered now.
    IsFinished,
    /// [`Answer::Version`]: the newest version that is whole on all ranks.
    Newest {
        /// Only versions below this one.
        below: Option<u64>,
    },
    /// The version: [`Answer::Buffer`], filled; [`Answer::Missing`] where this rank has no such version.
    Restore {
        /// Its number.
        version: u64,
    },
    /// What was asked for by [`Request::Restore`] was copied. No answer.
    Restored {
        /// The buffer.
        buffer: u64,
    },
    /// This version will be restored, after those that were hinted at before. No answer.
    Hint {
        /// Its number.
        version: u64,
    },
    /// What was hinted at may be fetched from now on. No answer.
    Start,
    /// This version is needed no longer once it was restored, and need not reach the store. No answer.
    Discard {
        /// Its number.
        version: u64,
    },
    /// All versions of this rank go: [`Answer::Done`].
    Drop,
}

impl Request {
    /// Whether the server sends an [`Answer`].
    pub fn is_answered(&self) -> bool {
        use Request::{Abandon, Discard, Hint, Put, Restored, Start};
        !matches!(
            self,
            Put { ahead: false, .. }
                | Abandon { .. }
                | Restored { .. }
                | Hint { .. }
                | Start
                | Discard { .. }
        )
    }

    /// What is wrong with the names and numbers in it, if something is.
    ///
    /// # Errors
    /// What, for a message.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Request::Open { protocol, .. } if *protocol != PROTOCOL => Err(format!(
                "the client speaks version {protocol} of the protocol, the server version {PROTOCOL}: both must be of \
                 one installation"
            )),
            Request::Open { set, rank, ranks, .. } => {
                check_name(set)?;
                if *ranks == 0 || *ranks > MAX_RANKS {
                    return Err(format!("{ranks} ranks; 1 to {MAX_RANKS} are possible"));
                }
                if rank >= ranks {
                    return Err(format!("rank {rank} of {ranks} ranks: ranks begin at 0"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// From the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The set is open.
    Opened {
        /// Number of this run of the set: the same for all ranks that are there together.
        run: u64,
    },
    /// A buffer.
    Buffer {
        /// Its number.
        buffer: u64,
        /// Its length, bytes.
        bytes: u64,
        /// A descriptor came along: the client has not seen this buffer before.
        is_new: bool,
        /// Buffers that the client has seen and that are not there any more: mapped, they would take memory on and on.
        /// Their numbers are not used again.
        gone: Vec<u64>,
    },
    /// There is none to be had ahead.
    NoBuffer,
    /// It is done.
    Done,
    /// Whether all is in the store.
    Finished(bool),
    /// A version, if there is one.
    Version(Option<u64>),
    /// There is no such version. What cannot be looked at is [`Answer::Failed`].
    Missing,
    /// It could not be done.
    Failed {
        /// Object, cause and remedy.
        why: String,
    },
}

/// Sends a message, with a descriptor if one is given.
///
/// # Errors
/// EPIPE: the other side has gone; EMSGSIZE: it is longer than [`MAX_LEN`].
pub fn send<T: Serialize>(
    socket: BorrowedFd<'_>,
    message: &T,
    passed: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_LEN {
        return Err(io::Error::from_raw_os_error(MSGSIZE));
    }
    scm::send(socket, &bytes, passed)
}

/// EMSGSIZE (include/uapi/asm-generic/errno.h).
const MSGSIZE: i32 = 90;

/// Reads a message. `None`: the other side has gone.
///
/// # Errors
/// EAGAIN on a socket that does not wait; InvalidData: it is no such message.
pub fn receive<T: for<'a> Deserialize<'a>>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_LEN];
    let received = scm::receive(socket.as_fd(), &mut bytes)?;
    if received.len == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(bytes.get(..received.len).unwrap_or_default())?;
    Ok(Some((message, received.passed)))
}
