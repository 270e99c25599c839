//! Data in flight in pipes and sockets: seen without being taken out.
//!
//! Called by `files` and `sockets`, on duplicates of the program's descriptors. Inside the stop everything is read,
//! with tee(2) and MSG_PEEK; of a program that runs on only so much is looked at as changes nothing for it.

use super::Obstacle;
use holdfast_sys::scm::Sender;
use holdfast_sys::{fd, scm, socket};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// SO_PEEK_OFF as it is at first.
pub(super) const NO_PEEK_OFFSET: i32 = -1;
pub(super) const DESCRIPTORS: &str = "a message with descriptors that was not read yet; try again";
const SIOCATMARK: libc::c_ulong = 0x8905;
/// Options by which the kernel tells of senders (net/unix/af_unix.c, unix_stream_read_generic): SO_PASSCRED,
/// SO_PASSSEC, SO_PASSPIDFD (asm-generic/socket.h).
const OF_SENDERS: [i32; 3] = [16, 34, 76];
pub(super) const HIDDEN: &str = "a byte that was sent out of band (MSG_OOB) waits in it, and the data behind it \
cannot be read (with SO_PASSCRED, or TCP before Linux 6.9); try again when it was received";
const EMPTY: &str = "its data cannot be read: an empty message cannot be told from the end";
/// Longest message that is kept.
const MESSAGE_LIMIT: usize = 256 * 1024;

/// How a failure to read them is told.
pub fn unreadable(error: io::Error) -> String {
    format!("its data cannot be read: {error}")
}

/// What is in a pipe, without taking it out: packet by packet where it is in packets (pipe(2), O_DIRECT; tee(2) keeps
/// their borders).
pub fn peek_pipe(pipe: &OwnedFd, capacity: i32) -> io::Result<Vec<Vec<u8>>> {
    let waiting = waiting(pipe)?;
    let mut pieces = Vec::new();
    if waiting == 0 {
        return Ok(pieces);
    }
    let (reader, writer) = fd::pipe(libc::O_NONBLOCK)?;
    fd::fcntl(writer.as_fd(), libc::F_SETPIPE_SZ, i64::from(capacity))?;
    let copied = fd::tee(pipe.as_fd(), writer.as_fd(), waiting)?;
    if copied != waiting {
        return Err(io::Error::other(format!("{copied} of {waiting} bytes")));
    }
    drop(writer);
    let mut reader = File::from(reader);
    let mut buffer = vec![0_u8; waiting];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(pieces),
            len => pieces.push(buffer[..len].to_vec()),
        }
    }
}

/// What was seen: a message, or a piece of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    pub data: Vec<u8>,
    /// Who is told to have sent it; `None`: this end is not told (SO_PASSCRED).
    pub sender: Option<Sender>,
    /// The name of the socket that has sent it, of single messages.
    pub from: Vec<u8>,
    /// Copies of the descriptors that came with it, by our numbers ([`super::passed`]).
    pub passed: Vec<i32>,
}

impl Seen {
    fn plain(data: Vec<u8>, sender: Option<Sender>) -> Seen {
        Seen { data, sender, from: Vec::new(), passed: Vec::new() }
    }
}

/// What waits to be received at this end, without taking it out: one piece for a stream, or one for each of its senders
/// if it is told of them; one per message otherwise.
pub(super) fn peek(socket: &OwnedFd, socket_type: i32) -> Result<Vec<Seen>, Obstacle> {
    if socket_type != libc::SOCK_STREAM {
        // An empty message has no length that could wait.
        let waits = fd::poll_for(socket.as_fd(), libc::POLLIN).map_err(unreadable)? & libc::POLLIN != 0;
        return if waits { peek_messages(socket) } else { Ok(Vec::new()) };
    }
    let waiting = waiting(socket).map_err(unreadable)?;
    if waiting == 0 {
        return Ok(Vec::new());
    }
    // A look would move it.
    if has_peek_offset(socket) {
        return Err(unreadable(own_peek_offset()).into());
    }
    let mut data = vec![0_u8; waiting];
    match scm::peek_with_sender(socket.as_fd(), &mut data, libc::MSG_DONTWAIT) {
        Ok((_, true, _)) => Err(Obstacle::Passing(DESCRIPTORS.into())),
        Ok((got, false, sender)) if got == waiting => Ok(vec![Seen::plain(data, sender)]),
        // With SO_PASSCRED those of one sender only (net/unix/af_unix.c, unix_stream_read_generic).
        Ok((_, false, Some(_))) => peek_pieces(socket, waiting),
        Ok((got, false, None)) => Err(partly(got, waiting)),
        Err(error) => Err(unreadable(error).into()),
    }
}

