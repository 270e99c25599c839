//! Messages over unix sockets that say who sent them, in the ids of the process that reads (SCM_CREDENTIALS, unix(7)):
//! how a process inside a pid namespace tells one outside which process it is. A number may be another process's by the
//! time it is read, so a message may bring a descriptor along (SCM_RIGHTS), such as one of the sender itself.
//!
//! By hand: recvmsg(2). The iterator of `nix` gives nothing where more came than there is room for (ENOBUFS), nor knows
//! SCM_PIDFD: descriptors that are in the process by then would stay open unknown. It has no addresses as bytes either.
//!
//! # Safety
//! Names and control messages are read into slices of bytes, and taken apart there by the layout of struct cmsghdr
//! (cmsg(3)): length, level, type, then struct ucred or numbers of descriptors; padded to words.
#![allow(unsafe_code)]

use crate::check;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, sendmsg};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of a control message's header, of one with a ucred (pid, uid, gid), and of one with a descriptor, without the
/// padding behind it: with that there would be room for two.
const HEAD_LEN: usize = 16;
const IDS_LEN: usize = HEAD_LEN + 12;
pub(crate) const PASSED_LEN: usize = HEAD_LEN + 4;

/// Most descriptors of one message (include/net/scm.h, SCM_MAX_FD).
pub const MOST_PASSED: usize = 253;

/// A message that was read.
#[derive(Debug)]
pub struct Received {
    /// Its length, bytes. 0: the other end was closed.
    pub len: usize,
    /// The process that sent it; 0: not told, or without an id here.
    pub pid: i32,
    /// What came along.
    pub passed: Option<OwnedFd>,
}

/// Who has sent a message, as it is told (SCM_CREDENTIALS); of one that had no such thing with it the process is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    /// Process.
    pub pid: i32,
    /// User id.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

/// What control messages have brought.
#[derive(Debug, Default)]
pub(crate) struct Ancillary {
    /// The sender's id; 0: not told.
    pub pid: i32,
    /// The sender, where it is told.
    pub sender: Option<Sender>,
    /// There were descriptors (SCM_RIGHTS).
    pub rights: bool,
    /// All that there was room for.
    pub passed: Vec<OwnedFd>,
}

/// Lengths of what recvmsg(2) has filled, and its flags.
pub(crate) struct Filled {
    pub len: usize,
    pub name: usize,
    pub control: usize,
    pub flags: i32,
}

/// Asks for the sender with every message that is read here.
///
/// # Errors
/// ENOTSOCK.
pub fn expect(socket: BorrowedFd<'_>) -> io::Result<()> {
    crate::fd::set_socket_option(socket, libc::SO_PASSCRED, 1)
}

