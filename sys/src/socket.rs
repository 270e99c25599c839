//! Sockets as the kernel describes them: addresses as the bytes of a `struct sockaddr`, options as bytes, the state of
//! a TCP connection. Used to record a program's sockets and to make them anew.
//!
//! By hand: `nix` has types for addresses, families, protocols and options, which lose what they do not know; what an
//! image holds is restored as the same bytes and numbers. Its backlog has an upper bound, SOMAXCONN of its headers.
//!
//! # Safety
//! Calls take descriptors that the caller borrows, and local buffers with their lengths, in instructions where the
//! kernel counts those.
#![allow(unsafe_code)]

use crate::fd::{self, owned};
use crate::{check, scm, spawn};
use nix::sys::socket::{Shutdown, SockFlag};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

pub use crate::fd::{option_of, set_option};

/// Room for any address (struct sockaddr_storage).
const ADDRESS_ROOM: usize = 128;
/// For SCM_MAX_FD descriptors (include/net/scm.h), credentials, a pidfd.
const CONTROL_ROOM: usize = 2048;

/// `socket(2)`, close-on-exec.
///
/// # Errors
/// As the call.
pub fn new(domain: i32, socket_type: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; the result is a new descriptor.
    owned(i64::from(unsafe { libc::socket(domain, socket_type | libc::SOCK_CLOEXEC, protocol) }))
}

type NameCall = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32;

fn address(fd: BorrowedFd<'_>, call: NameCall) -> io::Result<Vec<u8>> {
    let mut room = [0_u64; ADDRESS_ROOM / 8];
    let mut len = u32::try_from(ADDRESS_ROOM).unwrap_or(0);
    // SAFETY: getsockname or getpeername, which write at most `len` bytes into `room`, aligned for any address.
    let result = unsafe { call(fd.as_raw_fd(), room.as_mut_ptr().cast(), &raw mut len) };
    check(i64::from(result))?;
    let bytes: Vec<u8> = room.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    bytes.get(..len).map(<[u8]>::to_vec).ok_or_else(|| io::Error::other("an address of more than 128 bytes"))
}

/// The own address; of a unix socket without one: its family alone.
///
/// # Errors
/// As `getsockname(2)`.
pub fn local_address(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    address(fd, libc::getsockname)
}

/// The address of the other end.
///
/// # Errors
/// As `getpeername(2)`; ENOTCONN: there is none.
pub fn peer_address(fd: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    address(fd, libc::getpeername)
}

fn with_address(
    fd: BorrowedFd<'_>,
    address: &[u8],
    call: unsafe extern "C" fn(i32, *const libc::sockaddr, libc::socklen_t) -> i32,
) -> io::Result<()> {
    let len = u32::try_from(address.len()).unwrap_or(u32::MAX);
    // SAFETY: bind or connect, which read `len` bytes; the kernel copies them before it looks at them.
    check(i64::from(unsafe { call(fd.as_raw_fd(), address.as_ptr().cast(), len) })).map(|_| ())
}

/// `bind(2)`.
///
/// # Errors
/// As the call.
pub fn bind(fd: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    with_address(fd, address, libc::bind)
}

/// `connect(2)`.
///
/// # Errors
/// As the call.
pub fn connect(fd: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    with_address(fd, address, libc::connect)
}

/// `listen(2)`.
///
/// # Errors
/// As the call.
pub fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    check(i64::from(unsafe { libc::listen(fd.as_raw_fd(), backlog) })).map(|_| ())
}

/// `accept4(2)`, close-on-exec, without the address.
///
/// # Errors
/// As the call.
pub fn accept(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(nix::sys::socket::accept4(fd, SockFlag::SOCK_CLOEXEC)?)
}

/// A message as [`receive_from`] found it.
#[derive(Debug)]
pub struct Received {
    /// Its length, or what of it fits; with MSG_TRUNC: its length.
    pub len: usize,
    /// Who sent it; empty: a socket without a name.
    pub address: Vec<u8>,
    /// What came along with it.
    pub passed: Vec<OwnedFd>,
    /// More came along than could be had (EMFILE).
    pub cut: bool,
    /// Who is told to have sent it (SO_PASSCRED).
    pub sender: Option<scm::Sender>,
}

