//! What is in the regular files that the programs write, where a job saves it (`run --save-files`).
//!
//! Without it a restart finds files as they are then: cut back to their lengths, but not unwritten where they were
//! overwritten, and not made anew where they were removed. [`Contents::take`] is called inside the stop; what it
//! reads becomes pages of a space that no process has ([`holdfast_image::address_space::FILES`]), which the store
//! compares, compresses and keeps like memory. Files that are only mapped are not looked at: the pages of shared
//! mappings are part of the image anyway. What must hold: a file counts as unchanged only if the last committed image
//! has it, it was read when its times had been the same for a while (a file system's clock may stand still for some
//! milliseconds), they are the same now, and nobody maps it for writing, which may change no time. How it fails: by
//! [`Unsaved`]; no image then.

use super::files::unlinked;
use super::maps::{Kind, Mapped};
use crate::freeze::frozen_memory::SavedPages;
use holdfast_image::bytes::Name;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{FileContent, FileTable, Object};
use holdfast_image::refusal::{Refusal, Subject};
use holdfast_image::{Addr, PAGE_SIZE};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

/// How long the times of a file must have been the same before what is read of it is trusted to change them when it
/// changes.
const SETTLED: Duration = Duration::from_secs(2);
/// Least room of a file's place, so that it keeps it when it grows, and the room of a whole space.
const LEAST_ROOM: u64 = 1 << 30;
const SPACE_LEN: u64 = 1 << 47;

/// Device and inode.
type Key = (u64, u64);

/// Length, and times of content and of status: seconds and nanoseconds.
type Stamp = (u64, [i64; 4]);

/// What is known of a file since it was last looked at.
#[derive(Clone, Debug)]
struct Known {
    start: Addr,
    room: u64,
    stamp: Stamp,
    /// When it was first seen with these times.
    since: Instant,
    /// It was read after these times were [`SETTLED`].
    settled: bool,
    pages: PageSet,
    /// A committed image has it.
    stored: bool,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<Key, Known>,
    /// Bytes that were read last.
    last_len: usize,
}

/// What a job saves, and what its last image has of it.
#[derive(Debug)]
pub struct Contents {
    /// Most bytes of all files together.
    limit: u64,
    state: Mutex<State>,
}

/// What was saved.
#[derive(Debug, Default)]
pub struct Taken {
    /// The files.
    pub files: Vec<FileContent>,
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

/// A file that is written.
struct Written<'a> {
    path: &'a Name,
    key: Key,
    /// Place of a process that has it open, and its number there.
    holder: usize,
    fd: i32,
    /// All that write it append to it.
    appends: bool,
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
    /// For a new agent. `limit`: most bytes of all files together.
    pub fn new(limit: u64) -> Contents {
        Contents { limit, state: Mutex::default() }
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
        self.state().known.clear();
    }

    /// Saves what the processes write. `tables`: their files.
    ///
    /// # Errors
    /// See [`Unsaved`].
    pub fn take(&self, tables: &[FileTable], processes: &[Process<'_>]) -> Result<Taken, Unsaved> {
        let sights = survey(self.limit, tables, processes)?;
        let mapped: BTreeSet<u64> = processes.iter().flat_map(|process| shared(process.mapped)).collect();
        let mut state = self.state();
        let saved = SavedPages::with_capacity(state.last_len);
        let mut taken = Taken { saved, ..Taken::default() };
        let mut now = HashMap::with_capacity(sights.len());
        for (written, sight) in sights {
            let is_mapped = mapped.contains(&sight.metadata.ino());
            let added = state
                .place(written.key, &now, sight.metadata.len())
                .and_then(|known| taken.add(&sight, known, is_mapped));
            let known = added.map_err(|error| Unsaved::Refused(vec![written.refuse(unreadable(&error))]))?;
            taken.files.push(sight.record(&written, known.start));
            now.insert(written.key, known);
        }
        taken.saved.sort();
        state.last_len = usize::try_from(taken.dirty.pages().bytes()).unwrap_or(0);
        state.known = now;
        Ok(taken)
    }
}

/// All files that are to be saved. `limit`: see [`Contents::new`].
///
/// # Errors
/// See [`Unsaved`].
fn survey<'a>(
    limit: u64,
    tables: &'a [FileTable],
    processes: &[Process<'_>],
) -> Result<Vec<(Written<'a>, Sight)>, Unsaved> {
    let (mut sights, mut refusals, mut left) = (Vec::new(), Vec::new(), limit);
    for written in all_written(tables) {
        let Some(process) = processes.get(written.holder) else { continue };
        match Sight::of(process, written.fd) {
            Ok(sight) if sight.len() <= left => {
                left -= sight.len();
                sights.push((written, sight));
            }
            // Cut back to its length such a file is what it was.
            Ok(_) if written.appends => {}
            Ok(_) => refusals.push(written.refuse(too_much(limit))),
            // It ends, or, of a program that runs, the file was just closed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {
                return Err(Unsaved::Failed(error));
            }
            Err(error) => refusals.push(written.refuse(unreadable(&error))),
        }
    }
    if refusals.is_empty() { Ok(sights) } else { Err(Unsaved::Refused(refusals)) }
}

