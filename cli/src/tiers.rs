//! The tiers of a job: which they are, how they are opened, and where the job lies in them.
//!
//! Used by the commands and the agent. Invariants: what was given on the command line comes before the configuration of
//! the store, and that before the user's; each gives the whole list, so that no rule of one is mixed with another;
//! every job that was ever started has a folder of its own in a tier (`JOB/ID`), so that two jobs of one name, from
//! wherever, never meet there.

use crate::config;
use crate::exit::{Exit, Failure};
use crate::settings::{Recipe, Settings};
use holdfast_image::Epoch;
use holdfast_tiers::layer::OnDemand;
use holdfast_tiers::stack::{LocalRules, TierSpec, TiersRecord};
use holdfast_tiers::tier::{Tier, TierError, address};
use holdfast_tiers::{Job, Store, TierFolder};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// What listings call the store.
pub const LOCAL: &str = "local";

/// The tiers of a job that is started, or read back, now.
///
/// # Errors
/// A tier is given twice, or a configuration file is wrong.
pub fn chosen(given: &[TierSpec], none: bool, store: &Store) -> Result<Vec<TierSpec>, Failure> {
    let tiers = match given {
        _ if none => Vec::new(),
        [] => config::tiers(store)?,
        given => given.to_vec(),
    };
    let usage = |what: String| Err(Failure::new(Exit::Usage, what));
    if let Some(at) = tiers.iter().rposition(TierSpec::is_memory).filter(|at| *at > 0) {
        return usage(format!(
            "tier {} has to be named first, and once: it is the fastest",
            tiers[at].address
        ));
    }
    let mut seen = BTreeSet::new();
    match tiers.iter().find(|tier| !seen.insert(tier.address.as_str())) {
        None => Ok(tiers),
        Some(tier) => usage(format!("tier {} is given twice", tier.address)),
    }
}

/// Those below the store.
pub fn lower(tiers: &[TierSpec]) -> Vec<TierSpec> {
    tiers.iter().filter(|tier| !tier.is_local() && !tier.is_memory()).cloned().collect()
}

/// Whether images move by themselves after a commit.
pub fn move_down(tiers: &[TierSpec]) -> bool {
    tiers.iter().any(|tier| !tier.is_local())
}

/// The one above the store, if there is one.
pub fn memory(tiers: &[TierSpec]) -> Option<&TierSpec> {
    tiers.iter().find(|tier| tier.is_memory())
}

/// The job with the memory that its settings ask for, and what there is to be said of it.
pub fn with_memory(job: Job, settings: &Settings) -> (Job, Option<String>) {
    let Some(spec) = memory(&settings.tiers) else { return (job, None) };
    if job.is_in_memory() {
        return (job, Some("the store is in memory itself: tier memory changes nothing".into()));
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let bases = match spec.memory_folder() {
        Some(folder) => vec![folder.to_owned()],
        None => std::iter::once(PathBuf::from("/dev/shm")).chain(own).collect(),
    };
    let mut why = None;
    for base in bases {
        match job.with_memory(&base) {
            Ok(job) => return (job, None),
            Err(error) => {
                why.get_or_insert(error);
            }
        }
    }
    let why = why.map(|error| format!("tier memory cannot be had ({error}): images go to the store at once"));
    (job, why)
}

/// The rules of the first.
pub fn local_rules(settings: &Settings) -> LocalRules {
    let given = settings.tiers.iter().find(|tier| tier.is_local()).map(|tier| tier.rules);
    let keep = settings.keep.and_then(|keep| u64::try_from(keep).ok());
    LocalRules {
        keep: given.and_then(|rules| rules.keep).or(keep),
        max_bytes: given.and_then(|rules| rules.max_bytes),
    }
}

/// Opens a tier.
///
/// # Errors
/// Of the tier.
pub fn open(spec: &TierSpec) -> Result<Arc<dyn Tier>, TierError> {
    let tier = address::open(&spec.address)?;
    // In the agent's log; `list --tier` says it too.
    if let Some(why) = &tier.info().single_writer {
        tracing::info!("tier {}: for a single writer: {why}", spec.address);
    }
    Ok(Arc::from(tier))
}

/// The job's folders on its lower tiers, the fastest first. A tier is opened when something is read there.
pub fn folders(job: &str, recipe: &Recipe) -> Vec<TierFolder> {
    let folder = folder(job, &recipe.id);
    let tier = |spec: TierSpec| {
        let address = spec.address.clone();
        let tier = OnDemand::new(&spec.address, move || address::open(&address));
        TierFolder::new(Arc::new(tier), &folder)
    };
    match recipe.id.as_str() {
        "" => Vec::new(),
        _ => lower(&recipe.settings.tiers).into_iter().filter_map(tier).collect(),
    }
}

/// The folder of a job in a tier.
pub fn folder(job: &str, id: &str) -> String {
    format!("{job}/{id}")
}

/// A number that no other job has.
///
/// # Errors
/// /dev/urandom cannot be read.
pub fn new_id() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Failure::system("reading /dev/urandom", &error))?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

