//! The memory tier above the folder of a job: what is written goes into memory while there is room, and else into the
//! folder; what is read comes from memory if it is there.
//!
//! ```text
//! STORE/JOB/memory -> /dev/shm/holdfast-1000/JOB-DEV-INODE        its link "job" leads back ([`super::home`])
//! ```
//! Made by the agent for a job with `--tier memory`; found by every command by the two links, of which each must lead
//! to the other: a folder that was copied, or made anew under the name, has no memory of another's. The cascade copies
//! versions down, and then has what is in both removed from memory ([`MemoryFirst::trim`]).
//! Invariants: those of [`crate::tier`]; nothing leaves memory that the folder has not got as a whole; a manifest is
//! published in the folder only when all segments are there, so that what the folder has is whole after the host died;
//! a blob that finds no room in memory goes to the folder, with what was written of it so far.
//! Fails by: the error of the folder; of the memory tier only for what only memory has.

use super::home::{self, Home};
use super::{MemoryTier, MemoryWriter};
use crate::fault;
use crate::format::manifest::Manifest;
use crate::names::{self, FileName};
use crate::tier::posix;
use crate::tier::{
    Blob, BlobName, BlobWriter, Entry, Listing, LocalTier, Survives, Tier, TierError, TierInfo, read_all,
    read_whole,
};
use holdfast_image::Epoch;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the head of the file.
#[derive(Clone)]
pub struct MemoryFirst(Arc<Inner>);

struct Inner {
    root: PathBuf,
    memory: MemoryTier,
    folder: LocalTier,
    info: TierInfo,
    /// The right to put something new into memory.
    home: Option<Home>,
    /// Files that stay in memory: a program may be mapped from them.
    pinned: Mutex<BTreeSet<String>>,
    /// Why something went to the folder, until it was asked for.
    passed_by: Mutex<Option<String>>,
}

impl std::fmt::Debug for MemoryFirst {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "memory {}", self.0.root.display())
    }
}

impl MemoryFirst {
    /// The memory of the job in this folder, if it has any; what cannot be used counts as none.
    pub(crate) fn of_job(dir: &Path) -> Option<MemoryFirst> {
        MemoryFirst::at(home::of_job(dir)?, dir, None).ok()
    }

    fn at(root: PathBuf, dir: &Path, home: Option<Home>) -> Result<MemoryFirst, TierError> {
        let memory = MemoryTier::open(&root, u64::MAX)?;
        let folder = LocalTier::at(dir.to_owned());
        let info = TierInfo { survives: memory.info().survives.min(Survives::Host), ..folder.info().clone() };
        Ok(MemoryFirst(Arc::new(Inner {
            root,
            memory,
            folder,
            info,
            home,
            pinned: Mutex::default(),
            passed_by: Mutex::default(),
        })))
    }

    /// Makes the memory of a job below `base`, or takes what it has already.
    pub(crate) fn make(base: &Path, dir: &Path, name: &str) -> Result<MemoryFirst, TierError> {
        let dir = std::path::absolute(dir).map_err(TierError::io("find", posix::shown(dir)))?;
        // What it has elsewhere would be found no more: the folder gets it.
        let elsewhere = MemoryFirst::of_job(&dir).filter(|before| !before.0.root.starts_with(base));
        elsewhere.iter().try_for_each(|before| before.0.leave())?;
        let home = home::make(base, &dir, name)?;
        if let Some(before) = elsewhere {
            // The folder has it all.
            let _ = before.discard();
        }
        MemoryFirst::at(home.root.clone(), &dir, Some(home))
    }

    /// Whether new blobs are put into memory: the agent of a job that has the tier does.
    pub fn is_written(&self) -> bool {
        self.0.home.is_some()
    }

    /// Most bytes that all blobs in memory may take from now on.
    pub fn limit(&self, max: u64) {
        self.0.memory.limit(max);
    }

    /// Bytes that are in memory now, those that are kept for the next blobs included.
    pub fn used(&self) -> u64 {
        self.0.memory.used()
    }

    /// Its folder: what is mapped from there is memory of a restart.
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// Numbers of the images whose manifests are in memory.
    ///
    /// # Errors
    /// Memory cannot be listed.
    pub fn versions(&self) -> Result<Vec<Epoch>, TierError> {
        let blobs = self.0.memory.list("")?.blobs;
        let versions = blobs.iter().filter_map(|entry| match names::parse_name(entry.name.file()) {
            Some(FileName::Manifest(epoch)) => Some(epoch),
            _ => None,
        });
        let mut versions: Vec<Epoch> = versions.collect();
        versions.sort_unstable();
        Ok(versions)
    }

