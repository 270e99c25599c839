//! Room in the buffers of TCP sockets beyond what setsockopt(2) gives an ordinary user.
//!
//! SO_RCVBUF is bound by net.core.rmem_max, for an ordinary user often below what the kernel has chosen already, and is
//! no help to a sender that waits. SO_RCVLOWAT makes room for as much as a reader says that it waits for, up to the
//! third number of net.ipv4.tcp_rmem (net/ipv4/tcp.c, tcp_set_rcvlowat); a reader that waits for less again keeps the
//! room. What is sent into it by the other end waits at this one then, where it can be seen.
//!
//! Invariant: a program whose agent is killed at any instruction finds its own low mark (`spawn::undying`).

use crate::fd;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use crate::spawn::undying;

/// Which buffer sizes the program has set (asm-generic/socket.h, Linux 5.14): the kernel leaves these alone.
const SO_BUF_LOCK: i32 = 72;
const SO_MEMINFO: i32 = 55;
/// For the privileged, beyond the limits (asm-generic/socket.h).
const SO_SNDBUFFORCE: i32 = 32;
const SO_RCVBUFFORCE: i32 = 33;
const SENDING: i32 = 1;
const RECEIVING: i32 = 2;
/// What a size ends in that [`lend`] has set, as it is given: no program asks for such a one.
const MARK: usize = 0x5a5;
const MARK_STEP: usize = 0x1000;
/// Least of such sizes: room for two segments of the loopback device and more. Of a single one the receiver, as long as
/// there is something to be read, would tell after 40 ms only (net/ipv4/tcp_input.c, __tcp_ack_snd_check).
const LEAST: usize = 128 << 10;

/// Makes room for so many bytes that are not read, those that wait already among them. Best effort: the limits of this
/// host may be lower. `run` makes the calls that belong together: [`undying`], unless the socket is still being made.
///
/// # Errors
/// As setsockopt(2); of `run`.
pub fn make_room(
    receiver: &OwnedFd,
    bytes: usize,
    run: impl FnOnce(&mut dyn FnMut()) -> io::Result<()>,
) -> io::Result<()> {
    let option = |name| fd::socket_option(receiver.as_fd(), name);
    // Kept as the kernel gives it: twice what is asked for.
    let has = |now: i32| usize::try_from(now).is_ok_and(|now| now >= bytes);
    if has(option(libc::SO_RCVBUF)?) {
        return Ok(());
    }
    let size = i32::try_from(bytes).unwrap_or(i32::MAX);
    let own = option(libc::SO_RCVLOWAT)?;
    // A kernel without the option changes no size that the program has set.
    let lock = option(SO_BUF_LOCK).unwrap_or(0);
    let set = |name, value| fd::set_socket_option(receiver.as_fd(), name, value);
    run(&mut || {
        if lock & RECEIVING != 0 {
            let _ = set(SO_BUF_LOCK, lock & !RECEIVING);
        }
        let _ = set(libc::SO_RCVLOWAT, size);
        let _ = set(libc::SO_RCVLOWAT, own);
        if lock & RECEIVING != 0 {
            let _ = set(SO_BUF_LOCK, lock);
        }
    })?;
    if !has(option(libc::SO_RCVBUF)?) && set(SO_RCVBUFFORCE, size / 2 + 1).is_ok() {
        let _ = set(SO_BUF_LOCK, lock);
    }
    Ok(())
}

/// Bytes of memory that a sender's queue takes.
///
/// # Errors
/// As getsockopt(2).
pub fn queued(sender: &OwnedFd) -> io::Result<usize> {
    /// SK_MEMINFO_WMEM_QUEUED (linux/sock_diag.h), of 4 bytes each.
    const QUEUED: usize = 5;
    let mut told = [0_u8; 4 * 9];
    let len = fd::option_of(sender.as_fd(), libc::SOL_SOCKET, SO_MEMINFO, &mut told)?;
    let word = told[..len].as_chunks::<4>().0.get(QUEUED).copied();
    word.map(|word| u32::from_ne_bytes(word) as usize)
        .ok_or_else(|| io::Error::other("the kernel does not tell of queues"))
}

