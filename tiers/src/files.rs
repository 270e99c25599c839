//! Folders of a store, and the files in a job's folder that are no blobs of a tier: its recipe, what a crash left of
//! it.
//!
//! ```text
//! STORE/JOB/  job.json  lock  agent.sock  agent.log  saved/  .tmp-*      (and the blobs of the local tier)
//! ```
//! Files are 0600 and folders 0700 whatever the umask says: images hold the memory of a program.

use crate::StoreError;
use crate::tier::posix;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Beginning of the name of every file that is not finished.
pub(crate) const TEMP: &str = ".tmp-";

/// Longest `job.json` that is read, bytes.
pub(crate) const MAX_RECIPE_LEN: u64 = 16 << 20;

/// Makes a folder with mode 0700 if it is not there, and checks it.
pub(crate) fn make_folder(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o700))
            .map_err(StoreError::io("change the mode of", path))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(StoreError::write("create", path, 0)(error)),
    }
    check_folder(path)
}

/// Refuses a folder that another user owns or may write to.
pub(crate) fn check_folder(path: &Path) -> Result<(), StoreError> {
    let meta = fs::metadata(path).map_err(StoreError::io("look at", path))?;
    let why = match meta.is_dir() {
        true => posix::others_may_write(&meta),
        false => Some("this is not a folder".into()),
    };
    why.map_or(Ok(()), |why| Err(StoreError::Permissions { path: path.into(), why }))
}

/// Reads a whole file of at most `limit` bytes: a regular one of our own, no link.
pub(crate) fn read_checked(path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    let (file, len) = posix::open_checked(path)?;
    if len > limit {
        return Err(StoreError::corrupt(path, limit, format!("{len} bytes; at most {limit} are possible")));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    file.take(limit).read_to_end(&mut bytes).map_err(StoreError::io("read", path))?;
    Ok(bytes)
}

/// Makes what was done to the folder's names durable.
pub(crate) fn sync_folder(dir: &Path) -> Result<(), StoreError> {
    File::open(dir).and_then(|folder| folder.sync_all()).map_err(StoreError::io("sync", dir))
}

/// Removes a file; one that is gone already is no error.
pub(crate) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Writes `bytes` to the file `name` in `dir`, durably, in the place of what is there: that or this is there after a
/// crash.
pub(crate) fn replace(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let (temp, path) = (dir.join(format!("{TEMP}{name}")), dir.join(name));
    remove(&temp)?;
    let failed = StoreError::write("write", &temp, bytes.len() as u64);
    let written =
        posix::create_new(&temp, 0).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(error) = written {
        // The first error is the one to report; a file that is left is removed by `clean`.
        let _ = fs::remove_file(&temp);
        return Err(failed(error));
    }
    fs::rename(&temp, &path).map_err(StoreError::write("rename", &temp, 0))?;
    sync_folder(dir)
}

/// All unfinished files of a folder, those of the local tier not counted.
pub(crate) fn temporary(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    that_begin(dir, TEMP)
}

/// Those of the local tier.
pub(crate) fn unfinished(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    that_begin(dir, posix::PART)
}

fn that_begin(dir: &Path, with: &str) -> Result<Vec<PathBuf>, StoreError> {
    let failed = StoreError::io("list", dir);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if entry.file_name().to_string_lossy().starts_with(with) {
            found.push(entry.path());
        }
    }
    Ok(found)
}
