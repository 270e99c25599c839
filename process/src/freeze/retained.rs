//! What a cut left behind of one process, until its memory is stored: the frozen copy, the stopped program, or
//! guarded memory.
//!
//! Made by `capture::build_record`, owned by the tracer thread, which ends it.

use crate::freeze::clone::Copy;
use crate::freeze::guard::{self, Guard};
use crate::job::target::Target;
use crate::job::tracer_state::TracerState;
use crate::stop::resume::StoppedProgram;
use holdfast_image::pages::PageRun;
use std::sync::Arc;

/// What a cut left behind until its memory is stored.
#[derive(Debug)]
pub enum Retained {
    /// A frozen copy.
    Copy {
        /// The process.
        copy: Box<Copy>,
        /// What it may drop at once.
        surplus: Vec<PageRun>,
    },
    /// The program itself, held.
    Held(Box<StoppedProgram>),
    /// Memory of the running program that is guarded.
    Guarded {
        /// Which.
        guard: Arc<Guard>,
        /// The program.
        target: Box<Target>,
    },
}

impl Retained {
    /// It is not needed any more.
    pub fn end(self, state: &mut TracerState) {
        match self {
            Retained::Copy { copy, .. } => drop(copy),
            Retained::Held(held) => held.resume(&mut state.stragglers),
            Retained::Guarded { guard, target } => {
                if let Err(error) = guard::lift(&guard, &target, state) {
                    tracing::warn!(%error, "lifting the guard");
                }
            }
        }
    }
}
