//! The agent: started by `holdfast run`, by `holdfast restart`, or by libholdfast itself (`--attach-env`).
//!
//! Order of its start: log, job and lock, leftovers of a dead agent, socket, (rebuild the program,) serve. The program
//! never depends on it: whatever fails here, the program runs on without checkpoints.
//! Fails by: a [`Tell::Failed`] to the front, and the log.

mod addresses;
mod attach;
mod carry_over;
mod checked;
mod checkpoint;
mod checks;
mod connections;
mod context;
mod cuda;
mod cut;
mod error;
mod estimate;
mod event_loop;
mod events;
mod flush;
mod gang;
mod guard;
mod guarding;
mod headroom;
mod hook;
mod kept;
mod membership;
mod own_end;
mod precopy;
mod processes;
mod remove;
mod request;
mod restart_progress;
mod retention;
mod rollback;
mod rollback_devices;
mod rollbacks;
mod rush;
mod slot_waiters;
mod space;
mod spot;
mod starts;
mod write_monitor;
mod write_rate;

use crate::args::AgentArgs;
use crate::cascade;
use crate::cuda::room::Voice;
use crate::exit::Failure;
use crate::front_link::{Link, Tell};
use crate::gang::round::Round;
use crate::last_restart::LastRestart;
use crate::last_run::{self, LastRun};
use crate::saved;
use crate::settings::{Recipe, signal_name};
use crate::tiers;
use crate::{log, pidfile, sharing};
use carry_over::CarryOver;
use checked::CheckedImage;
use context::JobContext;
use cuda::Cuda;
use event_loop::EventLoop;
use holdfast_abi::environment::ENV_KEY;
use holdfast_image::Epoch;
use holdfast_image::bytes::Blob;
use holdfast_image::paths::{accept_replaced, move_files};
use holdfast_image::record::{ProcessRecord, SignalAction};
use holdfast_image::streams::{self, Use};
use holdfast_process::rebuild::{self, RebuildOptions, RebuiltMember};
use holdfast_process::{ClosedFiles, Contents, Gang};
use holdfast_sys::{attributes, fd, signals, unix_socket};
use holdfast_tiers::stack::TiersRecord;
use holdfast_tiers::{Image, Job};
use parking_lot::Mutex;
use restart_progress::RestartProgress;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// How long an agent that was started by the library waits for the program to register.
const ATTACH_PATIENCE: Duration = Duration::from_secs(10);

/// How long a program that is about to run waits for the front to say what its user should know before.
const SAYING: Duration = Duration::from_secs(1);

