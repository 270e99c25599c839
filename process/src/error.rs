//! Errors of stopping and injecting. The policy: whatever fails, the program is put back and let go first; the error
//! then says what failed, on what, and whether to try again.

use std::io;
use thiserror::Error;

/// A failure while threads are traced.
#[derive(Debug, Error)]
pub enum TraceError {
    /// A system call on a thread or its files failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The thread ended.
    #[error("thread {tid} ended during the stop")]
    Died {
        /// Its id.
        tid: i32,
    },
    /// An injected call did not come back.
    #[error("thread {tid} did not come back from an injected call")]
    Stuck {
        /// Its id.
        tid: i32,
    },
    /// Something else interrupted and continued its call before.
    #[error(
        "thread {tid} is in a call that a signal stop or another tracer interrupted before; try again when it has returned"
    )]
    UnknownCall {
        /// Its id.
        tid: i32,
    },
}
