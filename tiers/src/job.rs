//! A job's folder: its lock, its recipe, its images, and what a crash may have left in it.
//!
//! Called by every command and by the agent.
//! Invariants: only the holder of the lock creates or removes files of images; only a manifest under its final name
//! makes an image; an image is removed manifest first, so that no manifest ever names segments that were removed.

use crate::files::{self, FileName};
use crate::format::manifest::{MAX_LEN, Manifest};
use crate::image::Image;
use crate::image_info::ImageInfo;
use crate::lineage::Lineage;
use crate::writer::ImageWriter;
use crate::writing::{SegmentNames, WritingImages};
use crate::{StoreError, lock};
use holdfast_image::Epoch;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest `job.json` that is read, bytes.
const MAX_RECIPE_LEN: u64 = 16 << 20;

/// The file that is locked.
const LOCK: &str = "lock";

/// One job of a store.
#[derive(Clone, Debug)]
pub struct Job {
    name: String,
    dir: PathBuf,
}

/// The right to change a job's images; released when dropped or when the process dies.
#[derive(Debug)]
pub struct JobLock {
    /// Holds the lock.
    file: File,
    dir: PathBuf,
    /// Images that are being written by this process.
    writing: WritingImages,
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
    /// Not by closing alone: a process that another thread has just made has a copy of the descriptor until it
    /// executes something.
    fn drop(&mut self) {
        // Should it fail, closing lets go of it.
        let _ = lock::unlock(&self.file);
    }
}

/// What [`Job::clean`] did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CleanReport {
    /// Files that were removed.
    pub removed: Vec<PathBuf>,
    /// Bytes that this made free.
    pub bytes: u64,
    /// Images whose manifest cannot be read; their segments were left alone.
    pub unreadable: Vec<Epoch>,
}

