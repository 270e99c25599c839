//! A job: its run-time folder (lock, recipe, socket, saved files), its images, and what a crash may have left of them.
//!
//! Called by every command and by the agent. The run-time folder is always local; images are blobs of tiers, of which
//! the first is that same folder: the memory tier where it is in a tmpfs, else the local one.
//! Invariants: only the holder of the lock creates or removes files of images; only a manifest under its final name
//! makes an image; an image is removed manifest first, so that no manifest ever names segments that were removed.

use crate::catalog::{self, Catalog, SegmentKey, Table};
use crate::files;
use crate::hygiene::finish_repairs;
use crate::image::Image;
use crate::image_group::ImageGroup;
use crate::image_info::ImageInfo;
use crate::lineage::Lineage;
use crate::link_meter::LinkMeter;
use crate::names;
use crate::redundancy;
use crate::tier::{Entry, LocalTier, MemoryFirst, MemoryTier, Tier, TierError};
use crate::tier_folder::TierFolder;
use crate::writer::ImageWriter;
use crate::writing::{SegmentNames, WritingImages};
use crate::{StoreError, lock};
use holdfast_image::Epoch;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The file that is locked.
const LOCK: &str = "lock";

/// One job of a store.
#[derive(Clone, Debug)]
pub struct Job {
    name: String,
    dir: PathBuf,
    /// Where images are written and looked for first.
    folder: TierFolder,
    /// Its folder alone: the same, where it has no memory above it.
    store: TierFolder,
    /// What is in memory, if the job has such a tier.
    memory: Option<MemoryFirst>,
    /// Held while an image is removed, and while one is published below memory.
    settling: Arc<Mutex<()>>,
    /// What the first tier had when it was looked at last.
    catalog: Arc<Mutex<Catalog>>,
}

/// The right to change a job's images; released when dropped or when its holder dies.
#[derive(Debug)]
pub struct JobLock {
    /// Holds the lock.
    file: File,
    dir: PathBuf,
    /// Images that are being written under this lock.
    writing: WritingImages,
    /// How fast they were written.
    link: Arc<LinkMeter>,
}

impl JobLock {
    /// Whether the job's folder is still the one that was locked. Otherwise it was removed, and what is there now, if
    /// anything, belongs to another agent.
    pub fn is_in_place(&self) -> bool {
        let here = fs::symlink_metadata(self.dir.join(LOCK)).map(|there| (there.dev(), there.ino()));
        let held = self.file.metadata().map(|held| (held.dev(), held.ino()));
        here.is_ok_and(|here| held.is_ok_and(|held| here == held))
    }
}

impl Drop for JobLock {
    /// Not by closing alone: a child that another thread has just made has a copy of the descriptor until it executes
    /// something.
    fn drop(&mut self) {
        // Should it fail, closing releases it.
        let _ = lock::unlock(&self.file);
    }
}

/// What [`Job::clean`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CleanReport {
    /// Files that were removed, but for unfinished blobs.
    pub removed: Vec<PathBuf>,
    /// Bytes that all this made free.
    pub bytes: u64,
    /// Images whose manifest cannot be read; their segments were left alone.
    pub unreadable: Vec<Epoch>,
}

impl Job {
    /// `dir` was checked.
    pub(crate) fn new(name: &str, dir: PathBuf) -> Result<Job, StoreError> {
        let memory = MemoryFirst::of_job(&dir);
        let tier: Arc<dyn Tier> = match (&memory, MemoryTier::of_folder(&dir)) {
            (Some(first), _) => Arc::new(first.clone()),
            (None, Some(memory)) => Arc::new(memory),
            (None, None) => Arc::new(LocalTier::at(dir.clone())),
        };
        let folder = TierFolder::of(tier, "")?;
        let store = match &memory {
            Some(_) => TierFolder::of(Arc::new(LocalTier::at(dir.clone())), "")?,
            None => folder.clone(),
        };
        let (name, settling, catalog) = (name.to_owned(), Arc::default(), Arc::default());
        Ok(Job { name, dir, folder, store, memory, settling, catalog })
    }

    /// The same job, whose images are put into memory first: below `base`, which is in a tmpfs or on a file system with
    /// DAX.
    ///
    /// # Errors
    /// The memory cannot be had.
    pub fn with_memory(&self, base: &Path) -> Result<Job, TierError> {
        let made = MemoryFirst::make(base, &self.dir, &self.name)?;
        let folder = TierFolder::of(Arc::new(made.clone()), "")?;
        let store = TierFolder::of(Arc::new(LocalTier::at(self.dir.clone())), "")?;
        Ok(Job { folder, store, memory: Some(made), catalog: Arc::default(), ..self.clone() })
    }

