//! `holdfast restart`: the program goes on from an image.

use super::{copies, gang};
use crate::args::{RestartArgs, is_supervised};
use crate::client::Agent;
use crate::earlier::Earlier;
use crate::exit::{Exit, Failure};
use crate::front::locate::{self, Located, Look};
use crate::front::patience::Patience;
use crate::front::restart::restart;
use crate::front::restart_request::{MemoryMode, RestartRequest};
use crate::front::supervise::{Ending, StartState};
use crate::front::wait_for_lock;
use crate::names::ImageName;
use crate::same_run;
use crate::settings::{GangPlace, Recipe, Settings};
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_tiers::stack::{JobTiers, TierSpec};
use holdfast_tiers::{Job, Store};
use std::cell::Cell;
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
    let gang = gang::of_restart(args, image, &store)?;
    let image = gang.as_ref().map_or(image, |gang| &gang.part);
    let patience = args.wait.map_or_else(Patience::default, Patience::new);
    let by_ssh = gang.as_ref().is_some_and(|of| of.place.open && !of.place.is_leader());
    let patience = if by_ssh || is_supervised() { patience.after_failure() } else { patience };
    let located = locate(args, image, &store, &patience)?;
    let mut job = crate::names::open_job(&store, &image.job)?;
    let mut epoch = image.epoch;
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
    if let Some(gang::OfRestart { place, .. }) = &gang {
        let before = old.settings.gang.as_ref().and_then(|place| place.protect);
        settings.gang = Some(GangPlace { protect: place.protect.or(before), ..place.clone() });
    } else if let Some(place) = &settings.gang {
        return Err(gang::needs_place(place));
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
        gang_image: gang.as_ref().map(|gang| gang.image),
        start_members: Cell::new(gang.as_ref().is_some_and(|gang| gang.starts)),
        located: located.as_ref(),
        fallback: args.fallback,
        memory,
        map: &args.map,
        map_host: &args.hosts(),
        stdio: args.stdio.wish(),
        patience: &patience,
        accept_replaced: &args.accept_replaced,
        also: &args.on_restart,
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

/// The image may be on a lower tier alone, or a newer one than the store's: this host may have nothing of the job, and
/// another one may have gone on with it.
fn locate(
    args: &RestartArgs,
    image: &ImageName,
    store: &Store,
    patience: &Patience,
) -> Result<Option<Located>, Failure> {
    let (name, epoch) = (&image.job, image.epoch);
    let here = copies::here(store, name)?;
    let recipe = here.as_ref().and_then(|(_, recipe)| recipe.clone());
    let tiers = match &recipe {
        _ if !args.tier.is_empty() => tiers::chosen(&args.tier, false, store)?,
        Some(recipe) => recipe.settings.tiers.clone(),
        None => tiers::chosen(&[], false, store)?,
    };
    let mut own = None;
    if let Some((job, _)) = &here {
        own = locate::in_store(job, &recipe.unwrap_or_default(), epoch)?;
        // What an agent has made no other host has a newer one of.
        let is_served = args.name.is_some()
            && own.is_some()
            && Agent::connect(job).and_then(|agent| agent.status()).is_ok();
        if tiers.lower().is_empty() || (epoch.is_some() && own.is_some()) || is_served {
            return Ok(None);
        }
        if args.name.is_none() {
            wait_for_lock::wait(job, patience)?;
        }
    }
    if tiers.lower().is_empty() {
        return Ok(None);
    }
    let look = locate::look(store, name, epoch, own, &args.tier)?;
    if epoch.is_none() {
        look.say(name);
    }
    let Some(found) = &look.located else {
        let has_any =
            |(job, _): &(Job, _)| Ok::<_, Failure>(job.images()?.iter().any(|image| image.complete));
        // An older image is better than none; why one of another run is not is told where it is looked for.
        let is_here = epoch.is_none() && here.as_ref().map(has_any).transpose()?.unwrap_or(false);
        return if is_here { Ok(None) } else { Err(nowhere(&look, image, &tiers)) };
    };
    if args.name.is_some() {
        // A job of its own needs a copy of its own.
        return locate::copy(store, name, Some(found.epoch), &args.tier).map(|()| None);
    }
    Ok(look.located)
}

/// No tier that answers has the image, nor the store.
fn nowhere(look: &Look, image: &ImageName, tiers: &JobTiers) -> Failure {
    let job = &image.job;
    if !look.told.silent.is_empty() {
        return look.unknown("");
    }
    if let Some((epoch, tier)) = &look.told.of_another_run {
        let none = same_run::none_of_it(job, [*epoch]);
        return Failure::new(Exit::NotFound, format!("{none} (tier {tier})"));
    }
    let names: Vec<String> = tiers.lower().iter().map(TierSpec::name).collect();
    let what = image.epoch.map_or_else(|| "an image".to_owned(), |epoch| format!("image {epoch}"));
    Failure::new(Exit::NotFound, format!("no tier has {what} of job {job} ({})", names.join(", ")))
}

/// A new job with one image of another one. A job of that name which has no image is taken.
fn copy(store: &Store, from: &Job, image: Epoch, name: &str, patience: &Patience) -> Result<Job, Failure> {
    let job = store.create_job(name)?;
    let lock = wait_for_lock::take(&job, patience)?;
    if !job.images()?.is_empty() {
        let text = format!("job {name} has images of its own; give the copy another name, or restart {name}");
        return Err(Failure::new(Exit::Refused, text));
    }
    let recipe = Recipe::read(from)?;
    // A folder of its own in the tiers.
    let id = tiers::id_for(&recipe.settings, String::new())?;
    let image_of = from.open_image(image)?;
    let recipe = same_run::recipe_of(recipe, &image_of.info(), image_of.command());
    // A copy of a member of a gang is a job without the others.
    let settings = Settings { gang: None, ..recipe.settings.clone() };
    Recipe { id, settings, unnamed: false, earlier: Earlier::default(), ..recipe }.write(&job)?;
    from.clone_image(image, &job, &lock)?;
    Ok(job)
}
