//! Forks and ends of all processes of the host, as the kernel tells them (NETLINK_CONNECTOR, CN_IDX_PROC;
//! include/uapi/linux/cn_proc.h).
//!
//! Root's alone, in the first pid and user namespace, where the kernel is built with CONFIG_PROC_EVENTS. Nothing is
//! left by one that dies but, before Linux 6.6, a number: the kernel goes on to look at each fork whether anybody
//! listens (drivers/connector/cn_proc.c). Called by `job::births` of the process crate. How it fails: an error; events
//! that did not fit are told as ENOBUFS, once.

use crate::{fd, socket};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const NETLINK_CONNECTOR: i32 = 11;
/// CN_IDX_PROC and CN_VAL_PROC (include/uapi/linux/connector.h).
const GROUP: u32 = 1;
/// PROC_CN_MCAST_LISTEN.
const LISTEN: u32 = 1;
const FORK: u32 = 1;
const EXIT: u32 = 0x8000_0000;
/// So many bytes of events may wait: some thousands.
const WAITING: i32 = 4 << 20;
/// As SO_RCVBUFFORCE (asm-generic/socket.h).
const SO_RCVBUFFORCE: i32 = 33;
/// Of struct nlmsghdr and struct cn_msg, behind which the event is, and of what is the same in all events.
const HEADERS: usize = 36;
const EVENT: usize = HEADERS + 16;

/// What happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcEvent {
    /// A process has made another one.
    Forked {
        /// The parent.
        parent: i32,
        /// The new one.
        child: i32,
    },
    /// The first thread of a process has ended.
    Ended {
        /// Its id.
        pid: i32,
    },
    /// Anything else.
    Other,
}

/// Events from now on.
#[derive(Debug)]
pub struct ProcEvents(OwnedFd);

impl ProcEvents {
    /// Begins to listen.
    ///
    /// # Errors
    /// Not root, another namespace, or a kernel that does not tell.
    pub fn listen() -> io::Result<ProcEvents> {
        let made = socket::new(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, NETLINK_CONNECTOR)?;
        let family = u32::from(u16::try_from(libc::AF_NETLINK).unwrap_or(0));
        // struct sockaddr_nl: family, port (the kernel chooses one), groups.
        let address = [family, 0, GROUP].map(u32::to_ne_bytes).concat();
        socket::bind(made.as_fd(), &address)?;
        let _ = fd::set_socket_option(made.as_fd(), SO_RCVBUFFORCE, WAITING);
        let events = ProcEvents(made);
        // Since Linux 6.6 with those that are wanted; earlier kernels take no more than the first word.
        for words in [&[LISTEN, FORK | EXIT][..], &[LISTEN]] {
            fd::send(events.0.as_fd(), &request(words), 0)?;
            // The answer is there at once.
            if events.next()?.is_some() {
                return Ok(events);
            }
        }
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The next one; `None`: there is none yet.
    ///
    /// # Errors
    /// ENOBUFS: some were lost.
    pub fn next(&self) -> io::Result<Option<ProcEvent>> {
        let mut buffer = [0; 256];
        match fd::receive(self.0.as_fd(), &mut buffer, libc::MSG_DONTWAIT) {
            Ok(len) => Ok(Some(parse(&buffer[..len.min(buffer.len())]))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Readable when there are some.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// struct nlmsghdr, struct cn_msg, and what it carries.
fn request(words: &[u32]) -> Vec<u8> {
    let len = words.len() * 4;
    let long = |value: usize| u32::try_from(value).unwrap_or(0);
    let done = u32::try_from(libc::NLMSG_DONE).unwrap_or(0);
    let header = [long(HEADERS + len), done, 0, 0];
    let message = [GROUP, GROUP, 0, 0, long(len)];
    header.iter().chain(&message).chain(words).flat_map(|word| word.to_ne_bytes()).collect()
}

fn parse(message: &[u8]) -> ProcEvent {
    let word = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    let id = |number: usize| Some(word(EVENT + 4 * number)?.cast_signed());
    let event = || {
        Some(match word(HEADERS)? {
            // Ids of parent and child, each as a thread and as a process. New threads are no new processes.
            FORK if id(2)? == id(3)? => ProcEvent::Forked { parent: id(1)?, child: id(3)? },
            EXIT if id(0)? == id(1)? => ProcEvent::Ended { pid: id(1)? },
            _ => ProcEvent::Other,
        })
    };
    event().unwrap_or(ProcEvent::Other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_told_of_from_its_birth_to_its_end() {
        let events = match ProcEvents::listen() {
            Ok(events) => events,
            Err(error) => return println!("not run: {error}"),
        };
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        child.wait().unwrap();
        let own = std::process::id().cast_signed();
        let child = child.id().cast_signed();
        let mut born = false;
        // The end is told after the parent has heard of it (kernel/exit.c, do_exit).
        loop {
            match events.next() {
                Ok(None) => drop(crate::poll::readable(&[events.as_fd()], None)),
                Ok(Some(ProcEvent::Ended { pid })) if pid == child => break,
                Ok(Some(event)) => born |= event == ProcEvent::Forked { parent: own, child },
                Err(error) => return println!("not run: {error}"),
            }
        }
        assert!(born);
    }

    #[test]
    fn messages_that_are_cut_short_say_nothing() {
        let mut message = vec![0; EVENT + 16];
        message[HEADERS..HEADERS + 4].copy_from_slice(&FORK.to_ne_bytes());
        for (number, id) in [7_u32, 7, 8, 8].into_iter().enumerate() {
            message[EVENT + 4 * number..][..4].copy_from_slice(&id.to_ne_bytes());
        }
        assert_eq!(parse(&message), ProcEvent::Forked { parent: 7, child: 8 });
        assert!((0..message.len()).all(|len| parse(&message[..len]) == ProcEvent::Other));
    }
}
