//! The tracer: one OS thread that does all ptrace of a job, driven by commands.
//!
//! ptrace binds a tracee to the thread that seized it, so everything that touches a stopped thread or the frozen copy
//! happens here; the agent's other threads send commands and read memory. If the thread (or the agent) dies, the
//! kernel detaches the program and kills the copy.

use crate::cut::{self, Cut};
use crate::error::CutError;
use crate::freeze::guard::{self, Guard};
use crate::freeze::retained::Retained;
use crate::freeze::tracer_queue::{Parked, TracerQueue};
use crate::job::births::Births;
use crate::job::membership::Descendants;
use crate::job::target::{Roster, Target};
use crate::job::tracer_state::TracerState;
use crate::options::CutOptions;
use crate::rebuild::RebuildError;
use crate::rebuild::in_place::{self, InPlace, InPlaceError};
use crate::stop::interrupt;
use crate::stop::partial_stop::PartialStop;
use crate::stop::process_errors;
use crate::stop::resume::{self, StoppedProgram};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use holdfast_image::address_space;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often threads that could not be stopped in time are looked after.
const TEND_EVERY: Duration = Duration::from_millis(5);
/// Longest stop that is tried to hold the program.
const PARK_DEADLINE: Duration = Duration::from_millis(50);

/// Addresses: from, to.
type Places = Vec<(u64, u64)>;

/// What the tracer thread can be asked.
#[derive(Debug)]
pub enum Command {
    /// Make a cut.
    Cut(Box<CutRequest>),
    /// These pages are stored.
    Release(PageRun),
    /// Hold the programs: there is no room for more copies.
    Park(Vec<Target>, Sender<Result<(), CutError>>),
    /// Let it run on.
    Unpark,
    /// Stop all threads of a process but these. With addresses that are to be kept free.
    StopPart(Box<(Target, Vec<i32>, Places)>, Sender<Result<(), CutError>>),
    /// Keep these addresses free.
    Reserve(Sender<Result<(), CutError>>),
    /// Let it run on.
    ResumePart,
    /// Put the held programs back into what an image has of them.
    PutBack(Box<InPlace>, Sender<Result<Vec<String>, InPlaceError>>),
    /// No other cut will be asked for.
    Quit,
    /// The memory of the last cut is not needed any more; with `kill` the held program is ended.
    End {
        /// SIGKILL a held program instead of letting it run on.
        kill: bool,
    },
}

/// A cut to be made.
pub struct CutRequest {
    roster: Arc<dyn Roster>,
    options: CutOptions,
    reply: Sender<Result<Cut, CutError>>,
}

impl fmt::Debug for CutRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CutRequest").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Handle of the tracer thread, which ends with it (a copy that is still there then is killed by the kernel).
#[derive(Debug)]
pub struct Tracer {
    commands: Sender<Command>,
    queue: Arc<dyn TracerQueue>,
    births: Option<Arc<Births>>,
}

impl TracerQueue for Sender<Command> {
    fn release(&self, run: PageRun) {
        let _ = self.send(Command::Release(run));
    }
    fn end(&self, kill: bool) -> bool {
        self.send(Command::End { kill }).is_ok()
    }
    fn unpark(&self) {
        let _ = self.send(Command::Unpark);
    }
}

impl Tracer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread could be made.
    pub fn spawn() -> io::Result<Tracer> {
        let (commands, inbox) = unbounded();
        let queue: Arc<dyn TracerQueue> = Arc::new(commands.clone());
        let own = Arc::clone(&queue);
        let births = Births::listen();
        let state = TracerState::with(Descendants::and(births.clone()));
        std::thread::Builder::new().name("tracer".into()).spawn(move || {
            holdfast_sys::clock::no_timer_slack();
            Worker::new(inbox, own, state).run();
        })?;
        Ok(Tracer { commands, queue, births })
    }

    /// Who is born below the job's processes, if the kernel tells; it must be told who they are.
    pub fn births(&self) -> Option<Arc<Births>> {
        self.births.clone()
    }

    /// Stops the programs of a job, records them, freezes their memory, lets them run on. `roster`: tells who they
    /// are, on the tracer thread.
    ///
    /// # Errors
    /// See [`CutError`]; the programs run on as if nothing had happened.
    pub fn cut(&self, roster: &Arc<dyn Roster>, options: &CutOptions) -> Result<Cut, CutError> {
        let gone = || CutError::Failed { what: "the tracer thread ended".into() };
        let (reply, answer) = bounded(1);
        let request = CutRequest { roster: Arc::clone(roster), options: options.clone(), reply };
        self.commands.send(Command::Cut(Box::new(request))).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}

