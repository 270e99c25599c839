//! A put: objects are copied into a buffer by the thread of the caller, one after the other; all else is the server's.
//!
//! Invariants: until the state of its buffer is [`State::Put`] a version is not there; after that it is, whatever dies.
//! The room for it is asked for at the first object. Where one does not fit that was not planned, there is a larger
//! buffer.

use super::connection::{Buffer, Connection, Lost};
use super::error::{Error, system};
use crate::buffer::{
    AGE_AT, CLOSED_AT, FOUND, HEAD, Layout, MAX_OBJECTS, Object, PAGE, STATE_AT, State, Table, rounded,
};
use crate::wire::Request;
use holdfast_sys::clock;
use holdfast_sys::mapped_buffer::MappedBuffer;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// For the names of objects that were not planned, and a longer number of the run, bytes.
const SPARE: u64 = 512;

/// A file is read in pieces of so many bytes.
const PIECE: usize = 1 << 20;

/// A version that is being put.
#[derive(Debug)]
pub(super) struct Put {
    table: Table,
    keys: BTreeSet<String>,
    /// Bytes of the table, at most.
    table_len: u64,
    /// Where the data begins.
    data: u64,
    /// Where the next object begins.
    at: u64,
    buffer: Option<Buffer>,
    /// Bytes of what is expected to come.
    planned: u64,
}

/// Bytes of an object in a table, at most.
fn row(object: &Object) -> u64 {
    serde_json::to_vec(object).map_or(0, |bytes| bytes.len() as u64 + 1)
}

impl Put {
    /// None of its objects is there yet.
    pub(super) fn new(connection: &Connection, version: u64, planned: &[Object]) -> Put {
        let table = Table {
            set: connection.options.set.clone(),
            rank: connection.options.rank,
            ranks: connection.options.ranks,
            version,
            run: connection.run.unwrap_or(0),
            objects: Vec::new(),
        };
        let empty = serde_json::to_vec(&table).map_or(0, |bytes| bytes.len() as u64);
        let rows: u64 = planned.iter().map(row).sum();
        let data = rounded(HEAD + empty + rows + SPARE);
        let planned = planned.iter().map(|object| rounded(object.bytes)).sum();
        Put { table, keys: BTreeSet::new(), table_len: empty, data, at: data, buffer: None, planned }
    }

    /// Its number.
    pub(super) fn version(&self) -> u64 {
        self.table.version
    }

    /// Whether it has an object already.
    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Copies an object into it.
    ///
    /// # Errors
    /// It has such an object; no room.
    pub(super) fn add(
        &mut self,
        connection: &mut Connection,
        key: &str,
        bytes: &[u8],
        element: u64,
    ) -> Result<(), Error> {
        let object = Object { key: key.to_owned(), bytes: bytes.len() as u64, element: element.max(1) };
        self.copy_in(connection, object, |mapped, at| mapped.write(at, bytes))
    }

    /// Copies a file into it.
    ///
    /// # Errors
    /// As [`Put::add`]; the file cannot be read.
    pub(super) fn add_file(
        &mut self,
        connection: &mut Connection,
        key: &str,
        file: &File,
    ) -> Result<(), Error> {
        let bytes = file.metadata().map_err(system("fstat of a file"))?.len();
        let object = Object { key: key.to_owned(), bytes, element: 1 };
        let mut at = 0;
        self.add_by(connection, object, |piece| {
            let done = file.read_exact_at(piece, at);
            at += piece.len() as u64;
            done
        })
    }

