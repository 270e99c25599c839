//! Errors of a restart. Each names the object, the cause, and what to do; none leaves a half-built process behind.

use crate::error::TraceError;
use crate::gang::GangError;
use holdfast_image::pages::PageError;
use std::fmt;
use std::io;
use thiserror::Error;

/// One side of a restart, as it is called where it went away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// The front.
    Front,
    /// The agent of the job.
    Agent,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Peer::Front => "holdfast restart",
            Peer::Agent => "the agent",
        })
    }
}

/// Why a restart failed.
#[derive(Debug, Error)]
pub enum RebuildError {
    /// A system call of the front or the agent failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the object's name.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Pages of the image cannot be read or put where they belong.
    #[error("{what}: {source}")]
    Pages {
        /// What was being done, with the object's name.
        what: String,
        /// The image's answer.
        source: PageError,
    },
    /// A call that the new process made on the way failed.
    #[error("the new process could not {what}: {source}")]
    Call {
        /// What, with the object's name.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// No way to give the program its ids.
    #[error("the program cannot get its process ids back: {0}")]
    Ids(String),
    /// An id that was free a moment ago is another process's now: another try finds a way without it.
    #[error("the new process could not {0}: another process has taken its id meanwhile; restart again")]
    IdTaken(String),
    /// A file of the program is not as it must be.
    #[error("{path}: {what}")]
    File {
        /// Which.
        path: String,
        /// What is wrong and what to do.
        what: String,
    },
    /// The user wants no restart any more.
    #[error("interrupted by a signal before the program ran")]
    Interrupted,
    /// Told by the new process before it became the seed.
    #[error("{0}")]
    Reported(String),
    /// Tracing failed.
    #[error(
        "the new process could not be traced: {0}; strace and gdb must not follow the restart, and \
         /proc/sys/kernel/yama/ptrace_scope must be 0 or 1"
    )]
    Trace(#[from] TraceError),
    /// The new process ended.
    #[error("the new process was ended ({how}) while it was being rebuilt; restart again")]
    Ended {
        /// By what.
        how: String,
    },
    /// One of several processes.
    #[error("process {pid}: {error}")]
    In {
        /// Its id, as the program knows it.
        pid: i32,
        /// What is wrong with it.
        error: Box<RebuildError>,
    },
    /// The other side of the restart went away.
    #[error("{0} went away during the restart; restart again")]
    PeerGone(Peer),
    /// Something on this host is in the way.
    #[error("{0}")]
    Refused(String),
    /// Another member of the gang has failed.
    #[error("{0}")]
    Gang(#[from] GangError),
    /// Another program has what only one can have: an address, a name.
    #[error("{0}")]
    InUse(String),
    /// The image does not fit this host, or contradicts itself.
    #[error("{0}")]
    Image(String),
}

impl RebuildError {
    /// Whether the same restart may well succeed if it is tried again at once. Nothing on the host was changed by
    /// this one.
    pub fn is_transient(&self) -> bool {
        match self {
            RebuildError::IdTaken(_) => true,
            RebuildError::In { error, .. } => error.is_transient(),
            _ => false,
        }
    }
    /// The same where there is no new process: in a rollback, whose calls the program's own processes make.
    pub(crate) fn of_rollback(self) -> RebuildError {
        match self {
            RebuildError::Call { what, source } => {
                RebuildError::Io { what: format!("the program could not {what}"), source }
            }
            RebuildError::Trace(error) => RebuildError::Refused(format!(
                "the program could not be traced: {error}; strace and gdb must not follow it"
            )),
            RebuildError::Ended { how } => RebuildError::Refused(format!(
                "a process of the program was ended ({how}) while it went back"
            )),
            RebuildError::In { pid, error } => RebuildError::In { pid, error: Box::new(error.of_rollback()) },
            other => other,
        }
    }
    /// An error of a system call, with what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> RebuildError {
        let what = what.into();
        move |source| RebuildError::Io { what, source }
    }
    /// An error of the image's pages, with what was being done.
    pub(crate) fn pages(what: impl Into<String>) -> impl FnOnce(PageError) -> RebuildError {
        let what = what.into();
        move |source| RebuildError::Pages { what, source }
    }
    pub(crate) fn file(path: &holdfast_image::bytes::Name, what: impl Into<String>) -> RebuildError {
        RebuildError::File { path: path.to_string(), what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollback_has_no_new_process() {
        let refused = || io::Error::from_raw_os_error(libc::EPERM);
        let errors = [
            RebuildError::Call { what: "unmap 0x1000".into(), source: refused() },
            RebuildError::Trace(TraceError::Died { tid: 7 }),
            RebuildError::Ended { how: "by signal 9".into() },
        ];
        for error in errors {
            assert!(error.to_string().contains("the new process"), "{error}");
            let within = RebuildError::In { pid: 7, error: Box::new(error) }.of_rollback().to_string();
            assert!(within.starts_with("process 7: ") && !within.contains("new process"), "{within}");
            assert!(!within.contains("restart"), "{within}");
        }
        let call = RebuildError::Call { what: "unmap 0x1000".into(), source: refused() }.of_rollback();
        assert!(call.to_string().starts_with("the program could not unmap 0x1000: "), "{call}");
    }
}
