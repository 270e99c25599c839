//! The writer of a log: puts become records.
//!
//! Called by `libnvstream.so`, in the program. One writer for a log at a time. Invariants: a record counts from the
//! moment that its commit word is written, which is last; a put that fails has changed nothing that counts. Memory of
//! the file is asked for before it is written to, from its beginning on: a full file system is an error of the put, no
//! SIGBUS; and so is a file that is cut meanwhile.

use crate::Error;
use crate::layout::{
    self, CAPACITIES, Entry, FileHead, HEAD_AT, Kind, LINE, MAX_ENTRIES, MAX_KEY, PAGE, Part, RECORD_HEAD,
    RING_AT, RecordHead, Run,
};
use crate::objects::{Object, Objects, alone};
use crate::place::Place;
use crate::{locks, record};
use holdfast_sys::clock;
use holdfast_sys::cut_guard::Guard;
use holdfast_sys::mapped_buffer::{MappedBuffer, Use};
use holdfast_sys::summed_copy::{self, SummedCopy};
use nix::fcntl::{FallocateFlags, fallocate};
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Memory of the file is asked for in steps of so many bytes.
const STEP: u64 = 16 << 20;

/// What a log is like.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of the ring of a new log.
    pub capacity: u64,
    /// How long a put waits for readers that need the oldest version.
    pub wait: Duration,
    /// No version ever goes: a full log is an error.
    pub keep: bool,
}

/// What of an object has changed since its last put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changed {
    /// All of it.
    All,
    /// These pages, in order.
    Pages(Vec<Run>),
    /// It is to be compared.
    Unknown,
}

/// An object to be put.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// Its name.
    pub key: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// See there.
    pub changed: Changed,
}

/// What was done for the next record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Made {
    /// There is room.
    Room,
    /// Objects were carried, and are in other places now; it is to be asked for again.
    Carried,
    /// Objects were carried, and there is room.
    CarriedAndRoom,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    pub(crate) file: File,
    /// A log that is cut under the writer is no SIGBUS.
    guard: Guard,
    pub(crate) map: MappedBuffer,
    pub(crate) head: FileHead,
    pub(crate) options: Options,
    /// Position of the oldest record.
    pub(crate) first: u64,
    /// Position of the next one.
    pub(crate) tail: u64,
    pub(crate) objects: Objects,
    /// Objects that are no more from the next version on.
    gone: BTreeSet<String>,
    /// Bytes of the ring that the file has memory for.
    allocated: u64,
    /// Bytes of a record of the largest object that there was.
    largest: u64,
    /// Bytes of the longest record of a version.
    pub(crate) longest: u64,
    /// Where the newest record is in the file, and the word that commits it.
    newest: Option<(u64, u64)>,
    /// Nothing is put into it any more.
    is_cut: bool,
    process: u32,
}

