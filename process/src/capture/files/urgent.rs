//! What waits in a stream, with bytes that were sent out of band (MSG_OOB): seen, and not taken out.
//!
//! Called by `sockets`, inside the stop, on a duplicate of the program's descriptor. A read stops at such a byte, and
//! so does a look: what lies behind it is seen by a peek offset (SO_PEEK_OFF; of TCP since Linux 6.9). Meanwhile the
//! byte is in line or out of it (SO_OOBINLINE) as the look needs it: no process reads. How it fails: what cannot be
//! seen whole is an obstacle that passes; the options are as they were.

use super::Obstacle;
use super::in_flight::{
    DESCRIPTORS, NO_PEEK_OFFSET, has_peek_offset, hidden, hidden_by_senders, is_at_mark, is_urgent,
    own_peek_offset, tells_senders, unreadable, waiting,
};
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Passed, Sender, UrgentMark};
use holdfast_sys::fd;
use holdfast_sys::scm;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

const ON_ITS_WAY: &str = "a byte that was sent out of band (MSG_OOB) is on its way; try again";

/// What waits in a stream.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Waiting {
    /// Pieces.
    pub data: Vec<Blob>,
    /// Who has sent each, where this end is told.
    pub senders: Vec<Sender>,
    /// Where bytes were sent out of band.
    pub marks: Vec<UrgentMark>,
    /// Which of them have descriptors with them.
    pub passed: Vec<Passed>,
}

impl Waiting {
    fn new(data: Vec<u8>, marks: Vec<UrgentMark>) -> Waiting {
        let data = if data.is_empty() { Vec::new() } else { vec![Blob(data)] };
        Waiting { data, senders: Vec::new(), marks, passed: Vec::new() }
    }
}

/// Whether a byte out of band is received in line with others, as it is and for a while.
struct InLine<'a> {
    socket: &'a OwnedFd,
    was: i32,
}

impl<'a> InLine<'a> {
    fn of(socket: &'a OwnedFd) -> Result<InLine<'a>, Obstacle> {
        let was = fd::socket_option(socket.as_fd(), libc::SO_OOBINLINE).map_err(unreadable)?;
        Ok(InLine { socket, was })
    }

    fn set(&self, on: i32) -> Result<(), Obstacle> {
        Ok(fd::set_socket_option(self.socket.as_fd(), libc::SO_OOBINLINE, on).map_err(unreadable)?)
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let _ = self.set(self.was);
    }
}

/// All that waits in a stream: one piece, or none. `None`: this end is told of senders, and what waits is seen by them
/// ([`super::in_flight::peek`]).
///
/// # Errors
/// Why it cannot be seen.
pub(super) fn stream(socket: &OwnedFd, is_tcp: bool) -> Result<Option<Waiting>, Obstacle> {
    let at_mark = is_at_mark(socket);
    let len = waiting(socket).map_err(unreadable)?;
    if len == 0 && !at_mark {
        return Ok(Some(Waiting::default()));
    }
    // A look would move it.
    if has_peek_offset(socket) {
        return Err(unreadable(own_peek_offset()).into());
    }
    if is_tcp {
        return tcp(socket, len, at_mark).map(Some);
    }
    match hidden_by_senders(socket) {
        Some(obstacle) => Err(obstacle),
        None if tells_senders(socket) => Ok(None),
        None => unix(socket, len, at_mark).map(Some),
    }
}

/// Of TCP the kernel counts what waits up to the byte, unless that is in line (net/ipv4/tcp.c, tcp_inq).
fn tcp(socket: &OwnedFd, len: usize, at_mark: bool) -> Result<Waiting, Obstacle> {
    let in_line = InLine::of(socket)?;
    in_line.set(1)?;
    let all = waiting(socket).map_err(unreadable)?;
    in_line.set(0)?;
    let before = if at_mark { 0 } else { waiting(socket).map_err(unreadable)? };
    if !at_mark && before == all {
        drop(in_line);
        return Ok(Waiting::new(whole(look(socket, 0, len)?, len)?, Vec::new()));
    }
    let waits = urgent_byte(socket)?.is_some();
    in_line.set(1)?;
    let mut data = look(socket, 0, if before == 0 { all } else { before })?;
    if data.len() < all {
        data.extend(look(socket, before, all - before)?);
    }
    let mut data = whole(data, all)?;
    if !waits && before < data.len() {
        data.remove(before);
    }
    Ok(Waiting::new(data, vec![UrgentMark { at: before as u64, waits }]))
}

/// In unix sockets a byte that was received out of band leaves a mark behind, at which reads stop, too (manage_oob).
fn unix(socket: &OwnedFd, len: usize, at_mark: bool) -> Result<Waiting, Obstacle> {
    let mut data = look(socket, 0, len)?;
    let urgent = is_urgent(socket);
    if !urgent && !at_mark && data.len() == len {
        return Ok(Waiting::new(data, Vec::new()));
    }
    let in_line = InLine::of(socket)?;
    in_line.set(0)?;
    let mut marks = Vec::new();
    if urgent {
        let byte = urgent_byte(socket)?.ok_or(Obstacle::Passing(ON_ITS_WAY.into()))?;
        // A look from the byte on leaves it out; one that skips it has to count it.
        data = look(socket, 0, len)?;
        let at = if at_mark { 0 } else { data.len() };
        data.insert(at, byte);
        marks.push(UrgentMark { at: at as u64, waits: true });
    } else if at_mark {
        marks.push(UrgentMark { at: 0, waits: false });
    }
    while data.len() < len {
        let more = look(socket, data.len(), len - data.len())?;
        if more.is_empty() {
            break;
        }
        if !urgent {
            marks.push(UrgentMark { at: data.len() as u64, waits: false });
        }
        data.extend(more);
    }
    Ok(Waiting::new(whole(data, len)?, marks))
}

/// The byte that waits out of band, while it is not in line. `None`: it was received.
fn urgent_byte(socket: &OwnedFd) -> Result<Option<u8>, Obstacle> {
    let mut byte = [0];
    match fd::receive(socket.as_fd(), &mut byte, libc::MSG_OOB | libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(1) => Ok(Some(byte[0])),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
        Ok(_) => Err(Obstacle::Passing(ON_ITS_WAY.into())),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Obstacle::Passing(ON_ITS_WAY.into())),
        Err(error) => Err(unreadable(error).into()),
    }
}

