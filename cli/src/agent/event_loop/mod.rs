//! The agent's loop: one thread that waits for everything at once.
//!
//! It waits for requests at the socket, for the end of the job's processes, for the checkpoint thread, for the front,
//! for SIGTERM and for the next interval. Nothing in it blocks: clients that do not read lose their connection.
//!
//! This file waits and says what was waited for; `clients`, `members`, `checkpoints`, `planned`, `remote` and
//! `rollbacks` act on it.
//!
//! Invariants: one checkpoint or rollback at a time; every waiter gets exactly one reply or a closed connection; the
//! loop ends only when neither is running.

mod checkpoints;
mod clients;
mod gang;
mod members;
mod planned;
mod remote;
mod rollbacks;

use super::checks::Checks;
use super::connections::Client;
use super::context::JobContext;
use super::events::{Event, Progress, Reporter};
use super::hook::Hook;
use super::own_end::OwnEnd;
use super::processes::Processes;
use super::request::CheckpointOptions;
use super::retention;
use super::rollbacks::Rollbacks;
use super::rush::Rush;
use super::starts::Starts;
use crate::cascade;
use crate::exit::Failure;
use crate::front_link::Tell;
use crate::gang::message::Prepare;
use crate::inherited_fds::InheritedFd;
use crate::last_run::LastRun;
use crate::pidfile;
use holdfast_image::Epoch;
use holdfast_image::record::InjectArea;
use holdfast_process::{Kinship, Tracer, Tracking};
use holdfast_sys::poll::{self, Bell};
use holdfast_sys::signals::SignalMessages;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a job without processes may last: the child of a daemonising program needs a moment to register.
const GRACE: Duration = Duration::from_millis(300);

/// How often it is looked whether the tiers keep an agent without a program.
const TIERS_LOOK: Duration = Duration::from_millis(50);

/// How often it is looked whether the command of `--exec-after` has ended.
const HOOK_LOOK: Duration = Duration::from_millis(100);

struct Waiter {
    /// Connection to answer; `None`: the interval.
    client: Option<u64>,
    wait: bool,
    options: CheckpointOptions,
    /// A process of the job whose handler of this signal has asked: what it does at it itself is done if this fails.
    handler: Option<(i32, i32)>,
}

struct Running {
    thread: JoinHandle<()>,
    progress: Arc<Progress>,
    options: CheckpointOptions,
    /// Epoch and stop time, once the cut was made.
    cut: Option<(Epoch, u64)>,
    waiters: Vec<Waiter>,
}

/// What woke the loop.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Bell,
    Signals,
    Link,
    Process(i32),
    Client(u64),
}

/// The state of the loop.
pub struct EventLoop {
    context: Arc<JobContext>,
    tracer: Arc<Tracer>,
    listener: OwnedFd,
    signals: SignalMessages,
    bell: Arc<Bell>,
    reporter: Reporter,
    events: mpsc::Receiver<Event>,
    processes: Arc<Mutex<Processes>>,
    clients: Vec<Client>,
    next_client: u64,
    running: Option<Running>,
    queued: Vec<Waiter>,
    /// Of another member than the leader: who waits for the round that the leader was asked for.
    asked: Vec<Waiter>,
    /// A round that begins when the checkpoint before is done.
    prepared: Option<Prepare>,
    rollbacks: Rollbacks,
    starts: Starts,
    checks: Checks,
    due: Option<Instant>,
    newest: Option<Epoch>,
    last_error: Option<String>,
    /// Why a checkpoint failed that no caller waited for, as the front was told.
    told_error: Option<String>,
    /// The last one that no caller waited for has failed.
    has_failed: bool,
    /// Since when no process is left, and how long that may last.
    alone: Option<(Instant, Duration)>,
    /// How long that may last once processes were there.
    grace: Duration,
    link_open: bool,
    ending: bool,
    /// The tiers were told how the run has ended, as the front has written that down.
    end_told: bool,
    /// Descriptors above 2 that the program was started with; unknown before the registration of one that was started
    /// without a front.
    inherited_fds: Option<Vec<InheritedFd>>,
    /// Finds what went on as another user.
    kinship: Kinship,
    /// For what clients send.
    buffer: Vec<u8>,
    rush: Rush,
    /// What no front writes down.
    own_end: OwnEnd,
    hook: Hook,
    /// Clients whose images are being deleted.
    removing: Vec<u64>,
}

