//! A restore: the server fills a buffer with a version, its objects are copied out of it by the thread of the caller.
//!
//! Invariants: sizes are known before anything is copied; an object is copied whole or not at all. The buffer is the
//! client's until [`Restore::end`]; it outlives the server.

use super::connection::{Buffer, Connection};
use super::error::{Error, system};
use crate::buffer::{HEAD, Head, State};
use crate::wire::{Answer, Request};
use std::collections::BTreeMap;
use std::io::Write;

/// A file is written in pieces of so many bytes.
const PIECE: usize = 1 << 20;

/// A version that is being restored.
#[derive(Debug)]
pub(super) struct Restore {
    version: u64,
    buffer: Buffer,
    /// By key: where it begins, and how many bytes it has.
    objects: BTreeMap<String, (u64, u64)>,
}

impl Restore {
    /// Has the server fill a buffer.
    ///
    /// # Errors
    /// [`Error::NoVersion`]; it cannot be read; no server.
    pub(super) fn new(connection: &mut Connection, version: u64) -> Result<Restore, Error> {
        let (answer, passed) = connection.ask_with(&Request::Restore { version }, "for a version")?;
        if answer == Answer::Missing {
            let (set, rank) = (connection.options.set.clone(), connection.options.rank);
            return Err(Error::NoVersion { set, rank, version });
        }
        let buffer = connection.buffer(&answer, passed)?;
        match table(&buffer, version) {
            Ok(objects) => Ok(Restore { version, buffer, objects }),
            Err(why) => {
                done_with(connection, buffer)?;
                Err(connection.protocol(format!("version {version} in a buffer that is none ({why})")))
            }
        }
    }

    /// Its number.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Keys and sizes.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&str, u64)> {
        self.objects.iter().map(|(key, (_, bytes))| (key.as_str(), *bytes))
    }

    /// Size of an object, bytes.
    pub(super) fn size(&self, key: &str) -> Option<u64> {
        self.objects.get(key).map(|(_, bytes)| *bytes)
    }

    /// Copies an object.
    ///
    /// # Errors
    /// [`Error::NoObject`]; [`Error::Size`]: nothing was copied.
    pub(super) fn copy(&self, connection: &Connection, key: &str, bytes: &mut [u8]) -> Result<u64, Error> {
        let (at, stored) = self.place(connection, key)?;
        let (version, wanted) = (self.version, bytes.len() as u64);
        let target = usize::try_from(stored).ok().and_then(|stored| bytes.get_mut(..stored));
        let Some(target) = target else {
            return Err(Error::Size { key: key.to_owned(), version, stored, wanted });
        };
        self.buffer.mapped.read(at, target).map_err(system("copy out of a buffer"))?;
        Ok(stored)
    }

    /// Writes an object into a file.
    ///
    /// # Errors
    /// As [`Restore::copy`]; the file cannot be written.
    pub(super) fn copy_to(
        &self,
        connection: &Connection,
        key: &str,
        file: &mut impl Write,
    ) -> Result<(), Error> {
        let (at, bytes) = self.place(connection, key)?;
        let mut piece = vec![0; PIECE];
        let mut done = 0;
        while done < bytes {
            let next = (bytes - done).min(PIECE as u64);
            let piece = &mut piece[..usize::try_from(next).unwrap_or(PIECE)];
            self.buffer.mapped.read(at + done, piece).map_err(system("copy out of a buffer"))?;
            file.write_all(piece).map_err(system("write of a file"))?;
            done += next;
        }
        Ok(())
    }

    fn place(&self, connection: &Connection, key: &str) -> Result<(u64, u64), Error> {
        connection.forked()?;
        let (set, version) = (&connection.options.set, self.version);
        let found = self.objects.get(key).copied();
        found.ok_or_else(|| Error::NoObject { set: set.clone(), version, key: key.to_owned() })
    }

    /// The buffer is not needed any more.
    ///
    /// # Errors
    /// No server.
    pub(super) fn end(self, connection: &mut Connection) -> Result<(), Error> {
        done_with(connection, self.buffer)
    }
}

fn done_with(connection: &mut Connection, buffer: Buffer) -> Result<(), Error> {
    if buffer.session != connection.session {
        return Ok(());
    }
    let number = buffer.number;
    connection.keep(buffer);
    connection.tell(&Request::Restored { buffer: number })
}

/// Where the objects of a version are.
fn table(buffer: &Buffer, version: u64) -> Result<BTreeMap<String, (u64, u64)>, String> {
    let mut head = [0; HEAD as usize];
    buffer.mapped.read(0, &mut head).map_err(|error| error.to_string())?;
    let head = Head::decode(&head)?;
    if head.state == State::Empty {
        return Err("it is empty".into());
    }
    let mut bytes = vec![0; usize::try_from(head.table).unwrap_or(0)];
    buffer.mapped.read(HEAD, &mut bytes).map_err(|error| error.to_string())?;
    let (table, layout) = head.table(&bytes)?;
    if table.version != version || layout.len > buffer.mapped.bytes() {
        return Err(format!("it has {} bytes of version {}", buffer.mapped.bytes(), table.version));
    }
    let places = table.objects.into_iter().zip(layout.places);
    Ok(places.map(|(object, place)| (object.key, (place, object.bytes))).collect())
}
