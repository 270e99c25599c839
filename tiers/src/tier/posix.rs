//! What tiers in a file system have in common: folders and files of one user, names that are never replaced.
//!
//! Called by [`super::local`] and by what keeps blobs under a path. Files are 0600 and folders 0700 whatever the
//! umask says, and what belongs to another user, or may be written by one, is refused: images hold the memory of a
//! program, and are trusted at a restart.
//! Fails by: an error that names the path.

use super::{Blob, TierError};
use crate::lock::euid;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::unistd::{AccessFlags, eaccess};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Beginning of the name of every file that is not finished: no name of a blob begins with a dot.
pub(crate) const PART: &str = ".part-";

/// A path as it is in errors.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Why a file or folder is not the caller's alone, if so.
pub(crate) fn others_may_write(meta: &Metadata) -> Option<String> {
    not_own(meta.uid(), meta.mode())
}

/// The same of an owner and a mode.
pub(super) fn not_own(owner: u32, mode: u32) -> Option<String> {
    let own = euid();
    if owner != own {
        return Some(format!("it belongs to uid {owner}, you are uid {own}"));
    }
    (mode & 0o022 != 0).then(|| format!("others may write to it (mode {:04o})", mode & 0o7777))
}

/// Why nothing can be written to a folder that is there, if so: its mode, or a file system that is mounted for reading.
/// What cannot be asked is found out by the first write.
pub(crate) fn why_read_only(path: &Path) -> Option<String> {
    match eaccess(path, AccessFlags::W_OK) {
        Err(Errno::EACCES) => Some("this user may not write to the folder".into()),
        Err(Errno::EROFS) => Some("its file system is mounted read-only".into()),
        _ => None,
    }
}

fn check_owner(path: &Path, meta: &Metadata) -> Result<(), TierError> {
    match others_may_write(meta) {
        None => Ok(()),
        Some(why) => Err(TierError::Denied { object: shown(path), why }),
    }
}

/// Refuses what is no folder of the caller's. Links are followed only where `link` says so: above all that is ours.
pub(crate) fn check_folder(path: &Path, link: bool) -> Result<(), TierError> {
    let meta = if link { fs::metadata(path) } else { fs::symlink_metadata(path) };
    let meta = meta.map_err(TierError::io("look at", shown(path)))?;
    if !meta.is_dir() {
        return Err(TierError::Denied { object: shown(path), why: "this is not a folder".into() });
    }
    check_owner(path, &meta)
}

/// Why a folder cannot be made.
pub(super) const NOTHING_ABOVE: &str =
    "the folder above it is not there; mount its file system, or make the folder";

/// Makes the folder that a user has named for a tier, or the first one below that.
///
/// # Errors
/// As [`make_folder`]; [`TierError::Settings`]: the one above it is not there.
pub(super) fn make_root(path: &Path, link: bool) -> Result<(), TierError> {
    make_folder(path, link).map_err(|error| match error {
        TierError::NotFound { object } => TierError::Settings { object, why: NOTHING_ABOVE.to_owned() },
        error => error,
    })
}

/// Makes a folder, durably, if it is not there, and checks it.
pub(crate) fn make_folder(path: &Path, link: bool) -> Result<(), TierError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {
            fs::set_permissions(path, Permissions::from_mode(0o700))
                .map_err(TierError::io("change the mode of", shown(path)))?;
            path.parent().map_or(Ok(()), sync_folder)?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(TierError::io("create", shown(path))(error)),
    }
    check_folder(path, link)
}

/// Makes what was done to the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), TierError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(TierError::io("sync", shown(path)))
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

/// A name for what is no blob `path` yet, or no longer, in the same folder; each has another one.
pub(super) fn part_of(path: &Path) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!("{PART}{name}.{}.{number}", std::process::id()))
}

/// Makes an unfinished file for the blob `path`, under a name that no other writer has.
pub(crate) fn create_part(path: &Path, flags: i32) -> io::Result<(File, PathBuf)> {
    loop {
        let part = part_of(path);
        match create_new(&part, flags) {
            // A writer on another host, or one that was killed, has it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Ok(file) => return Ok((file, part)),
            Err(error) => {
                // open(2): a file system without O_DIRECT answers EINVAL, and some have made the file by then.
                let _ = fs::remove_file(&part);
                return Err(error);
            }
        }
    }
}

/// Opens a file for reading: a regular one of the caller's own, no link. Gives its length too.
pub(crate) fn open_checked(path: &Path) -> Result<(File, u64), TierError> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(TierError::io("open", shown(path)))?;
    let meta = file.metadata().map_err(TierError::io("look at", shown(path)))?;
    if !meta.is_file() {
        let what = "this is not a regular file".into();
        return Err(TierError::Damaged { object: shown(path), offset: 0, what });
    }
    check_owner(path, &meta)?;
    Ok((file, meta.len()))
}

/// Gives a file its final name in the same folder, unless that is taken (EEXIST).
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        // rename(2): EINVAL where the file system knows no flags (NFS for one). A second name does the same in two
        // steps; one that a crash leaves is removed by `clean`.
        Err(nix::Error::EINVAL | nix::Error::ENOSYS) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        other => other.map_err(io::Error::from),
    }
}

/// Removes a file; one that is gone already is no error. Whether there was one.
pub(crate) fn remove(path: &Path) -> Result<bool, TierError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(TierError::io("remove", shown(path))(error)),
    }
}

/// A blob that is a file.
pub(super) struct FileBlob {
    pub(super) file: File,
    pub(super) len: u64,
    /// For messages.
    pub(super) object: String,
    /// Whether it may be mapped.
    pub(super) mappable: bool,
}

impl Blob for FileBlob {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        match self.file.read_exact_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let len = self.file.metadata().map_or(self.len, |meta| meta.len());
                Err(TierError::Short { object: self.object.clone(), len })
            }
            other => other.map_err(TierError::io("read", self.object.clone())),
        }
    }

    fn mapping(&self) -> Option<(&File, u64)> {
        self.mappable.then_some((&self.file, 0))
    }
}
