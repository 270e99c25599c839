//! The memory tier: a folder in memory (tmpfs, or a file system with DAX), each blob a file.
//!
//! Called as every tier: it is the first one of a job whose store is in a tmpfs. Blobs are put at the speed of memory,
//! survive the program and the agent, and with tmpfs not the host.
//!
//! Why a file for each blob, and not one log for all: what is read from memory is mapped, by restarts and by programs
//! that run on for days after them. The space of a log could not be used again without knowing of every such mapping;
//! the pages of a file that was removed stay for as long as a process has them mapped. And the kernel's rename is a
//! commit that no agent can die in the middle of: there are no stale records after a crash, no log to be walked, and
//! no format of our own that could be damaged. What a log would be faster at, new pages, is had by files that are
//! written again (`pool`); what is left is the call for the name: a few microseconds for each blob
//! (docs/history/store.md).
//!
//! Invariants: those of [`crate::tier`], as the local tier keeps them, whose folders, names and checks these are; never
//! more than `max` bytes, so that no control group's limit is met by a store into memory.
//! Fails by: [`TierError::Full`] before the memory is taken; else as the local tier.

mod first;
mod home;
mod mapped;
mod pool;
mod writer;

use super::{Blob, BlobName, BlobWriter, Listing, LocalTier, Survives, Tier, TierError, TierInfo, posix};
pub use first::MemoryFirst;
use mapped::Mapped;
use nix::sys::statfs::{FsType, Statfs, TMPFS_MAGIC, statfs};
use pool::{Pool, size_of};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
pub(crate) use writer::MemoryWriter;

/// linux/magic.h: a tmpfs without swap and without limit.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);

/// See the head of the file.
pub struct MemoryTier {
    files: LocalTier,
    pool: Arc<Pool>,
    info: TierInfo,
}

impl MemoryTier {
    /// Opens the tier in a folder, which is made, with mode 0700, if it is not there. It takes at most `max` bytes:
    /// of what the control group, the host and the user allow, the least; the caller knows.
    ///
    /// # Errors
    /// The folder cannot be made, belongs to another uid, others may write to it, or it is on a disk.
    pub fn open(root: &Path, max: u64) -> Result<MemoryTier, TierError> {
        posix::make_root(root, true)?;
        let files = LocalTier::open(root)?;
        let (system, dax) = in_memory(files.root(), ", or use dir= for a disk")?;
        Ok(MemoryTier::at(files, &system, max, dax))
    }

    /// The tier of a folder of the user's that was checked, bounded by its file system alone; `None`: it is in no
    /// tmpfs.
    pub(crate) fn of_folder(root: &Path) -> Option<MemoryTier> {
        let system = statfs(root).ok().filter(is_memory)?;
        Some(MemoryTier::at(LocalTier::at(root.to_owned()), &system, u64::MAX, false))
    }

    fn at(files: LocalTier, system: &Statfs, max: u64, dax: bool) -> MemoryTier {
        let info = TierInfo {
            survives: if dax { Survives::Host } else { Survives::Program },
            capacity_bytes: Some(max.min(size_of(system))),
            ..files.info().clone()
        };
        let pool = Arc::new(Pool::new(files.root().to_owned(), max, dax));
        MemoryTier { files, pool, info }
    }

    /// Most bytes that it may take from now on; what it has already stays.
    pub(crate) fn limit(&self, max: u64) {
        self.pool.limit(max);
    }

    /// Bytes that it has now, spares included.
    pub(crate) fn used(&self) -> u64 {
        self.pool.look()
    }

    /// As [`Tier::create`].
    pub(crate) fn writer(&self, name: &BlobName, expected: Option<u64>) -> Result<MemoryWriter, TierError> {
        MemoryWriter::new(&self.pool, self.files.vacant(name)?, expected)
    }

    /// Takes memory for blobs that will be written in a folder: the first ones would have to wait for it otherwise.
    ///
    /// # Errors
    /// [`TierError::Full`], or the file cannot be made.
    pub fn prepare(&self, folder: &str, bytes: u64) -> Result<(), TierError> {
        let folder = self.files.folder(folder, true)?;
        self.pool.add(&folder, bytes)
    }
}

/// Makes a folder for logs of streams, with mode 0700, if it is not there, and checks it.
///
/// # Errors
/// As [`MemoryTier::open`].
pub fn make_log_folder(root: &Path) -> Result<(), TierError> {
    posix::make_root(root, true)?;
    in_memory(root, "").map(drop)
}

/// The file system of a folder, and whether it has DAX; it is an error if it is not in memory. `instead`: what else
/// there is.
fn in_memory(root: &Path, instead: &str) -> Result<(Statfs, bool), TierError> {
    let system = statfs(root).map_err(|error| TierError::io("look at", posix::shown(root))(error.into()))?;
    let dax = !is_memory(&system);
    if dax && !is_dax(root)? {
        let why = format!(
            "it is not in memory: give a folder in a tmpfs (/dev/shm) or on a file system with DAX{instead}"
        );
        return Err(TierError::Settings { object: posix::shown(root), why });
    }
    Ok((system, dax))
}

fn is_memory(system: &Statfs) -> bool {
    matches!(system.filesystem_type(), TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Whether files in this folder are mapped without a page cache: MAP_SYNC is granted for nothing else.
fn is_dax(root: &Path) -> Result<bool, TierError> {
    const LEN: usize = 4096;
    let failed = || TierError::io("create a file in", posix::shown(root));
    let (file, part) = posix::create_part(&root.join("dax"), 0).map_err(failed())?;
    let open = OpenOptions::new().read(true).write(true).open(&part);
    let mapped = file.set_len(LEN as u64).and(open).and_then(|open| Mapped::new(&open, LEN, true));
    fs::remove_file(&part).map_err(failed())?;
    Ok(mapped.is_ok())
}

impl Tier for MemoryTier {
    fn info(&self) -> &TierInfo {
        &self.info
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.files.list(folder)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        let blob = self.files.open(name)?;
        let path = self.files.path(name);
        let failed = || TierError::io("look at", posix::shown(&path));
        if let Some((file, _)) = blob.mapping() {
            // A file that has lost its name between the two calls may be another blob's by now (`pool`). From here on
            // it is open, and stays what it is.
            let (open, named) =
                (file.metadata().map_err(failed())?, fs::symlink_metadata(&path).map_err(failed())?);
            if (open.dev(), open.ino()) != (named.dev(), named.ino()) || open.len() != blob.len() {
                return Err(TierError::NotFound { object: posix::shown(&path) });
            }
        }
        Ok(blob)
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        Ok(Box::new(self.writer(name, expected)?))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        let len = bytes.len() as u64;
        self.pool.reserve(len, &self.files.path(name))?;
        loop {
            match self.files.publish(name, bytes) {
                // Others fill the tmpfs too: spares make way.
                Err(TierError::Full { .. }) if self.pool.give_up_largest() => {}
                Err(error) => {
                    self.pool.release(len);
                    return Err(error);
                }
                Ok(()) => {
                    self.pool.published();
                    return Ok(());
                }
            }
        }
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        let folder = match self.files.folder(name.folder(), false) {
            Err(TierError::NotFound { .. }) => return Ok(()),
            other => other?,
        };
        let removed = self.pool.remove(&self.files.path(name))?;
        if removed && self.pool.is_dax() { posix::sync_folder(&folder) } else { Ok(()) }
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        match self.files.folder(folder, false) {
            Err(TierError::NotFound { .. }) => return Ok(0),
            path => self.pool.give_up(&path?),
        }
        let bytes = self.files.clean(folder)?;
        self.pool.release(bytes);
        Ok(bytes)
    }
}