fn partly(got: usize, waiting: usize) -> Obstacle {
    Obstacle::Passing(format!("only {got} of {waiting} waiting bytes can be seen; try again"))
}

/// Whether a piece is of this sender, who is known here.
fn is_known_as(piece: &Seen, sender: Option<Sender>) -> bool {
    piece.sender == sender && sender.is_some_and(|sender| sender.pid != 0)
}

/// A stream whose bytes several have sent, sender by sender.
fn peek_pieces(socket: &OwnedFd, waiting: usize) -> Result<Vec<Seen>, Obstacle> {
    let (mut pieces, mut rest) = (Vec::new(), waiting);
    fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, 0).map_err(unreadable)?;
    let result = loop {
        let mut data = vec![0_u8; rest];
        match scm::peek_with_sender(socket.as_fd(), &mut data, libc::MSG_DONTWAIT) {
            Ok((_, true, _)) => break Err(Obstacle::Passing(DESCRIPTORS.into())),
            Ok((0, ..)) => break Err(partly(waiting - rest, waiting)),
            // What ends a piece of one sender is the mark of a byte that was received out of band.
            Ok((_, false, sender)) if pieces.last().is_some_and(|last: &Seen| is_known_as(last, sender)) => {
                break Err(hidden());
            }
            Ok((got, false, sender)) => {
                data.truncate(got);
                pieces.push(Seen::plain(data, sender));
                rest = rest.saturating_sub(got);
            }
            Err(error) => break Err(unreadable(error).into()),
        }
        if rest == 0 {
            break Ok(pieces);
        }
    };
    fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, NO_PEEK_OFFSET).map_err(unreadable)?;
    result
}