/// What is seen from a place on, as far as one look goes.
fn look(socket: &OwnedFd, from: usize, len: usize) -> Result<Vec<u8>, Obstacle> {
    let mut data = vec![0_u8; len];
    let offset = i32::try_from(from).map_err(|_| hidden())?;
    if from > 0 && fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, offset).is_err() {
        return Err(hidden());
    }
    let seen = scm::peek(socket.as_fd(), &mut data, libc::MSG_DONTWAIT);
    if from > 0 {
        fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, NO_PEEK_OFFSET).map_err(unreadable)?;
    }
    match seen {
        Ok((_, true)) => Err(Obstacle::Passing(DESCRIPTORS.into())),
        Ok((seen, false)) => {
            data.truncate(seen);
            Ok(data)
        }
        // Nothing but the byte.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
        Err(error) => Err(unreadable(error).into()),
    }
}

/// All of what was counted, or none of it.
fn whole(data: Vec<u8>, len: usize) -> Result<Vec<u8>, Obstacle> {
    if data.len() == len { Ok(data) } else { Err(short(data.len(), len)) }
}

fn short(seen: usize, len: usize) -> Obstacle {
    Obstacle::Passing(format!("only {seen} of {len} waiting bytes can be seen; try again"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::in_flight::HIDDEN;
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn tcp_pair() -> (OwnedFd, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one.into(), listener.accept().unwrap().0.into())
    }

    fn send(to: &OwnedFd, before: &[u8], after: &[u8]) {
        for (piece, flags) in [(before, 0), (&b"!"[..], libc::MSG_OOB), (after, 0)] {
            if !piece.is_empty() {
                fd::send(to.as_fd(), piece, flags).unwrap();
            }
        }
    }

    /// A byte out of band is seen with all before and behind it, or its mark, in line or not, and nothing changes.
    #[test]
    fn bytes_out_of_band_are_seen_where_they_are() {
        for pattern in 0..32 {
            let [is_tcp, has_before, has_after, received, in_line] =
                [1, 2, 4, 8, 16].map(|bit| pattern & bit != 0);
            let (sender, receiver) =
                if is_tcp { tcp_pair() } else { fd::socketpair(libc::SOCK_STREAM).unwrap() };
            let (before, after) = (if has_before { "abc" } else { "" }, if has_after { "def" } else { "" });
            send(&sender, before.as_bytes(), after.as_bytes());
            if received {
                let taken = fd::receive(receiver.as_fd(), &mut [0], libc::MSG_OOB);
                assert_eq!(taken.unwrap(), 1);
            }
            let in_line = i32::from(in_line);
            fd::set_socket_option(receiver.as_fd(), libc::SO_OOBINLINE, in_line).unwrap();
            // A mark behind all that waits in a unix socket shows only when that is read.
            let is_hidden = !is_tcp && received && !has_after && has_before;
            let marks = if is_hidden {
                vec![]
            } else {
                vec![UrgentMark { at: before.len() as u64, waits: !received }]
            };
            let byte = if received { "" } else { "!" };
            let all = [before, byte, after].concat().into_bytes();
            let seen = match stream(&receiver, is_tcp) {
                // TCP before Linux 6.9.
                Err(Obstacle::Passing(why)) if is_tcp && has_before && why == HIDDEN => continue,
                seen => seen.unwrap().unwrap(),
            };
            assert_eq!(seen, Waiting::new(all, marks), "{pattern}");
            assert_eq!(stream(&receiver, is_tcp).unwrap(), Some(seen), "{pattern}");
            let option = |name| fd::socket_option(receiver.as_fd(), name).unwrap();
            assert_eq!(option(libc::SO_OOBINLINE), in_line);
            assert!(!has_peek_offset(&receiver));
        }
    }

    #[test]
    fn streams_without_one_are_seen_whole() {
        for (sender, receiver, is_tcp) in
            [fd::socketpair(libc::SOCK_STREAM).map(|(a, b)| (a, b, false)).unwrap(), {
                let (one, other) = tcp_pair();
                (one, other, true)
            }]
        {
            assert_eq!(stream(&receiver, is_tcp).unwrap(), Some(Waiting::default()));
            fd::send(sender.as_fd(), b"in flight", 0).unwrap();
            let all = Waiting::new(b"in flight".to_vec(), Vec::new());
            assert_eq!(stream(&receiver, is_tcp).unwrap(), Some(all));
        }
    }
}