impl EventLoop {
    /// The event loop of the job, with SIGTERM and its like blocked and turned into `signals`. `patience`: how long to
    /// wait for a first registration where no front holds the link.
    ///
    /// # Errors
    /// EMFILE; the tracer's thread cannot be made.
    pub fn new(
        context: Arc<JobContext>,
        listener: OwnedFd,
        signals: SignalMessages,
        patience: Duration,
        inherited_fds: Option<Vec<InheritedFd>>,
    ) -> io::Result<EventLoop> {
        let bell = Arc::new(Bell::new()?);
        let (sender, events) = mpsc::channel();
        let newest = context.job.images().ok().and_then(|all| all.last().map(|image| image.epoch));
        let link_open = context.link.is_some();
        let kinship = Kinship::of_key(context.key(), &context.job.socket_path());
        let tracer = Arc::new(Tracer::spawn()?);
        let processes = Processes::told_to(tracer.births());
        Ok(EventLoop {
            tracer,
            listener,
            signals,
            reporter: Reporter { events: sender, bell: Arc::clone(&bell) },
            bell,
            events,
            processes: Arc::new(Mutex::new(processes)),
            clients: Vec::new(),
            next_client: 0,
            running: None,
            queued: Vec::new(),
            asked: Vec::new(),
            prepared: None,
            rollbacks: Rollbacks::default(),
            starts: Starts::default(),
            checks: Checks::default(),
            due: context.every_s().map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            newest,
            last_error: None,
            told_error: None,
            has_failed: false,
            alone: (!link_open).then(|| (Instant::now(), patience)),
            grace: GRACE,
            link_open,
            ending: false,
            end_told: false,
            inherited_fds,
            kinship,
            buffer: Vec::new(),
            rush: Rush::default(),
            own_end: OwnEnd::default(),
            hook: Hook::default(),
            removing: Vec::new(),
            context,
        })
    }

    /// The program will not register: the front tells of it.
    pub fn await_program(&self) {
        self.processes().awaited = true;
    }

    /// Readable when the agent is told to end.
    ///
    /// # Errors
    /// EMFILE.
    pub fn stop_signals(&self) -> Result<Arc<OwnedFd>, Failure> {
        let duplicate = self.signals.as_fd().try_clone_to_owned();
        duplicate.map(Arc::new).map_err(|error| Failure::system("duplicating the signalfd", &error))
    }

    /// Adds a process that the agent itself has rebuilt.
    ///
    /// # Errors
    /// It is gone already.
    pub fn adopt(
        &mut self,
        pid: i32,
        space: u32,
        area: InjectArea,
        tracking: Arc<Tracking>,
    ) -> io::Result<()> {
        self.processes().add(pid, Some(space), area, tracking)?;
        (self.alone, self.end_told) = (None, false);
        self.remember_program();
        Ok(())
    }

    /// A restart has given a process a standard stream that may be another than the front's.
    pub fn gave(&mut self, pid: i32, fd: i32, number: i32) {
        if let Some(given) = InheritedFd::look(pid, fd).map(|found| InheritedFd { fd: number, ..found }) {
            let all = self.inherited_fds.get_or_insert_default();
            if !all.contains(&given) {
                all.push(given);
            }
        }
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock()
    }

    fn program_pid(&self) -> Option<i32> {
        self.processes().program_pid()
    }

    /// Serves until the job has ended.
    ///
    /// # Errors
    /// poll(2) failed: nothing can be done any more.
    pub fn serve(mut self) -> io::Result<()> {
        while !self.is_finished() || !self.ending && self.program_pid().is_none() && self.follow_kin() {
            let timeout = self.timeout();
            for source in self.wait(timeout)? {
                self.handle(source);
            }
            self.check_clock();
            self.tell_end();
            self.hook.look(&self.context);
            // A checkpoint waits for registrations.
            if let Some(pause) = self.rush.pause(Instant::now()).filter(|_| !self.is_at_work()) {
                std::thread::sleep(pause);
            }
        }
        self.leave_tiers();
        self.hook.leave(&self.context);
        if self.program_pid().is_none() {
            self.own_end.over(&self.context.job);
        }
        let why = if self.ending { "it was asked to" } else { "no process of the job is left" };
        tracing::info!("the agent ends: {why}");
        Ok(())
    }

    fn is_finished(&self) -> bool {
        !self.is_at_work() && self.removing.is_empty() && (self.ending || self.is_alone() && !self.lingers())
    }

    /// Whether a checkpoint or a rollback is under way.
    fn is_at_work(&self) -> bool {
        self.running.is_some() || self.rollbacks.is_under_way()
    }

    /// Whether no checkpoint may begin now.
    fn is_busy(&self) -> bool {
        self.is_at_work() || self.starts.is_under_way()
    }

    /// Whether no process has been there for long enough.
    fn is_alone(&self) -> bool {
        self.alone.is_some_and(|(since, patience)| since.elapsed() >= patience)
    }

    /// Whether the tiers are what keeps the agent: copies, or the word that the run has come to its end.
    fn lingers(&self) -> bool {
        const FRONT: Duration = Duration::from_secs(10);
        let cascade = self.context.cascade.as_ref();
        let Some((since, patience)) = self.alone.filter(|_| self.is_alone()) else { return false };
        let is_to_tell = cascade.is_some() && self.link_open && !self.end_told;
        is_to_tell && since.elapsed() < patience + FRONT || cascade::lingers(cascade, since)
    }

