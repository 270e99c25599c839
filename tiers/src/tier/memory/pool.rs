//! How much memory the tier takes, and the files that are kept to be written again.
//!
//! Called by [`super::MemoryTier`] and its writers.
//! A new page from the kernel costs several times what its filling costs (docs/history/store.md). So the file of a
//! blob that was removed becomes a *spare*, if nothing else has it open or mapped: it loses its name, stays mapped, and
//! is the next blob's file. One that is in use elsewhere, as the memory of a program that was restarted lazily, is only
//! removed, and the kernel keeps its bytes for as long as they are needed.
//! Invariants: files under the folder, spares and unfinished ones included, take at most `max` bytes, as far as this
//! process can know (what other agents write there is looked at once a second, and before anything is refused); a
//! spare has been alone with this process since its name was lost.

use super::mapped::{Mapped, is_alone};
use crate::tier::{TierError, posix};
use nix::sys::statfs::{Statfs, statfs};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Smaller files are not worth being kept.
pub(super) const LEAST: u64 = 256 << 10;
/// How long what other agents take up is believed.
const FRESH: Duration = Duration::from_secs(1);
/// Most folders below each other: those of a blob's name.
const DEPTH: u32 = 4;

/// Most blobs whose files stay mapped: each has a descriptor.
const MOST_KEPT: usize = 256;

/// A file with all its memory. In no blob: a spare.
pub(super) struct Memory {
    pub file: File,
    pub mapped: Mapped,
    /// The name that it has.
    pub path: PathBuf,
}

/// See the head of the file.
pub(super) struct Pool {
    root: PathBuf,
    max: AtomicU64,
    dax: bool,
    state: Mutex<State>,
}

struct State {
    spares: Vec<Memory>,
    /// Blobs are written here: what is removed will be used again. A command that only removes gives it back.
    writes: bool,
    /// There was no room, and nothing was published since: what is removed makes room.
    full: bool,
    /// Files of blobs, which stay mapped: to unmap them, and to map them again, would take longer than to fill them.
    kept: HashMap<PathBuf, Memory>,
    /// Bytes in use, by the last look and what was done since.
    used: u64,
    looked: Option<Instant>,
}

impl State {
    fn give_up_largest(&mut self) -> bool {
        let Some(at) = (0..self.spares.len()).max_by_key(|at| self.spares[*at].mapped.len()) else {
            return false;
        };
        self.give_up(at);
        true
    }

    fn give_up(&mut self, at: usize) {
        let spare = self.spares.swap_remove(at);
        self.used = self.used.saturating_sub(spare.mapped.len() as u64);
        discard(&spare);
    }
}

/// Bytes of the memory that the files in a folder take.
fn bytes_in(folder: &Path, depth: u32) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    // What vanishes meanwhile takes nothing.
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && depth > 0 => bytes_in(&entry.path(), depth - 1),
        // stat(3type): st_blocks counts 512 bytes each.
        Ok(meta) if meta.is_file() => meta.blocks() * 512,
        _ => 0,
    });
    sizes.sum()
}

impl Pool {
    pub(super) fn new(root: PathBuf, max: u64, dax: bool) -> Pool {
        let (spares, kept) = (Vec::new(), HashMap::new());
        let state = State { spares, writes: false, full: false, kept, used: 0, looked: None };
        Pool { root, max: max.into(), dax, state: Mutex::new(state) }
    }

    /// Changes what may be used.
    pub(super) fn limit(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Bytes in use, looked up now.
    pub(super) fn look(&self) -> u64 {
        let mut state = self.state.lock();
        state.used = bytes_in(&self.root, DEPTH);
        state.looked = Some(Instant::now());
        state.used
    }

    /// Whether files are to be made durable: those of DAX.
    pub(super) fn is_dax(&self) -> bool {
        self.dax
    }

    /// Takes `bytes` of what may be used; for that, gives up spares.
    pub(super) fn reserve(&self, bytes: u64, object: &Path) -> Result<(), TierError> {
        let mut state = self.state.lock();
        let is_full = |state: &State| state.used.saturating_add(bytes) > self.max();
        if is_full(&state) || state.looked.is_none_or(|looked| looked.elapsed() > FRESH) {
            state.used = bytes_in(&self.root, DEPTH);
            state.looked = Some(Instant::now());
            // What other processes have removed would keep its memory as long as it is mapped here.
            state.kept.retain(|_, kept| is_named(&kept.file));
        }
        while is_full(&state) {
            if !state.give_up_largest() {
                state.full = true;
                return Err(TierError::Full { object: posix::shown(object) });
            }
        }
        state.used += bytes;
        Ok(())
    }

    /// The file system has no room: gives up a spare, if there is one.
    pub(super) fn give_up_largest(&self) -> bool {
        let mut state = self.state.lock();
        let given_up = state.give_up_largest();
        state.full |= !given_up;
        given_up
    }

    /// A blob was published: there is room.
    pub(super) fn published(&self) {
        self.state.lock().full = false;
    }

    /// Gives bytes back that were reserved and are not, or no longer, in use.
    pub(super) fn release(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.used = state.used.saturating_sub(bytes);
    }

    /// The spare that suits a blob of this length best: the smallest that is long enough, but not one that would be
    /// mostly cut off; else the longest.
    pub(super) fn take(&self, expected: Option<u64>) -> Option<Memory> {
        let mut state = self.state.lock();
        state.writes = true;
        let fits = |len: u64| expected.is_none_or(|expected| len / 2 <= expected);
        loop {
            let lens = state.spares.iter().map(|spare| spare.mapped.len() as u64).enumerate();
            let (at, _) = lens.filter(|(_, len)| fits(*len)).min_by_key(|(_, len)| match expected {
                Some(expected) if *len >= expected => (0, len - expected),
                _ => (1, u64::MAX - len),
            })?;
            if is_named(&state.spares[at].file) {
                return Some(state.spares.swap_remove(at));
            }
            // Another process has removed its name, and it could not be given a new one.
            state.give_up(at);
        }
    }

    /// Takes note of the file of a blob that was just finished.
    pub(super) fn keep(&self, blob: Memory) {
        let mut state = self.state.lock();
        if state.kept.len() < MOST_KEPT {
            state.kept.insert(blob.path.clone(), blob);
        }
    }

    /// Takes a blob's file away, and keeps its memory if it may; whether there was one.
    pub(super) fn remove(&self, path: &Path) -> Result<bool, TierError> {
        let kept = self.state.lock().kept.remove(path);
        let len = match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_file() => meta.len(),
            _ => 0,
        };
        if len >= LEAST && self.wants(len) {
            match self.recycle(path, kept) {
                Ok(()) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
                // It is removed like any other.
                Err(_) => {}
            }
        }
        let removed = posix::remove(path)?;
        if removed {
            self.release(len);
        }
        Ok(removed)
    }

