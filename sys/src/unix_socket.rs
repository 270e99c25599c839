//! Unix sockets that keep message boundaries (SOCK_SEQPACKET): the agent's control socket and its clients.
//!
//! A path that is too long for `sun_path` (108 bytes, unix(7)) is reached through `/proc/self/fd/N/NAME` of its folder.
//!
//! # Safety
//! All calls take descriptors that the caller borrows, and addresses and buffers that are locals of the right type.
#![allow(unsafe_code)]

use crate::check;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Who is at the other end of a connection (SO_PEERCRED: as it was at `connect` or `socketpair`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its process, in the caller's pid namespace; 0 if it has no id there.
    pub pid: i32,
    /// Its effective user, in the caller's user namespace.
    pub uid: u32,
}

/// Calls `act` with an address for `path`, however long that is.
fn with_address<T>(path: &Path, act: impl Fn(&libc::sockaddr_un, u32) -> io::Result<T>) -> io::Result<T> {
    // SAFETY: all-zero bytes are a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let folder: File;
    let mut short = PathBuf::from(path);
    if path.as_os_str().len() >= address.sun_path.len() {
        let name = path.file_name().unwrap_or(OsStr::new(""));
        let parent = path.parent().unwrap_or(Path::new("/"));
        folder = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
        short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    }
    let bytes = short.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (slot, byte) in address.sun_path.iter_mut().zip(bytes) {
        *slot = byte.cast_signed();
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    act(&address, u32::try_from(len).unwrap_or(0))
}

fn socket(flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let fd = check(i64::from(unsafe {
        libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags, 0)
    }))?;
    // SAFETY: the call returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// A non-blocking listening socket at `path`, which must not exist.
///
/// # Errors
/// EADDRINUSE if the path exists; as bind(2).
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(libc::SOCK_NONBLOCK)?;
    with_address(path, |address, len| {
        // SAFETY: `address` is a sockaddr_un of `len` valid bytes.
        check(i64::from(unsafe { libc::bind(socket.as_raw_fd(), (&raw const *address).cast(), len) }))
    })?;
    // SAFETY: numbers only.
    check(i64::from(unsafe { libc::listen(socket.as_raw_fd(), 128) }))?;
    Ok(socket)
}

/// Connects to the socket at `path` (blocking descriptor).
///
/// # Errors
/// ENOENT, ECONNREFUSED: nobody listens; as connect(2).
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(0)?;
    with_address(path, |address, len| {
        // SAFETY: `address` is a sockaddr_un of `len` valid bytes.
        check(i64::from(unsafe { libc::connect(socket.as_raw_fd(), (&raw const *address).cast(), len) }))
    })?;
    Ok(socket)
}

/// Takes a waiting connection (non-blocking descriptor).
///
/// # Errors
/// EAGAIN: none is waiting; EMFILE.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    let fd = check(i64::from(unsafe {
        libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
    }))?;
    // SAFETY: the call returned a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// Who is at the other end.
///
/// # Errors
/// As getsockopt(2).
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the call writes at most `len` bytes into `who`.
    check(i64::from(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    }))?;
    Ok(Peer { pid: who.pid, uid: who.uid })
}

/// The effective user of the caller.
pub fn effective_user() -> u32 {
    // SAFETY: no arguments; cannot fail.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

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