/// Sends a message with the ids of the caller, and a descriptor if one is given.
///
/// # Errors
/// EPIPE: the other end is gone. ETOOMANYREFS: the user has too many descriptors under way in sockets.
pub fn send(socket: BorrowedFd<'_>, data: &[u8], passed: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let (ids, number) = (UnixCredentials::new(), [passed.map_or(-1, |passed| passed.as_raw_fd())]);
    let along = [ControlMessage::ScmCredentials(&ids), ControlMessage::ScmRights(&number)];
    let along = if passed.is_some() { &along[..] } else { &along[..1] };
    let data = [io::IoSlice::new(data)];
    sendmsg::<()>(socket.as_raw_fd(), &data, along, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Sends a message with descriptors, at most [`MOST_PASSED`], or with none.
///
/// # Errors
/// As [`send`].
pub fn send_many(socket: BorrowedFd<'_>, data: &[u8], passed: &[BorrowedFd<'_>]) -> io::Result<()> {
    let numbers: Vec<i32> = passed.iter().map(AsRawFd::as_raw_fd).collect();
    let data = [io::IoSlice::new(data)];
    let along = [ControlMessage::ScmRights(&numbers)];
    let along = if passed.is_empty() { &along[..0] } else { &along[..] };
    sendmsg::<()>(socket.as_raw_fd(), &data, along, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Sends a message, or as much of a stream as fits, without waiting. `sender`: who is told to have sent it, in place of
/// none or the caller (CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID for others). `address`: where to; none: where it is
/// connected to.
///
/// # Errors
/// As `sendmsg(2)`; ESRCH: there is no such process.
pub fn send_as(
    socket: BorrowedFd<'_>,
    data: &[u8],
    sender: Option<Sender>,
    address: &[u8],
) -> io::Result<usize> {
    send_along(socket, data, sender, address, &[])
}

/// The same, and descriptors with it, at most [`MOST_PASSED`].
///
/// # Errors
/// As [`send_as`]; ETOOMANYREFS: the user has too many descriptors under way in sockets.
pub fn send_along(
    socket: BorrowedFd<'_>,
    data: &[u8],
    sender: Option<Sender>,
    address: &[u8],
    passed: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut control = Vec::new();
    if let Some(Sender { pid, user, group }) = sender {
        control.extend((IDS_LEN as u64).to_ne_bytes());
        control.extend(
            [libc::SOL_SOCKET, libc::SCM_CREDENTIALS, pid].iter().flat_map(|word| word.to_ne_bytes()),
        );
        control.extend([user, group].iter().flat_map(|id| id.to_ne_bytes()));
        control.resize(IDS_LEN.next_multiple_of(8), 0);
    }
    if !passed.is_empty() {
        control.extend(((HEAD_LEN + 4 * passed.len()) as u64).to_ne_bytes());
        let kind = [libc::SOL_SOCKET, libc::SCM_RIGHTS];
        control.extend(kind.iter().flat_map(|word| word.to_ne_bytes()));
        control.extend(passed.iter().flat_map(|passed| passed.as_raw_fd().to_ne_bytes()));
        control.resize(control.len().next_multiple_of(8), 0);
    }
    let mut piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    let place = |bytes: &[u8]| match bytes {
        [] => std::ptr::null_mut(),
        _ => bytes.as_ptr().cast_mut().cast(),
    };
    let message = libc::msghdr {
        msg_name: place(address),
        msg_namelen: u32::try_from(address.len()).unwrap_or(u32::MAX),
        msg_iov: &raw mut piece,
        msg_iovlen: 1,
        msg_control: place(&control),
        msg_controllen: control.len(),
        msg_flags: 0,
    };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the call reads `data`, `address` and `control` within their lengths, and writes nothing.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    check(sent as i64).map(|sent| usize::try_from(sent).unwrap_or(0))
}

/// Reads a message from a socket that was asked for the senders ([`expect`]).
///
/// # Errors
/// EAGAIN; ECONNRESET.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    loop {
        // After the sender there is room for one descriptor, and the kernel closes all others (net/core/scm.c,
        // scm_detach_fds).
        let mut room = [0; IDS_LEN.next_multiple_of(8) + PASSED_LEN];
        match receive_along(socket, buffer, &mut room, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            got => {
                return got.map(|(len, Ancillary { pid, mut passed, .. })| Received {
                    len,
                    pid,
                    passed: passed.pop(),
                });
            }
        }
    }
}

/// Reads a message with all descriptors that came along: the other way of [`send_many`].
///
/// # Errors
/// As recvmsg(2).
pub fn receive_many(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut room = [0; (HEAD_LEN + 4 * MOST_PASSED).next_multiple_of(8)];
    loop {
        match receive_along(socket, buffer, &mut room, 0) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            got => return got.map(|(len, along)| (len, along.passed)),
        }
    }
}

/// `recvmsg(2)`: the length of a message, and what came along with it, for which there is `room`.
///
/// # Errors
/// As the call.
fn receive_along(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    room: &mut [u8],
    flags: i32,
) -> io::Result<(usize, Ancillary)> {
    let filled = recvmsg(socket, buffer, &mut [], room, flags | libc::MSG_CMSG_CLOEXEC)?;
    Ok((filled.len, take(&room[..filled.control.min(room.len())])))
}

