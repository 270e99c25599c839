//! A connection of a gang: TLS over TCP, with messages in frames.
//!
//! Used by the leader and by who asks it. One thread reads; any thread may send. Frames are those of
//! [`holdfast_image::framing`]. Invariants: no message is read before the other side
//! has proved the key; no length is believed before so many bytes have come; no sender waits for the other side, for
//! programs may be stopped meanwhile: what the connection does not take at once the thread that reads sends. Fails by:
//! an error of the connection, which is over then.

use super::message::Message;
use holdfast_image::framing::{self, MOST_BODY, MOST_MESSAGE};
use holdfast_sys::fd;
use holdfast_sys::poll::{self, Bell, Wanted};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the other side may take for each step of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long it may read nothing of what it is sent, and most bytes that wait for it meanwhile.
pub const UNREAD: Duration = Duration::from_secs(30);
const MOST_WAITING: usize = 1 << 30;
/// A host that is gone without a word is noticed after so many seconds (tcp(7)).
const KEEPALIVE: [(i32, i32); 3] =
    [(libc::TCP_KEEPIDLE, 10), (libc::TCP_KEEPINTVL, 5), (libc::TCP_KEEPCNT, 4)];
const UNANSWERED_MS: i32 = 30_000;
/// How often it is looked whether the other side has taken the last words.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes read at once.
const PIECE: usize = 64 << 10;

/// See the head of the file. `M`: what is said.
pub struct Wire<M = Message> {
    says: PhantomData<fn(M) -> M>,
    stream: TcpStream,
    coder: Mutex<Coder>,
    /// Rung when something waits that the connection has not taken.
    bell: Bell,
    /// What has come and is no whole frame yet; of the thread that reads.
    inbox: Mutex<Vec<u8>>,
}

/// The cipher, and what it has made that was not sent yet.
struct Coder {
    tls: Connection,
    outbox: Vec<u8>,
    /// So many of its bytes were sent.
    sent: usize,
    /// When the last of them were.
    moved: Instant,
}

impl<M> std::fmt::Debug for Wire<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the connection to {:?}", self.stream.peer_addr())
    }
}

impl<M: Serialize + DeserializeOwned> Wire<M> {
    /// The leader's side of a connection that was accepted.
    ///
    /// # Errors
    /// The other side does not have the key, or does not answer.
    pub fn accept(stream: TcpStream, config: &Arc<ServerConfig>) -> io::Result<Wire<M>> {
        let tls = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        Wire::begin(stream, tls.into())
    }

    /// The side of who asks.
    ///
    /// # Errors
    /// As [`Wire::accept`].
    pub fn connect(stream: TcpStream, config: &Arc<ClientConfig>) -> io::Result<Wire<M>> {
        let name = ServerName::try_from("gang").map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Wire::begin(stream, tls.into())
    }

