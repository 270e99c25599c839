//! What is read inside the stop, of all processes of a job together.
//!
//! Called by `cut`, on the tracer thread. What one process looks like is the business of [`capture_process`]; here it
//! is asked of all of them, by several threads where nothing has to be traced, and what only all of them together
//! have is added: open files, shared memory, who has been told of whose stop. Fails by: [`Aborted`]; the caller
//! resumes all processes.

use crate::capture::capture_process;
use crate::capture::contents::Taken;
use crate::capture::files::unlinked;
use crate::capture::files::{Covered, FileReader, Holder, Look, Outside};
use crate::capture::folders;
use crate::capture::made_namespaces::MountTrees;
use crate::capture::map_flags;
use crate::capture::pid_namespaces::PidNamespaces;
use crate::capture::regions;
use crate::capture::shared_memory::SharedPages;
use crate::capture::written_files::{self, Unsaved};
use crate::capture::{ipc, sysv_shm};
use crate::error::CutError;
use crate::freeze::engine::{self, CutMemory, Scene};
use crate::gang::{self, Phase};
use crate::inject::copied_files::{self, Copies};
use crate::job::prepare::Before;
use crate::job::stopped_process::{Aborted, StoppedProcess, advance, join};
use crate::job::target::Target;
use crate::job::tracer_state::TracerState;
use crate::mapped_files::MappedFiles;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::job_control;
use crate::stop::process_errors;
use crate::stop::resume::StoppedProgram;
use crate::stop::stages::{Observed, Repaired, Scenery, Seen, Surroundings};
use crate::thread_pool;
use crate::track::tracking::Collected;
use holdfast_image::bytes::Name;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::record::{FileTable, SegmentContent, SysvShmRecord, ZombieRecord};
use holdfast_image::refusal::Refusal;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::{clone, procfs};
use std::collections::HashMap;
use std::time::Instant;

/// What was read of one process inside the stop.
pub struct Captured {
    /// Its state.
    pub seen: Seen,
    /// More of it.
    pub surroundings: Surroundings,
    /// And more.
    pub scenery: Scenery,
    /// Its mappings of files that are stored whole.
    pub whole: Vec<bool>,
    /// Its open files.
    pub files: FileTable,
    /// Its children that have ended.
    pub zombies: Vec<ZombieRecord>,
    /// Its parent knows that it was stopped.
    pub stop_told: bool,
    /// Its memory.
    pub cut_memory: CutMemory,
}

/// A process of which everything was read, apart from whether it is still stopped.
pub struct CapturedProcess {
    /// Which.
    pub target: Target,
    /// What was looked up before it was stopped.
    pub before: Before,
    /// What was read of it.
    pub inside: Captured,
}

impl StoppedProcess<Captured> {
    /// What was read, and the program.
    pub fn into_captured(self) -> (CapturedProcess, StoppedProgram) {
        let StoppedProcess { target, before, held, stage } = self;
        (CapturedProcess { target, before, inside: stage }, held)
    }
}

/// Parts of the stop time, one after the other.
struct Laps(Instant);

impl Laps {
    fn end(&mut self, slot: &mut u64) {
        *slot += elapsed_ns(self.0);
        self.0 = Instant::now();
    }
}

