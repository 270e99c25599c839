//! One cut: stop, record, freeze, resume; the exact order of docs/stop.md, E. All processes of a job together.
//!
//! Called by the tracer thread. What must hold: whatever fails, every thread goes on with its own registers and mask,
//! and with its interrupted call repaired; then the error is reported. What one process looks like inside the stop is
//! the business of `capture::capture_process`.

use crate::capture::build_record;
use crate::capture::capture_job::{self, CapturedProcess};
use crate::error::CutError;
use crate::freeze::frozen_memory::FrozenMemory;
use crate::freeze::retained::Retained;
use crate::freeze::tracer_queue::{Parked, TracerQueue};
use crate::job::adopt;
use crate::job::stopped_group::StoppedGroup;
use crate::job::stopped_process::StoppedProcess;
use crate::job::target::{Roster, Target};
use crate::job::tracer_state::TracerState;
use crate::options::{CutOptions, Engine};
use crate::stop::resume::{self, StoppedProgram};
use holdfast_image::PageCount;
use holdfast_image::kinds::UsedEngine;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::Inherited;
use holdfast_image::record::{ProcessRecord, UnsavedFile};
use holdfast_sys::clock::elapsed_ns;
use std::sync::Arc;
use std::time::Instant;

/// What a cut yields.
#[derive(Debug)]
pub struct Cut {
    /// Everything but the pages.
    pub record: ProcessRecord,
    /// The processes in it, the program first.
    pub targets: Vec<Target>,
    /// Where the stop time went. Of a held program up to the cut: its stop goes on until the memory is dropped.
    pub breakdown: StopBreakdown,
    /// When the program was interrupted.
    pub begun: Instant,
    /// When the program ran on.
    pub resumed_at: Instant,
    /// Engine that was used.
    pub engine: UsedEngine,
    /// The pages to be read, in no order.
    pub dirty: PageSet,
    /// Those of them that the frozen copy keeps: a write of the program to one that is not released yet costs a copy.
    pub frozen: PageSet,
    /// Present pages of tracked memory.
    pub tracked: PageCount,
    /// What the image takes from its parent and from elsewhere.
    pub inherited: Inherited,
    /// Files that the programs may have changed in place, and that are not among what was read.
    pub unsaved: Vec<UnsavedFile>,
    /// Reads the pages.
    pub memory: FrozenMemory,
    /// The program, if it is still held; see [`CutOptions::park_above`].
    pub parked: Option<Parked>,
}

/// What [`make`] yields.
pub struct Made {
    /// For the caller.
    pub cut: Cut,
    /// For the tracer: what is kept until the pages are stored, by space.
    pub retained: Vec<(u32, Retained)>,
    /// For the tracer: the programs, held until [`Cut::parked`] is dropped.
    pub parked: Vec<StoppedProgram>,
}

/// Makes a cut of all processes that the agent knows.
///
/// # Errors
/// See [`CutError`].
pub fn make(
    roster: &dyn Roster,
    options: &CutOptions,
    state: &mut TracerState,
    queue: &Arc<dyn TracerQueue>,
) -> Result<Made, CutError> {
    let (known, orphans) = adopt::all(roster, options, state)?;
    state.only(&known);
    let mut breakdown = StopBreakdown::default();
    let mut group = StoppedGroup::stop(known, orphans, options, state, &mut breakdown)?;
    let begun = group.begun;
    let zombies = match group.complete(roster, options, state) {
        Ok(zombies) => zombies,
        Err(error) => {
            group.resume(state);
            return Err(error);
        }
    };
    let read = capture_job::read(group.processes, &zombies, options, state, &mut breakdown);
    let (stopped, mut contents) = read.map_err(|aborted| aborted.resume(state))?;
    let unsaved = std::mem::take(&mut contents.unsaved);
    let (processes, programs): (Vec<CapturedProcess>, Vec<StoppedProgram>) =
        stopped.into_iter().map(StoppedProcess::into_captured).unzip();
    breakdown.threads = processes.iter().map(|one| one.inside.seen.threads.len() as u64).sum();
    let targets: Vec<Target> = processes.iter().map(|one| one.target.clone()).collect();
    let (mut held, mut parked) = (Vec::new(), Vec::new());
    match fate(&processes, options) {
        Fate::Park => parked = programs,
        Fate::Hold => held = programs,
        Fate::Resume => {
            let resuming = Instant::now();
            resume::resume_all(programs, &mut state.stragglers);
            breakdown.resume_ns = elapsed_ns(resuming);
        }
    }
    breakdown.total_ns = elapsed_ns(begun);
    let resumed_at = Instant::now();
    let described = match build_record::after(processes, contents, held, options, state, queue) {
        Ok(described) => described,
        Err(error) => {
            resume::resume_all(parked, &mut state.stragglers);
            return Err(error);
        }
    };
    let build_record::Described { record, memory, retained, sets } = described;
    state.names.hold(&record.files.ipc);
    state.names.hold_segments(&record.files);
    let build_record::Sets { engine, dirty, frozen, present, inherited } = sets;
    let of_store: u64 = inherited.mapped.iter().map(|mapping| mapping.run.pages.0).sum();
    let tracked = PageCount(present.pages().0 + of_store);
    let handle = (!parked.is_empty()).then(|| Parked::new(queue));
    let cut = Cut {
        record,
        targets,
        breakdown,
        begun,
        resumed_at,
        engine,
        dirty,
        frozen,
        tracked,
        inherited,
        unsaved,
        memory,
        parked: handle,
    };
    Ok(Made { cut, retained, parked })
}

/// What becomes of the programs at the end of the stop.
enum Fate {
    Resume,
    /// Stopped until their pages are stored.
    Hold,
    /// Stopped until the agent says so.
    Park,
}

fn fate(processes: &[CapturedProcess], options: &CutOptions) -> Fate {
    let frozen: u64 = processes.iter().map(|one| one.inside.cut_memory.frozen.pages().0).sum();
    let copies = processes.iter().any(|one| one.inside.cut_memory.copy.is_some());
    if options.park_above.is_some_and(|most| copies && PageCount(frozen) > most) {
        Fate::Park
    } else if options.hold || options.engine == Engine::Sync {
        Fate::Hold
    } else {
        Fate::Resume
    }
}
