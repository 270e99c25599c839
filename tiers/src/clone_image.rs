//! An image in a second job: many copies of a program can be restarted from one image, each a job of its own.
//!
//! Called by `holdfast restart --name`. Segments that lie in files are linked, not copied: they are never written
//! again, and each job may remove its own names. Invariants: as for a commit, the manifest comes last, when all
//! segments are durable; what a crash leaves is removed by `clean`.

use crate::StoreError;
use crate::files;
use crate::job::{Job, JobLock};
use crate::names;
use crate::stack::{CopyError, Pace, Way, copy_version};
use holdfast_image::Epoch;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

/// As fast as it goes.
struct Unhurried;

impl Pace for Unhurried {
    fn begin(&self, _total: u64) {}
    fn pass(&self, _bytes: u64) -> bool {
        true
    }
}

impl Job {
    /// Puts an image of this job into another one of the same user that has none, under the same number.
    ///
    /// # Errors
    /// There is no such image, it is damaged, or `to` has images.
    pub fn clone_image(&self, epoch: Epoch, to: &Job, lock: &JobLock) -> Result<(), StoreError> {
        to.check_lock(lock)?;
        if !to.images()?.is_empty() {
            return Err(StoreError::misuse(to.dir(), "it has images of its own"));
        }
        // Opened: a job that deletes its image meanwhile does not make it a broken one here.
        let image = self.open_image(epoch)?;
        for (entry, segment) in image.tables.entries.iter().zip(&image.tables.segments) {
            let path = to.dir().join(names::segment_name(entry.epoch, entry.number));
            // What is there is of an attempt that did not end.
            files::remove(&path)?;
            if let Some(there) = segment.mappable().filter(|there| there.begin == 0) {
                link(there.file, &path);
            }
        }
        copy_version(self.folder(), to.folder(), epoch, None, Way::Down, &Unhurried).map(drop).map_err(
            |error| match error {
                CopyError::Source(error) | CopyError::Target(error) => error.into(),
                error => StoreError::misuse(to.dir(), error.to_string()),
            },
        )
    }
}

/// A second name for an open file, as far as that is possible: else it is copied.
fn link(file: &File, to: &Path) {
    // open(2), O_TMPFILE: a link to a descriptor, without privileges.
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    let _ = linkat(AT_FDCWD, from.as_str(), AT_FDCWD, to, AtFlags::AT_SYMLINK_FOLLOW);
}