    fn begin(stream: TcpStream, mut tls: Connection) -> io::Result<Wire<M>> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        stream.set_write_timeout(Some(HANDSHAKE))?;
        fd::set_socket_option(stream.as_fd(), libc::SO_KEEPALIVE, 1)?;
        for (option, value) in KEEPALIVE.into_iter().chain([(libc::TCP_USER_TIMEOUT, UNANSWERED_MS)]) {
            fd::set_option(stream.as_fd(), libc::IPPROTO_TCP, option, &value.to_ne_bytes())?;
        }
        tls.set_buffer_limit(None);
        let begun = Instant::now();
        while tls.is_handshaking() {
            tls.complete_io(&mut &stream)?;
            if begun.elapsed() > HANDSHAKE {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        while tls.wants_write() {
            tls.write_tls(&mut &stream)?;
        }
        stream.set_nonblocking(true)?;
        let coder = Coder { tls, outbox: Vec::new(), sent: 0, moved: Instant::now() };
        Ok(Wire {
            says: PhantomData,
            stream,
            coder: Mutex::new(coder),
            bell: Bell::new()?,
            inbox: Mutex::default(),
        })
    }

    /// Sends a message with bytes that belong to it. Does not wait: what the other side does not take now is sent by
    /// the thread that reads.
    ///
    /// # Errors
    /// It is too long, too much waits already, or the connection is over.
    pub fn send(&self, message: &M, body: &[u8]) -> io::Result<()> {
        let text = serde_json::to_vec(message).map_err(io::Error::from)?;
        if text.len() > MOST_MESSAGE || body.len() > MOST_BODY {
            let what = format!("a message of {} bytes is too long", text.len().saturating_add(body.len()));
            return Err(io::Error::new(ErrorKind::InvalidInput, what));
        }
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut coder = self.coder.lock();
        if coder.waiting() > MOST_WAITING {
            return Err(unread());
        }
        for part in [&len(&text)[..], &len(body), &text, body] {
            for piece in part.chunks(PIECE) {
                coder.tls.writer().write_all(piece)?;
                if piece.len() == PIECE {
                    coder.pass_on(&self.stream)?;
                }
            }
        }
        coder.pass_on(&self.stream)?;
        if coder.waiting() > 0 {
            self.bell.ring();
        }
        Ok(())
    }

    /// Waits for the next message; no longer than until `end`, if there is one.
    ///
    /// # Errors
    /// The connection is over, or what comes is no message of ours. TimedOut: the end has come.
    pub fn receive(&self, end: Option<Instant>) -> io::Result<(M, Vec<u8>)> {
        let mut inbox = self.inbox.lock();
        let mut piece = vec![0; PIECE];
        loop {
            if let Some(frame) = framing::take(&mut inbox)? {
                return Ok(frame);
            }
            let read = self.coder.lock().tls.reader().read(&mut piece);
            match read {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => {
                    inbox.extend_from_slice(&piece[..len]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if !self.wait(left)? && left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }

    /// Waits until something comes, or can be sent, and does both. Whether there was something.
    fn wait(&self, left: Option<Duration>) -> io::Result<bool> {
        let patience = self.coder.lock().patience();
        let wanted = if patience.is_some() { Wanted::ReadOrWrite } else { Wanted::Read };
        let fds = [(self.stream.as_fd(), wanted), (self.bell.as_fd(), Wanted::Read)];
        let most = left.into_iter().chain(patience).min();
        let [of_stream, of_bell] = poll::ready(&fds, most)?[..] else { return Ok(false) };
        if of_bell {
            self.bell.hush();
        }
        let mut coder = self.coder.lock();
        if of_stream {
            coder.take_in(&self.stream)?;
            coder.pass_on(&self.stream)?;
        }
        match coder.patience() {
            Some(left) if left.is_zero() => Err(unread()),
            _ => Ok(of_stream || of_bell),
        }
    }

    /// What waits is sent, if the other side takes it within this time: nothing is read meanwhile. Whether all was.
    pub fn finish(&self, within: Duration) -> bool {
        let end = Instant::now() + within;
        loop {
            let mut coder = self.coder.lock();
            let is_sent = coder.pass_on(&self.stream).map(|()| coder.waiting() == 0);
            if !matches!(is_sent, Ok(false)) || Instant::now() >= end {
                return matches!(is_sent, Ok(true));
            }
            drop(coder);
            std::thread::sleep(PAUSE);
        }
    }

    /// The address of the other side.
    ///
    /// # Errors
    /// The connection is over.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Ends the connection: both sides' readers see it.
    pub fn close(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl Coder {
    fn waiting(&self) -> usize {
        self.outbox.len() - self.sent
    }

    /// How long the other side may still read nothing; `None`: nothing waits for it.
    fn patience(&self) -> Option<Duration> {
        (self.waiting() > 0).then(|| UNREAD.saturating_sub(self.moved.elapsed()))
    }

    /// What the cipher has made is sent, as far as the connection takes it at once.
    fn pass_on(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        if self.waiting() == 0 {
            self.moved = Instant::now();
        }
        if self.sent >= self.waiting() {
            self.outbox.drain(..self.sent);
            self.sent = 0;
        }
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.outbox)?;
        }
        while self.waiting() > 0 {
            match stream.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => (self.sent, self.moved) = (self.sent + len, Instant::now()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What has come is deciphered.
    fn take_in(&mut self, mut stream: &TcpStream) -> io::Result<()> {
        match self.tls.read_tls(&mut stream) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        self.tls.process_new_packets().map_err(io::Error::other)?;
        Ok(())
    }
}

/// The other side is there, and does not read.
fn unread() -> io::Error {
    io::Error::other("it does not read what it is sent")
}

/// A connection within a test.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) fn both_sides() -> (Wire, Wire) {
    let key = super::key::Key::new().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (server, client) = (Arc::new(key.server().unwrap()), Arc::new(key.client().unwrap()));
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| Wire::connect(TcpStream::connect(at).unwrap(), &client).unwrap());
        let leads = Wire::accept(listener.accept().unwrap().0, &server).unwrap();
        (leads, asks.join().unwrap())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::control::{Reply, Wishes};

    #[test]
    fn every_message_is_read_as_it_was_written() {
        for message in [
            Message::Reply(Box::new(Reply::Error { message: "no".into() })),
            Message::Reply(Box::new(Reply::NoProgram { awaited: false })),
            Message::Checkpoint { stop: true, wait: true, wishes: Wishes::default() },
            Message::Refused { reason: "no".into() },
            Message::Welcome,
        ] {
            let text = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message, "{text}");
        }
    }

    /// The program of who sends is stopped meanwhile: more than the connection takes is sent, and both send at once.
    #[test]
    fn no_sender_waits_for_a_side_that_does_not_read() {
        let (leads, asks) = both_sides();
        let bodies: Vec<Vec<u8>> = (1..4_u8).map(|number| vec![number; 16 << 20]).collect();
        for body in &bodies {
            leads.send(&Message::Bye, body).unwrap();
            asks.send(&Message::Welcome, body).unwrap();
        }
        assert!(leads.coder.lock().waiting() > 0 && asks.coder.lock().waiting() > 0);
        let read = |wire: &Wire| bodies.iter().all(|body| wire.receive(None).unwrap().1 == *body);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (read(&asks), asks.finish(UNREAD)));
            assert!(read(&leads));
            leads.finish(UNREAD);
            assert!(other.join().unwrap().0);
        });
        assert_eq!((leads.coder.lock().waiting(), asks.coder.lock().waiting()), (0, 0));
        asks.send(&Message::Bye, b"x").unwrap();
        assert_eq!(leads.receive(None).unwrap(), (Message::Bye, b"x".to_vec()));
    }
}
