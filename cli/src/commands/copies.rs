//! What `sync` and `fetch` have in common: options, tiers, and how it is told what those have afterwards.
//!
//! Used by both. Invariants: a job without tiers is a wrong command line to both; what a tier says for an error is told
//! in words and in JSON, whatever the others did.

use super::places::{self, Which};
use crate::exit::{Exit, Failure};
use crate::report;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_tiers::stack::{JobTiers, TierSpec};
use holdfast_tiers::{Job, Store, StoreError};
use serde::Serialize;

/// Options of both.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CopyArgs {
    /// Only this tier (may be given more than once) [default: those of the job, else of the configuration files]
    #[arg(long, value_name = "SPEC")]
    pub tier: Vec<TierSpec>,
    /// Try again what fails at a tier, until it succeeds
    #[arg(long)]
    pub wait: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl CopyArgs {
    /// The tiers that are meant, with the rules that the job has for them.
    ///
    /// # Errors
    /// A tier is given twice, or a configuration file is wrong.
    pub fn tiers(&self, recipe: Option<&Recipe>, store: &Store) -> Result<JobTiers, Failure> {
        let own = recipe.map(|recipe| recipe.settings.tiers.clone()).unwrap_or_default();
        if self.tier.is_empty() {
            return if own.is_empty() { tiers::chosen(&[], false, store) } else { Ok(own) };
        }
        let which = Which { tier: self.tier.clone(), all_tiers: false };
        tiers::chosen(&places::chosen(&which, &own, None), false, store)
    }
}

/// A job whose images go nowhere.
pub fn no_tiers(job: &str) -> Failure {
    Failure::new(Exit::Usage, format!("job {job} has no tiers; name one with --tier"))
}

/// The job, if the store has it, and how it was started, if that is known.
///
/// # Errors
/// Either is there and cannot be looked at.
pub fn here(store: &Store, name: &str) -> Result<Option<(Job, Option<Recipe>)>, Failure> {
    let job = match store.job(name) {
        Err(StoreError::NotAJob { .. }) => return Ok(None),
        job => job?,
    };
    let recipe = if job.has_recipe()? { Some(Recipe::read(&job)?) } else { None };
    Ok(Some((job, recipe)))
}

/// What a tier has afterwards.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TierRow {
    /// Its address.
    pub tier: String,
    /// The newest image there.
    pub newest: Option<Epoch>,
    /// Images that it is to get, and has not got.
    pub waiting: u64,
    /// What failed there.
    pub error: Option<String>,
    /// Why nothing is written there.
    pub read_only: Option<String>,
}

impl TierRow {
    /// What there is to be told, if nothing failed.
    fn line(&self) -> String {
        let tier = &self.tier;
        match (&self.read_only, self.newest) {
            (Some(why), _) => format!("tier {tier} is read-only: {why}\n"),
            (None, Some(newest)) => format!("tier {tier}: newest image {newest}\n"),
            (None, None) => format!("tier {tier}: no image\n"),
        }
    }
}

/// An image that is in the store now.
#[derive(Clone, Debug, Serialize)]
pub struct Fetched {
    /// The tier that gave it.
    pub from: String,
    /// Its number.
    pub image: Epoch,
    /// Bytes that were copied.
    pub bytes: u64,
}

/// Tells what tiers have. `fetched`: of `fetch`, what it has copied.
///
/// # Errors
/// Output cannot be written.
pub fn tell(
    args: &CopyArgs,
    kind: &str,
    (job, rows): (&str, &[TierRow]),
    fetched: Option<&Fetched>,
) -> Result<(), Failure> {
    if args.json {
        let fields = serde_json::json!({ "job": job, "tiers": rows, "fetched": fetched });
        return report::print_json(kind, fields);
    }
    let lines = rows.iter().filter(|row| row.error.is_none()).map(TierRow::line);
    let fetched = fetched.map(|fetched| {
        let Fetched { from, image, bytes } = fetched;
        format!("image {image} of job {job} was fetched from {from}, {}\n", report::size(*bytes))
    });
    report::result(&lines.chain(fetched).collect::<String>())
}
