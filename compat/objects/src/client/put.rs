//! A put: objects are copied into a buffer by the thread of the caller, one after the other; all else is the server's.
//!
//! Invariants: until the state of its buffer is [`State::Put`] a version is not there; after that it is, whatever dies.
//! The room for it is asked for at the first object. Where one does not fit that was not planned, there is a larger
//! buffer.

use super::error::{Error, system};
use super::{Buffer, Client, Lost};
use crate::buffer::{HEAD, Layout, MAX_OBJECTS, Object, PAGE, STATE_AT, State, Table, rounded};
use crate::wire::Request;
use std::collections::BTreeSet;

/// For the names of objects that were not planned, and a longer number of the run, bytes.
const SPARE: u64 = 512;

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

impl Client {
    /// Begins to put a version. `planned`: objects that will be in it, as far as that is known: they fit into its first
    /// buffer.
    ///
    /// # Errors
    /// Another one is being put.
    pub fn begin(&mut self, version: u64, planned: &[Object]) -> Result<(), Error> {
        self.forked()?;
        if let Some(put) = &self.put {
            let (other, set) = (put.table.version, &self.options.set);
            let why =
                format!("version {other} of \"{set}\" is being put: it has to be ended before another one");
            return Err(Error::State(why));
        }
        let table = Table {
            set: self.options.set.clone(),
            rank: self.options.rank,
            ranks: self.options.ranks,
            version,
            run: self.run.unwrap_or(0),
            objects: Vec::new(),
        };
        let empty = serde_json::to_vec(&table).map_or(0, |bytes| bytes.len() as u64);
        let rows: u64 = planned.iter().map(row).sum();
        let data = rounded(HEAD + empty + rows + SPARE);
        let planned = planned.iter().map(|object| rounded(object.bytes)).sum();
        let keys = BTreeSet::new();
        self.put = Some(Put { table, keys, table_len: empty, data, at: data, buffer: None, planned });
        Ok(())
    }

    /// The version that is being put, if one is.
    pub fn putting(&self) -> Option<u64> {
        self.put.as_ref().map(|put| put.table.version)
    }

    /// Whether the version that is being put has an object already.
    pub fn has(&self, key: &str) -> bool {
        self.put.as_ref().is_some_and(|put| put.keys.contains(key))
    }

    /// Copies an object into the version that is being put. `element`: bytes of one of its elements, 1 if not known.
    ///
    /// # Errors
    /// No version is being put; it has such an object; no room. The version can be ended all the same.
    pub fn add(&mut self, key: &str, bytes: &[u8], element: u64) -> Result<(), Error> {
        self.forked()?;
        let Some(mut put) = self.put.take() else {
            return Err(Error::State("no version is being put: begin one before".into()));
        };
        let object = Object { key: key.to_owned(), bytes: bytes.len() as u64, element: element.max(1) };
        let result = self.copy_in(&mut put, object, bytes);
        self.put = Some(put);
        result
    }

    fn copy_in(&mut self, put: &mut Put, object: Object, bytes: &[u8]) -> Result<(), Error> {
        put.check(&object)?;
        let (row, len) = (row(&object), rounded(object.bytes));
        let fits = |put: &Put| {
            put.buffer.as_ref().is_some_and(|buffer| put.at + len <= buffer.mapped.bytes())
                && HEAD + put.table_len + row <= put.data
        };
        if !fits(put) {
            self.grow(put, row, len)?;
        }
        let Some(buffer) = &mut put.buffer else { return Ok(()) };
        let padding = [0; PAGE as usize];
        let rest = usize::try_from(len - object.bytes).unwrap_or(0);
        let written = buffer.mapped.write(put.at, bytes);
        let written = written.and_then(|()| buffer.mapped.write(put.at + object.bytes, &padding[..rest]));
        written.map_err(system("copy into a buffer"))?;
        put.keys.insert(object.key.clone());
        put.table.objects.push(object);
        put.table_len += row;
        put.at += len;
        put.planned = put.planned.saturating_sub(len);
        Ok(())
    }

