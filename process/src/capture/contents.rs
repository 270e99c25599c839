//! What is in the regular files that the programs change: read inside the stop, as far as it is not known.
//!
//! Which files these are [`super::written_files`] says. Without it a restart finds files as they are then: cut back to
//! their lengths, but not unwritten where they were overwritten, and not made anew where they were removed.
//! [`Contents::take`] is called inside the stop; what it reads becomes pages of a space that no process has
//! ([`holdfast_image::address_space::FILES`]), which the store compares, compresses and keeps like memory. What was
//! not written for a while [`Contents::read_ahead`] has read before the stop.
//!
//! What must hold: what was read before counts only if it was read when the file's times had been the same for a while
//! (a file system's clock may stand still for some milliseconds), they are the same now, and no process maps it for
//! writing, then or now: that may change no time. How it fails: by [`Unsaved`]; no image then.

use super::closed_files::ClosedFiles;
use super::identity::owner_of;
use super::open_file::OpenFile;
use super::running_files::{changed_in_place, mapped_for_writing};
use super::written_files::{self, Key, Process, Saving, Sight, Survey, Unsaved, Written, unreadable};
use crate::freeze::frozen_memory::SavedPages;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{FileContent, FileTable, UnsavedFile};
use holdfast_image::refusal::Refusal;
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::clock;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// How old the times of a file must be before what is read of it is trusted to change them when it changes.
const SETTLED: Duration = Duration::from_secs(2);
/// Least room of a file's place, so that it keeps it when it grows, and the room of a whole space.
const LEAST_ROOM: u64 = 1 << 30;
const SPACE_LEN: u64 = 1 << 47;

/// Length, and times of content and of status: seconds and nanoseconds.
type Stamp = (u64, [i64; 4]);

/// What is known of a file since it was last looked at.
#[derive(Clone, Debug)]
struct Known {
    start: Addr,
    room: u64,
    stamp: Stamp,
    /// It was read when these times were old, and no process mapped it for writing: when it is changed, they are.
    settled: bool,
    pages: PageSet,
    /// A committed image has it.
    stored: bool,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<Key, Known>,
    /// What was read before the stop.
    ahead: Option<Ahead>,
    /// Bytes that were read last.
    last_len: usize,
}

/// What was read before a stop.
#[derive(Debug, Default)]
struct Ahead {
    saved: SavedPages,
    files: HashMap<Key, Known>,
    /// The processes that had nothing of them mapped.
    pids: Vec<i32>,
}

/// What a job saves, and what its last image has of it.
#[derive(Debug)]
pub struct Contents {
    saving: Saving,
    /// Files that no process has open, if they are saved too.
    closed: Option<ClosedFiles>,
    state: Mutex<State>,
}

/// What was saved.
#[derive(Debug, Default)]
pub struct Taken {
    /// The files.
    pub files: Vec<FileContent>,
    /// Those that were left out.
    pub unsaved: Vec<UnsavedFile>,
    /// Their pages, as far as they were read.
    pub saved: SavedPages,
    /// Which these are, at their addresses in the space.
    pub dirty: PageSet,
    /// Pages that are what the last image has.
    pub unchanged: PageSet,
}

impl Contents {
    /// For a new agent.
    pub fn new(saving: Saving) -> Contents {
        Contents { saving, closed: None, state: Mutex::default() }
    }

