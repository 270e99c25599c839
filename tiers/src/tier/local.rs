//! The local tier: a folder of the user, each blob a file.
//!
//! Called by the writer of images as the first tier, and by the cascade and restarts like any other.
//! A blob that is being written has a name of its own (`.part-*`) and gets the final one, never in the place of
//! another, when it is durable. Data is copied into a staging buffer of 4 MiB that is written as a whole with O_DIRECT
//! where the file system has it: the flush must not push the program's own files out of the page cache, nor wait for
//! the writeback of others.
//! Invariants: those of [`crate::tier`]; everything that was appended lies in the staging buffer or in the file; no
//! link inside the folder is followed, and nothing is read that another user could have written.
//! Fails by: an error that names the path.

use super::posix::FileBlob;
use super::{Blob, BlobName, BlobWriter, Entry, Listing, Survives, Tier, TierError, TierInfo, posix};
use crate::buffer::AlignedBuffer;
use crate::fault;
use holdfast_image::PAGE_SIZE;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Length of the staging buffer, bytes.
const STAGING_LEN: usize = 4 << 20;

/// See the head of the file.
#[derive(Clone, Debug)]
pub struct LocalTier {
    root: PathBuf,
    info: TierInfo,
    /// Whether writing makes the folder. That of a job is not: one that is gone was removed.
    is_made: bool,
}

impl LocalTier {
    /// Opens the tier in a folder. One that is not there is made, with mode 0700, when something is written to it.
    ///
    /// # Errors
    /// It cannot be looked at, belongs to another uid, or others may write to it.
    pub fn open(root: &Path) -> Result<LocalTier, TierError> {
        let root = std::path::absolute(root).map_err(TierError::io("find", posix::shown(root)))?;
        let mut tier = LocalTier { is_made: true, ..LocalTier::at(root) };
        match posix::check_folder(&tier.root, true) {
            Ok(()) => tier.info.read_only = posix::why_read_only(&tier.root),
            Err(TierError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(tier)
    }

    /// The tier in a folder that was checked.
    pub(crate) fn at(root: PathBuf) -> LocalTier {
        let info = TierInfo {
            name: posix::shown(&root),
            survives: Survives::Host,
            capacity_bytes: None,
            bandwidth: None,
            mappable: true,
            single_writer: None,
            read_only: None,
        };
        LocalTier { root, info, is_made: false }
    }

    /// Its folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where a blob is.
    pub(super) fn path(&self, name: &BlobName) -> PathBuf {
        self.root.join(name.as_str())
    }

    /// Looks at the folders above a blob, from the uppermost on; makes those that are not there if `make`.
    pub(super) fn folder(&self, folder: &str, make: bool) -> Result<PathBuf, TierError> {
        let mut path = self.root.clone();
        if make && self.is_made && fs::symlink_metadata(&path).is_err() {
            posix::make_folder(&path, true)?;
        }
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            path.push(part);
            if make { posix::make_folder(&path, false)? } else { posix::check_folder(&path, false)? }
        }
        Ok(path)
    }

    /// Where a blob will be, if there is none; its folder is made.
    pub(super) fn vacant(&self, name: &BlobName) -> Result<PathBuf, TierError> {
        self.folder(name.folder(), true)?;
        let path = self.path(name);
        if fs::symlink_metadata(&path).is_ok() {
            return Err(TierError::Exists { object: posix::shown(&path) });
        }
        Ok(path)
    }

    /// A blob that is being written.
    pub(super) fn writer(&self, name: &BlobName, _expected: Option<u64>) -> Result<LocalWriter, TierError> {
        let path = self.vacant(name)?;
        let object = posix::shown(&path);
        let (direct, made) = match posix::create_part(&path, libc::O_DIRECT) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (false, posix::create_part(&path, 0)),
            other => (true, other),
        };
        let (file, part) = made.map_err(TierError::io("create", object))?;
        Ok(LocalWriter {
            file,
            part,
            path,
            direct,
            staging: AlignedBuffer::new(STAGING_LEN),
            staged: 0,
            written: 0,
            failed: false,
            finished: false,
        })
    }
}

