//! Calls on descriptors that std does not offer.
//!
//! # Safety
//! All calls take descriptors that the caller owns or borrows, numbers, and slices or locals of the right size.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

fn owned(result: i64) -> io::Result<OwnedFd> {
    let fd = crate::check(result)?;
    // SAFETY: callers pass the result of a call that returns a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
}

/// `memfd_create(2)` with MFD_CLOEXEC, executable where the kernel asks for that to be said.
///
/// # Errors
/// EMFILE, ENOMEM.
pub fn memfd(name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    const MFD_EXEC: u32 = 0x10;
    // SAFETY: `name` is NUL-terminated and only read.
    let create = |flags: u32| i64::from(unsafe { libc::memfd_create(name.as_ptr(), flags) });
    // MFD_EXEC is Linux 6.3+; older kernels refuse the bit and need none.
    owned(create(libc::MFD_CLOEXEC | MFD_EXEC)).or_else(|_| owned(create(libc::MFD_CLOEXEC)))
}

/// `pipe2(2)` with O_CLOEXEC: read end, write end.
///
/// # Errors
/// EMFILE.
pub fn pipe(flags: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0_i32; 2];
    // SAFETY: the call writes two descriptors into `ends`.
    crate::check(i64::from(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags) }))?;
    Ok((owned(i64::from(ends[0]))?, owned(i64::from(ends[1]))?))
}

/// `socketpair(2)` of AF_UNIX with SOCK_CLOEXEC.
///
/// # Errors
/// EMFILE.
pub fn socketpair(socket_type: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0_i32; 2];
    // SAFETY: the call writes two descriptors into `ends`.
    let result =
        unsafe { libc::socketpair(libc::AF_UNIX, socket_type | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) };
    crate::check(i64::from(result))?;
    Ok((owned(i64::from(ends[0]))?, owned(i64::from(ends[1]))?))
}

/// `fcntl(2)` with a number as argument.
///
/// # Errors
/// As fcntl.
pub fn fcntl(fd: BorrowedFd<'_>, command: i32, argument: i64) -> io::Result<i32> {
    // SAFETY: commands of this project take numbers.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
    crate::check(i64::from(result)).map(|value| i32::try_from(value).unwrap_or(0))
}

/// Who gets the signals that a file causes, and which: kind and id as F_GETOWN_EX gives them, and F_GETSIG (fcntl(2)).
///
/// # Errors
/// EBADF: it was opened by O_PATH.
pub fn owner(fd: BorrowedFd<'_>) -> io::Result<(i32, i32, i32)> {
    /// include/uapi/asm-generic/fcntl.h.
    const F_GETSIG: i32 = 11;
    const F_GETOWN_EX: i32 = 16;
    let mut owner = [0_i32; 2];
    // SAFETY: the call writes a struct f_owner_ex, two ints, into `owner`.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), F_GETOWN_EX, owner.as_mut_ptr()) };
    crate::check(i64::from(result))?;
    Ok((owner[0], owner[1], fcntl(fd, F_GETSIG, 0)?))
}

/// `tee(2)`: copies up to `len` bytes from one pipe into another without consuming them.
///
/// # Errors
/// EAGAIN (SPLICE_F_NONBLOCK): nothing there.
pub fn tee(from: BorrowedFd<'_>, to: BorrowedFd<'_>, len: usize) -> io::Result<usize> {
    // SAFETY: numbers only.
    let result = unsafe { libc::tee(from.as_raw_fd(), to.as_raw_fd(), len, libc::SPLICE_F_NONBLOCK) };
    crate::check(result as i64).map(|n| usize::try_from(n).unwrap_or(0))
}

