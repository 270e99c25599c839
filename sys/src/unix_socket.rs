//! Unix sockets that keep message boundaries (SOCK_SEQPACKET): the agent's control socket and its clients.
//!
//! A path that is too long for `sun_path` (108 bytes, unix(7)) is reached through `/proc/self/fd/N/NAME` of its folder.

use crate::objects;
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr, sockopt};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of `sun_path`.
const PATH_ROOM: usize = 108;

/// Who is at the other end of a connection (SO_PEERCRED: as it was at `connect` or `socketpair`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its process, in the caller's pid namespace; 0 if it has no id there.
    pub pid: i32,
    /// Its effective user, in the caller's user namespace.
    pub uid: u32,
}

/// Calls `act` with an address for `path`, however long that is.
fn with_address(path: &Path, act: impl Fn(&UnixAddr) -> nix::Result<()>) -> io::Result<()> {
    if path.as_os_str().len() < PATH_ROOM {
        return Ok(act(&UnixAddr::new(path)?)?);
    }
    let name = path.file_name().unwrap_or(OsStr::new(""));
    let parent = path.parent().unwrap_or(Path::new("/"));
    let folder = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    Ok(act(&UnixAddr::new(&short)?)?)
}

fn new(flags: SockFlag) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | flags;
    Ok(socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

/// A non-blocking listening socket at `path`, which must not exist.
///
/// # Errors
/// EADDRINUSE if the path exists; as bind(2).
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = new(SockFlag::SOCK_NONBLOCK)?;
    with_address(path, |address| socket::bind(socket.as_raw_fd(), address))?;
    socket::listen(&socket, Backlog::new(128)?)?;
    Ok(socket)
}

/// Connects to the socket at `path` (blocking descriptor).
///
/// # Errors
/// ENOENT, ECONNREFUSED: no socket listens there; as connect(2).
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new(SockFlag::empty())?;
    with_address(path, |address| socket::connect(socket.as_raw_fd(), address))?;
    Ok(socket)
}

/// The same, but a listener that takes no connections is waited for so long at most (EAGAIN). What is sent over the
/// connection waits as long.
///
/// # Errors
/// As [`connect`].
pub fn connect_within(path: &Path, time: Duration) -> io::Result<OwnedFd> {
    let socket = new(SockFlag::empty())?;
    let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    objects::set_socket_timeout_us(socket.as_fd(), libc::SO_SNDTIMEO, time_us)?;
    with_address(path, |address| socket::connect(socket.as_raw_fd(), address))?;
    Ok(socket)
}

/// Takes a waiting connection (non-blocking descriptor).
///
/// # Errors
/// EAGAIN: none is waiting; EMFILE.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Ok(socket::accept4(listener, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?)
}

/// Who is at the other end.
///
/// # Errors
/// As getsockopt(2).
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let ids = socket::getsockopt(&socket, sockopt::PeerCredentials)?;
    Ok(Peer { pid: ids.pid(), uid: ids.uid() })
}

/// The effective user of the caller.
pub fn effective_user() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// What a user is called; empty where he has no name.
pub fn user_name(user: u32) -> String {
    let found = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(user));
    found.ok().flatten().map(|user| user.name).unwrap_or_default()
}

/// The effective group of the caller.
pub fn effective_group() -> u32 {
    nix::unistd::getegid().as_raw()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_travel_over_a_path_that_is_too_long() {
        let folder = std::env::temp_dir().join(format!("local-{}", std::process::id())).join("x".repeat(150));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("agent.sock");
        let listener = listen(&path).unwrap();
        assert_eq!(accept(listener.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let client = connect(&path).unwrap();
        let server = accept(listener.as_fd()).unwrap();
        crate::fd::send(client.as_fd(), b"one", 0).unwrap();
        crate::fd::send(client.as_fd(), b"two", 0).unwrap();
        let mut buffer = [0_u8; 64];
        assert_eq!(crate::fd::receive(server.as_fd(), &mut buffer, 0).unwrap(), 3);
        let who = peer(server.as_fd()).unwrap();
        assert_eq!(who, Peer { pid: std::process::id().cast_signed(), uid: effective_user() });
        assert_eq!(listen(&path).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    }
}
