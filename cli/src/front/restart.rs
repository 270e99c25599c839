//! Restarting a program from an image, up to its end.
//!
//! The front creates the process (so that it is its child, with its standard streams); the agent, which is started
//! first, rebuilds it and then serves the job. Until `birth` the front must stay single-threaded.

use super::before_restart::BeforeRestart;
use super::environment::LIBRARY;
use super::launch::{AgentTask, Interrupt, Launched, RestartTask, launch};
use super::locate;
use super::newer_files;
use super::page_server::{self, PageServer};
use super::restart_request::{MemoryMode, RestartRequest};
use super::supervise::{Ending, Program, StartState, supervise};
use crate::exit::{Exit, Failure, FailureKind};
use crate::file_system;
use crate::front_link::{self, Tell};
use crate::last_restart::LastRestart;
use crate::last_run::LastRun;
use crate::program;
use crate::report;
use crate::same_run;
use crate::settings::{Recipe, signal_name};
use holdfast_image::Epoch;
use holdfast_image::pages::{ExtentSource, PageProvider};
use holdfast_image::paths::{Moved, accept_replaced, move_files};
use holdfast_image::record::{Backing, FileIdentity, ProcessRecord};
use holdfast_image::streams::Switch;
use holdfast_process::rebuild::streams::{self, StreamPlan};
use holdfast_process::rebuild::{self, NamedProcess, RebuildError, SpawnOptions, Spawned};
use holdfast_sys::signals::{self, SignalMessages};
use holdfast_sys::{fd, poll};
use holdfast_tiers::{Image, ImageInfo, Job};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

/// So often a restart is tried that fails for a reason that passes.
const TRIES: u32 = 3;

impl Program for Spawned {
    fn signal(&self, signal: i32) -> io::Result<()> {
        let _ = Spawned::signal(self, signal);
        Ok(())
    }
    fn queue(&self, signal: i32, value: u64) -> io::Result<()> {
        Spawned::queue(self, signal, value)
    }
    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(Spawned::watch(self))
    }
    fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.try_wait()
    }
}

/// Restarts the program and waits for its end.
///
/// # Errors
/// No image, a damaged one (and no older good one, or no `fallback`), something on this host that differs, a failed
/// rebuilding. The program does not run then.
pub fn restart(request: &RestartRequest<'_>, state: &StartState) -> Result<Ending, Failure> {
    let job = request.job;
    super::wait_for_lock::wait(job, request.patience)?;
    let (recipe, images) = (Recipe::read(job)?, job.images()?);
    let is_asked = |image: &ImageInfo| same_run::is_of(image, &recipe) || request.epoch == Some(image.epoch);
    let mut epochs: BTreeSet<Epoch> =
        images.iter().filter(|image| is_asked(image)).map(|image| image.epoch).collect();
    epochs.extend(request.located.map(|located| located.epoch));
    let mut epochs: Vec<Epoch> = epochs.into_iter().collect();
    if let Some(epoch) = request.epoch {
        epochs.retain(|other| *other <= epoch);
        if epochs.last() != Some(&epoch) {
            return Err(Failure::new(Exit::NotFound, format!("job {} has no image {epoch}", job.name())));
        }
    }
    let none = same_run::none_of_it(job.name(), images.iter().map(|image| image.epoch));
    let mut result = Err(Failure::new(Exit::NotFound, none));
    let before = BeforeRestart::new(request.also);
    while let Some(epoch) = epochs.pop() {
        result = restart_one((request, &before), epoch, state);
        if let Err(failure) = &result
            && let Some(ending) = told_to_end(failure, request, epoch, state)
        {
            return Ok(ending);
        }
        for _ in 1..TRIES {
            if !result.as_ref().is_err_and(|failure| failure.kind == FailureKind::Transient) {
                break;
            }
            super::wait_for_lock::wait(job, request.patience)?;
            result = restart_one((request, &before), epoch, state);
        }
        match &result {
            Err(failure) if failure.exit == Exit::BadImage => {
                if !request.fallback {
                    let is_good = |image: &ImageInfo| epochs.contains(&image.epoch) && image.broken.is_none();
                    if !images.iter().any(is_good) {
                        return result;
                    }
                    let hint = format!(
                        "{failure}\nan older image can be tried with `holdfast restart --fallback {}`",
                        job.name()
                    );
                    return Err(Failure::new(Exit::BadImage, hint));
                }
                let next = epochs.last().map_or_else(
                    || "there is no older one".to_owned(),
                    |older| format!("image {older} is tried"),
                );
                report::warn(&format!("image {epoch} is damaged, {next}: {failure}"));
            }
            _ => return result,
        }
    }
    result
}

