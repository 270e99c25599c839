//! `holdfast restart`: the program goes on from an image.

use crate::args::RestartArgs;
use crate::exit::Failure;
use crate::front::free;
use crate::front::restart::{Memory, Request, restart};
use crate::front::supervise::{Ending, StartState};
use crate::settings::Recipe;
use std::path::Path;

/// Restarts the program and waits for its end.
///
/// # Errors
/// The program does not run.
pub fn run(args: &RestartArgs, root: Option<&Path>) -> Result<Ending, Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, &args.image.job)?;
    let old = Recipe::read(&job)?;
    let settings = old.settings.with(&args.changes);
    if settings != old.settings {
        // The settings of a running job are not ours.
        free::wait(&job)?;
        Recipe { settings: settings.clone(), ..old }.write(&job)?;
    }
    let memory = match (args.lazy, args.eager) {
        (true, _) => Memory::Lazy,
        (_, true) => Memory::Eager,
        _ => Memory::Auto,
    };
    let request = Request {
        store: &store,
        job: &job,
        settings: &settings,
        epoch: args.image.epoch,
        fallback: args.fallback,
        memory,
    };
    restart(&request, &StartState::take()?)
}
