//! The connection of a client to its server, and the buffers that it has from there.
//!
//! Invariants: a request is sent again once, to another server, where this one has gone; a buffer of a server that has
//! gone is only read. Nothing waits without a bound. A child of fork uses nothing of it.

use super::error::{Error, system};
use super::options::ClientOptions;
use super::start::connect;
use crate::buffer::{CLAIMED_AT, CLOSED_AT, check_name};
use crate::wire::{self, Answer, Request};
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

/// See the head of the file.
#[derive(Debug)]
pub(super) struct Connection {
    /// Of the client.
    pub options: ClientOptions,
    /// The process that may use it.
    pub process: u32,
    /// None after an answer has not come: a late one would be taken for that of the next request.
    pub socket: Option<OwnedFd>,
    /// Number of the connection: buffers of an earlier one are of a server that is gone.
    pub session: u64,
    /// The run that the server has said.
    pub run: Option<u64>,
    /// The highest number of a version that was put since the set was opened.
    pub highest: Option<u64>,
    /// How long an answer is waited for.
    pub patience: Duration,
    /// Buffers that neither a put nor a restore uses, by number.
    buffers: BTreeMap<u64, MappedBuffer>,
    /// A buffer for the next put: whether an answer about one is still to be read, and the buffer.
    awaits: bool,
    ahead: Option<Buffer>,
}

/// Why a request was not answered.
pub(super) enum Lost {
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
pub(super) struct Buffer {
    /// Its number.
    pub number: u64,
    /// The connection that it is of.
    pub session: u64,
    /// Its memory.
    pub mapped: MappedBuffer,
}

impl Connection {
    /// Opens a set.
    ///
    /// # Errors
    /// As [`super::Client::open`].
    pub(super) fn open(options: ClientOptions) -> Result<Connection, Error> {
        check_name(&options.set).map_err(Error::Argument)?;
        if options.store.as_os_str().is_empty() {
            return Err(Error::Argument("no store is said: a folder on a local disk".into()));
        }
        // The program may change its working folder.
        let store = std::path::absolute(&options.store).map_err(system("the path of the store"))?;
        let said = std::env::var(WAIT_VARIABLE).ok().and_then(|text| text.parse().ok());
        let mut connection = Connection {
            options: ClientOptions { store, ..options },
            process: std::process::id(),
            socket: None,
            session: 0,
            run: None,
            highest: None,
            patience: Duration::from_secs(said.unwrap_or(WAIT_S)),
            buffers: BTreeMap::new(),
            awaits: false,
            ahead: None,
        };
        connection.open_request().check().map_err(Error::Argument)?;
        connection.connect()?;
        Ok(connection)
    }

    /// Whether this process has opened it.
    pub(super) fn is_own(&self) -> bool {
        std::process::id() == self.process
    }

    fn open_request(&self) -> Request {
        let ClientOptions { set, rank, ranks, tiers, keep, .. } = self.options.clone();
        let (run, highest) = (self.run, self.highest);
        Request::Open { protocol: wire::PROTOCOL, set, rank, ranks, tiers, keep, run, highest }
    }

    pub(super) fn path(&self) -> PathBuf {
        wire::socket(&self.options.store)
    }

    pub(super) fn forked(&self) -> Result<(), Error> {
        match self.is_own() {
            true => Ok(()),
            false => Err(Error::Forked { set: self.options.set.clone() }),
        }
    }

    /// A new connection, of a server that is started if it must be.
    pub(super) fn connect(&mut self) -> Result<(), Error> {
        self.socket = None;
        // A server may end, as that of its last client, when it has just taken the connection.
        for last in [false, false, true] {
            let connection = connect(&self.options.store, self.options.holdfast.as_deref())?;
            self.socket = Some(connection);
            self.session += 1;
            self.buffers.clear();
            (self.awaits, self.ahead) = (false, None);
            match self.once(&self.open_request(), "to be opened") {
                Ok((Answer::Opened { run }, _)) => {
                    self.run = Some(run);
                    return Ok(());
                }
                Ok((other, _)) => return Err(self.unexpected(&other)),
                Err(Lost::Failed(error)) => return Err(error),
                Err(Lost::Gone(why)) if last => return Err(Error::Died { socket: self.path(), why }),
                Err(Lost::Gone(_)) => self.socket = None,
            }
        }
        Ok(())
    }

    /// Sends and reads the answer, once more with another server if this one has gone.
    pub(super) fn ask_with(
        &mut self,
        request: &Request,
        what: &'static str,
    ) -> Result<(Answer, Option<OwnedFd>), Error> {
        self.forked()?;
        let mut again = true;
        loop {
            if self.socket.is_none() {
                self.connect()?;
            }
            match self.once(request, what) {
                Ok(answer) => return Ok(answer),
                Err(Lost::Gone(_)) if again => (self.socket, again) = (None, false),
                Err(lost) => return Err(self.ended(lost)),
            }
        }
    }

