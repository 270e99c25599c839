//! Names, modes and atomic writing of the files in a job's folder.
//!
//! ```text
//! STORE/JOB/  job.json  lock  agent.sock  agent.log  manifest-000001  segment-000001-000  .tmp-*  saved/
//! ```
//! Files are 0600 and folders 0700 whatever the umask says: images hold the memory of a program.

use crate::{StoreError, lock};
use holdfast_image::Epoch;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Beginning of the name of every file that is not finished.
pub(crate) const TEMP: &str = ".tmp-";

/// What a name in a job's folder means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileName {
    Manifest(Epoch),
    Segment(Epoch, u32),
    /// A manifest that was not committed.
    TempManifest(Epoch),
    /// Another unfinished file.
    Temp,
    Other,
}

pub(crate) fn manifest_name(epoch: Epoch) -> String {
    format!("manifest-{:06}", epoch.0)
}

pub(crate) fn segment_name(epoch: Epoch, number: u32) -> String {
    format!("segment-{:06}-{number:03}", epoch.0)
}

/// Understands exactly the names that the two functions above make.
pub(crate) fn parse_name(name: &str) -> FileName {
    if let Some(rest) = name.strip_prefix(TEMP) {
        return match parse_name(rest) {
            FileName::Manifest(epoch) => FileName::TempManifest(epoch),
            _ => FileName::Temp,
        };
    }
    if let Some(epoch) = name.strip_prefix("manifest-").and_then(|n| n.parse().ok()).map(Epoch)
        && manifest_name(epoch) == name
    {
        return FileName::Manifest(epoch);
    }
    let numbers = name.strip_prefix("segment-").and_then(|n| n.split_once('-'));
    if let Some((epoch, number)) = numbers
        && let (Ok(epoch), Ok(number)) = (epoch.parse().map(Epoch), number.parse())
        && segment_name(epoch, number) == name
    {
        return FileName::Segment(epoch, number);
    }
    FileName::Other
}

/// All names in a folder with what they mean; names that are not UTF-8 are not ours.
pub(crate) fn list(dir: &Path) -> Result<Vec<(FileName, PathBuf)>, StoreError> {
    let failed = StoreError::io("list", dir);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(&failed)? {
        let entry = entry.map_err(&failed)?;
        if let Some(name) = entry.file_name().to_str() {
            found.push((parse_name(name), entry.path()));
        }
    }
    Ok(found)
}

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
    if !meta.is_dir() {
        return Err(StoreError::Permissions { path: path.into(), why: "this is not a folder".into() });
    }
    check_owner(path, &meta)
}

fn check_owner(path: &Path, meta: &fs::Metadata) -> Result<(), StoreError> {
    let refuse = |why: String| Err(StoreError::Permissions { path: path.into(), why });
    if meta.uid() != lock::euid() {
        return refuse(format!("it belongs to uid {}, you are uid {}", meta.uid(), lock::euid()));
    }
    if meta.mode() & 0o022 != 0 {
        return refuse(format!("others may write to it (mode {:04o})", meta.mode() & 0o7777));
    }
    Ok(())
}

/// Makes a new file of mode 0600; `flags` are added to those of open(2).
pub(crate) fn create_new(path: &Path, flags: i32) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | flags)
        .open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Opens a file of an image: a regular one of our own, no link.
pub(crate) fn open_checked(path: &Path) -> Result<(File, u64), StoreError> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(StoreError::io("open", path))?;
    let meta = file.metadata().map_err(StoreError::io("look at", path))?;
    if !meta.is_file() {
        return Err(StoreError::corrupt(path, 0, "this is not a regular file"));
    }
    check_owner(path, &meta)?;
    Ok((file, meta.len()))
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read_checked(path: &Path, limit: u64) -> Result<Vec<u8>, StoreError> {
    let (file, len) = open_checked(path)?;
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

/// Writes `bytes` durably under a temporary name in `dir`; [`rename`] gives it its final one.
pub(crate) fn write_temp(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, StoreError> {
    let temp = dir.join(format!("{TEMP}{name}"));
    remove(&temp)?;
    let failed = StoreError::write("write", &temp, bytes.len() as u64);
    let written =
        create_new(&temp, 0).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(error) = written {
        // The first error is the one to report; a file that is left is removed by `clean`.
        let _ = fs::remove_file(&temp);
        return Err(failed(error));
    }
    Ok(temp)
}

/// Gives a temporary file its final name, durably.
pub(crate) fn rename(dir: &Path, temp: &Path, name: &str) -> Result<PathBuf, StoreError> {
    let path = dir.join(name);
    fs::rename(temp, &path).map_err(StoreError::write("rename", temp, 0))?;
    sync_folder(dir)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood_only_as_they_are_written() {
        for epoch in [1, 42, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(parse_name(&manifest_name(Epoch(epoch))), FileName::Manifest(Epoch(epoch)));
            for number in [0, 999, 1000] {
                let name = segment_name(Epoch(epoch), number);
                assert_eq!(parse_name(&name), FileName::Segment(Epoch(epoch), number));
            }
        }
        for name in
            ["manifest-1", "manifest-0000001", "manifest-+00001", "segment-000001", "segment-000001-1", "x"]
        {
            assert_eq!(parse_name(name), FileName::Other, "{name}");
        }
        assert_eq!(parse_name(".tmp-manifest-000007"), FileName::TempManifest(Epoch(7)));
        assert_eq!(parse_name(".tmp-job.json"), FileName::Temp);
    }
}
