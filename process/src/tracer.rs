//! The tracer: one OS thread that does all ptrace of a job, driven by commands.
//!
//! ptrace binds a tracee to the thread that seized it, so everything that touches a stopped thread or the frozen copy
//! happens here; the agent's other threads send commands and read memory. If the thread (or the agent) dies, the
//! kernel detaches the program and kills the copy.

use crate::cut::{self, Cut, CutError, CutOptions, Kept, Target};
use crate::freeze::Copy;
use crate::guard::{self, Guard};
use crate::hold::{self, HeldProgram};
use crate::stop::Stragglers;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use holdfast_image::pages::{PageRun, coalesce};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often threads that could not be stopped in time are looked after.
const TEND_EVERY: Duration = Duration::from_millis(5);
/// Longest stop that is tried to hold the program.
const PARK_DEADLINE: Duration = Duration::from_millis(50);

/// What the tracer thread can be asked.
#[derive(Debug)]
pub enum Command {
    /// Make a cut.
    Cut(Box<CutRequest>),
    /// These pages are stored.
    Release(PageRun),
    /// Hold the program: there is no room for more copies.
    Park(Box<Target>, Sender<Result<(), CutError>>),
    /// Let it run on.
    Unpark,
    /// Nobody will ask for another cut.
    Quit,
    /// The memory of the last cut is not needed any more; with `kill` the held program is ended.
    End {
        /// SIGKILL a held program instead of letting it run on.
        kill: bool,
    },
}

/// A cut to be made.
#[derive(Debug)]
pub struct CutRequest {
    target: Target,
    options: CutOptions,
    reply: Sender<Result<Cut, CutError>>,
}

/// Handle of the tracer thread, which ends with it (a copy that is still there then is killed by the kernel).
#[derive(Debug)]
pub struct Tracer {
    commands: Sender<Command>,
}

impl Tracer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread could be made.
    pub fn spawn() -> io::Result<Tracer> {
        let (commands, inbox) = unbounded();
        let own = commands.clone();
        std::thread::Builder::new().name("tracer".into()).spawn(move || {
            holdfast_sys::clock::no_timer_slack();
            let (kept, stragglers) = (Kept::default(), Stragglers::default());
            Worker { inbox, commands: own, kept, current: None, unlifted: None, parked: None, stragglers }
                .run();
        })?;
        Ok(Tracer { commands })
    }

    /// Stops the program, records it, freezes its memory, lets it run on.
    ///
    /// # Errors
    /// See [`CutError`]; the program runs on as if nothing had happened.
    pub fn cut(&self, target: &Target, options: &CutOptions) -> Result<Cut, CutError> {
        let gone = || CutError::Failed { what: "the tracer thread ended".into() };
        let (reply, answer) = bounded(1);
        let request = CutRequest { target: target.clone(), options: options.clone(), reply };
        self.commands.send(Command::Cut(Box::new(request))).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}

/// A program that is held; it runs on when this is dropped.
#[derive(Debug)]
pub struct Parked {
    commands: Sender<Command>,
}

impl Parked {
    /// For a program that the tracer thread holds.
    pub(crate) fn new(commands: &Sender<Command>) -> Parked {
        Parked { commands: commands.clone() }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Unpark);
    }
}

impl Tracer {
    /// Holds the program until the answer is dropped, while its frozen copy is stored.
    ///
    /// # Errors
    /// It could not be stopped (in time); it runs on.
    pub fn park(&self, target: &Target) -> Result<Parked, CutError> {
        let gone = || CutError::Failed { what: "the tracer thread ended".into() };
        let (reply, answer) = bounded(1);
        self.commands.send(Command::Park(Box::new(target.clone()), reply)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())??;
        Ok(Parked::new(&self.commands))
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Quit);
    }
}

/// What a cut left behind until its memory is stored.
#[derive(Debug)]
pub enum Current {
    /// A frozen copy.
    Copy {
        /// The process.
        copy: Box<Copy>,
        /// What it may drop at once.
        surplus: Vec<PageRun>,
    },
    /// The program itself, held.
    Held(Box<HeldProgram>),
    /// Memory of the running program that is guarded.
    Guarded {
        /// Which.
        guard: Arc<Guard>,
        /// The program.
        target: Box<Target>,
    },
}