    /// With files that are closed again.
    pub fn with_closed(self, closed: ClosedFiles) -> Contents {
        Contents { closed: Some(closed), ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The image of the last cut is committed.
    pub fn committed(&self) {
        self.state().known.values_mut().for_each(|known| known.stored = true);
    }

    /// Nothing is taken for unchanged any more.
    pub fn doubt(&self) {
        *self.state() = State::default();
    }

    /// Before the stop: reads what was not written for a while, and brings the rest into memory, so that it is read
    /// fast then. What cannot be read now may be then.
    pub fn read_ahead(&self, pids: &[i32]) {
        if let Some(closed) = &self.closed {
            closed.look(pids);
        }
        let mut state = self.state();
        let saved = SavedPages::with_capacity(state.last_len);
        let mut ahead = Ahead { saved, pids: pids.to_vec(), ..Ahead::default() };
        let (mut left, mut later) = (self.saving.limit(), 0);
        // Before they are read: what is mapped later, and written then, has other times.
        let mapped = mapped_for_writing(pids);
        let is_mapped = |inode| mapped.as_ref().is_some_and(|inodes| inodes.contains(&inode));
        let mut seen = HashSet::new();
        for (key, file) in changed_in_place(pids) {
            let stamp = stamp(&file.metadata);
            let is_stored = |known: &Known| known.stored && known.settled && known.stamp == stamp;
            // What is mapped is saved with the pages, mostly.
            let is_stored = state.known.get(&key).is_some_and(is_stored);
            if !seen.insert(key) || is_stored || is_mapped(file.metadata.ino()) {
                continue;
            }
            let (Ok(data), size) = (file.data(None), file.metadata.len()) else { continue };
            let len: u64 = data.iter().map(|(from, to)| to - from).sum();
            if len > left {
                continue;
            }
            left -= len;
            let known = state.place(key, &ahead.files, size).map(|known| known.seen(stamp, &file));
            match known {
                Ok(known) if known.settled && mapped.is_some() => {
                    let read = known.read(&mut ahead.saved, &file, size, &data);
                    let is_same = || file.now().is_ok_and(|now| self::stamp(&now) == stamp);
                    match read {
                        Ok(known) if is_same() => state.keep(&mut ahead, key, known),
                        Ok(known) => ahead.saved.remove(known.place()),
                        Err(_) => {}
                    }
                }
                _ => {
                    file.will_need(&data);
                    later += len + PAGE_SIZE * data.len() as u64;
                }
            }
        }
        ahead.saved.prepare(later);
        state.ahead = Some(ahead);
    }

    /// Saves what the processes write. `tables`: their files.
    ///
    /// # Errors
    /// See [`Unsaved`].
    pub fn take(&self, tables: &[FileTable], processes: &[Process<'_>]) -> Result<Taken, Unsaved> {
        let Survey { mut files, unsaved } = written_files::survey(self.saving, tables, processes)?;
        if let Some(closed) = &self.closed {
            let more = closed.read(tables, files.iter().map(|(written, _)| written.key));
            files.extend(more);
        }
        let mut state = self.state();
        let are_the_same = |ahead: &Ahead| processes.iter().all(|process| ahead.pids.contains(&process.pid));
        let last_len = state.last_len;
        let ahead = state.ahead.take().filter(are_the_same);
        let Ahead { saved, files: mut ahead, .. } =
            ahead.unwrap_or_else(|| Ahead { saved: SavedPages::with_capacity(last_len), ..Ahead::default() });
        let mut taken = Taken { unsaved, saved, ..Taken::default() };
        let mut now = HashMap::with_capacity(files.len());
        for (written, sight) in &files {
            let size = sight.file.metadata.len();
            let (ahead, outgrown) = match ahead.remove(&written.key) {
                Some(known) if known.room < size => (None, Some(known)),
                known => (known, None),
            };
            outgrown.iter().for_each(|known| taken.saved.remove(known.place()));
            let place = match &ahead {
                Some(known) => Ok(known.clone()),
                None => state.place(written.key, &now, size),
            };
            let added = place.and_then(|known| taken.add(sight, known, ahead.is_some()));
            match (added, self.saving) {
                (Ok(known), _) => {
                    taken.files.push(record(written, sight, known.start));
                    now.insert(written.key, known);
                }
                (Err(_), _) if written.only_if_gone || written.is_closed => {}
                (Err(error), Saving::InPlace(_)) => {
                    let (path, reason) = (written.path.clone(), Some(error.to_string()));
                    taken.unsaved.push(UnsavedFile { path, bytes: sight.len(), reason });
                }
                (Err(error), Saving::All(_)) => {
                    return Err(Unsaved::Refused(vec![written.refuse(unreadable(&error))]));
                }
            }
        }
        // Closed meanwhile.
        ahead.values().for_each(|known| taken.saved.remove(known.place()));
        taken.saved.sort();
        state.last_len = usize::try_from(taken.dirty.pages().bytes()).unwrap_or(0);
        state.known = now;
        Ok(taken)
    }
}

/// What of running processes could not be saved.
pub fn obstacles(saving: Saving, tables: &[FileTable], processes: &[Process<'_>]) -> Vec<(usize, Refusal)> {
    match written_files::survey(saving, tables, processes) {
        Err(Unsaved::Refused(refusals)) => refusals,
        Ok(_) | Err(Unsaved::Failed(_)) => Vec::new(),
    }
}

impl State {
    /// A file was read before the stop. No other gets its place.
    fn keep(&mut self, ahead: &mut Ahead, key: Key, known: Known) {
        self.known.insert(key, known.clone());
        ahead.files.insert(key, known);
    }

    /// What is known of a file; of a new one: a place for so many bytes that no other has, before or `now`. One that
    /// has outgrown its place is new.
    fn place(&self, key: Key, now: &HashMap<Key, Known>, size: u64) -> io::Result<Known> {
        if let Some(known) = self.known.get(&key).filter(|known| size <= known.room) {
            return Ok(known.clone());
        }
        let room = size.saturating_mul(2).max(LEAST_ROOM).next_multiple_of(PAGE_SIZE);
        let all = self.known.values().chain(now.values());
        let mut taken: Vec<(u64, u64)> =
            all.map(|known| (known.start.0, known.start.0 + known.room)).collect();
        taken.sort_unstable();
        let mut start = 0;
        for (from, to) in taken {
            if from.saturating_sub(start) >= room {
                break;
            }
            start = start.max(to);
        }
        if start.checked_add(room).is_none_or(|end| end > SPACE_LEN) {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let (stamp, pages) = ((u64::MAX, [0; 4]), PageSet::new());
        Ok(Known { start: Addr(start), room, stamp, settled: false, pages, stored: false })
    }
}

impl Known {
    /// Its place.
    fn place(&self) -> PageRun {
        PageRun::between(self.start, Addr(self.start.0 + self.room))
    }

    /// It has these times now, and is about to be read.
    fn seen(mut self, stamp: Stamp, file: &OpenFile) -> Known {
        (self.stamp, self.settled, self.stored) = (stamp, tells_of_changes(&stamp, file), false);
        self
    }

    /// Reads what is in it.
    fn read(
        mut self,
        saved: &mut SavedPages,
        file: &OpenFile,
        size: u64,
        data: &[(u64, u64)],
    ) -> io::Result<Known> {
        let start = self.start.0;
        let runs: Vec<PageRun> = data.iter().flat_map(|&(from, to)| pieces(start, from, to)).collect();
        saved.add_all(&runs, |runs, buffer| {
            let mut rest = buffer;
            for run in runs {
                let (now, later) =
                    rest.split_at_mut(usize::try_from(run.pages.bytes()).unwrap_or(usize::MAX));
                let from = run.start.0 - start;
                let there = usize::try_from((size - from).min(now.len() as u64)).unwrap_or(0);
                let (content, behind) = now.split_at_mut(there);
                file.read_exact_at(content, from)?;
                behind.fill(0);
                rest = later;
            }
            Ok(())
        })?;
        self.pages = PageSet::from(runs);
        Ok(self)
    }
}

impl Taken {
    /// Adds the pages of a file; what is known of it now. `is_ahead`: they were read before the stop.
    fn add(&mut self, sight: &Sight, known: Known, is_ahead: bool) -> io::Result<Known> {
        let stamp = stamp(&sight.file.metadata);
        let is_known = known.settled && known.stamp == stamp && !sight.is_mapped;
        if is_known && known.stored {
            self.unchanged = self.unchanged.union(&known.pages);
            return Ok(known);
        }
        let known = if is_known && is_ahead {
            known
        } else {
            if is_ahead {
                self.saved.remove(known.place());
            }
            let mut known = known.seen(stamp, &sight.file);
            known.settled &= !sight.is_mapped;
            known.read(&mut self.saved, &sight.file, sight.file.metadata.len(), &sight.data)?
        };
        self.dirty = self.dirty.union(&known.pages);
        Ok(known)
    }
}

fn record(written: &Written, sight: &Sight, start: Addr) -> FileContent {
    FileContent {
        path: written.path.clone(),
        device: written.key.0,
        inode: written.key.1,
        size: sight.file.metadata.len(),
        mode: sight.file.metadata.mode() & 0o7777,
        start,
        covered: sight.covered.runs().to_vec(),
        absent: sight.absent.clone(),
        owner: Some(owner_of(&sight.file.metadata)),
        only_if_gone: written.only_if_gone,
    }
}

/// Data of a file whose place begins at `start`, in pieces for several threads.
fn pieces(start: u64, from: u64, to: u64) -> impl Iterator<Item = PageRun> {
    /// Whole pages.
    const LEN: usize = 1 << 20;
    let end = to.next_multiple_of(PAGE_SIZE);
    let pieces = (from..end).step_by(LEN);
    pieces.map(move |at| PageRun::between(Addr(start + at), Addr(start + end.min(at + LEN as u64))))
}

fn stamp(metadata: &Metadata) -> Stamp {
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    (metadata.len(), times)
}

/// Whether a file that has these times has others when it is changed, by write(2) or by a mapping that is made later:
/// they are old by the clock that gives them, and its file system does so. Those below do, by the clock of this host
/// (file_update_time, called in their page_mkwrite, too); tmpfs does not where it is mapped, nor overlayfs over it; and
/// a server has a clock of its own.
fn tells_of_changes(stamp: &Stamp, file: &OpenFile) -> bool {
    /// ext4, XFS, btrfs, F2FS (include/uapi/linux/magic.h).
    const THESE: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    let [changed, changed_ns, touched, touched_ns] = stamp.1;
    let last_ns = ns(changed, changed_ns).max(ns(touched, touched_ns));
    let age_ns = i128::from(clock::realtime_ns()) - last_ns;
    let is_one = || file.file_system_type().is_ok_and(|kind| THESE.contains(&kind));
    u128::try_from(age_ns).is_ok_and(|age| age >= SETTLED.as_nanos()) && is_one()
}

#[cfg(test)]
mod tests;
