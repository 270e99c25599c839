//! A reader of a log: it is at a version and steps to the next one, beside the writer.
//!
//! Called by `libnvstream.so` in other programs, and by `holdfast cat` and `holdfast streams`. Invariant: all that the
//! reader's version needs, and all that comes after, stays in the log while the reader lives: its cursor says so.

use crate::Error;
use crate::layout::{self, FileHead, HEAD_AT, Kind, RING_AT};
use crate::objects::{Object, Objects};
use crate::place::Place;
use crate::writer::{check_len, read_head};
use crate::{locks, record};
use holdfast_sys::mapped_buffer::{MappedBuffer, Use};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks for a version: at first, at most.
const LOOKS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// What was composed of an object, and of which links.
#[derive(Debug)]
struct Composed {
    oldest: u64,
    newest: u64,
    links: usize,
    bytes: Vec<u8>,
}

/// A version that there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    /// Its number.
    pub number: u64,
    /// When it was put, ns since 1970.
    pub time_ns: u64,
    /// Bytes that it has in the log.
    pub bytes: u64,
}

/// Who reads a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its process.
    pub process: u64,
    /// Its name.
    pub name: String,
    /// The oldest version that it holds.
    pub version: u64,
    /// Bytes of the log from there on.
    pub bytes: u64,
}

/// What came of a look for the next version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The reader is at it.
    Version,
    /// None with that object has come.
    NotYet,
    /// The producer has ended, and all that it has put was seen.
    Over,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    map: MappedBuffer,
    cursors: MappedBuffer,
    slot: u64,
    head: FileHead,
    /// Position of the record after those of the version.
    next: u64,
    objects: Objects,
    /// The oldest version of which all is there.
    from: u64,
    composed: HashMap<String, Composed>,
    process: u32,
}

