//! The stream that this process writes to: its log and the memory of its objects.
//!
//! Called by `api`, one call at a time. Invariant: what a failed put would have had is in the next one.

use crate::memory::{self, Memory, Notes};
use holdfast_image::size;
use holdfast_objects::client::Error;
use holdfast_streams as streams;
use holdfast_streams::layout::Kind;
use holdfast_streams::place::{self, Place};
use holdfast_streams::reader::Reader;
use holdfast_streams::writer::{Options, Source, Writer};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

const DEFAULT_SIZE: u64 = 1 << 30;

/// In the words of the other libraries.
pub(crate) fn error(error: streams::Error) -> Error {
    match error {
        streams::Error::Argument(why) => Error::Argument(why),
        streams::Error::NoVersion { .. }
        | streams::Error::NoStream { .. }
        | streams::Error::NoObject { .. } => Error::Refused(error.to_string()),
        other => Error::State(other.to_string()),
    }
}

/// The place of a stream, as a program names it.
pub(crate) fn place(text: &str) -> Result<Place, streams::Error> {
    Place::parse(text, &place::folder(None))
}

/// See the head of the file.
#[derive(Debug)]
pub(crate) struct Producer {
    place: Place,
    writer: Writer,
    notes: Option<Notes>,
    objects: BTreeMap<String, Memory>,
    process: u32,
}

fn options() -> Result<Options, streams::Error> {
    let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let wrong = |name: &str, text: String, asked: &str| {
        streams::Error::Argument(format!("{name}={text}: {asked} is asked for"))
    };
    let capacity = match text(place::SIZE) {
        None => DEFAULT_SIZE,
        Some(text) => size::parse(&text).ok_or_else(|| wrong(place::SIZE, text, "a size, as 512M"))?,
    };
    let wait = match text(place::WAIT) {
        None => Duration::ZERO,
        Some(text) => match text.parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => return Err(wrong(place::WAIT, text, "a number of seconds")),
        },
    };
    let keep = match text(place::FULL).as_deref() {
        None | Some("drop") => false,
        Some("keep") => true,
        Some(other) => return Err(wrong(place::FULL, other.to_owned(), "drop or keep")),
    };
    Ok(Options { capacity, wait, keep })
}

impl Producer {
    /// Opens the stream.
    ///
    /// # Errors
    /// As [`Writer::open`]; what the environment says cannot be.
    pub(crate) fn open(id: &str) -> Result<Producer, streams::Error> {
        let place = place(id)?;
        let writer = Writer::open(&place, options()?)?;
        let (notes, objects) = (Notes::new(), BTreeMap::new());
        Ok(Producer { place, writer, notes, objects, process: std::process::id() })
    }

    /// Whether this is the process that has opened it.
    pub(crate) fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// Number of the newest version.
    pub(crate) fn version(&self) -> u64 {
        self.writer.version()
    }

    /// Memory for an object.
    ///
    /// # Errors
    /// There is one of that name; no memory.
    pub(crate) fn create(&mut self, key: &str, size: usize) -> Result<*mut u8, streams::Error> {
        if self.objects.contains_key(key) {
            return Err(streams::Error::Argument(format!("there is an object \"{key}\" already")));
        }
        let made = Memory::new(size, self.notes.as_ref());
        let memory =
            made.map_err(|why| streams::Error::Argument(format!("{size} bytes for \"{key}\": {why}")))?;
        let address = memory.address();
        self.objects.insert(key.to_owned(), memory);
        Ok(address)
    }

    /// Gives an object up.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn free(&mut self, key: &str) -> Result<(), streams::Error> {
        let version = self.version();
        let missing = || streams::Error::NoObject { key: key.to_owned(), version };
        drop(self.objects.remove(key).ok_or_else(missing)?);
        self.writer.remove(key);
        Ok(())
    }

    /// A version: of one object, or of all.
    ///
    /// # Errors
    /// As [`Writer::put`]; there is no such object.
    pub(crate) fn put(&mut self, key: Option<&str>) -> Result<(), streams::Error> {
        let version = self.version();
        if let Some(key) = key.filter(|key| !self.objects.contains_key(*key)) {
            return Err(streams::Error::NoObject { key: key.to_owned(), version });
        }
        let put = key
            .map_or((Bound::Unbounded, Bound::Unbounded), |key| (Bound::Included(key), Bound::Included(key)));
        let notes = self.notes.as_ref();
        let mut memories: Vec<&mut Memory> =
            self.objects.range_mut::<str, _>(put).map(|(_, memory)| memory).collect();
        let changes = memory::changed(&mut memories, notes);
        let objects = self.objects.range::<str, _>(put).zip(changes);
        let sources: Vec<Source<'_>> =
            objects.map(|((key, memory), changed)| Source { key, bytes: memory.bytes(), changed }).collect();
        self.writer.put(if key.is_some() { Kind::Put } else { Kind::All }, &sources)?;
        for (_, memory) in self.objects.range_mut::<str, _>(put) {
            memory.was_put(self.notes.as_ref());
        }
        Ok(())
    }

    /// A reader of the same stream, at a version.
    ///
    /// # Errors
    /// As [`Reader::seek`].
    pub(crate) fn reader(&self, version: u64) -> Result<Reader, streams::Error> {
        let mut reader = Reader::open(&self.place, "its producer")?;
        reader.seek(version)?;
        Ok(reader)
    }
}
