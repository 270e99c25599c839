//! The processes of a job while they are stopped together.
//!
//! Called by `cut`, on the tracer thread. Those that the agent knows are stopped at once; what they have just made, and
//! what has just executed another program, is not known yet, or not rightly: it is let run to its hello while all
//! others stand, and stopped then. So a job that makes processes all the time is stopped too.
//! What must hold: a process gets into the group with its calls repaired ([`repair::repair`]); it may be let go then.
//! Fails by: [`CutError`]; what is in the group is the caller's to let go.

use crate::error::CutError;
use crate::job::adopt;
use crate::job::finish_registration;
use crate::job::orphans::Orphans;
use crate::job::prepare;
use crate::job::prepare::Before;
use crate::job::process_age;
use crate::job::relatives;
use crate::job::target::{Roster, Target};
use crate::job::tracer_state::KeptAll;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::interrupt::{self, Stopped, Stragglers, Whom};
use crate::stop::process_errors;
use crate::stop::repair;
use crate::stop::resume::{self, HeldProgram};
use crate::stop::stages::{Arrival, Stand};
use crate::stop::task_files::TaskFiles;
use crate::stop::threads::Samples;
use crate::thread_pool;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::record::ZombieRecord;
use holdfast_image::refusal::Refusal;
use holdfast_sys::clock::elapsed_ns;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long all others stand for the sake of one that has not spoken.
const NEWBORN: Duration = Duration::from_millis(60);
/// How often it is looked for.
const MOMENT: Duration = Duration::from_micros(300);

/// See the head of the file. All lists have the same order, the program first.
pub struct StoppedGroup {
    /// The processes.
    pub targets: Vec<Target>,
    /// What was looked up before each was stopped.
    pub befores: Vec<Before>,
    /// Each, stopped.
    pub held: Vec<HeldProgram>,
    /// What was read of each so far.
    pub stands: Vec<Stand>,
    orphans: Orphans,
    /// The children of each, read when all of them stood; `None`: somebody has run since.
    children: Option<Vec<Vec<i32>>>,
    /// When the first was interrupted.
    pub begun: Instant,
}

impl StoppedGroup {
    /// Stops all that are known.
    ///
    /// # Errors
    /// The program cannot be stopped, or is another one by now; nothing is stopped then.
    pub fn stop(
        (known, orphans): (Vec<Target>, Orphans),
        options: &CutOptions,
        kept: &mut KeptAll,
        stragglers: &mut Stragglers,
        breakdown: &mut StopBreakdown,
    ) -> Result<StoppedGroup, CutError> {
        let several = known.len() > 1;
        let (mut targets, mut befores) = (Vec::new(), Vec::new());
        for target in known {
            match prepare::prepare(&target, several, options, kept.of(&target)) {
                Ok(before) => {
                    befores.push(before);
                    targets.push(target);
                }
                // One of several that has just ended.
                Err(CutError::Gone) if !targets.is_empty() => {}
                Err(error) => return Err(process_errors::named(error, several, target.pid)),
            }
        }
        if targets.is_empty() {
            return Err(CutError::Gone);
        }
        let whom: Vec<Whom> =
            targets.iter().zip(&befores).map(|(target, before)| before.whom(target.pid)).collect();
        let (stopped, begun) = match interrupt::stop(&whom, options.deadline) {
            Ok(stopped) => stopped,
            Err(failure) => {
                let samples: Vec<&Samples> = befores.iter().map(|before| &before.samples).collect();
                return Err(resume::let_go_again(failure, &targets, kept, &samples, stragglers));
            }
        };
        let mut held = held(&targets, stopped);
        breakdown.stop_ns = elapsed_ns(begun);
        let mut group = StoppedGroup {
            targets: Vec::new(),
            befores: Vec::new(),
            held: Vec::new(),
            stands: Vec::new(),
            orphans,
            children: None,
            begun,
        };
        let mut failure = None;
        let files: Vec<Arc<TaskFiles>> = targets.iter().map(|target| kept.of(target).tasks.clone()).collect();
        let (arrivals, children) = arrivals(&targets, &befores, &mut held, &files, breakdown);
        let begun = Instant::now();
        for (((target, before), held), arrival) in targets.into_iter().zip(befores).zip(held).zip(arrivals) {
            // In all of them, whatever is wrong with one: their calls were interrupted.
            let taken = group.take_in(target, before, held, arrival, kept, stragglers);
            failure = failure.or(taken.err());
        }
        breakdown.threads_ns += elapsed_ns(begun);
        group.children = Some(children).filter(|children| children.len() == group.targets.len());
        match failure {
            None if !group.targets.is_empty() => Ok(group),
            failure => {
                resume::resume_all(group.held, stragglers);
                Err(failure.unwrap_or(CutError::Gone))
            }
        }
    }

