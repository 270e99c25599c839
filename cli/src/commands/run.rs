//! `holdfast run`: checks the program, makes the job, starts agent and program.

use super::{copies, gang, restarts};
use crate::args::{Resume, RunArgs};
use crate::earlier::Earlier;
use crate::entries::c_string;
use crate::exit::{Exit, Failure};
use crate::front::locate::{self, Located, Silent};
use crate::front::patience::Patience;
use crate::front::restart::restart;
use crate::front::restart_request::{MemoryMode, RestartRequest};
use crate::front::run::{RunRequest, run_program};
use crate::front::supervise::{Ending, StartState};
use crate::job_lock;
use crate::last_run::{self, LastRun};
use crate::names::{claim_job, if_full, title};
use crate::rsh::launchers;
use crate::settings::{Recipe, SaveFiles, Settings};
use crate::{config, front, log_tier, mpi, planned, program, report, same_run, tiers};
use holdfast_image::bytes::Name;
use holdfast_sys::clock;
use holdfast_tiers::stack::{JobTiers, TierSpec, TiersRecord};
use holdfast_tiers::{ImageInfo, Job, Store};
use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// How long the agent of another program of that name may take to leave, if it has neither a program nor a flush: it
/// may serve one that has not loaded libholdfast, too.
const LEAVE: Duration = Duration::from_secs(10);

/// Runs the program to its end.
///
/// # Errors
/// Nothing was started.
pub fn run(args: &RunArgs, root: Option<&Path>) -> Result<Ending, Failure> {
    if args.gang.gang.is_none() && mpi::gather(args.command.len())? {
        return Ok(Ending::Program(ExitStatus::default()));
    }
    if let Some(most) = args.on_failure.most() {
        return restarts::run(args, root, most);
    }
    let mut settings = args.settings();
    if settings.rollback_files && settings.save_files == SaveFiles::None {
        let what = "--rollback-files saves files, and --save-files=none saves none: give one of the two";
        return Err(Failure::new(Exit::Usage, what));
    }
    if args.resume.is_none() && !args.on_restart.is_none() {
        let what =
            "--env, --exec-on-restart and --signal-on-restart are of a restart: give them with --resume";
        return Err(Failure::new(Exit::Usage, what));
    }
    let name = args.command.first().map(|word| word.as_os_str()).unwrap_or_default();
    let path = program::find_and_check(name)?;
    let store = crate::names::open_store(root)?;
    if args.compression().is_none() {
        settings.compress = config::compression(&store)?.unwrap_or_default();
    }
    let (log, of_images) = log_tier::among(&args.tier)?;
    settings.log = log.map_or_else(|| old_log(args, &store), |log| Ok(Some(log)))?;
    settings.tiers = chosen_tiers(args, &of_images, &store)?;
    settings.gang = gang::place_of_run(args, &store, &settings)?;
    if let Some(place) = settings.gang.clone().filter(|place| place.open && !place.is_leader()) {
        settings = gang::as_leader(&store, place)?;
    }
    let member = settings.gang.as_ref().map(|place| place.job_of(place.member));
    let job_name = member.as_deref().or(args.name.as_deref());
    settings.planned = planned::of_options(args.every, &args.mtbf, &settings)?;
    settings.max_space = settings.max_space.map_or_else(|| config::max_space(&store), |max| Ok(Some(max)))?;
    let located = match locate_to_resume(args, &store, &settings)? {
        ToResume::Over => return Ok(Ending::Program(ExitStatus::default())),
        ToResume::Image(located) => located,
    };
    let state = StartState::take()?;
    if args.resume.is_some()
        && let Some(ending) = resume((args, &store), located.as_ref(), &settings, &state)?
    {
        return Ok(ending);
    }
    let arguments = args.command.iter().map(|word| c_string(word)).collect::<Result<Vec<_>, _>>()?;
    let streams = log_tier::variables(settings.log.as_ref())?;
    claim_job(&store, job_name, &title(&args.command), |job| {
        // Before the recipe is written: that of a running job is not ours.
        front::wait_for_lock::wait(job, &Patience::new(LEAVE))?;
        let is_new = is_new(job);
        // Another run of this name may have come and gone since it was looked.
        if args.resume.is_some()
            && !is_new
            && let Some(ending) = resume((args, &store), located.as_ref(), &settings, &state)?
        {
            return Ok(ending);
        }
        let begin = || {
            make_way(args, job)?;
            recipe(args, &settings, job)?.write(job)?;
            let (settings, arguments) = (&settings, arguments.clone());
            let (program, mut extra, image) = (&path, args.on_restart.variables(), None);
            extra.extend(streams.clone());
            if let Some(place) = &settings.gang {
                extra.extend(launchers::variables(job, place)?);
            }
            let extra = &extra;
            let run = RunRequest { store: &store, job, settings, program, arguments, extra, image };
            run_program(run, &state)
        };
        begin().map_err(|failure| if is_new { without_a_job(job, failure) } else { failure })
    })
}

