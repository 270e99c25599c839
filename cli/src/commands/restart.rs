//! `holdfast restart`: the program goes on from an image.

use crate::args::RestartArgs;
use crate::exit::Failure;
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
    let settings = Recipe::read(&job)?.settings;
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