/// Runs the agent until the job ends.
///
/// # Errors
/// What went wrong; the front has been told.
pub fn run(args: &AgentArgs, store: Option<&Path>) -> Result<(), Failure> {
    // It holds what the program holds. Not dumpable it cannot be: files of /proc/self would be root's, and with them
    // the probes of an ordinary user's agent (guard regions in its own pagemap, names of its namespaces) would fail.
    attributes::leave_no_core();
    // The program is the last to die of memory.
    let _ = attributes::end_first(attributes::own_pid());
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

fn start_log(job: &Job) {
    let path = log::path(job);
    let writer = move || log::Bounded(path.clone());
    tracing_subscriber::fmt().with_writer(writer).with_ansi(false).init();
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
}

fn prepare_and_serve(args: &AgentArgs, root: Option<&Path>, link: &Option<Link>) -> Result<(), Failure> {
    // From the beginning: an agent that is told to end leaves no socket behind.
    let stop_signals = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].into_iter().map(signals::bit).sum();
    signals::block(stop_signals);
    let store = crate::names::open_store(root)?;
    let (job, lock, recipe) = if args.attach_env {
        attach::open(&store)?
    } else {
        let name = args.job.as_deref().unwrap_or_default();
        let job = store.job(name)?;
        let lock = crate::job_lock::take_after_agent(&job)?;
        let recipe = Recipe::read(&job)?;
        (job, lock, recipe)
    };
    start_log(&job);
    if args.restart.is_none() {
        addresses::forget(&job)?;
    }
    let (job, memory_told) = tiers::with_memory(job, &recipe.settings);
    if let (Some(memory), Some(epoch)) = (job.memory(), args.restart) {
        // The program may be mapped from it.
        memory.pin(Epoch(epoch));
    }
    // A file that reaches RLIMIT_FSIZE is an error (EFBIG), not our end (setrlimit(2)).
    signals::set_ignored(libc::SIGXFSZ, true);
    let cleaned = job.clean(&lock)?;
    if !cleaned.removed.is_empty() || cleaned.bytes > 0 {
        let (files, bytes) = (cleaned.removed.len(), cleaned.bytes);
        tracing::info!("removed {files} files of a dead agent, {bytes} bytes");
    }
    let (job, bounded) = space::bound(job, &recipe.settings)?;
    let listener = listen(&job.socket_path())?;
    let messages =
        signals::SignalMessages::new(stop_signals).map_err(|error| Failure::system("signalfd", &error))?;
    let for_others = args.start_members.then(|| args.for_other_members());
    let gang = gang::enter(
        &store,
        &job,
        &recipe.settings,
        (args.gang_image, for_others.as_deref()),
        (link.as_ref(), &messages),
    )?;
    // The job context keeps its own end of the link; the one above only tells of failures.
    let own_link = match link {
        Some(link) => Some(Link::from(duplicate(link)?)),
        None => None,
    };
    let for_tiers = match link {
        Some(link) => Some(Link::from(duplicate(link)?)),
        None => None,
    };
    let cascade = cascade::start(&job, &recipe, args.restart, for_tiers)?;
    let cuda = Cuda::new(&recipe.settings, voice(link)?);
    let share = sharing::of(&store);
    share.want_rate(recipe.settings.rate);
    let context = Arc::new(JobContext {
        cascade,
        bounded,
        store,
        contents: contents(&job, &recipe).map(Arc::new),
        job,
        lock,
        share,
        settings: Mutex::new(Arc::new(recipe.settings)),
        cwd: recipe.cwd,
        command: recipe.command,
        run_ns: recipe.created_ns,
        earlier: recipe.earlier,
        unnamed: recipe.unnamed,
        key: key_of_start(args),
        front: own_link.as_ref().and_then(|_| i32::try_from(std::os::unix::process::parent_id()).ok()),
        link: own_link,
        attached: args.attach_env,
        restarted_from: args.restart.map(Epoch),
        mapped: OnceLock::new(),
        namespaces: OnceLock::new(),
        addresses: OnceLock::new(),
        cuda,
        gang,
        carry_over: Mutex::default(),
    });
    space::serve(&context);
    guarding::attach(&context);
    memory_told.into_iter().for_each(|text| context.warn(text));
    let inherited_fds = (!args.attach_env).then(|| args.inherited.clone());
    let mut event_loop =
        EventLoop::new(Arc::clone(&context), listener, messages, ATTACH_PATIENCE, inherited_fds)
            .map_err(|error| Failure::system("starting the agent", &error))?;
    if args.restart.is_none() {
        context.cuda.start_keeper(&context.job.socket_path())?;
    }
    if args.silent {
        event_loop.await_program();
    }
    if args.attach_env {
        attach::announce(&context.job)?;
    }
    if let (Some(epoch), Some(seed)) = (args.restart, args.seed) {
        let round = context.gang.as_ref().map(|gang| Round::restart(&gang.seat));
        let rebuilt = rebuild_program(&context, &mut event_loop, (link, &round), Epoch(epoch), seed, args);
        gang::restarted(&context, round.as_deref(), rebuilt)?;
    } else if let Some(link) = link {
        link.tell(&Tell::Ready);
    }
    tracing::info!("job {} has agent {}", context.job.name(), std::process::id());
    let _watch = spot::watch(&context)?;
    event_loop.listen_to_gang();
    let served = event_loop.serve().map_err(|error| Failure::system("waiting for events", &error));
    // Before what is unfinished goes: parity may be under way.
    let failed =
        context.settings().supervised && LastRun::read(&context.job).is_some_and(|run| run.has_failed());
    context.gang.iter().for_each(|gang| gang.leave(failed));
    // The memory that a store in a tmpfs keeps for the next image. What stays is removed by the next agent.
    let folder = context.job.folder();
    if context.lock.is_in_place() {
        let _ = folder.tier().clean(folder.folder());
    }
    leave(&context);
    served
}

/// A job without a name of its own that has ended well without an image leaves nothing. One that has ended well needs
/// nothing of the run before.
fn leave(context: &JobContext) {
    if !context.lock.is_in_place() || pidfile::program(&context.job).is_some() {
        return;
    }
    if context.earlier.kept().is_some() && has_ended_well(context) {
        retention::apply_at_the_end(context);
    }
    if context.unnamed {
        leave_nothing(context);
    }
}

fn leave_nothing(context: &JobContext) {
    let below = TiersRecord::read(&context.job).lower().any(|tier| !tier.versions.is_empty());
    let has_image = context.job.images().map_or(true, |images| !images.is_empty());
    if has_image || below {
        return;
    }
    if !has_ended_well(context) {
        return;
    }
    let gone = context.job.discard_memory().and_then(|()| last_run::leave_nothing(&context.job));
    if let Err(error) = gone {
        tracing::info!("{} stays: {error}", context.job.dir().display());
    }
}

