//! `holdfast restart`: the program goes on from an image.

use crate::args::RestartArgs;
use crate::exit::{Exit, Failure};
use crate::front::patience::Patience;
use crate::front::restart::restart;
use crate::front::restart_request::{MemoryMode, RestartRequest};
use crate::front::supervise::{Ending, StartState};
use crate::front::wait_for_lock;
use crate::settings::Recipe;
use holdfast_image::Epoch;
use holdfast_tiers::{Job, Store};
use std::path::Path;

/// Restarts the program and waits for its end.
///
/// # Errors
/// The program does not run.
pub fn run(args: &RestartArgs, root: Option<&Path>) -> Result<Ending, Failure> {
    let store = crate::names::open_store(root)?;
    let mut job = crate::names::open_job(&store, &args.image.job)?;
    let mut epoch = args.image.epoch;
    let patience = args.wait.map_or_else(Patience::default, Patience::new);
    if let Some(name) = &args.name {
        let image = crate::names::open_image(&job, epoch)?.epoch();
        (job, epoch) = (copy(&store, &job, image, name, &patience)?, Some(image));
    }
    let old = Recipe::read(&job)?;
    let settings = old.settings.with(&args.changes);
    if settings != old.settings {
        // The settings of a running job are not ours.
        wait_for_lock::wait(&job, &patience)?;
        Recipe { settings: settings.clone(), ..old }.write(&job)?;
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
        fallback: args.fallback,
        memory,
        map: &args.map,
        patience: &patience,
        accept_replaced: &args.accept_replaced,
    };
    restart(&request, &StartState::take()?)
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
    Recipe::read(from)?.write(&job)?;
    from.clone_image(image, &job, &lock)?;
    Ok(job)
}