    /// Why something that was written since the last time went past memory.
    pub fn passed_by(&self) -> Option<String> {
        self.0.passed_by.lock().take()
    }

    /// Where the manifest of an image is: in memory, in the folder.
    pub fn has(&self, epoch: Epoch) -> (bool, bool) {
        let file = names::manifest_name(epoch);
        let is = |tier: &dyn Tier| name(&file).is_some_and(|name| tier.open(&name).is_ok());
        (is(&self.0.memory), is(&self.0.folder))
    }

    /// All that this image needs stays in memory from now on.
    pub fn pin(&self, epoch: Epoch) {
        let files = self.0.needed(epoch).unwrap_or_default();
        self.0.pinned.lock().extend(files);
    }

    /// Removes from memory what the folder has too, but for what the newest `keep` images need. Returns how many bytes
    /// became free.
    ///
    /// # Errors
    /// A folder cannot be listed, or a blob cannot be removed.
    pub fn trim(&self, keep: usize) -> Result<u64, TierError> {
        let versions = self.versions()?;
        let mut needed = BTreeSet::new();
        for &epoch in versions.iter().rev().take(keep) {
            match self.0.needed(epoch) {
                Some(files) => needed.extend(files),
                // It cannot be said what it needs.
                None => return Ok(0),
            }
        }
        let mut free = 0;
        for entry in self.0.in_both()?.into_iter().filter(|entry| !needed.contains(entry.name.file())) {
            self.0.memory.remove(&entry.name)?;
            fault::point("memory-left");
            free += entry.len;
        }
        Ok(free)
    }

    /// The memory goes, with all that is only there: the job is removed.
    pub(crate) fn discard(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.0.root)
    }
}

/// A blob's name in a job's folder.
fn name(file: &str) -> Option<BlobName> {
    BlobName::within("", file)
}

impl Inner {
    /// The files that an image needs, by its manifest.
    fn needed(&self, epoch: Epoch) -> Option<BTreeSet<String>> {
        let file = names::manifest_name(epoch);
        let blob = self.open(&name(&file)?).ok()?;
        let bytes = read_whole(&*blob, crate::format::manifest::MAX_LEN, || file.clone()).ok()?;
        let segments = Manifest::open(&bytes).and_then(|manifest| manifest.segments()).ok()?;
        let segments = segments.iter().map(|entry| names::segment_name(entry.epoch, entry.number));
        Some(segments.chain([file]).collect())
    }

    /// What is in memory and in the folder as well, the oldest first, manifests before segments; without what is
    /// pinned.
    fn in_both(&self) -> Result<Vec<Entry>, TierError> {
        let below = self.folder.list("")?.blobs;
        let below: BTreeMap<&BlobName, u64> = below.iter().map(|entry| (&entry.name, entry.len)).collect();
        let pinned = self.pinned.lock();
        let mut both = self.memory.list("")?.blobs;
        both.retain(|entry| {
            below.get(&entry.name) == Some(&entry.len) && !pinned.contains(entry.name.file())
        });
        both.sort_by_key(|entry| match names::parse_name(entry.name.file()) {
            Some(FileName::Manifest(epoch)) => (epoch.0, 0),
            Some(FileName::Segment(epoch, _)) => (epoch.0, 1),
            None => (0, 0),
        });
        Ok(both)
    }

    /// There is no room in memory: removes the oldest blob that the folder has too. Whether there was one.
    fn make_room(&self) -> bool {
        let oldest = self.in_both().ok().and_then(|both| both.into_iter().next());
        oldest.is_some_and(|entry| self.memory.remove(&entry.name).is_ok())
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        match self.memory.open(name) {
            Err(TierError::NotFound { .. }) => self.folder.open(name),
            Err(error) => self.folder.open(name).map_err(|_| error),
            found => found,
        }
    }