/// `ioctl` that returns one int (FIONREAD and the like).
///
/// # Errors
/// As ioctl.
pub fn ioctl_int(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<i32> {
    let mut value = 0_i32;
    // SAFETY: the requests of this project write one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) };
    crate::check(i64::from(result)).map(|_| value)
}

/// `recv(2)`.
///
/// # Errors
/// As recv.
pub fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<usize> {
    // SAFETY: `buffer` is writable for its length.
    let result = unsafe { libc::recv(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    crate::check(result as i64).map(|n| usize::try_from(n).unwrap_or(0))
}

/// Room for one control message with one descriptor, aligned as `cmsghdr` needs it (cmsg(3)).
#[repr(C, align(8))]
struct Ancillary {
    header: libc::cmsghdr,
    fd: i32,
    padding: i32,
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
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let header = libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 };
    let mut ancillary = Ancillary { header, fd: -1, padding: 0 };
    // SAFETY: msghdr is plain data; all zero is valid (no name, no pieces, no control message).
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut ancillary).cast();
    // Without the padding: CMSG_LEN of one descriptor, or the kernel would find room for two.
    message.msg_controllen = std::mem::offset_of!(Ancillary, padding);
    // SAFETY: the kernel writes into `buffer`, `ancillary` and `message`, which outlive the call, within their lengths.
    let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags | libc::MSG_CMSG_CLOEXEC) };
    let len = crate::check(result as i64).map(|n| usize::try_from(n).unwrap_or(0))?;
    let came = message.msg_controllen >= std::mem::offset_of!(Ancillary, padding)
        && ancillary.header.cmsg_level == libc::SOL_SOCKET
        && ancillary.header.cmsg_type == libc::SCM_RIGHTS
        && ancillary.fd >= 0;
    // SAFETY: the kernel has just opened it for this message, and nobody else knows its number.
    Ok((len, came.then(|| unsafe { OwnedFd::from_raw_fd(ancillary.fd) })))
}

/// Room for what comes along with a message: SCM_MAX_FD descriptors (include/net/scm.h), credentials, a pidfd.
#[repr(C, align(8))]
struct Room([u8; 2048]);

/// `recvmsg(2)` with MSG_PEEK: its length, and whether descriptors come with it. The caller's copies of them are closed.
///
/// # Errors
/// As recvmsg.
pub fn peek(fd: BorrowedFd<'_>, buffer: &mut [u8], flags: i32) -> io::Result<(usize, bool)> {
    const SCM_PIDFD: i32 = 4;
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut room = Room([0; 2048]);
    // SAFETY: msghdr is plain data; all zero is valid (no name, no pieces, no control message).
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut room).cast();
    message.msg_controllen = size_of::<Room>();
    let flags = flags | libc::MSG_PEEK | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the kernel writes into `buffer`, `room` and `message`, which outlive the call, within their lengths.
    let result = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    let len = crate::check(result as i64).map(|n| usize::try_from(n).unwrap_or(0))?;
    let used = room.0.get(..message.msg_controllen).unwrap_or(&room.0);
    let word = |at: usize| used.get(at..at + 4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let (mut at, mut rights) = (0, false);
    // struct cmsghdr: length with the header (8 bytes), level, type; then the data (cmsg(3)).
    while let (Some(size), Some(level), Some(kind)) = (word(at), word(at + 8), word(at + 12)) {
        let size = usize::try_from(size).unwrap_or(0);
        if size < 16 {
            break;
        }
        if level == libc::SOL_SOCKET && (kind == libc::SCM_RIGHTS || kind == SCM_PIDFD) {
            rights |= kind == libc::SCM_RIGHTS;
            for number in (at + 16..at + size).step_by(4).filter_map(word).filter(|number| *number >= 0) {
                // SAFETY: the kernel has just opened it for this message, and nobody else knows its number.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
        at += size.next_multiple_of(8);
    }
    Ok((len, rights))
}

/// POLLHUP, POLLERR and the like of a descriptor, now (poll(2)).
///
/// # Errors
/// As poll.
pub fn poll_state(fd: BorrowedFd<'_>) -> io::Result<i16> {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one complete entry; no waiting.
    crate::check(i64::from(unsafe { libc::poll(&raw mut entry, 1, 0) }))?;
    Ok(entry.revents)
}

/// `send(2)`.
///
/// # Errors
/// As send.
pub fn send(fd: BorrowedFd<'_>, data: &[u8], flags: i32) -> io::Result<usize> {
    // SAFETY: `data` is readable for its length.
    let result = unsafe { libc::send(fd.as_raw_fd(), data.as_ptr().cast(), data.len(), flags) };
    crate::check(result as i64).map(|n| usize::try_from(n).unwrap_or(0))
}

/// `getsockopt(2)` of an int option of SOL_SOCKET.
///
/// # Errors
/// As getsockopt.
pub fn socket_option(fd: BorrowedFd<'_>, option: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut len = 4_u32;
    // SAFETY: the call writes at most `len` bytes into `value`.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len)
    };
    crate::check(i64::from(result)).map(|_| value)
}

/// `setsockopt(2)` of an int option of SOL_SOCKET.
///
/// # Errors
/// As setsockopt.
pub fn set_socket_option(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the call reads 4 bytes of `value`.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const value).cast(), 4) };
    crate::check(i64::from(result)).map(|_| ())
}

