//! The exit codes of `holdfast`, defined once (documented in README.md), and the failure type that carries one.
//!
//! Policy: a failure is one or more lines that name the object, the cause and the remedy; it is printed once, by
//! `main`, on standard error. The numbers follow sysexits.h where that has a fitting one. `run` and `restart` return
//! the program's own status instead, so any number may come from them too.

use crate::pidfile;
use holdfast_image::pages::PageError;
use holdfast_process::rebuild::{Peer, RebuildError};
use holdfast_tiers::StoreError;
use holdfast_tiers::tier::TierError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::Path;

/// Why a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Exit {
    /// The command line is wrong.
    Usage = 64,
    /// An image is damaged or of another format.
    BadImage = 65,
    /// No such job, image or running program.
    NotFound = 66,
    /// Something is not supported, or the job is in a state that forbids it; nothing was changed.
    Refused = 69,
    /// Holdfast itself failed.
    Internal = 70,
    /// The store cannot be written (no space, no folder).
    CannotCreate = 73,
    /// `--on TERM=checkpoint-stop` or `checkpoint --stop`: an image was committed and the program ended.
    Stopped = 75,
    /// Not allowed.
    Permission = 77,
    /// The program was found but cannot be executed.
    NotExecutable = 126,
    /// The program was not found.
    NoProgram = 127,
}

/// What is known of a failure besides its exit code and message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Nothing.
    Other,
    /// The next try may well succeed.
    Transient,
    /// A signal came before the program ran.
    Interrupted,
    /// The agent knows only that the front, or the new processes, went away: the front knows more.
    FrontGone,
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What to print.
    pub message: String,
    /// What else is known of it.
    pub kind: FailureKind,
}

impl Failure {
    /// A failure with its message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), kind: FailureKind::Other }
    }
    /// Something inside Holdfast or the system failed: `what` names the call and its object.
    pub fn system(what: impl fmt::Display, error: &io::Error) -> Failure {
        let exit = match error.kind() {
            io::ErrorKind::PermissionDenied => Exit::Permission,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::CannotCreate,
            _ => Exit::Internal,
        };
        Failure::new(exit, format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The exit code that fits an error of the store.
pub fn of_store(error: &StoreError) -> Exit {
    match error {
        StoreError::NotAJob { .. } | StoreError::NoImage { .. } | StoreError::Replaced { .. } => {
            Exit::NotFound
        }
        StoreError::BadName { .. } => Exit::Usage,
        StoreError::Locked { .. } => Exit::Refused,
        StoreError::Permissions { .. } => Exit::Permission,
        StoreError::Full { .. } => Exit::CannotCreate,
        StoreError::Foreign { .. } | StoreError::Corrupt { .. } | StoreError::Version { .. } => {
            Exit::BadImage
        }
        StoreError::Nowhere { .. } | StoreError::Missing { .. } => Exit::BadImage,
        StoreError::Tier(TierError::NotFound { .. }) => Exit::NotFound,
        StoreError::Tier(TierError::Denied { .. }) => Exit::Permission,
        StoreError::Tier(TierError::Settings { .. }) => Exit::Usage,
        StoreError::Io { source, .. } | StoreError::NoStore { source, .. } => {
            Failure::system("", source).exit
        }
        _ => Exit::Internal,
    }
}

/// The exit code that fits an error of a tier.
pub fn of_tier(error: &TierError) -> Exit {
    match error {
        TierError::NotFound { .. } => Exit::NotFound,
        TierError::Damaged { .. } | TierError::Short { .. } => Exit::BadImage,
        TierError::Denied { .. } => Exit::Permission,
        TierError::Full { .. } => Exit::CannotCreate,
        TierError::Settings { .. } => Exit::Usage,
        TierError::Exists { .. } => Exit::Refused,
        TierError::Unavailable { .. } | TierError::Io { .. } => Exit::Internal,
    }
}

impl From<TierError> for Failure {
    fn from(error: TierError) -> Failure {
        Failure::new(of_tier(&error), error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let message = match &error {
            StoreError::Locked { path, pid } => in_use(path, *pid),
            other => other.to_string(),
        };
        Failure::new(of_store(&error), message)
    }
}

/// A job whose lock is held by an agent.
fn in_use(lock: &Path, agent: i32) -> String {
    let folder = lock.parent().unwrap_or(lock);
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    match pidfile::program_in(folder) {
        Some(pid) => format!("job {name} is running as process {pid}; end it, or use another job name"),
        // It has not begun, or has ended and tiers have yet to get its images.
        None if agent > 0 => {
            format!("job {name} is in use by its agent, process {agent}; try again when it has ended")
        }
        None => format!("job {name} is in use by its agent; try again when it has ended"),
    }
}

impl From<&RebuildError> for Failure {
    fn from(error: &RebuildError) -> Failure {
        let kind = match error {
            RebuildError::In { error, .. } if matches!(**error, RebuildError::Interrupted) => {
                FailureKind::Interrupted
            }
            RebuildError::PeerGone(Peer::Front) => FailureKind::FrontGone,
            RebuildError::Interrupted => FailureKind::Interrupted,
            error if error.is_transient() => FailureKind::Transient,
            _ => FailureKind::Other,
        };
        Failure { kind, ..Failure::new(of_rebuild(error), error.to_string()) }
    }
}

/// The exit code that fits a failed restart.
fn of_rebuild(error: &RebuildError) -> Exit {
    match error {
        RebuildError::Image(_) => Exit::BadImage,
        RebuildError::File { .. }
        | RebuildError::Ids(_)
        | RebuildError::IdTaken(_)
        | RebuildError::InUse(_)
        | RebuildError::Refused(_) => Exit::Refused,
        RebuildError::In { error, .. } => of_rebuild(error),
        RebuildError::Pages { source, .. } => of_pages(source),
        RebuildError::Io { source, .. } => Failure::system("", source).exit,
        _ => Exit::Internal,
    }
}

/// The exit code that fits pages that cannot be read.
pub fn of_pages(error: &PageError) -> Exit {
    match error {
        PageError::Damaged { .. } => Exit::BadImage,
        PageError::System(source) | PageError::File { source, .. } => Failure::system("", source).exit,
        PageError::Misuse(_) => Exit::Internal,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_code_follows_the_cause() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(Failure::system("write /x", &full).exit, Exit::CannotCreate);
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!(Failure::system("open /x", &denied).exit, Exit::Permission);
        assert_eq!(of_store(&StoreError::BadName { name: "../x".into() }), Exit::Usage);
    }

    #[test]
    fn every_code_is_in_the_readme() {
        let readme = include_str!("../../README.md");
        for code in [64, 65, 66, 69, 70, 73, 75, 77, 126, 127] {
            assert!(readme.contains(&format!("| {code} |")), "exit code {code} is not documented");
        }
    }
}
