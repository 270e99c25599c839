//! The agent: started by `holdfast run`, by `holdfast restart`, or by libholdfast itself (`--attach-env`).
//!
//! Order of its start: log, job and lock, leftovers of a dead agent, socket, (rebuild the program,) serve. The program
//! never depends on it: whatever fails here, the program runs on without checkpoints.
//! Fails by: a [`Tell::Failed`] to the front, and the log.

mod attach;
mod carry_over;
mod checkpoint;
mod checks;
mod cut;
mod event_loop;
mod flush;
mod precopy;
mod processes;
mod slot_waiters;
mod write_monitor;
mod write_rate;

use crate::args::AgentArgs;
use crate::exit::{Exit, Failure};
use crate::link::{Link, Tell};
use crate::settings::Recipe;
use carry_over::CarryOver;
use checkpoint::JobContext;
use event_loop::EventLoop;
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_image::paths::move_files;
use holdfast_process::Contents;
use holdfast_process::rebuild::{self, RebuildOptions, RebuiltMember};
use holdfast_sys::{fd, signals, unix_socket};
use holdfast_tiers::{Image, Job, JobLock, Store, StoreError};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// CheckpointOptions long an agent that was started by the library waits for its hello.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);
/// How long a lock that is held is tried again, and how often.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Runs the agent until the job ends.
///
/// # Errors
/// What went wrong; the front has been told.
pub fn run(args: &AgentArgs, store: Option<&Path>) -> Result<(), Failure> {
    let link = match args.link {
        Some(number) => Some(Link::from(
            fd::inherited(number).map_err(|error| Failure::system("taking over the link", &error))?,
        )),
        None => None,
    };
    let result = prepare_and_serve(args, store, &link);
    if let (Err(failure), Some(link)) = (&result, &link) {
        let Failure { exit, message, kind } = failure;
        link.tell(&Tell::Failed { exit: *exit, message: message.clone(), kind: *kind });
    }
    if let Err(failure) = &result {
        tracing::error!("{failure}");
    }
    result
}

fn start_log() {
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).init();
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
}

fn prepare_and_serve(args: &AgentArgs, root: Option<&Path>, link: &Option<Link>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let (job, lock, recipe) = if args.attach_env {
        attach::open(&store)?
    } else {
        let name = args.job.as_deref().unwrap_or_default();
        let job = store.job(name)?;
        let lock = lock(&job)?;
        let recipe = Recipe::read(&job)?;
        (job, lock, recipe)
    };
    start_log();
    // A file that reaches RLIMIT_FSIZE is an error (EFBIG), not our end (setrlimit(2)).
    signals::set_ignored(libc::SIGXFSZ, true);
    let cleaned = job.clean(&lock)?;
    if !cleaned.removed.is_empty() {
        tracing::info!("{} files of an agent that died were removed", cleaned.removed.len());
    }
    let listener = listen(&job.socket_path())?;
    let stop_signals = signals::bit(libc::SIGTERM) | signals::bit(libc::SIGINT);
    signals::block(stop_signals);
    let messages =
        signals::SignalMessages::new(stop_signals).map_err(|error| Failure::system("signalfd", &error))?;
    // The job context keeps its own end of the link; the one above only tells of failures.
    let own_link = match link {
        Some(link) => Some(Link::from(duplicate(link)?)),
        None => None,
    };
    let context = Arc::new(JobContext {
        job,
        lock,
        contents: recipe.settings.save_files.map(Contents::new).map(Arc::new),
        settings: recipe.settings,
        command: recipe.command,
        link: own_link,
        attached: args.attach_env,
        restarted_from: args.restart.map(Epoch),
        common: OnceLock::new(),
        carry_over: Mutex::default(),
    });
    let inherited_fds = (!args.attach_env).then(|| args.inherited.clone());
    let mut event_loop =
        EventLoop::new(Arc::clone(&context), listener, messages, ATTACH_PATIENCE, inherited_fds)
            .map_err(|error| Failure::system("starting the agent", &error))?;
    if args.silent {
        event_loop.await_program();
    }
    if args.attach_env {
        attach::announce(&context.job)?;
    }
    if let (Some(epoch), Some(seed)) = (args.restart, args.seed) {
        rebuild_program(&context, &mut event_loop, link, Epoch(epoch), seed, args)?;
    } else if let Some(link) = link {
        link.tell(&Tell::Ready);
    }
    tracing::info!("job {} has agent {}", context.job.name(), std::process::id());
    event_loop.serve().map_err(|error| Failure::system("waiting for events", &error))
}

