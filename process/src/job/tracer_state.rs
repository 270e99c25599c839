//! What the tracer thread keeps from cut to cut.
//!
//! Owned by the tracer thread. What must hold: nothing of it is needed for a right image, it only saves time, but for
//! the continuation slots and interrupted calls, which the next stop must know, and descendants that have become
//! orphans.

use crate::capture::identity::Identities;
use crate::capture::state::FactCache;
use crate::job::membership::Descendants;
use crate::job::names::Names;
use crate::job::target::Target;
use crate::stop::continuation::Slots;
use crate::stop::interrupt::Stragglers;
use crate::stop::task_files::TaskFiles;
use crate::stop::threads::Continuing;
use holdfast_image::record::InjectArea;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// What the tracer keeps of one process from cut to cut.
#[derive(Debug, Default)]
pub struct Kept {
    program: Option<(i32, InjectArea)>,
    /// Continuation slots in the program.
    pub slots: Option<Slots>,
    /// Calls that earlier stops interrupted.
    pub continuing: Continuing,
    /// What was asked of its threads.
    pub facts: FactCache,
    /// Identities of mapped files.
    pub identities: Identities,
    /// Files of its threads.
    pub tasks: Arc<TaskFiles>,
    /// Children that go on after a stop, which it has not been told yet, and since when that is known.
    pub going_on: HashMap<i32, Instant>,
}

/// What the tracer keeps from cut to cut, of all processes by pid.
#[derive(Debug, Default)]
pub struct TracerState {
    processes: HashMap<i32, Kept>,
    /// What no other job may take.
    pub names: Names,
    /// Threads that could not be stopped in time.
    pub stragglers: Stragglers,
    /// Who was seen as a descendant of the job's processes.
    pub descendants: Descendants,
}

impl TracerState {
    /// At first.
    pub fn with(descendants: Descendants) -> TracerState {
        TracerState { descendants, ..TracerState::default() }
    }

    /// What is kept of a process; nothing when it is another one by now (exec, fork).
    pub fn of(&mut self, target: &Target) -> &mut Kept {
        let kept = self.processes.entry(target.pid).or_default();
        let program = (target.pid, target.area);
        if kept.program != Some(program) {
            let identities = std::mem::take(&mut kept.identities);
            *kept = Kept { program: Some(program), identities, ..Kept::default() };
        }
        kept
    }

    /// A process has gone back to another time: forgets what was found in its memory, and told by its threads.
    pub fn forget(&mut self, target: &Target) {
        let kept = self.of(target);
        (kept.slots, kept.continuing, kept.facts) = (None, Continuing::new(), FactCache::default());
    }

    /// Forgets all other processes.
    pub fn only(&mut self, targets: &[Target]) {
        self.processes.retain(|pid, _| targets.iter().any(|target| target.pid == *pid));
    }
}
