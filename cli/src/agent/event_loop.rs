//! The agent's loop: one thread that waits for everything at once.
//!
//! It waits for requests at the socket, for the end of the job's processes, for the checkpoint thread, for the front,
//! for SIGTERM and for the next interval. Nothing in it blocks: clients that do not read lose their connection.
//!
//! Invariants: one checkpoint at a time; every waiter gets exactly one reply or a closed connection; the loop ends
//! only when no checkpoint is running.

use super::checkpoint;
use super::checks::{self, Checks};
use super::connections::{Client, has_free_slot};
use super::context::JobContext;
use super::error::CheckpointError;
use super::events::{Event, NewImage, Progress, Reporter};
use super::hook::{Committed, Hook};
use super::own_end::OwnEnd;
use super::processes::{Ended, Processes};
use super::request::{CheckpointOptions, CheckpointRequest};
use super::rush::Rush;
use super::{remove, retention, tiers};
use crate::exit::Failure;
use crate::inherited_fds::InheritedFd;
use crate::link::Tell;
use crate::new_settings::{NewSettings, told};
use crate::pidfile;
use crate::report;
use crate::settings::Changes;
use holdfast_abi::environment::ON_STOP_FAILED;
use holdfast_abi::registration::EVENT_SETSID;
use holdfast_image::Epoch;
use holdfast_image::control::{JobStatus, MAX_MESSAGE, Reply, Request, Step, Wanted};
use holdfast_image::record::InjectArea;
use holdfast_process::{Kinship, Tracer, Tracking, is_of_job};
use holdfast_sys::poll::{self, Bell};
use holdfast_sys::signals::{self, SignalMessages};
use holdfast_sys::{clone, fd, procfs, ptrace, unix_socket};
use holdfast_tiers::ImageInfo;
use holdfast_tiers::stack::Cascade;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a job without processes may last: the child of a daemonising program needs a moment to register.
const GRACE: Duration = Duration::from_millis(300);