    fn is_taken(&self, name: &BlobName) -> Result<(), TierError> {
        match self.folder.open(name) {
            Ok(_) => Err(TierError::Exists { object: format!("{}/{name}", self.info.name) }),
            Err(TierError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn note_passed(&self, error: &TierError) {
        self.passed_by.lock().get_or_insert_with(|| error.to_string());
    }

    /// Copies every segment into the folder that is not there.
    fn bring_down(&self) -> Result<(), TierError> {
        let below: BTreeSet<BlobName> =
            self.folder.list("")?.blobs.into_iter().map(|entry| entry.name).collect();
        for entry in self.memory.list("")?.blobs {
            let is_segment = matches!(names::parse_name(entry.name.file()), Some(FileName::Segment(..)));
            if is_segment && !below.contains(&entry.name) {
                match self.copy_down(&entry) {
                    // The cascade was first.
                    Err(TierError::Exists { .. }) => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }

    /// Copies all that only memory has into the folder, images last.
    fn leave(&self) -> Result<(), TierError> {
        self.bring_down()?;
        for entry in self.memory.list("")?.blobs {
            if !matches!(names::parse_name(entry.name.file()), Some(FileName::Manifest(_))) {
                continue;
            }
            let blob = self.memory.open(&entry.name)?;
            let bytes = read_whole(&*blob, crate::format::manifest::MAX_LEN, || entry.name.to_string())?;
            match self.folder.publish(&entry.name, &bytes) {
                Err(TierError::Exists { .. }) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn copy_down(&self, entry: &Entry) -> Result<(), TierError> {
        let blob = self.memory.open(&entry.name)?;
        let mut writer = self.folder.create(&entry.name, Some(entry.len))?;
        read_all(&*blob, blob.len(), 1 << 20, |piece| writer.append(piece).map(|()| true))?;
        writer.finish().map(drop)
    }
}

impl Tier for MemoryFirst {
    fn info(&self) -> &TierInfo {
        &self.0.info
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        let mut listing = self.0.folder.list(folder)?;
        // Without the memory that a host had before it was started anew, the folder is what there is.
        let above = self.0.memory.list(folder)?;
        let mut blobs: BTreeMap<BlobName, Entry> =
            listing.blobs.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        blobs.extend(above.blobs.into_iter().map(|entry| (entry.name.clone(), entry)));
        listing.blobs = blobs.into_values().collect();
        Ok(listing)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        self.0.open(name)
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        self.0.is_taken(name)?;
        let in_memory = if self.is_written() {
            self.0.memory.writer(name, expected)
        } else {
            return self.0.folder.create(name, expected);
        };
        let to = match in_memory {
            Ok(writer) => To::Memory(writer),
            Err(error @ TierError::Exists { .. }) => return Err(error),
            Err(error) => {
                self.0.note_passed(&error);
                To::Folder(self.0.folder.create(name, expected)?)
            }
        };
        Ok(Box::new(Writer { inner: Arc::clone(&self.0), name: name.clone(), to }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        self.0.is_taken(name)?;
        while self.is_written() {
            match self.0.memory.publish(name, bytes) {
                Err(TierError::Full { .. }) if self.0.make_room() => {}
                Err(error) if !matches!(error, TierError::Exists { .. }) => {
                    self.0.note_passed(&error);
                    break;
                }
                done => return done,
            }
        }
        self.0.bring_down()?;
        self.0.folder.publish(name, bytes)
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        // What cannot be removed here is not read any more after the host was started anew; below it would be.
        let above = self.0.memory.remove(name);
        self.0.folder.remove(name)?;
        above
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        Ok(self.0.memory.clean(folder)? + self.0.folder.clean(folder)?)
    }
}

/// A blob that is being written.
struct Writer {
    inner: Arc<Inner>,
    name: BlobName,
    to: To,
}

enum To {
    Memory(MemoryWriter),
    Folder(Box<dyn BlobWriter>),
    Nowhere,
}

impl Writer {
    /// What was written so far goes to the folder, as will what follows.
    fn pass_by(&mut self, error: &TierError) -> Result<(), TierError> {
        self.inner.note_passed(error);
        if let To::Memory(memory) = std::mem::replace(&mut self.to, To::Nowhere) {
            let mut folder = self.inner.folder.create(&self.name, None)?;
            memory.read_back(&mut |piece| folder.append(piece))?;
            self.to = To::Folder(folder);
        }
        Ok(())
    }

    fn nowhere(&self) -> TierError {
        TierError::io("write", self.name.to_string())(io::Error::other("an earlier write has failed"))
    }
}

impl BlobWriter for Writer {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        loop {
            match &mut self.to {
                To::Folder(writer) => return writer.append(bytes),
                To::Nowhere => return Err(self.nowhere()),
                To::Memory(writer) => match writer.try_append(bytes) {
                    Ok(()) => return Ok(()),
                    Err(TierError::Full { .. }) if self.inner.make_room() => {}
                    Err(error) => self.pass_by(&error)?,
                },
            }
        }
    }

    fn finish(self: Box<Self>) -> Result<u64, TierError> {
        let nowhere = self.nowhere();
        match self.to {
            To::Memory(writer) => Box::new(writer).finish(),
            To::Folder(writer) => writer.finish(),
            To::Nowhere => Err(nowhere),
        }
    }
}