/// Locks a job. `holdfast list` holds the lock of every job for a moment, so a lock that is held is tried for a while.
fn lock(job: &Job) -> Result<JobLock, Failure> {
    let begun = Instant::now();
    loop {
        match job.lock() {
            Err(StoreError::Locked { .. }) if begun.elapsed() < LOCK_PATIENCE => thread::sleep(LOCK_PAUSE),
            result => return Ok(result?),
        }
    }
}

fn duplicate(link: &Link) -> Result<OwnedFd, Failure> {
    use std::os::fd::AsFd;
    link.as_fd().try_clone_to_owned().map_err(|error| Failure::system("duplicating the link", &error))
}

fn listen(path: &Path) -> Result<OwnedFd, Failure> {
    let listener = unix_socket::listen(path)
        .map_err(|error| Failure::system(format_args!("listening at {}", path.display()), &error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(|error| Failure::system(format_args!("chmod of {}", path.display()), &error))?;
    Ok(listener)
}

fn rebuild_program(
    context: &JobContext,
    event_loop: &mut EventLoop,
    link: &Option<Link>,
    epoch: Epoch,
    seed: i32,
    args: &AgentArgs,
) -> Result<(), Failure> {
    let seed =
        fd::inherited(seed).map_err(|error| Failure::system("taking over the seed's socket", &error))?;
    let mut image: Image = context.job.open_image(epoch)?;
    if args.share {
        image.share(!args.lazy);
    }
    let mut record = image.record().clone();
    move_files(&mut record, &args.map);
    let saved_dir = context.job.saved_dir();
    rebuild::renamed::find(&mut record, &saved_dir);
    rebuild::processor::fit(&mut record);
    if let Some(link) = link {
        link.tell(&Tell::Ready);
    }
    let options = RebuildOptions { lazy: args.lazy, socket_path: context.job.socket_path(), saved_dir };
    let rebuilt = rebuild::rebuild_job(&record, &image, seed, &options)
        .map_err(|error| crate::front::failure_of_rebuild(&error))?;
    let pids: Vec<String> = rebuilt.members.iter().map(|member| member.pid.to_string()).collect();
    let figures = format!(
        "image {epoch}: restart number {} as process {}: {:?}",
        rebuilt.restarts,
        pids.join(", "),
        rebuilt.timings
    );
    tracing::info!("{figures}");
    if let Some(common) = rebuilt.common {
        context.common.get_or_init(|| common);
    }
    *context.carry_over.lock().unwrap_or_else(PoisonError::into_inner) = CarryOver::of_image(&image);
    for RebuiltMember { pid, space, area, tracking } in rebuilt.members {
        // One that ended at once is no failure: its parent, or the front, has its status.
        if let Err(error) = event_loop.adopt(pid, space, area, tracking) {
            tracing::info!("process {pid} has ended already: {error}");
        }
    }
    if let Some(link) = link {
        link.tell(&Tell::Restarted { figures, notes: rebuilt.notes });
    }
    Ok(())
}

/// Fills in the command line of a job that was started by the library alone, from its first process.
fn complete_recipe(context: &JobContext, pid: i32) {
    if !context.command.is_empty() {
        return;
    }
    let Ok(mut recipe) = Recipe::read(&context.job) else { return };
    if !recipe.command.is_empty() {
        return;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    recipe.command = line
        .strip_suffix(b"\0")
        .unwrap_or(&line)
        .split(|&c| c == 0)
        .map(|argument| Name(argument.to_vec()))
        .collect();
    recipe.cwd =
        fs::read_link(format!("/proc/{pid}/cwd")).map(|path| Name::from(path.as_path())).unwrap_or_default();
    if let Err(error) = recipe.write(&context.job) {
        tracing::warn!("writing the recipe: {error}");
    }
}

/// Opens the log of a job for appending.
///
/// # Errors
/// As open(2).
pub fn open_log(job: &Job) -> Result<OwnedFd, Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    let path = job.dir().join("agent.log");
    fs::File::options()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .map(OwnedFd::from)
        .map_err(|error| Failure::system(format_args!("opening {}", path.display()), &error))
}

/// Makes or opens a job under the given name, or under the first free name for `program`, and does `claim` with it,
/// which fails with [`Exit::Refused`] when somebody else was faster.
///
/// # Errors
/// Of the store, or of `claim`.
pub fn claim_job<T>(
    store: &Store,
    name: Option<&str>,
    program: &Path,
    mut claim: impl FnMut(&Job) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if let Some(name) = name {
        return claim(&store.create_job(name)?);
    }
    let taken = store.jobs()?;
    let mut last = Failure::new(Exit::Internal, "no free name for the job; give one with --name");
    for name in crate::names::candidates(program, &taken).take(20) {
        match claim(&store.create_job(&name)?) {
            Err(failure) if failure.exit == Exit::Refused => last = failure,
            result => return result,
        }
    }
    Err(last)
}