    pub(super) fn ask(&mut self, request: &Request, what: &'static str) -> Result<Answer, Error> {
        self.ask_with(request, what).map(|(answer, _)| answer)
    }

    /// Sends what has no answer, once more with another server if this one has gone; but not what is of its buffers.
    pub(super) fn tell(&mut self, request: &Request) -> Result<(), Error> {
        self.forked()?;
        if self.socket.is_none() {
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

    pub(super) fn ended(&mut self, lost: Lost) -> Error {
        match lost {
            Lost::Gone(why) => {
                self.socket = None;
                Error::Died { socket: self.path(), why }
            }
            Lost::Failed(error) => error,
        }
    }

    pub(super) fn send(&mut self, request: &Request) -> Result<(), Lost> {
        let Some(connection) = &self.socket else {
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
        self.read_ahead()?;
        self.send(request)?;
        self.answer(what)
    }

    /// Reads the answer about a buffer ahead, if one is still to come: it is before all others.
    fn read_ahead(&mut self) -> Result<(), Lost> {
        if self.awaits {
            let (answer, passed) = self.answer("for a buffer ahead")?;
            self.awaits = false;
            if answer != Answer::NoBuffer {
                self.ahead = Some(self.buffer(&answer, passed)?);
            }
        }
        Ok(())
    }

    /// The buffer that was given ahead, if it has so many bytes and the server has not taken it back.
    pub(super) fn take_ahead(&mut self, bytes: u64) -> Result<Option<Buffer>, Error> {
        match self.read_ahead() {
            Err(Lost::Gone(_)) => self.socket = None,
            Err(Lost::Failed(error)) => return Err(error),
            Ok(()) => {}
        }
        let Some(mut buffer) = self.ahead.take().filter(|_| self.socket.is_some()) else { return Ok(None) };
        let claimed = buffer.mapped.set_word(CLAIMED_AT, 1);
        let closed = claimed.and_then(|()| buffer.mapped.word(CLOSED_AT)).map_err(system("a buffer"))?;
        if closed == 0 && buffer.mapped.bytes() == bytes {
            return Ok(Some(buffer));
        }
        let number = buffer.number;
        self.tell(&Request::Abandon { buffer: number })?;
        if closed == 0 {
            self.keep(buffer);
        }
        Ok(None)
    }

    /// An answer about a buffer ahead will come.
    pub(super) fn await_ahead(&mut self) {
        self.awaits = true;
    }

    fn answer(&mut self, what: &'static str) -> Result<(Answer, Option<OwnedFd>), Lost> {
        let Some(connection) = &self.socket else {
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
                self.socket = None;
                Err(self.protocol(format!("an answer that is none ({error})")).into())
            }
        }
    }

    fn silent(&mut self, what: &'static str) -> Error {
        self.socket = None;
        Error::Silent { socket: self.path(), what, seconds: self.patience.as_secs() }
    }

    pub(super) fn protocol(&self, what: String) -> Error {
        Error::Protocol { socket: self.path(), what }
    }

    pub(super) fn unexpected(&mut self, answer: &Answer) -> Error {
        self.socket = None;
        self.protocol(format!("another answer than one to what was asked ({answer:?})"))
    }

    /// The buffer that an answer names, which is the caller's until it goes back by [`Client::keep`].
    pub(super) fn buffer(&mut self, answer: &Answer, passed: Option<OwnedFd>) -> Result<Buffer, Error> {
        let Answer::Buffer { buffer: number, bytes, is_new, ref gone } = *answer else {
            return Err(self.unexpected(answer));
        };
        self.buffers.retain(|number, _| !gone.contains(number));
        let known = self.buffers.remove(&number).filter(|_| !is_new);
        let mapped = match (known, passed) {
            (Some(known), _) if known.bytes() == bytes => known,
            (None, Some(file)) => {
                MappedBuffer::of(file.as_fd(), bytes).map_err(system("mmap of a buffer"))?
            }
            _ => {
                self.socket = None;
                return Err(self.protocol(format!("buffer {number} of {bytes} bytes, which is not known")));
            }
        };
        Ok(Buffer { number, session: self.session, mapped })
    }

    /// How many buffers are mapped that nothing uses for now.
    #[cfg(test)]
    pub(super) fn mapped(&self) -> usize {
        self.buffers.len()
    }

    /// A buffer that is not used for now.
    pub(super) fn keep(&mut self, buffer: Buffer) {
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
