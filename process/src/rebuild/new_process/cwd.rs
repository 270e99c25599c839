//! The current directories of the new processes. One that was removed is made for a moment, entered, and removed
//! again, with the directories above it that are gone too: relative names then fail as before, and `..` leads where
//! it led.
//!
//! Those of all processes that were removed are made by the first one ([`RemovedDirs`]): one at a time.
//!
//! Called by `child`, in the new processes. How it fails: a directory cannot be made or entered; what was made is
//! removed.

use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::{self, Opener, Place};
use holdfast_image::bytes::Name;
use holdfast_image::record::ProcessRecord;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Enters the directory that a process was in.
///
/// # Errors
/// See the head.
pub fn enter(record: &ProcessRecord) -> Result<(), RebuildError> {
    let opener = Opener::of(record);
    match record.cwd_deleted {
        None => opener.enter(&record.cwd, record.cwd_inode.as_ref()),
        Some(mode) => {
            let _acting = opener.acting()?;
            enter_removed(record.cwd.as_path(), mode).map_err(|error| {
                let what = format!(
                    "the removed working folder of the program cannot be made for the moment of its restart \
                     ({}); make the folder above it writable",
                    paths::explain(&error)
                );
                RebuildError::file(&record.cwd, what)
            })
        }
    }
}

fn enter_removed(path: &Path, mode: u32) -> io::Result<()> {
    let mut made = TemporaryDirs::default();
    if let Some(parent) = path.parent() {
        made.with_parents(parent)?;
    }
    let folder = made.beside(path)?;
    paths::enter(folder.as_fd())?;
    folder.set_permissions(Permissions::from_mode(mode))
}

/// Removed directories that processes are in, by the names that they had.
#[derive(Debug, Default)]
pub struct RemovedDirs(Vec<(Name, OwnedFd)>);

impl RemovedDirs {
    /// Those of some processes; leaves the caller in one of them. `raise` moves a descriptor to where it can stay.
    ///
    /// # Errors
    /// See the head.
    pub fn make<'a>(
        records: impl Iterator<Item = &'a ProcessRecord>,
        raise: impl Fn(OwnedFd) -> Result<OwnedFd, RebuildError>,
    ) -> Result<RemovedDirs, RebuildError> {
        let mut all = RemovedDirs::default();
        for record in records.filter(|record| record.cwd_deleted.is_some()) {
            if all.find(&record.cwd).is_none() {
                enter(record)?;
                let folder = File::options().read(true).custom_flags(libc::O_PATH).open(".");
                let folder = folder.map_err(RebuildError::io("opening a working folder"))?;
                all.0.push((record.cwd.clone(), raise(folder.into())?));
            }
        }
        Ok(all)
    }

    fn find(&self, name: &Name) -> Option<&OwnedFd> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, folder)| folder)
    }

    /// Enters the directory that a process was in, which may be one of these.
    ///
    /// # Errors
    /// See the head.
    pub fn enter(&self, record: &ProcessRecord) -> Result<(), RebuildError> {
        match record.cwd_deleted.and_then(|_| self.find(&record.cwd)) {
            Some(folder) => {
                paths::enter(folder.as_fd()).map_err(RebuildError::io("entering a removed folder"))
            }
            None => enter(record),
        }
    }
}

/// Directories that exist only until this is dropped, outermost first: each by the folder that it is in.
#[derive(Debug, Default)]
struct TemporaryDirs(Vec<Place>);

impl TemporaryDirs {
    /// Makes one; it is open then.
    fn make(&mut self, path: &Path) -> io::Result<File> {
        let place = Place::of(&Name::from(path))?;
        let made = place.make_folder()?;
        self.0.push(place);
        Ok(made)
    }

    fn with_parents(&mut self, path: &Path) -> io::Result<()> {
        match paths::open_folder(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other.map(drop),
        }
        if let Some(parent) = path.parent() {
            self.with_parents(parent)?;
        }
        self.make(path).map(drop)
    }

    /// Makes the directory; under another name beside it where the name was taken since.
    fn beside(&mut self, path: &Path) -> io::Result<File> {
        let mut path_made = path.to_owned();
        for number in 0_u32.. {
            match self.make(&path_made) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
                    name.push(format!(".{number}"));
                    path_made.set_file_name(name);
                }
                made => return made,
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }
}

impl Drop for TemporaryDirs {
    fn drop(&mut self) {
        for place in self.0.iter().rev() {
            // It may have been filled meanwhile: then it stays.
            let _ = place.remove_folder();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_made_goes_again_and_a_taken_name_is_left_alone() {
        let base = std::env::temp_dir().join(format!("holdfast-folder-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let taken = base.join("taken");
        fs::create_dir(&taken).unwrap();
        {
            let mut made = TemporaryDirs::default();
            made.with_parents(&base.join("a/b")).unwrap();
            made.beside(&base.join("a/b/c")).unwrap();
            made.beside(&taken).unwrap();
            assert!(base.join("a/b/c").is_dir() && base.join("taken.0").is_dir());
        }
        assert!(taken.is_dir() && !base.join("a").exists() && !base.join("taken.0").exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