impl Tier for LocalTier {
    fn info(&self) -> &TierInfo {
        &self.info
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        let mut listing = Listing::default();
        if !BlobName::is_folder(folder) {
            return Ok(listing);
        }
        let found = self.folder(folder, false).and_then(|path| {
            let entries = fs::read_dir(&path).map_err(TierError::io("list", posix::shown(&path)))?;
            Ok((path, entries))
        });
        let (path, entries) = match found {
            Err(TierError::NotFound { .. }) => return Ok(listing),
            other => other?,
        };
        let failed = || TierError::io("list", posix::shown(&path));
        for entry in entries {
            let entry = entry.map_err(failed())?;
            let file = entry.file_name();
            let Some(name) = file.to_str().and_then(|file| BlobName::within(folder, file)) else { continue };
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => listing.folders.push(name.file().to_owned()),
                Ok(meta) if meta.is_file() => {
                    listing.blobs.push(Entry { name, len: meta.len(), modified: meta.modified().ok() });
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
                // Removed meanwhile; a link, a socket.
                _ => {}
            }
        }
        listing.blobs.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        listing.folders.sort_unstable();
        Ok(listing)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        self.folder(name.folder(), false)?;
        let path = self.path(name);
        let (file, len) = posix::open_checked(&path)?;
        Ok(Box::new(FileBlob { file, len, object: posix::shown(&path), mappable: true }))
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        Ok(Box::new(self.writer(name, expected)?))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        let path = self.vacant(name)?;
        let (folder, object) = (path.parent().unwrap_or(&self.root), posix::shown(&path));
        let (mut file, part) =
            posix::create_part(&path, 0).map_err(TierError::io("create", object.clone()))?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        let published = written.map_err(TierError::io("write", object.clone())).and_then(|()| {
            // The names of what this one refers to must be durable before its own.
            posix::sync_folder(folder)?;
            fault::point("manifest-temp");
            posix::rename_new(&part, &path).map_err(TierError::io("rename", object))
        });
        if let Err(error) = published {
            // The first error is the one to report; a file that is left is removed by `clean`.
            let _ = fs::remove_file(&part);
            return Err(error);
        }
        posix::sync_folder(folder)?;
        fault::point("manifest-renamed");
        Ok(())
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        let folder = match self.folder(name.folder(), false) {
            Err(TierError::NotFound { .. }) => return Ok(()),
            other => other?,
        };
        if posix::remove(&self.path(name))? { posix::sync_folder(&folder) } else { Ok(()) }
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        let path = match self.folder(folder, false) {
            Err(TierError::NotFound { .. }) => return Ok(0),
            other => other?,
        };
        let failed = || TierError::io("list", posix::shown(&path));
        let mut bytes = 0;
        for entry in fs::read_dir(&path).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            if entry.file_name().to_string_lossy().starts_with(posix::PART) {
                let len = entry.metadata().map_or(0, |meta| meta.len());
                bytes += if posix::remove(&entry.path())? { len } else { 0 };
            }
        }
        Ok(bytes)
    }
}

/// A file that is being written.
pub(super) struct LocalWriter {
    file: File,
    /// The name that it has.
    part: PathBuf,
    /// The name that it will have.
    path: PathBuf,
    /// Whether `file` is open with O_DIRECT.
    direct: bool,
    staging: AlignedBuffer,
    /// Bytes in the staging buffer.
    staged: usize,
    /// Bytes in the file; the staging buffer goes there.
    written: u64,
    /// A write has failed: bytes are missing.
    failed: bool,
    finished: bool,
}

