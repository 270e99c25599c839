//! A client: one rank of one set of objects, inside a program. Used by the client libraries beside this crate.
//!
//! * `start`: finds the server, which is started where none listens;
//! * `connection`: requests and answers, also when a server dies;
//! * `put`: a version, copied into a buffer by the thread of the caller;
//! * `restore`: a version, copied out of one.
//!
//! Invariants: nothing waits without a bound; nothing panics, nor ends the program; a child of fork uses nothing of its
//! parent's. A server that has died is started again once for each request; what was put is in buffers, which it finds.
//! Fails by [`Error`], after which the client can be used further.

mod connection;
mod error;
mod options;
mod put;
mod restore;
mod start;
#[cfg(test)]
mod tests;

pub use connection::WAIT_VARIABLE;
pub use error::Error;
pub use options::ClientOptions;
pub use start::{BINARY_VARIABLE, default_store};

use crate::buffer::Object;
use crate::wire::{Answer, Request};
use connection::Connection;
use put::Put;
use restore::Restore;
use std::fs::File;
use std::io::{self, Write};

/// What is said of a call that needs a version that was begun.
fn none_is_put() -> Error {
    Error::State("no version is being put: begin one before".into())
}

fn none_is_restored() -> Error {
    Error::State("no version is being restored: begin with that".into())
}

/// One rank of one set.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    put: Option<Put>,
    restore: Option<Restore>,
}

impl Client {
    /// Opens a set, and starts the server of its store where none is.
    ///
    /// # Errors
    /// A name or number that cannot be; no server, and none to be started; the server's own.
    pub fn open(options: ClientOptions) -> Result<Client, Error> {
        Ok(Client { connection: Connection::open(options)?, put: None, restore: None })
    }

    /// Name of the set.
    pub fn set(&self) -> &str {
        &self.connection.options.set
    }

    /// Whether this process has opened it: a child of fork has not.
    pub fn is_own(&self) -> bool {
        self.connection.is_own()
    }

    /// Waits until all that was put is in the store.
    ///
    /// # Errors
    /// What of it is not there, each failure once.
    pub fn wait(&mut self) -> Result<(), Error> {
        match self.connection.ask(&Request::Wait, "a wait")? {
            Answer::Done => Ok(()),
            other => Err(self.connection.unexpected(&other)),
        }
    }

    /// Whether [`Client::wait`] would return at once.
    ///
    /// # Errors
    /// No server.
    pub fn is_finished(&mut self) -> Result<bool, Error> {
        match self.connection.ask(&Request::IsFinished, "whether all is stored")? {
            Answer::Finished(finished) => Ok(finished),
            other => Err(self.connection.unexpected(&other)),
        }
    }

    /// The newest version, below this one if one is said, that is whole on all ranks.
    ///
    /// # Errors
    /// No server; the store cannot be read.
    pub fn newest(&mut self, below: Option<u64>) -> Result<Option<u64>, Error> {
        match self.connection.ask(&Request::Newest { below }, "for the newest version")? {
            Answer::Version(version) => Ok(version),
            other => Err(self.connection.unexpected(&other)),
        }
    }

    /// This version will be restored, after those that were hinted at before.
    ///
    /// # Errors
    /// No server.
    pub fn hint(&mut self, version: u64) -> Result<(), Error> {
        self.connection.tell(&Request::Hint { version })
    }

    /// What was hinted at may be fetched from now on.
    ///
    /// # Errors
    /// No server.
    pub fn start(&mut self) -> Result<(), Error> {
        self.connection.tell(&Request::Start)
    }

    /// This version is needed no longer once it was restored.
    ///
    /// # Errors
    /// No server.
    pub fn discard(&mut self, version: u64) -> Result<(), Error> {
        self.connection.tell(&Request::Discard { version })
    }

    /// All versions of this rank go.
    ///
    /// # Errors
    /// No server; they could not be removed.
    pub fn drop_set(&mut self) -> Result<(), Error> {
        match self.connection.ask(&Request::Drop, "to remove versions")? {
            Answer::Done => Ok(()),
            other => Err(self.connection.unexpected(&other)),
        }
    }

    /// Begins to put a version. `planned`: objects that will be in it, as far as that is known: they fit into its first
    /// buffer.
    ///
    /// # Errors
    /// Another one is being put.
    pub fn begin(&mut self, version: u64, planned: &[Object]) -> Result<(), Error> {
        self.connection.forked()?;
        if let Some(other) = self.putting() {
            let set = self.set();
            let why =
                format!("version {other} of \"{set}\" is being put: it has to be ended before another one");
            return Err(Error::State(why));
        }
        self.put = Some(Put::new(&self.connection, version, planned));
        Ok(())
    }

