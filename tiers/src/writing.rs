//! Which images are being written under a lock: their files, and the segments of their parents, are left alone by
//! [`crate::Job::clean`] and [`crate::Job::remove_image`].
//!
//! Held by the job's lock; an image is in it as long as its [`crate::ImageWriter`] lives.

use holdfast_image::Epoch;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Segments by epoch and number.
pub(crate) type SegmentNames = BTreeSet<(Epoch, u32)>;

/// See the head of the file. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct WritingImages(Arc<Mutex<BTreeMap<Epoch, SegmentNames>>>);

impl WritingImages {
    /// An image is being written from now on, on top of the segments `inherited`. `None`: it is already.
    pub(crate) fn begin(&self, epoch: Epoch, inherited: SegmentNames) -> Option<Writing> {
        let mut images = self.0.lock();
        if images.contains_key(&epoch) {
            return None;
        }
        images.insert(epoch, inherited);
        drop(images);
        Some(Writing { images: self.clone(), epoch })
    }

    /// All of them, with the segments of their parents.
    pub(crate) fn all(&self) -> BTreeMap<Epoch, SegmentNames> {
        self.0.lock().clone()
    }
}

/// An image that is being written, until it is dropped.
#[derive(Debug)]
pub(crate) struct Writing {
    images: WritingImages,
    epoch: Epoch,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.images.0.lock().remove(&self.epoch);
    }
}