    /// Repairs the calls of a process that was stopped. One that has executed another program meanwhile goes on: it
    /// speaks in a moment; but not the program itself.
    fn take_in(
        &mut self,
        target: Target,
        before: Before,
        mut held: HeldProgram,
        arrival: Result<Arrival, CutError>,
        kept: &mut KeptAll,
        stragglers: &mut Stragglers,
    ) -> Result<(), CutError> {
        let stand = arrival
            .and_then(|here| repair::repair(&target, kept.of(&target), &before.samples, &mut held, here));
        match stand {
            Ok(stand) => {
                self.targets.push(target);
                self.befores.push(before);
                self.held.push(held);
                self.stands.push(stand);
                Ok(())
            }
            Err(error) => {
                held.resume(stragglers);
                match error {
                    CutError::Unsettled(_) if !self.targets.is_empty() => Ok(()),
                    error => Err(process_errors::named(error, !self.targets.is_empty(), target.pid)),
                }
            }
        }
    }

    /// Takes in what was born meanwhile, until there is nobody who does not stand. Returns the children that have
    /// ended, each with the pid of its parent.
    ///
    /// # Errors
    /// Somebody does not speak.
    pub fn complete(
        &mut self,
        roster: &dyn Roster,
        options: &CutOptions,
        kept: &mut KeptAll,
        stragglers: &mut Stragglers,
    ) -> Result<Vec<(i32, ZombieRecord)>, CutError> {
        let mut tried = BTreeSet::new();
        loop {
            let known = |pid: i32| self.targets.iter().any(|own| own.pid == pid);
            let fresh: Vec<Target> =
                roster.targets().into_iter().filter(|target| !known(target.pid)).collect();
            let relatives = match self.children.take() {
                Some(children) => relatives::relatives_among(&self.targets, children),
                None => relatives::relatives(&self.targets),
            };
            let unsettled = match relatives {
                Ok(zombies) => match self.outside(&fresh) {
                    Ok(()) => return Ok(zombies),
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if options.only.is_some() || self.begun.elapsed() > NEWBORN {
                return Err(unsettled);
            }
            let spoke: Vec<i32> = fresh.iter().map(|target| target.pid).collect();
            for target in fresh {
                self.add(target, options, kept, stragglers)?;
            }
            for pid in adopt::strangers(&unsettled) {
                let will_not = || adopt::will_not_speak(pid, &self.targets, &options.socket);
                if !spoke.contains(&pid) && will_not() && tried.insert(pid) {
                    let job = (&self.targets[..], &self.orphans);
                    adopt::one(pid, job, roster, options.deadline, kept, stragglers)
                        .map_err(|error| process_errors::named(error, true, pid))?;
                }
            }
            thread::sleep(MOMENT);
        }
    }

    /// Whether somebody else is of the job. `fresh`: those that have spoken and are not in the group; one that executes
    /// another program just now speaks again.
    fn outside(&self, fresh: &[Target]) -> Result<(), CutError> {
        let pids: Vec<i32> = self.targets.iter().map(|target| target.pid).collect();
        let orphans = self.orphans.besides(&pids)?;
        // Nobody stands for the sake of one that will not speak.
        let old = |pid: &i32| !fresh.iter().any(|target| target.pid == *pid) && process_age::is_silent(*pid);
        let refused: Vec<Refusal> =
            orphans.iter().filter(|pid| old(pid)).map(|pid| refuse::stranger(*pid)).collect();
        refuse::unless_empty(refused)?;
        let all: BTreeSet<i32> = orphans.into_iter().chain(fresh.iter().map(|target| target.pid)).collect();
        let strangers: Vec<Refusal> = all.into_iter().map(refuse::stranger).collect();
        if strangers.is_empty() { Ok(()) } else { Err(CutError::Unsettled(strangers)) }
    }

    fn add(
        &mut self,
        target: Target,
        options: &CutOptions,
        kept: &mut KeptAll,
        stragglers: &mut Stragglers,
    ) -> Result<(), CutError> {
        let one = std::slice::from_ref(&target);
        let before = match prepare::prepare(&target, true, options, kept.of(&target)) {
            Ok(before) => before,
            Err(CutError::Gone | CutError::Busy { .. }) => return Ok(()),
            Err(error) => return Err(process_errors::named(error, true, target.pid)),
        };
        match interrupt::stop(&[before.whom(target.pid)], options.deadline) {
            Ok((stopped, _)) => match held(one, stopped).pop() {
                Some(mut held) => {
                    let read = read_threads(&mut held, &before);
                    let files = kept.of(&target).tasks.clone();
                    let arrival = read.and(repair::inspect(&target, &held.tids(), &files));
                    self.take_in(target, before, held, arrival, kept, stragglers)
                }
                None => Ok(()),
            },
            Err(failure) => match resume::let_go_again(failure, one, kept, &[&before.samples], stragglers) {
                CutError::Gone => Ok(()),
                error => Err(process_errors::named(error, true, target.pid)),
            },
        }
    }
}

/// Looks at all that were stopped, and who the children of each are: this thread at what must be traced, others meanwhile at
/// the rest.
fn arrivals(
    targets: &[Target],
    befores: &[Before],
    held: &mut [HeldProgram],
    files: &[Arc<TaskFiles>],
    breakdown: &mut StopBreakdown,
) -> (Vec<Result<Arrival, CutError>>, Vec<Vec<i32>>) {
    let begun = Instant::now();
    let tids: Vec<Vec<i32>> = held.iter().map(HeldProgram::tids).collect();
    let all: Vec<_> = targets.iter().zip(tids).zip(files).collect();
    let look = |((target, tids), files): &((&Target, Vec<i32>), &Arc<TaskFiles>)| {
        repair::inspect(target, tids, files)
    };
    let read = || {
        let read: Vec<_> =
            held.iter_mut().zip(befores).map(|(held, before)| read_threads(held, before)).collect();
        (read, elapsed_ns(begun))
    };
    let ((read, threads_ns), arrivals) = thread_pool::beside(&all, thread_pool::workers(), look, read);
    breakdown.threads_ns += threads_ns;
    breakdown.maps_ns += elapsed_ns(begun) - threads_ns;
    let children_of =
        |arrival: &Result<Arrival, CutError>| arrival.as_ref().map_or_else(|_| Vec::new(), Arrival::children);
    let children = arrivals.iter().map(children_of).collect();
    (read.into_iter().zip(arrivals).map(|(read, arrival)| read.and(arrival)).collect(), children)
}

/// What was stopped, with no connection of libholdfast half made where nobody would finish it.
fn held(targets: &[Target], mut stopped: Vec<Stopped>) -> Vec<HeldProgram> {
    for (target, stopped) in targets.iter().zip(&mut stopped) {
        finish_registration::finish(target.pid, &target.area, stopped);
    }
    resume::held(targets, stopped)
}

fn read_threads(held: &mut HeldProgram, before: &Before) -> Result<(), CutError> {
    held.threads = resume::read_threads(held.pid, &held.stopped, before.nested)?;
    Ok(())
}
