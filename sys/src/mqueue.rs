//! POSIX message queues (mq_overview(7)): made, asked what they are, and what waits in them.
//!
//! By hand: `nix` has them, without a way to a queue but by its name, and without calls that outlive their caller.
//!
//! What waits can be seen by taking it out alone, so it is sent again in the same order, by a process that finishes
//! that though the caller be killed (`spawn::undying`). A queue that is full is left alone: one who waits for room
//! would have it at once.
//!
//! # Safety
//! Calls take descriptors that the caller borrows, numbers, and local buffers with their lengths.
#![allow(unsafe_code)]

use crate::{check, spawn};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// What is fixed of a queue, and how many messages wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// Most messages.
    pub room: usize,
    /// Most bytes of one.
    pub size: usize,
    /// Those that wait.
    pub count: usize,
}

/// A message: its priority and its bytes.
pub type Message = (u32, Vec<u8>);

/// struct mq_attr: flags, most messages, most bytes, messages; four more.
type Words = [libc::c_long; 8];

/// What a queue is.
///
/// # Errors
/// EBADF: it is no queue.
pub fn attributes(queue: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut words: Words = [0; 8];
    // SAFETY: the call writes a struct mq_attr.
    check(unsafe {
        libc::syscall(
            libc::SYS_mq_getsetattr,
            queue.as_raw_fd(),
            std::ptr::null::<Words>(),
            words.as_mut_ptr(),
        )
    })?;
    let number = |at: usize| usize::try_from(words[at]).unwrap_or(0);
    Ok(Attributes { room: number(1), size: number(2), count: number(3) })
}

/// Opens a queue. `name`: without a slash. `flags`: O_RDWR and the like.
///
/// # Errors
/// ENOENT, EACCES.
pub fn open(name: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: a string that ends with a zero; numbers.
    crate::fd::owned(unsafe {
        libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags | libc::O_CLOEXEC, 0, std::ptr::null::<Words>())
    })
}

/// Makes a queue, for reading and writing by its owner.
///
/// # Errors
/// EEXIST; EMFILE, ENOMEM: more than RLIMIT_MSGQUEUE; EINVAL: more than /proc/sys/fs/mqueue allows.
pub fn create(name: &CStr, Attributes { room, size, .. }: Attributes) -> io::Result<OwnedFd> {
    let number = |value: usize| libc::c_long::try_from(value).unwrap_or(libc::c_long::MAX);
    let words: Words = [0, number(room), number(size), 0, 0, 0, 0, 0];
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
    // SAFETY: a string that ends with a zero; a struct mq_attr is read.
    crate::fd::owned(unsafe { libc::syscall(libc::SYS_mq_open, name.as_ptr(), flags, 0o600, words.as_ptr()) })
}

/// Takes a name away.
///
/// # Errors
/// ENOENT, EACCES.
pub fn remove(name: &CStr) -> io::Result<()> {
    // SAFETY: a string that ends with a zero.
    check(unsafe { libc::syscall(libc::SYS_mq_unlink, name.as_ptr()) }).map(|_| ())
}

/// The messages that wait, those that come first first; afterwards they wait again. `queue`: for reading and writing,
/// and not waiting. `None`: it is full.
///
/// # Errors
/// As mq_receive(3); it was taken and could not be sent again.
pub fn look(queue: BorrowedFd<'_>) -> io::Result<Option<Vec<Message>>> {
    let Attributes { room, size, count } = attributes(queue)?;
    if count == 0 {
        return Ok(Some(Vec::new()));
    }
    if count >= room {
        return Ok(None);
    }
    // Another program may send one more just now.
    let mut bytes = vec![0_u8; size.saturating_mul(room)];
    let mut taken = vec![(0_u32, 0_usize); room];
    let (mut number, mut sent) = (0, true);
    spawn::undying(&mut || {
        for (place, (priority, len)) in bytes.chunks_mut(size).zip(&mut taken) {
            let Some(got) = receive(queue, place, priority) else { break };
            *len = got;
            number += 1;
        }
        for (place, (priority, len)) in bytes.chunks(size).zip(&taken).take(number) {
            sent &= send(queue, place.get(..*len).unwrap_or_default(), *priority);
        }
    })?;
    if !sent {
        return Err(io::Error::other("a message of a queue could not be put back"));
    }
    let told = bytes.chunks(size).zip(&taken).take(number);
    Ok(Some(told.map(|(place, (priority, len))| (*priority, place[..*len].to_vec())).collect()))
}

/// Has these messages wait, and no others.
///
/// # Errors
/// They do not fit.
pub fn fill(queue: BorrowedFd<'_>, messages: &[Message]) -> io::Result<()> {
    let Attributes { size, .. } = attributes(queue)?;
    let mut place = vec![0_u8; size];
    while receive(queue, &mut place, &mut 0).is_some() {}
    for (priority, data) in messages {
        if !send(queue, data, *priority) {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn receive(queue: BorrowedFd<'_>, place: &mut [u8], priority: &mut u32) -> Option<usize> {
    // SAFETY: the buffer has this length; no time.
    let got = unsafe {
        libc::syscall(
            libc::SYS_mq_timedreceive,
            queue.as_raw_fd(),
            place.as_mut_ptr(),
            place.len(),
            std::ptr::from_mut(priority),
            std::ptr::null::<libc::timespec>(),
        )
    };
    usize::try_from(got).ok()
}

fn send(queue: BorrowedFd<'_>, data: &[u8], priority: u32) -> bool {
    // SAFETY: the buffer has this length; no time.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_mq_timedsend,
            queue.as_raw_fd(),
            data.as_ptr(),
            data.len(),
            priority,
            std::ptr::null::<libc::timespec>(),
        )
    };
    sent == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::fd::AsFd;

    #[test]
    fn messages_are_seen_in_their_order_and_stay() {
        let name = CString::new(format!("holdfast-test-{}", std::process::id())).unwrap();
        let made = create(&name, Attributes { room: 5, size: 20, count: 0 }).unwrap();
        assert_eq!(create(&name, Attributes::default()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let queue = open(&name, libc::O_RDWR | libc::O_NONBLOCK).unwrap();
        remove(&name).unwrap();
        for (priority, data) in [(1, "low"), (7, "high"), (1, "low again"), (7, "")] {
            assert!(send(queue.as_fd(), data.as_bytes(), priority));
        }
        let all =
            [(7, "high"), (7, ""), (1, "low"), (1, "low again")].map(|(p, d)| (p, d.as_bytes().to_vec()));
        for _ in 0..2 {
            assert_eq!(look(queue.as_fd()).unwrap().unwrap(), all);
        }
        assert!(send(made.as_fd(), b"last", 0));
        assert_eq!(look(queue.as_fd()).unwrap(), None, "it is full");
        fill(queue.as_fd(), &all).unwrap();
        assert_eq!(look(queue.as_fd()).unwrap().unwrap(), all);
        assert_eq!(attributes(queue.as_fd()).unwrap(), Attributes { room: 5, size: 20, count: 4 });
    }
}