/// The tiers of this command line; else those of the configuration, and of a job that goes on those that it had: its
/// images may be there alone.
fn chosen_tiers(args: &RunArgs, given: &[TierSpec], store: &Store) -> Result<JobTiers, Failure> {
    let chosen = tiers::chosen(given, args.no_tiers, store)?;
    if args.resume.is_none() || args.no_tiers || !given.is_empty() {
        return Ok(chosen);
    }
    let here = copies::here(store, args.name.as_deref().unwrap_or_default())?;
    let Some(old) = here.and_then(|(_, recipe)| recipe) else { return Ok(chosen) };
    Ok(chosen.or(&old.settings.tiers))
}

/// The log tier of a job that goes on.
fn old_log(args: &RunArgs, store: &Store) -> Result<Option<TierSpec>, Failure> {
    if args.resume.is_none() {
        return Ok(None);
    }
    let here = copies::here(store, args.name.as_deref().unwrap_or_default())?;
    Ok(here.and_then(|(_, recipe)| recipe).and_then(|recipe| recipe.settings.log))
}

/// Whether there was no job of this name; one that cannot be looked at counts as one.
fn is_new(job: &Job) -> bool {
    job.has_recipe().is_ok_and(|has| !has) && has_no_image(job)
}

fn has_no_image(job: &Job) -> bool {
    job.images().is_ok_and(|images| images.is_empty())
}

/// A job for which the store has no space leaves nothing there. Under its lock it is looked again: another run may have
/// taken the name meanwhile.
fn without_a_job(job: &Job, failure: Failure) -> Failure {
    if failure.exit == Exit::CannotCreate
        && front::wait_for_lock::wait(job, &Patience::new(LEAVE)).is_ok()
        && let Ok(_lock) = job.lock()
        && has_no_image(job)
        && let Err(error) = last_run::leave_nothing(job)
    {
        report::warn(&format!("{} stays: {error}", job.dir().display()));
    }
    if_full(job.name(), failure)
}

/// Images of another program are not mixed with those of this one: they are in the way, or go.
fn make_way(args: &RunArgs, job: &Job) -> Result<(), Failure> {
    let images = job.images()?;
    // Without a recipe, nothing is known of them; one that cannot be read may be that of another program.
    let Some(old) = old_recipe(job)?.filter(|_| !images.is_empty()) else { return Ok(()) };
    if !same_run::is_other_program(&old, &args.command, &working_folder()?) {
        return Ok(());
    }
    let name = job.name();
    if !args.replace {
        let command: Vec<String> = old.command.iter().map(Name::to_string).collect();
        let has = match images.as_slice() {
            [one] => format!("image {}", one.epoch),
            all => format!("{} images", all.len()),
        };
        let text = format!(
            "job {name} has {has} of another program, `{}`; choose another name, or delete them by --replace",
            command.join(" ")
        );
        return Err(Failure::new(Exit::Refused, text));
    }
    let lock = job_lock::take(job)?;
    for image in &images {
        job.remove_image(&lock, image.epoch)?;
    }
    report::note(&format!("{} images of another program were deleted from job {name}", images.len()));
    Ok(())
}

/// Restarts the job if it has an image of its last run. One that has come to its end is not run again.
fn resume(
    (args, store): (&RunArgs, &Store),
    located: Option<&Located>,
    settings: &Settings,
    state: &StartState,
) -> Result<Option<Ending>, Failure> {
    let name = args.name.as_deref().unwrap_or_default();
    let Some((job, _)) = copies::here(store, name)? else { return Ok(None) };
    let patience = &Patience::default();
    // An agent may be writing the image to go on from, though its program has gone.
    front::wait_for_lock::wait(&job, patience)?;
    let Some(old) = old_recipe(&job)? else { return Ok(None) };
    let has_image = job.images()?.iter().any(|image| same_run::is_of(image, &old));
    let last = LastRun::read(&job).filter(LastRun::is_done);
    if !has_image && located.is_none() && last.is_none() {
        return Ok(None);
    }
    compare(args, &job, &old)?;
    if let Some(last) = LastRun::read(&job).filter(LastRun::is_done) {
        let text = format!(
            "job {name} {}: there is nothing left to run; without --resume it starts afresh",
            last.end_text()
        );
        report::note(&text);
        return Ok(Some(Ending::Program(ExitStatus::default())));
    }
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
        gang_image: None,
        start_members: Cell::new(false),
        located,
        fallback,
        memory,
        map: &[],
        map_host: &[],
        stdio: args.stdio.wish(),
        accept_replaced: &[],
        patience,
        also: &args.on_restart,
    };
    restart(&request, state).map(Some)
}

/// What the job goes on with is what was given, or that is said.
fn compare(args: &RunArgs, job: &Job, old: &Recipe) -> Result<(), Failure> {
    let different = same_run::differences(old, &args.command, &working_folder()?);
    if different.is_empty() || args.force {
        return Ok(());
    }
    let name = job.name();
    let text = format!(
        "job {name} is not the same: {}; choose another name, or use --force to go on with job {name} as \
         it was",
        different.join("; ")
    );
    Err(Failure::new(Exit::Refused, text))
}

/// What `--resume` has found on lower tiers.
enum ToResume {
    /// The job has come to its end, on another host.
    Over,
    /// The image to go on from, where the store has none that is as new.
    Image(Option<Located>),
}