impl Job {
    pub(crate) fn new(name: &str, dir: PathBuf) -> Job {
        Job { name: name.to_owned(), dir }
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
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
        Ok(JobLock { file, dir: self.dir.clone(), writing: WritingImages::default() })
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
        let bytes = files::read_checked(&path, MAX_RECIPE_LEN)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| StoreError::corrupt(&path, offset_of(&bytes, &error), error.to_string()))
    }

    /// Replaces `job.json`, atomically and durably.
    ///
    /// # Errors
    /// It cannot be written; the old one is still there.
    pub fn write_recipe(&self, recipe: &serde_json::Value) -> Result<(), StoreError> {
        let text = format!("{recipe:#}\n");
        let temp = files::write_temp(&self.dir, "job.json", text.as_bytes())?;
        files::rename(&self.dir, &temp, "job.json").map(|_| ())
    }

    /// All committed images, ascending. One whose manifest or segments cannot be used is listed with the reason.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn images(&self) -> Result<Vec<ImageInfo>, StoreError> {
        let mut images: Vec<ImageInfo> = files::list(&self.dir)?
            .into_iter()
            .filter_map(|(name, path)| match name {
                FileName::Manifest(epoch) => Some(ImageInfo::read(&self.dir, epoch, &path)),
                _ => None,
            })
            .collect();
        images.sort_unstable_by_key(|image| image.epoch);
        Ok(images)
    }

    /// 1 + the largest number that any file name in the folder has.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn next_epoch(&self) -> Result<Epoch, StoreError> {
        let largest = files::list(&self.dir)?
            .into_iter()
            .filter_map(|(name, _)| match name {
                FileName::Manifest(e) | FileName::Segment(e, _) | FileName::TempManifest(e) => Some(e.0),
                FileName::Temp | FileName::Other => None,
            })
            .max();
        match largest.unwrap_or(0).checked_add(1) {
            Some(next) => Ok(Epoch(next)),
            None => Err(StoreError::misuse(&self.dir, "no number is left for a new image")),
        }
    }

    /// Removes what a crash left: segments that no manifest names, temporary files, the socket of a dead agent.
    ///
    /// Segments that a manifest which cannot be read might name are left alone: a copy of it may exist. Files of images
    /// that this process is writing, and what they may need of their parents, are left alone as well.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn clean(&self, lock: &JobLock) -> Result<CleanReport, StoreError> {
        self.check_lock(lock)?;
        let found = files::list(&self.dir)?;
        let needed = Needed::by(&found, lock);
        let mut report = CleanReport::default();
        for (name, path) in &found {
            let garbage = match name {
                FileName::Segment(epoch, number) => !needed.segment(*epoch, *number),
                FileName::TempManifest(epoch) => !needed.writing.contains_key(epoch),
                FileName::Temp => is_left_behind(path),
                FileName::Manifest(_) | FileName::Other => {
                    *path == self.socket_path() && self.socket_is_dead()
                }
            };
            if garbage {
                report.bytes += fs::symlink_metadata(path).map_or(0, |meta| meta.len());
                files::remove(path)?;
                report.removed.push(path.clone());
            }
        }
        report.unreadable = needed.unreadable.into_iter().collect();
        Ok(report)
    }

    /// Removes the socket of an agent that was killed; nothing while one lives, or somebody else has the lock. Fails by
    /// leaving it there.
    pub fn remove_dead_socket(&self) {
        let path = self.socket_path();
        // Whoever holds the lock is the agent, or removes it himself.
        if fs::symlink_metadata(&path).is_ok()
            && let Ok(_lock) = self.lock()
            && self.socket_is_dead()
        {
            let _ = files::remove(&path);
        }
    }

    /// Nobody listens on the socket. The folder is reached by a short path, since addresses have 107 bytes; a live
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
        self.check_lock(lock)?;
        if let Some(parent) = &parent
            && (parent.tables.dir != self.dir || parent.epoch() >= epoch)
        {
            let what = format!(
                "image {} of {} cannot be the parent of image {epoch}",
                parent.epoch(),
                parent.tables.dir.display()
            );
            return Err(StoreError::misuse(&self.dir, what));
        }
        let used = files::list(&self.dir)?.into_iter().any(|(name, _)| match name {
            FileName::Manifest(e) | FileName::Segment(e, _) => e == epoch,
            FileName::TempManifest(_) | FileName::Temp | FileName::Other => false,
        });
        let inherited: SegmentNames = parent
            .iter()
            .flat_map(|parent| &parent.tables.entries)
            .map(|entry| (entry.epoch, entry.number))
            .collect();
        let writing = Some(epoch).filter(|epoch| epoch.0 > 0 && !used);
        let Some(writing) = writing.and_then(|epoch| lock.writing.begin(epoch, inherited)) else {
            return Err(StoreError::misuse(&self.dir, format!("image number {epoch} is in use")));
        };
        ImageWriter::new(&self.dir, epoch, parent, writing)
    }

    /// Opens an image for restart: manifest, process record and index are checked, and that its segments are there.
    ///
    /// # Errors
    /// There is no such image, or it is not intact.
    pub fn open_image(&self, epoch: Epoch) -> Result<Image, StoreError> {
        Image::open(&self.dir, epoch)
    }

    /// Removes an image, manifest first, and every segment that no image needs any more. Returns the bytes that this
    /// made free: none of the segments of which later images still need pages.
    ///
    /// # Errors
    /// There is no such image, or a file cannot be removed.
    pub fn remove_image(&self, lock: &JobLock, epoch: Epoch) -> Result<u64, StoreError> {
        self.check_lock(lock)?;
        let manifest = self.dir.join(files::manifest_name(epoch));
        let mut bytes = match fs::symlink_metadata(&manifest) {
            Ok(meta) => meta.len(),
            Err(_) => return Err(StoreError::NoImage { path: self.dir.clone(), epoch }),
        };
        files::remove(&manifest)?;
        files::sync_folder(&self.dir)?;
        let found = files::list(&self.dir)?;
        let needed = Needed::by(&found, lock);
        for (name, path) in &found {
            if let FileName::Segment(e, number) = name
                && !needed.segment(*e, *number)
            {
                bytes += fs::symlink_metadata(path).map_or(0, |meta| meta.len());
                files::remove(path)?;
            }
        }
        Ok(bytes)
    }
}

/// What the images of a job, those being written included, need.
struct Needed {
    /// Segments that a readable manifest names.
    named: SegmentNames,
    /// Images whose manifest is not readable.
    unreadable: BTreeSet<Epoch>,
    /// Images that are being written, with the segments of their parents.
    writing: BTreeMap<Epoch, SegmentNames>,
}

impl Needed {
    fn by(found: &[(FileName, PathBuf)], lock: &JobLock) -> Needed {
        let writing = lock.writing.all();
        let mut needed = Needed { named: BTreeSet::new(), unreadable: BTreeSet::new(), writing };
        for (name, path) in found {
            let FileName::Manifest(epoch) = name else { continue };
            let segments = files::read_checked(path, MAX_LEN).and_then(|bytes| {
                Manifest::open(&bytes).and_then(|m| m.segments()).map_err(StoreError::format(path))
            });
            match segments {
                Ok(segments) => needed.named.extend(segments.into_iter().map(|s| (s.epoch, s.number))),
                Err(_) => {
                    needed.unreadable.insert(*epoch);
                }
            }
        }
        needed
    }

    /// Whether a segment must stay. An image names segments of its own and earlier epochs, so that one whose manifest
    /// is not readable may need any of those.
    fn segment(&self, epoch: Epoch, number: u32) -> bool {
        self.named.contains(&(epoch, number))
            || self.writing.contains_key(&epoch)
            || self.writing.values().any(|inherited| inherited.contains(&(epoch, number)))
            || self.unreadable.last().is_some_and(|last| epoch <= *last)
    }
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
