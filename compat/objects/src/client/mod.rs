//! A client: one rank of one set of objects, inside a program. Used by the client libraries beside this crate.
//!
//! * `start`: a connection to the server, which is started where none listens;
//! * `put`: a version, copied into a buffer by the thread of the caller;
//! * `restore`: a version, copied out of one.
//!
//! Invariants: nothing waits without a bound; nothing panics, nor ends the program; a child of fork uses nothing of its
//! parent's. A server that has died is started again once for each request; what was put is in buffers, which it finds.
//! Fails by [`Error`], after which the client can be used further.

mod error;
mod put;
mod restore;
mod start;
#[cfg(test)]
mod tests;

pub use error::Error;
pub use start::{BINARY_VARIABLE, default_store};

use crate::buffer::check_name;
use crate::wire::{self, Answer, Request};
use error::system;
use holdfast_sys::mapped_buffer::MappedBuffer;
use holdfast_sys::poll;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Seconds that an answer is waited for.
pub const WAIT_VARIABLE: &str = "HOLDFAST_OBJECTS_WAIT";
const WAIT_S: u64 = 3600;

/// Which rank of which set, and where.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The store.
    pub store: PathBuf,
    /// Name of the set.
    pub set: String,
    /// This rank.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// Lower tiers (`dir=PATH,keep=N`), the fastest first.
    pub tiers: Vec<String>,
    /// So many of the newest whole versions are kept in the store; `None`: all.
    pub keep: Option<u64>,
    /// Path of the binary `holdfast`; `None`: it is looked for ([`BINARY_VARIABLE`], beside the library, PATH).
    pub holdfast: Option<PathBuf>,
}

/// One rank of one set.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    /// The process that may use it.
    process: u32,
    /// None after an answer has not come: a late one would be taken for that of the next request.
    connection: Option<OwnedFd>,
    /// Number of the connection: buffers of an earlier one are of a server that is gone.
    session: u64,
    run: Option<u64>,
    patience: Duration,
    /// Buffers that neither a put nor a restore uses, by number.
    buffers: BTreeMap<u64, MappedBuffer>,
    put: Option<put::Put>,
    restore: Option<restore::Restore>,
}

/// Why a request was not answered.
enum Lost {
    /// The server has gone.
    Gone(io::Error),
    /// Else.
    Failed(Error),
}

impl From<Error> for Lost {
    fn from(error: Error) -> Self {
        Lost::Failed(error)
    }
}

/// A buffer that the server gives.
#[derive(Debug)]
struct Buffer {
    number: u64,
    session: u64,
    mapped: MappedBuffer,
}

impl Client {
    /// Opens a set, and starts the server of its store where none is.
    ///
    /// # Errors
    /// A name or number that cannot be; no server, and none to be started; the server's own.
    pub fn open(options: ClientOptions) -> Result<Client, Error> {
        check_name(&options.set).map_err(Error::Argument)?;
        if options.store.as_os_str().is_empty() {
            return Err(Error::Argument("no store is said: a folder on a local disk".into()));
        }
        let said = std::env::var(WAIT_VARIABLE).ok().and_then(|text| text.parse().ok());
        let mut client = Client {
            process: std::process::id(),
            connection: None,
            session: 0,
            run: None,
            patience: Duration::from_secs(said.unwrap_or(WAIT_S)),
            buffers: BTreeMap::new(),
            put: None,
            restore: None,
            options,
        };
        client.open_request().check().map_err(Error::Argument)?;
        client.connect()?;
        Ok(client)
    }

    /// Name of the set.
    pub fn set(&self) -> &str {
        &self.options.set
    }

    /// Whether this process has opened it: a child of fork has not.
    pub fn is_own(&self) -> bool {
        std::process::id() == self.process
    }

