//! A restore: the server fills a buffer with a version, its objects are copied out of it by the thread of the caller.
//!
//! Invariants: sizes are known before anything is copied; an object is copied whole or not at all. The buffer is the
//! caller's until [`Client::restored`]; it outlives the server.

use super::error::{Error, system};
use super::{Buffer, Client};
use crate::buffer::{HEAD, Head, State};
use crate::wire::{Answer, Request};
use std::collections::BTreeMap;

/// A version that is being restored.
#[derive(Debug)]
pub(super) struct Restore {
    version: u64,
    buffer: Buffer,
    /// By key: where it begins, and how many bytes it has.
    objects: BTreeMap<String, (u64, u64)>,
}

impl Client {
    /// Begins to restore a version; one that was being restored has ended by that.
    ///
    /// # Errors
    /// [`Error::NoVersion`]; it cannot be read; no server.
    pub fn restore(&mut self, version: u64) -> Result<(), Error> {
        self.restored()?;
        let (answer, passed) = self.ask_with(&Request::Restore { version }, "for a version")?;
        if answer == Answer::Missing {
            let (set, rank) = (self.options.set.clone(), self.options.rank);
            return Err(Error::NoVersion { set, rank, version });
        }
        let buffer = self.buffer(&answer, passed)?;
        match table(&buffer, version) {
            Ok(objects) => {
                self.restore = Some(Restore { version, buffer, objects });
                Ok(())
            }
            Err(why) => {
                let what = format!("version {version} in a buffer that is none ({why})");
                self.done_with(buffer)?;
                Err(self.protocol(what))
            }
        }
    }

    /// The version that is being restored, if one is.
    pub fn restoring(&self) -> Option<u64> {
        self.restore.as_ref().map(|restore| restore.version)
    }

    /// The objects of the version that is being restored, and their sizes in bytes, by key.
    pub fn objects(&self) -> impl Iterator<Item = (&str, u64)> {
        let objects = self.restore.iter().flat_map(|restore| &restore.objects);
        objects.map(|(key, (_, bytes))| (key.as_str(), *bytes))
    }

    /// Size of an object of the version that is being restored, bytes; `None`: it has no such object.
    pub fn size(&self, key: &str) -> Option<u64> {
        self.restore.as_ref()?.objects.get(key).map(|(_, bytes)| *bytes)
    }

    /// Copies an object of the version that is being restored. `bytes` may be longer than it: the rest stays as it is.
    ///
    /// # Errors
    /// No version is being restored; [`Error::NoObject`]; [`Error::Size`]: it is longer than `bytes`.
    pub fn copy(&self, key: &str, bytes: &mut [u8]) -> Result<u64, Error> {
        self.forked()?;
        let Some(restore) = &self.restore else {
            return Err(Error::State("no version is being restored: begin with that".into()));
        };
        let version = restore.version;
        let Some(&(at, stored)) = restore.objects.get(key) else {
            return Err(Error::NoObject { set: self.options.set.clone(), version, key: key.to_owned() });
        };
        let wanted = bytes.len() as u64;
        let target = usize::try_from(stored).ok().and_then(|stored| bytes.get_mut(..stored));
        let Some(target) = target else {
            return Err(Error::Size { key: key.to_owned(), version, stored, wanted });
        };
        restore.buffer.mapped.read(at, target).map_err(system("copy out of a buffer"))?;
        Ok(stored)
    }

    /// The version that is being restored was; without one this does nothing.
    ///
    /// # Errors
    /// No server.
    pub fn restored(&mut self) -> Result<(), Error> {
        self.forked()?;
        match self.restore.take() {
            Some(restore) => self.done_with(restore.buffer),
            None => Ok(()),
        }
    }

    fn done_with(&mut self, buffer: Buffer) -> Result<(), Error> {
        if buffer.session != self.session {
            return Ok(());
        }
        let number = buffer.number;
        self.keep(buffer);
        self.tell(&Request::Restored { buffer: number })
    }
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
