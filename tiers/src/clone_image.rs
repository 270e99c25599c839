//! An image in a second job: many copies of a program can be restarted from one image, each a job of its own.
//!
//! Called by `holdfast restart --name`. The files are linked, not copied: they are never written again, and each job
//! may delete its own names. Invariants: as for a commit, the manifest comes last, when all segments are durable;
//! what a crash leaves is removed by `clean`.

use crate::StoreError;
use crate::files;
use crate::format::manifest::MAX_LEN;
use crate::job::{Job, JobLock};
use crate::memory_first::MemoryFirst;
use crate::names;
use holdfast_image::Epoch;
use std::fs;
use std::io;
use std::path::Path;

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
        for entry in &image.tables.entries {
            let name = names::segment_name(entry.epoch, entry.number);
            let here = [Some(self.dir()), self.memory().map(MemoryFirst::root)].into_iter().flatten();
            let here = here.map(|folder| folder.join(&name)).find(|path| path.exists());
            link(&here.unwrap_or_else(|| self.dir().join(&name)), &to.dir().join(&name))?;
        }
        let name = names::manifest_name(epoch);
        match self.folder().read(&name, MAX_LEN)? {
            Some(bytes) => to.folder().publish(&name, &bytes),
            None => Err(StoreError::NoImage { path: self.dir().into(), epoch }),
        }
    }
}

/// A second name, or a copy where the file system has no links. What is there is of an attempt that did not end.
fn link(from: &Path, to: &Path) -> Result<(), StoreError> {
    files::remove(to)?;
    match fs::hard_link(from, to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let len = fs::copy(from, to).map_err(StoreError::write("copy", to, 0))?;
            let durable = fs::File::open(to).and_then(|file| file.sync_all());
            durable.map_err(StoreError::write("sync", to, len))
        }
        result => result.map_err(StoreError::io("link", from)),
    }
}