/// Whether a file has an extended attribute of this name.
pub fn has_attribute(path: &std::path::Path, name: &std::ffi::CStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both strings are NUL-terminated; with length 0 nothing is written.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Takes over a descriptor that was inherited by number (said on the command line), and sets FD_CLOEXEC.
///
/// # Errors
/// EBADF: nothing is open there.
pub fn inherited(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    crate::check(i64::from(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }))?;
    // SAFETY: it is open, as the call before has shown; the caller is told the number by whoever left it open for it,
    // and nothing else in this process knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The type of the file system that holds `path` (`f_type` of statfs(2)).
///
/// # Errors
/// As statfs.
pub fn file_system_type(path: &std::path::Path) -> io::Result<u64> {
    let path = c_path(path)?;
    // SAFETY: all-zero bytes are a valid statfs.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated; `about` is written.
    crate::check(i64::from(unsafe { libc::statfs(path.as_ptr(), &raw mut about) }))?;
    Ok(about.f_type.cast_unsigned())
}

/// Whether the file system that holds `path` is mounted `noexec`: nothing mapped from it can ever be executed.
///
/// # Errors
/// As statvfs.
pub fn is_noexec(path: &std::path::Path) -> io::Result<bool> {
    let path = c_path(path)?;
    // SAFETY: all-zero bytes are a valid statvfs.
    let mut about: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is NUL-terminated; `about` is written.
    crate::check(i64::from(unsafe { libc::statvfs(path.as_ptr(), &raw mut about) }))?;
    Ok(about.f_flag & libc::ST_NOEXEC != 0)
}

fn c_path(path: &std::path::Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::CString::new(path.as_os_str().as_bytes())?)
}

/// Whether a descriptor is open and stays open across exec.
pub fn is_inherited_by_programs(fd: i32) -> bool {
    // SAFETY: numbers only.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags != -1 && flags & libc::FD_CLOEXEC == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;

    /// Sends `text` with one descriptor.
    fn send_with(socket: BorrowedFd<'_>, text: &[u8], passed: BorrowedFd<'_>) {
        let mut piece = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
        let mut ancillary = Ancillary {
            header: libc::cmsghdr {
                cmsg_len: std::mem::offset_of!(Ancillary, padding),
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            },
            fd: passed.as_raw_fd(),
            padding: 0,
        };
        // SAFETY: msghdr is plain data; all zero is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut ancillary).cast();
        message.msg_controllen = size_of::<Ancillary>();
        // SAFETY: sendmsg reads what the header names, all of which outlives the call.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, 0) };
        assert_eq!(sent, text.len() as isize);
    }

    #[test]
    fn a_descriptor_comes_with_the_message_it_was_sent_with() {
        let (ours, theirs) = socketpair(libc::SOCK_SEQPACKET).unwrap();
        let mut file = std::fs::File::from(memfd(c"passed").unwrap());
        file.write_all(b"content").unwrap();
        send(theirs.as_fd(), b"without", 0).unwrap();
        send_with(theirs.as_fd(), b"with", file.as_fd());
        let mut buffer = [0_u8; 64];
        let (len, none) = receive_with(ours.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!((&buffer[..len], none.is_none()), (&b"without"[..], true));
        let (len, passed) = receive_with(ours.as_fd(), &mut buffer, 0).unwrap();
        assert_eq!(&buffer[..len], b"with");
        let mut passed = std::fs::File::from(passed.unwrap());
        assert!(!is_inherited_by_programs(passed.as_raw_fd()));
        let mut text = String::new();
        passed.rewind().unwrap();
        passed.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
        drop(theirs);
        assert_eq!(receive_with(ours.as_fd(), &mut buffer, 0).unwrap().0, 0);
    }

    #[test]
    fn descriptors_that_come_are_seen_and_stay() {
        let (ours, theirs) = socketpair(libc::SOCK_STREAM).unwrap();
        let mut buffer = [0_u8; 64];
        set_socket_option(ours.as_fd(), libc::SO_PASSCRED, 1).unwrap();
        send(theirs.as_fd(), b"plain", 0).unwrap();
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