/// What of running processes could not be saved.
pub fn obstacles(limit: u64, tables: &[FileTable], processes: &[Process<'_>]) -> Vec<(usize, Refusal)> {
    match survey(limit, tables, processes) {
        Err(Unsaved::Refused(refusals)) => refusals,
        Ok(_) | Err(Unsaved::Failed(_)) => Vec::new(),
    }
}

impl Written<'_> {
    fn refuse(&self, reason: String) -> (usize, Refusal) {
        let subject = Subject::Descriptor { fd: self.fd, name: self.path.to_string() };
        (self.holder, Refusal { subject, reason })
    }
}

impl State {
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
        let (stamp, since, pages) = ((u64::MAX, [0; 4]), Instant::now(), PageSet::new());
        Ok(Known { start: Addr(start), room, stamp, since, settled: false, pages, stored: false })
    }
}

impl Taken {
    /// Adds the pages of a file; what is known of it now.
    fn add(&mut self, sight: &Sight, mut known: Known, is_mapped: bool) -> io::Result<Known> {
        let stamp = stamp(&sight.metadata);
        if known.stored && known.settled && known.stamp == stamp && !is_mapped {
            self.unchanged = self.unchanged.union(&known.pages);
            return Ok(known);
        }
        if known.stamp != stamp {
            (known.stamp, known.since) = (stamp, Instant::now());
        }
        (known.settled, known.stored) = (known.since.elapsed() >= SETTLED, false);
        let (start, size) = (known.start.0, sight.metadata.len());
        let runs: Vec<PageRun> = sight.data.iter().flat_map(|&(from, to)| pieces(start, from, to)).collect();
        self.saved.add_all(&runs, |runs, buffer| {
            let mut rest = buffer;
            for run in runs {
                let (now, later) =
                    rest.split_at_mut(usize::try_from(run.pages.bytes()).unwrap_or(usize::MAX));
                let from = run.start.0 - start;
                let there = usize::try_from((size - from).min(now.len() as u64)).unwrap_or(0);
                let (content, behind) = now.split_at_mut(there);
                sight.file.read_exact_at(content, from)?;
                behind.fill(0);
                rest = later;
            }
            Ok(())
        })?;
        known.pages = PageSet::from(runs);
        self.dirty = self.dirty.union(&known.pages);
        Ok(known)
    }
}

/// A file as it is now.
struct Sight {
    file: File,
    metadata: Metadata,
    /// Where there are data: first byte, first byte after them.
    data: Vec<(u64, u64)>,
}

impl Sight {
    fn of(process: &Process<'_>, fd: i32) -> io::Result<Sight> {
        // Opened anew: the offset of the program's own stays where it is.
        let file = File::open(format!("/proc/{}/task/{}/fd/{fd}", process.pid, process.tid))?;
        let metadata = file.metadata()?;
        let data = unlinked::data_of(&file, metadata.len(), None)?;
        Ok(Sight { file, metadata, data })
    }

    /// Bytes of data.
    fn len(&self) -> u64 {
        self.data.iter().map(|(from, to)| to - from).sum()
    }

