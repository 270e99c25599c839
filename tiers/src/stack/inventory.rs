//! What a job has on a tier.
//!
//! ```text
//! FOLDER/  manifest-000004  segment-000004-000  job-000004
//! ```
//! `job-N` is `job.json` as it was when version N was copied, for hosts that have nothing of the job. Names are those
//! of the first tier. Called by the copier, by the cascade and by whatever lists a tier.
//! Invariant: what is read has at most the length that it may have, whatever the tier says.

use crate::format::FormatError;
use crate::format::manifest::{MAX_LEN, Manifest, SegmentEntry};
use crate::job::MAX_RECIPE_LEN;
use crate::names::{self, FileName};
use crate::tier::{BlobName, Tier, TierError, read_whole};
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};

/// Where the versions of a job are on a tier.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The tier.
    pub tier: &'a dyn Tier,
    /// The folder in it.
    pub folder: &'a str,
}

/// What is there.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inventory {
    /// Numbers of the versions: of their manifests.
    pub versions: BTreeSet<u64>,
    /// Segments with their lengths, by epoch and number.
    pub segments: BTreeMap<(u64, u32), u64>,
    /// Versions that have a `job-N`.
    pub recipes: BTreeSet<u64>,
}

pub(crate) fn recipe_name(epoch: Epoch) -> String {
    format!("job-{:06}", epoch.0)
}

/// The version of a `job-N`; only names as [`recipe_name`] writes them.
fn recipe_of(file: &str) -> Option<u64> {
    let number = file.strip_prefix("job-")?.parse().ok()?;
    (recipe_name(Epoch(number)) == file).then_some(number)
}

impl Place<'_> {
    /// The name of a file in the folder.
    pub(crate) fn name(&self, file: &str) -> Result<BlobName, TierError> {
        BlobName::within(self.folder, file).ok_or_else(|| TierError::Settings {
            object: format!("{}: {}/{file}", self.tier.info().name, self.folder),
            why: "no tier takes such a name; give the job another one with --name".into(),
        })
    }

    /// Lists the folder.
    ///
    /// # Errors
    /// Of the tier.
    pub fn inventory(&self) -> Result<Inventory, TierError> {
        let mut found = Inventory::default();
        for entry in self.tier.list(self.folder)?.blobs {
            match names::parse_name(entry.name.file()) {
                Some(FileName::Manifest(epoch)) => {
                    found.versions.insert(epoch.0);
                }
                Some(FileName::Segment(epoch, number)) => {
                    found.segments.insert((epoch.0, number), entry.len);
                }
                None => {
                    found.recipes.extend(recipe_of(entry.name.file()));
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
        self.read(&names::manifest_name(epoch), MAX_LEN)
    }

    /// `job.json` as it was when this version was copied.
    ///
    /// # Errors
    /// Of the tier; it is not there.
    pub fn recipe(&self, epoch: Epoch) -> Result<Vec<u8>, TierError> {
        self.read(&recipe_name(epoch), MAX_RECIPE_LEN)
    }

    /// The segments that a version names.
    ///
    /// # Errors
    /// Of the tier; the manifest is damaged, or another version's.
    pub(crate) fn segments(&self, epoch: Epoch) -> Result<Vec<SegmentEntry>, TierError> {
        let bytes = self.manifest(epoch)?;
        let named = || self.name(&names::manifest_name(epoch));
        let manifest = Manifest::open(&bytes).map_err(|error| damaged(&named(), error))?;
        check_number(&named(), manifest.epoch, epoch)?;
        manifest.segments().map_err(|error| damaged(&named(), error))
    }

    fn read(&self, file: &str, most: u64) -> Result<Vec<u8>, TierError> {
        let name = self.name(file)?;
        let blob = self.tier.open(&name)?;
        read_whole(&*blob, most, || self.object(&name))
    }

    /// How a blob is called in messages.
    pub(crate) fn object(&self, name: &BlobName) -> String {
        format!("{}/{name}", self.tier.info().name.trim_end_matches('/'))
    }
}

pub(crate) fn check_number(
    name: &Result<BlobName, TierError>,
    found: Epoch,
    epoch: Epoch,
) -> Result<(), TierError> {
    let what = format!("this is the manifest of image {found}");
    if found == epoch { Ok(()) } else { Err(TierError::Damaged { object: object(name), offset: 32, what }) }
}

pub(crate) fn damaged(name: &Result<BlobName, TierError>, error: FormatError) -> TierError {
    let (offset, what) = match error {
        FormatError::Bad { offset, what } => (offset, what),
        FormatError::Version { found } => (8, format!("format version {found} is newer than this holdfast")),
    };
    TierError::Damaged { object: object(name), offset, what }
}

fn object(name: &Result<BlobName, TierError>) -> String {
    name.as_ref().map(BlobName::to_string).unwrap_or_default()
}
