//! Descriptors of a stopped process, through a socket: where pidfd_getfd(2) is forbidden, as by the default filter of
//! containers (moby, profiles/seccomp/default.json).
//!
//! The process connects to a socket of the agent's, sends its descriptors along (SCM_RIGHTS, unix(7)) and closes its
//! end, all in one table. Called inside the stop ([`crate::capture`]). Invariant: the number that the socket will have
//! is known, for no thread runs and the kernel takes the lowest that is free (open(2)); if it is another one all the
//! same, that one is closed. Fails by: an error; the process has what it had.

use super::live_thread::{BUFFERS, LiveThread};
use super::stub::Row;
use crate::error::CutError;
use holdfast_image::record::InjectArea;
use holdfast_sys::{fd, poll, procmem, scm, unix_socket};
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

/// Descriptors in one message: the kernel takes 253 (include/net/scm.h, SCM_MAX_FD).
const MANY: usize = 240;
/// Until a message that was sent is here: at once.
const LIMIT: Duration = Duration::from_secs(2);

/// Copies of a process's descriptors, by their numbers there.
pub type Copies = HashMap<i32, OwnedFd>;

/// Copies of the descriptors `numbers` of a stopped process, which are all that it has.
///
/// # Errors
/// A call that the process cannot make (EMFILE), or that is forbidden to it; it has died.
pub fn take(host: &LiveThread, area: &InjectArea, numbers: &[i32]) -> Result<Copies, CutError> {
    let own = (0..).find(|number| !numbers.contains(number)).unwrap_or(0);
    let mut copies = HashMap::new();
    for some in numbers.chunks(MANY) {
        copies.extend(some.iter().copied().zip(take_some(host, area, own, some)?));
    }
    Ok(copies)
}

fn take_some(
    host: &LiveThread,
    area: &InjectArea,
    own: i32,
    numbers: &[i32],
) -> Result<Vec<OwnedFd>, CutError> {
    let failed = |error: io::Error| CutError::Failed {
        what: format!("taking over descriptors of process {}: {error}", host.thread.process),
    };
    let meeting = Meeting::new().map_err(failed)?;
    let data_at = area.scratch.0 + BUFFERS;
    let (data, address_len, message) = data(data_at, meeting.address(), numbers);
    procmem::write(host.thread.tid, data_at, &data).map_err(failed)?;
    let socket = u64::from(own.cast_unsigned());
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    let rows = [
        Row::new(libc::SYS_socket, &[libc::AF_UNIX as u64, kind, 0]),
        Row::new(libc::SYS_connect, &[socket, data_at, address_len]),
        Row::new(libc::SYS_sendmsg, &[socket, message, (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as u64]),
        Row::new(libc::SYS_close, &[socket]),
    ];
    let results = host.run(area, &rows, &mut |_| Ok(()))?;
    if let Some(&made) = results.first().filter(|&&made| made >= 0 && made != i64::from(own)) {
        host.run(area, &[Row::new(libc::SYS_close, &[made.cast_unsigned()])], &mut |_| Ok(()))?;
        return Err(failed(io::Error::other("another process shares its table of descriptors")));
    }
    if let Some(error) = results.iter().take(3).find(|&&result| result < 0) {
        return Err(failed(io::Error::from_raw_os_error(i32::try_from(-error).unwrap_or(libc::EIO))));
    }
    let copies =
        meeting.accept(host.thread.process).and_then(|connection| receive(&connection)).map_err(failed)?;
    if copies.len() != numbers.len() {
        return Err(failed(io::Error::other(format!("{} of {} came", copies.len(), numbers.len()))));
    }
    Ok(copies)
}

/// What the process needs in its memory: an address, and a message with one byte and all descriptors. The length of the
/// address, and where the message is.
fn data(at: u64, address: Vec<u8>, numbers: &[i32]) -> (Vec<u8>, u64, u64) {
    let mut bytes = address;
    let address_len = bytes.len() as u64;
    let aligned = |bytes: &mut Vec<u8>| {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        at + bytes.len() as u64
    };
    let words = |bytes: &mut Vec<u8>, words: &[u64]| {
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_ne_bytes()));
    };
    let byte = aligned(&mut bytes);
    words(&mut bytes, &[0]);
    let piece = aligned(&mut bytes);
    words(&mut bytes, &[byte, 1]);
    // struct cmsghdr, and the descriptors.
    let control = aligned(&mut bytes);
    let control_len = 16 + 4 * numbers.len() as u64;
    let kind =
        u64::from(libc::SCM_RIGHTS.cast_unsigned()) << 32 | u64::from(libc::SOL_SOCKET.cast_unsigned());
    words(&mut bytes, &[control_len, kind]);
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_ne_bytes()));
    // struct msghdr.
    let message = aligned(&mut bytes);
    words(&mut bytes, &[0, 0, piece, 1, control, control_len.next_multiple_of(8), 0]);
    (bytes, address_len, message)
}