impl LocalWriter {
    /// Writes the staging buffer, which is full or the end of the file.
    fn flush(&mut self) -> io::Result<()> {
        let page = PAGE_SIZE as usize;
        // open(2): lengths of direct writes are multiples of the block size.
        let padded = if self.direct { self.staged.next_multiple_of(page) } else { self.staged };
        self.staging[self.staged..padded].fill(0);
        match self.file.write_all_at(&self.staging[..padded], self.written) {
            // Some file systems refuse direct writes only now: buffered ones from here on.
            Err(error) if self.direct && error.raw_os_error() == Some(libc::EINVAL) => {
                self.file = OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(&self.part)?;
                self.direct = false;
                self.file.write_all_at(&self.staging[..self.staged], self.written)?;
            }
            other => other?,
        }
        self.written += self.staged as u64;
        if self.direct && padded != self.staged {
            self.file.set_len(self.written)?;
        }
        self.staged = 0;
        Ok(())
    }

    /// Gives the file its name, before it is durable. The file, its path and its length.
    pub(super) fn name(mut self) -> Result<(File, PathBuf, u64), TierError> {
        self.checked(LocalWriter::flush)?;
        let file = self.file.try_clone().map_err(TierError::io("write", posix::shown(&self.path)))?;
        self.rename()?;
        Ok((file, self.path.clone(), self.written))
    }
    fn rename(&mut self) -> Result<(), TierError> {
        posix::rename_new(&self.part, &self.path)
            .map_err(TierError::io("rename", posix::shown(&self.path)))?;
        self.finished = true;
        Ok(())
    }

    /// Lets nothing happen after an error.
    fn checked(&mut self, work: impl FnOnce(&mut LocalWriter) -> io::Result<()>) -> Result<(), TierError> {
        let result = if self.failed {
            Err(io::Error::other("an earlier write has failed"))
        } else {
            work(self).inspect_err(|_| self.failed = true)
        };
        result.map_err(TierError::io("write", posix::shown(&self.path)))
    }
}

impl BlobWriter for LocalWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.checked(|own| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(STAGING_LEN - own.staged));
                own.staging[own.staged..own.staged + now.len()].copy_from_slice(now);
                own.staged += now.len();
                rest = later;
                if own.staged == STAGING_LEN {
                    own.flush()?;
                }
            }
            Ok(())
        })
    }

    fn finish(mut self: Box<Self>) -> Result<u64, TierError> {
        self.checked(|own| {
            own.flush()?;
            own.file.sync_all()
        })?;
        self.rename()?;
        Ok(self.written)
    }
}

impl Drop for LocalWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed by `clean`.
            let _ = fs::remove_file(&self.part);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn name(text: &str) -> BlobName {
        BlobName::new(text).unwrap()
    }

    #[test]
    fn only_plain_files_and_folders_of_the_user_count() {
        let root = std::env::temp_dir().join(format!("holdfast-local-{}", std::process::id()));
        let tier = LocalTier::open(&root).unwrap();
        tier.publish(&name("job/blob"), b"bytes").unwrap();
        let (folder, file) = (root.join("job"), root.join("job/blob"));
        for (path, mode) in [(&root, 0o700), (&folder, 0o700), (&file, 0o600)] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, mode);
        }
        symlink("blob", root.join("job/link")).unwrap();
        symlink("job", root.join("linked")).unwrap();
        fs::write(root.join("job/.part-blob.1.2"), "half").unwrap();
        let listing = tier.list("job").unwrap();
        assert_eq!(listing.blobs.iter().map(|blob| blob.name.file()).collect::<Vec<_>>(), ["blob"]);
        assert_eq!(tier.list("").unwrap().folders, ["job"]);
        for refused in ["job/link", "linked/blob"] {
            assert!(tier.open(&name(refused)).is_err(), "{refused}");
        }
        assert!(tier.create(&name("linked/new"), None).is_err(), "no link is followed");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(tier.open(&name("job/blob")), Err(TierError::Denied { .. })));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(tier.list("job"), Err(TierError::Denied { .. })));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(tier.clean("job").unwrap(), 4);
        fs::remove_dir_all(root).unwrap();
    }
}