/// Looks for what lower tiers have that the store has not. Not knowing which image is the newest is an error, unless
/// the store has one: a program that starts afresh, or goes on from an old image, writes over what it has written.
fn locate_to_resume(args: &RunArgs, store: &Store, settings: &Settings) -> Result<ToResume, Failure> {
    let name = args.name.as_deref().unwrap_or_default();
    let tiers = settings.tiers.lower();
    let Some(resume) = args.resume.filter(|_| !tiers.is_empty()) else { return Ok(ToResume::Image(None)) };
    let (mut own, mut left_out) = (None, None);
    if let Some((job, recipe)) = copies::here(store, name)? {
        front::wait_for_lock::wait(&job, &Patience::default())?;
        if LastRun::read(&job).is_some_and(|last| last.is_done()) {
            return Ok(ToResume::Image(None));
        }
        let recipe = recipe.unwrap_or_default();
        own = locate::in_store(&job, &recipe, None)?;
        left_out = not_named(&job, &recipe, tiers);
    }
    let look = locate::look(store, name, None, own, tiers)?;
    let best = look.best();
    if let Some((tier, known)) = left_out.filter(|(_, known)| Some(*known) > best.map(|best| best.0))
        && resume == Resume::Newest
    {
        let goes_on = best.map_or("starts afresh".to_owned(), |best| format!("goes on from image {best}"));
        let text = format!(
            "tier {tier}, which job {name} had, had image {known} when it was seen last, and is not asked; name it \
             with --tier as well, or use --resume=reachable, which {goes_on}"
        );
        return Err(Failure::new(Exit::Usage, text));
    }
    let has_newer = |silent: &Silent| silent.known > best.map(|best| best.0);
    let is_known = match resume {
        Resume::Newest => own.is_some() && !look.told.silent.iter().any(has_newer),
        Resume::Reachable => best.is_some(),
    };
    if look.told.silent.is_empty() || is_known {
        look.say(name);
        if let (true, Some(Located { epoch, tier, .. })) = (look.told.is_over, &look.located) {
            report::note(&format!(
                "job {name} has ended with status 0 after image {epoch}, as tier {tier} has it: there is nothing left \
                 to run; without --resume it starts afresh"
            ));
            return Ok(ToResume::Over);
        }
        return Ok(ToResume::Image(look.located));
    }
    let goes_on = best.map(|best| format!(", with --resume=reachable it goes on from image {best}"));
    Err(look.unknown(&format!(
        "\nnothing was started; without --resume the program starts afresh{}",
        goes_on.unwrap_or_default()
    )))
}

/// The tier that the job had, that is not named now, and the newest image that it is known to have had.
fn not_named(job: &Job, recipe: &Recipe, named: &[TierSpec]) -> Option<(String, u64)> {
    let record = TiersRecord::read(job);
    let others =
        recipe.settings.tiers.lower().iter().filter(|old| named.iter().all(|new| new.place != old.place));
    let known = |spec: &TierSpec| Some((spec.name(), record.of(&spec.name())?.versions.last().copied()?));
    others.filter_map(known).max_by_key(|(_, image)| *image)
}

fn working_folder() -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| Failure::system("finding the working folder", &error))
}

/// How the job was started before, if it was.
fn old_recipe(job: &Job) -> Result<Option<Recipe>, Failure> {
    if job.has_recipe()? { Recipe::read(job).map(Some) } else { Ok(None) }
}

fn recipe(args: &RunArgs, settings: &Settings, job: &Job) -> Result<Recipe, Failure> {
    // A job of this name goes on with its numbers, and in its folders.
    let old = old_recipe(job)?.unwrap_or_default();
    let earlier = old.earlier.of_next(job)?;
    tell_of(earlier, job);
    let word = |word: &std::ffi::OsString| Name(OsStr::as_bytes(word).to_vec());
    Ok(Recipe {
        command: args.command.iter().map(word).collect(),
        cwd: Name::from(working_folder()?.as_path()),
        created_ns: clock::realtime_ns(),
        settings: settings.clone(),
        id: tiers::id_for(settings, old.id)?,
        unnamed: args.name.is_none(),
        earlier,
    })
}

/// What there is of a run that did not come to its end is not gone.
fn tell_of(earlier: Earlier, job: &Job) {
    let Some((first, last)) = earlier.kept() else { return };
    let is_kept = |image: &&ImageInfo| (first..=last).contains(&image.epoch.0);
    let several = job.images().is_ok_and(|all| all.iter().filter(is_kept).count() > 1);
    let how = match LastRun::read(job) {
        Some(run) if run.ended.is_some() => format!("which {}", run.end_text()),
        _ => "whose end was not seen".to_owned(),
    };
    let name = job.name();
    let (images, are) = if several { ("images up to", "are") } else { ("image", "is") };
    report::note(&format!(
        "job {name} starts afresh; {images} {last} of its last run, {how}, {are} kept until this run has ended with \
         status 0 (`holdfast restart {name}@{last}` goes on from there, `run --resume` would have)"
    ));
}
