//! One process while it is stopped, from stage to stage; one value holds all that is known of it.
//!
//! Used by [`super::stopped_group`] and `capture::capture_job`, on the tracer thread. What must hold: whatever fails,
//! every stopped program is given to the caller again ([`Aborted`]), which resumes it.

use crate::error::CutError;
use crate::job::prepare::Before;
use crate::job::target::Target;
use crate::job::tracer_state::TracerState;
use crate::stop::process_errors;
use crate::stop::resume::{self, StoppedProgram};

/// A stopped process, and what was read of it so far.
pub struct StoppedProcess<Stage> {
    /// Which.
    pub target: Target,
    /// What was looked up before it was stopped.
    pub before: Before,
    /// Its threads.
    pub held: StoppedProgram,
    /// What was read.
    pub stage: Stage,
}

impl<Stage> StoppedProcess<Stage> {
    /// The process alone, and what was read of it.
    pub fn split(self) -> (StoppedProcess<()>, Stage) {
        let StoppedProcess { target, before, held, stage } = self;
        (StoppedProcess { target, before, held, stage: () }, stage)
    }
}

impl StoppedProcess<()> {
    /// The process, with what was read of it.
    pub fn with<Stage>(self, stage: Stage) -> StoppedProcess<Stage> {
        let StoppedProcess { target, before, held, stage: () } = self;
        StoppedProcess { target, before, held, stage }
    }
}

/// A step that failed for one process.
pub struct Aborted {
    /// Why, with the name of the process where there are several.
    pub error: CutError,
    /// All of them, still stopped.
    pub held: Vec<StoppedProgram>,
}

impl Aborted {
    /// Gives up all processes at this stage.
    pub fn all<Stage>(
        processes: impl IntoIterator<Item = StoppedProcess<Stage>>,
        error: CutError,
    ) -> Aborted {
        Aborted { error, held: processes.into_iter().map(|one| one.held).collect() }
    }

    /// Resumes them; the reason is left.
    pub fn resume(self, state: &mut TracerState) -> CutError {
        resume::resume_all(self.held, &mut state.stragglers);
        self.error
    }
}

/// Takes all processes to the next stage, one after the other.
///
/// # Errors
/// Of the first process for which `step` fails.
pub fn advance<Stage, Next>(
    processes: Vec<StoppedProcess<Stage>>,
    mut step: impl FnMut(&mut StoppedProcess<()>, Stage) -> Result<Next, CutError>,
) -> Result<Vec<StoppedProcess<Next>>, Aborted> {
    let several = processes.len() > 1;
    let (mut done, mut rest, mut failure) = (Vec::with_capacity(processes.len()), Vec::new(), None);
    for process in processes {
        let (mut process, stage) = process.split();
        if failure.is_some() {
            rest.push(process.held);
            continue;
        }
        match step(&mut process, stage) {
            Ok(next) => done.push(process.with(next)),
            Err(error) => {
                failure = Some(process_errors::named(error, several, process.target.pid));
                rest.push(process.held);
            }
        }
    }
    match failure {
        None => Ok(done),
        Some(error) => {
            Err(Aborted { error, held: done.into_iter().map(|one| one.held).chain(rest).collect() })
        }
    }
}

/// Adds to each process what was read of it elsewhere. `results`: in the order of the processes.
///
/// # Errors
/// The first of the results that is one.
pub fn join<Stage, Read>(
    processes: Vec<StoppedProcess<Stage>>,
    results: Vec<Result<Read, CutError>>,
) -> Result<Vec<StoppedProcess<(Stage, Read)>>, Aborted> {
    let mut results = results.into_iter();
    let missing = || Err(CutError::Failed { what: "nothing was read of a process".into() });
    advance(processes, |_, stage| results.next().unwrap_or_else(missing).map(|read| (stage, read)))
}
