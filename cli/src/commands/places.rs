//! Where a job's images are: the store, and the job's folder on each tier that a command names.
//!
//! Used by `verify`, `prune` and `export`. Invariant: the store comes first, the tiers after it as the job has them,
//! the fastest first; a tier that cannot be asked is told, and left out.

use crate::exit::{Exit, Failure};
use crate::report;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_tiers::stack::TierSpec;
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Job, Store, TierFolder};
use std::sync::Arc;

/// The word for the store among tiers.
pub const LOCAL: &str = "local";

/// Which tiers a command is about.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Which {
    /// On this tier; `local` is the store (may be given more than once) [default: local]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "all_tiers")]
    pub tier: Vec<TierSpec>,
    /// On the store and all tiers of the job
    #[arg(long)]
    pub all_tiers: bool,
}

impl Which {
    /// Whether tiers were named.
    pub fn is_given(&self) -> bool {
        self.all_tiers || !self.tier.is_empty()
    }
}

/// The job's folder on one tier.
pub struct JobPlace {
    /// The tier with its rules; without an address of its own: the store.
    pub spec: TierSpec,
    /// The folder.
    pub folder: TierFolder,
}

impl JobPlace {
    /// The store.
    pub fn local(job: &Job, spec: TierSpec) -> JobPlace {
        JobPlace { spec, folder: job.folder().clone() }
    }

    /// Whether both are one place.
    pub fn is_same(&self, other: &JobPlace) -> bool {
        self.spec.address == other.spec.address && self.folder.folder() == other.folder.folder()
    }

    /// How it is called in reports.
    pub fn name(&self) -> &str {
        &self.spec.address
    }
}

/// The places, and the tiers that could not be asked.
#[derive(Default)]
pub struct Places {
    /// The store first.
    pub found: Vec<JobPlace>,
    /// Why a tier is not among them.
    pub failed: Vec<(TierSpec, TierError)>,
}

impl Places {
    /// Says which tiers could not be asked; the exit code of the first.
    pub fn tell(&self) -> Option<Exit> {
        for (spec, error) in &self.failed {
            report::warn(&format!("tier {}: {error}", spec.address));
        }
        self.failed.first().map(|(_, error)| crate::exit::of_tier(error))
    }
}

/// The specs of the store and of all tiers of a job; of one that is not here those of the configuration.
///
/// # Errors
/// The job's file or a configuration file is wrong.
pub fn specs(store: &Store, job: Option<&Job>) -> Result<Vec<TierSpec>, Failure> {
    let own = match job {
        Some(job) if job.dir().join("job.json").exists() => Recipe::read(job)?.settings.tiers,
        _ => Vec::new(),
    };
    let mut all = if own.is_empty() { tiers::chosen(&[], false, store)? } else { own };
    let local = match all.iter().position(TierSpec::is_local) {
        Some(at) => all.remove(at),
        None => TierSpec::new(LOCAL).map_err(|why| Failure::new(Exit::Usage, why))?,
    };
    all.insert(0, local);
    Ok(all)
}

/// The places of a job on these tiers. A tier on which the job has several folders, from several hosts, gives several.
pub fn of(job_name: &str, job: Option<&Job>, specs: &[TierSpec]) -> Places {
    // A job of this store has one folder there, or none; of one that is not here all folders of its name count.
    let id = job.map(|job| Recipe::read(job).map(|recipe| recipe.id).unwrap_or_default());
    let mut places = Places::default();
    for spec in specs {
        if spec.is_local() {
            places.found.extend(job.map(|job| JobPlace::local(job, spec.clone())));
            continue;
        }
        match folders(spec, job_name, id.as_deref()) {
            Ok(found) => places.found.extend(found),
            Err(error) => places.failed.push((spec.clone(), error)),
        }
    }
    places
}

fn folders(spec: &TierSpec, job: &str, id: Option<&str>) -> Result<Vec<JobPlace>, TierError> {
    let tier = tiers::open(spec)?;
    let ids = match id {
        Some("") => Vec::new(),
        Some(id) => vec![id.to_owned()],
        None => tier.list(job)?.folders,
    };
    let place = |id: &String| {
        let folder = TierFolder::of(Arc::clone(&tier), &tiers::folder(job, id))?;
        Ok(JobPlace { spec: spec.clone(), folder })
    };
    ids.iter().map(place).collect()
}

/// The tiers that a command line means.
///
/// # Errors
/// As [`specs`].
pub fn chosen(which: &Which, store: &Store, job: Option<&Job>) -> Result<Vec<TierSpec>, Failure> {
    let all = specs(store, job)?;
    if which.all_tiers {
        return Ok(all);
    }
    if which.tier.is_empty() {
        return Ok(all.into_iter().take(1).collect());
    }
    // The rules are those of the job, unless others are given.
    let known = |spec: &TierSpec| all.iter().find(|known| known.address == spec.address).cloned();
    Ok(which.tier.iter().map(|spec| known(spec).unwrap_or_else(|| spec.clone())).collect())
}