/// A signal that ends a restart before its program runs ends this command as it would have ended the program: what it
/// asks for under `--on` is there already.
fn told_to_end(
    failure: &Failure,
    request: &RestartRequest<'_>,
    epoch: Epoch,
    state: &StartState,
) -> Option<Ending> {
    // The agent may have heard of it first.
    let own = state.told_to_end();
    let signal = own.or((failure.kind == FailureKind::Interrupted).then_some(libc::SIGTERM))?;
    let name = request.job.name();
    report::note(&format!(
        "{} came before the program of job {name} ran; image {epoch} is as it was, and `holdfast restart {name}` goes \
         on",
        signal_name(signal)
    ));
    Some(match request.settings.stop_signal {
        Some(stop) if stop == signal => Ending::Stopped,
        _ => Ending::Program(ExitStatus::from_raw(signal)),
    })
}

fn restart_one(
    (request, before): (&RestartRequest<'_>, &BeforeRestart<'_>),
    epoch: Epoch,
    state: &StartState,
) -> Result<Ending, Failure> {
    let image = open(request, epoch)?;
    if image.protected_only() {
        return super::protected_restart::restart((request, before), &image, state);
    }
    let mut record = crate::names::record_of(&image)?;
    let library = moved_library(&record);
    let map: Vec<Moved> = request.map.iter().chain(&library).cloned().collect();
    move_files(&mut record, &map);
    rebuild::renamed::find(&mut record, &request.job.saved_dir());
    if let Some(path) = accept_replaced(&mut record, request.accept_replaced).first() {
        let what = format!("--accept-replaced {}: the program has no file of this path", path.display());
        return Err(Failure::new(Exit::Usage, what));
    }
    wait_for_the_dying(request, &record)?;
    let StreamPlan { switches, notes } = streams::plan(&record, signals::at_start().closed, request.stdio)
        .map_err(|error| Failure::from(&error))?;
    let left = streams::apply(&mut record, &switches);
    rebuild::renamed::leave(&mut record, &left);
    let differences = rebuild::preflight(&record);
    if !differences.is_empty() {
        return Err(Failure::new(Exit::Refused, differences.join("\n")));
    }
    before.run(request.job, epoch, state)?;
    let newer = newer_files::note(&record, request.job, epoch);
    let line = format!(
        "job {} goes on from image {epoch}, {} old",
        request.job.name(),
        report::age(image.info().created_ns)
    );
    let notes = notes.into_iter().chain(library.as_ref().map(of_library));
    let said: Vec<String> = [line].into_iter().chain(notes).chain(newer).collect();
    let (mut spawned, agent) = match start(request, &image, (&record, switches, &map), state, said) {
        Ok(started) => started,
        // Killed meanwhile, it was in the way.
        Err(failure) if failure.exit != Exit::BadImage && !rebuild::dying::of_program(&record).is_empty() => {
            return Err(Failure { kind: FailureKind::Transient, ..failure });
        }
        Err(failure) => return Err(failure),
    };
    drop(image);
    let run = LastRun::begin(request.job, Some(epoch));
    let ending = supervise(&mut spawned, state, agent, (request.job, request.settings), run)?;
    if request.memory == MemoryMode::Lazy && is_for_want_of_pages(ending, request.job) {
        let log = crate::log::path(request.job);
        let what =
            "the program was killed by SIGBUS, perhaps because its page server could not supply a page";
        report::note(&format!("{what}: see {}; restart --eager reads all memory first", log.display()));
    }
    Ok(ending)
}

