//! Errors of stopping and injecting. The policy: whatever fails, the program is put back and resumed first; the error
//! then says what failed, on what, and whether to try again.

use crate::gang::GangError;
use crate::inject::call_names;
use holdfast_image::refusal::{Refusal, Subject};
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
    #[error("thread {tid} did not return from an injected call")]
    Stuck {
        /// Its id.
        tid: i32,
    },
    /// A seccomp filter of the program's own forbids a call of ours: none was made.
    #[error(
        "its seccomp filter {filter} forbids {}, which a checkpoint needs: only root, outside of containers, can \
         checkpoint it",
        call_names::name(*call)
    )]
    Forbidden {
        /// Its id as it knows it.
        tid: i32,
        /// The number of the call.
        call: u32,
        /// Which of its filters, counted from 1.
        filter: usize,
    },
    /// Something else interrupted and continued its call before.
    #[error(
        "thread {tid} is in a call that a signal stop or another tracer interrupted before; \
         try again when it has returned"
    )]
    UnknownCall {
        /// Its id.
        tid: i32,
    },
}

/// Why there is no cut. The program runs on in every case but `Gone`.
#[derive(Debug, Error)]
pub enum CutError {
    /// It holds something that cannot be restored.
    #[error("{}", lines(.0))]
    Refused(Vec<Refusal>),
    /// Not now; try again.
    #[error("{what}")]
    Busy {
        /// What was in the way.
        what: String,
    },
    /// A mapping changed between the look before the stop and the stop; try again, with
    /// [`crate::CutOptions::changing`].
    #[error("{what}")]
    Changed {
        /// Which, and how.
        what: String,
    },
    /// Processes of the job come and go, or have not registered (yet), or something is under way that no image can
    /// hold; try again in a moment.
    #[error("{}", lines(.0))]
    Unsettled(Vec<Refusal>),
    /// The other members of the gang and this one have not made it together.
    #[error("{0}")]
    Gang(#[from] GangError),
    /// The program ended.
    #[error("the program has ended")]
    Gone,
    /// A call failed.
    #[error("{what}")]
    Failed {
        /// Which, and why.
        what: String,
    },
}

/// One line per refusal.
fn lines(refusals: &[Refusal]) -> String {
    refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("\n")
}

impl From<TraceError> for CutError {
    fn from(error: TraceError) -> CutError {
        let what = error.to_string();
        match error {
            TraceError::UnknownCall { .. } | TraceError::Died { .. } => CutError::Busy { what },
            TraceError::Io(error) => error.into(),
            TraceError::Forbidden { tid, .. } => {
                CutError::Refused(vec![Refusal { subject: Subject::Thread { tid }, reason: what }])
            }
            TraceError::Stuck { .. } => CutError::Failed { what },
        }
    }
}

impl From<io::Error> for CutError {
    fn from(error: io::Error) -> CutError {
        let what = error.to_string();
        match error.raw_os_error() {
            // A thread has ended meanwhile; if it was the program, the next try says so.
            Some(libc::ESRCH) => CutError::Busy { what },
            _ => CutError::Failed { what },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_no_reason_to_give_up() {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        assert!(matches!(CutError::from(gone()), CutError::Busy { .. }));
        assert!(matches!(CutError::from(TraceError::Io(gone())), CutError::Busy { .. }));
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(matches!(CutError::from(full), CutError::Failed { .. }));
    }
}