    /// The memory that its images are put into first, if it has such a tier.
    pub fn memory(&self) -> Option<&MemoryFirst> {
        self.memory.as_ref()
    }

    /// Its folder in the store, without the memory above it.
    pub fn store_folder(&self) -> &TierFolder {
        &self.store
    }

    /// Where of the first tier an image is: in memory, in the folder.
    pub fn places(&self, epoch: Epoch) -> (bool, bool) {
        self.memory.as_ref().map_or((false, true), |memory| memory.has(epoch))
    }

    /// The file that makes an image one: its manifest, where it was written first.
    pub fn manifest_path(&self, epoch: Epoch) -> PathBuf {
        let name = names::manifest_name(epoch);
        if self.places(epoch).1 { self.dir.join(name) } else { self.folder.address(&name) }
    }

    /// A group of images that are to become durable together; `None`: the first tier is memory, where each is at once.
    ///
    /// # Errors
    /// No tier knows the name of its folder.
    pub fn group(&self) -> Result<Option<ImageGroup>, StoreError> {
        if self.memory.is_some() || self.is_in_memory() {
            return Ok(None);
        }
        ImageGroup::new(&self.dir).map(Some)
    }

    /// Whether the store itself is in memory.
    pub fn is_in_memory(&self) -> bool {
        MemoryTier::of_folder(&self.dir).is_some()
    }

    /// Its memory goes, with the images that are only there.
    ///
    /// # Errors
    /// As rmdir(2).
    pub fn discard_memory(&self) -> io::Result<()> {
        self.memory.as_ref().map_or(Ok(()), MemoryFirst::discard)
    }