/// Where libholdfast is now, if that is another place than the program has it from, and it is the same build: what
/// installs Holdfast elsewhere has it there.
fn moved_library(record: &ProcessRecord) -> Option<Moved> {
    let is_ours = |file: &&FileIdentity| file.path.as_path().file_name().is_some_and(|name| name == LIBRARY);
    let file = record.processes().flat_map(|process| &process.files.mapped).find(is_ours)?;
    let old = file.path.as_path();
    if rebuild::is_same_build(file, old) {
        return None;
    }
    let new = super::environment::library().ok()?;
    rebuild::is_same_build(file, &new).then(|| Moved { old: old.to_owned(), new })
}

fn of_library(moved: &Moved) -> String {
    format!(
        "{} is used, for {} is gone or another one; programs that the job starts from now on do not find it where \
         LD_PRELOAD says",
        moved.new.display(),
        moved.old.display()
    )
}

/// Whether a program that was served may have ended because it was not.
fn is_for_want_of_pages(ending: Ending, job: &Job) -> bool {
    let is_sigbus = matches!(ending, Ending::Program(status) if status.signal() == Some(libc::SIGBUS));
    is_sigbus && LastRestart::read(job).is_some_and(|last| last.served)
}

/// Opens the image; without its pages where it is not whole in the store, and the agent reads it below.
fn open(request: &RestartRequest<'_>, epoch: Epoch) -> Result<Image, Failure> {
    let job = request.job;
    let located = request.located.filter(|located| located.epoch == epoch);
    let whole = match located {
        Some(located) => located.open(job),
        None => whole(request, epoch),
    };
    let has_lower = !request.settings.tiers.lower().is_empty();
    let image = match whole {
        Err(failure) if failure.exit == Exit::BadImage && located.is_none() && has_lower => {
            // What is damaged in the store a tier may have.
            match locate::look(request.store, job.name(), Some(epoch), None, &[])?.located {
                Some(located) => located.open(job)?,
                None => return Err(failure),
            }
        }
        other => other?,
    };
    if !image.protected_only() || image.is_on_first_tier() {
        return Ok(image);
    }
    // The front reads such an image itself.
    locate::copy(request.store, job.name(), Some(epoch), &[])?;
    Ok(job.open_image(epoch)?)
}

/// The image as the store has it.
fn whole(request: &RestartRequest<'_>, epoch: Epoch) -> Result<Image, Failure> {
    let image = request.job.open_image(epoch)?;
    if request.fallback {
        // Damage must be found before files are put back and before anything of the program runs.
        image.verify(&|_| ())?;
    }
    Ok(image)
}

/// What is left of the program, which was just killed, has what the new one needs.
fn wait_for_the_dying(request: &RestartRequest<'_>, record: &ProcessRecord) -> Result<(), Failure> {
    let is_left = |first: &NamedProcess, all: usize| match all {
        1 => first.to_string(),
        all => format!("{first} and {} more of the program", all - 1),
    };
    request.patience.wait(|| {
        let left = rebuild::dying::of_program(record);
        left.first().map(|first| is_left(first, left.len()))
    })
}

