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
use super::maps::Mapped;
use super::open_file::OpenFile;
use super::running_files::{changed_in_place, mapped_for_writing};
use super::written_files::{self, Key, Saving, Sight, Survey, Written, unreadable};
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

/// Why nothing was saved.
#[derive(Debug)]
pub enum Unsaved {
    /// Files that are too large or cannot be read, with the places of their processes.
    Refused(Vec<(usize, Refusal)>),
    /// A process, or the file, is gone.
    Failed(io::Error),
}

/// A process, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    /// Its pid.
    pub pid: i32,
    /// Any thread of it.
    pub tid: i32,
    /// Its mappings.
    pub mapped: &'a [Mapped],
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::open_file::Place;
    use super::super::watchers::Watchers;
    use super::*;
    use holdfast_image::bytes::Name;
    use holdfast_image::record::{Description, Descriptor, Object};
    use holdfast_sys::attributes;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// A file of ours, open for writing, and the table of a process that has it.
    struct Bed {
        file: File,
        table: FileTable,
    }

    impl Bed {
        fn new(name: &str, flags: i32) -> Bed {
            let path = std::env::temp_dir().join(format!("contents-{name}-{}", std::process::id()));
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            let metadata = file.metadata().unwrap();
            let object = Object::Regular {
                path: Name::from(path.as_path()),
                position: 0,
                size: 0,
                device: metadata.dev(),
                inode: metadata.ino(),
                mtime_ns: 0,
                born_ns: None,
                now: None,
                mode: 0o600,
                owner: None,
                deleted_content: None,
            };
            let flags = flags.cast_unsigned();
            let description = Description { flags, object, locks: Vec::new(), owner: None, streams: 0 };
            let descriptor = Descriptor { fd: file.as_raw_fd(), cloexec: false, description: 0 };
            let (descriptors, descriptions) = (vec![descriptor], vec![description]);
            Bed { file, table: FileTable { descriptors, descriptions, ..FileTable::default() } }
        }

        fn open(&self) -> OpenFile {
            let (pid, fd) = (attributes::own_pid(), self.file.as_raw_fd());
            let place = Place { pid, tid: pid, fd, flags: libc::O_RDWR, name: Path::new("") };
            OpenFile::of(place, &Watchers::default()).unwrap()
        }

        fn key(&self) -> Key {
            let metadata = self.file.metadata().unwrap();
            (metadata.dev(), metadata.ino())
        }

        fn take(&self, contents: &Contents) -> Result<Taken, Unsaved> {
            let pid = attributes::own_pid();
            let process = Process { pid, tid: pid, mapped: &[] };
            contents.take(std::slice::from_ref(&self.table), &[process])
        }
    }

    impl Drop for Bed {
        fn drop(&mut self) {
            let Object::Regular { path, .. } = &self.table.descriptions[0].object else { return };
            let _ = std::fs::remove_file(path.as_path());
        }
    }

    fn counts(taken: &Taken) -> (u64, u64) {
        (taken.dirty.pages().0, taken.unchanged.pages().0)
    }

    /// As if the times of all files had been the same for long when they were read.
    fn settle(contents: &Contents) {
        contents.state().known.values_mut().for_each(|known| known.settled = true);
    }

    #[test]
    fn what_is_known_to_be_stored_is_not_read_again() {
        let (bed, contents) = (Bed::new("known", libc::O_RDWR), Contents::new(Saving::InPlace(1 << 20)));
        // Small ones are read with their holes.
        let end = 300 * PAGE_SIZE;
        bed.file.write_all_at(b"end", end).unwrap();
        let taken = bed.take(&contents).unwrap();
        assert_eq!((counts(&taken), taken.files[0].size), ((1, 0), end + 3), "holes are not read");
        let first = taken.files[0].start;
        settle(&contents);
        assert_eq!(counts(&bed.take(&contents).unwrap()), (1, 0), "that image was not committed");
        contents.committed();
        assert_eq!(counts(&bed.take(&contents).unwrap()), (1, 0), "its times were too young");
        settle(&contents);
        contents.committed();
        assert_eq!(counts(&bed.take(&contents).unwrap()), (0, 1));
        contents.committed();
        bed.file.write_all_at(b"x", 0).unwrap();
        let taken = bed.take(&contents).unwrap();
        assert_eq!((counts(&taken), taken.files[0].start), ((2, 0), first), "it keeps its place");
        contents.committed();
        contents.doubt();
        assert_eq!(counts(&bed.take(&contents).unwrap()), (2, 0));
    }

    #[test]
    fn too_much_is_refused_or_told_unless_it_is_only_appended_to() {
        let append = libc::O_WRONLY | libc::O_APPEND;
        for (flags, saving, refused, told) in [
            (libc::O_RDWR, Saving::All(4999), 1, 0),
            (append, Saving::All(4999), 0, 0),
            (libc::O_RDWR, Saving::InPlace(4999), 0, 1),
            (append, Saving::InPlace(4999), 0, 0),
        ] {
            let bed = Bed::new("large", flags);
            bed.file.write_all_at(&[1; 5000], 0).unwrap();
            match bed.take(&Contents::new(saving)) {
                Err(Unsaved::Refused(refusals)) => {
                    assert!(
                        refusals.len() == refused && refusals[0].1.reason.contains("4999"),
                        "{refusals:?}"
                    );
                }
                other => {
                    let taken = other.unwrap();
                    let unsaved: Vec<u64> = taken.unsaved.iter().map(|file| file.bytes).collect();
                    assert!(
                        refused == 0 && taken.files.is_empty() && unsaved == vec![5000; told],
                        "{unsaved:?}"
                    );
                }
            }
            assert_eq!(counts(&bed.take(&Contents::new(Saving::All(5000))).unwrap()), (2, 0));
        }
    }

    #[test]
    fn what_is_only_read_is_saved_for_the_case_that_it_is_gone_if_it_is_small() {
        for saving in [Saving::InPlace(1 << 20), Saving::All(1 << 20)] {
            let contents = Contents::new(saving);
            let taken = Bed::new("read", libc::O_RDONLY).take(&contents).unwrap();
            assert!(taken.files.len() == 1 && taken.files[0].only_if_gone);
            let large = Bed::new("long", libc::O_RDONLY);
            large.file.write_all_at(&[1; (256 << 10) + 1], 0).unwrap();
            assert!(large.take(&contents).unwrap().files.is_empty());
            assert!(Bed::new("path", libc::O_RDWR | libc::O_PATH).take(&contents).unwrap().files.is_empty());
        }
    }

    #[test]
    fn what_was_read_before_the_stop_is_taken_if_it_has_not_changed() {
        let (bed, contents) = (Bed::new("ahead", libc::O_RDWR), Contents::new(Saving::InPlace(1 << 20)));
        bed.file.write_all_at(b"before", PAGE_SIZE).unwrap();
        let pid = attributes::own_pid();
        let ahead = |settled: bool| {
            let (mut state, size) = (contents.state(), bed.file.metadata().unwrap().len());
            let key = bed.key();
            let known = state.place(key, &HashMap::new(), size).unwrap();
            let file = bed.open();
            let known = known.seen(stamp(&file.metadata), &file);
            let mut saved = SavedPages::default();
            let data = [(PAGE_SIZE, size)];
            let known = known.read(&mut saved, &file, size, &data).unwrap();
            let mut ahead = Ahead { saved, files: HashMap::new(), pids: vec![pid] };
            state.keep(&mut ahead, key, Known { settled, ..known });
            state.ahead = Some(ahead);
        };
        let pieces = |taken: &Taken| taken.saved.pieces();
        ahead(true);
        let taken = bed.take(&contents).unwrap();
        assert_eq!((counts(&taken), pieces(&taken)), ((1, 0), 1));
        // It was written meanwhile: another page, and what was read is not kept beside it.
        ahead(true);
        std::thread::sleep(Duration::from_millis(20));
        bed.file.write_all_at(b"after", 0).unwrap();
        let taken = bed.take(&contents).unwrap();
        assert_eq!((counts(&taken), pieces(&taken)), ((2, 0), 1), "both pages are one piece");
        // One that was not read, and comes first, gets another place.
        let other = Bed::new("other", libc::O_RDWR);
        other.file.write_all_at(b"other", 0).unwrap();
        contents.doubt();
        ahead(true);
        let mut table = other.table.clone();
        table.descriptions.extend(bed.table.descriptions.clone());
        table.descriptors.push(Descriptor { description: 1, ..bed.table.descriptors[0] });
        let taken = contents.take(&[table], &[Process { pid, tid: pid, mapped: &[] }]).unwrap();
        assert_ne!(taken.files[0].start, taken.files[1].start);
        assert_eq!(counts(&taken), (2, 0));
        // A process that was not there then may have it mapped.
        ahead(true);
        contents.state().ahead.as_mut().unwrap().pids = vec![pid + 1];
        assert_eq!(pieces(&bed.take(&contents).unwrap()), 1);
        contents.read_ahead(&[pid]);
        assert!(
            !contents.state().ahead.as_ref().unwrap().files.contains_key(&bed.key()),
            "its times are young"
        );
        assert_eq!(counts(&bed.take(&contents).unwrap()), (2, 0));
    }

    #[test]
    fn places_are_taken_once_and_given_away_again() {
        let mut state = State::default();
        let key = |number: u64| (number, number);
        let mut now = HashMap::new();
        let mut place = |state: &State, number: u64, size| {
            let known = state.place(key(number), &now, size)?;
            now.insert(key(number), known.clone());
            io::Result::Ok((known.start.0, known.room))
        };
        assert_eq!(place(&state, 1, 7).unwrap(), (0, LEAST_ROOM));
        assert_eq!(place(&state, 2, 3 * LEAST_ROOM).unwrap(), (LEAST_ROOM, 6 * LEAST_ROOM));
        assert_eq!(place(&state, 3, 0).unwrap(), (7 * LEAST_ROOM, LEAST_ROOM));
        assert!(place(&state, 4, SPACE_LEN / 2).is_err());
        state.known = now;
        assert_eq!(state.place(key(1), &HashMap::new(), LEAST_ROOM).unwrap().start.0, 0);
        assert_eq!(state.place(key(1), &HashMap::new(), LEAST_ROOM + 1).unwrap().start.0, 8 * LEAST_ROOM);
        state.known.remove(&key(2));
        assert_eq!(state.place(key(5), &HashMap::new(), 9).unwrap().start.0, LEAST_ROOM);
    }
}