    /// Held while no image of the first tier is removed.
    pub(crate) fn settle(&self) -> MutexGuard<'_, ()> {
        self.settling.lock()
    }
    /// The same job, whose images are written to this folder, and looked for there first. All else stays where it is.
    pub fn with_first_tier(mut self, folder: TierFolder) -> Job {
        (self.folder, self.catalog) = (folder, Arc::default());
        self
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// Where its images are written and looked for first.
    pub fn folder(&self) -> &TierFolder {
        &self.folder
    }
    /// Where restarts keep what they take from files of the program.
    pub fn saved_dir(&self) -> PathBuf {
        self.dir.join("saved")
    }
    /// Where its agent listens. The path may be longer than an address of unix(7) can hold (107 bytes).
    pub fn socket_path(&self) -> PathBuf {
        self.dir.join("agent.sock")
    }

    fn lock_path(&self) -> PathBuf {
        self.dir.join(LOCK)
    }

    /// Takes the job's lock, without waiting.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when a live process has it.
    pub fn lock(&self) -> Result<JobLock, StoreError> {
        let path = self.lock_path();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(StoreError::io("open", &path))?;
        file.set_permissions(Permissions::from_mode(0o600))
            .map_err(StoreError::io("change the mode of", &path))?;
        if !lock::try_lock(&file).map_err(StoreError::io("lock", &path))? {
            let mut text = String::new();
            let pid = match file.take(20).read_to_string(&mut text) {
                Ok(_) => text.trim().parse().unwrap_or(0),
                Err(_) => 0,
            };
            return Err(StoreError::Locked { path, pid });
        }
        // For messages only: a full disk must not keep the agent from starting.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(JobLock { file, dir: self.dir.clone(), writing: WritingImages::default(), link: Arc::default() })
    }

    /// Whether a live process has the lock.
    pub fn is_live(&self) -> bool {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(self.lock_path());
        opened.and_then(|file| lock::is_locked(&file)).unwrap_or(false)
    }

    pub(crate) fn check_lock(&self, lock: &JobLock) -> Result<(), StoreError> {
        if lock.dir != self.dir {
            return Err(StoreError::misuse(&self.dir, format!("the lock is that of {}", lock.dir.display())));
        }
        if !lock.is_in_place() {
            return Err(StoreError::Replaced { path: self.dir.clone() });
        }
        Ok(())
    }

    /// How the job was started (`job.json`).
    ///
    /// # Errors
    /// It is not there or is not JSON.
    pub fn recipe(&self) -> Result<serde_json::Value, StoreError> {
        let path = self.dir.join("job.json");
        let bytes = files::read_checked(&path, files::MAX_RECIPE_LEN)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| StoreError::corrupt(&path, offset_of(&bytes, &error), error.to_string()))
    }

    /// Whether it is known how the job was started.
    ///
    /// # Errors
    /// It cannot be seen.
    pub fn has_recipe(&self) -> Result<bool, StoreError> {
        let path = self.dir.join("job.json");
        match fs::symlink_metadata(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(StoreError::io("look at", &path)(error)),
        }
    }

    /// Replaces `job.json`, atomically and durably.
    ///
    /// # Errors
    /// It cannot be written; the old one is still there.
    pub fn write_recipe(&self, recipe: &serde_json::Value) -> Result<(), StoreError> {
        let text = format!("{recipe:#}\n");
        files::replace(&self.dir, "job.json", text.as_bytes())
    }

    /// All committed images of the first tier, ascending. One whose manifest or segments cannot be used is listed with
    /// the reason.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn images(&self) -> Result<Vec<ImageInfo>, StoreError> {
        Ok(self.catalog()?.images(&self.folder))
    }

    /// One image of the first tier, by its manifest alone: whether its segments are there is not looked at.
    ///
    /// # Errors
    /// The manifest cannot be read, or is damaged.
    pub fn image(&self, epoch: Epoch) -> Result<Option<ImageInfo>, StoreError> {
        match catalog::read(&self.folder, epoch) {
            None => Ok(None),
            Some(Table::Known { info, .. }) => Ok(Some(info)),
            Some(Table::Damaged(error) | Table::Unseen(error)) => Err(error.into()),
        }
    }

    /// What the first tier has now.
    ///
    /// # Errors
    /// The folder cannot be listed: then nothing is known, not that there is nothing.
    pub(crate) fn catalog(&self) -> Result<MutexGuard<'_, Catalog>, TierError> {
        let mut catalog = self.catalog.lock();
        catalog.renew(&self.folder)?;
        Ok(catalog)
    }

    /// What it had when it was looked at last.
    pub(crate) fn last_catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock()
    }

    /// 1 + the largest number that the name of any manifest, segment or set has.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn next_epoch(&self) -> Result<Epoch, StoreError> {
        let blobs = self.folder.tier().list(self.folder.folder())?.blobs;
        let number = |entry: &Entry| {
            let file = entry.name.file();
            let of_set = || names::of_set(file).map(|(_, number)| number);
            names::parse_name(file).map(|name| name.epoch().0).or_else(of_set)
        };
        let largest = blobs.iter().filter_map(number).max();
        match largest.unwrap_or(0).checked_add(1) {
            Some(next) => Ok(Epoch(next)),
            None => Err(StoreError::misuse(&self.dir, "no number is left for a new image")),
        }
    }

    /// Removes what a crash left: unfinished blobs, segments that no manifest names, temporary files, the socket of a
    /// dead agent.
    ///
    /// Segments that a manifest which cannot be read might name are left alone: a copy of it may exist. What belongs to
    /// images that are being written under this lock, and what they may need of their parents, is left alone as well.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn clean(&self, lock: &JobLock) -> Result<CleanReport, StoreError> {
        self.check_lock(lock)?;
        let mut report = CleanReport::default();
        for path in self.own_garbage()? {
            report.bytes += fs::symlink_metadata(&path).map_or(0, |meta| meta.len());
            files::remove(&path)?;
            report.removed.push(path);
        }
        finish_repairs(&self.folder)?;
        let seen = self.seen()?;
        if lock.writing.all().is_empty() {
            report.bytes += self.folder.clean()? + redundancy::clean(&self.folder)?;
        }
        for entry in self.garbage(&seen, lock)? {
            self.folder.remove(entry.name.file())?;
            report.bytes += entry.len;
            report.removed.push(self.folder.address(entry.name.file()));
        }
        report.unreadable = self.last_catalog().unreadable().map(Epoch).collect();
        Ok(report)
    }

    /// Files of its own that nothing needs.
    fn own_garbage(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut garbage: Vec<PathBuf> =
            files::temporary(&self.dir)?.into_iter().filter(|path| is_left_behind(path)).collect();
        garbage.extend(Some(self.socket_path()).filter(|path| path.exists() && self.socket_is_dead()));
        Ok(garbage)
    }

    /// What [`Job::clean`] would remove: names of files, and their bytes. What memory keeps for the next image is not
    /// among it.
    ///
    /// # Errors
    /// A folder cannot be listed.
    pub fn leftovers(&self, lock: &JobLock) -> Result<Vec<(String, u64)>, StoreError> {
        self.check_lock(lock)?;
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let len = |path: &Path| fs::symlink_metadata(path).map_or(0, |meta| meta.len());
        let mut found: Vec<(String, u64)> =
            self.own_garbage()?.iter().map(|path| (name(path), len(path))).collect();
        let seen = self.seen()?;
        if lock.writing.all().is_empty() {
            let parts = files::unfinished(&self.dir)?;
            found.extend(parts.iter().map(|path| (name(path), len(path))));
            let sets = redundancy::left_over(&self.folder)?;
            found.extend(sets.iter().map(|entry| (entry.name.file().to_owned(), entry.len)));
        }
        let garbage = self.garbage(&seen, lock)?;
        found.extend(garbage.iter().map(|entry| (entry.name.file().to_owned(), entry.len)));
        Ok(found)
    }

    /// Removes the socket of an agent that was killed; nothing while one lives, or another process has the lock. Fails
    /// by leaving it there.
    pub fn remove_dead_socket(&self) {
        let path = self.socket_path();
        // The holder of the lock is the agent, or removes it itself.
        if fs::symlink_metadata(&path).is_ok()
            && let Ok(_lock) = self.lock()
            && self.socket_is_dead()
        {
            let _ = files::remove(&path);
        }
    }

    /// No process listens on the socket. The folder is reached by a short path, since addresses have 107 bytes; a live
    /// socket of another type answers EPROTOTYPE (unix(7), net/unix/af_unix.c: unix_find_bsd).
    fn socket_is_dead(&self) -> bool {
        use std::os::fd::AsRawFd;
        let Ok(folder) = File::open(&self.dir) else { return false };
        let short = format!("/proc/self/fd/{}/agent.sock", folder.as_raw_fd());
        UnixStream::connect(short).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Begins an image; with a parent it is an increment, which stores only what is not as in the parent.
    ///
    /// # Errors
    /// The number is in use, or the parent is not an earlier image of this job.
    pub fn begin(
        &self,
        lock: &JobLock,
        epoch: Epoch,
        parent: Option<Arc<Lineage>>,
    ) -> Result<ImageWriter, StoreError> {
        self.begin_at(&self.folder, lock, epoch, parent)
    }

    /// The same; its commit makes it one of the group.
    ///
    /// # Errors
    /// As [`Job::begin`].
    pub fn begin_in(
        &self,
        group: &ImageGroup,
        lock: &JobLock,
        epoch: Epoch,
        parent: Option<Arc<Lineage>>,
    ) -> Result<ImageWriter, StoreError> {
        self.begin_at(group.folder(), lock, epoch, parent)
    }

    fn begin_at(
        &self,
        folder: &TierFolder,
        lock: &JobLock,
        epoch: Epoch,
        parent: Option<Arc<Lineage>>,
    ) -> Result<ImageWriter, StoreError> {
        self.check_lock(lock)?;
        if let Some(parent) = &parent
            && (parent.tables.folder.shown() != self.folder.shown() || parent.epoch() >= epoch)
        {
            let what = format!(
                "image {} of {} cannot be the parent of image {epoch}",
                parent.epoch(),
                parent.tables.folder.shown().display()
            );
            return Err(StoreError::misuse(&self.dir, what));
        }
        if let Some(parent) = &parent
            && !parent.may_be_parent()
        {
            let what =
                format!("image {} has segments on other tiers: no increment can build on it", parent.epoch());
            return Err(StoreError::misuse(&self.dir, what));
        }
        let used =
            self.has_blob(&names::manifest_name(epoch))? || self.has_blob(&names::segment_name(epoch, 0))?;
        let inherited: SegmentNames = parent
            .iter()
            .flat_map(|parent| &parent.tables.entries)
            .map(|entry| (entry.epoch, entry.number))
            .collect();
        let writing = Some(epoch).filter(|epoch| epoch.0 > 0 && !used);
        let Some(writing) = writing.and_then(|epoch| lock.writing.begin(epoch, inherited)) else {
            return Err(StoreError::misuse(&self.dir, format!("image number {epoch} is in use")));
        };
        ImageWriter::new(folder, epoch, parent, Arc::clone(&lock.link), writing)
    }

    /// Opens an image of the first tier for restart: manifest and index are checked, and that its segments are there.
    ///
    /// # Errors
    /// There is no such image, or it is not intact.
    pub fn open_image(&self, epoch: Epoch) -> Result<Image, StoreError> {
        self.open_image_from(epoch, &[])
    }

    /// Opens an image whose manifest and segments may be on the first tier or on those `below`, fastest first.
    ///
    /// # Errors
    /// There is no such image, or it is intact nowhere.
    pub fn open_image_from(&self, epoch: Epoch, below: &[TierFolder]) -> Result<Image, StoreError> {
        // Where a copy in memory is damaged, that of the folder below is read.
        let own = self.memory.iter().map(|_| self.store.clone());
        let folders: Vec<TierFolder> =
            [self.folder.clone()].into_iter().chain(own).chain(below.iter().cloned()).collect();
        Image::open(&folders, epoch)
    }

    /// Removes an image from the first tier, manifest first, and every segment that no image needs any more. Returns
    /// the bytes that this made free: none of the segments of which later images still need pages.
    ///
    /// # Errors
    /// There is no such image, or a file cannot be removed.
    pub fn remove_image(&self, lock: &JobLock, epoch: Epoch) -> Result<u64, StoreError> {
        if !self.has_blob(&names::manifest_name(epoch))? {
            return Err(StoreError::NoImage { path: self.dir.clone(), epoch });
        }
        self.remove_images(lock, &BTreeSet::from([epoch]))
    }

    /// The same of several, in one pass. Those that are not there need not be removed.
    ///
    /// # Errors
    /// A file cannot be removed: what is left is left to the next call.
    pub fn remove_images(&self, lock: &JobLock, epochs: &BTreeSet<Epoch>) -> Result<u64, StoreError> {
        self.check_lock(lock)?;
        let _settled = self.settle();
        let seen = self.seen()?;
        let mut bytes = 0;
        for epoch in epochs {
            let Some(len) = seen.manifests.get(&epoch.0) else { continue };
            self.folder.remove(&names::manifest_name(*epoch))?;
            bytes += len;
        }
        for entry in self.garbage(&seen, lock)? {
            self.folder.remove(entry.name.file())?;
            bytes += entry.len;
        }
        Ok(bytes)
    }

    fn seen(&self) -> Result<Seen, TierError> {
        let catalog = self.catalog()?;
        let manifests = catalog.versions.iter().map(|(number, version)| (*number, version.manifest.len));
        Ok(Seen { segments: catalog.segments.keys().copied().collect(), manifests: manifests.collect() })
    }

    fn has_blob(&self, file: &str) -> Result<bool, StoreError> {
        match self.folder.tier().open(&self.folder.blob(file)?) {
            Ok(_) => Ok(true),
            Err(TierError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The segments among those that were seen that no image names, and none that is being written under this lock, nor
    /// what that may need of its parent. An image may be committed while they are looked at: what is written is looked
    /// at first, and then once more what is there.
    fn garbage(&self, seen: &Seen, lock: &JobLock) -> Result<Vec<Entry>, TierError> {
        let writing = lock.writing.all();
        let now = self.catalog()?;
        let is_needed = |(epoch, number): SegmentKey| {
            let key = (Epoch(epoch), number);
            writing.contains_key(&key.0) || writing.values().any(|inherited| inherited.contains(&key))
        };
        let goes = now.garbage().filter(|(key, _)| seen.segments.contains(key) && !is_needed(*key));
        Ok(goes.map(|(_, entry)| entry.clone()).collect())
    }
}

/// What was there before it was decided what goes.
struct Seen {
    segments: BTreeSet<SegmentKey>,
    /// With their lengths.
    manifests: BTreeMap<u64, u64>,
}

/// Byte offset of a place that serde_json gives as line and column.
fn offset_of(bytes: &[u8], error: &serde_json::Error) -> u64 {
    let before: usize =
        bytes.split_inclusive(|&b| b == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    (before + error.column().saturating_sub(1)) as u64
}

/// Whether a temporary file is older than anybody needs to give it its name. A recipe is written without the lock:
/// the job may run, or it may just be listed.
fn is_left_behind(path: &Path) -> bool {
    const PATIENCE: Duration = Duration::from_secs(60);
    let age = fs::symlink_metadata(path).and_then(|meta| meta.modified()).map(|time| time.elapsed());
    // A time to come tells nothing of the age: the file stays until that has passed.
    age.is_ok_and(|age| age.is_ok_and(|age| age > PATIENCE))
}
