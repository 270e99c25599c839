//! Why there is no image: the one error of a checkpoint, as the agent's loop answers and logs it.

use crate::exit::{self, Exit};
use holdfast_image::control::Reply;
use holdfast_image::refusal::{Refusal, one_per_object};
use holdfast_tiers::StoreError;

/// Why there is no image.
#[derive(Clone, Debug)]
pub enum CheckpointError {
    /// Objects that are not supported.
    Refused(Vec<Refusal>),
    /// There is no program: it has ended, or is awaited.
    NoProgram {
        /// Which of these.
        awaited: bool,
    },
    /// No space.
    Full(String),
    /// The program could not be stopped in time, and the members of its gang have to try again together.
    Again(String),
    /// Another member of its gang is the reason.
    Elsewhere {
        /// An object there is not supported.
        refused: bool,
        /// Member, host and reason.
        line: String,
    },
    /// Anything else.
    Failed(String),
}

impl CheckpointError {
    /// The answer to the request.
    pub fn reply(&self) -> Reply {
        match self {
            CheckpointError::Refused(refusals) => Reply::Refused { reasons: bounded(refusals) },
            CheckpointError::NoProgram { awaited } => Reply::NoProgram { awaited: *awaited },
            CheckpointError::Full(message) => Reply::Full { message: message.clone() },
            CheckpointError::Elsewhere { refused: true, line } => {
                Reply::Refused { reasons: vec![bounded_line(line)] }
            }
            CheckpointError::Failed(line)
            | CheckpointError::Again(line)
            | CheckpointError::Elsewhere { refused: false, line } => {
                Reply::Error { message: bounded_line(line) }
            }
        }
    }
    /// One line for the status and the log.
    pub fn line(&self) -> String {
        match self {
            CheckpointError::Refused(refusals) => {
                one_per_object(refusals).iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")
            }
            CheckpointError::NoProgram { awaited: true } => {
                "the program has not loaded libholdfast yet".into()
            }
            CheckpointError::NoProgram { awaited: false } => "the program has ended".into(),
            CheckpointError::Full(message)
            | CheckpointError::Failed(message)
            | CheckpointError::Again(message)
            | CheckpointError::Elsewhere { line: message, .. } => message.clone(),
        }
    }
}

/// As much of a line as fits a message: another member may have had many reasons.
fn bounded_line(line: &str) -> String {
    const ROOM: usize = 32 * 1024;
    if line.len() <= ROOM {
        line.to_owned()
    } else {
        line.chars().take(ROOM / 4).collect::<String>() + " …"
    }
}

/// As many reasons as fit a message.
fn bounded(refusals: &[Refusal]) -> Vec<String> {
    const ROOM: usize = 32 * 1024;
    let mut room = ROOM;
    let mut kept: Vec<String> = Vec::new();
    let refusals = one_per_object(refusals);
    for reason in refusals.iter().map(Refusal::to_string) {
        if reason.len() > room {
            kept.push(format!("and {} more", refusals.len() - kept.len()));
            break;
        }
        room -= reason.len();
        kept.push(reason);
    }
    kept
}

impl From<StoreError> for CheckpointError {
    fn from(error: StoreError) -> CheckpointError {
        match exit::of_store(&error) {
            Exit::CannotCreate => CheckpointError::Full(format!(
                "{error} (the unfinished image was removed, earlier images are intact)"
            )),
            _ => CheckpointError::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::refusal::Subject;

    #[test]
    fn a_refusal_always_fits_a_message() {
        let refusal = |fd| Refusal {
            subject: Subject::Descriptor { fd, name: "socket:[1]".into() },
            reason: "not supported yet".into(),
        };
        let many: Vec<Refusal> = (0..10_000).map(refusal).collect();
        let kept = bounded(&many);
        assert!(kept.iter().map(String::len).sum::<usize>() < 40_000);
        assert!(kept.last().is_some_and(|line| line.starts_with("and ") && line.ends_with(" more")));
        assert_eq!(bounded(&many[..1]), ["fd 0 (socket:[1]): not supported yet"]);
    }
}