impl Reader {
    /// Opens the log of a stream. It is before the oldest version at first. `name`: what others see of it.
    ///
    /// # Errors
    /// There is no such log, or it is none; too many readers.
    pub fn open(place: &Place, name: &str) -> Result<Reader, Error> {
        let path = place.path();
        let failed = |why| Error::System { path: path.clone(), why };
        let opened = File::options().read(true).write(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Error::NoStream { path }),
            opened => opened.map_err(failed)?,
        };
        let head = read_head(&file, &path)?;
        let map = MappedBuffer::for_use(file.as_fd(), head.file_len(), Use::Read).map_err(failed)?;
        let cursors = MappedBuffer::for_use(file.as_fd(), RING_AT, Use::Sparse).map_err(failed)?;
        let slot = free_slot(&file, &path)?;
        let mut reader = Reader {
            path,
            file,
            map,
            cursors,
            slot,
            head,
            next: 0,
            objects: Objects::default(),
            from: 0,
            composed: HashMap::new(),
            process: std::process::id(),
        };
        reader.say_who(name)?;
        reader.rewind()?;
        Ok(reader)
    }

    /// A child of fork has no such mapping; and a log that was cut is an error, and no SIGBUS.
    fn own(&self) -> Result<(), Error> {
        if self.process != std::process::id() {
            return Err(Error::Forked);
        }
        check_len(&self.head, &self.file, &self.path)
    }

    fn failed(&self, why: io::Error) -> Error {
        Error::System { path: self.path.clone(), why }
    }

    fn say_who(&mut self, name: &str) -> Result<(), Error> {
        let mut bytes = [0; layout::MAX_NAME];
        let len = name.len().min(layout::MAX_NAME);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        let at = layout::cursor_at(self.slot);
        let process = u64::from(self.process);
        let said = self.cursors.write(at + 16, &bytes).and_then(|()| self.cursors.set_long(at + 8, process));
        said.map_err(|why| self.failed(why))
    }

    /// Needs all from a position on.
    fn hold(&mut self, position: u64) -> Result<(), Error> {
        let at = layout::cursor_at(self.slot);
        self.cursors.set_long(at, position.saturating_add(1)).map_err(|why| self.failed(why))
    }

    /// Goes before the oldest version again. Says which versions there are, and where the log ends.
    fn rewind(&mut self) -> Result<(Vec<Version>, u64), Error> {
        self.own()?;
        let first = self.hold_first()?;
        // Before the records are: a word that is there by now commits one.
        let is_new = record::is_new(&self.map, &self.head, first).map_err(|why| self.failed(why))?;
        let mut versions = Vec::new();
        let mut objects = Objects::default();
        let mut next = first;
        while let Some(found) = record::read(&self.map, &self.head, next) {
            objects.apply(&found.head, found.entries);
            next += found.head.len;
            if matches!(found.head.kind, Kind::Put | Kind::All) {
                versions.push(of_record(&found.head));
            }
        }
        if first == 0 && next == 0 && !is_new {
            let why = "its oldest record is not there".to_owned();
            return Err(Error::NotALog { path: self.path.clone(), why });
        }
        // What comes later tells whether something of a version was before the oldest record.
        self.from = objects.whole_from().unwrap_or(u64::MAX);
        versions.retain(|version| version.number >= self.from);
        (self.next, self.objects) = (first, Objects::default());
        Ok((versions, next))
    }

    /// Needs all that there is; says from where on.
    fn hold_first(&mut self) -> Result<u64, Error> {
        loop {
            let first = self.map.long(HEAD_AT).map_err(|why| self.failed(why))?;
            self.hold(first)?;
            // The writer moves the head and then looks: what it has not seen is seen here.
            if self.map.long(HEAD_AT).map_err(|why| self.failed(why))? == first {
                return Ok(first);
            }
        }
    }

    /// Number of the version at which it is; 0: at none.
    pub fn version(&self) -> u64 {
        self.objects.version()
    }

    /// All objects of the version, with their bytes.
    pub fn objects(&self) -> BTreeMap<String, u64> {
        self.objects.all().iter().map(|(key, object)| (key.clone(), object.size)).collect()
    }

    /// Whether its writer is alive.
    ///
    /// # Errors
    /// It cannot be asked.
    pub fn has_writer(&self) -> Result<bool, Error> {
        locks::has_writer(&self.file).map_err(|why| self.failed(why))
    }

    /// Steps to the next version of which all is there; what it has in the log. `None`: there is none yet.
    ///
    /// # Errors
    /// The cursor cannot be moved; it was opened by another process; the log was cut.
    pub fn step(&mut self) -> Result<Option<Version>, Error> {
        self.own()?;
        while let Some(found) = record::read(&self.map, &self.head, self.next) {
            self.objects.apply(&found.head, found.entries);
            self.next += found.head.len;
            let is_version = matches!(found.head.kind, Kind::Put | Kind::All);
            if is_version && self.from <= found.head.version {
                self.hold(self.objects.oldest().unwrap_or(self.next).min(self.next))?;
                return Ok(Some(of_record(&found.head)));
            }
        }
        Ok(None)
    }

    /// As [`Reader::step`], and waits for a version to come; `until` `None`: as long as it takes.
    ///
    /// # Errors
    /// As [`Reader::step`].
    pub fn wait(&mut self, until: Option<Instant>) -> Result<Option<Version>, Error> {
        let mut pause = LOOKS.0;
        loop {
            if let Some(version) = self.step()? {
                return Ok(Some(version));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LOOKS.1);
        }
    }

    /// Steps to the next version, and waits for it as long as `most`; one without this object is left out.
    ///
    /// # Errors
    /// As [`Reader::step`].
    pub fn next_with(&mut self, object: &str, most: Duration) -> Result<Next, Error> {
        // Before the last look: what was put until then is seen.
        let is_over = !self.has_writer()?;
        let until = if is_over { Instant::now() } else { Instant::now() + most };
        Ok(match self.wait(Some(until))? {
            Some(_) if self.objects.get(object).is_some() => Next::Version,
            None if is_over => Next::Over,
            _ => Next::NotYet,
        })
    }

    /// All versions that are whole, from the oldest on. The reader is before the oldest afterwards.
    ///
    /// # Errors
    /// As [`Reader::step`].
    pub fn versions(&mut self) -> Result<Vec<Version>, Error> {
        Ok(self.rewind()?.0)
    }

    /// Goes to a version; 0: the newest.
    ///
    /// # Errors
    /// There is no such version, or not all of it any more.
    pub fn seek(&mut self, version: u64) -> Result<u64, Error> {
        let (versions, _) = self.rewind()?;
        let (Some(oldest), Some(newest)) = (versions.first(), versions.last()) else {
            return Err(Error::NoVersion { version, oldest: 0, newest: 0 });
        };
        let wanted = if version == 0 { newest.number } else { version };
        if !versions.iter().any(|known| known.number == wanted) {
            return Err(Error::NoVersion { version, oldest: oldest.number, newest: newest.number });
        }
        while self.version() < wanted {
            if self.step()?.is_none() {
                return Err(Error::NoVersion { version, oldest: oldest.number, newest: newest.number });
            }
        }
        Ok(wanted)
    }

    fn object(&self, key: &str) -> Result<&Object, Error> {
        self.own()?;
        let missing = || Error::NoObject { key: key.to_owned(), version: self.version() };
        self.objects.get(key).ok_or_else(missing)
    }

    /// Where the bytes of an object are at this version, until the reader moves, and how many: in the log itself, or
    /// composed here.
    ///
    /// # Errors
    /// There is no such object.
    pub fn address(&mut self, key: &str) -> Result<(*const u8, u64), Error> {
        let object = self.object(key)?;
        let size = object.size;
        if let Some(position) = object.whole_at() {
            let at = self.map.address(self.head.place(position), size).map_err(|why| self.failed(why))?;
            return Ok((at, size));
        }
        self.compose(key)?;
        Ok((self.composed.get(key).map_or(std::ptr::null(), |composed| composed.bytes.as_ptr()), size))
    }

    /// Has what an object is composed of beside it, from what was composed before as far as that goes.
    fn compose(&mut self, key: &str) -> Result<(), Error> {
        let object = self.object(key)?.clone();
        let old = self.composed.remove(key).filter(|old| {
            let last = old.links.checked_sub(1).and_then(|last| object.links.get(last));
            old.oldest == object.oldest() && last.is_some_and(|link| link.record == old.newest)
        });
        let mut composed = old.unwrap_or_else(|| Composed {
            oldest: object.oldest(),
            newest: 0,
            links: 0,
            bytes: vec![0; usize::try_from(object.size).unwrap_or(0)],
        });
        object
            .compose(&self.map, &self.head, composed.links, &mut composed.bytes)
            .map_err(|why| self.failed(why))?;
        (composed.newest, composed.links) = (object.newest(), object.links.len());
        self.composed.insert(key.to_owned(), composed);
        Ok(())
    }

    /// The bytes of an object at this version, checked.
    ///
    /// # Errors
    /// There is no such object; its bytes are damaged.
    pub fn read(&self, key: &str) -> Result<Vec<u8>, Error> {
        let read = self.object(key)?.read(&self.map, &self.head).map_err(|why| self.failed(why))?;
        read.ok_or_else(|| Error::Damaged { version: self.version() })
    }

    /// Bytes of the ring.
    pub fn capacity(&self) -> u64 {
        self.head.capacity
    }

    /// The readers that there are, without this one.
    ///
    /// # Errors
    /// They cannot be asked.
    pub fn holders(&mut self) -> Result<Vec<Holder>, Error> {
        let (versions, end) = self.rewind()?;
        let mut holders = Vec::new();
        for slot in (0..layout::CURSORS).filter(|slot| *slot != self.slot) {
            let at = layout::cursor_at(slot);
            let cursor = self.map.long(at).map_err(|why| self.failed(why))?;
            if cursor == 0 || !locks::has_reader(&self.file, slot).map_err(|why| self.failed(why))? {
                continue;
            }
            let mut name = [0; layout::MAX_NAME];
            self.map.read(at + 16, &mut name).map_err(|why| self.failed(why))?;
            let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            let version = record::read(&self.map, &self.head, cursor - 1).map(|found| found.head.version);
            holders.push(Holder {
                process: self.map.long(at + 8).map_err(|why| self.failed(why))?,
                name: String::from_utf8_lossy(&name[..len]).escape_debug().to_string(),
                version: version.unwrap_or_else(|| versions.last().map_or(0, |version| version.number)),
                bytes: end.saturating_sub(cursor - 1),
            });
        }
        Ok(holders)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.own().is_ok() {
            let _ = self.cursors.set_long(layout::cursor_at(self.slot), 0);
        }
    }
}

fn of_record(head: &layout::RecordHead) -> Version {
    Version { number: head.version, time_ns: head.time_ns, bytes: head.len }
}

fn free_slot(file: &File, path: &std::path::Path) -> Result<u64, Error> {
    for slot in 0..layout::CURSORS {
        let taken =
            locks::take_reader(file, slot).map_err(|why| Error::System { path: path.to_owned(), why })?;
        if taken {
            return Ok(slot);
        }
    }
    Err(Error::Readers)
}

/// The newest version that all of so many ranks have; `None`: there is none.
///
/// # Errors
/// A log cannot be read. One that is not there has no version.
pub fn newest_whole(place: &Place, ranks: u32) -> Result<Option<u64>, Error> {
    let mut common: Option<Vec<u64>> = None;
    for rank in 0..ranks {
        let versions = match Reader::open(&place.of_rank(rank), "newest whole version") {
            Ok(mut reader) => reader.versions()?.iter().map(|version| version.number).collect(),
            Err(Error::NoStream { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        common = Some(match common {
            None => versions,
            Some(common) => common.into_iter().filter(|number| versions.contains(number)).collect(),
        });
    }
    Ok(common.and_then(|common| common.last().copied()))
}