    /// Waits until all that was put is in the store.
    ///
    /// # Errors
    /// What of it is not there, each failure once.
    pub fn wait(&mut self) -> Result<(), Error> {
        match self.ask(&Request::Wait, "a wait")? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Whether [`Client::wait`] would return at once.
    ///
    /// # Errors
    /// No server.
    pub fn is_finished(&mut self) -> Result<bool, Error> {
        match self.ask(&Request::IsFinished, "whether all is stored")? {
            Answer::Finished(finished) => Ok(finished),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The newest version, below this one if one is said, that is whole on all ranks.
    ///
    /// # Errors
    /// No server; the store cannot be read.
    pub fn newest(&mut self, below: Option<u64>) -> Result<Option<u64>, Error> {
        match self.ask(&Request::Newest { below }, "for the newest version")? {
            Answer::Version(version) => Ok(version),
            other => Err(self.unexpected(&other)),
        }
    }

    /// This version will be restored, after those that were hinted at before.
    ///
    /// # Errors
    /// No server.
    pub fn hint(&mut self, version: u64) -> Result<(), Error> {
        self.tell(&Request::Hint { version })
    }

    /// What was hinted at may be fetched from now on.
    ///
    /// # Errors
    /// No server.
    pub fn start(&mut self) -> Result<(), Error> {
        self.tell(&Request::Start)
    }

    /// This version is needed no longer once it was restored.
    ///
    /// # Errors
    /// No server.
    pub fn discard(&mut self, version: u64) -> Result<(), Error> {
        self.tell(&Request::Discard { version })
    }

    /// All versions of this rank go.
    ///
    /// # Errors
    /// No server; they could not be removed.
    pub fn drop_set(&mut self) -> Result<(), Error> {
        match self.ask(&Request::Drop, "to remove versions")? {
            Answer::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn open_request(&self) -> Request {
        let ClientOptions { set, rank, ranks, tiers, keep, .. } = self.options.clone();
        Request::Open { protocol: wire::PROTOCOL, set, rank, ranks, tiers, keep, run: self.run }
    }

    fn socket(&self) -> PathBuf {
        wire::socket(&self.options.store)
    }

    fn forked(&self) -> Result<(), Error> {
        match self.is_own() {
            true => Ok(()),
            false => Err(Error::Forked { set: self.options.set.clone() }),
        }
    }

    /// A new connection, of a server that is started if it must be.
    fn connect(&mut self) -> Result<(), Error> {
        self.connection = None;
        // A server may end, as that of its last client, when it has just taken the connection.
        for last in [false, false, true] {
            let connection = start::connect(&self.options.store, self.options.holdfast.as_deref())?;
            self.connection = Some(connection);
            self.session += 1;
            self.buffers.clear();
            match self.once(&self.open_request(), "to be opened") {
                Ok((Answer::Opened { run }, _)) => {
                    self.run = Some(run);
                    return Ok(());
                }
                Ok((other, _)) => return Err(self.unexpected(&other)),
                Err(Lost::Failed(error)) => return Err(error),
                Err(Lost::Gone(why)) if last => return Err(Error::Died { socket: self.socket(), why }),
                Err(Lost::Gone(_)) => self.connection = None,
            }
        }
        Ok(())
    }

    /// Sends and reads the answer, once more with another server if this one has gone.
    fn ask_with(
        &mut self,
        request: &Request,
        what: &'static str,
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        self.forked()?;
        let mut again = true;
        loop {
            if self.connection.is_none() {
                self.connect()?;
            }
            match self.once(request, what) {
                Ok(answer) => return Ok(answer),
                Err(Lost::Gone(_)) if again => (self.connection, again) = (None, false),
                Err(lost) => return Err(self.ended(lost)),
            }
        }
    }

    fn ask(&mut self, request: &Request, what: &'static str) -> Result<Answer, Error> {
        self.ask_with(request, what).map(|(answer, _)| answer)
    }

    /// Sends what has no answer, once more with another server if this one has gone; but not what is of its buffers.
    fn tell(&mut self, request: &Request) -> Result<(), Error> {
        self.forked()?;
        if self.connection.is_none() {
            self.connect()?;
        }
        match self.send(request) {
            Err(Lost::Gone(_)) => {
                self.connect()?;
                match request {
                    Request::Abandon { .. } | Request::Restored { .. } => Ok(()),
                    _ => self.send(request).map_err(|lost| self.ended(lost)),
                }
            }
            other => other.map_err(|lost| self.ended(lost)),
        }
    }

    fn ended(&mut self, lost: Lost) -> Error {
        match lost {
            Lost::Gone(why) => {
                self.connection = None;
                Error::Died { socket: self.socket(), why }
            }
            Lost::Failed(error) => error,
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), Lost> {
        let Some(connection) = &self.connection else {
            return Err(Lost::Gone(ErrorKind::NotConnected.into()));
        };
        let end = Instant::now() + self.patience;
        loop {
            match wire::send(connection.as_fd(), request, None) {
                Err(error) if error.kind() == ErrorKind::Interrupted && Instant::now() < end => {}
                // Its buffer is full, as its timeout says (connect_within).
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {}
                Err(error) if is_end(&error) => return Err(Lost::Gone(error)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Err(self.silent("to read a message").into());
                }
                other => return other.map_err(|why| system("sendmsg to the server")(why).into()),
            }
        }
    }

    fn once(&mut self, request: &Request, what: &'static str) -> Result<(Answer, Option<OwnedFd>), Lost> {
        self.send(request)?;
        let Some(connection) = &self.connection else {
            return Err(Lost::Gone(ErrorKind::NotConnected.into()));
        };
        if !poll::readable_within(connection.as_fd(), self.patience).map_err(system("poll"))? {
            return Err(self.silent(what).into());
        }
        match wire::receive::<Answer>(connection.as_fd()) {
            Ok(Some((Answer::Failed { why }, _))) => Err(Error::Refused(why).into()),
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Lost::Gone(ErrorKind::UnexpectedEof.into())),
            Err(error) if is_end(&error) => Err(Lost::Gone(error)),
            Err(error) => {
                self.connection = None;
                Err(self.protocol(format!("an answer that is none ({error})")).into())
            }
        }
    }

    fn silent(&mut self, what: &'static str) -> Error {
        self.connection = None;
        Error::Silent { socket: self.socket(), what, seconds: self.patience.as_secs() }
    }

    fn protocol(&self, what: String) -> Error {
        Error::Protocol { socket: self.socket(), what }
    }

    fn unexpected(&mut self, answer: &Answer) -> Error {
        self.connection = None;
        self.protocol(format!("another answer than one to what was asked ({answer:?})"))
    }

    /// The buffer that an answer names, which is the caller's until it goes back by [`Client::keep`].
    fn buffer(&mut self, answer: &Answer, passed: Option<OwnedFd>) -> Result<Buffer, Error> {
        let Answer::Buffer { buffer: number, bytes, is_new } = *answer else {
            return Err(self.unexpected(answer));
        };
        let known = self.buffers.remove(&number).filter(|_| !is_new);
        let mapped = match (known, passed) {
            (Some(known), _) if known.bytes() == bytes => known,
            (None, Some(file)) => {
                MappedBuffer::of(file.as_fd(), bytes).map_err(system("mmap of a buffer"))?
            }
            _ => {
                self.connection = None;
                return Err(self.protocol(format!("buffer {number} of {bytes} bytes, which is not known")));
            }
        };
        Ok(Buffer { number, session: self.session, mapped })
    }

    /// A buffer that is not used for now.
    fn keep(&mut self, buffer: Buffer) {
        if buffer.session == self.session {
            self.buffers.insert(buffer.number, buffer.mapped);
        }
    }
}

/// Whether an error of a connection says that the other side has gone.
fn is_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}