/// When a checkpoint of the interval that has failed is tried again with `--strict`.
const SOON: Duration = Duration::from_secs(10);

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
            checks: Checks::default(),
            due: context.settings().every_s.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            newest,
            last_error: None,
            told_error: None,
            has_failed: false,
            alone: (!link_open).then(|| (Instant::now(), patience)),
            grace: GRACE,
            link_open,
            ending: false,
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
        self.alone = None;
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
            self.hook.look(&self.context);
            // A checkpoint waits for registrations.
            if let Some(pause) = self.rush.pause(Instant::now()).filter(|_| self.running.is_none()) {
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
        self.running.is_none()
            && self.removing.is_empty()
            && (self.ending || self.is_alone() && !self.lingers())
    }

    /// Whether no process has been there for long enough.
    fn is_alone(&self) -> bool {
        self.alone.is_some_and(|(since, patience)| since.elapsed() >= patience)
    }

    /// Whether the tiers are what keeps the agent.
    fn lingers(&self) -> bool {
        let cascade = self.context.cascade.as_ref();
        self.is_alone() && self.alone.is_some_and(|(since, _)| tiers::lingers(cascade, since))
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
        for line in tiers::left_over(self.context.job.name(), Some(cascade)) {
            self.context.warn(line);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let end = self.alone.filter(|_| self.running.is_none()).map(|(since, patience)| since + patience);
        // Until the tiers are done, which do not report it.
        let end = end.map(|end| if end <= now { now + TIERS_LOOK } else { end });
        let due = self.due.filter(|_| self.running.is_none() && self.program_pid().is_some());
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
        let Some(due) = self.due.filter(|_| self.running.is_none() && self.program_pid().is_some()) else {
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

    /// The front has ended, and the job has not.
    fn note_outliving(&mut self) {
        if self.context.link.is_some() && !self.link_open && self.program_pid().is_some() {
            self.own_end.outlived(&self.context.job);
        }
    }

    /// Who has ended by now, so that a checkpoint is not one of a launcher that has just ended.
    fn notice_ends(&mut self) {
        let ended = self.processes().ended_by_now();
        ended.into_iter().for_each(|pid| self.process_ended(pid));
    }

    fn process_ended(&mut self, pid: i32) {
        let ended = self.processes().ended(pid);
        match ended {
            Ended::Other => {}
            Ended::Succeeded(next) => {
                tracing::info!("process {pid} ended; {next} is the program now");
                self.remember_program();
            }
            Ended::Alone if self.follow_kin() => {}
            Ended::Alone => {
                tracing::info!("process {pid} ended, and no process is left");
                self.alone = Some((Instant::now(), self.grace));
            }
        }
    }

    /// Takes over those that went on as another user, and could not register. Whether there are any.
    fn follow_kin(&mut self) -> bool {
        let born = self.tracer.births().map(|births| births.all()).unwrap_or_default();
        let found = self.kinship.find(&born);
        self.processes().follow(found);
        let Some(pid) = self.program_pid() else { return false };
        tracing::info!("process {pid} of another user is the program now");
        self.alone = None;
        self.remember_program();
        true
    }

    fn accept(&mut self) {
        while let Ok(socket) = unix_socket::accept(self.listener.as_fd()) {
            let Ok(who) = unix_socket::peer(socket.as_fd()) else { continue };
            if who.uid != unix_socket::effective_user() && who.uid != 0 {
                tracing::warn!("process {} of user {} was rejected", who.pid, who.uid);
                continue;
            }
            if !self.has_free_slot(who.pid) {
                tracing::warn!("too many connections: process {} was rejected", who.pid);
                continue;
            }
            self.next_client += 1;
            self.clients.push(Client { id: self.next_client, socket, pid: who.pid });
            // What it has sent already is read at once: its registration may be its last sign of life. What came
            // before on other connections is read first: a program may ask for a checkpoint right after its
            // registration.
            let ids: Vec<u64> = self.clients.iter().map(|client| client.id).collect();
            for id in ids {
                self.client_event(id);
            }
        }
    }

    /// As [`has_free_slot`].
    fn has_free_slot(&mut self, pid: i32) -> bool {
        let waiting: BTreeSet<u64> =
            self.clients.iter().map(|client| client.id).filter(|id| self.awaits_answer(*id)).collect();
        let members = self.processes().pids();
        has_free_slot(&mut self.clients, pid, &members, |id| waiting.contains(&id))
    }

    fn awaits_answer(&self, id: u64) -> bool {
        let running = self.running.iter().flat_map(|running| &running.waiters);
        running.chain(&self.queued).any(|waiter| waiter.client == Some(id))
            || self.checks.has(id)
            || self.removing.contains(&id)
    }

    fn client_event(&mut self, id: u64) {
        // Kept, as it is large and a job may make a thousand processes in a second.
        let mut buffer = std::mem::take(&mut self.buffer);
        // One byte more than allowed: a longer message is noticed instead of being cut.
        buffer.resize(MAX_MESSAGE + 1, 0);
        self.receive_all(id, &mut buffer);
        self.buffer = buffer;
    }

    /// Everything that a client has sent.
    fn receive_all(&mut self, id: u64, buffer: &mut [u8]) {
        loop {
            let Some(client) = self.clients.iter().find(|client| client.id == id) else { return };
            let pid = client.pid;
            match fd::receive_with(client.socket.as_fd(), buffer, libc::MSG_DONTWAIT) {
                Ok((0, _)) => return self.clients.retain(|client| client.id != id),
                Ok((len, _)) if len > MAX_MESSAGE => {
                    self.answer(
                        id,
                        &Reply::Error { message: format!("message longer than {MAX_MESSAGE} bytes") },
                    );
                }
                Ok((len, passed)) => match serde_json::from_slice::<Request>(&buffer[..len]) {
                    Ok(request) => self.request(id, pid, request, passed),
                    Err(error) => {
                        tracing::warn!("process {pid} sent something that is not a request: {error}");
                        self.answer(id, &Reply::Error { message: format!("not a request: {error}") });
                    }
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.clients.retain(|client| client.id != id),
            }
        }
    }

    fn answer(&mut self, id: u64, reply: &Reply) {
        let Some(client) = self.clients.iter().find(|client| client.id == id) else { return };
        let Ok(text) = serde_json::to_vec(reply) else { return };
        if fd::send(client.socket.as_fd(), &text, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT).is_err() {
            self.clients.retain(|client| client.id != id);
        }
    }

    fn request(&mut self, id: u64, pid: i32, request: Request, passed: Option<OwnedFd>) {
        match request {
            Request::Register { event, version, area } => self.register(pid, &event, &version, area, passed),
            Request::Status => {
                let status = self.status();
                self.answer(id, &Reply::Status(status));
            }
            Request::Checkpoint { stop, wait, wishes } => match Changes::of_wishes(&wishes) {
                Ok(changes) => {
                    let options =
                        CheckpointOptions { stop, changes, until_cut: !wait && self.processes().has(pid) };
                    let handler =
                        wishes.signal.filter(|_| self.processes().has(pid)).map(|signal| (pid, signal));
                    self.request_checkpoint(Waiter { client: Some(id), wait, options, handler });
                }
                Err(message) => self.answer(id, &Reply::Error { message }),
            },
            Request::Set { wanted } => {
                let reply = self.set(&wanted);
                self.answer(id, &reply);
            }
            Request::Remove { images } => {
                match remove::start(Arc::clone(&self.context), id, images, self.reporter.clone()) {
                    Ok(()) => self.removing.push(id),
                    Err(error) => {
                        self.answer(id, &Reply::Error { message: format!("starting a thread: {error}") })
                    }
                }
            }
            Request::Check => {
                self.checks.ask(id);
                self.start_checks();
            }
            Request::Sync => {
                self.context.cascade.iter().for_each(Cascade::hurry);
                self.answer(id, &Reply::Ok);
            }
            Request::Quit => {
                self.ending = true;
                self.answer(id, &Reply::Ok);
            }
            // The regions are read from the program's own table at every checkpoint; this is only a notice.
            Request::Protect { .. } => self.answer(id, &Reply::Ok),
        }
    }

    fn set(&mut self, wanted: &Wanted) -> Reply {
        let done = NewSettings::of_wanted(wanted).and_then(|new| {
            self.context.set(&new).map_err(|failure| failure.message)?;
            Ok(new)
        });
        match done {
            Ok(new) => {
                tracing::info!("from now on: {}", told(&self.context.settings()));
                if new.every.is_some() {
                    let every = self.context.settings().every_s;
                    self.due = every.map(|seconds| Instant::now() + Duration::from_secs(seconds));
                }
                Reply::Ok
            }
            Err(message) => Reply::Error { message },
        }
    }

    /// Looks at the program for all who wait for that, unless a look is under way: what it finds may be older than
    /// their requests.
    fn start_checks(&mut self) {
        let Some(clients) = self.checks.begin() else { return };
        let members = self.processes().members();
        let started = match members {
            None => Err(Reply::NoProgram { awaited: self.processes().awaited }),
            Some(members) => {
                let inherited_fds = self.inherited_fds.clone().unwrap_or_default();
                checks::start(Arc::clone(&self.context), members, inherited_fds, self.reporter.clone())
                    .map_err(|error| Reply::Error {
                        message: format!("starting the thread that looks at the program: {error}"),
                    })
            }
        };
        match started {
            Ok(()) => self.checks.under_way(clients),
            Err(reply) => clients.into_iter().for_each(|id| self.answer(id, &reply)),
        }
    }

    fn checked(&mut self, reply: &Reply) {
        for id in self.checks.done() {
            self.answer(id, reply);
        }
        self.start_checks();
    }

    fn register(&mut self, pid: i32, event: &str, version: &str, area: InjectArea, passed: Option<OwnedFd>) {
        if !area.is_valid() || pid <= 0 {
            tracing::warn!("process {pid} was rejected: its injection area is not valid");
            return;
        }
        self.rush.registered(Instant::now());
        // What a script has run is often gone before it is heard: its relatives cannot be looked up any more, and its
        // id may be another's by now.
        let registered = match clone::pidfd_open(pid) {
            Err(error) => Err(error),
            Ok(_) if !self.has(pid) => {
                tracing::info!("process {pid} was rejected ({event}): it is of another job");
                return;
            }
            // A session leader keeps its address space; at "load" and "fork" it is new.
            Ok(_) => self.processes().register(pid, area, event != EVENT_SETSID, passed),
        };
        match registered {
            Ok(()) => {
                self.alone = None;
                self.note_outliving();
                if self.program_pid() == Some(pid) {
                    tracing::info!("process {pid} registered ({event}), libholdfast {version}");
                    self.meet_program(pid);
                } else {
                    // A job may make thousands.
                    tracing::debug!("process {pid} registered ({event})");
                }
            }
            // As those are that end at once.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                tracing::debug!("process {pid} registered and has ended");
            }
            Err(error) => tracing::warn!("process {pid} ({event}) cannot be followed: {error}"),
        }
        if self.processes().is_empty() {
            self.alone = Some((Instant::now(), self.grace));
        }
    }

    /// The job's key is known now.
    pub fn know_key(&mut self) {
        self.kinship = Kinship::of_key(self.context.key(), &self.context.job.socket_path());
    }

    /// Whether a process that registers is of the job.
    fn has(&self, pid: i32) -> bool {
        let known = self.processes().pids();
        is_of_job(pid, &known, &self.context.job.socket_path(), self.context.key())
    }

    fn meet_program(&mut self, pid: i32) {
        self.remember_program();
        if self.context.attached {
            self.own_end.attached(&self.context.job);
            self.context.complete_recipe(pid);
            // What is open so early was handed down to the program.
            self.inherited_fds.get_or_insert_with(|| InheritedFd::of_process(pid).unwrap_or_default());
        }
    }

    fn remember_program(&mut self) {
        let Some(pid) = self.program_pid() else { return };
        self.kinship.learn(pid, &self.context.job.socket_path(), self.context.key());
        if let Err(error) = pidfile::remember(&self.context.job, pid) {
            tracing::warn!("recording the program: {error}");
        }
    }

    fn status(&self) -> JobStatus {
        let under_way = self.running.as_ref().and_then(|running| running.progress.now());
        let flush = under_way.filter(|now| matches!(now.step, Step::Flush | Step::Commit));
        JobStatus {
            job: self.context.job.name().to_owned(),
            pid: self.program_pid(),
            agent_pid: std::process::id().cast_signed(),
            newest: self.newest,
            flushing: flush.map(|now| now.image),
            flushed_bytes: flush.map_or(0, |now| now.done_bytes),
            flush_total_bytes: flush.map_or(0, |now| now.total_bytes),
            under_way,
            last_error: self.last_error.clone(),
            tiers: tiers::status(self.context.cascade.as_ref()),
            tiers_busy: self.context.cascade.as_ref().is_some_and(Cascade::is_busy),
            lingering: self.running.is_none() && self.is_alone(),
        }
    }

    fn request_checkpoint(&mut self, waiter: Waiter) {
        match &mut self.running {
            // The cut is still to come and does what is asked for: one checkpoint serves both.
            Some(running) if running.cut.is_none() && running.options.serves(&waiter.options) => {
                running.waiters.push(waiter)
            }
            Some(_) => self.queued.push(waiter),
            None => self.start_checkpoint(vec![waiter]),
        }
    }

    /// Starts a checkpoint that serves the first of `waiters` and all others that want the same; the rest goes on
    /// waiting.
    fn start_checkpoint(&mut self, waiters: Vec<Waiter>) {
        let Some(options) = waiters.first().map(|waiter| waiter.options) else { return };
        let (waiters, rest): (Vec<_>, Vec<_>) =
            waiters.into_iter().partition(|waiter| options.serves(&waiter.options));
        self.queued = rest;
        self.notice_ends();
        if self.program_pid().is_none() && !self.processes().awaited {
            // The launcher may have ended before it was heard.
            self.follow_kin();
        }
        if let Some(seconds) = self.context.settings().every_s {
            self.due = Some(Instant::now() + Duration::from_secs(seconds));
        }
        let started = match self.program_pid() {
            _ if self.ending => Err(CheckpointError::Failed("the agent is ending".to_owned())),
            None => Err(CheckpointError::NoProgram { awaited: self.processes().awaited }),
            Some(_) => {
                let progress = Arc::new(Progress::default());
                checkpoint::start(
                    Arc::clone(&self.context),
                    Arc::clone(&self.tracer),
                    CheckpointRequest {
                        processes: Arc::clone(&self.processes),
                        options,
                        inherited_fds: self.inherited_fds.clone().unwrap_or_default(),
                    },
                    Arc::clone(&progress),
                    self.reporter.clone(),
                )
                .map(|thread| (thread, progress))
                .map_err(|error| CheckpointError::Failed(format!("starting the checkpoint thread: {error}")))
            }
        };
        match started {
            Ok((thread, progress)) => {
                self.running = Some(Running { thread, progress, options, cut: None, waiters });
            }
            Err(failed) => {
                self.fail(waiters, &failed);
                self.start_queued();
            }
        }
    }

    fn start_queued(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        self.start_checkpoint(queued);
    }

    fn fail(&mut self, waiters: Vec<Waiter>, failed: &CheckpointError) {
        tracing::warn!("checkpoint failed: {}", failed.line());
        self.last_error = Some(failed.line());
        if waiters.iter().any(|waiter| !waiter.wait || waiter.client.is_none())
            && self.program_pid().is_some()
        {
            self.failed_unheard(failed);
        }
        for (pid, signal) in waiters.iter().filter_map(|waiter| waiter.handler) {
            // It may have ended, or execute something else by now, which knows nothing of it.
            let catches = procfs::Status::read(pid, pid)
                .is_ok_and(|status| status.mask("SigCgt") & signals::bit(signal) != 0);
            if catches && self.processes().has(pid) {
                let _ = ptrace::queue(pid, signal, ON_STOP_FAILED);
            }
        }
        let reply = failed.reply();
        for id in waiters.into_iter().filter_map(|waiter| waiter.client) {
            self.answer(id, &reply);
        }
    }

    /// Who waits is answered. Of the interval, and of the program's own request, the front tells: each reason once.
    fn failed_unheard(&mut self, failed: &CheckpointError) {
        let Some(link) = &self.context.link else { return };
        if self.told_error != self.last_error {
            self.told_error.clone_from(&self.last_error);
            let text = format!("checkpoint failed: {}; the program runs on", failed.line());
            link.tell(&Tell::Warning { text });
        }
        if !self.context.settings().strict {
            return;
        }
        // What is only so for a moment ends no program: it is tried once more, soon.
        if std::mem::replace(&mut self.has_failed, true) {
            link.tell(&Tell::Unprotected);
        } else if let Some(due) = &mut self.due {
            *due = (*due).min(Instant::now() + SOON);
        }
    }

    fn checkpoint_event(&mut self, event: Event) {
        match event {
            Event::Cut { epoch, stop_ns } => {
                let Some(running) = &mut self.running else { return };
                running.cut = Some((epoch, stop_ns));
                let (now, later) = std::mem::take(&mut running.waiters)
                    .into_iter()
                    .partition(|waiter| !waiter.wait && waiter.handler.is_none());
                running.waiters = later;
                let now: Vec<Waiter> = now;
                for id in now.into_iter().filter_map(|waiter| waiter.client) {
                    self.answer(id, &Reply::Checkpointed { epoch, stop_ns, committed: false });
                }
            }
            Event::Done(result) => self.checkpoint_done(result),
            Event::Checked(reply) => self.checked(&reply),
            Event::Removed { client, reply } => {
                self.removing.retain(|id| *id != client);
                self.answer(client, &reply);
            }
        }
    }

    /// The front says it, if it is to say much; the command of `--exec-after` is started.
    fn tell_of_image(&mut self, info: &ImageInfo, stopped: bool) {
        let epoch = info.epoch;
        if let Some(link) = &self.context.link {
            let (stop, memory) = (report::short_time(info.stop_ns), report::size(info.program_bytes));
            let added = report::size(info.bytes);
            let figures = format!("image {epoch}: stop time {stop}, {memory} of memory in {added} on disk");
            link.tell(&Tell::Committed { figures });
        }
        self.hook.committed(&self.context, Committed { epoch, stopped });
    }

    fn checkpoint_done(&mut self, result: Result<NewImage, CheckpointError>) {
        let Some(running) = self.running.take() else { return };
        // It has sent its last event, so this does not wait.
        let _ = running.thread.join();
        match result {
            Ok(NewImage { info, failed }) => {
                let (epoch, stop_ns) = (info.epoch, info.stop_ns);
                tracing::info!("image {epoch} committed: {} bytes, stop {stop_ns} ns", info.bytes);
                self.newest = Some(epoch);
                self.tell_of_image(&info, running.options.stop && failed.is_none());
                self.context.cascade.iter().for_each(Cascade::wake);
                (self.last_error, self.told_error, self.has_failed) = (None, None, false);
                if let Some(failed) = failed {
                    // Of what follows the commit: the image is handed on all the same.
                    self.fail(running.waiters, &failed);
                    return self.start_queued();
                }
                for id in running.waiters.into_iter().filter_map(|waiter| waiter.client) {
                    self.answer(id, &Reply::Checkpointed { epoch, stop_ns, committed: true });
                }
            }
            Err(failed) => self.fail(running.waiters, &failed),
        }
        self.start_queued();
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
