//! What a job has on a tier.
//!
//! ```text
//! FOLDER/  manifest-000004  segment-000004-000  job-000004
//! ```
//! `job-N` is `job.json` as it was when version N was copied, for hosts that have nothing of the job; an empty `end-N`
//! says that its run came to its end after version N. Names are those of the first tier. Called by the copier, by the
//! cascade and by whatever lists a tier.
//! Invariant: what is read has at most the length that it may have, whatever the tier says.

use crate::files::MAX_RECIPE_LEN;
use crate::format::FormatError;
use crate::format::manifest::{MAX_LEN, Manifest};
use crate::names::{self, FileName};
use crate::tier::{Blob, TierError, read_whole};
use crate::tier_folder::TierFolder;
use crate::unpacked;
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

/// The greatest number that is believed: no job has come so far, and a new image gets a greater one than all that are
/// on tiers, so that a tier that lists the last one there is could keep a job from images for ever.
const MOST: u64 = 1 << 40;

/// How a manifest was listed: its length, and when it was finished. One that has another was put there anew.
pub(crate) type Stamp = (u64, Option<SystemTime>);

/// What is there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inventory {
    /// Numbers of the versions: of their manifests.
    pub versions: BTreeSet<u64>,
    /// Segments with their lengths, by epoch and number.
    pub segments: BTreeMap<(u64, u32), u64>,
    /// Segments to which nothing was written for a day.
    pub abandoned: BTreeSet<(u64, u32)>,
    /// Versions that have a `job-N`.
    pub recipes: BTreeSet<u64>,
    /// Versions after which their run came to its end.
    pub ends: BTreeSet<u64>,
    /// Whether there are sets of a gang's redundancy.
    pub(crate) has_sets: bool,
    /// How the manifests were listed.
    pub(crate) stamps: BTreeMap<u64, Stamp>,
}

impl Inventory {
    /// Whether the run of the newest version came to its end: nothing is left to go on with.
    pub fn is_over(&self) -> bool {
        self.versions.last().is_some_and(|newest| self.ends.contains(newest))
    }

    /// The greatest number that anything there has, also of a version that is not, or not yet, complete.
    pub fn greatest(&self) -> u64 {
        let segment = self.segments.last_key_value().map_or(0, |((epoch, _), _)| *epoch);
        self.versions.last().copied().unwrap_or(0).max(segment)
    }
}

impl TierFolder {
    /// Lists the folder.
    ///
    /// # Errors
    /// Of the tier.
    pub fn inventory(&self) -> Result<Inventory, TierError> {
        let mut found = Inventory::default();
        for entry in self.tier().list(self.folder())?.blobs {
            match names::parse_name(entry.name.file()) {
                Some(name) if name.epoch().0 > MOST => {}
                Some(FileName::Manifest(epoch)) => {
                    found.versions.insert(epoch.0);
                    found.stamps.insert(epoch.0, (entry.len, entry.modified));
                }
                Some(FileName::Segment(epoch, number)) => {
                    found.segments.insert((epoch.0, number), entry.len);
                    found.abandoned.extend(entry.is_abandoned().then_some((epoch.0, number)));
                }
                None => {
                    found.has_sets |= names::of_set(entry.name.file()).is_some();
                    found.ends.extend(names::end_of(entry.name.file()));
                    found
                        .recipes
                        .extend(names::recipe_of(entry.name.file()).filter(|number| *number <= MOST));
                }
            }
        }
        Ok(found)
    }

    /// The bytes of a version's manifest, not checked.
    ///
    /// # Errors
    /// Of the tier; it is longer than a manifest can be.
    pub fn manifest(&self, epoch: Epoch) -> Result<Vec<u8>, TierError> {
        self.whole(&names::manifest_name(epoch), MAX_LEN)
    }

    /// `job.json` as it was when this version was copied.
    ///
    /// # Errors
    /// Of the tier; it is not there.
    pub fn recipe(&self, epoch: Epoch) -> Result<Vec<u8>, TierError> {
        self.whole(&names::recipe_name(epoch), MAX_RECIPE_LEN)
    }

    /// Opens a blob that must be there; a segment as it was before it was packed.
    pub(crate) fn open(&self, file: &str) -> Result<Box<dyn Blob>, TierError> {
        match names::parse_name(file) {
            Some(FileName::Segment(..)) => unpacked::open(&**self.tier(), &self.blob(file)?, u64::MAX),
            _ => self.tier().open(&self.blob(file)?),
        }
    }

    /// A blob that must be there.
    pub(crate) fn whole(&self, file: &str, most: u64) -> Result<Vec<u8>, TierError> {
        let blob = self.open(file)?;
        read_whole(&*blob, most, || self.object(file))
    }
}

/// A manifest, if it is that of this version; `object`: how messages call it.
pub(crate) fn open_manifest<'a>(
    object: &str,
    epoch: Epoch,
    bytes: &'a [u8],
) -> Result<Manifest<'a>, TierError> {
    let manifest = Manifest::open(bytes).map_err(|error| damaged(object, error))?;
    if manifest.epoch == epoch {
        return Ok(manifest);
    }
    let what = format!("this is the manifest of image {}", manifest.epoch);
    Err(TierError::Damaged { object: object.to_owned(), offset: 32, what })
}

pub(crate) fn damaged(object: &str, error: FormatError) -> TierError {
    let (offset, what) = error.place();
    TierError::Damaged { object: object.to_owned(), offset, what }
}