/// `recvmsg(2)`: a message, and the descriptor that came with it, if one did (SCM_RIGHTS; of several the kernel closes
/// all but the first, for which alone there is room).
///
/// # Errors
/// As recvmsg.
pub fn receive_with(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: i32,
) -> io::Result<(usize, Option<OwnedFd>)> {
    let (len, mut ancillary) = receive_along(fd, buffer, &mut [0; PASSED_LEN], flags)?;
    Ok((len, ancillary.passed.pop()))
}

/// `recvmsg(2)` with MSG_PEEK: its length, and whether descriptors come with it. The caller's copies of them are
/// closed.
///
/// # Errors
/// As recvmsg.
pub fn peek(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<(usize, bool)> {
    peek_with_sender(fd, buffer, flags).map(|(len, rights, _)| (len, rights))
}

/// The same, and who has sent it, where the socket is told (SO_PASSCRED).
///
/// # Errors
/// As recvmsg.
pub fn peek_with_sender(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: i32,
) -> io::Result<(usize, bool, Option<Sender>)> {
    // Room for what comes along with a message: SCM_MAX_FD descriptors (include/net/scm.h), credentials, a pidfd.
    let (len, ancillary) = receive_along(fd, buffer, &mut [0; 2048], flags | libc::MSG_PEEK)?;
    Ok((len, ancillary.rights, ancillary.sender))
}

/// Takes over what these control messages have brought.
pub(crate) fn take(mut rest: &[u8]) -> Ancillary {
    const SCM_PIDFD: i32 = 4;
    let mut along = Ancillary::default();
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, i32::from_ne_bytes);
    while let Some((head, _)) = rest.split_at_checked(HEAD_LEN) {
        // The length is of 8 bytes, of which the upper ones are 0.
        let len = usize::try_from(word(&head[..4])).unwrap_or(0);
        let Some(data) = rest.get(HEAD_LEN..len) else { break };
        let kind = if word(&head[8..12]) == libc::SOL_SOCKET { word(&head[12..]) } else { 0 };
        if kind == libc::SCM_CREDENTIALS && len >= IDS_LEN {
            let id = |at: usize| word(&data[at..at + 4]).cast_unsigned();
            along.pid = word(&data[..4]);
            along.sender = Some(Sender { pid: along.pid, user: id(4), group: id(8) });
        } else if kind == libc::SCM_RIGHTS || kind == SCM_PIDFD {
            along.rights |= kind == libc::SCM_RIGHTS;
            for number in data.chunks_exact(4).map(word).filter(|number| *number >= 0) {
                // SAFETY: the kernel has just opened it for this message, and nothing else knows its number.
                let fd = unsafe { OwnedFd::from_raw_fd(number) };
                if kind == libc::SCM_RIGHTS {
                    along.passed.push(fd);
                }
            }
        }
        rest = rest.get(len.next_multiple_of(8)..).unwrap_or(&[]);
    }
    along
}

/// `recvmsg(2)` into slices; an empty one is not asked for.
///
/// # Errors
/// As the call.
pub(crate) fn recvmsg(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    name: &mut [u8],
    control: &mut [u8],
    flags: i32,
) -> io::Result<Filled> {
    receive_into(socket, buffer, name, control, (flags, false))
}

/// The same of a unix stream, with those pieces alone that fit into the buffer whole: a piece is copied whole or not at
/// all (net/core/datagram.c, __skb_datagram_iter), and what does not fit ends the call before it brings anything along.
///
/// # Errors
/// As the call; EFAULT: the first one does not fit.
pub(crate) fn receive_whole(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut [u8],
    flags: i32,
) -> io::Result<Filled> {
    receive_into(socket, buffer, &mut [], control, (flags, true))
}

