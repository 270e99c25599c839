//! An image that is not whole in the store: which one it is, and its manifest, from the job's lower tiers.
//!
//! Used by the commands `restart` and `run --resume`, and by the front. Tiers are asked by a process of its own
//! (`holdfast fetch`), for a front creates processes and must have no threads. Pages are not copied to the store: the
//! agent reads them where they are.

use crate::exit::{Exit, Failure};
use crate::helper::binary;
use crate::same_run;
use crate::settings::Recipe;
use holdfast_image::Epoch;
use holdfast_tiers::stack::{TierSpec, TiersRecord};
use holdfast_tiers::{Image, ImageInfo, Job, Store};
use std::io;
use std::process::{Command, ExitStatus, Stdio};

/// See the head of the file.
pub struct Located {
    /// Number of the image.
    pub epoch: Epoch,
    manifest: Vec<u8>,
}

impl Located {
    /// The image, without pages.
    ///
    /// # Errors
    /// It is damaged.
    pub fn open(&self, job: &Job) -> Result<Image, Failure> {
        Ok(Image::of_manifest(job.folder(), self.epoch, &self.manifest)?)
    }
}

/// Whether the image that is needed has to be looked for below: it is not whole in the store, or a tier is known to
/// have a newer one than the newest there.
pub fn is_needed(store: &Store, job: &str, epoch: Option<Epoch>) -> bool {
    let Ok(job) = store.job(job) else { return true };
    let images = job.images().unwrap_or_default();
    let recipe = Recipe::read(&job).unwrap_or_default();
    let is_asked = |image: &&ImageInfo| match epoch {
        Some(epoch) => epoch == image.epoch,
        None => same_run::is_of(image, &recipe),
    };
    let newest = images.iter().rev().find(is_asked);
    let Some(newest) = newest.filter(|image| image.complete) else { return true };
    let record = TiersRecord::read(&job);
    epoch.is_none() && record.lower().flat_map(|tier| &tier.versions).any(|&there| there > newest.epoch.0)
}

/// One that is of the job's last run. A tier may have a newer one that is of an earlier run.
pub fn of_last_run(store: &Store, job: &str, located: Located) -> Option<Located> {
    let job = store.job(job).ok()?;
    let (recipe, image) = (Recipe::read(&job).ok()?, located.open(&job).ok()?);
    same_run::is_of(&image.info(), &recipe).then_some(located)
}

/// Asks the tiers for an image.
///
/// # Errors
/// The exit code of the process that has asked them, and has told the user why.
pub fn locate(
    store: &Store,
    job: &str,
    epoch: Option<Epoch>,
    given: &[TierSpec],
) -> Result<Located, Failure> {
    let mut command = fetch(store, job, epoch, given)?;
    let asked = command.arg("--manifest").stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let asked = asked.map_err(|error| Failure::system("starting holdfast fetch", &error))?;
    succeeded(asked.status)?;
    let number = asked.stdout.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    match (number, asked.stdout.get(8..)) {
        (Some(number), Some(manifest)) => Ok(Located { epoch: Epoch(number), manifest: manifest.to_vec() }),
        _ => Err(Failure::new(Exit::Internal, "holdfast fetch has told no image")),
    }
}

/// Copies an image into the store.
///
/// # Errors
/// As [`locate`].
pub fn copy(store: &Store, job: &str, epoch: Option<Epoch>, given: &[TierSpec]) -> Result<(), Failure> {
    // Standard output is the program's.
    let status = fetch(store, job, epoch, given)?.stdout(io::stderr()).status();
    succeeded(status.map_err(|error| Failure::system("starting holdfast fetch", &error))?)
}

fn fetch(store: &Store, job: &str, epoch: Option<Epoch>, given: &[TierSpec]) -> Result<Command, Failure> {
    let mut command = Command::new(binary()?);
    command.arg("--store").arg(store.root()).arg("fetch").env_remove("LD_PRELOAD");
    for tier in given {
        command.args(["--tier", &tier.to_string()]);
    }
    command.arg(epoch.map_or_else(|| job.to_owned(), |epoch| format!("{job}@{epoch}")));
    Ok(command)
}

fn succeeded(status: ExitStatus) -> Result<(), Failure> {
    let codes =
        [Exit::Usage, Exit::BadImage, Exit::NotFound, Exit::Refused, Exit::CannotCreate, Exit::Permission];
    let code = codes.into_iter().find(|code| status.code() == Some(*code as i32)).unwrap_or(Exit::Internal);
    if status.success() { Ok(()) } else { Err(Failure::new(code, "")) }
}
