//! What is asked of a checkpoint. Made by the agent's loop, carried out by the checkpoint thread.

use super::error::CheckpointError;
use super::processes::Processes;
use crate::gang::round::Round;
use crate::inherited_fds::InheritedFd;
use crate::settings::Changes;
use holdfast_process::Members;
use parking_lot::Mutex;
use std::sync::Arc;

/// How a checkpoint is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointOptions {
    /// End the program once the image is committed.
    pub stop: bool,
    /// What is done otherwise than the settings of the job say.
    pub changes: Changes,
    /// A process of the job has asked itself, and waits for the cut.
    pub until_cut: bool,
    /// There is to be no image: the programs are held, and go on from an earlier one.
    pub back: bool,
}

impl CheckpointOptions {
    /// Whether a checkpoint that is made so does what the other asks for.
    pub fn serves(&self, other: &CheckpointOptions) -> bool {
        (self.stop, self.changes, self.back) == (other.stop, other.changes, other.back)
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct CheckpointRequest {
    /// The processes of the job; those that are there at the cut count.
    pub processes: Arc<Mutex<Processes>>,
    /// How.
    pub options: CheckpointOptions,
    /// Descriptors above 2 that it was started with.
    pub inherited_fds: Vec<InheritedFd>,
    /// The round of its gang that it is a part of.
    pub round: Option<Arc<Round>>,
}

impl CheckpointRequest {
    /// The processes that are there now.
    ///
    /// # Errors
    /// None.
    pub fn members(&self) -> Result<Members, CheckpointError> {
        let members = self.processes.lock().members();
        members.ok_or(CheckpointError::NoProgram { awaited: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::OrderChoice;

    impl CheckpointRequest {
        /// A request for a program that is not there.
        pub fn for_tests(options: CheckpointOptions) -> CheckpointRequest {
            CheckpointRequest { processes: Arc::default(), options, inherited_fds: Vec::new(), round: None }
        }
    }

    #[test]
    fn one_checkpoint_serves_all_who_want_the_same() {
        let plain = CheckpointOptions::default();
        assert!(plain.serves(&CheckpointOptions { until_cut: true, ..plain }));
        assert!(!plain.serves(&CheckpointOptions { stop: true, ..plain }));
        let changes = Changes { order: Some(OrderChoice::Address), ..Changes::default() };
        assert!(!plain.serves(&CheckpointOptions { changes, ..plain }));
    }
}
