//! The current directories of the new processes. One that was removed is made for a moment, entered, and removed
//! again, with the directories above it that are gone too: relative names then fail as before, and `..` leads where
//! it led.
//!
//! Those of all processes that were removed are made by the first one ([`RemovedDirs`]): one at a time.
//!
//! Called by `child`, in the new processes. How it fails: a directory cannot be made or entered; what was made is
//! removed.

use crate::rebuild::error::RebuildError;
use holdfast_image::bytes::Name;
use holdfast_image::record::ProcessRecord;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Enters the directory that a process was in.
///
/// # Errors
/// See the head.
pub fn enter(record: &ProcessRecord) -> io::Result<()> {
    let path = record.cwd.as_path();
    let Some(mode) = record.cwd_deleted else { return std::env::set_current_dir(path) };
    let mut made = TemporaryDirs::default();
    if let Some(parent) = path.parent() {
        made.with_parents(parent)?;
    }
    let path_made = made.beside(path)?;
    std::env::set_current_dir(&path_made)?;
    fs::set_permissions(&path_made, Permissions::from_mode(mode))
}

/// Why it could not be entered, and what to do.
pub fn failure(record: &ProcessRecord, error: &io::Error) -> RebuildError {
    let what = match record.cwd_deleted {
        None => format!("the working folder of the program cannot be entered ({error}); make it anew"),
        Some(_) => format!(
            "the removed working folder of the program cannot be made for the moment of its restart \
             ({error}); make the \
             folder above it writable"
        ),
    };
    RebuildError::file(&record.cwd, what)
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
                let folder = enter(record)
                    .and_then(|()| File::options().read(true).custom_flags(libc::O_PATH).open("."));
                let folder = folder.map_err(|error| failure(record, &error))?;
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
    pub fn enter(&self, record: &ProcessRecord) -> io::Result<()> {
        match record.cwd_deleted.and_then(|_| self.find(&record.cwd)) {
            Some(folder) => std::env::set_current_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())),
            None => enter(record),
        }
    }
}

/// Directories that exist only until this is dropped, outermost first.
#[derive(Debug, Default)]
struct TemporaryDirs(Vec<PathBuf>);

impl TemporaryDirs {
    fn make(&mut self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)?;
        self.0.push(path.to_owned());
        Ok(())
    }

    fn with_parents(&mut self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.with_parents(parent)?;
        }
        self.make(path)
    }

    /// Makes the directory; under another name beside it where the name was taken since.
    fn beside(&mut self, path: &Path) -> io::Result<PathBuf> {
        let mut path_made = path.to_owned();
        for number in 0_u32.. {
            match self.make(&path_made) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
                    name.push(format!(".{number}"));
                    path_made.set_file_name(name);
                }
                made => return made.map(|()| path_made),
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }
}

impl Drop for TemporaryDirs {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // Somebody else may have put something into it meanwhile: then it stays.
            let _ = fs::remove_dir(path);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_goes_again_and_a_taken_name_is_left_alone() {
        let base = std::env::temp_dir().join(format!("holdfast-folder-{}", std::process::id()));
        fs::create_dir(&base).unwrap();
        let taken = base.join("taken");
        fs::create_dir(&taken).unwrap();
        {
            let mut made = TemporaryDirs::default();
            made.with_parents(&base.join("a/b")).unwrap();
            assert_eq!(made.beside(&base.join("a/b/c")).unwrap(), base.join("a/b/c"));
            assert_eq!(made.beside(&taken).unwrap(), base.join("taken.0"));
            assert!(base.join("a/b/c").is_dir() && base.join("taken.0").is_dir());
        }
        assert!(taken.is_dir() && !base.join("a").exists() && !base.join("taken.0").exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