/// Starts the agent and rebuilds the program, up to the moment when it runs. Before it does, `said` is, and what else
/// the user should know.
fn start(
    request: &RestartRequest<'_>,
    image: &Image,
    (record, streams, map): (&ProcessRecord, Vec<Switch>, &[Moved]),
    state: &StartState,
    mut said: Vec<String>,
) -> Result<(Spawned, Launched), Failure> {
    let (ours, theirs) = fd::socketpair(libc::SOCK_SEQPACKET)
        .map_err(|error| Failure::system("socketpair for the seed", &error))?;
    let lazy = is_lazy(request, image, record);
    let several = !record.others.is_empty();
    // Blocked by `StartState`, which is told of them as well.
    let interrupt = SignalMessages::new(StartState::ends());
    let interrupt = interrupt.map_err(|error| Failure::system("signalfd", &error))?;
    let served = page_server(request, image, lazy, interrupt.as_fd());
    let explain = |failure| match &served {
        Some(server) => server.explain(failure),
        None => failure,
    };
    let task = RestartTask {
        epoch: image.epoch().0,
        gang_image: request.gang_image,
        start_members: request.start_members.take(),
        seed: theirs,
        lazy,
        share: several
            && served.is_none()
            && request.memory != MemoryMode::Eager
            && (lazy || !is_eager(record)),
        served: served.is_some(),
        map: map.iter().map(Moved::to_argument).collect(),
        map_host: request.map_host.to_vec(),
        accept_replaced: request.accept_replaced.to_vec(),
        env: request.also.env.clone(),
        signal: request.also.signal_on_restart,
        streams,
    };
    let waits = Interrupt { fd: state.as_fd(), is_over: &|| state.told_to_end().is_some() };
    let waits = request.settings.gang.as_ref().map(|_| &waits);
    let agent = launch(request.store, request.job, &state.inherited_fds, AgentTask::Restart(task), waits)?;
    let options = SpawnOptions {
        ids: None,
        interrupt: Some(interrupt.as_fd()),
        served: served.as_ref().map(|server| server.file.as_fd()),
    };
    let moved = (!agent.sockets.is_empty()).then(|| {
        let mut moved = record.clone();
        rebuild::addresses::follow(&mut moved, &agent.sockets);
        moved
    });
    let record = moved.as_ref().unwrap_or(record);
    let spawned = rebuild::spawn(record, ours, &options);
    let mut spawned = spawned.map_err(|error| {
        let failure = explain(why_none_was_spawned(&error, &agent, state, request.job));
        if matches!(error, RebuildError::InUse(_)) { with_holders(failure, record) } else { failure }
    })?;
    said.append(&mut spawned.notes);
    let runs = wait_until_it_runs(&agent, state, (request.job, served.as_ref()), said);
    let told = match runs {
        Ok(told) => told,
        Err(failure) => {
            spawned.kill_all();
            let _ = spawned.wait();
            return Err(explain(failure));
        }
    };
    let copied = told.copied.filter(|_| request.memory == MemoryMode::Lazy);
    if !told.figures.is_empty() {
        report::detail(&told.figures);
    }
    copied.iter().for_each(|line| report::note(line));
    Ok((spawned, agent))
}

/// The file of a page server, if one is asked for and would be of use.
fn page_server(
    request: &RestartRequest<'_>,
    image: &Image,
    lazy: bool,
    interrupt: BorrowedFd<'_>,
) -> Option<PageServer> {
    if !lazy || request.memory != MemoryMode::Lazy || !page_server::is_worth_it(image) {
        return None;
    }
    match page_server::start(request.store, request.job, image, interrupt) {
        Ok(server) => Some(server),
        Err(why) => {
            report::note(&format!("memory that cannot be mapped from the image is copied: {why}"));
            None
        }
    }
}

/// Names who has the program's addresses.
fn with_holders(failure: Failure, record: &ProcessRecord) -> Failure {
    let lines = std::iter::once(failure.message).chain(rebuild::dying::holders(record));
    Failure { message: lines.collect::<Vec<String>>().join("\n"), ..failure }
}

/// New processes that are left by the agent, or ended by it, do not know why; it does.
fn why_none_was_spawned(error: &RebuildError, agent: &Launched, state: &StartState, job: &Job) -> Failure {
    let own = Failure::from(error);
    if !matches!(error, RebuildError::PeerGone(_) | RebuildError::Ended { .. }) {
        return own;
    }
    let told = wait_until_it_runs(agent, state, (job, None), Vec::new()).err();
    told.filter(|told| told.kind != FailureKind::FrontGone).unwrap_or(own)
}

/// What the agent has to tell the user.
#[derive(Default)]
struct Told {
    figures: String,
    /// See [`Tell::Restarted`].
    copied: Option<String>,
}

