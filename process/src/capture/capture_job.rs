//! What is read inside the stop, of all processes of a job together.
//!
//! Called by `cut`, on the tracer thread. What one process looks like is the business of [`capture_process`]; here it is asked of all of
//! them, by several threads where nothing has to be traced, and what only all of them together have is added: open files,
//! shared memory, who has been told of whose stop.
//! Fails by: [`CutError`]; the caller lets all processes go.

use crate::capture::capture_process::{self, Asked, Scenery, Surroundings};
use crate::capture::contents::{self, Taken, Unsaved};
use crate::capture::files::unlinked::{self, Covered};
use crate::capture::files::{FileReader, Holder, Look, Outside};
use crate::capture::map_flags;
use crate::capture::maps;
use crate::capture::regions;
use crate::capture::{ipc, sysv_shm};
use crate::error::CutError;
use crate::freeze::engine::{self, Scene, Snapshot};
use crate::job::prepare::Before;
use crate::job::stopped_group::StoppedGroup;
use crate::job::target::Target;
use crate::job::tracer_state::KeptAll;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::job_control;
use crate::stop::process_errors;
use crate::stop::resume::HeldProgram;
use crate::stop::stages::{Seen, Stand};
use crate::thread_pool;
use crate::track::tracking::Collected;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::record::{FileTable, Segment, ZombieRecord};
use holdfast_image::refusal::Refusal;
use holdfast_sys::clock::elapsed_ns;
use std::time::Instant;

/// What was read of one process inside the stop.
pub struct Inside {
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
    pub snapshot: Snapshot,
}

/// Everything between stop and resume. On error the caller resumes.
pub fn read(
    group: &mut StoppedGroup,
    zombies: &[(i32, ZombieRecord)],
    options: &CutOptions,
    kept: &mut KeptAll,
    breakdown: &mut StopBreakdown,
) -> Result<(Vec<Inside>, Taken), CutError> {
    let mut stands = std::mem::take(&mut group.stands);
    let (targets, befores, all) = (&group.targets, &group.befores, &mut group.held);
    job_control::settled(targets, all, &stands)?;
    let several = targets.len() > 1;
    let mut clock = Instant::now();
    let mut lap = |slot: &mut u64| {
        *slot += elapsed_ns(clock);
        clock = Instant::now();
    };
    let ids: Vec<Vec<(i32, i32)>> = all.iter().map(|held| capture_process::ids(&held.threads)).collect();
    let comms = stands.iter_mut().map(|stand| std::mem::take(&mut stand.comms));
    let of_all: Vec<_> = targets.iter().zip(&ids).zip(comms).collect();
    let surround =
        |((target, ids), comms): &((&Target, &Vec<_>), _)| capture_process::surroundings(target, ids, comms);
    let (seen, surroundings) = thread_pool::beside(&of_all, thread_pool::workers(), surround, || {
        let asked = ask(targets, befores, all, stands, options, kept)?;
        look(targets, all, asked, kept)
    });
    let (seen, surroundings) = (seen?, whose(targets, surroundings)?);
    breakdown.regions += seen.iter().map(|one| one.mapped.len() as u64).sum::<u64>();
    let told = job_control::stops(targets, &seen, kept)?;
    lap(&mut breakdown.inject_ns);
    let reader = reader(targets, options, befores, &seen, &surroundings)?;
    // This thread looks at the files, which lead from one process to another; others at the memory of each.
    let both: Vec<(&Target, &Seen)> = targets.iter().zip(&seen).collect();
    let (files, memories) = thread_pool::beside(&both, thread_pool::workers(), memory, || {
        let tables = files(&reader, targets, options, &seen)?;
        let contents = contents(targets, options, &seen, &tables)?;
        lap(&mut breakdown.files_ns);
        Ok::<_, CutError>((tables, contents))
    });
    let ((tables, contents), mut memories) = (files?, whose(targets, memories)?);
    let nameless = tables.first().map_or(&[][..], |first| &first.nameless);
    let whole = |(one, before): (&Seen, &Before)| {
        regions::stored_whole(&one.mapped, options.self_contained, &before.replaced, nameless)
    };
    let wholes: Vec<Vec<bool>> = seen.iter().zip(befores).map(whole).collect();
    for ((seen, whole), (_, collected)) in seen.iter().zip(&wholes).zip(&mut memories) {
        collected.add_whole(&seen.mapped, whole);
    }
    lap(&mut breakdown.track_ns);
    // A frozen copy would become the child of a process that adopts orphans, and its end be noticed there.
    let adopting = seen.iter().any(|one| one.process.attributes.child_subreaper);
    let mut saved = maps::SharedPages::default();
    let mut inside = Vec::with_capacity(targets.len());
    let memories = memories.into_iter().zip(wholes);
    let all_seen = seen.into_iter().zip(surroundings).zip(tables).zip(memories);
    for (place, (((one, surroundings), files), ((scenery, collected), whole))) in all_seen.enumerate() {
        let (target, before) = (&targets[place], &befores[place]);
        let scene = Scene {
            target,
            options,
            live: one.live,
            memory: &one.memory,
            host: &one.host,
            mapped: &one.mapped,
            whole: &whole,
            flags_known: one.mapping_flags.is_some() || map_flags::all_known(&one.mapped, &before.flags),
            threads: &all[place].threads,
            facts: &one.facts,
            process: &one.process,
            several,
            no_clone: adopting,
        };
        let snapshot = engine::take(&scene, collected, &mut saved, breakdown)
            .map_err(|error| process_errors::named(error, several, target.pid))?;
        let zombies = zombies.iter().filter(|(parent, _)| *parent == target.pid);
        let zombies = zombies.map(|(_, zombie)| zombie.clone()).collect();
        let stop_told = told.contains(&one.inner_pid);
        inside.push(Inside { seen: one, surroundings, scenery, whole, files, zombies, stop_told, snapshot });
    }
    Ok((inside, contents))
}