/// Everything between stop and resume. `zombies`: children that have ended, with their parents.
///
/// # Errors
/// The processes, still stopped, and why there is no cut.
pub fn read(
    processes: Vec<StoppedProcess<Repaired>>,
    zombies: &[(i32, ZombieRecord)],
    options: &CutOptions,
    state: &mut TracerState,
    breakdown: &mut StopBreakdown,
) -> Result<(Vec<StoppedProcess<Captured>>, Taken), Aborted> {
    if let Err(error) = job_control::settled(&processes) {
        return Err(Aborted::all(processes, error));
    }
    let mut laps = Laps(Instant::now());
    let observed = observe(processes, options, state)?;
    breakdown.regions += observed.iter().map(|one| one.stage.seen.mapped.len() as u64).sum::<u64>();
    let together = match read_together(&observed, options, state, breakdown, &mut laps) {
        Ok(together) => together,
        Err(error) => return Err(Aborted::all(observed, error)),
    };
    let Together { contents, told, parts } = together;
    let several = observed.len() > 1;
    // A frozen copy would become the child of a process that adopts orphans, and its end be noticed there.
    let adopts = |one: &StoppedProcess<Observed>| {
        let seen = &one.stage.seen;
        seen.process.attributes.child_subreaper || seen.pid_namespaces != PidNamespaces::default()
    };
    let no_clone = observed.iter().any(adopts);
    let mut shared = SharedPages::default();
    let captured = advance(join(observed, parts)?, |process, (observed, part)| {
        let Observed { seen, surroundings } = observed;
        let StoppedProcess { target, before, held, .. } = process;
        let scene = Scene {
            target,
            options,
            live: seen.live,
            memory: &seen.memory,
            host: &seen.host,
            mapped: &seen.mapped,
            whole: &part.whole,
            flags_known: seen.mapping_flags.is_some() || map_flags::all_known(&seen.mapped, &before.flags),
            threads: &held.threads,
            facts: &seen.facts,
            process: &seen.process,
            several,
            no_clone,
        };
        let cut_memory = engine::take(&scene, part.collected, &mut shared, breakdown)?;
        let zombies = zombies.iter().filter(|(parent, _)| *parent == target.pid);
        let zombies = zombies.map(|(_, zombie)| zombie.clone()).collect();
        let stop_told = told.contains(&seen.job_pid);
        let Part { scenery, whole, files, .. } = part;
        Ok(Captured { seen, surroundings, scenery, whole, files, zombies, stop_told, cut_memory })
    })?;
    Ok((captured, contents))
}

/// What other threads need to know of a process while it is being traced.
struct Outline {
    target: Target,
    inner_pid: i32,
    ids: Vec<(i32, i32)>,
    comms: HashMap<i32, Name>,
}

/// Asks all processes what only they can tell, each answering while the next is being asked; other threads read
/// meanwhile what needs no tracing.
fn observe(
    mut processes: Vec<StoppedProcess<Repaired>>,
    options: &CutOptions,
    state: &mut TracerState,
) -> Result<Vec<StoppedProcess<Observed>>, Aborted> {
    let outline = |one: &mut StoppedProcess<Repaired>| Outline {
        target: one.target.clone(),
        inner_pid: one.stage.inner_pid,
        ids: capture_process::ids(&one.held.threads),
        comms: std::mem::take(&mut one.stage.comms),
    };
    let outlines: Vec<Outline> = processes.iter_mut().map(outline).collect();
    let surround = |one: &Outline| {
        capture_process::surroundings(&one.target, (one.inner_pid, &one.ids), &one.comms, &options.namespaces)
    };
    let (seen, surroundings) = thread_pool::beside(&outlines, thread_pool::workers(), surround, || {
        let mut first = true;
        let asked = advance(processes, |process, repaired| {
            let kept = state.of(&process.target);
            capture_process::ask(process, repaired, options, kept, std::mem::take(&mut first))
        })?;
        let mut trees = MountTrees::default();
        advance(asked, |process, asked| {
            let kept = state.of(&process.target);
            capture_process::look(process, asked, options, kept, &mut trees)
        })
    });
    let both = join(seen?, surroundings)?;
    advance(both, |_, (seen, surroundings)| Ok(Observed { seen, surroundings }))
}

/// What was read of one process together with that of the others.
struct Part {
    scenery: Scenery,
    collected: Collected,
    whole: Vec<bool>,
    files: FileTable,
}

/// What all of them have together.
struct Together {
    contents: Taken,
    /// The processes whose parents know that they were stopped.
    told: Vec<i32>,
    /// Of each process.
    parts: Vec<Result<Part, CutError>>,
}

