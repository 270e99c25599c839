//! `holdfast sync`: what an agent has left is copied to the job's tiers now.
//!
//! A live agent is asked to try again at once what has failed; without one this process does the copying, with the
//! job's lock held.

use super::copies::{self, TierRow, no_tiers};
use crate::args::SyncArgs;
use crate::cascade;
use crate::client::Agent;
use crate::exit::{Exit, Failure};
use crate::job_lock;
use crate::report;
use crate::settings::{Recipe, Settings};
use crate::tiers;
use holdfast_image::control::{Reply, Request, TierStatus};
use holdfast_tiers::stack::{JobTiers, TierSpec, TiersRecord};
use holdfast_tiers::{Job, Store};
use indicatif::ProgressBar;
use std::path::Path;
use std::thread;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(100);

/// Copies what is missing.
///
/// # Errors
/// A tier has not got all that it is to get.
pub fn run(args: &SyncArgs, root: Option<&Path>) -> Result<(), Failure> {
    holdfast_tiers::set_fault_hook(holdfast_sys::fault::point);
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, &args.job)?;
    job_lock::alone_or_by_agent(
        &job,
        |_| alone(&job, args, &store),
        |agent| by_agent(&job, agent, args, &store),
    )
}

/// The tiers that are to get something.
fn tiers(job: &Job, args: &SyncArgs, recipe: &Recipe, store: &Store) -> Result<JobTiers, Failure> {
    let tiers = args.copy.tiers(Some(recipe), store)?;
    // Memory may have gone with the host: then there is nothing to be done.
    if tiers.move_down() || job.memory().is_some() { Ok(tiers) } else { Err(no_tiers(&args.job)) }
}

/// Without an agent; the caller holds the lock.
fn alone(job: &Job, args: &SyncArgs, store: &Store) -> Result<(), Failure> {
    let mut recipe = Recipe::read(job)?;
    let tiers = tiers(job, args, &recipe, store)?;
    if recipe.id.is_empty() || recipe.settings.tiers.is_empty() {
        // A job that had none has them from now on: a restart looks there.
        recipe.id = tiers::id_for(&Settings { tiers: tiers.clone(), ..Settings::default() }, recipe.id)?;
        if recipe.settings.tiers.is_empty() {
            recipe.settings.tiers.clone_from(&tiers);
        }
        recipe.write(job)?;
    }
    recipe.settings.tiers = tiers;
    let before = TiersRecord::read(job);
    let Some(cascade) = cascade::start(job, &recipe, None, None)? else {
        return copies::tell(&args.copy, "sync", (job.name(), &[]), None);
    };
    let result = follow(args, || {
        // In this order: what ends between the two looks is in the second one.
        let settled = !cascade.is_busy();
        Ok((cascade::status(Some(&cascade)), settled))
    });
    drop(cascade);
    if !args.copy.tier.is_empty() {
        // What is known of the others is still known.
        TiersRecord::read(job).with(before).write(job).map_err(|error| {
            Failure::system(format_args!("writing tiers.json in {}", job.dir().display()), &error)
        })?;
    }
    result
}

fn by_agent(job: &Job, agent: &Agent, args: &SyncArgs, store: &Store) -> Result<(), Failure> {
    let recipe = Recipe::read(job)?;
    let tiers = tiers(job, args, &recipe, store)?;
    match agent.ask(&Request::Sync)? {
        Reply::Ok => {}
        Reply::Error { message } => return Err(Failure::new(Exit::Internal, message)),
        other => {
            return Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {other:?}")));
        }
    }
    let named: Vec<String> = tiers.all().map(TierSpec::name).collect();
    let is_meant = |state: &TierStatus| args.copy.tier.is_empty() || named.contains(&state.tier);
    let known = agent.status()?.tiers;
    let unknown = |spec: &&TierSpec| !known.iter().any(|state| state.tier == spec.name());
    if let Some(spec) = args.copy.tier.iter().find(unknown) {
        let message = format!(
            "job {} runs without tier {}; end it, and name the tier with --tier at `restart`",
            args.job,
            spec.name()
        );
        return Err(Failure::new(Exit::Refused, message));
    }
    follow(args, || {
        let mut status = agent.status()?;
        status.tiers.retain(is_meant);
        let settled = !status.tiers_busy;
        Ok((status.tiers, settled))
    })
}

/// Shows what is under way until all is there, or nothing moves any more.
fn follow(
    args: &SyncArgs,
    mut look: impl FnMut() -> Result<(Vec<TierStatus>, bool), Failure>,
) -> Result<(), Failure> {
    let bar = report::progress("", 0);
    loop {
        let (states, settled) = look()?;
        show(&bar, &states);
        // What is wrong with an image where it is now is over after a repair, not by waiting.
        let waits =
            |state: &TierStatus| state.again_ms.is_some() || (state.error.is_none() && state.waiting > 0);
        if settled && !(args.copy.wait && states.iter().any(waits)) {
            bar.finish_and_clear();
            return finish(args, states);
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

fn finish(args: &SyncArgs, states: Vec<TierStatus>) -> Result<(), Failure> {
    let job = &args.job;
    let failed = |state: &TierStatus| {
        let (tier, waiting, error) = (&state.tier, state.waiting, state.error.as_ref()?);
        Some(match waiting {
            0 => format!("tier {tier}: {error}"),
            _ => format!("tier {tier}: {waiting} images of job {job} wait: {error}"),
        })
    };
    let lines: Vec<String> = states.iter().filter_map(failed).collect();
    let row = |state: TierStatus| {
        let TierStatus { tier, newest, waiting, error, read_only, .. } = state;
        TierRow { tier, newest, waiting, error, read_only }
    };
    let rows: Vec<TierRow> = states.into_iter().map(row).collect();
    copies::tell(&args.copy, "sync", (job, &rows), None)?;
    if lines.is_empty() { Ok(()) } else { Err(Failure::new(Exit::CannotCreate, lines.join("\n"))) }
}