/// `recvmsg(2)`: a message, its sender, and what came along.
///
/// # Errors
/// As the call.
pub fn receive_from(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
    let (mut room, mut control) = ([0; ADDRESS_ROOM], [0; CONTROL_ROOM]);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    let filled = scm::recvmsg(fd, buffer, &mut room, &mut control, flags)?;
    Ok(received(&filled, &room, &control))
}

/// The same of what waits from a place on (SO_PEEK_OFF), and which is not taken out. Where its owner looks next is as
/// it was afterwards, though this process be killed meanwhile.
///
/// # Errors
/// As the call; EOPNOTSUPP: the kernel does not know such places for it.
pub fn look_at(fd: BorrowedFd<'_>, place: usize, buffer: &mut [u8], flags: i32) -> io::Result<Received> {
    let flags = flags | libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let before = fd::socket_option(fd, libc::SO_PEEK_OFF)?;
    if place == 0 && before == -1 {
        return receive_from(fd, buffer, flags);
    }
    let place = i32::try_from(place).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let (mut room, mut control) = ([0; ADDRESS_ROOM], [0; CONTROL_ROOM]);
    let mut seen = Err(io::ErrorKind::Interrupted.into());
    spawn::undying(&mut || {
        seen = fd::set_socket_option(fd, libc::SO_PEEK_OFF, place)
            .and_then(|()| scm::recvmsg(fd, buffer, &mut room, &mut control, flags));
        let _ = fd::set_socket_option(fd, libc::SO_PEEK_OFF, before);
    })?;
    Ok(received(&seen?, &room, &control))
}

/// How many bytes from a place on in a unix stream are in pieces that fit whole into the buffer, each as one call has
/// sent it. (How many a look of some length sees does not tell: it goes on with no length left, net/unix/af_unix.c,
/// unix_stream_read_generic.)
///
/// # Errors
/// As [`look_at`].
pub fn whole_pieces(fd: BorrowedFd<'_>, place: usize, buffer: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let place = i32::try_from(place).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let before = fd::socket_option(fd, libc::SO_PEEK_OFF)?;
    let mut control = [0; CONTROL_ROOM];
    let mut seen = Err(io::ErrorKind::Interrupted.into());
    let mut look = || {
        seen = fd::set_socket_option(fd, libc::SO_PEEK_OFF, place)
            .and_then(|()| scm::receive_whole(fd, buffer, &mut control, flags));
        let _ = fd::set_socket_option(fd, libc::SO_PEEK_OFF, before);
    };
    spawn::undying(&mut look)?;
    match seen {
        Ok(seen) => {
            drop(scm::take(&control[..seen.control.min(control.len())]));
            Ok(seen.len)
        }
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether nothing but the end waits from a place on, and no empty message: who has sent that would be told
/// (SO_PASSCRED, which is on for that moment as the place is set).
///
/// # Errors
/// As [`look_at`].
pub fn is_end(socket: BorrowedFd<'_>, place: usize) -> io::Result<bool> {
    let place = i32::try_from(place).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let set = |name, value| fd::set_socket_option(socket, name, value);
    let told = fd::socket_option(socket, libc::SO_PASSCRED)?;
    let before = fd::socket_option(socket, libc::SO_PEEK_OFF)?;
    let mut control = [0; CONTROL_ROOM];
    let mut seen = Err(io::ErrorKind::Interrupted.into());
    spawn::undying(&mut || {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        seen = set(libc::SO_PASSCRED, 1)
            .and_then(|()| set(libc::SO_PEEK_OFF, place))
            .and_then(|()| scm::recvmsg(socket, &mut [0], &mut [], &mut control, flags));
        let _ = set(libc::SO_PEEK_OFF, before);
        let _ = set(libc::SO_PASSCRED, told);
    })?;
    let seen = seen?;
    Ok(seen.len == 0 && scm::take(&control[..seen.control.min(control.len())]).sender.is_none())
}

fn received(filled: &scm::Filled, room: &[u8], control: &[u8]) -> Received {
    let along = scm::take(&control[..filled.control.min(control.len())]);
    Received {
        len: filled.len,
        address: room[..filled.name.min(room.len())].to_vec(),
        passed: along.passed,
        cut: filled.flags & libc::MSG_CTRUNC != 0,
        sender: along.sender,
    }
}

/// Nothing will be sent any more.
///
/// # Errors
/// As `shutdown(2)`.
pub fn shut_writing(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(nix::sys::socket::shutdown(fd.as_raw_fd(), Shutdown::Write)?)
}

/// Shuts down what the bits say: 1 reading, 2 writing. A datagram socket without a destination says ENOTCONN, and does
/// it all the same (net/ipv4/af_inet.c, inet_shutdown).
///
/// # Errors
/// As `shutdown(2)`.
pub fn shut(fd: BorrowedFd<'_>, bits: u8) -> io::Result<()> {
    let how = match bits & 3 {
        0 => return Ok(()),
        1 => Shutdown::Read,
        2 => Shutdown::Write,
        _ => Shutdown::Both,
    };
    match nix::sys::socket::shutdown(fd.as_raw_fd(), how) {
        Err(nix::errno::Errno::ENOTCONN) => Ok(()),
        result => Ok(result?),
    }
}

/// The classic program of a socket's filter, 8 bytes for each instruction (struct sock_filter); `None`: it has no
/// filter.
///
/// # Errors
/// EACCES: it is one of eBPF, which the kernel does not tell (net/core/filter.c, sk_get_filter).
pub fn filter(fd: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    // Lengths are counted in instructions here.
    let mut count: libc::socklen_t = 0;
    let mut none = [0_u64; 1];
    // SAFETY: with a length of 0 nothing but the length is written.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_GET_FILTER,
            none.as_mut_ptr().cast(),
            &raw mut count,
        )
    };
    check(i64::from(result))?;
    if count == 0 {
        return Ok(None);
    }
    let mut program = vec![0_u64; count as usize];
    // SAFETY: the kernel writes `count` instructions of 8 bytes at most, or none if the program has more by now.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_GET_FILTER,
            program.as_mut_ptr().cast(),
            &raw mut count,
        )
    };
    check(i64::from(result))?;
    program.truncate(count as usize);
    Ok(Some(program.iter().flat_map(|instruction| instruction.to_ne_bytes()).collect()))
}