impl Writer {
    /// Opens the log of a stream, or makes it.
    ///
    /// # Errors
    /// Another process writes to it; it is no log; no room.
    pub fn open(place: &Place, options: Options) -> Result<Writer, Error> {
        place.make_folders()?;
        let path = place.path();
        let failed = |why| Error::System { path: path.clone(), why };
        let open = || File::options().read(true).write(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path);
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(place, options.capacity)?;
                open().map_err(failed)?
            }
            opened => opened.map_err(failed)?,
        };
        if !locks::take_writer(&file).map_err(failed)? {
            return Err(Error::Busy { path });
        }
        let head = read_head(&file, &path)?;
        check_owner(&file, &path)?;
        let map = MappedBuffer::for_use(file.as_fd(), head.file_len(), Use::Sparse).map_err(failed)?;
        let mut writer = Writer {
            path,
            file,
            guard: map.guard(),
            map,
            head,
            options,
            first: 0,
            tail: 0,
            objects: Objects::default(),
            gone: BTreeSet::new(),
            allocated: 0,
            largest: 0,
            longest: 0,
            newest: None,
            is_cut: false,
            process: std::process::id(),
        };
        writer.guarded(Writer::recover)?;
        Ok(writer)
    }

    /// Does something in the log. That it was cut meanwhile is an error of this and of all that comes later.
    fn guarded<T>(&mut self, act: impl FnOnce(&mut Writer) -> Result<T, Error>) -> Result<T, Error> {
        let done = act(self);
        self.is_cut |= self.guard.was_cut();
        if self.is_cut { Err(self.damaged("it was cut while it was written to")) } else { done }
    }

    /// Finds the end of the log, and the head that living readers need.
    fn recover(&mut self) -> Result<(), Error> {
        self.first = self.map.long(HEAD_AT).map_err(|why| self.failed(why))?;
        self.tail = self.first;
        if !self.first.is_multiple_of(LINE) {
            return Err(self.damaged("its head is at no record"));
        }
        self.read_records();
        let first = self.first_with_readers()?;
        if first < self.first {
            self.set_head(first)?;
            (self.first, self.tail, self.objects) = (first, first, Objects::default());
            self.read_records();
        }
        let is_new = record::is_new(&self.map, &self.head, self.first).map_err(|why| self.failed(why))?;
        if self.tail == self.first && !is_new || self.objects.whole_from().is_none() {
            return Err(self.damaged("its oldest record is not there"));
        }
        Ok(())
    }

    /// All records from the tail on.
    fn read_records(&mut self) {
        while let Some(found) = record::read(&self.map, &self.head, self.tail) {
            let end = self.tail + found.head.len;
            if end - self.first > self.head.capacity {
                break;
            }
            let sizes = found.entries.iter().map(|entry| alone(&entry.key, entry.size));
            self.largest = sizes.fold(self.largest, u64::max);
            if matches!(found.head.kind, Kind::Put | Kind::All) {
                self.longest = self.longest.max(found.head.len);
            }
            self.newest = Some((self.head.place(self.tail), found.word));
            self.objects.apply(&found.head, found.entries);
            self.tail = end;
        }
    }

    pub(crate) fn damaged(&self, why: &str) -> Error {
        Error::NotALog { path: self.path.clone(), why: why.to_owned() }
    }

    pub(crate) fn failed(&self, why: io::Error) -> Error {
        Error::System { path: self.path.clone(), why }
    }

    /// Number of the newest version; 0: there is none.
    pub fn version(&self) -> u64 {
        self.objects.version()
    }

    /// Bytes of an object in the newest version.
    pub fn size_of(&self, key: &str) -> Option<u64> {
        self.objects.get(key).map(|object| object.size)
    }

    /// From the next version on it is no more.
    pub fn remove(&mut self, key: &str) {
        if self.objects.get(key).is_some() {
            self.gone.insert(key.to_owned());
        }
    }

    /// A new version, in which these objects are as they are now, and all others as they were; in a [`Kind::All`]
    /// there are no others. Says its number.
    ///
    /// # Errors
    /// No room; a reader needs the oldest version. There is no new version then.
    pub fn put(&mut self, kind: Kind, sources: &[Source<'_>]) -> Result<u64, Error> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        if self.is_cut {
            return Err(self.damaged("it was cut before"));
        }
        check_len(&self.head, &self.file, &self.path)?;
        check(sources)?;
        self.guarded(|writer| writer.put_record(kind, sources))
    }

    fn put_record(&mut self, kind: Kind, sources: &[Source<'_>]) -> Result<u64, Error> {
        if let Some((place, word)) = self.newest
            && self.map.long(place).map_err(|why| self.failed(why))? != word
        {
            // It was cut, and is as long as it was again.
            self.is_cut = true;
            return Err(self.damaged("its newest record is not there any more"));
        }
        let version = self.version() + 1;
        let (mut entries, rest) = self.entries(kind, sources)?;
        let len = lay_out(&mut entries);
        loop {
            let made = self.make_room(len, rest)?;
            if made != Made::Room {
                // Some were carried, and are in other records now.
                entries.iter_mut().for_each(|entry| entry.base = self.base(&entry.key));
            }
            if made != Made::Carried {
                break;
            }
        }
        // What is no more comes after them, and has no bytes.
        let bytes: Vec<&[u8]> = sources.iter().map(|source| source.bytes).collect();
        self.append(kind, version, entries, len, &bytes)?;
        self.gone.clear();
        Ok(version)
    }

    fn base(&self, key: &str) -> u64 {
        self.objects.get(key).map_or(0, |object| object.newest() + 1)
    }

    /// What of an object is to be put.
    fn changed(&self, source: &Source<'_>, object: &Object) -> Result<Part, Error> {
        if object.size != source.bytes.len() as u64 {
            return Ok(Part::Whole);
        }
        let runs = match &source.changed {
            Changed::All => return Ok(Part::Whole),
            Changed::Pages(runs) => runs.clone(),
            Changed::Unknown => {
                let mut different = Vec::new();
                let mut old = vec![0; PAGE as usize];
                for (index, (place, page)) in
                    object.pages().into_iter().zip(source.bytes.chunks(PAGE as usize)).enumerate()
                {
                    let old = &mut old[..page.len()];
                    self.map.read(self.head.place(place), old).map_err(|why| self.failed(why))?;
                    if old != page {
                        different.push(u32::try_from(index).unwrap_or(u32::MAX));
                    }
                }
                layout::runs(different)
            }
        };
        let part = Part::Pages(runs);
        let bytes = part.bytes(object.size);
        // A reader has no more than twice an object to copy, and the log no more to hold.
        let is_little = bytes < object.size && object.stored() + bytes <= 2 * object.size;
        Ok(if is_little { part } else { Part::Whole })
    }

    /// The entries of a record, and how many bytes may have to be carried later: what the record does not have all of,
    /// and as much as the largest object for the end of the ring, where that may not fit.
    fn entries(&self, kind: Kind, sources: &[Source<'_>]) -> Result<(Vec<Entry>, u64), Error> {
        let entry = |key: &str, size: u64, base: u64, part: Part| Entry {
            key: key.to_owned(),
            size,
            data: 0,
            base,
            sum: 0,
            part,
        };
        let (mut entries, mut known, mut there) = (Vec::with_capacity(sources.len()), 0, 0);
        for source in sources {
            let object = self.objects.get(source.key);
            let part = object.map_or(Ok(Part::Whole), |object| self.changed(source, object))?;
            known += usize::from(object.is_some());
            if let Some(object) = object.filter(|_| part == Part::Whole) {
                there += alone(source.key, object.size);
            }
            let base = object.map_or(0, |object| object.newest() + 1);
            entries.push(entry(source.key, source.bytes.len() as u64, base, part));
        }
        let gone: Vec<&String> = match kind {
            Kind::All if known == self.objects.all().len() => Vec::new(),
            Kind::All => self.objects.all().keys().collect(),
            _ => self.gone.iter().collect(),
        };
        let put: HashSet<&str> = match gone.as_slice() {
            [] => HashSet::new(),
            _ => sources.iter().map(|source| source.key).collect(),
        };
        for key in gone.into_iter().filter(|key| !put.contains(key.as_str())) {
            there += self.objects.get(key).map_or(0, |object| alone(key, object.size));
            entries.push(entry(key, 0, self.base(key), Part::Gone));
        }
        let carried = self.objects.alone().saturating_sub(there);
        Ok((entries, carried + carried.min(self.largest)))
    }

    /// An object as it is, once more.
    pub(crate) fn append_carried(&mut self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        let (size, base) = (bytes.len() as u64, self.base(key));
        let mut entries = vec![Entry { key: key.to_owned(), size, data: 0, base, sum: 0, part: Part::Whole }];
        let len = lay_out(&mut entries);
        self.append(Kind::Carry, self.version(), entries, len, &[bytes])
    }

    /// Writes a record, for which there is room.
    fn append(
        &mut self,
        kind: Kind,
        version: u64,
        mut entries: Vec<Entry>,
        len: u64,
        bytes: &[&[u8]],
    ) -> Result<(), Error> {
        if self.head.to_end(self.tail) < len {
            let len = self.head.to_end(self.tail);
            self.allocate(RECORD_HEAD as u64)?;
            self.commit(Kind::Pad, version, Vec::new(), len)?;
        }
        self.allocate(len + LINE)?;
        let place = self.head.place(self.tail);
        for (entry, bytes) in entries.iter_mut().zip(bytes) {
            entry.sum = self.copy_in(place + entry.data, entry, bytes)?;
            self.largest = self.largest.max(alone(&entry.key, entry.size));
        }
        if kind != Kind::Carry {
            self.longest = self.longest.max(len);
        }
        self.commit(kind, version, entries, len)
    }

    /// Copies what a record has of an object; says the checksum.
    fn copy_in(&mut self, place: u64, entry: &Entry, bytes: &[u8]) -> Result<u64, Error> {
        let piece = |(from, to): (u64, u64)| {
            let range = usize::try_from(from).unwrap_or(0)..usize::try_from(to).unwrap_or(0);
            bytes.get(range).unwrap_or_default()
        };
        let (len, ranges) = (entry.data_len(), entry.part.ranges(entry.size));
        if len < summed_copy::LEAST {
            // So few are in one piece, or there are none.
            let bytes = ranges.first().copied().map_or(&[][..], piece);
            self.map.write(place, bytes).map_err(|why| self.failed(why))?;
            return Ok(xxh3_64(bytes));
        }
        let mut sum = SummedCopy::of(len);
        let mut place = place;
        for bytes in ranges.into_iter().map(piece) {
            self.map.write_summed(place, bytes, &mut sum).map_err(|why| self.failed(why))?;
            place += bytes.len() as u64;
        }
        Ok(sum.finish())
    }

    /// Head, table, and last the word that makes it count.
    fn commit(&mut self, kind: Kind, version: u64, entries: Vec<Entry>, len: u64) -> Result<(), Error> {
        let mut table = Vec::new();
        entries.iter().for_each(|entry| entry.write(&mut table));
        let head = RecordHead {
            position: self.tail,
            len,
            version,
            table_len: u32::try_from(table.len()).unwrap_or(u32::MAX),
            kind,
            time_ns: clock::realtime_ns(),
            entries: u32::try_from(entries.len()).unwrap_or(u32::MAX),
        };
        let (place, next) = (self.head.place(self.tail), self.head.place(self.tail + len));
        let (free, word) = (self.free(), head.commit(&self.head, &table));
        let mut written = || {
            self.map.write(place, &head.bytes())?;
            self.map.write(place + RECORD_HEAD as u64, &table)?;
            if len < free {
                // What a log had there before damage cut it off does not come behind this record.
                self.map.set_long(next, 0)?;
            }
            self.map.set_long(place, word)
        };
        written().map_err(|why| self.failed(why))?;
        self.newest = Some((place, word));
        self.objects.apply(&head, entries);
        self.tail += len;
        Ok(())
    }

    /// Has memory for so many bytes from the tail on.
    fn allocate(&mut self, len: u64) -> Result<(), Error> {
        let end = (self.tail % self.head.capacity + len).min(self.head.capacity);
        if end <= self.allocated {
            return Ok(());
        }
        let ahead = end.max(self.allocated + STEP).min(self.head.capacity);
        // A file system that has less than a step left may have enough.
        let made = self.allocate_to(ahead).or_else(|_| self.allocate_to(end));
        made.map_err(|why| Error::NoRoom { path: self.path.clone(), why })
    }

    fn allocate_to(&mut self, end: u64) -> io::Result<()> {
        let (at, bytes) = (RING_AT + self.allocated, end - self.allocated);
        let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        // A log that was cut is not made longer again.
        fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, number(at), number(bytes))?;
        self.map.populate(at, bytes)?;
        self.allocated = end;
        Ok(())
    }
}