/// Whether [`peek`], or [`super::urgent::stream`], could be done now, as far as can be known while the program goes on
/// with the socket: only the first message is seen, and a stream up to the next sender or a byte out of band, because
/// seeing more means setting SO_PEEK_OFF.
pub(super) fn glance(socket: &OwnedFd, socket_type: i32) -> Result<(), Obstacle> {
    if waiting(socket).map_err(unreadable)? == 0 {
        return Ok(());
    }
    if has_peek_offset(socket) {
        let is_unix =
            fd::socket_option(socket.as_fd(), libc::SO_DOMAIN).is_ok_and(|domain| domain == libc::AF_UNIX);
        return if is_unix { Ok(()) } else { Err(unreadable(own_peek_offset()).into()) };
    }
    if socket_type == libc::SOCK_STREAM {
        return glance_at_stream(socket);
    }
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    match fd::receive(socket.as_fd(), &mut [0_u8; 1], flags) {
        Ok(len) if len > MESSAGE_LIMIT => Err(unreadable(long_message()).into()),
        // Taken out meanwhile, or readable.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The same of a stream. What was there counts only if nothing came or went meanwhile.
fn glance_at_stream(socket: &OwnedFd) -> Result<(), Obstacle> {
    let before = waiting(socket).map_err(unreadable)?;
    let seen = scm::peek(socket.as_fd(), &mut vec![0_u8; before], libc::MSG_DONTWAIT);
    let hidden = hidden_by_senders(socket);
    let after = waiting(socket).map_err(unreadable)?;
    match seen {
        _ if before != after => Ok(()),
        Ok(_) => hidden.map_or(Ok(()), Err),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(unreadable(error).into()),
    }
}

/// Bytes that wait to be read; of messages, those of the first.
pub(super) fn waiting(fd: &OwnedFd) -> io::Result<usize> {
    const FIONREAD: libc::c_ulong = 0x541b;
    Ok(usize::try_from(fd::ioctl_int(fd.as_fd(), FIONREAD)?).unwrap_or(0))
}

pub(super) fn own_peek_offset() -> io::Error {
    io::Error::other("the program uses SO_PEEK_OFF itself")
}

pub(super) fn long_message() -> io::Error {
    io::Error::other("a message of more than 256 KiB")
}

/// Whether the program has set SO_PEEK_OFF (socket(7)); kernels before 6.9 do not know it for TCP.
pub(super) fn has_peek_offset(socket: &OwnedFd) -> bool {
    fd::socket_option(socket.as_fd(), libc::SO_PEEK_OFF).is_ok_and(|offset| offset != NO_PEEK_OFFSET)
}

/// Whether a byte waits out of band.
pub(super) fn is_urgent(socket: &OwnedFd) -> bool {
    fd::poll_for(socket.as_fd(), libc::POLLPRI).is_ok_and(|state| state & libc::POLLPRI != 0)
}

pub(super) fn is_at_mark(socket: &OwnedFd) -> bool {
    // A kernel without bytes out of band in unix sockets does not know the question.
    fd::ioctl_int(socket.as_fd(), SIOCATMARK).is_ok_and(|at| at != 0)
}

/// Whether who has sent something is told with it: then a look ends where the next one has sent.
pub(super) fn tells_senders(socket: &OwnedFd) -> bool {
    OF_SENDERS.iter().any(|&name| fd::socket_option(socket.as_fd(), name).is_ok_and(|on| on != 0))
}

/// What is in the way where that is so and a byte is out of band: which of the two has ended a look is not told.
pub(super) fn hidden_by_senders(socket: &OwnedFd) -> Option<Obstacle> {
    (tells_senders(socket) && (is_urgent(socket) || is_at_mark(socket))).then(hidden)
}

pub(super) fn hidden() -> Obstacle {
    Obstacle::Passing(HIDDEN.into())
}

/// Sockets, by inode, in which an empty message was seen. The kernel shows it to a moving look once only
/// (net/core/datagram.c, __skb_try_recv_from_queue, peeked): the next one would miss it.
static EMPTY_SEEN: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn inode(socket: &OwnedFd) -> Option<u64> {
    File::from(socket.try_clone().ok()?).metadata().ok().map(|file| file.ino())
}

/// How many bytes wait in a SEQPACKET socket whose other end has sent its last: a look behind them says as little as an
/// empty message does. `None`: it says that there is nothing.
pub(super) fn last_of(socket: &OwnedFd) -> Option<usize> {
    let is_packets =
        fd::socket_option(socket.as_fd(), libc::SO_TYPE).is_ok_and(|kind| kind == libc::SOCK_SEQPACKET);
    let ended =
        || fd::poll_for(socket.as_fd(), libc::POLLRDHUP).is_ok_and(|state| state & libc::POLLRDHUP != 0);
    (is_packets && ended()).then(|| waiting(socket).unwrap_or(0))
}

/// Nothing but its end waits there.
pub(super) fn ends_at(socket: &OwnedFd, place: usize) -> Result<(), Obstacle> {
    match socket::is_end(socket.as_fd(), place) {
        Ok(true) => Ok(()),
        Ok(false) => Err(note_empty(socket, EMPTY.into())),
        Err(error) => Err(unreadable(error).into()),
    }
}

/// An empty message was seen in it.
pub(super) fn note_empty(socket: &OwnedFd, obstacle: Obstacle) -> Obstacle {
    EMPTY_SEEN.lock().extend(inode(socket));
    obstacle
}

/// Whether one was, and something waits still.
pub(super) fn had_empty(socket: &OwnedFd) -> bool {
    let mut seen = EMPTY_SEEN.lock();
    let Some(inode) = inode(socket).filter(|inode| seen.contains(inode)) else { return false };
    let waits = fd::poll_for(socket.as_fd(), libc::POLLIN).is_ok_and(|state| state & libc::POLLIN != 0);
    if !waits {
        seen.remove(&inode);
    }
    waits
}

/// All messages that wait, by a moving peek offset (SO_PEEK_OFF, socket(7)), which is taken away again.
fn peek_messages(socket: &OwnedFd) -> Result<Vec<Seen>, Obstacle> {
    if fd::socket_option(socket.as_fd(), libc::SO_PEEK_OFF).map_err(unreadable)? != NO_PEEK_OFFSET {
        return Err(unreadable(own_peek_offset()).into());
    }
    if had_empty(socket) {
        return Err(EMPTY.into());
    }
    fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, 0).map_err(unreadable)?;
    let (mut messages, mut place) = (Vec::new(), 0);
    let mut buffer = vec![0_u8; MESSAGE_LIMIT];
    let last = last_of(socket);
    let result = loop {
        if last.is_some_and(|last| place >= last) {
            break ends_at(socket, place).map(|()| messages);
        }
        // MSG_TRUNC: the true length, should a message be larger than the buffer.
        match scm::peek_with_sender(socket.as_fd(), &mut buffer, libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
            Ok((_, true, _)) => break Err(Obstacle::Passing(DESCRIPTORS.into())),
            Ok((len, ..)) if len > buffer.len() => break Err(unreadable(long_message()).into()),
            Ok((0, ..)) => break Err(note_empty(socket, EMPTY.into())),
            Ok((len, _, sender)) => {
                place += len;
                messages.push(Seen::plain(buffer[..len].to_vec(), sender));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(messages),
            Err(error) => break Err(unreadable(error).into()),
        }
    };
    fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, NO_PEEK_OFFSET).map_err(unreadable)?;
    result
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{pieces, urgent};
    use super::*;

    #[test]
    fn waiting_messages_are_seen_and_stay() {
        let (reader, writer) = fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        fd::send(writer.as_fd(), b"one", 0).unwrap();
        fd::send(writer.as_fd(), b"second", 0).unwrap();
        for _ in 0..2 {
            let seen = peek(&reader, libc::SOCK_SEQPACKET).unwrap();
            let seen: Vec<Vec<u8>> = seen.into_iter().map(|seen| seen.data).collect();
            assert_eq!(seen, [b"one".to_vec(), b"second".to_vec()]);
        }
        let mut buffer = [0; 16];
        assert_eq!(fd::receive(reader.as_fd(), &mut buffer, 0).unwrap(), 3);
    }

    /// The kernel shows it to a moving look once.
    #[test]
    fn an_empty_message_is_never_missed() {
        for (kind, before) in
            [(libc::SOCK_DGRAM, ""), (libc::SOCK_DGRAM, "one"), (libc::SOCK_SEQPACKET, "one")]
        {
            let (reader, writer) = fd::socketpair(kind).unwrap();
            fd::send(writer.as_fd(), before.as_bytes(), 0).unwrap();
            fd::send(writer.as_fd(), b"", 0).unwrap();
            fd::send(writer.as_fd(), b"last", 0).unwrap();
            for _ in 0..3 {
                assert_eq!(peek(&reader, kind).unwrap_err(), EMPTY.into());
            }
            let mut buffer = [0; 16];
            for len in [before.len(), 0, 4] {
                assert_eq!(fd::receive(reader.as_fd(), &mut buffer, 0).unwrap(), len);
            }
            assert_eq!(peek(&reader, kind).unwrap(), []);
        }
    }

    #[test]
    fn messages_before_the_end_are_seen() {
        let ended = |messages: &[&[u8]]| {
            let (reader, writer) = fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
            messages.iter().for_each(|one| _ = fd::send(writer.as_fd(), one, 0).unwrap());
            reader
        };
        let reader = ended(&[b"one", b"two"]);
        for _ in 0..2 {
            let seen = peek(&reader, libc::SOCK_SEQPACKET).unwrap();
            assert_eq!(seen.iter().map(|seen| &seen.data[..]).collect::<Vec<_>>(), [b"one", b"two"]);
        }
        assert_eq!(fd::socket_option(reader.as_fd(), libc::SO_PASSCRED).unwrap(), 0);
        assert_eq!(peek(&ended(&[]), libc::SOCK_SEQPACKET).unwrap(), []);
        let reader = ended(&[b"one", b""]);
        assert!(peek(&reader, libc::SOCK_SEQPACKET).is_err() && peek(&reader, libc::SOCK_SEQPACKET).is_err());
    }

    #[test]
    fn a_pipe_is_read_without_being_emptied() {
        let (reader, writer) = fd::pipe(0).unwrap();
        std::io::Write::write_all(&mut File::from(writer), b"in flight").unwrap();
        assert_eq!(peek_pipe(&reader, 65536).unwrap(), [b"in flight"]);
        assert_eq!(peek_pipe(&reader, 65536).unwrap(), [b"in flight"]);
        let (reader, writer) = fd::pipe(libc::O_DIRECT).unwrap();
        let mut writer = File::from(writer);
        for packet in ["one", "second"] {
            std::io::Write::write_all(&mut writer, packet.as_bytes()).unwrap();
        }
        assert_eq!(peek_pipe(&reader, 65536).unwrap(), [&b"one"[..], b"second"]);
    }

    #[test]
    fn a_glance_sees_what_could_not_be_read_and_sets_nothing() {
        let (reader, writer) = fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        assert!(glance(&reader, libc::SOCK_SEQPACKET).is_ok());
        fd::send(writer.as_fd(), b"one", 0).unwrap();
        fd::send(writer.as_fd(), b"second", 0).unwrap();
        assert!(glance(&reader, libc::SOCK_SEQPACKET).is_ok());
        assert_eq!(fd::socket_option(reader.as_fd(), libc::SO_PEEK_OFF).unwrap(), NO_PEEK_OFFSET);
        fd::set_socket_option(reader.as_fd(), libc::SO_PEEK_OFF, 0).unwrap();
        assert!(
            glance(&reader, libc::SOCK_SEQPACKET).is_ok() && peek(&reader, libc::SOCK_SEQPACKET).is_err()
        );
        let seen = pieces::look(&reader).unwrap();
        assert_eq!(seen.iter().map(|seen| &seen.data[..]).collect::<Vec<_>>(), [&b"one"[..], b"second"]);
        assert_eq!(fd::socket_option(reader.as_fd(), libc::SO_PEEK_OFF).unwrap(), 0);
        let mut buffer = [0; 16];
        assert_eq!(fd::receive(reader.as_fd(), &mut buffer, 0).unwrap(), 3);
    }

    #[test]
    fn a_glance_at_a_stream_takes_nothing_out() {
        let (reader, writer) = fd::socketpair(libc::SOCK_STREAM).unwrap();
        fd::send(writer.as_fd(), b"in flight", 0).unwrap();
        assert!(glance(&reader, libc::SOCK_STREAM).is_ok());
        let plain = Seen::plain(b"in flight".to_vec(), None);
        assert_eq!(peek(&reader, libc::SOCK_STREAM).unwrap(), [plain]);
        // An offset of the program's own stays where it is.
        fd::set_socket_option(reader.as_fd(), libc::SO_PEEK_OFF, 2).unwrap();
        assert!(urgent::stream(&reader, false).is_err() && glance(&reader, libc::SOCK_STREAM).is_ok());
        assert_eq!(pieces::look(&reader).unwrap()[0].data, b"in flight");
        assert_eq!(fd::socket_option(reader.as_fd(), libc::SO_PEEK_OFF).unwrap(), 2);
    }

    #[test]
    fn a_stream_is_seen_sender_by_sender() {
        let (reader, writer) = fd::socketpair(libc::SOCK_STREAM).unwrap();
        fd::send(writer.as_fd(), b"of nobody, ", 0).unwrap();
        fd::set_socket_option(reader.as_fd(), libc::SO_PASSCRED, 1).unwrap();
        fd::send(writer.as_fd(), b"mine", 0).unwrap();
        let seen = peek(&reader, libc::SOCK_STREAM).unwrap();
        let data: Vec<&[u8]> = seen.iter().map(|seen| &seen.data[..]).collect();
        assert_eq!(data, [&b"of nobody, "[..], b"mine"]);
        let pids = seen.iter().map(|seen| seen.sender.unwrap().pid).collect::<Vec<i32>>();
        assert_eq!(pids, [0, std::process::id().cast_signed()]);
        assert_eq!(fd::socket_option(reader.as_fd(), libc::SO_PEEK_OFF).unwrap(), NO_PEEK_OFFSET);
    }
}