/// Gives a socket such a filter.
///
/// # Errors
/// EINVAL: it is no program of instructions; as `setsockopt(2)`.
pub fn set_filter(fd: BorrowedFd<'_>, program: &[u8]) -> io::Result<()> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let (instructions, rest) = program.as_chunks::<8>();
    let len = u16::try_from(instructions.len()).map_err(|_| invalid())?;
    if !rest.is_empty() {
        return Err(invalid());
    }
    let mut aligned: Vec<u64> = instructions.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let whole = libc::sock_fprog { len, filter: aligned.as_mut_ptr().cast() };
    let size = libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0);
    // SAFETY: the kernel reads the structure, and `len` instructions behind its pointer, which live until then.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const whole).cast(),
            size,
        )
    };
    check(i64::from(result)).map(|_| ())
}

/// An option as the bytes that the kernel gives, 64 at most.
///
/// # Errors
/// As `getsockopt(2)`.
pub fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<Vec<u8>> {
    let mut value = [0_u8; 64];
    let len = option_of(fd, level, name, &mut value)?;
    Ok(value[..len].to_vec())
}

/// States of a TCP connection (include/net/tcp_states.h).
pub mod tcp_state {
    /// Connected.
    pub const ESTABLISHED: u8 = 1;
    /// This end has sent its last; the other may not have said that it knows.
    pub const FIN_WAIT1: u8 = 4;
    /// This end has sent its last, and the other knows.
    pub const FIN_WAIT2: u8 = 5;
    /// No connection.
    pub const CLOSE: u8 = 7;
    /// The other end has sent its last.
    pub const CLOSE_WAIT: u8 = 8;
    /// Both ends have sent their last; that of this one is not known to the other.
    pub const LAST_ACK: u8 = 9;
    /// Waits for connections.
    pub const LISTEN: u8 = 10;
    /// Both ends have sent their last at one time.
    pub const CLOSING: u8 = 11;
}

