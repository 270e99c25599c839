//! `holdfast run`: checks the program, makes the job, starts agent and program.

use crate::args::RunArgs;
use crate::exit::{Exit, Failure};
use crate::front::launch::c_string;
use crate::front::locate::{self, Located};
use crate::front::patience::Patience;
use crate::front::restart::restart;
use crate::front::restart_request::{MemoryMode, RestartRequest};
use crate::front::run::{RunRequest, run_program};
use crate::front::supervise::{Ending, StartState};
use crate::names::claim_job;
use crate::settings::{Recipe, Settings};
use crate::{config, front, mpi, program, tiers};
use holdfast_image::bytes::Name;
use holdfast_process::rebuild::streams::Wish;
use holdfast_tiers::{Job, Store};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the agent of another program of that name may take to leave, if it has neither a program nor a flush: it
/// may serve one that has not loaded libholdfast, too.
const LEAVE: Duration = Duration::from_secs(10);

/// Runs the program to its end.
///
/// # Errors
/// Nothing was started.
pub fn run(args: &RunArgs, root: Option<&Path>) -> Result<Ending, Failure> {
    if mpi::gather(args.command.len())? {
        return Ok(Ending::Program(ExitStatus::default()));
    }
    let mut settings = args.settings();
    let name = args.command.first().map(|word| word.as_os_str()).unwrap_or_default();
    let path = program::find_and_check(name)?;
    let store = crate::names::open_store(root)?;
    if args.compression().is_none() {
        settings.compress = config::compression(&store)?.unwrap_or_default();
    }
    settings.tiers = tiers::chosen(&args.tier, args.no_tiers, &store)?;
    settings.max_space = settings.max_space.map_or_else(|| config::max_space(&store), |max| Ok(Some(max)))?;
    let located = locate_to_resume(args, &store, &settings)?;
    let state = StartState::take()?;
    if args.resume
        && let Some(ending) = resume((args, &store), located.as_ref(), &settings, &state)?
    {
        return Ok(ending);
    }
    let arguments = args.command.iter().map(|word| c_string(word)).collect::<Result<Vec<_>, _>>()?;
    claim_job(&store, args.name.as_deref(), Path::new(name), |job| {
        // Before the recipe is written: that of a running job is not ours.
        front::wait_for_lock::wait(job, &Patience::new(LEAVE))?;
        recipe(args, &settings, job)?.write(job)?;
        let (settings, arguments) = (&settings, arguments.clone());
        let run = RunRequest { store: &store, job, settings, program: &path, arguments, extra: &[] };
        run_program(run, &state)
    })
}

/// Restarts the job if it has an image.
fn resume(
    (args, store): (&RunArgs, &Store),
    located: Option<&Located>,
    settings: &Settings,
    state: &StartState,
) -> Result<Option<Ending>, Failure> {
    let name = args.name.as_deref().unwrap_or_default();
    let Ok(job) = store.job(name) else { return Ok(None) };
    if job.images()?.is_empty() && located.is_none() {
        return Ok(None);
    }
    let patience = &Patience::default();
    front::wait_for_lock::wait(&job, patience)?;
    let old = Recipe::read(&job)?;
    // What it was told at its start.
    let settings = &Settings { cpu_baseline: old.settings.cpu_baseline, ..settings.clone() };
    let id = tiers::id_for(settings, old.id)?;
    Recipe { settings: settings.clone(), id, ..old }.write(&job)?;
    let (fallback, memory) = (true, MemoryMode::Auto);
    let request = RestartRequest {
        store,
        job: &job,
        settings,
        epoch: None,
        located,
        fallback,
        memory,
        map: &[],
        stdio: Wish::Auto,
        accept_replaced: &[],
        patience,
    };
    restart(&request, state).map(Some)
}

/// Looks for what a lower tier has, where the store has no image to go on from. Not knowing whether there is one is an
/// error: a program that starts afresh writes over what it has written.
fn locate_to_resume(args: &RunArgs, store: &Store, settings: &Settings) -> Result<Option<Located>, Failure> {
    let name = args.name.as_deref().unwrap_or_default();
    let tiers = tiers::lower(&settings.tiers);
    if !args.resume || tiers.is_empty() || !locate::is_needed(store, name, None) {
        return Ok(None);
    }
    match locate::locate(store, name, None, &tiers) {
        Err(failure) if failure.exit == Exit::NotFound => Ok(None),
        Err(failure) => {
            let message =
                "the job's tiers cannot be asked for an image; without --resume the program starts afresh";
            Err(Failure { message: message.into(), ..failure })
        }
        Ok(located) => Ok(Some(located)),
    }
}

fn recipe(args: &RunArgs, settings: &Settings, job: &Job) -> Result<Recipe, Failure> {
    // A job of this name goes on with its numbers, and in its folders.
    let old = Recipe::read(job).map(|old| old.id).unwrap_or_default();
    let cwd =
        std::env::current_dir().map_err(|error| Failure::system("finding the working folder", &error))?;
    let created_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let word = |word: &std::ffi::OsString| Name(OsStr::as_bytes(word).to_vec());
    Ok(Recipe {
        command: args.command.iter().map(word).collect(),
        cwd: Name::from(cwd.as_path()),
        created_ns: u64::try_from(created_ns).unwrap_or(u64::MAX),
        settings: settings.clone(),
        id: tiers::id_for(settings, old)?,
    })
}
