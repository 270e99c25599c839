//! The processes of a job while they are stopped together.
//!
//! Called by `cut`, on the tracer thread. Those that the agent knows are stopped at once; what they have just made, and
//! what has just executed another program, is not known yet, or not rightly: it runs on to its registration while all
//! others are stopped, and is stopped then. So a job that makes processes all the time is stopped too.
//! What must hold: a process gets into the group with its calls repaired ([`repair::repair`]); it may be resumed then.
//! Fails by: [`CutError`]; what is in the group is the caller's to resume.

use crate::error::CutError;
use crate::job::adopt;
use crate::job::finish_registration;
use crate::job::orphans::Orphans;
use crate::job::prepare::{self, Before};
use crate::job::process_age;
use crate::job::relatives;
use crate::job::stopped_process::StoppedProcess;
use crate::job::target::{Roster, Target};
use crate::job::tracer_state::TracerState;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::interrupt::{self, Stopped, Whom};
use crate::stop::process_errors;
use crate::stop::repair;
use crate::stop::resume::{self, StoppedProgram};
use crate::stop::stages::{Inspected, Repaired};
use crate::stop::task_files::TaskFiles;
use crate::thread_pool;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::record::ZombieRecord;
use holdfast_image::refusal::Refusal;
use holdfast_sys::clock::elapsed_ns;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long all others are stopped for the sake of one that has not registered.
const NEWBORN: Duration = Duration::from_millis(60);
/// How often it is looked for.
const MOMENT: Duration = Duration::from_micros(300);

/// See the head of the file.
pub struct StoppedGroup {
    /// The processes, the program first.
    pub processes: Vec<StoppedProcess<Repaired>>,
    orphans: Orphans,
    /// The children of each were read when all had been stopped.
    children_are_known: bool,
    /// When the first was interrupted.
    pub begun: Instant,
}

/// A process that was stopped, and what was found at the first look.
type Arrival = StoppedProcess<Result<Inspected, CutError>>;

impl StoppedGroup {
    /// Stops all that are known.
    ///
    /// # Errors
    /// The program cannot be stopped, or is another one by now; nothing is stopped then.
    pub fn stop(
        known: Vec<Target>,
        orphans: Orphans,
        options: &CutOptions,
        state: &mut TracerState,
        breakdown: &mut StopBreakdown,
    ) -> Result<StoppedGroup, CutError> {
        let prepared = prepare_all(known, options, state)?;
        let whom: Vec<Whom> = prepared.iter().map(|(target, before)| before.whom(target.pid)).collect();
        let (stopped, begun) = match interrupt::stop(&whom, options.deadline) {
            Ok(stopped) => stopped,
            Err(failure) => {
                let sampled = prepared.iter().map(|(target, before)| (target, &before.samples));
                return Err(resume::resume_interrupted(failure, sampled, state));
            }
        };
        let all = prepared.into_iter().zip(stopped);
        let all = all.map(|((target, before), stopped)| stopped_process(target, before, stopped)).collect();
        breakdown.stop_ns = elapsed_ns(begun);
        let mut group = StoppedGroup { processes: Vec::new(), orphans, children_are_known: true, begun };
        let arrivals = inspect_all(all, state, breakdown);
        let count = arrivals.len();
        let begun = Instant::now();
        let mut failure = None;
        for arrival in arrivals {
            // In all of them, whatever is wrong with one: their calls were interrupted.
            let taken = group.take_in(arrival, state);
            failure = failure.or(taken.err());
        }
        breakdown.threads_ns += elapsed_ns(begun);
        group.children_are_known = group.processes.len() == count;
        match failure {
            None if !group.processes.is_empty() => Ok(group),
            failure => {
                group.resume(state);
                Err(failure.unwrap_or(CutError::Gone))
            }
        }
    }

    /// Resumes all of them.
    pub fn resume(self, state: &mut TracerState) {
        resume::resume_all(self.processes.into_iter().map(|one| one.held).collect(), &mut state.stragglers);
    }