/// Part of struct tcp_info (include/uapi/linux/tcp.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpInfo {
    /// See [`tcp_state`].
    pub state: u8,
    /// Of a listening socket: connections that wait to be accepted.
    pub waiting: u32,
    /// Of a listening socket: how many may.
    pub backlog: u32,
    /// Bytes that came in order, the end of the stream counting as one.
    pub received: u64,
    /// Bytes in the queue that were never sent.
    pub not_sent: u32,
    /// Bytes sent, without those that were sent again.
    pub sent: u64,
    /// Bytes for which the other end has said that it has room, those among them that it has not acknowledged; 0 before
    /// Linux 5.4.
    pub window: u32,
    /// Bytes sent that the other end has acknowledged, its own end counting as one.
    pub acknowledged: u64,
    /// Most bytes in one segment.
    pub segment: u32,
}

/// What the kernel knows of a TCP socket (Linux 4.19 on).
///
/// # Errors
/// As `getsockopt(2)`; the kernel is too old.
pub fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    const TCP_INFO: i32 = 11;
    let mut raw = [0_u8; 256];
    let len = option_of(fd, libc::IPPROTO_TCP, TCP_INFO, &mut raw)?;
    if len < 216 {
        return Err(io::Error::other("the kernel tells too little of TCP connections"));
    }
    let word = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    Ok(TcpInfo {
        state: raw[0],
        waiting: word(24),
        backlog: word(28),
        received: long(128),
        not_sent: word(144),
        sent: long(200).saturating_sub(long(208)),
        window: if len < 232 { 0 } else { word(228) },
        acknowledged: long(120),
        segment: word(16),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// 127.0.0.1, port 0.
    fn loopback() -> Vec<u8> {
        let mut address = vec![0_u8; 16];
        address[..2].copy_from_slice(&2_u16.to_ne_bytes());
        address[4..8].copy_from_slice(&[127, 0, 0, 1]);
        address
    }

    #[test]
    fn a_filter_is_read_as_it_was_given() {
        let socket = new(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
        assert_eq!(filter(socket.as_fd()).unwrap(), None);
        // Returns the length of the packet: two instructions (BPF_LD+BPF_W+BPF_LEN, BPF_RET+BPF_A).
        let program = [0x80_u64.to_ne_bytes(), 0x16_u64.to_ne_bytes()].concat();
        set_filter(socket.as_fd(), &program).unwrap();
        assert_eq!(filter(socket.as_fd()).unwrap(), Some(program.clone()));
        assert!(set_filter(socket.as_fd(), &program[..7]).is_err());
    }

    #[test]
    fn a_connection_tells_what_went_through_it() {
        let listener = new(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        bind(listener.as_fd(), &loopback()).unwrap();
        listen(listener.as_fd(), 5).unwrap();
        let address = local_address(listener.as_fd()).unwrap();
        let client = new(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        assert_eq!(peer_address(client.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        connect(client.as_fd(), &address).unwrap();
        let info = tcp_info(listener.as_fd()).unwrap();
        assert_eq!((info.state, info.waiting, info.backlog), (tcp_state::LISTEN, 1, 5));
        let server = accept(listener.as_fd()).unwrap();
        assert_eq!(peer_address(server.as_fd()).unwrap(), local_address(client.as_fd()).unwrap());
        crate::fd::send(client.as_fd(), &[7; 1000], 0).unwrap();
        shut_writing(client.as_fd()).unwrap();
        let (here, there) = (tcp_info(client.as_fd()).unwrap(), tcp_info(server.as_fd()).unwrap());
        assert_eq!((here.not_sent, here.sent, there.received), (0, 1000, 1001));
        assert!([tcp_state::FIN_WAIT1, tcp_state::FIN_WAIT2].contains(&here.state));
        assert_eq!(there.state, tcp_state::CLOSE_WAIT);
    }

    #[test]
    fn options_are_bytes() {
        let socket = new(libc::AF_UNIX, libc::SOCK_DGRAM, 0).unwrap();
        assert_eq!(local_address(socket.as_fd()).unwrap(), 1_u16.to_ne_bytes());
        let one = 1_i32.to_ne_bytes();
        set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED, &one).unwrap();
        assert_eq!(option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PASSCRED).unwrap(), one);
    }
}