    /// Once the front has written down that the run has come to its end, the tiers are told: a host that has nothing of
    /// the job does not run it again. While the agent still answers: who waits for it may tell it to leave that.
    fn tell_end(&mut self) {
        let Some(cascade) = self.context.cascade.as_ref().filter(|_| !self.end_told && self.is_alone())
        else {
            return;
        };
        let Some(run) = LastRun::read(&self.context.job).filter(|run| run.ended.is_some()) else { return };
        self.end_told = true;
        if run.is_done() {
            cascade.wake();
        }
    }

    /// What the tiers have by now may go from the store; what they have not is said.
    fn leave_tiers(&self) {
        let Some(cascade) = self.context.cascade.as_ref().filter(|_| self.context.lock.is_in_place()) else {
            return;
        };
        cascade.stop();
        if let Some(newest) = self.newest {
            retention::apply(&self.context, newest);
        }
        for line in cascade::left_over(self.context.job.name(), Some(cascade)) {
            self.context.warn(line);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let end = self.alone.filter(|_| !self.is_at_work()).map(|(since, patience)| since + patience);
        // Until the tiers are done, which do not report it.
        let end = end.map(|end| if end <= now { now + TIERS_LOOK } else { end });
        let due = self.due.filter(|_| !self.is_busy() && self.program_pid().is_some());
        let hook = self.hook.is_busy().then(|| now + HOOK_LOOK);
        end.into_iter().chain(due).chain(hook).min().map(|moment| moment.saturating_duration_since(now))
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<Source>> {
        let mut waited: Vec<(Source, BorrowedFd<'_>)> = vec![
            (Source::Bell, self.bell.as_fd()),
            (Source::Signals, self.signals.as_fd()),
            (Source::Listener, self.listener.as_fd()),
        ];
        if let Some(link) = self.context.link.as_ref().filter(|_| self.link_open) {
            waited.push((Source::Link, link.as_fd()));
        }
        waited.extend(self.clients.iter().map(|client| (Source::Client(client.id), client.socket.as_fd())));
        // Last: a registration that is waiting must be heard before the end of its parent.
        // Their lock must not be held while this waits: the checkpoint thread asks who is there.
        let processes = self.processes().descriptors();
        waited.extend(processes.iter().map(|(pid, fd)| (Source::Process(*pid), fd.as_fd())));
        let fds: Vec<BorrowedFd<'_>> = waited.iter().map(|(_, fd)| *fd).collect();
        let ready = poll::readable(&fds, timeout)?;
        Ok(waited.iter().zip(ready).filter(|(_, ready)| *ready).map(|((source, _), _)| *source).collect())
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Bell => {
                self.bell.hush();
                while let Ok(event) = self.events.try_recv() {
                    self.checkpoint_event(event);
                }
            }
            Source::Signals => {
                while let Some(arrived) = self.signals.next() {
                    self.told_to_end(arrived.signal);
                }
            }
            Source::Link => self.link_event(),
            Source::Client(id) => self.client_event(id),
            Source::Process(pid) => self.process_ended(pid),
        }
    }

    /// A batch system, or systemd, sends its signal to all processes that it finds: the image that the program is to be
    /// ended with needs an agent. Without a program it is meant for this one.
    fn told_to_end(&mut self, signal: i32) {
        if self.program_pid().is_some() || self.link_open {
            tracing::info!("signal {signal} is ignored while there is a program");
        } else {
            self.ending = true;
        }
    }

    fn check_clock(&mut self) {
        let Some(due) = self.due.filter(|_| !self.is_busy() && self.program_pid().is_some()) else {
            return;
        };
        if due <= Instant::now() {
            self.request_checkpoint(Waiter {
                client: None,
                wait: true,
                options: CheckpointOptions::default(),
                handler: None,
            });
        }
    }

    fn link_event(&mut self) {
        match self.context.link.as_ref().map(|link| link.next(false)) {
            Some(Ok(Some(Tell::Over))) => {
                self.grace = Duration::ZERO;
                if self.alone.is_some() {
                    self.alone = Some((Instant::now(), self.grace));
                }
            }
            Some(Ok(Some(Tell::Started { pid }))) => {
                let expected = self.processes().expect(pid);
                match expected {
                    Ok(()) => {
                        tracing::info!("the program, process {pid}, has no libholdfast");
                        self.alone = None;
                        self.remember_program();
                    }
                    Err(error) => tracing::info!("the program has ended at once: {error}"),
                }
            }
            Some(Ok(_)) => {}
            _ => {
                self.link_open = false;
                self.notice_ends();
                self.note_outliving();
                if self.program_pid().is_none() && self.alone.is_none() {
                    self.alone = Some((Instant::now(), self.grace));
                }
            }
        }
    }
}

impl Drop for EventLoop {
    /// No socket is left behind by an agent that ends in order, and no word of a program that has ended. Unless the
    /// job was removed: what is there by now is another agent's.
    fn drop(&mut self) {
        if !self.context.lock.is_in_place() {
            return;
        }
        if self.program_pid().is_none() {
            pidfile::forget(&self.context.job, &self.context.lock);
        }
        let _ = std::fs::remove_file(self.context.job.socket_path());
    }
}
