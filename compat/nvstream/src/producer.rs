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
use std::ffi::OsString;
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

/// What variables of the environment say: what a log is like, and whether pages are noted whatever it costs.
fn options(variable: impl Fn(&str) -> Option<OsString>) -> Result<(Options, bool), streams::Error> {
    let wrong = |name: &str, text: &str, asked: &str| {
        streams::Error::Argument(format!("{name}={text}: {asked} is asked for"))
    };
    let text = |name: &str| match variable(name).filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => {
            text.into_string().map(Some).map_err(|text| wrong(name, &text.to_string_lossy(), "UTF-8"))
        }
    };
    let either = |name: &str, usual: &str, other: &str| match text(name)? {
        None => Ok(false),
        Some(said) if said == usual => Ok(false),
        Some(said) if said == other => Ok(true),
        Some(said) => Err(wrong(name, &said, &format!("{usual} or {other}"))),
    };
    let capacity = match text(place::SIZE)? {
        None => DEFAULT_SIZE,
        Some(text) => size::parse(&text).ok_or_else(|| wrong(place::SIZE, &text, "a size, as 512M,"))?,
    };
    let wait = match text(place::WAIT)? {
        None => Duration::ZERO,
        Some(text) => {
            Duration::from_secs(text.parse().map_err(|_| wrong(place::WAIT, &text, "a number of seconds"))?)
        }
    };
    let keep = either(place::FULL, "drop", "keep")?;
    Ok((Options { capacity, wait, keep }, either(place::DELTAS, "auto", "always")?))
}

impl Producer {
    /// Opens the stream.
    ///
    /// # Errors
    /// As [`Writer::open`]; what the environment says cannot be.
    pub(crate) fn open(id: &str) -> Result<Producer, streams::Error> {
        let place = place(id)?;
        let (options, always) = options(|name| std::env::var_os(name))?;
        let writer = Writer::open(&place, options)?;
        let (notes, objects) = (Notes::new(!always), BTreeMap::new());
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let said = |name: &str, value: &[u8]| {
            let (name, value) = (name.to_owned(), OsString::from_vec(value.to_vec()));
            options(move |asked| (asked == name).then(|| value.clone()))
        };
        let (usual, always) = options(|_| None).unwrap();
        assert!(usual.capacity == DEFAULT_SIZE && usual.wait.is_zero() && !usual.keep && !always);
        assert!(said(place::FULL, b"keep").unwrap().0.keep && !said(place::FULL, b"drop").unwrap().0.keep);
        assert!(said(place::DELTAS, b"always").unwrap().1 && !said(place::DELTAS, b"auto").unwrap().1);
        assert_eq!(said(place::SIZE, b"2M").unwrap().0.capacity, 2 << 20);
        assert_eq!(said(place::WAIT, b"3").unwrap().0.wait, Duration::from_secs(3));
        for name in [place::SIZE, place::WAIT, place::FULL, place::DELTAS] {
            assert!(said(name, b"").is_ok(), "{name} is as if it were not set");
            for wrong in [&b"some"[..], b"Always", b"-1", b"1.5", b"keep ", b"\xff"] {
                let error = said(name, wrong).unwrap_err();
                assert!(
                    matches!(&error, streams::Error::Argument(text) if text.starts_with(name)),
                    "{error}"
                );
            }
        }
    }
}