/// Waits for it, and says what is to be said before. An agent that dies when the program runs already is no reason to
/// end that: it goes on without one.
fn wait_until_it_runs(
    agent: &Launched,
    state: &StartState,
    (job, served): (&Job, Option<&PageServer>),
    mut said: Vec<String>,
) -> Result<Told, Failure> {
    let mut bar = report::Transient::default();
    let mut resuming = false;
    loop {
        // Signals that come by then are for the program.
        let fds = [agent.link.as_fd(), state.as_fd()];
        let ready = poll::readable(if resuming { &fds[..1] } else { &fds }, None)
            .map_err(|error| Failure::system("waiting for the agent", &error))?;
        if ready[0] {
            match agent.link.next(false) {
                Ok(Some(Tell::Restarted { figures, notes, copied })) => {
                    said.extend(notes);
                    bar.without(|| report::notes(&said));
                    return Ok(Told { figures, copied });
                }
                Ok(Some(Tell::Failed { exit, message, kind })) => {
                    return Err(Failure { exit, message, kind });
                }
                Ok(Some(Tell::Resuming { notes })) => {
                    served.map_or(Ok(()), PageServer::is_there)?;
                    bar = report::Transient::default();
                    said.extend(notes);
                    report::notes(&std::mem::take(&mut said));
                    agent.link.tell(&Tell::Said);
                    resuming = true;
                }
                Ok(Some(Tell::Progress { done, total })) => bar.show("restarting", done, total),
                Ok(Some(Tell::Warning { text })) => bar.without(|| report::warn(&text)),
                Ok(_) => {}
                Err(_) if resuming => return Ok(Told::default()),
                Err(_) => return Err(front_link::lost(&job.dir().join("agent.log"))),
            }
        }
        if !resuming && state.told_to_end().is_some() {
            return Err(Failure::from(&RebuildError::Interrupted));
        }
    }
}

fn is_lazy(request: &RestartRequest<'_>, image: &Image, record: &ProcessRecord) -> bool {
    let mappable = || image.extents().iter().any(|e| matches!(e.source, ExtentSource::Mappable { .. }));
    // Just-in-time compilers make code of memory that was data at the checkpoint.
    let in_memory = request.job.memory().map(|memory| memory.root().to_owned());
    let folders: Vec<PathBuf> = in_memory.into_iter().chain([image.dir()]).collect();
    let may_be_code = || !folders.iter().any(|folder| fd::is_noexec(folder).unwrap_or(false));
    match request.memory {
        MemoryMode::Eager => false,
        MemoryMode::Lazy if is_eager(record) => {
            report::note(
                "--lazy is not safe for code in Go, with a sanitizer, without libholdfast, or with CUDA: all memory is \
                 read before the program runs",
            );
            false
        }
        MemoryMode::Lazy => true,
        MemoryMode::Auto => {
            mappable()
                && image.is_on_first_tier()
                && file_system::is_local(&image.dir())
                && may_be_code()
                && !is_eager(record)
        }
    }
}

/// Whether all memory must be read before the program runs. A process may have code that gives memory back to the
/// kernel past libholdfast (Go, sanitizers, what has not loaded it), and may count on finding zeros there later: in
/// memory that is mapped from the image it would find old content. The CUDA driver pins memory page by page, which is
/// slow where each has to be read first (docs/cuda.md).
fn is_eager(record: &ProcessRecord) -> bool {
    record.processes().any(|process| process.cuda.is_some() || gives_back_in(process))
}

fn gives_back_in(record: &ProcessRecord) -> bool {
    let mapped: BTreeSet<u32> = record
        .regions
        .iter()
        .filter(|region| region.prot & libc::PROT_EXEC.cast_unsigned() != 0)
        .filter_map(|region| match region.backing {
            Backing::PrivateFile { file, .. } => Some(file),
            _ => None,
        })
        .collect();
    let libraries = || mapped.iter().filter_map(|&file| record.files.mapped.get(file as usize));
    let has_ours =
        libraries().any(|file| file.path.as_path().file_name().is_some_and(|name| name == LIBRARY));
    !has_ours
        || libraries().chain([&record.exe]).any(|file| program::gives_back_by_itself(file.path.as_path()))
}