fn read_together(
    all: &[StoppedProcess<Observed>],
    options: &CutOptions,
    state: &mut TracerState,
    breakdown: &mut StopBreakdown,
    laps: &mut Laps,
) -> Result<Together, CutError> {
    let told = job_control::stops(all, state)?;
    laps.end(&mut breakdown.inject_ns);
    let until = Instant::now() + options.together;
    let mut reader = reader(all, options)?;
    // This thread looks at the files, which lead from one process to another; others at the memory of each.
    let memory = |one: &StoppedProcess<Observed>| memory(one, &options.mapped);
    let (files, memories) = thread_pool::beside(all, thread_pool::workers(), memory, || {
        if let Some(gang) = &options.gang {
            reader.meet(gang.as_ref(), until)?;
        }
        let mut tables = files(&reader, all, options)?;
        let contents = contents(all, options, &tables)?;
        // Nothing of what the others send from now on comes into this image, and the other way round.
        if let Some(gang) = &options.gang {
            gang::meet(gang.as_ref(), Phase::Captured, &[], until)?;
        }
        if let Some(first) = tables.first_mut() {
            first.folders = folders::of(all, first, &contents.files);
        }
        laps.end(&mut breakdown.files_ns);
        Ok::<_, CutError>((tables, contents))
    });
    let (tables, contents) = files?;
    let nameless = tables.first().map_or_else(Vec::new, |first| first.nameless.clone());
    let own = |((one, memory), files): ((&StoppedProcess<Observed>, Memory), FileTable)| {
        let (scenery, mut collected) =
            memory.map_err(|error| process_errors::named(error, all.len() > 1, one.target.pid))?;
        let mapped = &one.stage.seen.mapped;
        let whole = regions::stored_whole(mapped, options.self_contained, &one.before.replaced, &nameless);
        collected.add_whole(mapped, &whole, &nameless);
        Ok(Part { scenery, collected, whole, files })
    };
    let parts = all.iter().zip(memories).zip(tables).map(own).collect();
    laps.end(&mut breakdown.track_ns);
    Ok(Together { contents, told, parts })
}

type Memory = Result<(Scenery, Collected), CutError>;

/// The rest of what needs no tracing, and which pages of one were written.
fn memory(one: &StoppedProcess<Observed>, files: &MappedFiles) -> Memory {
    let (target, seen) = (&one.target, &one.stage.seen);
    Ok((capture_process::scenery(seen)?, engine::collect(target, seen.live, &seen.mapped, files)?))
}

/// The descriptors of all.
fn reader<'a>(
    all: &'a [StoppedProcess<Observed>],
    options: &'a CutOptions,
) -> Result<FileReader<'a>, CutError> {
    let holder = |one: &'a StoppedProcess<Observed>| {
        Ok(Holder {
            pid: one.target.pid,
            inner_pid: one.stage.seen.job_pid,
            own_pid: one.stage.seen.inner_pid,
            tid: one.stage.seen.live,
            pidfd: &one.before.pidfd,
            copies: copies(one)?,
            own: one.stage.surroundings.own,
            uses_cuda: false,
        })
    };
    let holders = all.iter().map(holder).collect::<Result<Vec<_>, CutError>>()?;
    let outside = Outside {
        inherited: &options.inherited,
        lose_connections: options.lose_connections,
        in_gang: options.gang.is_some(),
        front: options.front,
        namespaces: &options.namespaces,
    };
    let mut covered = Covered::default();
    all.iter().for_each(|one| covered.add(&one.stage.seen.mapped));
    Ok(FileReader::new(holders, outside, Look::Stopped)?.covering(covered))
}

/// Copies of all descriptors of a process, where this one cannot take them: pidfd_getfd(2) asks the main thread.
fn copies(one: &StoppedProcess<Observed>) -> Result<Option<Copies>, CutError> {
    if clone::can_take_descriptors() && one.held.has_main() {
        return Ok(None);
    }
    let numbers = procfs::descriptors(one.target.pid, one.stage.seen.live)?;
    copied_files::take(&one.stage.seen.host, &one.target.area, &numbers).map(Some)
}

