//! Errors of one process among several: with its name, and told from its end.
//!
//! Used wherever processes are looked at one by one, on the tracer thread.

use crate::error::CutError;
use crate::refuse;
use crate::stop::interrupt;

/// The same error, with the name of the process where there are several.
pub fn named(error: CutError, several: bool, pid: i32) -> CutError {
    match error {
        error if !several => error,
        CutError::Refused(refusals) => {
            let comm = refuse::name_of(pid);
            CutError::Refused(refusals.into_iter().map(|refusal| refusal.of(pid, &comm)).collect())
        }
        CutError::Gone => just_ended(pid),
        CutError::Busy { .. } | CutError::Changed { .. } | CutError::Failed { .. }
            if interrupt::has_ended(pid) =>
        {
            just_ended(pid)
        }
        CutError::Busy { what } => CutError::Busy { what: format!("process {pid}: {what}") },
        CutError::Changed { what } => CutError::Changed { what: format!("process {pid}: {what}") },
        CutError::Failed { what } => CutError::Failed { what: format!("process {pid}: {what}") },
        error @ (CutError::Unsettled(_) | CutError::Gang(_)) => error,
    }
}

/// One of several processes has ended.
pub fn just_ended(pid: i32) -> CutError {
    CutError::Unsettled(vec![refuse::process(pid, "it has just ended")])
}
