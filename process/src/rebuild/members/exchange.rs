//! What waited in the two ends of a connection, which the agents of two members have just made.
//!
//! Called by [`super`]. What an end had received is in its own image, and has to be sent to it by the other one. So
//! each end sends that other one what waited in itself, and gets it back: what it does not read then waits as it did.
//! Before that each says one half of the number of the connection, which both images have and no stranger: who has
//! connected says his first, and is told nothing if it is wrong. Neither end waits for the other without reading what
//! that sends, and making room for what it sends back.
//! How it fails: PermissionDenied: the other end is a stranger's; TimedOut: nothing has come for a while.

use crate::connection::{Local, Receiver};
use holdfast_sys::fd;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// What the images of two members call their connection.
pub type Number = [u8; 16];

/// How long nothing may come. The other end may still be at another connection.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_micros(50);
/// More than any socket holds.
const MOST: u64 = 1 << 32;
/// Bytes of a length.
const LENGTH: usize = 8;
const PIECE: usize = 64 << 10;
/// Room beyond what is to come, as in [`crate::connection`].
const SLACK: u64 = 256 << 10;
const MOST_SLACK: u64 = 8;

/// When something has moved last.
struct Watch<'a> {
    moved: Instant,
    go_on: &'a mut dyn FnMut() -> bool,
}

impl Watch<'_> {
    /// After a turn of a loop in which something has moved, or not.
    fn turn(&mut self, moved: bool) -> io::Result<()> {
        if moved {
            self.moved = Instant::now();
            return Ok(());
        }
        if self.moved.elapsed() > PATIENCE || !(self.go_on)() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(PAUSE);
        Ok(())
    }
}

/// Which end this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It has connected.
    Connected,
    /// It was accepted.
    Accepted,
}

/// See the head. Nothing went through the connection before. `own`: what waited at this end. `go_on`: whether it is
/// still wanted.
///
/// # Errors
/// See the head; of send(2) and recv(2).
pub fn exchange(
    end: &OwnedFd,
    (role, number): (Role, Number),
    own: &[u8],
    go_on: &mut dyn FnMut() -> bool,
) -> io::Result<()> {
    let mut watch = Watch { moved: Instant::now(), go_on };
    greet(end, role, number, &mut watch)?;
    let theirs = tell(end, own, &mut watch)?;
    let come = (number.len() / 2 + LENGTH + theirs.len() + own.len()) as u64;
    give_back(end, &theirs, come, &mut watch)
}

/// Tells the other end from a stranger.
fn greet(end: &OwnedFd, role: Role, number: Number, watch: &mut Watch<'_>) -> io::Result<()> {
    let (first, second) = number.split_at(number.len() / 2);
    let (say, hear) = if role == Role::Connected { (first, second) } else { (second, first) };
    if role == Role::Connected {
        send_all(end, say, watch)?;
    }
    let mut heard: Vec<u8> = Vec::new();
    while heard.len() < hear.len() {
        let mut piece = vec![0; hear.len() - heard.len()];
        let received = receive(end, &mut piece)?;
        heard.extend(&piece[..received]);
        watch.turn(received > 0)?;
    }
    if heard != hear {
        let what = "what has this address is not the other end of the program";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    if role == Role::Accepted { send_all(end, say, watch) } else { Ok(()) }
}

fn send_all(end: &OwnedFd, mut rest: &[u8], watch: &mut Watch<'_>) -> io::Result<()> {
    while !rest.is_empty() {
        let sent = send(end, rest)?;
        rest = &rest[sent..];
        watch.turn(sent > 0)?;
    }
    Ok(())
}

/// Sends what waited here, and receives what waited there.
fn tell(end: &OwnedFd, own: &[u8], watch: &mut Watch<'_>) -> io::Result<Vec<u8>> {
    let mut to_send = (own.len() as u64).to_le_bytes().to_vec();
    to_send.extend(own);
    let (mut sent, mut length, mut theirs) = (0, Vec::new(), Vec::new());
    loop {
        let wanted = match length.first_chunk::<LENGTH>() {
            Some(length) => checked(u64::from_le_bytes(*length))? - theirs.len(),
            None => LENGTH - length.len(),
        };
        if sent == to_send.len() && length.len() == LENGTH && wanted == 0 {
            return Ok(theirs);
        }
        let now = send(end, &to_send[sent..])?;
        sent += now;
        let mut piece = vec![0; wanted.min(PIECE)];
        let received = receive(end, &mut piece)?;
        let into = if length.len() < LENGTH { &mut length } else { &mut theirs };
        into.extend(&piece[..received]);
        watch.turn(now + received > 0)?;
    }
}

/// A length that the other end has said.
fn checked(len: u64) -> io::Result<usize> {
    let known = usize::try_from(len).ok().filter(|_| len <= MOST);
    let what = "the other end says that more waits in it than can wait in a socket";
    known.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, what))
}

