//! Which image a job goes on from, where its lower tiers may have it: one that is not whole in the store, or one newer
//! than the store's, which another host has made.
//!
//! Used by the commands `restart` and `run --resume`, and by the front. Tiers are asked by a process of its own
//! (`holdfast fetch --manifest`), for a front creates processes and must have no threads. Pages are not copied to the
//! store: the agent reads them where they are. Invariant: what cannot be looked at, here or on a tier, is told; it is
//! never taken for "no image".

use crate::exit::{Exit, Failure};
use crate::helper::binary;
use crate::report;
use crate::same_run;
use crate::settings::Recipe;
use holdfast_image::Epoch;
use holdfast_tiers::stack::{OtherImage, TierSpec};
use holdfast_tiers::{Image, ImageInfo, Job, Store};
use serde::{Deserialize, Serialize};
use std::io;
use std::process::{Command, ExitStatus, Stdio};

/// An image that is on a tier.
pub struct Located {
    /// Its number.
    pub epoch: Epoch,
    /// The tier.
    pub tier: String,
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

/// A tier of which it is not known what it has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Silent {
    /// The tier.
    pub tier: String,
    /// Why not.
    pub why: String,
    /// The exit code that fits that.
    pub exit: Exit,
    /// The newest image that it had when it was seen last.
    pub known: Option<u64>,
    /// It is a folder that is not there, and that is not known to have been: the first image makes it.
    pub is_new: bool,
}

/// A tier that has another image under the number of the store's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Other {
    /// The tier.
    pub tier: String,
    /// What it has.
    pub image: OtherImage,
}

/// What the tiers were found to have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// The image that is asked for, and its tier.
    pub image: Option<(Epoch, String)>,
    /// The run of that image came to its end after it.
    pub is_over: bool,
    /// A newer image of another run, and its tier.
    pub of_another_run: Option<(Epoch, String)>,
    /// Tiers that have told nothing.
    pub silent: Vec<Silent>,
    /// Tiers whose image is not the store's of that number.
    pub others: Vec<Other>,
}

/// The image that was found, and what else there is to be told.
pub struct Look {
    /// The image.
    pub located: Option<Located>,
    /// What else.
    pub told: Told,
    /// The newest image of the run that is whole in the store.
    pub own: Option<Epoch>,
}

/// The image that is asked for, as far as it is whole in the store: that of this number, or the newest of the last run.
///
/// # Errors
/// The store cannot be looked at.
pub fn in_store(job: &Job, recipe: &Recipe, epoch: Option<Epoch>) -> Result<Option<Epoch>, Failure> {
    let is_asked = |image: &&ImageInfo| match epoch {
        Some(epoch) => epoch == image.epoch,
        None => same_run::is_of(image, recipe),
    };
    let images = job.images()?;
    Ok(images.iter().rev().filter(is_asked).find(|image| image.complete).map(|image| image.epoch))
}

/// Asks the tiers for the image of this number, or for the newest one of the last run that is newer than `own`, the
/// newest of the store.
///
/// # Errors
/// Of the process that asks them, which has told the user why. What a tier fails at is none.
pub fn look(
    store: &Store,
    job: &str,
    epoch: Option<Epoch>,
    own: Option<Epoch>,
    given: &[TierSpec],
) -> Result<Look, Failure> {
    let mut command = fetch(store, job, epoch, given)?;
    if let Some(own) = own {
        command.args(["--newer-than", &own.to_string()]);
    }
    let asked = command.arg("--manifest").stdout(Stdio::piped()).stderr(Stdio::inherit()).output();
    let asked = asked.map_err(|error| Failure::system("starting holdfast fetch", &error))?;
    succeeded(asked.status)?;
    let Some((told, manifest)) = understood(&asked.stdout) else {
        return Err(Failure::new(Exit::Internal, "holdfast fetch has told nothing"));
    };
    let located = |(epoch, tier)| Located { epoch, tier, manifest: manifest.to_vec() };
    Ok(Look { located: told.image.clone().map(located), told, own })
}

fn understood(bytes: &[u8]) -> Option<(Told, &[u8])> {
    let len = usize::try_from(u64::from_le_bytes(*bytes.first_chunk::<8>()?)).ok()?;
    let (head, manifest) = bytes[8..].split_at_checked(len)?;
    Some((serde_json::from_slice(head).ok()?, manifest))
}

impl Look {
    /// The image that the program goes on from.
    pub fn best(&self) -> Option<Epoch> {
        self.located.as_ref().map(|located| located.epoch).or(self.own)
    }

    /// Says what the user would not expect: that a tier has a newer image than the store, or may have, or that it has
    /// another one.
    pub fn say(&self, job: &str) {
        let Some(best) = self.best() else { return };
        if let (Some(Located { epoch, tier, .. }), Some(own)) = (&self.located, self.own) {
            report::note(&format!(
                "tier {tier} has image {epoch}, which is newer than image {own} of the store"
            ));
        }
        if let Some((epoch, tier)) = self.told.of_another_run.as_ref().filter(|(epoch, _)| *epoch > best) {
            report::note(&format!(
                "tier {tier} has image {epoch}, of another run of job {job}; `holdfast restart {job}@{epoch}` goes on \
                 from it"
            ));
        }
        for silent in self.told.silent.iter().filter(|silent| !silent.is_new || self.own.is_none()) {
            report::warn(&format!("{}; the program goes on from image {best}", silent.text(Some(best))));
        }
        for Other { tier, image } in &self.told.others {
            report::warn(&format!("tier {tier}: {image}"));
        }
    }

    /// Why it is not known which image the program goes on from.
    pub fn unknown(&self, then: &str) -> Failure {
        let lines: Vec<String> = self.told.silent.iter().map(|silent| silent.text(self.best())).collect();
        let exit = self.told.silent.first().map_or(Exit::Internal, |silent| silent.exit);
        Failure::new(exit, format!("{}{then}", lines.join("\n")))
    }
}

impl Silent {
    /// `best`: what others have.
    fn text(&self, best: Option<Epoch>) -> String {
        let has = match (self.known, best) {
            (Some(known), _) => {
                format!("it had image {known} when it was seen last, and may have a newer one")
            }
            (None, Some(_)) => "it may have a newer image".to_owned(),
            (None, None) => "it may have an image".to_owned(),
        };
        format!("tier {}: {}; {has}", self.tier, self.why)
    }
}

/// Copies an image into the store.
///
/// # Errors
/// The exit code of the process that copies it, and has told the user why not.
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