impl Tracer {
    /// Holds the programs until the answer is dropped, while their frozen copies are stored.
    ///
    /// # Errors
    /// They could not be stopped (in time); they run on.
    pub fn park(&self, targets: &[Target]) -> Result<Parked, CutError> {
        ask(&self.commands, |reply| Command::Park(targets.to_vec(), reply))?;
        Ok(Parked::new(&self.queue))
    }
}

/// A process of which all threads but a few are stopped; they run on when this is dropped.
#[derive(Debug)]
pub struct PartlyStopped(Sender<Command>);

impl PartlyStopped {
    /// Addresses without memory at its places, where nothing is.
    ///
    /// # Errors
    /// That cannot be; it is stopped all the same.
    pub fn reserve(&self) -> Result<(), CutError> {
        ask(&self.0, Command::Reserve)
    }
}

impl Drop for PartlyStopped {
    fn drop(&mut self) {
        let _ = self.0.send(Command::ResumePart);
    }
}

fn ask(
    commands: &Sender<Command>,
    command: impl FnOnce(Sender<Result<(), CutError>>) -> Command,
) -> Result<(), CutError> {
    let gone = || CutError::Failed { what: "the tracer thread ended".into() };
    let (reply, answer) = bounded(1);
    commands.send(command(reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

impl Tracer {
    /// Stops all threads of a process but these until the answer is dropped. One process at a time. `places`: addresses
    /// that [`PartlyStopped::reserve`] keeps free.
    ///
    /// # Errors
    /// It could not be stopped (in time); it runs on.
    pub fn stop_part(
        &self,
        target: &Target,
        spared: &[i32],
        places: &[(u64, u64)],
    ) -> Result<PartlyStopped, CutError> {
        let what = Box::new((target.clone(), spared.to_vec(), places.to_vec()));
        ask(&self.commands, |reply| Command::StopPart(what, reply))?;
        Ok(PartlyStopped(self.commands.clone()))
    }
}

impl Tracer {
    /// Puts programs back that the last cut holds ([`CutOptions::hold`]), and lets them run on; what the user should
    /// know.
    ///
    /// # Errors
    /// See [`InPlaceError`]; they are held part, and resumed or ended with the memory of the cut.
    pub fn put_back(&self, request: InPlace) -> Result<Vec<String>, InPlaceError> {
        let gone = || InPlaceError::Broken(RebuildError::Refused("the tracer thread ended".into()));
        let (reply, answer) = bounded(1);
        self.commands.send(Command::PutBack(Box::new(request), reply)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Quit);
    }
}

struct Worker {
    inbox: Receiver<Command>,
    queue: Arc<dyn TracerQueue>,
    state: TracerState,
    /// With the space of its process.
    retained: Vec<(u32, Retained)>,
    /// A guard that could not be lifted after its flush.
    unlifted: Option<(Arc<Guard>, Box<Target>)>,
    /// Held for lack of room.
    parked: Vec<StoppedProgram>,
    /// All threads of it but a few are stopped.
    part: Option<PartialStop>,
    /// Was taken out of the inbox, and comes next.
    next: Option<Command>,
}

impl Worker {
    /// With nothing of a program yet.
    fn new(inbox: Receiver<Command>, queue: Arc<dyn TracerQueue>, state: TracerState) -> Worker {
        let (retained, parked) = (Vec::new(), Vec::new());
        Worker { inbox, queue, state, retained, unlifted: None, parked, part: None, next: None }
    }

    fn run(mut self) {
        loop {
            let idle = self.state.stragglers.is_empty() && self.part.is_none();
            let wait = if idle { Duration::from_secs(3600) } else { TEND_EVERY };
            match self.next.take().map_or_else(|| self.inbox.recv_timeout(wait), Ok) {
                Ok(Command::Quit) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.state.stragglers.tend();
            if let Some(part) = &mut self.part {
                part.tend(&mut self.state);
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Cut(request) => {
                let answer = self.cut(&*request.roster, &request.options);
                let _ = request.reply.send(answer);
                self.drop_surplus();
            }
            Command::Park(targets, reply) => {
                let _ = reply.send(self.park(&targets));
            }
            Command::Unpark => self.unpark(),
            Command::StopPart(what, reply) => {
                self.resume_part();
                let (target, spared, places) = *what;
                let begun = PartialStop::begin(target, spared, places, &mut self.state);
                let _ = reply.send(begun.map(|part| self.part = Some(part)));
            }
            Command::Reserve(reply) => {
                let gone = || CutError::Failed { what: "no process is stopped in part".into() };
                let part = self.part.as_mut().ok_or_else(gone);
                let _ = reply.send(part.and_then(PartialStop::reserve));
            }
            Command::ResumePart => self.resume_part(),
            Command::PutBack(request, reply) => {
                let _ = reply.send(self.put_back(&request));
            }
            Command::Release(run) => self.release(run),
            Command::Quit => {} // the loop has taken it
            Command::End { kill } => {
                for (_, current) in std::mem::take(&mut self.retained) {
                    match current {
                        Retained::Held(held) if kill => held.kill(&mut self.state.stragglers),
                        Retained::Guarded { guard, target } => self.lift(guard, target),
                        other => other.end(&mut self.state),
                    }
                }
            }
        }
    }

    fn cut(&mut self, roster: &dyn Roster, options: &CutOptions) -> Result<Cut, CutError> {
        if let Some((guard, target)) = self.unlifted.take() {
            self.lift(guard, target);
        }
        if !self.retained.is_empty() || self.unlifted.is_some() {
            return Err(CutError::Busy { what: "the image before is still being written".into() });
        }
        self.unpark();
        let made = cut::make(roster, options, &mut self.state, &self.queue).map_err(|error| {
            // Killed in the middle of it: what could not be read is no failure of ours, and what was read of a
            // process that is ending (no descriptors any more) no reason to refuse.
            let targets = roster.targets();
            let ended = targets.iter().find(|target| interrupt::is_dying(target.pid));
            match (error, ended) {
                (CutError::Failed { .. } | CutError::Refused(_), Some(_)) if targets.len() == 1 => {
                    CutError::Gone
                }
                (CutError::Failed { .. } | CutError::Refused(_), Some(target)) => {
                    process_errors::just_ended(target.pid)
                }
                (CutError::Failed { .. }, None) if targets.is_empty() => CutError::Gone,
                (error, _) => error,
            }
        })?;
        self.retained = made.retained;
        self.parked = made.parked;
        Ok(made.cut)
    }

    fn put_back(&mut self, request: &InPlace) -> Result<Vec<String>, InPlaceError> {
        let mut held: Vec<(u32, &mut StoppedProgram)> = Vec::with_capacity(self.retained.len());
        for (space, retained) in &mut self.retained {
            if let Retained::Held(program) = retained {
                held.push((*space, program));
            }
        }
        let notes = in_place::put_back(&mut held, request, &mut self.state)?;
        // They run.
        self.retained.clear();
        Ok(notes)
    }

    /// Lifts a guard. What cannot be lifted now is tried again before the next cut.
    fn lift(&mut self, guard: Arc<Guard>, target: Box<Target>) {
        self.unpark();
        match guard::lift(&guard, &target, &mut self.state) {
            Ok(()) | Err(CutError::Gone) => {}
            Err(error) => {
                tracing::warn!(%error, "lifting the guard");
                self.unlifted = Some((guard, target));
            }
        }
    }

    fn park(&mut self, targets: &[Target]) -> Result<(), CutError> {
        if self.parked.is_empty() {
            self.parked = resume::park(targets, PARK_DEADLINE, &mut self.state)?;
        }
        Ok(())
    }

    fn unpark(&mut self) {
        resume::resume_all(std::mem::take(&mut self.parked), &mut self.state.stragglers);
    }

    fn resume_part(&mut self) {
        if let Some(part) = self.part.take() {
            part.end(&mut self.state);
        }
    }

    /// Lets the copies drop what is not needed of them: until then the programs' writes there cost copies.
    fn drop_surplus(&mut self) {
        for (_, current) in &mut self.retained {
            if let Retained::Copy { copy, surplus } = current
                && let Err(error) = copy.release(&std::mem::take(surplus))
            {
                tracing::warn!(%error, "releasing clean pages");
            }
        }
    }

    /// Releases this run and all others that wait in the inbox, in one go.
    fn release(&mut self, first: PageRun) {
        let mut runs = vec![first];
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Release(run) => runs.push(run),
                other => {
                    self.next = Some(other);
                    break;
                }
            }
        }
        let all = PageSet::from(runs);
        for (space, current) in &self.retained {
            let own = address_space::own_set(*space, &all);
            if let Retained::Copy { copy, .. } = current
                && !own.is_empty()
                && let Err(error) = copy.release(own.runs())
            {
                tracing::warn!(%error, "releasing stored pages");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::{Addr, PAGE_SIZE};

    #[test]
    fn a_quit_behind_pages_that_are_stored_is_not_lost() {
        let (commands, inbox) = unbounded();
        let run = PageRun::between(Addr(0), Addr(PAGE_SIZE));
        for command in [Command::Release(run), Command::Release(run), Command::Quit] {
            assert!(commands.send(command).is_ok());
        }
        let queue: Arc<dyn TracerQueue> = Arc::new(commands.clone());
        let state = TracerState::with(Descendants::and(None));
        // It would wait for another command.
        Worker::new(inbox, queue, state).run();
        assert!(commands.send(Command::Unpark).is_err(), "the thread has ended");
    }
}
