//! `holdfast restart`: the program goes on from an image.

use crate::args::RestartArgs;
use crate::earlier::Earlier;
use crate::exit::{Exit, Failure};
use crate::front::locate::{self, Located};
use crate::front::patience::Patience;
use crate::front::restart::restart;
use crate::front::restart_request::{MemoryMode, RestartRequest};
use crate::front::supervise::{Ending, StartState};
use crate::front::wait_for_lock;
use crate::names::ImageName;
use crate::same_run;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_tiers::{Job, Store};
use std::path::Path;

/// Restarts the program and waits for its end.
///
/// # Errors
/// The program does not run.
pub fn run(args: &RestartArgs, root: Option<&Path>) -> Result<Ending, Failure> {
    let Some(image) = &args.image else {
        return Err(Failure::new(Exit::Usage, "name a job, or give --all-lost"));
    };
    let store = crate::names::open_store(root)?;
    crate::names::refuse_objects(&image.job)?;
    let located = locate(args, image, &store)?;
    let mut job = crate::names::open_job(&store, &image.job)?;
    let mut epoch = image.epoch;
    let patience = args.wait.map_or_else(Patience::default, Patience::new);
    if let Some(name) = &args.name {
        let image = match epoch {
            Some(epoch) => crate::names::open_image(&job, Some(epoch))?.epoch(),
            None => newest(&job)?,
        };
        (job, epoch) = (copy(&store, &job, image, name, &patience)?, Some(image));
    }
    let read = Recipe::read(&job)?;
    let old = of_its_run(&job, epoch, located.as_ref(), read.clone());
    let mut settings = args.settings(&old.settings);
    if !args.tier.is_empty() {
        settings.tiers = tiers::chosen(&args.tier, false, &store)?;
    }
    let id = tiers::id_for(&settings, old.id.clone())?;
    let wanted = Recipe { settings: settings.clone(), id, ..old };
    if wanted != read {
        // The settings of a running job are not ours.
        wait_for_lock::wait(&job, &patience)?;
        wanted.write(&job)?;
    }
    let memory = match (args.lazy, args.eager) {
        (true, _) => MemoryMode::Lazy,
        (_, true) => MemoryMode::Eager,
        _ => MemoryMode::Auto,
    };
    let request = RestartRequest {
        store: &store,
        job: &job,
        settings: &settings,
        epoch,
        located: located.as_ref(),
        fallback: args.fallback,
        memory,
        map: &args.map,
        stdio: args.stdio.wish(),
        patience: &patience,
        accept_replaced: &args.accept_replaced,
    };
    restart(&request, &StartState::take()?)
}

/// The newest image of the job's last run.
fn newest(job: &Job) -> Result<Epoch, Failure> {
    let (recipe, images) = (Recipe::read(job)?, job.images()?);
    let newest = images.iter().rev().find(|image| same_run::is_of(image, &recipe)).map(|image| image.epoch);
    let none = || same_run::none_of_it(job.name(), images.iter().map(|image| image.epoch));
    newest.ok_or_else(|| Failure::new(Exit::NotFound, none()))
}

/// A job that goes on from an image that was asked for by its number goes on with the run that the image is of.
fn of_its_run(job: &Job, epoch: Option<Epoch>, located: Option<&Located>, recipe: Recipe) -> Recipe {
    let Some(epoch) = epoch else { return recipe };
    let opened = match located {
        Some(located) => located.open(job).ok(),
        None => job.open_image(epoch).ok(),
    };
    // Why it cannot be opened is told when it is restarted.
    let Some(image) = opened else { return recipe };
    let found = same_run::recipe_of(recipe.clone(), &image.info(), image.command());
    // The run that was the last one until now may not have come to its end.
    let earlier = match found.created_ns == recipe.created_ns {
        true => recipe.earlier,
        false => recipe.earlier.of_next(job).unwrap_or(recipe.earlier),
    };
    Recipe { earlier, ..found }
}

/// The image may be on a lower tier alone: this host may have nothing of the job.
fn locate(args: &RestartArgs, image: &ImageName, store: &Store) -> Result<Option<Located>, Failure> {
    let (name, epoch) = (&image.job, image.epoch);
    let old = store.job(name).ok().and_then(|job| Recipe::read(&job).ok());
    let has_tiers = !args.tier.is_empty()
        || match &old {
            Some(old) => !old.settings.tiers.lower().is_empty(),
            None => !tiers::chosen(&[], false, store)?.lower().is_empty(),
        };
    if !has_tiers || !locate::is_needed(store, name, epoch) {
        return Ok(None);
    }
    // A job of its own needs a copy of its own.
    let found = match args.name {
        Some(_) => locate::copy(store, name, epoch, &args.tier).map(|()| None),
        None => locate::locate(store, name, epoch, &args.tier).map(|found| match epoch {
            Some(_) => Some(found),
            None => locate::of_last_run(store, name, found),
        }),
    };
    let whole = |job: Job| job.images().is_ok_and(|images| images.iter().any(|image| image.complete));
    match found {
        // An older image is better than none.
        Err(_) if epoch.is_none() && store.job(name).is_ok_and(whole) => Ok(None),
        result => result,
    }
}

/// A new job with one image of another one. A job of that name which has no image is taken.
fn copy(store: &Store, from: &Job, image: Epoch, name: &str, patience: &Patience) -> Result<Job, Failure> {
    let job = store.create_job(name)?;
    wait_for_lock::wait(&job, patience)?;
    let lock = job.lock()?;
    if !job.images()?.is_empty() {
        let text = format!("job {name} has images of its own; give the copy another name, or restart {name}");
        return Err(Failure::new(Exit::Refused, text));
    }
    let recipe = Recipe::read(from)?;
    // A folder of its own in the tiers.
    let id = tiers::id_for(&recipe.settings, String::new())?;
    let image_of = from.open_image(image)?;
    let recipe = same_run::recipe_of(recipe, &image_of.info(), image_of.command());
    Recipe { id, unnamed: false, earlier: Earlier::default(), ..recipe }.write(&job)?;
    from.clone_image(image, &job, &lock)?;
    Ok(job)
}