    /// The version that is being put, if one is.
    pub fn putting(&self) -> Option<u64> {
        self.put.as_ref().map(Put::version)
    }

    /// Whether the version that is being put has an object already.
    pub fn has(&self, key: &str) -> bool {
        self.put.as_ref().is_some_and(|put| put.has(key))
    }

    /// Copies an object into the version that is being put. `element`: bytes of one of its elements, 1 if not known.
    ///
    /// # Errors
    /// No version is being put; it has such an object; no room. The version can be ended all the same.
    pub fn add(&mut self, key: &str, bytes: &[u8], element: u64) -> Result<(), Error> {
        let put = self.put.as_mut().ok_or_else(none_is_put)?;
        put.add(&mut self.connection, key, bytes, element)
    }

    /// Copies the content of a file into the version that is being put, as an object.
    ///
    /// # Errors
    /// As [`Client::add`]; the file cannot be read.
    pub fn add_file(&mut self, key: &str, file: &File) -> Result<(), Error> {
        let put = self.put.as_mut().ok_or_else(none_is_put)?;
        put.add_file(&mut self.connection, key, file)
    }

    /// Copies an object into the version that is being put, of which `read` gives one piece after the other.
    ///
    /// # Errors
    /// As [`Client::add`]; it cannot be read.
    pub fn add_by(
        &mut self,
        object: Object,
        read: impl FnMut(&mut [u8]) -> io::Result<()>,
    ) -> Result<(), Error> {
        let put = self.put.as_mut().ok_or_else(none_is_put)?;
        put.add_by(&mut self.connection, object, read)
    }

    /// Ends the version that is being put: it is the server's, and no longer needs the memory it was copied from.
    ///
    /// # Errors
    /// No version is being put; no room; no server. The version is not there then, unless the error says that what was
    /// put is.
    pub fn end(&mut self) -> Result<(), Error> {
        self.put.take().ok_or_else(none_is_put)?.end(&mut self.connection)
    }

    /// The version that is being put is not put; without one this does nothing.
    ///
    /// # Errors
    /// No server.
    pub fn abandon(&mut self) -> Result<(), Error> {
        self.put.take().map_or(Ok(()), |put| put.abandon(&mut self.connection))
    }

    /// Begins to restore a version; one that was being restored has ended by that.
    ///
    /// # Errors
    /// [`Error::NoVersion`]; it cannot be read; no server.
    pub fn restore(&mut self, version: u64) -> Result<(), Error> {
        self.restored()?;
        self.restore = Some(Restore::new(&mut self.connection, version)?);
        Ok(())
    }

    /// The version that is being restored, if one is.
    pub fn restoring(&self) -> Option<u64> {
        self.restore.as_ref().map(Restore::version)
    }

    /// The objects of the version that is being restored, and their sizes in bytes, by key.
    pub fn objects(&self) -> impl Iterator<Item = (&str, u64)> {
        self.restore.iter().flat_map(Restore::objects)
    }

    /// Size of an object of the version that is being restored, bytes; `None`: it has no such object.
    pub fn size(&self, key: &str) -> Option<u64> {
        self.restore.as_ref()?.size(key)
    }

    /// Copies an object of the version that is being restored. `bytes` may be longer than it: the rest stays as it is.
    ///
    /// # Errors
    /// No version is being restored; [`Error::NoObject`]; [`Error::Size`]: it is longer than `bytes`.
    pub fn copy(&self, key: &str, bytes: &mut [u8]) -> Result<u64, Error> {
        self.restore.as_ref().ok_or_else(none_is_restored)?.copy(&self.connection, key, bytes)
    }

    /// Writes an object of the version that is being restored into a file.
    ///
    /// # Errors
    /// As [`Client::copy`]; the file cannot be written.
    pub fn copy_to(&self, key: &str, file: &mut impl Write) -> Result<(), Error> {
        self.restore.as_ref().ok_or_else(none_is_restored)?.copy_to(&self.connection, key, file)
    }

    /// The version that is being restored was; without one this does nothing.
    ///
    /// # Errors
    /// No server.
    pub fn restored(&mut self) -> Result<(), Error> {
        self.connection.forked()?;
        self.restore.take().map_or(Ok(()), |restore| restore.end(&mut self.connection))
    }
}
