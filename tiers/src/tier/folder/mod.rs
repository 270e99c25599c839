//! Any folder of a file system as a tier: a disk, NFS, Lustre, whatever several hosts and users share.
//!
//! ```text
//! PATH/  sim/  manifest-000001  segment-000001-000  .tmp-HOST-TIME-NUMBER-manifest-000002
//! ```
//! Called through `tier::address::open`. A blob is written under a temporary name, made durable, and given its name by
//! link(2) or renameat2(2) without replacing: one atomic operation of the file system, on NFS of the server. No lock is
//! taken: locks of network file systems are lost with a server, or are known to one host alone.
//! Invariants: files are 0600 and folders 0700 whatever the umask says; below the path given nothing is followed, read
//! or removed that another user owns (`opened.rs`), and PATH itself may be everybody's (as /tmp); what was finished or
//! removed is durable when the call returns. Nothing is mapped from a file system of a network: a page that cannot be
//! read would kill the program (SIGBUS, mmap(2)).

mod file_system;
mod opened;
mod unfinished;

use self::file_system::survives;
use self::opened::Opened;
use self::unfinished::Unfinished;
use super::posix::{FileBlob, NOTHING_ABOVE, others_may_write, why_read_only};
use super::{Blob, BlobName, BlobWriter, Entry, Listing, Survives, Tier, TierError, TierInfo};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A tier in a folder.
pub struct FolderTier {
    root: PathBuf,
    info: TierInfo,
}

impl FolderTier {
    /// Opens the folder `path`, which is made (alone, not those above it) when something is written to it. `name` is
    /// its address.
    ///
    /// # Errors
    /// [`TierError::Settings`]: it is no folder, or the one above it is not there. Or the file system does not answer.
    pub fn open(path: &Path, name: String) -> Result<FolderTier, TierError> {
        let there = |path: &Path| match std::fs::metadata(path) {
            Ok(meta) => Ok(Some(meta.is_dir())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TierError::io("look at", path.display().to_string())(error)),
        };
        let settings = |why: &str| TierError::Settings { object: name.clone(), why: why.to_owned() };
        let parent = path.parent().unwrap_or(path);
        let existing = match (there(path)?, there(parent)?) {
            (Some(true), _) => path,
            (None, Some(true)) => parent,
            (Some(false), _) => return Err(settings("this is a file; a tier needs a folder")),
            (None, _) => {
                return Err(settings(NOTHING_ABOVE));
            }
        };
        let survives = survives(existing)?;
        let info = TierInfo {
            name,
            survives,
            capacity_bytes: None,
            bandwidth: None,
            mappable: survives != Survives::Site,
            single_writer: None,
            // One that is not there yet is made when something is written.
            read_only: if existing == path { why_read_only(path) } else { None },
        };
        Ok(FolderTier { root: path.to_owned(), info })
    }

    /// Whether it is on a disk of this host, and this user's alone if it is there: then the local tier does the same
    /// faster.
    pub(crate) fn is_private_disk(&self) -> bool {
        let private = |meta: std::fs::Metadata| others_may_write(&meta).is_none();
        self.info.survives == Survives::Host && std::fs::metadata(&self.root).map_or(true, private)
    }

    fn existing(&self, folder: &str) -> Result<Option<Opened>, TierError> {
        if !BlobName::is_folder(folder) {
            return Ok(None);
        }
        Opened::walk(&self.root, folder)
    }

    /// Begins a file; the folder may be removed by another host at the same time, because it was empty.
    fn begin(&self, name: &BlobName) -> Result<Unfinished, TierError> {
        for _ in 0..100 {
            let Some(folder) = Opened::make(&self.root, name.folder())? else { continue };
            if folder.has(name.file())? {
                return Err(TierError::Exists { object: folder.object(name.file()) });
            }
            if let Some(unfinished) = Unfinished::create(folder, name.file())? {
                return Ok(unfinished);
            }
        }
        Err(TierError::Unavailable {
            object: self.root.join(name.folder()).display().to_string(),
            why: "the folder is removed again and again by another host".to_owned(),
        })
    }
}

impl Tier for FolderTier {
    fn info(&self) -> &TierInfo {
        &self.info
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        let mut listing = Listing::default();
        let Some(opened) = self.existing(folder)? else { return Ok(listing) };
        for file in opened.names()? {
            // Names that are no parts of names of blobs are not ours, temporary ones among them.
            let Some(name) = BlobName::within(folder, &file) else { continue };
            match opened.look(&file)? {
                Some(meta) if !meta.is_ours() => {}
                Some(meta) if meta.is_folder() => listing.folders.push(file),
                Some(meta) if meta.is_file() => {
                    listing.blobs.push(Entry { name, len: meta.len(), modified: meta.modified() });
                }
                _ => {}
            }
        }
        listing.folders.sort();
        listing.blobs.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(listing)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        let object = || self.root.join(name.as_str()).display().to_string();
        let folder = self.existing(name.folder())?.ok_or_else(|| TierError::NotFound { object: object() })?;
        let (file, len) = folder.open_file(name.file())?;
        Ok(Box::new(FileBlob { file, len, object: object(), mappable: self.info.mappable }))
    }

    fn create(&self, name: &BlobName, _expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        Ok(Box::new(FolderWriter { unfinished: Some(self.begin(name)?), written: 0 }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        let mut unfinished = self.begin(name)?;
        unfinished.write(bytes)?;
        unfinished.finish()
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        let Some(folder) = self.existing(name.folder())? else { return Ok(()) };
        if folder.look(name.file())?.is_some() {
            folder.remove_own(name.file())?;
            folder.sync()?;
        }
        self.remove_empty(name.folder())
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        let Some(opened) = self.existing(folder)? else { return Ok(0) };
        let freed = unfinished::clean(&opened)?;
        self.remove_empty(folder)?;
        Ok(freed)
    }
}

impl FolderTier {
    /// Removes a folder that has become empty, and those above it: an object store has none either.
    fn remove_empty(&self, folder: &str) -> Result<(), TierError> {
        let mut folder = folder;
        while !folder.is_empty() {
            let (above, name) = folder.rsplit_once('/').unwrap_or(("", folder));
            let Some(opened) = self.existing(above)? else { return Ok(()) };
            if !opened.remove_folder(name) {
                return Ok(());
            }
            opened.sync()?;
            folder = above;
        }
        Ok(())
    }
}

struct FolderWriter {
    /// None after an error.
    unfinished: Option<Unfinished>,
    written: u64,
}

impl FolderWriter {
    fn failed_before() -> TierError {
        let source = io::Error::other("an earlier write failed");
        TierError::Io { call: "write", object: "a blob".to_owned(), source }
    }
}

impl BlobWriter for FolderWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        let unfinished = self.unfinished.as_mut().ok_or_else(FolderWriter::failed_before)?;
        let written = unfinished.write(bytes);
        match written {
            Ok(()) => self.written += bytes.len() as u64,
            Err(_) => self.unfinished = None,
        }
        written
    }

    fn finish(self: Box<Self>) -> Result<u64, TierError> {
        self.unfinished.ok_or_else(FolderWriter::failed_before)?.finish()?;
        Ok(self.written)
    }
}

impl Unfinished {
    fn write(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.file().write_all(bytes).map_err(TierError::io("write", self.object()))
    }
}