struct Worker {
    inbox: Receiver<Command>,
    commands: Sender<Command>,
    kept: Kept,
    current: Option<Current>,
    /// A guard that could not be lifted after its flush.
    unlifted: Option<(Arc<Guard>, Box<Target>)>,
    /// Held for lack of room.
    parked: Option<HeldProgram>,
    stragglers: Stragglers,
}

impl Worker {
    fn run(mut self) {
        loop {
            let wait = if self.stragglers.is_empty() { Duration::from_secs(3600) } else { TEND_EVERY };
            match self.inbox.recv_timeout(wait) {
                Ok(Command::Quit) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.stragglers.tend();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Cut(request) => {
                let answer = self.cut(&request.target, &request.options);
                let _ = request.reply.send(answer);
                self.drop_surplus();
            }
            Command::Park(target, reply) => {
                let _ = reply.send(self.park(&target));
            }
            Command::Unpark => self.unpark(),
            Command::Release(run) => self.release(run),
            Command::Quit => {} // taken by the loop
            Command::End { kill } => match self.current.take() {
                Some(Current::Copy { copy, .. }) => copy.end(),
                Some(Current::Held(held)) if kill => held.kill(&mut self.stragglers),
                Some(Current::Held(held)) => held.resume(&mut self.stragglers),
                Some(Current::Guarded { guard, target }) => self.lift(guard, target),
                None => {}
            },
        }
    }

    fn cut(&mut self, target: &Target, options: &CutOptions) -> Result<Cut, CutError> {
        if let Some((guard, target)) = self.unlifted.take() {
            self.lift(guard, target);
        }
        if self.current.is_some() || self.unlifted.is_some() {
            return Err(CutError::Busy { what: "the image before is still being written".into() });
        }
        self.unpark();
        let made = cut::make(target, options, &mut self.kept, &mut self.stragglers, &self.commands)?;
        self.current = made.current;
        self.parked = made.parked;
        Ok(made.cut)
    }

    /// Lifts a guard. What cannot be lifted now is tried again before the next cut.
    fn lift(&mut self, guard: Arc<Guard>, target: Box<Target>) {
        self.unpark();
        self.kept.meet(&target);
        match guard::lift(&guard, &target, &mut self.kept, &mut self.stragglers) {
            Ok(()) | Err(CutError::Gone) => {}
            Err(error) => {
                tracing::warn!(%error, "lifting the guard");
                self.unlifted = Some((guard, target));
            }
        }
    }

    fn park(&mut self, target: &Target) -> Result<(), CutError> {
        if self.parked.is_none() {
            self.kept.meet(target);
            self.parked = Some(hold::park(target, PARK_DEADLINE, &mut self.kept, &mut self.stragglers)?);
        }
        Ok(())
    }

    fn unpark(&mut self) {
        if let Some(held) = self.parked.take() {
            held.resume(&mut self.stragglers);
        }
    }

    /// Lets the copy drop what nobody needs of it: until then the program's writes there cost copies.
    fn drop_surplus(&mut self) {
        if let Some(Current::Copy { copy, surplus }) = &mut self.current
            && let Err(error) = copy.release(&std::mem::take(surplus))
        {
            tracing::warn!(%error, "releasing clean pages");
        }
    }

    /// Releases this run and all others that wait in the inbox, in one go.
    fn release(&mut self, first: PageRun) {
        let mut runs = vec![first];
        let mut other = None;
        while let Ok(command) = self.inbox.try_recv() {
            match command {
                Command::Release(run) => runs.push(run),
                command => {
                    other = Some(command);
                    break;
                }
            }
        }
        coalesce(&mut runs);
        if let Some(Current::Copy { copy, .. }) = &self.current
            && let Err(error) = copy.release(&runs)
        {
            tracing::warn!(%error, "releasing stored pages");
        }
        if let Some(command) = other {
            self.obey(command);
        }
    }
}
