//! Messages on their way through unix sockets, sent again as those who had sent them: a receiver may be told who that
//! was (SCM_CREDENTIALS, unix(7)), and trust a message for it.
//!
//! Called by [`super::objects`] and [`super::datagrams`], in the first new process, before there are others. The kernel
//! takes user and group from who may say them, and the process only if it is there: a child with its id sends the
//! message, and ends; the message keeps its number. What says nothing of its sender is sent while neither end is told.
//! How it fails: as sendmsg(2); a process that cannot be told is a note, and a user that cannot be told is the overflow
//! user, never the one who restarts.

use holdfast_image::record::{ProcessRecord, Sender};
use holdfast_sys::{attributes, clone, fd, scm, spawn, unix_socket};
use std::io;
use std::os::fd::BorrowedFd;

/// The two ends of a message.
#[derive(Clone, Copy)]
pub struct Way<'a> {
    /// The socket that sends.
    pub from: BorrowedFd<'a>,
    /// The one that receives, if it is here.
    pub to: Option<BorrowedFd<'a>>,
}

/// Who sends again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Senders {
    /// The id of the first process, as the program knows it.
    first: i32,
    /// Root restarts processes that are others: they must not send as root.
    of_several_users: bool,
}

impl Senders {
    /// Of a job.
    pub fn of(record: &ProcessRecord) -> Senders {
        let is_root = unix_socket::effective_user() == 0;
        let of_several_users = is_root && record.processes().any(|process| process.rights.is_some());
        Senders { first: record.pid, of_several_users }
    }

    /// Sends one message. `sender`: who had sent it; `None`: that end is not told, or an image of old. `send` gets what
    /// is to be said of the sender. What is not as it was is added to the notes, `name` being the socket.
    ///
    /// # Errors
    /// As `send`.
    pub fn send(
        &self,
        way: Way<'_>,
        sender: Option<Sender>,
        send: impl Fn(Option<scm::Sender>) -> io::Result<()>,
        (name, notes): (&str, &mut Vec<String>),
    ) -> io::Result<()> {
        let Some(Sender { pid, user, group }) = sender.filter(|sender| !sender.is_none()) else {
            // Who asks later for the senders of what waits is told nothing of them.
            let is_told = sender.is_none() && !self.of_several_users;
            return untold(way, is_told, || send(None));
        };
        let say = || send(Some(scm::Sender { pid: attributes::own_pid(), user, group }));
        let (sent, is_it) = if pid == self.first || pid == attributes::own_pid() {
            (say(), true)
        } else {
            match within(pid, say) {
                Err(error) if cannot_be(&error) => (within(0, say).and_then(|sent| sent), false),
                sent => (sent.and_then(|sent| sent), true),
            }
        };
        match sent {
            Err(error) if cannot_be(&error) => {
                notes.push(format!("a message for {name} no longer tells that user {user} has sent it"));
                untold(way, false, || send(None))
            }
            sent => {
                if !is_it {
                    notes
                        .push(format!("a message for {name} no longer tells that process {pid} has sent it"));
                }
                sent
            }
        }
    }
}

/// What the kernel says of ids that are not to be had: they are taken, or not there, or not this user's to say.
fn cannot_be(error: &io::Error) -> bool {
    let error = error.raw_os_error();
    [libc::EPERM, libc::EINVAL, libc::EEXIST, libc::ESRCH].into_iter().any(|one| error == Some(one))
}

/// Calls `send` while neither end wants to be told of senders (SO_PASSCRED); with `is_told` the receiving one may.
fn untold(way: Way<'_>, is_told: bool, send: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let wants = |end: &BorrowedFd<'_>| fd::socket_option(*end, libc::SO_PASSCRED).is_ok_and(|now| now != 0);
    let to = way.to.filter(|_| !is_told);
    let ends: Vec<BorrowedFd<'_>> = [Some(way.from), to].into_iter().flatten().filter(wants).collect();
    for end in &ends {
        fd::set_socket_option(*end, libc::SO_PASSCRED, 0)?;
    }
    let sent = send();
    for end in &ends {
        fd::set_socket_option(*end, libc::SO_PASSCRED, 1)?;
    }
    sent
}

/// Calls `act` in a child with this id, or with any (0), and waits for its end. The outer error: there is no such
/// child.
fn within(pid: i32, act: impl FnOnce() -> io::Result<()>) -> io::Result<io::Result<()>> {
    let child = clone::fork_with(0, pid)?;
    if child == 0 {
        let code = act().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0);
        attributes::exit_now(code);
    }
    let code = spawn::wait(child, true)?.and_then(|status| status.code());
    Ok(match code {
        Some(0) => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.unwrap_or(libc::EIO))),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;
    use std::os::fd::AsFd;

    /// As root, who alone may send for others.
    #[test]
    fn a_message_is_told_as_it_was() {
        if unix_socket::effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        let (one, two) = fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        fd::set_socket_option(two.as_fd(), libc::SO_PASSCRED, 1).unwrap();
        let way = Way { from: one.as_fd(), to: Some(two.as_fd()) };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let nobody = Sender { pid: 0, user: 65534, group: 65534 };
        let other = Sender { pid: child.id().cast_signed(), user: 2102, group: 2103 };
        let senders = Senders { first: 1, of_several_users: true };
        for sender in [Some(other), Some(nobody), None, Some(Sender { pid: 1, ..other })] {
            let mut notes = Vec::new();
            let send = |sender| scm::send_as(one.as_fd(), b"x", sender, &[]).map(drop);
            senders.send(way, sender, send, ("it", &mut notes)).unwrap();
            assert_eq!(notes, [""; 0]);
            let mut buffer = [0; 4];
            let (_, _, seen) = scm::peek_with_sender(two.as_fd(), &mut buffer, 0).unwrap();
            fd::receive(two.as_fd(), &mut buffer, 0).unwrap();
            let seen = seen.unwrap();
            let expected = sender.unwrap_or(nobody);
            assert_eq!((seen.user, seen.group), (expected.user, expected.group));
            let is_own = seen.pid == attributes::own_pid();
            assert!(seen.pid == expected.pid || expected.pid == 1 && is_own, "{seen:?}");
        }
        assert_eq!(fd::socket_option(two.as_fd(), libc::SO_PASSCRED).unwrap(), 1);
        assert!(!Senders::of(&record(Vec::new())).of_several_users);
    }
}