    /// Whether a spare of this length may be kept: all of them take at most half of what there is.
    fn wants(&self, len: u64) -> bool {
        let size = statfs(&self.root).map_or(0, |system| size_of(&system));
        let state = self.state.lock();
        let spares: u64 = state.spares.iter().map(|spare| spare.mapped.len() as u64).sum();
        state.writes && !state.full && spares + len <= self.max().min(size) / 2
    }

    /// Makes a spare of a file. After an error it has its name, or none.
    fn recycle(&self, path: &Path, kept: Option<Memory>) -> io::Result<()> {
        let (file, mapped) = match kept {
            Some(Memory { file, mapped, .. }) => (file, Some(mapped)),
            None => (open(path)?, None),
        };
        let part = posix::part_of(&path.with_file_name("spare"));
        posix::rename_new(path, &part)?;
        match prepare(file, mapped, part.clone(), self.dax) {
            Ok(Some(spare)) => self.state.lock().spares.push(spare),
            Ok(None) | Err(_) => {
                let len = fs::symlink_metadata(&part).map_or(0, |meta| meta.len());
                fs::remove_file(&part)?;
                self.release(len);
            }
        }
        Ok(())
    }

    /// Makes a spare of `bytes` new pages.
    pub(super) fn add(&self, folder: &Path, bytes: u64) -> Result<(), TierError> {
        let path = folder.join("spare");
        self.reserve(bytes, &path)?;
        let failed = || TierError::io("create", posix::shown(&path));
        let (file, part) =
            posix::create_part(&path, 0).map_err(failed()).inspect_err(|_| self.release(bytes))?;
        let made = fill(&file, bytes).and_then(|()| {
            drop(file);
            prepare(open(&part)?, None, part.clone(), self.dax)
        });
        match made {
            Ok(Some(spare)) => {
                self.state.lock().spares.push(spare);
                Ok(())
            }
            other => {
                // The error is the one to report; a file that is left is removed by `clean`.
                let _ = fs::remove_file(&part);
                self.release(bytes);
                other.map(|_| ()).map_err(failed())
            }
        }
    }

    /// Gives up the spares of a folder.
    pub(super) fn give_up(&self, folder: &Path) {
        let mut state = self.state.lock();
        for at in (0..state.spares.len()).rev() {
            if state.spares[at].path.parent() == Some(folder) {
                state.give_up(at);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.state.get_mut().spares.iter().for_each(discard);
    }
}

fn discard(spare: &Memory) {
    // One that cannot be removed now is removed by `clean`.
    let _ = fs::remove_file(&spare.path);
}

/// Has the kernel give a file its pages; an error where a store into a mapping would end the process.
fn fill(file: &File, bytes: u64) -> io::Result<()> {
    let len = i64::try_from(bytes).map_err(io::Error::other)?;
    nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::empty(), 0, len).map_err(io::Error::from)
}

/// Opens a file so that it can be mapped for writing.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Whether a file still has a name: only then can it be given another.
fn is_named(file: &File) -> bool {
    file.metadata().is_ok_and(|meta| meta.nlink() > 0)
}

/// A spare, if the file of that name is this one, and alone with us. `mapped`: what is mapped of it already.
fn prepare(file: File, mapped: Option<Mapped>, path: PathBuf, dax: bool) -> io::Result<Option<Memory>> {
    let (own, named) = (file.metadata()?, fs::symlink_metadata(&path)?);
    let same = (own.dev(), own.ino(), own.nlink()) == (named.dev(), named.ino(), 1);
    // Pages that are missing would be asked for in the middle of a store.
    let whole = own.blocks() * 512 >= own.len();
    if !same || !whole || posix::others_may_write(&own).is_some() || !is_alone(&file) {
        return Ok(None);
    }
    let len = usize::try_from(own.len()).map_err(io::Error::other)?;
    let mapped = match mapped {
        Some(mapped) if mapped.len() == len => mapped,
        _ => {
            let mapped = Mapped::new(&file, len, dax)?;
            mapped.populate()?;
            mapped
        }
    };
    Ok(Some(Memory { file, mapped, path }))
}

/// Bytes that a file system can hold. What it has may change while it is in use: its own answer to a write counts.
pub(super) fn size_of(system: &Statfs) -> u64 {
    match system.blocks().saturating_mul(u64::try_from(system.block_size()).unwrap_or(0)) {
        // ramfs, and a tmpfs without limit.
        0 => u64::MAX,
        size => size,
    }
}