/// Asks all processes what only they can tell: each answers while the next is being asked.
fn ask(
    targets: &[Target],
    befores: &[Before],
    held: &mut [HeldProgram],
    stands: Vec<Stand>,
    options: &CutOptions,
    kept: &mut KeptAll,
) -> Result<Vec<Asked>, CutError> {
    let mut all: Vec<Asked> = Vec::with_capacity(targets.len());
    for (((target, before), held), stand) in targets.iter().zip(befores).zip(held).zip(stands) {
        match capture_process::ask(target, options, kept.of(target), before, held, stand, all.is_empty()) {
            Ok(asked) => all.push(asked),
            Err(error) => {
                targets.iter().zip(&all).for_each(|(target, asked)| asked.give_up(target));
                return Err(process_errors::named(error, targets.len() > 1, target.pid));
            }
        }
    }
    Ok(all)
}

/// Looks at all processes.
fn look(
    targets: &[Target],
    held: &mut [HeldProgram],
    asked: Vec<Asked>,
    kept: &mut KeptAll,
) -> Result<Vec<Seen>, CutError> {
    let mut seen = Vec::with_capacity(targets.len());
    let mut failure = None;
    for ((target, held), asked) in targets.iter().zip(held).zip(asked) {
        if failure.is_some() {
            asked.give_up(target);
            continue;
        }
        match capture_process::look(target, kept.of(target), held, asked) {
            Ok(one) => seen.push(one),
            Err(error) => failure = Some(process_errors::named(error, targets.len() > 1, target.pid)),
        }
    }
    failure.map_or(Ok(seen), Err)
}

/// The rest of what needs no tracing, and which pages of one were written.
fn memory(&(target, seen): &(&Target, &Seen)) -> Result<(Scenery, Collected), CutError> {
    Ok((capture_process::scenery(target, seen)?, engine::collect(target, seen.live, &seen.mapped)?))
}

/// The results of all, or the first error, with the name of its process.
fn whose<T>(targets: &[Target], all: Vec<Result<T, CutError>>) -> Result<Vec<T>, CutError> {
    let several = targets.len() > 1;
    let named = |(one, target): (Result<T, CutError>, &Target)| {
        one.map_err(|error| process_errors::named(error, several, target.pid))
    };
    all.into_iter().zip(targets).map(named).collect()
}