    fn record(&self, written: &Written<'_>, start: Addr) -> FileContent {
        FileContent {
            path: written.path.clone(),
            device: written.key.0,
            inode: written.key.1,
            size: self.metadata.len(),
            mode: self.metadata.mode() & 0o7777,
            start,
        }
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

fn unreadable(error: &io::Error) -> String {
    format!("--save-files is to save it, and it cannot be read: {error}; make it readable, or do without")
}

fn too_much(limit: u64) -> String {
    format!(
        "--save-files is to save it, and goes no further than {} bytes for all files: give a larger limit",
        limit
    )
}

/// Inodes of files that are mapped for writing.
fn shared(all: &[Mapped]) -> impl Iterator<Item = u64> {
    let written = all.iter().filter(|mapped| mapped.kind == Kind::SharedFile && mapped.mapping.prot & 2 != 0);
    written.map(|mapped| mapped.mapping.inode)
}

/// Each file that has a name and is open for writing, once, in the order of descriptions.
fn all_written(tables: &[FileTable]) -> Vec<Written<'_>> {
    let Some(first) = tables.first() else { return Vec::new() };
    let mut holders: BTreeMap<u32, (usize, i32)> = BTreeMap::new();
    for (place, table) in tables.iter().enumerate() {
        for descriptor in &table.descriptors {
            holders.entry(descriptor.description).or_insert((place, descriptor.fd));
        }
    }
    let mut all: Vec<Written<'_>> = Vec::new();
    for (number, description) in (0..).zip(&first.descriptions) {
        let Object::Regular { path, device, inode, deleted_content: None, .. } = &description.object else {
            continue;
        };
        let (flags, key) = (description.flags.cast_signed(), (*device, *inode));
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_PATH == 0;
        if !writes || is_of_kernel(path) {
            continue;
        }
        let appends = flags & libc::O_APPEND != 0;
        match all.iter_mut().find(|written| written.key == key) {
            Some(known) => known.appends &= appends,
            None => {
                if let Some(&(holder, fd)) = holders.get(&number) {
                    all.push(Written { path, key, holder, fd, appends });
                }
            }
        }
    }
    all
}

/// What is written there is a request.
fn is_of_kernel(path: &Name) -> bool {
    [&b"/proc/"[..], b"/sys/"].iter().any(|folder| path.0.starts_with(folder))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::record::{Description, Descriptor};
    use holdfast_sys::attributes;
    use std::os::fd::AsRawFd;

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
                deleted_content: None,
            };
            let flags = flags.cast_unsigned();
            let description = Description { flags, object, locks: Vec::new(), owner: None };
            let descriptor = Descriptor { fd: file.as_raw_fd(), cloexec: false, description: 0 };
            let (descriptors, descriptions) = (vec![descriptor], vec![description]);
            Bed { file, table: FileTable { descriptors, descriptions, ..FileTable::default() } }
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
        let (bed, contents) = (Bed::new("known", libc::O_RDWR), Contents::new(1 << 20));
        bed.file.write_all_at(b"end", 5 * PAGE_SIZE).unwrap();
        let taken = bed.take(&contents).unwrap();
        assert_eq!((counts(&taken), taken.files[0].size), ((1, 0), 5 * PAGE_SIZE + 3), "holes are not read");
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
    fn too_much_is_refused_unless_it_is_only_appended_to() {
        for (flags, refused) in [(libc::O_RDWR, true), (libc::O_WRONLY | libc::O_APPEND, false)] {
            let bed = Bed::new("large", flags);
            bed.file.write_all_at(&[1; 5000], 0).unwrap();
            match bed.take(&Contents::new(4999)) {
                Err(Unsaved::Refused(refusals)) => {
                    assert!(refused && refusals[0].1.reason.contains("4999"), "{refusals:?}");
                }
                other => assert!(!refused && other.unwrap().files.is_empty()),
            }
            assert_eq!(counts(&bed.take(&Contents::new(5000)).unwrap()), (2, 0));
        }
    }

    #[test]
    fn what_is_read_only_or_the_kernels_is_left_alone() {
        let contents = Contents::new(1 << 20);
        assert!(Bed::new("read", libc::O_RDONLY).take(&contents).unwrap().files.is_empty());
        assert!(Bed::new("path", libc::O_RDWR | libc::O_PATH).take(&contents).unwrap().files.is_empty());
        assert!(
            is_of_kernel(&Name::from("/proc/self/oom_score_adj")) && !is_of_kernel(&Name::from("/process"))
        );
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
