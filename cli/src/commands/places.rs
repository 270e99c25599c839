//! Where a job's images are: the store, memory above it, and the job's folder on each tier that a command names.
//!
//! Used by `verify`, `prune` and `export`. Invariants: memory comes first, then the store, then the tiers as the job
//! has them, the fastest first; a tier that cannot be asked is told, and left out.

use crate::exit::{Exit, Failure};
use crate::report;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_tiers::stack::{JobTiers, Place, TierSpec, TiersRecord};
use holdfast_tiers::tier::TierError;
use holdfast_tiers::{Job, Store, TierFolder};
use std::sync::Arc;

/// Which tiers a command is about.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Which {
    /// On this tier; `local` is the store, `memory` the tier above it (may be given more than once) [default: both]
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

/// How memory above the store counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Above {
    /// As a tier of its own.
    Apart,
    /// As a part of the store: what goes from one goes from both.
    Together,
}

/// The job's folder on one tier.
pub struct JobPlace {
    /// The tier with its rules.
    pub spec: TierSpec,
    /// The folder. That of memory is read on in the store, where images in memory have segments too.
    pub folder: TierFolder,
}

impl JobPlace {
    /// Whether both are one place.
    pub fn is_same(&self, other: &JobPlace) -> bool {
        self.spec.place == other.spec.place && self.folder.folder() == other.folder.folder()
    }

    /// How it is called in reports.
    pub fn name(&self) -> String {
        self.spec.name()
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
            report::warn(&format!("tier {}: {error}", spec.name()));
        }
        self.failed.first().map(|(_, error)| crate::exit::of_tier(error))
    }
}

/// The tiers of a job; of one that is not here those of the configuration.
///
/// # Errors
/// The job's file or a configuration file is wrong.
pub fn of_job(store: &Store, job: Option<&Job>) -> Result<JobTiers, Failure> {
    let own = match job {
        Some(job) if job.has_recipe()? => Recipe::read(job)?.settings.tiers,
        _ => JobTiers::default(),
    };
    if own.is_empty() { tiers::chosen(&[], false, store) } else { Ok(own) }
}

/// The places of a job on these tiers. A tier on which the job has several folders, from several hosts, gives several.
pub fn of(job_name: &str, job: Option<&Job>, specs: &[TierSpec], above: Above) -> Places {
    // A job of this store has one folder there, or none; of one that is not here all folders of its name count.
    let id = job.map(|job| Recipe::read(job).map(|recipe| recipe.id).unwrap_or_default());
    let record = job.map(TiersRecord::read).unwrap_or_default();
    let mut places = Places::default();
    for spec in specs {
        let place = |folder: TierFolder| JobPlace { spec: spec.clone(), folder };
        match (&spec.place, above) {
            (Place::Memory(_), Above::Apart) => {
                let there = job.filter(|job| job.memory().is_some());
                places.found.extend(there.map(|job| place(job.folder().clone())));
            }
            (Place::Memory(_), Above::Together) => {}
            (Place::Store, Above::Apart) => {
                places.found.extend(job.map(|job| place(job.store_folder().clone())));
            }
            (Place::Store, Above::Together) => {
                places.found.extend(job.map(|job| place(job.folder().clone())));
            }
            // Of a log it is said that it has none.
            (Place::At(_) | Place::Log(_), _) => match folders(spec, (job_name, id.as_deref()), &record) {
                Ok(found) => places.found.extend(found),
                Err(error) => places.failed.push((spec.clone(), error)),
            },
        }
    }
    places
}

fn folders(
    spec: &TierSpec,
    (job, id): (&str, Option<&str>),
    record: &TiersRecord,
) -> Result<Vec<JobPlace>, TierError> {
    let tier = tiers::open_of_job(spec, record)?;
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

/// All tiers that there are: a job may have memory that its settings do not name any more.
pub fn all(tiers: &JobTiers, job: Option<&Job>) -> Vec<TierSpec> {
    let left = job.filter(|job| job.memory().is_some() && tiers.memory().is_none());
    let left = left.map(|_| TierSpec::new(Place::Memory(None)));
    left.into_iter().chain(tiers.all().cloned()).collect()
}

/// The tiers that a command line means.
pub fn chosen(which: &Which, tiers: &JobTiers, job: Option<&Job>) -> Vec<TierSpec> {
    let all = all(tiers, job);
    if which.all_tiers {
        return all;
    }
    if which.tier.is_empty() {
        return all.into_iter().filter(|spec| !matches!(spec.place, Place::At(_))).collect();
    }
    // The rules are those of the job, unless others are given; memory has one place.
    let is_that = |known: &TierSpec, spec: &TierSpec| {
        known.place == spec.place || (spec.place == Place::Memory(None) && known.is_memory())
    };
    let known = |spec: &TierSpec| all.iter().find(|known| is_that(known, spec)).cloned();
    which.tier.iter().map(|spec| known(spec).unwrap_or_else(|| spec.clone())).collect()
}