    /// Gives a put a buffer with room for one more object, and what it has so far.
    fn grow(&mut self, put: &mut Put, row: u64, len: u64) -> Result<(), Error> {
        let (had, table) = (put.at - put.data, HEAD + put.table_len + row);
        let data = if table <= put.data { put.data } else { rounded(table + SPARE) };
        let bytes = data + had + len.max(put.planned);
        let mut buffer = self.room(put.table.version, bytes)?;
        if let Some(old) = put.buffer.take() {
            let copied = buffer.mapped.copy(data, &old.mapped, put.data, had);
            self.abandoned(old)?;
            copied.map_err(system("copy of a buffer"))?;
        }
        (put.buffer, put.at, put.data) = (Some(buffer), data + had, data);
        Ok(())
    }

    /// A buffer that has nothing.
    fn room(&mut self, version: u64, bytes: u64) -> Result<Buffer, Error> {
        let (answer, passed) = self.ask_with(&Request::Room { version, bytes }, "for room in memory")?;
        let mut buffer = self.buffer(&answer, passed)?;
        buffer.mapped.set_word(STATE_AT, State::Empty as u32).map_err(system("a buffer"))?;
        Ok(buffer)
    }

    fn abandoned(&mut self, buffer: Buffer) -> Result<(), Error> {
        if buffer.session != self.session {
            return Ok(());
        }
        let number = buffer.number;
        self.keep(buffer);
        self.tell(&Request::Abandon { buffer: number })
    }

    /// The version that is being put is not put.
    ///
    /// # Errors
    /// No server.
    pub fn abandon(&mut self) -> Result<(), Error> {
        self.forked()?;
        match self.put.take().and_then(|put| put.buffer) {
            Some(buffer) => self.abandoned(buffer),
            None => Ok(()),
        }
    }

    /// Ends the version that is being put: it is the server's, and no longer needs the memory it was copied from.
    ///
    /// # Errors
    /// No version is being put; no room; no server. The version is not there then, unless the error says that what was
    /// put is.
    pub fn end(&mut self) -> Result<(), Error> {
        self.forked()?;
        let Some(mut put) = self.put.take() else {
            return Err(Error::State("no version is being put: begin one before".into()));
        };
        let mut buffer = match put.buffer.take() {
            Some(buffer) => buffer,
            None => self.room(put.table.version, put.data)?,
        };
        for last in [false, true] {
            if buffer.session != self.session || self.connection.is_none() {
                buffer = self.once_more(&put, &buffer)?;
            }
            self.fill_in(&mut put, &mut buffer)?;
            match self.send(&Request::Put { buffer: buffer.number }) {
                Ok(()) => break,
                // Whether the next server found this buffer is not known: it gets one that replaces it.
                Err(Lost::Gone(_)) if !last => self.connect()?,
                Err(lost) => return Err(self.ended(lost)),
            }
        }
        self.keep(buffer);
        Ok(())
    }

    /// Another buffer with the same data, of the server that there is now.
    fn once_more(&mut self, put: &Put, old: &Buffer) -> Result<Buffer, Error> {
        let mut buffer = self.room(put.table.version, put.at)?;
        let copied = buffer.mapped.copy(put.data, &old.mapped, put.data, put.at - put.data);
        copied.map_err(system("copy of a buffer"))?;
        Ok(buffer)
    }

    /// Head and table, and last the state.
    fn fill_in(&mut self, put: &mut Put, buffer: &mut Buffer) -> Result<(), Error> {
        put.table.run = self.run.unwrap_or(0);
        let layout = Layout::at(&put.table, put.data).map_err(Error::Argument)?;
        let mapped = &mut buffer.mapped;
        let written = mapped.write(0, &layout.head(State::Empty));
        let written = written.and_then(|()| mapped.write(HEAD, &layout.table));
        let written = written.and_then(|()| mapped.set_word(STATE_AT, State::Put as u32));
        written.map_err(system("the table of a buffer"))
    }
}

impl Put {
    fn check(&self, object: &Object) -> Result<(), Error> {
        if self.keys.contains(&object.key) {
            return Err(Error::Argument(format!("the object \"{}\" is in the version already", object.key)));
        }
        if self.keys.len() == MAX_OBJECTS {
            return Err(Error::Argument(format!("{MAX_OBJECTS} objects are possible in one version")));
        }
        let table = Table { objects: vec![object.clone()], set: self.table.set.clone(), ..Table::default() };
        Layout::of(&table).map(|_| ()).map_err(Error::Argument)
    }
}