/// Sends it back, and has all of the own come, which stays. `come`: how much has been received then.
fn give_back(end: &OwnedFd, theirs: &[u8], come: u64, watch: &mut Watch<'_>) -> io::Result<()> {
    let to = Local::in_the_making(end);
    let (mut sent, mut left, mut more) = (0, u64::MAX, 1);
    while sent < theirs.len() || left > 0 {
        let now = send(end, &theirs[sent..])?;
        sent += now;
        let before = left;
        left = come.saturating_sub(to.received()?);
        if left > 0 && left >= before {
            to.make_room(left.saturating_add(SLACK * more))?;
            more = (more + 1).min(MOST_SLACK);
        }
        watch.turn(now > 0 || left < before)?;
    }
    Ok(())
}

fn send(end: &OwnedFd, data: &[u8]) -> io::Result<usize> {
    if data.is_empty() {
        return Ok(0);
    }
    none_at_once(fd::send(end.as_fd(), data, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))
}

fn receive(end: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    if into.is_empty() {
        return Ok(0);
    }
    match fd::receive(end.as_fd(), into, libc::MSG_DONTWAIT) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        result => none_at_once(result),
    }
}

fn none_at_once(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {
            Ok(0)
        }
        result => result,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    fn pair() -> (OwnedFd, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one.into(), listener.accept().unwrap().0.into())
    }

    fn bytes(len: usize, from: usize) -> Vec<u8> {
        (from..from + len).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    /// More than the buffers hold, on one side, on both, on none.
    #[test]
    fn each_end_gets_back_what_waited_in_it() {
        for (len, other_len) in [(0, 0), (1, 0), (0, 3 << 20), (5 << 20, 4 << 20)] {
            let (one, other) = pair();
            let (own, theirs) = (bytes(len, 3), bytes(other_len, 7));
            let accepted = (Role::Accepted, [7; 16]);
            thread::scope(|scope| {
                let beside = scope.spawn(|| exchange(&other, accepted, &theirs, &mut || true));
                exchange(&one, (Role::Connected, [7; 16]), &own, &mut || true).unwrap();
                beside.join().unwrap().unwrap();
            });
            holdfast_sys::socket::shut_writing(one.as_fd()).unwrap();
            holdfast_sys::socket::shut_writing(other.as_fd()).unwrap();
            for (end, expected) in [(one, own), (other, theirs)] {
                let mut found = Vec::new();
                TcpStream::from(end).read_to_end(&mut found).unwrap();
                assert!(found == expected, "{} bytes, not {}", found.len(), expected.len());
            }
        }
    }

    #[test]
    fn a_stranger_is_told_nothing() {
        let (one, other) = pair();
        fd::send(other.as_fd(), &[8; 32], 0).unwrap();
        let error = exchange(&one, (Role::Accepted, [7; 16]), b"what waits", &mut || true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(none_at_once(fd::receive(other.as_fd(), &mut [0; 64], libc::MSG_DONTWAIT)).unwrap(), 0);
        let (one, other) = pair();
        fd::send(other.as_fd(), &[8; 32], 0).unwrap();
        let error = exchange(&one, (Role::Connected, [7; 16]), b"what waits", &mut || true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let mut told = [0; 64];
        assert_eq!(
            fd::receive(other.as_fd(), &mut told, libc::MSG_DONTWAIT).unwrap(),
            8,
            "half of the number"
        );
    }

    #[test]
    fn a_length_that_cannot_be_is_refused() {
        let (one, other) = pair();
        fd::send(other.as_fd(), &[[7; 8], [0xff; 8]].concat(), 0).unwrap();
        let error = exchange(&one, (Role::Accepted, [7; 16]), b"", &mut || true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