/// The descriptors of all.
fn reader<'a>(
    targets: &[Target],
    options: &'a CutOptions,
    befores: &'a [Before],
    seen: &[Seen],
    surroundings: &[Surroundings],
) -> Result<FileReader<'a>, CutError> {
    let of_all = targets.iter().zip(befores).zip(seen).zip(surroundings);
    let holders = of_all.map(|(((target, before), seen), surroundings)| Holder {
        pid: target.pid,
        inner_pid: seen.inner_pid,
        tid: seen.live,
        pidfd: &before.pidfd,
        own: surroundings.own,
    });
    let outside = Outside { inherited: &options.inherited, lose_connections: options.lose_connections };
    let mut covered = Covered::default();
    seen.iter().for_each(|seen| covered.add(&seen.mapped));
    Ok(FileReader::new(holders.collect(), outside, Look::Stopped)?.covering(covered))
}

/// The file tables of all.
fn files(
    reader: &FileReader<'_>,
    targets: &[Target],
    options: &CutOptions,
    seen: &[Seen],
) -> Result<Vec<FileTable>, CutError> {
    let mut tables = reader.tables().map_err(|unreadable| {
        let refusals = named(targets, unreadable.refusals);
        if unreadable.passing { CutError::Unsettled(refusals) } else { CutError::Refused(refusals) }
    })?;
    if let Some(first) = tables.first_mut() {
        seen.iter().for_each(|seen| unlinked::add_mapped(first, &seen.mapped, &seen.memory));
        first.segments = attached(targets, options, seen)?;
        let users = targets.iter().zip(seen).map(|(target, seen)| ipc::User {
            pid: target.pid,
            tid: seen.live,
            area: Some(&target.area),
        });
        first.ipc = ipc::used(users, Look::Stopped).map_err(|refusals| refused(targets, refusals))?;
    }
    Ok(tables)
}

/// What is in the files that they write, if the job saves that.
fn contents(
    targets: &[Target],
    options: &CutOptions,
    seen: &[Seen],
    tables: &[FileTable],
) -> Result<Taken, CutError> {
    let Some(contents) = options.contents.as_ref().filter(|_| options.only.is_none()) else {
        return Ok(Taken::default());
    };
    let both = targets.iter().zip(seen);
    let processes: Vec<contents::Process<'_>> = both
        .map(|(target, seen)| contents::Process { pid: target.pid, tid: seen.live, mapped: &seen.mapped })
        .collect();
    contents.take(tables, &processes).map_err(|unsaved| match unsaved {
        Unsaved::Refused(refusals) => refused(targets, refusals),
        Unsaved::Failed(error) => error.into(),
    })
}

/// The System V shared memory of all.
fn attached(targets: &[Target], options: &CutOptions, seen: &[Seen]) -> Result<Vec<Segment>, CutError> {
    let processes = targets.iter().zip(seen).map(|(target, seen)| sysv_shm::Process {
        pid: target.pid,
        area: Some(&target.area),
        mapped: &seen.mapped,
    });
    let found = sysv_shm::attached(processes);
    if !found.refusals.is_empty() {
        return Err(refused(targets, found.refusals));
    }
    // A process that is just ending gives it up in a moment.
    match refused(targets, found.shared) {
        CutError::Refused(refusals) if !refusals.is_empty() && options.only.is_none() => {
            Err(CutError::Unsettled(refusals))
        }
        _ => Ok(found.segments),
    }
}

/// Refusals with the places of their processes, which are named if there are several.
fn named(targets: &[Target], refusals: Vec<(usize, Refusal)>) -> Vec<Refusal> {
    let of = |(place, refusal): (usize, Refusal)| match targets.get(place) {
        Some(target) if targets.len() > 1 => refusal.of(target.pid, &refuse::name_of(target.pid)),
        _ => refusal,
    };
    refusals.into_iter().map(of).collect()
}

/// The same, as an error.
pub fn refused(targets: &[Target], refusals: Vec<(usize, Refusal)>) -> CutError {
    CutError::Refused(named(targets, refusals))
}