/// The number of a job with these settings, which had `old` (may be empty): those without tiers need none.
///
/// # Errors
/// As [`new_id`].
pub fn id_for(settings: &Settings, old: String) -> Result<String, Failure> {
    if settings.tiers.is_empty() || !old.is_empty() { Ok(old) } else { new_id() }
}

/// A version of a job on a tier.
#[derive(Clone, Debug)]
pub struct Found {
    /// Folder of the job there.
    pub folder: TierFolder,
    /// Its number.
    pub epoch: Epoch,
}

impl Found {
    /// The number of the job that it is of.
    pub fn id(&self) -> &str {
        self.folder.folder().rsplit('/').next().unwrap_or_default()
    }
}

/// All versions of a job on a tier, ascending; of the job with this id only, if it is given.
///
/// # Errors
/// Of the tier.
pub fn versions(tier: &Arc<dyn Tier>, job: &str, id: Option<&str>) -> Result<Vec<Found>, TierError> {
    let mut found = Vec::new();
    for name in tier.list(job)?.folders {
        if id.is_none_or(|id| id == name) {
            let folder = TierFolder::of(Arc::clone(tier), &folder(job, &name))?;
            let versions = folder.inventory()?.versions.into_iter();
            found.extend(versions.map(|epoch| Found { folder: folder.clone(), epoch: Epoch(epoch) }));
        }
    }
    found.sort_by_key(|found| found.epoch);
    Ok(found)
}

/// What a listing says of the tiers of an image in the store: that, and those below that have it.
pub fn names_of(job: &Job, record: &TiersRecord, epoch: Epoch) -> Vec<String> {
    let (memory, folder) = job.places(epoch);
    let own = [("memory", memory), (LOCAL, folder)].into_iter().filter_map(|(name, is)| is.then_some(name));
    let lower = record.tiers.iter().filter(|tier| tier.tier != LOCAL && tier.versions.contains(&epoch.0));
    own.chain(lower.map(|tier| tier.tier.as_str())).map(str::to_owned).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_long_and_differ() {
        let (one, other) = (new_id().unwrap(), new_id().unwrap());
        assert!(one.len() == 16 && one != other && one.bytes().all(|c| c.is_ascii_hexdigit()));
        assert_eq!(folder("sim", "00ff"), "sim/00ff");
    }

    #[test]
    fn the_first_tier_has_rules_of_its_own() {
        let tiers = vec!["local,max=1G".parse().unwrap(), "dir=/pfs,keep=9".parse().unwrap()];
        let settings = Settings { keep: Some(3), tiers, ..Settings::default() };
        assert_eq!(local_rules(&settings), LocalRules { keep: Some(3), max_bytes: Some(1 << 30) });
        assert_eq!(lower(&settings.tiers).len(), 1);
    }
}