    /// Repairs the calls of a process that was stopped. One that has executed another program meanwhile goes on: it
    /// registers in a moment; but not the program itself.
    fn take_in(&mut self, arrival: Arrival, state: &mut TracerState) -> Result<(), CutError> {
        let (mut process, inspected) = arrival.split();
        let StoppedProcess { target, before, held, .. } = &mut process;
        let kept = state.of(target);
        match inspected.and_then(|here| repair::repair(target, kept, &before.samples, held, here)) {
            Ok(repaired) => {
                self.processes.push(process.with(repaired));
                Ok(())
            }
            Err(error) => {
                let pid = process.target.pid;
                process.held.resume(&mut state.stragglers);
                match error {
                    CutError::Unsettled(_) if !self.processes.is_empty() => Ok(()),
                    error => Err(process_errors::named(error, !self.processes.is_empty(), pid)),
                }
            }
        }
    }

    fn targets(&self) -> Vec<Target> {
        self.processes.iter().map(|one| one.target.clone()).collect()
    }

    fn has(&self, pid: i32) -> bool {
        self.processes.iter().any(|own| own.target.pid == pid)
    }

    /// The children of all that have ended.
    fn zombies(&mut self) -> Result<Vec<(i32, ZombieRecord)>, CutError> {
        if std::mem::take(&mut self.children_are_known) {
            let children = self.processes.iter().map(|one| (one.target.pid, one.stage.children.clone()));
            let zombies = relatives::relatives_among(&children.collect::<Vec<_>>())?;
            // One that has ended since may have had children.
            if zombies.is_empty() {
                return Ok(zombies);
            }
        }
        relatives::relatives(&self.targets())
    }