/// Takes from a sender the room that its queue had, once that has moved to a reader who is slow: both together hold as
/// much as before, and the next move is short. Not where the program has chosen the size. [`give_back`] ends it.
pub fn lend(sender: &OwnedFd, queued: usize) {
    let Some((size, lock)) = sending_size(sender) else { return };
    if lock & SENDING != 0 && !is_lent(size) {
        return;
    }
    let left = size.saturating_sub(queued) / 2;
    let half = left.next_multiple_of(MARK_STEP).max(LEAST) + MARK;
    if half * 2 >= size {
        return;
    }
    let Ok(value) = i32::try_from(half) else { return };
    let set = |name| fd::set_socket_option(sender.as_fd(), name, value).is_ok();
    // More than the bound would become less than is left.
    let bound = || fs::read_to_string("/proc/sys/net/core/wmem_max").ok()?.trim().parse::<usize>().ok();
    if !set(SO_SNDBUFFORCE) && bound().is_some_and(|bound| half <= bound) {
        set(libc::SO_SNDBUF);
    }
}

/// Leaves the size to the kernel again, which raises it with the next byte that is acknowledged.
pub fn give_back(sender: &OwnedFd) {
    if let Some((size, lock)) = sending_size(sender)
        && lock & SENDING != 0
        && is_lent(size)
    {
        let _ = fd::set_socket_option(sender.as_fd(), SO_BUF_LOCK, lock & !SENDING);
    }
}

/// Size of the buffer for sending, and which sizes are the program's. `None`: the kernel does not tell, and would never
/// change one that was set.
fn sending_size(sender: &OwnedFd) -> Option<(usize, i32)> {
    let sender: BorrowedFd<'_> = sender.as_fd();
    let lock = fd::socket_option(sender, SO_BUF_LOCK).ok()?;
    Some((usize::try_from(fd::socket_option(sender, libc::SO_SNDBUF).ok()?).ok()?, lock))
}

fn is_lent(size: usize) -> bool {
    size / 2 % MARK_STEP == MARK
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::socket;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (OwnedFd, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one.into(), listener.accept().unwrap().0.into())
    }

    #[test]
    fn a_reader_gets_room_and_keeps_its_low_mark() {
        let (_sender, receiver) = pair();
        fd::set_socket_option(receiver.as_fd(), libc::SO_RCVLOWAT, 7).unwrap();
        for locked in [false, true] {
            if locked {
                fd::set_socket_option(receiver.as_fd(), libc::SO_RCVBUF, 20000).unwrap();
            }
            let before = fd::socket_option(receiver.as_fd(), SO_BUF_LOCK).unwrap_or(0);
            make_room(&receiver, 1 << 20, undying).unwrap();
            assert_eq!(fd::socket_option(receiver.as_fd(), libc::SO_RCVLOWAT).unwrap(), 7);
            assert_eq!(fd::socket_option(receiver.as_fd(), SO_BUF_LOCK).unwrap_or(0), before);
            assert!(fd::socket_option(receiver.as_fd(), libc::SO_RCVBUF).unwrap() >= 1 << 20);
        }
    }

    #[test]
    fn a_size_is_lent_and_given_back_unless_the_program_has_set_it() {
        let (sender, _receiver) = pair();
        let size = || fd::socket_option(sender.as_fd(), libc::SO_SNDBUF).unwrap();
        let lock = || fd::socket_option(sender.as_fd(), SO_BUF_LOCK).unwrap();
        if fd::socket_option(sender.as_fd(), SO_BUF_LOCK).is_err() {
            return;
        }
        let before = size();
        lend(&sender, before.unsigned_abs() as usize);
        assert!(size() < before && lock() & SENDING != 0 && is_lent(size().unsigned_abs() as usize));
        give_back(&sender);
        assert_eq!(lock() & SENDING, 0);
        fd::set_socket_option(sender.as_fd(), libc::SO_SNDBUF, 100_000).unwrap();
        let (own, locked) = (size(), lock());
        lend(&sender, 200_000);
        give_back(&sender);
        assert_eq!((size(), lock()), (own, locked));
    }

    #[test]
    fn a_queue_is_told() {
        let (sender, receiver) = pair();
        assert_eq!(queued(&sender).unwrap(), 0);
        while fd::send(sender.as_fd(), &[1; 65536], libc::MSG_DONTWAIT).is_ok() {}
        assert!(queued(&sender).unwrap() > 0 && socket::tcp_info(sender.as_fd()).unwrap().not_sent > 0);
        drop(receiver);
    }
}