/// As the front has written down, which has seen the end of the program as well.
fn has_ended_well(context: &JobContext) -> bool {
    const FRONT: Duration = Duration::from_secs(10);
    const LOOK: Duration = Duration::from_millis(20);
    let is_told = || LastRun::read(&context.job).is_some_and(|run| run.ended.is_some());
    if let Some(link) = &context.link {
        let begun = Instant::now();
        // It may wait for this agent, once it has written that down.
        while begun.elapsed() < FRONT && !is_told() && link.next(false).is_ok() {
            link.wait(LOOK);
        }
    }
    LastRun::read(&context.job).is_some_and(|run| run.is_done() || context.attached)
}

/// Forgets a signal that was on its way to the program when it was stopped: it has had what it asked for, and would end
/// the program that is restarted.
fn forget_pending(record: &mut ProcessRecord, signal: i32) {
    // si_signo is the first member of siginfo_t (siginfo(7)).
    let is_other = |info: &Blob| info.0.get(..4) != Some(&signal.to_ne_bytes()[..]);
    let threads = record.threads.iter_mut().map(|thread| &mut thread.pending);
    threads.chain([&mut record.signals.pending]).for_each(|pending| pending.retain(is_other));
    record.others.iter_mut().for_each(|other| forget_pending(other, signal));
}

/// `--signal-on-restart`: it waits for each process that has a handler for it, as if it had come during the stop.
fn tell_by_signal(context: &JobContext, record: &mut ProcessRecord, signal: i32) {
    if !pend(record, signal) {
        let name = signal_name(signal);
        context.warn(format!(
            "--signal-on-restart: no process of the program has a handler for {name}: none gets it"
        ));
    }
}

/// Whether any process has a handler.
fn pend(record: &mut ProcessRecord, signal: i32) -> bool {
    // Others are SIG_DFL and SIG_IGN (include/uapi/asm-generic/signal-defs.h).
    let is_handled =
        |action: &SignalAction| i64::from(action.signal) == i64::from(signal) && action.handler > 1;
    let has = record.signals.actions.iter().any(is_handled);
    if has {
        // siginfo_t (siginfo(7)): the signal, no error, SI_USER; no sender.
        let mut info = vec![0; 128];
        info[..4].copy_from_slice(&signal.to_ne_bytes());
        record.signals.pending.push(Blob(info));
    }
    record.others.iter_mut().fold(has, |any, other| pend(other, signal) | any)
}

/// Which files are saved, and what of them is known.
fn contents(job: &Job, recipe: &Recipe) -> Option<Contents> {
    let contents = Contents::new(recipe.settings.save_files.saving()?);
    let store = || fs::canonicalize(job.dir().parent().unwrap_or(job.dir())).unwrap_or_default();
    Some(match recipe.settings.rollback_files {
        true => contents.with_closed(ClosedFiles::new(recipe.created_ns, store())),
        false => contents,
    })
}

/// What says something in the log, and to the front.
fn voice(link: &Option<Link>) -> Result<Voice, Failure> {
    let own = link.as_ref().map(duplicate).transpose()?.map(Link::from);
    Ok(Arc::new(move |text: String| {
        tracing::warn!("{text}");
        if let Some(link) = &own {
            link.tell(&Tell::Warning { text });
        }
    }))
}

fn duplicate(link: &Link) -> Result<OwnedFd, Failure> {
    link.as_fd().try_clone_to_owned().map_err(|error| Failure::system("duplicating the link", &error))
}

fn listen(path: &Path) -> Result<OwnedFd, Failure> {
    let listener = unix_socket::listen(path)
        .map_err(|error| Failure::system(format_args!("listening at {}", path.display()), &error))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
        .map_err(|error| Failure::system(format_args!("chmod of {}", path.display()), &error))?;
    Ok(listener)
}

/// What the program has in its environment, where it is started: a restart has it from the image.
fn key_of_start(args: &AgentArgs) -> OnceLock<Vec<u8>> {
    let key = OnceLock::new();
    if args.restart.is_none() {
        key.get_or_init(|| std::env::var_os(ENV_KEY).unwrap_or_default().into_encoded_bytes());
    }
    key
}

