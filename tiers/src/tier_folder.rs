//! A folder of a tier: where the manifests and segments of one job are, on one tier.
//!
//! Called by everything in this crate that touches a blob: the writer with the job's first tier, an open image with all
//! tiers that may have it, fastest first. Invariant: names of blobs are made here and in [`crate::names`] alone.
//! Fails by: an error that names the blob by its path or address.

use crate::StoreError;
use crate::names;
use crate::tier::{BlobName, BlobWriter, Tier, TierError};
use holdfast_image::Epoch;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// See the head of the file.
#[derive(Clone)]
pub struct TierFolder {
    tier: Arc<dyn Tier>,
    folder: String,
}

impl fmt::Debug for TierFolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.tier.info().name, self.folder)
    }
}

impl TierFolder {
    /// The folder `folder` of a tier ("" is the uppermost); `None`: it is no name that a tier knows.
    pub fn new(tier: Arc<dyn Tier>, folder: &str) -> Option<TierFolder> {
        // A longest name of ours must fit in.
        BlobName::within(folder, &names::segment_name(Epoch(u64::MAX), u32::MAX))?;
        Some(TierFolder { tier, folder: folder.to_owned() })
    }

    /// The same; a name that no tier knows is an error.
    ///
    /// # Errors
    /// See above.
    pub fn of(tier: Arc<dyn Tier>, folder: &str) -> Result<TierFolder, TierError> {
        let object = format!("{}: {folder}", tier.info().name);
        TierFolder::new(tier, folder).ok_or_else(|| bad_name(object))
    }

    /// The tier.
    pub fn tier(&self) -> &Arc<dyn Tier> {
        &self.tier
    }

    /// Name of the folder.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// The blob of the file name `file`.
    ///
    /// # Errors
    /// No tier knows such a name.
    pub fn blob(&self, file: &str) -> Result<BlobName, TierError> {
        BlobName::within(&self.folder, file).ok_or_else(|| bad_name(self.object(file)))
    }

    /// How a file is called in messages of tiers.
    pub(crate) fn object(&self, file: &str) -> String {
        self.address(file).display().to_string()
    }

    /// Path or address of a file, for messages.
    pub fn address(&self, file: &str) -> PathBuf {
        let (root, folder) = (&self.tier.info().name, &self.folder);
        let root = root.trim_end_matches('/');
        PathBuf::from(if folder.is_empty() {
            format!("{root}/{file}")
        } else {
            format!("{root}/{folder}/{file}")
        })
    }

    /// Path or address of the folder itself, for messages.
    pub(crate) fn shown(&self) -> PathBuf {
        self.address("").components().collect()
    }

    pub(crate) fn create(&self, file: &str) -> Result<Box<dyn BlobWriter>, StoreError> {
        Ok(self.tier.create(&self.blob(file)?, None)?)
    }

    pub(crate) fn publish(&self, file: &str, bytes: &[u8]) -> Result<(), StoreError> {
        Ok(self.tier.publish(&self.blob(file)?, bytes)?)
    }

    pub(crate) fn remove(&self, file: &str) -> Result<(), StoreError> {
        Ok(self.tier.remove(&self.blob(file)?)?)
    }

    /// Removes what writers have left unfinished: none may be at work.
    pub(crate) fn clean(&self) -> Result<u64, StoreError> {
        Ok(self.tier.clean(&self.folder)?)
    }
}

fn bad_name(object: String) -> TierError {
    TierError::Settings {
        object,
        why: "no tier takes such a name; give the job another one with --name".into(),
    }
}
