//! What can go wrong for a client. Each says object, cause and remedy: programs print it as it is.

use std::io;
use std::path::PathBuf;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the caller asks for cannot be: nothing was done.
    #[error("{0}")]
    Argument(String),
    /// Out of order: nothing was done.
    #[error("{0}")]
    State(String),
    /// There is no server, and none could be started.
    #[error("no server of objects at {}: {why}", socket.display())]
    NoServer {
        /// Where it would listen.
        socket: PathBuf,
        /// Cause and remedy.
        why: String,
    },
    /// The server of another user.
    #[error(
        "{} is a socket of user {uid}'s server; yours is not asked for: use a store of your own, which only you may \
         write to", socket.display()
    )]
    Foreign {
        /// Where it listens.
        socket: PathBuf,
        /// That user.
        uid: u32,
    },
    /// The server has died twice, or while it was asked something.
    #[error(
        "the server of {} has ended twice ({why}): what was put is in memory until the machine ends; \
         `holdfast serve --store` in a terminal says what is wrong with the store", socket.display()
    )]
    Died {
        /// Where it listened.
        socket: PathBuf,
        /// How that was seen.
        why: io::Error,
    },
    /// The server has not answered.
    #[error(
        "the server of {} has not answered {what} within {seconds} s: it may be stopped or its disk may hang; \
         $HOLDFAST_OBJECTS_WAIT sets how many seconds are waited for", socket.display()
    )]
    Silent {
        /// Where it listens.
        socket: PathBuf,
        /// What.
        what: &'static str,
        /// How long was waited.
        seconds: u64,
    },
    /// The server says why it could not be done.
    #[error("{0}")]
    Refused(String),
    /// What the server says or gives is not what it can be.
    #[error("the server of {} gives {what}: client and server must be of one installation", socket.display())]
    Protocol {
        /// Where it listens.
        socket: PathBuf,
        /// What.
        what: String,
    },
    /// A system call of the client.
    #[error("objects: {call}: {why}")]
    System {
        /// Which, with what.
        call: &'static str,
        /// Its error.
        why: io::Error,
    },
    /// A child of fork.
    #[error(
        "this process is a child (fork) of the one that has opened the set \"{set}\", whose connection is not \
         for it; it may open it anew, under another rank"
    )]
    Forked {
        /// Name of the set.
        set: String,
    },
    /// That version is not there.
    #[error("version {version} of \"{set}\" is not there for rank {rank}")]
    NoVersion {
        /// Name of the set.
        set: String,
        /// Rank.
        rank: u32,
        /// Its number.
        version: u64,
    },
    /// That version has no such object.
    #[error("version {version} of \"{set}\" has no object \"{key}\"")]
    NoObject {
        /// Name of the set.
        set: String,
        /// Number of the version.
        version: u64,
        /// The object.
        key: String,
    },
    /// It has another size.
    #[error(
        "object \"{key}\" has {stored} bytes in version {version}, and {wanted} are asked for: nothing was restored"
    )]
    Size {
        /// The object.
        key: String,
        /// Number of the version.
        version: u64,
        /// Its size there, bytes.
        stored: u64,
        /// The size of the memory, bytes.
        wanted: u64,
    },
}

/// A system call has failed.
pub(super) fn system(call: &'static str) -> impl Fn(io::Error) -> Error {
    move |why| Error::System { call, why }
}