    /// Takes in what was made meanwhile, until all processes of the job are stopped. Returns the children that have
    /// ended, each with the pid of its parent.
    ///
    /// # Errors
    /// One does not register.
    pub fn complete(
        &mut self,
        roster: &dyn Roster,
        options: &CutOptions,
        state: &mut TracerState,
    ) -> Result<Vec<(i32, ZombieRecord)>, CutError> {
        let mut tried = BTreeSet::new();
        loop {
            let fresh: Vec<Target> =
                roster.targets().into_iter().filter(|target| !self.has(target.pid)).collect();
            let unsettled = match self.zombies() {
                Ok(zombies) => match self.outside(&fresh) {
                    Ok(()) => return Ok(zombies),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if options.only.is_some() || self.begun.elapsed() > NEWBORN {
                return Err(unsettled);
            }
            let registered: Vec<i32> = fresh.iter().map(|target| target.pid).collect();
            for target in fresh {
                self.add(target, options, state)?;
            }
            for pid in adopt::strangers(&unsettled) {
                let targets = self.targets();
                let will_not = || adopt::will_not_register(pid, &targets, &options.socket);
                if !registered.contains(&pid) && will_not() && tried.insert(pid) {
                    adopt::one(pid, (&targets, &self.orphans), roster, options, state)
                        .map_err(|error| process_errors::named(error, true, pid))?;
                }
            }
            thread::sleep(MOMENT);
        }
    }

    /// Whether other processes are of the job. `fresh`: those that have registered and are not in the group; one that
    /// executes another program just now registers again.
    fn outside(&self, fresh: &[Target]) -> Result<(), CutError> {
        let pids: Vec<i32> = self.processes.iter().map(|one| one.target.pid).collect();
        let orphans = self.orphans.besides(&pids)?;
        // The others are not stopped for the sake of one that will not register.
        let old = |pid: &i32| !fresh.iter().any(|target| target.pid == *pid) && process_age::is_silent(*pid);
        let refused: Vec<Refusal> =
            orphans.iter().filter(|pid| old(pid)).map(|pid| refuse::stranger(*pid)).collect();
        refuse::unless_empty(refused)?;
        let all: BTreeSet<i32> = orphans.into_iter().chain(fresh.iter().map(|target| target.pid)).collect();
        let strangers: Vec<Refusal> = all.into_iter().map(refuse::stranger).collect();
        if strangers.is_empty() { Ok(()) } else { Err(CutError::Unsettled(strangers)) }
    }

    fn add(&mut self, target: Target, options: &CutOptions, state: &mut TracerState) -> Result<(), CutError> {
        let pid = target.pid;
        let before = match prepare::prepare(&target, true, options, state.of(&target)) {
            Ok(before) => before,
            Err(CutError::Gone | CutError::Busy { .. }) => return Ok(()),
            Err(error) => return Err(process_errors::named(error, true, pid)),
        };
        match interrupt::stop(&[before.whom(pid)], options.deadline) {
            Ok((mut stopped, _)) => {
                let Some(stopped) = stopped.pop() else { return Ok(()) };
                let mut process = stopped_process(target, before, stopped);
                let read = read_threads(&mut process.held, process.before.nested);
                let files = state.of(&process.target).tasks.clone();
                let inspected = repair::inspect(&process.target, &process.held.tids(), &files);
                self.take_in(process.with(read.and(inspected)), state)
            }
            Err(failure) => {
                let sampled = [(&target, &before.samples)].into_iter();
                match resume::resume_interrupted(failure, sampled, state) {
                    CutError::Gone => Ok(()),
                    error => Err(process_errors::named(error, true, pid)),
                }
            }
        }
    }
}

/// Looks at what needs no stop, in all of them but those that have just ended.
fn prepare_all(
    known: Vec<Target>,
    options: &CutOptions,
    state: &mut TracerState,
) -> Result<Vec<(Target, Before)>, CutError> {
    let several = known.len() > 1;
    let mut prepared = Vec::with_capacity(known.len());
    for target in known {
        match prepare::prepare(&target, several, options, state.of(&target)) {
            Ok(before) => prepared.push((target, before)),
            // One of several that has just ended.
            Err(CutError::Gone) if !prepared.is_empty() => {}
            Err(error) => return Err(process_errors::named(error, several, target.pid)),
        }
    }
    if prepared.is_empty() { Err(CutError::Gone) } else { Ok(prepared) }
}

/// A process that was just stopped, with no connection of libholdfast half made that would never be finished.
fn stopped_process(target: Target, before: Before, mut stopped: Stopped) -> StoppedProcess<()> {
    finish_registration::finish(target.pid, &target.area, &mut stopped);
    let held = StoppedProgram::new(target.pid, stopped);
    StoppedProcess { target, before, held, stage: () }
}

/// Looks at all that were stopped: this thread at what must be traced, others meanwhile at the rest.
fn inspect_all(
    mut all: Vec<StoppedProcess<()>>,
    state: &mut TracerState,
    breakdown: &mut StopBreakdown,
) -> Vec<Arrival> {
    let begun = Instant::now();
    let (looks, traced): (Vec<_>, Vec<_>) = all
        .iter_mut()
        .map(|StoppedProcess { target, before, held, .. }| {
            let (tids, files) = (held.tids(), state.of(target).tasks.clone());
            ((&*target, tids, files), (held, before.nested))
        })
        .unzip();
    let look =
        |(target, tids, files): &(&Target, Vec<i32>, Arc<TaskFiles>)| repair::inspect(target, tids, files);
    let read = || {
        let read = traced.into_iter().map(|(held, nested)| read_threads(held, nested)).collect();
        (read, elapsed_ns(begun))
    };
    let ((read, threads_ns), inspected): ((Vec<_>, u64), _) =
        thread_pool::beside(&looks, thread_pool::workers(), look, read);
    breakdown.threads_ns += threads_ns;
    breakdown.maps_ns += elapsed_ns(begun) - threads_ns;
    let found = read.into_iter().zip(inspected).map(|(read, inspected)| read.and(inspected));
    all.into_iter().zip(found).map(|(process, found)| process.with(found)).collect()
}

fn read_threads(held: &mut StoppedProgram, nested: bool) -> Result<(), CutError> {
    held.threads = resume::read_threads(held.pid, &held.stopped, nested)?;
    Ok(())
}