fn check(sources: &[Source<'_>]) -> Result<(), Error> {
    // Those of a program come in their order.
    let is_in_order = sources.is_sorted_by(|one, other| one.key < other.key);
    let mut keys = HashSet::new();
    for source in sources {
        let is_again = !is_in_order && !keys.insert(source.key);
        if source.key.is_empty() || source.key.len() > MAX_KEY || is_again {
            return Err(Error::Argument(format!(
                "\"{}\": the name of an object has 1 to {MAX_KEY} bytes, and is there once in a version",
                source.key.escape_debug()
            )));
        }
    }
    match sources.len() {
        count if count > MAX_ENTRIES as usize / 2 => {
            Err(Error::Argument(format!("{count} objects; {} are possible", MAX_ENTRIES / 2)))
        }
        _ => Ok(()),
    }
}

/// Says where each entry's data are, and the length of the record.
fn lay_out(entries: &mut [Entry]) -> u64 {
    let table: u64 = entries.iter().map(Entry::table_len).sum();
    let mut at = layout::lines(RECORD_HEAD as u64 + table);
    for entry in entries {
        entry.data = at;
        at += layout::lines(entry.data_len());
    }
    at
}

pub(crate) fn read_head(file: &File, path: &Path) -> Result<FileHead, Error> {
    let mut bytes = [0; layout::FILE_HEAD];
    let not_a_log = |why: String| Error::NotALog { path: path.to_owned(), why };
    let failed = |why| Error::System { path: path.to_owned(), why };
    let found = file.metadata().map_err(failed)?;
    if found.mode() & 0o022 != 0 {
        return Err(not_alone(path));
    }
    if found.len() < RING_AT {
        return Err(not_a_log(format!("it has {} bytes", found.len())));
    }
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    let head = FileHead::parse(&bytes).map_err(not_a_log)?;
    check_len(&head, file, path).map(|()| head)
}

fn not_alone(path: &Path) -> Error {
    let path = path.display();
    Error::Argument(format!(
        "{path}: others may write to this log, and cut it: it is to be a file of this user alone (chmod 600)"
    ))
}

/// Who writes to a file may cut it.
fn check_owner(file: &File, path: &Path) -> Result<(), Error> {
    let owner = file.metadata().map_err(|why| Error::System { path: path.to_owned(), why })?.uid();
    if owner == nix::unistd::geteuid().as_raw() { Ok(()) } else { Err(not_alone(path)) }
}

/// What was cut is not touched: that would be SIGBUS.
pub(crate) fn check_len(head: &FileHead, file: &File, path: &Path) -> Result<(), Error> {
    let len = file.metadata().map_err(|why| Error::System { path: path.to_owned(), why })?.len();
    if len == head.file_len() {
        return Ok(());
    }
    let why = format!("it has {len} bytes, and should have {}", head.file_len());
    Err(Error::NotALog { path: path.to_owned(), why })
}

/// Makes a log that has nothing yet; another process may do the same.
fn make(place: &Place, capacity: u64) -> Result<(), Error> {
    if !(CAPACITIES.0..=CAPACITIES.1).contains(&capacity) {
        return Err(Error::Argument(format!(
            "a log of {capacity} bytes: {} to {} are possible",
            CAPACITIES.0, CAPACITIES.1
        )));
    }
    let path = place.path();
    let failed = |why| Error::System { path: path.clone(), why };
    let new = path.with_file_name(format!(".{}-{}", std::process::id(), clock::monotonic_ns()));
    let id = clock::realtime_ns().rotate_left(32) ^ clock::monotonic_ns() ^ u64::from(std::process::id());
    let head = FileHead { capacity: capacity.next_multiple_of(PAGE), id };
    let made = || -> io::Result<()> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all_at(&head.bytes(), 0)?;
        file.set_len(head.file_len())?;
        fallocate(&file, FallocateFlags::empty(), 0, i64::try_from(RING_AT).unwrap_or(0))?;
        match fs::hard_link(&new, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    };
    let made = made().map_err(failed);
    let _ = fs::remove_file(&new);
    made
}