/// The file tables of all.
fn files(
    reader: &FileReader<'_>,
    all: &[StoppedProcess<Observed>],
    options: &CutOptions,
) -> Result<Vec<FileTable>, CutError> {
    let mut tables = reader.tables().map_err(|unreadable| {
        let refusals = named(&pids(all), unreadable.refusals);
        if unreadable.passing { CutError::Unsettled(refusals) } else { CutError::Refused(refusals) }
    })?;
    if let Some(first) = tables.first_mut() {
        let seen = || all.iter().map(|one| &one.stage.seen);
        let privately = unlinked::mapped_privately(seen().map(|seen| &seen.mapped[..]));
        seen().for_each(|seen| unlinked::add_mapped(first, &seen.mapped, &privately, &seen.memory));
        seen().for_each(|seen| unlinked::add_privately_mapped(first, &seen.mapped, &seen.memory));
        (first.segments, first.segment_contents) = segments(all, options)?;
        let users = all.iter().map(|one| ipc::User {
            pid: one.target.pid,
            tid: one.stage.seen.live,
            area: Some(&one.target.area),
        });
        first.ipc = ipc::used(users, Look::Stopped).map_err(|unreadable| {
            let refusals = named(&pids(all), unreadable.refusals);
            if unreadable.passing { CutError::Unsettled(refusals) } else { CutError::Refused(refusals) }
        })?;
    }
    Ok(tables)
}

/// What is in the files that they write, if the job saves that.
fn contents(
    all: &[StoppedProcess<Observed>],
    options: &CutOptions,
    tables: &[FileTable],
) -> Result<Taken, CutError> {
    let Some(contents) = options.contents.as_ref().filter(|_| options.only.is_none()) else {
        return Ok(Taken::default());
    };
    let processes: Vec<written_files::Process<'_>> = all
        .iter()
        .map(|StoppedProcess { target, stage, .. }| written_files::Process {
            pid: target.pid,
            tid: stage.seen.live,
            mapped: &stage.seen.mapped,
        })
        .collect();
    contents.take(tables, &processes).map_err(|unsaved| match unsaved {
        Unsaved::Refused(refusals) => refused(&pids(all), refusals),
        Unsaved::Failed(error) => error.into(),
    })
}

/// The System V shared memory of all, and what is in what no process has attached.
fn segments(
    all: &[StoppedProcess<Observed>],
    options: &CutOptions,
) -> Result<(Vec<SysvShmRecord>, Vec<SegmentContent>), CutError> {
    let processes = all.iter().map(|one| sysv_shm::Process {
        pid: one.target.pid,
        area: Some(&one.target.area),
        mapped: &one.stage.seen.mapped,
    });
    let found = sysv_shm::used(processes, Look::Stopped);
    if !found.refusals.is_empty() {
        return Err(refused(&pids(all), found.refusals));
    }
    // A process that is just ending gives it up in a moment.
    match refused(&pids(all), found.shared) {
        CutError::Refused(refusals) if !refusals.is_empty() && options.only.is_none() => {
            Err(CutError::Unsettled(refusals))
        }
        _ => Ok((found.segments, found.contents)),
    }
}

fn pids<Stage>(all: &[StoppedProcess<Stage>]) -> Vec<i32> {
    all.iter().map(|one| one.target.pid).collect()
}

/// Refusals with the places of their processes, which are named if there are several.
fn named(pids: &[i32], refusals: Vec<(usize, Refusal)>) -> Vec<Refusal> {
    let of = |(place, refusal): (usize, Refusal)| match pids.get(place) {
        Some(&pid) if pids.len() > 1 => refusal.of(pid, &refuse::name_of(pid)),
        _ => refusal,
    };
    refusals.into_iter().map(of).collect()
}

/// The same, as an error. `pids`: of all processes, in their order.
pub fn refused(pids: &[i32], refusals: Vec<(usize, Refusal)>) -> CutError {
    CutError::Refused(named(pids, refusals))
}