/// The descriptors that came with the first message.
fn receive(connection: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    if !poll::readable(&[connection.as_fd()], Some(LIMIT))?.first().copied().unwrap_or(false) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    scm::receive_many(connection.as_fd(), &mut [0]).map(|(_, copies)| copies)
}

/// A socket of the agent's that a traced process connects to.
pub struct Meeting {
    name: String,
    listener: UnixListener,
}

impl Meeting {
    /// At a name by chance.
    ///
    /// # Errors
    /// As bind(2).
    pub fn new() -> io::Result<Meeting> {
        let name = format!("holdfast-{:016x}", RandomState::new().hash_one(0));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Meeting { name, listener })
    }

    /// struct sockaddr_un: the family, and a name that begins with a zero (unix(7), abstract).
    pub fn address(&self) -> Vec<u8> {
        let family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(0).to_ne_bytes();
        [&family[..], &[0], self.name.as_bytes()].concat()
    }

    /// The connection of this process, which has connected. Others that have are not listened to.
    ///
    /// # Errors
    /// EAGAIN: it has not.
    pub fn accept(&self, process: i32) -> io::Result<OwnedFd> {
        loop {
            let connection = unix_socket::accept(self.listener.as_fd())?;
            if unix_socket::peer(connection.as_fd())?.pid == process {
                return Ok(connection);
            }
        }
    }
}

/// Whether two descriptors of this process are of one open file description.
///
/// # Errors
/// Neither way tells.
pub fn are_one(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    // Linux 6.10, include/uapi/linux/fcntl.h.
    const F_DUPFD_QUERY: i32 = 1024 + 3;
    match fd::fcntl(one.as_fd(), F_DUPFD_QUERY, other.as_raw_fd().into()) {
        Ok(answer) => Ok(answer == 1),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => by_mark(one, other),
        Err(error) => Err(error),
    }
}

/// The same on older kernels: a mark on the one is seen on the other. The mark is the signal of a description that is
/// told of input (include/uapi/asm-generic/fcntl.h). No process that has it runs now, and it is put back at once.
fn by_mark(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    const F_SETSIG: i32 = 10;
    const F_GETSIG: i32 = 11;
    let signal_of = |which: &OwnedFd| fd::fcntl(which.as_fd(), F_GETSIG, 0);
    let (before, of_other) = (signal_of(one)?, signal_of(other)?);
    let mark = (1..64).rev().find(|mark| ![before, of_other].contains(mark)).unwrap_or(1);
    fd::fcntl(one.as_fd(), F_SETSIG, mark.into())?;
    let seen = signal_of(other);
    fd::fcntl(one.as_fd(), F_SETSIG, before.into())?;
    Ok(seen? == mark)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_description_is_told_from_its_twin_both_ways_and_left_as_it_was() {
        let open = || OwnedFd::from(File::open("/dev/null").unwrap());
        let (one, twin) = (open(), open());
        let copy = one.try_clone().unwrap();
        for way in [are_one, by_mark] {
            assert!(way(&one, &copy).unwrap());
            assert!(!way(&one, &twin).unwrap());
        }
        const F_GETSIG: i32 = 11;
        assert_eq!(fd::fcntl(one.as_fd(), F_GETSIG, 0).unwrap(), 0);
    }

    #[test]
    fn only_the_process_that_was_asked_is_listened_to() {
        let meeting = Meeting::new().unwrap();
        let connect = || {
            let address = SocketAddr::from_abstract_name(&meeting.name).unwrap();
            std::os::unix::net::UnixStream::connect_addr(&address).unwrap()
        };
        let _stranger = connect();
        let error = meeting.accept(1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "process 1 has not connected");
        let _own = connect();
        meeting.accept(std::process::id().cast_signed()).unwrap();
    }
}
