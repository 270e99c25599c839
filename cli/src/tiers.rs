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
use holdfast_image::record::ProcessRecord;
use holdfast_tiers::layer::OnDemand;
use holdfast_tiers::stack::{JobTiers, Place, TierSpec, TiersRecord};
use holdfast_tiers::tier::address::Address;
use holdfast_tiers::tier::{Tier, TierError, address};
use holdfast_tiers::{Job, Record, Store, TierFolder};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

/// The tiers of a job that is started, or read back, now.
///
/// # Errors
/// A tier is given twice, or a configuration file is wrong.
pub fn chosen(given: &[TierSpec], none: bool, store: &Store) -> Result<JobTiers, Failure> {
    let tiers = match given {
        _ if none => Vec::new(),
        [] => config::tiers(store)?,
        given => given.to_vec(),
    };
    JobTiers::of(&tiers).map_err(|why| Failure::new(Exit::Usage, why))
}

/// The job with the memory that its settings ask for, and what there is to be said of it.
pub fn with_memory(job: Job, settings: &Settings) -> (Job, Option<String>) {
    let Some(Place::Memory(folder)) = settings.tiers.memory().map(|spec| &spec.place) else {
        return (job, None);
    };
    if job.is_in_memory() {
        return (job, Some("the store is in memory itself: tier memory has no effect".into()));
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let bases = match folder {
        Some(folder) => vec![folder.clone()],
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
    let why = why.map(|error| {
        format!(
            "tier memory is not available ({error}): images go directly to the \
        store"
        )
    });
    (job, why)
}

/// Opens a tier below the store.
///
/// # Errors
/// Of the tier; it is none of those.
pub fn open(spec: &TierSpec) -> Result<Arc<dyn Tier>, TierError> {
    let why = match &spec.place {
        Place::At(address) => return address::open(address).map(Arc::from),
        Place::Store => "this is the store: `holdfast list JOB` shows what it has",
        Place::Memory(_) => "this is memory above the store: `holdfast list JOB` shows what it has",
        Place::Log(_) => Place::NO_IMAGES,
    };
    Err(TierError::Settings { object: spec.name(), why: why.to_owned() })
}

/// Opens a tier of a job, of which it may be known that images of it are there: then a folder that is not there is no
/// tier without images.
///
/// # Errors
/// As [`open`].
pub fn open_of_job(spec: &TierSpec, record: &TiersRecord) -> Result<Arc<dyn Tier>, TierError> {
    let tier = open(spec)?;
    let known = record.of(&spec.name()).and_then(|known| known.versions.last().copied());
    match known.filter(|_| lacks_its_folder(spec)) {
        None => Ok(tier),
        Some(image) => Err(TierError::Settings {
            object: spec.name(),
            why: format!(
                "the folder is not there, and had image {image} of the job; mount its file system, or make the folder \
                 if the images are gone"
            ),
        }),
    }
}

/// Whether a tier is a folder that the first write would make.
pub fn lacks_its_folder(spec: &TierSpec) -> bool {
    let Place::At(Address::Folder(path)) = &spec.place else { return false };
    matches!(std::fs::symlink_metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

/// The job's folders on its lower tiers, the fastest first. A tier is opened when something is read there.
pub fn folders(job: &str, recipe: &Recipe) -> Vec<TierFolder> {
    let folder = folder(job, &recipe.id);
    let tier = |spec: &TierSpec| {
        let Place::At(address) = spec.place.clone() else { return None };
        let tier = OnDemand::new(&spec.name(), move || address::open(&address));
        TierFolder::new(Arc::new(tier), &folder)
    };
    match recipe.id.as_str() {
        "" => Vec::new(),
        _ => recipe.settings.tiers.lower().iter().filter_map(tier).collect(),
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

/// The host that an image was made on.
pub fn host_of(record: &Record) -> Option<String> {
    let record = ProcessRecord::decode(record.kind, &record.bytes).ok()?;
    Some(record.host.hostname).filter(|host| !host.is_empty())
}

/// What a listing says of the tiers of an image in the store: that, and those below that have it.
pub fn names_of(job: &Job, record: &TiersRecord, epoch: Epoch) -> Vec<String> {
    let (memory, folder) = job.places(epoch);
    let own = [(Place::Memory(None), memory), (Place::Store, folder)];
    let own = own.into_iter().filter_map(|(place, is)| is.then(|| place.to_string()));
    let lower = record.lower().filter(|tier| tier.versions.contains(&epoch.0));
    own.chain(lower.map(|tier| tier.tier.clone())).collect()
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
}