    /// Copies an object into it, of which `read` gives one piece after the other.
    ///
    /// # Errors
    /// As [`Put::add`]; it cannot be read.
    pub(super) fn add_by(
        &mut self,
        connection: &mut Connection,
        object: Object,
        mut read: impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> Result<(), Error> {
        let bytes = object.bytes;
        self.copy_in(connection, object, |mapped, at| {
            let mut piece = vec![0; PIECE];
            let mut done = 0;
            while done < bytes {
                let next = (bytes - done).min(PIECE as u64);
                let piece = &mut piece[..usize::try_from(next).unwrap_or(PIECE)];
                read(piece)?;
                mapped.write(at + done, piece)?;
                done += next;
            }
            Ok(())
        })
    }

    fn check(&self, object: &Object) -> Result<(), Error> {
        if self.has(&object.key) {
            return Err(Error::Argument(format!("the object \"{}\" is in the version already", object.key)));
        }
        if self.keys.len() == MAX_OBJECTS {
            return Err(Error::Argument(format!("{MAX_OBJECTS} objects are possible in one version")));
        }
        let table = Table { objects: vec![object.clone()], set: self.table.set.clone(), ..Table::default() };
        Layout::of(&table).map(|_| ()).map_err(Error::Argument)
    }

    fn copy_in(
        &mut self,
        connection: &mut Connection,
        object: Object,
        write: impl FnOnce(&mut MappedBuffer, u64) -> io::Result<()>,
    ) -> Result<(), Error> {
        connection.forked()?;
        self.check(&object)?;
        let (row, len) = (row(&object), rounded(object.bytes));
        let fits = self.buffer.as_ref().is_some_and(|buffer| self.at + len <= buffer.mapped.bytes())
            && HEAD + self.table_len + row <= self.data;
        if !fits {
            self.grow(connection, row, len)?;
        }
        let Some(buffer) = &mut self.buffer else { return Ok(()) };
        let padding = [0; PAGE as usize];
        let rest = usize::try_from(len - object.bytes).unwrap_or(0);
        let written = write(&mut buffer.mapped, self.at);
        let written = written.and_then(|()| buffer.mapped.write(self.at + object.bytes, &padding[..rest]));
        written.map_err(system("copy into a buffer"))?;
        self.keys.insert(object.key.clone());
        self.table.objects.push(object);
        self.table_len += row;
        self.at += len;
        self.planned = self.planned.saturating_sub(len);
        Ok(())
    }

    /// A buffer with room for one more object, and what there is so far.
    fn grow(&mut self, connection: &mut Connection, row: u64, len: u64) -> Result<(), Error> {
        let (had, table) = (self.at - self.data, HEAD + self.table_len + row);
        let data = if table <= self.data { self.data } else { rounded(table + SPARE) };
        let bytes = data + had + len.max(self.planned);
        let mut buffer = room(connection, self.version(), bytes)?;
        if let Some(old) = self.buffer.take() {
            let copied = buffer.mapped.copy(data, &old.mapped, self.data, had);
            abandoned(connection, old)?;
            copied.map_err(system("copy of a buffer"))?;
        }
        (self.buffer, self.at, self.data) = (Some(buffer), data + had, data);
        Ok(())
    }

    /// It is not put.
    ///
    /// # Errors
    /// No server.
    pub(super) fn abandon(self, connection: &mut Connection) -> Result<(), Error> {
        connection.forked()?;
        self.buffer.map_or(Ok(()), |buffer| abandoned(connection, buffer))
    }

    /// It is the server's.
    ///
    /// # Errors
    /// No room; no server.
    pub(super) fn end(mut self, connection: &mut Connection) -> Result<(), Error> {
        connection.forked()?;
        let mut buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => room(connection, self.version(), self.data)?,
        };
        for last in [false, true] {
            if buffer.session != connection.session || connection.socket.is_none() {
                buffer = self.once_more(connection, &buffer)?;
            }
            self.fill_in(connection, &mut buffer)?;
            let sent = match connection.send(&Request::Put { buffer: buffer.number, ahead: true }) {
                // A server that has died keeps its connections for a moment longer than the lock of its store.
                Ok(()) if is_closed(&buffer)? => Err(Lost::Gone(io::ErrorKind::ConnectionReset.into())),
                sent => sent,
            };
            match sent {
                Ok(()) => {
                    connection.await_ahead();
                    connection.highest = connection.highest.max(Some(self.version()));
                    break;
                }
                // Whether the next server found this buffer is not known: it gets one that replaces it.
                Err(Lost::Gone(_)) if !last => connection.connect()?,
                Err(lost) => return Err(connection.ended(lost)),
            }
        }
        connection.keep(buffer);
        Ok(())
    }

    /// Another buffer with the same data, of the server that there is now.
    fn once_more(&self, connection: &mut Connection, old: &Buffer) -> Result<Buffer, Error> {
        let mut buffer = room(connection, self.version(), self.at)?;
        let copied = buffer.mapped.copy(self.data, &old.mapped, self.data, self.at - self.data);
        copied.map_err(system("copy of a buffer"))?;
        Ok(buffer)
    }

    /// Head and table, and last the state.
    fn fill_in(&mut self, connection: &Connection, buffer: &mut Buffer) -> Result<(), Error> {
        self.table.run = connection.run.unwrap_or(0);
        let layout = Layout::at(&self.table, self.data).map_err(Error::Argument)?;
        let (mapped, own) = (&mut buffer.mapped, usize::try_from(CLOSED_AT).unwrap_or(0));
        let written = mapped.write(0, &layout.head(State::Empty)[..own]);
        let written = written.and_then(|()| mapped.write(AGE_AT, &clock::monotonic_ns().to_le_bytes()));
        let written = written.and_then(|()| mapped.write(HEAD, &layout.table));
        let written = written.and_then(|()| mapped.set_word(STATE_AT, State::Put as u32));
        written.map_err(system("the table of a buffer"))
    }
}

/// Whether a server has found this buffer that is not the one it was of.
fn is_closed(buffer: &Buffer) -> Result<bool, Error> {
    Ok(buffer.mapped.word(CLOSED_AT).map_err(system("a buffer"))? == FOUND)
}

/// A buffer that has nothing.
fn room(connection: &mut Connection, version: u64, bytes: u64) -> Result<Buffer, Error> {
    if let Some(ahead) = connection.take_ahead(bytes)? {
        return Ok(ahead);
    }
    let (answer, passed) = connection.ask_with(&Request::Room { version, bytes }, "for room in memory")?;
    let mut buffer = connection.buffer(&answer, passed)?;
    buffer.mapped.set_word(STATE_AT, State::Empty as u32).map_err(system("a buffer"))?;
    Ok(buffer)
}

fn abandoned(connection: &mut Connection, buffer: Buffer) -> Result<(), Error> {
    if buffer.session != connection.session {
        return Ok(());
    }
    let number = buffer.number;
    connection.keep(buffer);
    connection.tell(&Request::Abandon { buffer: number })
}