fn rebuild_program(
    context: &JobContext,
    event_loop: &mut EventLoop,
    (link, round): (&Option<Link>, &Option<Arc<Round>>),
    epoch: Epoch,
    seed: i32,
    args: &AgentArgs,
) -> Result<(), Failure> {
    let seed =
        fd::inherited(seed).map_err(|error| Failure::system("taking over the seed's socket", &error))?;
    let below = tiers::folders(context.job.name(), &Recipe::read(&context.job)?);
    let mut image: Image = context.job.open_image_from(epoch, &below)?;
    if args.served {
        image.serve();
    } else if args.share {
        image.share(!args.lazy);
    }
    let mut record = crate::names::record_of(&image)?;
    let _ = context.key.set(record.host.key.0.clone());
    event_loop.know_key();
    move_files(&mut record, &args.map);
    let saved_dir = context.job.saved_dir();
    rebuild::renamed::find(&mut record, &saved_dir);
    accept_replaced(&mut record, &args.accept_replaced);
    rebuild::processor::fit(&mut record);
    if let Some(signal) = context.settings().stop_signal {
        forget_pending(&mut record, signal);
    }
    if let Some(signal) = args.signal {
        tell_by_signal(context, &mut record, signal);
    }
    let given = streams::uses(&record);
    let left = streams::apply(&mut record, &args.stream);
    rebuild::renamed::leave(&mut record, &left);
    if let Some(note) = context.cuda.prepare(&record)? {
        context.warn(note);
    }
    let gang = round.as_deref().map(|round| round as &dyn Gang);
    let addresses = addresses::decide(&context.job, &mut record, &args.map_host, gang)?;
    let _ = context.addresses.set(Arc::from(addresses.moved.clone()));
    if let Some(link) = link {
        link.tell_ready(&addresses.sockets);
    }
    let options = RebuildOptions {
        lazy: args.lazy,
        socket_path: context.job.socket_path(),
        left,
        saved_dir,
        interrupt: Some(event_loop.stop_signals()?),
        environment: args.env.clone(),
        addresses: addresses.moved,
        gang: round.clone().map(|round| round as _),
    };
    let begun = SystemTime::now();
    let pages = CheckedImage::new(&image, context.job.dir(), RestartProgress::new(link.as_ref()));
    // One that uses CUDA cannot go on before it has its device memory again.
    let runs_at_once = record.processes().all(|process| process.cuda.is_none());
    let notes = |of_job: &[String]| {
        let bound = saved::bound(&context.job, begun);
        let of_addresses = addresses.notes.iter().cloned();
        of_job
            .iter()
            .cloned()
            .chain(of_addresses)
            .chain(image.detours())
            .chain(bound)
            .collect::<Vec<String>>()
    };
    let resuming = |of_job: &[String]| {
        if let Some(link) = link.as_ref().filter(|_| runs_at_once) {
            link.tell(&Tell::Resuming { notes: notes(of_job) });
            // What the user is told comes before what the program writes. Who does not read is not waited for.
            link.wait(SAYING);
        }
    };
    let rebuilt = rebuild::rebuild_job(&record, &pages, seed, &options, &resuming)
        .map_err(|error| Failure::from(&error))?;
    context.cuda.refill(&record, &rebuilt.members, &context.job.socket_path(), &pages)?;
    context.cuda.restore(&record, &rebuilt.members)?;
    let pids: Vec<i32> = rebuilt.members.iter().map(|member| member.pid).collect();
    let listed: Vec<String> = pids.iter().map(i32::to_string).collect();
    let figures = format!(
        "image {epoch}: restart number {} as process {}: {}",
        rebuilt.restarts,
        listed.join(", "),
        rebuilt.timings
    );
    tracing::info!("{figures}");
    let last = LastRestart::of(epoch.0, args.served, &rebuilt.timings);
    if let Err(error) = last.write(&context.job) {
        tracing::info!("`holdfast show` cannot tell how memory was restored: {error}");
    }
    context.mapped.get_or_init(|| rebuilt.mapped);
    context.namespaces.get_or_init(|| rebuilt.namespaces);
    let carry_over = CarryOver::of_image(&image);
    let has_parent = carry_over.lineage.is_some();
    *context.carry_over.lock() = carry_over;
    for RebuiltMember { pid, space, area, tracking } in rebuilt.members {
        if !has_parent {
            tracking.doubt();
        }
        // One that ended at once is no failure: its parent, or the front, has its status.
        if let Err(error) = event_loop.adopt(pid, space, area, tracking) {
            tracing::info!("process {pid} has ended already: {error}");
        }
    }
    for Use { process, fd, number, .. } in given {
        if let Some(pid) = pids.get(process) {
            event_loop.gave(*pid, fd, number);
        }
    }
    if let Some(link) = link {
        let copied = (args.lazy && !last.is_lazy()).then(|| last.line());
        let notes = if runs_at_once { Vec::new() } else { notes(&rebuilt.notes) };
        link.tell(&Tell::Restarted { figures, notes, copied });
    }
    Ok(())
}
