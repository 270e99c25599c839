//! Images of one job that become durable together: several versions of objects that wait for the store at once.
//!
//! Called by the server of objects, with the job's lock held: [`crate::Job::begin_in`] and
//! [`crate::ImageWriter::commit`] for each, then [`ImageGroup::end`]. Invariants: no image of it is there before the
//! end, and then all are, in their order; one builds on the other as images do. Fails by: none of them is there.

use crate::StoreError;
use crate::tier::Group;
use crate::tier_folder::TierFolder;
use std::path::Path;
use std::sync::Arc;

/// See the head of the file. Dropped without [`ImageGroup::end`], nothing of it stays.
pub struct ImageGroup {
    tier: Arc<Group>,
    folder: TierFolder,
}

impl ImageGroup {
    pub(crate) fn new(folder: &Path) -> Result<ImageGroup, StoreError> {
        let tier = Arc::new(Group::new(folder));
        Ok(ImageGroup { folder: TierFolder::of(Arc::clone(&tier) as _, "")?, tier })
    }

    /// Where its images are written.
    pub(crate) fn folder(&self) -> &TierFolder {
        &self.folder
    }

    /// All images of the group that were committed are there, durably.
    ///
    /// # Errors
    /// None of them is.
    pub fn end(self) -> Result<(), StoreError> {
        Ok(self.tier.end()?)
    }
}

impl Drop for ImageGroup {
    fn drop(&mut self) {
        self.tier.abandon();
    }
}
