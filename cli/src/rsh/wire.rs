//! The connection between `holdfast rsh` and the server on another host: proofs of a key, then frames.
//!
//! A frame is a byte that says what it is, its length in four bytes (little-endian), and its bytes. Invariants: before
//! both have proved the key, nothing else is said; each proof is of two random numbers, one of each side. What follows
//! is neither encrypted nor protected against changes: so are the connections of the programs themselves. Fails by:
//! PermissionDenied where the other side does not have the key; InvalidData.

use crate::gang::key::Key;
use holdfast_sys::fd;
use parking_lot::Mutex;
use ring::hmac;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// Longest frame, bytes.
const MOST: usize = 1 << 20;
/// Bytes of a random number, and of a proof.
const LEN: usize = 32;
/// How long the other side may take to prove the key. A checkpoint may stop it meanwhile.
const PROOF: Duration = Duration::from_secs(60);

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// To the server: what the shell gets.
    Command = 1,
    /// Standard input.
    Input = 2,
    /// Its end.
    InputEnd = 3,
    /// From the server: standard output.
    Output = 4,
    /// Standard error.
    Error = 5,
    /// The exit status, in one byte.
    Ended = 6,
    /// The command, or who drops what it does not want, has taken so many bytes of standard input: four bytes.
    Taken = 7,
}

const KINDS: [Kind; 7] =
    [Kind::Command, Kind::Input, Kind::InputEnd, Kind::Output, Kind::Error, Kind::Ended, Kind::Taken];

/// Bytes of standard input that are on their way at most: the server reads always, and finds out when the client has
/// gone, however slowly a command reads.
pub const WINDOW: usize = 1 << 20;
/// A host that is gone without a word is noticed after some two minutes (tcp(7)).
const KEEPALIVE: [(i32, i32); 3] =
    [(libc::TCP_KEEPIDLE, 60), (libc::TCP_KEEPINTVL, 15), (libc::TCP_KEEPCNT, 4)];

/// See the head of the file.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    /// Frames are whole.
    turn: Mutex<()>,
}

/// Which side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// `holdfast rsh`.
    Client,
    /// The server.
    Server,
}

impl Wire {
    /// Both prove the key; the client first.
    ///
    /// # Errors
    /// The other side does not have it.
    pub fn prove(stream: TcpStream, side: Side, key: &Key) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        fd::set_socket_option(stream.as_fd(), libc::SO_KEEPALIVE, 1)?;
        for (option, value) in KEEPALIVE {
            fd::set_option(stream.as_fd(), libc::IPPROTO_TCP, option, &i32::to_ne_bytes(value))?;
        }
        stream.set_read_timeout(Some(PROOF))?;
        let own = Key::new()?.bytes();
        (&stream).write_all(&own)?;
        let mut theirs = [0; LEN];
        (&stream).read_exact(&mut theirs)?;
        if own == theirs {
            return Err(stranger());
        }
        let numbers = if side == Side::Client { [own, theirs] } else { [theirs, own] };
        let hmac_key = hmac::Key::new(hmac::HMAC_SHA256, &key.bytes());
        let text = |of: Side| [format!("holdfast rsh {of:?}").as_bytes(), &numbers.concat()].concat();
        let prove = || (&stream).write_all(hmac::sign(&hmac_key, &text(side)).as_ref());
        let check = |of: Side| {
            let mut proof = [0; LEN];
            (&stream).read_exact(&mut proof)?;
            hmac::verify(&hmac_key, &text(of), &proof).map_err(|_| stranger())
        };
        match side {
            Side::Client => {
                prove()?;
                check(Side::Server)?;
            }
            Side::Server => {
                check(Side::Client)?;
                prove()?;
            }
        }
        stream.set_read_timeout(None)?;
        Ok(Wire { stream, turn: Mutex::new(()) })
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The connection is over.
    pub fn send(&self, kind: Kind, data: &[u8]) -> io::Result<()> {
        let len = u32::try_from(data.len()).ok().filter(|_| data.len() <= MOST);
        let len = len.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is too long"))?;
        let frame = [&[kind as u8], &len.to_le_bytes()[..], data].concat();
        let _turn = self.turn.lock();
        (&self.stream).write_all(&frame)
    }

    /// Waits for a frame; `None`: the other side has sent its last.
    ///
    /// # Errors
    /// The connection is over; what comes is no frame.
    pub fn receive(&self) -> io::Result<Option<(Kind, Vec<u8>)>> {
        let mut head = [0; 5];
        if (&self.stream).read(&mut head[..1])? == 0 {
            return Ok(None);
        }
        (&self.stream).read_exact(&mut head[1..])?;
        let [kind, len @ ..] = head;
        let len = u32::from_le_bytes(len) as usize;
        let known = KINDS.into_iter().find(|known| *known as u8 == kind).filter(|_| len <= MOST);
        let kind =
            known.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no frame of ours"))?;
        let mut data = vec![0; len];
        (&self.stream).read_exact(&mut data)?;
        Ok(Some((kind, data)))
    }

    /// Nothing more is sent.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

fn stranger() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "it does not have the key of the gang")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn frames_go_both_ways_between_those_who_have_the_key() {
        let (key, (one, other)) = (Key::new().unwrap(), pair());
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let wire = Wire::prove(other, Side::Server, &key).unwrap();
                let (kind, data) = wire.receive().unwrap().unwrap();
                assert!(kind == Kind::Command && data == b"true");
                wire.send(Kind::Ended, &[7]).unwrap();
                wire.finish();
            });
            let wire = Wire::prove(one, Side::Client, &key).unwrap();
            assert!(wire.send(Kind::Input, &vec![0; MOST + 1]).is_err());
            wire.send(Kind::Command, b"true").unwrap();
            assert_eq!(wire.receive().unwrap().unwrap(), (Kind::Ended, vec![7]));
            assert!(wire.receive().unwrap().is_none());
            server.join().unwrap();
        });
    }

    #[test]
    fn who_does_not_have_the_key_is_told_nothing() {
        for side in [Side::Client, Side::Server] {
            let (key, (one, other)) = (Key::new().unwrap(), pair());
            let stranger = Key::new().unwrap();
            thread::scope(|scope| {
                let beside = scope.spawn(|| Wire::prove(other, Side::Server, &stranger).map(drop));
                // As a server it meets one that only sends back what it gets.
                let own = match side {
                    Side::Client => Wire::prove(one, Side::Client, &key).map(drop),
                    Side::Server => {
                        drop(one);
                        Err(io::ErrorKind::UnexpectedEof.into())
                    }
                };
                assert!(own.is_err() && beside.join().unwrap().is_err());
            });
        }
        // One that repeats what it hears.
        let (key, (one, other)) = (Key::new().unwrap(), pair());
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut heard = [0; LEN];
                (&other).read_exact(&mut heard).unwrap();
                (&other).write_all(&heard).unwrap();
            });
            let error = Wire::prove(one, Side::Server, &key).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        });
    }

    #[test]
    fn no_length_is_believed() {
        let (one, other) = pair();
        let wire = Wire { stream: one, turn: Mutex::new(()) };
        (&other).write_all(&[4, 0xff, 0xff, 0xff, 0xff]).unwrap();
        assert_eq!(wire.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
        (&other).write_all(&[9, 0, 0, 0, 0]).unwrap();
        assert_eq!(wire.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