fn receive_into(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    name: &mut [u8],
    control: &mut [u8],
    (flags, torn): (i32, bool),
) -> io::Result<Filled> {
    let place = |slice: &mut [u8]| match slice {
        [] => std::ptr::null_mut(),
        _ => slice.as_mut_ptr().cast(),
    };
    // What does not fit into the buffer meets what is no memory (mmap(2), vm.mmap_min_addr).
    let beyond = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: usize::from(torn) };
    let mut pieces = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }, beyond];
    let mut message = libc::msghdr {
        msg_name: place(name),
        msg_namelen: u32::try_from(name.len()).unwrap_or(0),
        msg_iov: pieces.as_mut_ptr(),
        msg_iovlen: 1 + usize::from(torn),
        msg_control: place(control),
        msg_controllen: control.len(),
        msg_flags: 0,
    };
    // SAFETY: the kernel writes into `buffer`, `name`, `control` and `message`, which outlive the call, within their
    // lengths. It asks for no alignment.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let len = usize::try_from(check(result as i64)?).unwrap_or(0);
    let name = usize::try_from(message.msg_namelen).unwrap_or(0);
    Ok(Filled { len, name, control: message.msg_controllen, flags: message.msg_flags })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    #[test]
    fn the_sender_is_told() {
        let (one, two) = crate::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        expect(two.as_fd()).unwrap();
        send(one.as_fd(), b"first", None).unwrap();
        let mut buffer = [0_u8; 16];
        let Received { len, pid, passed } = receive(two.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..len], pid), (&b"first"[..], std::process::id().cast_signed()));
        assert!(passed.is_none());
        drop(one);
        assert_eq!(receive(two.as_fd(), &mut buffer).unwrap().len, 0);
    }

    #[test]
    fn a_sender_may_be_told_and_is_seen() {
        let (one, two) = crate::fd::socketpair(libc::SOCK_DGRAM).unwrap();
        let mut buffer = [0_u8; 16];
        assert_eq!(send_as(one.as_fd(), b"none", None, &[]).unwrap(), 4);
        expect(two.as_fd()).unwrap();
        let (_, _, none) = peek_with_sender(two.as_fd(), &mut buffer, 0).unwrap();
        assert!(none.is_none_or(|none| none.pid == 0), "{none:?}");
        crate::fd::receive(two.as_fd(), &mut buffer, 0).unwrap();
        // SAFETY: no arguments.
        let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
        let own = Sender { pid: std::process::id().cast_signed(), user, group };
        assert_eq!(send_as(one.as_fd(), b"own", Some(own), &[]).unwrap(), 3);
        let seen = peek_with_sender(two.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!(seen, (3, false, Some(own)));
    }

    #[test]
    fn a_descriptor_comes_along() {
        let (one, two) = crate::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        expect(two.as_fd()).unwrap();
        let (reading, writing) = crate::fd::pipe(0).unwrap();
        send(one.as_fd(), b"x", Some(writing.as_fd())).unwrap();
        drop(writing);
        let Received { len, pid, passed } = receive(two.as_fd(), &mut [0_u8; 16]).unwrap();
        assert_eq!((len, pid), (1, std::process::id().cast_signed()));
        let mut passed = File::from(passed.unwrap());
        assert!(!crate::fd::is_inherited_by_programs(passed.as_raw_fd()));
        passed.write_all(b"through it").unwrap();
        drop(passed);
        let mut text = String::new();
        File::from(reading).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through it");
    }

    #[test]
    fn of_several_descriptors_one_is_taken_and_none_is_left() {
        let (one, two) = crate::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        expect(two.as_fd()).unwrap();
        let file = File::from(crate::memfd::unsealed(c"several").unwrap());
        let numbers = [file.as_raw_fd(); 5];
        let send = || {
            let (along, text) = ([ControlMessage::ScmRights(&numbers)], [io::IoSlice::new(b"five")]);
            sendmsg::<()>(one.as_raw_fd(), &text, &along, MsgFlags::empty(), None).unwrap();
        };
        let path = |fd: i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).ok();
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            let number = |name: std::ffi::OsString| name.to_str().and_then(|name| name.parse().ok());
            let all = all.filter_map(|entry| number(entry.unwrap().file_name()));
            all.filter(|fd| path(*fd) == path(numbers[0])).count()
        };
        let mut buffer = [0; 16];
        send();
        assert_eq!(peek(two.as_fd(), &mut buffer, 0).unwrap(), (4, true));
        assert_eq!(open(), 1);
        let received = receive(two.as_fd(), &mut buffer).unwrap();
        assert_eq!((received.len, received.pid), (4, std::process::id().cast_signed()));
        assert_eq!(path(received.passed.as_ref().unwrap().as_raw_fd()), path(numbers[0]));
        assert_eq!(open(), 2);
        drop(received);
        send();
        // A sender's ids take the room before it.
        let (len, passed) = receive_with(two.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!((len, passed.is_none(), open()), (4, true, 1));
    }

    /// Sends `text` with one descriptor.
    fn send_with(socket: BorrowedFd<'_>, text: &[u8], passed: BorrowedFd<'_>) {
        let rights = [passed.as_raw_fd()];
        let along = [ControlMessage::ScmRights(&rights)];
        let text = [io::IoSlice::new(text)];
        sendmsg::<()>(socket.as_raw_fd(), &text, &along, MsgFlags::empty(), None).unwrap();
    }

    #[test]
    fn a_descriptor_comes_with_the_message_it_was_sent_with() {
        let (ours, theirs) = crate::fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        let mut file = std::fs::File::from(crate::memfd::unsealed(c"passed").unwrap());
        file.write_all(b"content").unwrap();
        crate::fd::send(theirs.as_fd(), b"without", 0).unwrap();
        send_with(theirs.as_fd(), b"with", file.as_fd());
        let mut buffer = [0_u8; 64];
        let (len, none) = receive_with(ours.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!((&buffer[..len], none.is_none()), (&b"without"[..], true));
        let (len, passed) = receive_with(ours.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!(&buffer[..len], b"with");
        let mut passed = std::fs::File::from(passed.unwrap());
        assert!(!crate::fd::is_inherited_by_programs(passed.as_raw_fd()));
        let mut text = String::new();
        passed.rewind().unwrap();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        drop(theirs);
        assert_eq!(receive_with(ours.as_fd(), &mut buffer, 0).unwrap().0, 0);
    }

    #[test]
    fn descriptors_that_come_are_seen_and_stay() {
        let (ours, theirs) = crate::fd::socketpair(libc::SOCK_STREAM).unwrap();
        let mut buffer = [0_u8; 64];
        crate::fd::set_socket_option(ours.as_fd(), libc::SO_PASSCRED, 1).unwrap();
        crate::fd::send(theirs.as_fd(), b"plain", 0).unwrap();
        assert_eq!(peek(ours.as_fd(), &mut buffer, 0).unwrap(), (5, false));
        send_with(theirs.as_fd(), b"with", theirs.as_fd());
        let target = |fd: &std::path::Path| std::fs::read_link(fd).ok();
        let sent = target(format!("/proc/self/fd/{}", theirs.as_raw_fd()).as_ref());
        let open = || {
            let all = std::fs::read_dir("/proc/self/fd").unwrap();
            all.filter(|fd| target(&fd.as_ref().unwrap().path()) == sent).count()
        };
        for _ in 0..200 {
            assert_eq!(peek(ours.as_fd(), &mut buffer, 0).unwrap(), (9, true));
        }
        assert_eq!(open(), 1, "what was looked at is closed");
        let (len, _) = receive_with(ours.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!(len, 9);
    }
}
