//! `holdfast sync`: what an agent has left is copied to the job's tiers now.
//!
//! A live agent is asked to try again at once what has failed; without one this process does the copying, with the
//! job's lock held.

use crate::agent::tiers as cascade;
use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::report;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::control::{Reply, Request, TierStatus};
use holdfast_tiers::{Job, StoreError};
use indicatif::ProgressBar;
use std::path::Path;
use std::thread;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(100);

/// Copies what is missing. `wait`: what fails at a tier is tried until it succeeds; else once.
///
/// # Errors
/// A tier has not got all that it is to get.
pub fn run(name: &str, wait: bool, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, name)?;
    let mut recipe = Recipe::read(&job)?;
    if recipe.settings.tiers.is_empty() {
        recipe.settings.tiers = tiers::chosen(&[], false, &store)?;
    }
    // Memory may have gone with the host: then there is nothing to be done.
    if !recipe.settings.tiers.move_down() && job.memory().is_none() {
        return Err(Failure::new(
            Exit::Usage,
            format!("job {name} has no tiers; name some with --tier at `restart`"),
        ));
    }
    match job.lock() {
        Ok(_lock) => alone(&job, &mut recipe, wait),
        Err(StoreError::Locked { .. }) => match by_agent(&job, wait) {
            // It has ended meanwhile.
            Err(failure) if failure.exit != Exit::CannotCreate && !job.is_live() => {
                let _lock = job.lock()?;
                alone(&job, &mut recipe, wait)
            }
            result => result,
        },
        Err(error) => Err(error.into()),
    }
}

/// Without an agent; the caller holds the lock.
fn alone(job: &Job, recipe: &mut Recipe, wait: bool) -> Result<(), Failure> {
    if recipe.id.is_empty() {
        recipe.id = tiers::new_id()?;
        recipe.write(job)?;
    }
    let Some(cascade) = cascade::start(job, recipe, None, None)? else { return Ok(()) };
    follow(job.name(), wait, || Ok((cascade::status(Some(&cascade)), !cascade.is_busy())))
}

fn by_agent(job: &Job, wait: bool) -> Result<(), Failure> {
    let agent = Agent::connect(job)?;
    match agent.ask(&Request::Sync)? {
        Reply::Ok => {}
        Reply::Error { message } => return Err(Failure::new(Exit::Internal, message)),
        other => {
            return Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {other:?}")));
        }
    }
    follow(job.name(), wait, || {
        let status = agent.status()?;
        let settled = !status.tiers_busy;
        Ok((status.tiers, settled))
    })
}

/// Shows what is under way until all is there, or nothing moves any more.
fn follow(
    job: &str,
    wait: bool,
    mut look: impl FnMut() -> Result<(Vec<TierStatus>, bool), Failure>,
) -> Result<(), Failure> {
    let bar = report::progress("", 0);
    loop {
        let (states, settled) = look()?;
        show(&bar, &states);
        // What is wrong with an image where it is now is over after a repair, not by waiting.
        let waits =
            |state: &TierStatus| state.again_ms.is_some() || (state.error.is_none() && state.waiting > 0);
        if settled && !(wait && states.iter().any(waits)) {
            bar.finish_and_clear();
            return finish(job, &states);
        }
        thread::sleep(PAUSE);
    }
}

fn show(bar: &ProgressBar, states: &[TierStatus]) {
    if let Some((state, copy)) = states.iter().find_map(|state| Some((state, state.copying.as_ref()?))) {
        bar.set_message(format!("image {} to {}", copy.epoch, state.tier));
        bar.set_length(copy.total);
        bar.set_position(copy.done);
    }
}

fn finish(job: &str, states: &[TierStatus]) -> Result<(), Failure> {
    let mut lines = Vec::new();
    for state in states {
        let (tier, waiting) = (&state.tier, state.waiting);
        match (&state.error, state.newest) {
            (Some(error), _) if waiting == 0 => lines.push(format!("tier {tier}: {error}")),
            (Some(error), _) => {
                lines.push(format!("tier {tier}: {waiting} images of job {job} wait: {error}"))
            }
            (None, _) if state.read_only.is_some() => {
                let why = state.read_only.as_deref().unwrap_or_default();
                report::result(&format!("tier {tier} is read-only: {why}\n"))?;
            }
            (None, Some(newest)) => report::result(&format!("tier {tier}: newest image {newest}\n"))?,
            (None, None) => report::result(&format!("tier {tier}: no image\n"))?,
        }
    }
    if lines.is_empty() { Ok(()) } else { Err(Failure::new(Exit::CannotCreate, lines.join("\n"))) }
}
