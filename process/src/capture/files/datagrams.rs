//! Sockets of single messages: what waits in unix datagram sockets and who sent it; netlink sockets.
//!
//! Called by `sockets`, inside the stop or for a look at a running program. Messages are seen with a moving peek
//! offset, as in `in_flight`, and stay where they are. Descriptors that came with them are in `passed`.

use super::in_flight::{
    DESCRIPTORS, Seen, glance, had_empty, has_peek_offset, long_message, note_empty, unreadable,
};
use super::networks::Net;
use super::sockets::{directed, not_supported, record};
use super::{FileReader, Found, Look, Obstacle, pieces, socket_files};
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Datagram, Object, Sender, SocketOption, SocketState};
use holdfast_sys::{fd, poll, scm, socket};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Netlink families in which a socket is nothing but its address and options (include/uapi/linux/netlink.h): routes,
/// sockets of the host, decisions of SELinux, audit, and messages of devices. Which process is the audit daemon the
/// kernel knows by its port and id, not by the socket (kernel/audit.c, auditd_set): that one registers again.
const NETLINK_FAMILIES: [i32; 5] = [0, 4, 7, 9, 15];
const SOL_NETLINK: i32 = 270;
/// Of netlink (netlink(7)): packet information, errors of broadcasts, no ENOBUFS, messages of all namespaces,
/// memberships, short and long answers, strict checks.
const NETLINK_OPTIONS: [i32; 8] = [3, 4, 5, 8, 9, 10, 11, 12];
/// Longest message that is kept.
const MESSAGE_LIMIT: usize = 256 * 1024;
const PEEK: i32 = libc::MSG_PEEK | libc::MSG_DONTWAIT;

impl FileReader<'_> {
    /// What waits in a unix datagram socket; nothing while the program runs on: then only whether it could be read.
    ///
    /// # Errors
    /// Why it cannot be kept.
    pub(super) fn datagrams(
        &self,
        found: &Found,
        taken: &OwnedFd,
        waiting: bool,
    ) -> Result<Vec<Datagram>, Obstacle> {
        if self.look == Look::Running {
            if waiting && !is_named(taken) {
                return Err(NAMELESS.into());
            }
            return glance(taken, libc::SOCK_DGRAM).map(|()| Vec::new());
        }
        // An empty message has no length that could wait.
        let ready = poll::readable(&[taken.as_fd()], Some(Duration::ZERO)).is_ok_and(|ready| ready == [true]);
        if !waiting && !ready {
            return Ok(Vec::new());
        }
        if !is_named(taken) {
            return Err(NAMELESS.into());
        }
        let mut messages = match self.seen(taken) {
            Some(seen) => seen.iter().map(|seen| self.datagram(seen)).collect(),
            None if has_peek_offset(taken) => {
                pieces::look(taken)?.iter().map(|seen| self.datagram(seen)).collect()
            }
            None => self.look_at_all(taken)?,
        };
        let pid = self.holder_of(found).tid;
        for message in &mut messages {
            message.file = socket_files::of_sender(pid, &message.from.0);
        }
        Ok(messages)
    }

    fn look_at_all(&self, taken: &OwnedFd) -> Result<Vec<Datagram>, Obstacle> {
        if had_empty(taken) {
            return Err(Obstacle::Passing(EMPTY.into()));
        }
        fd::set_socket_option(taken.as_fd(), libc::SO_PEEK_OFF, 0).map_err(unreadable)?;
        let messages = peek_all(taken, |sender| self.known_sender(sender));
        fd::set_socket_option(taken.as_fd(), libc::SO_PEEK_OFF, -1).map_err(unreadable)?;
        messages
    }

    fn datagram(&self, seen: &Seen) -> Datagram {
        Datagram {
            from: Blob(seen.from.clone()),
            data: Blob(seen.data.clone()),
            sender: seen.sender.map(|sender| self.known_sender(sender)),
            file: None,
            passed: seen.passed.iter().map(|number| number.cast_unsigned()).collect(),
        }
    }

    /// Who has sent a message, as the processes know it.
    pub(super) fn known_sender(&self, seen: scm::Sender) -> Sender {
        let scm::Sender { pid, user, group } = seen;
        let nested = self.holders.iter().any(|holder| holder.pid != holder.inner_pid);
        let known = self.holders.iter().find(|holder| holder.pid == pid).map(|holder| holder.inner_pid);
        Sender { pid: known.unwrap_or(if nested { 0 } else { pid }), user, group }
    }

    /// What a netlink socket is.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub(super) fn netlink(
        &self,
        found: &Found,
        taken: &OwnedFd,
        net: &Net,
        kind: i32,
    ) -> Result<Object, Obstacle> {
        let family = fd::socket_option(taken.as_fd(), libc::SO_PROTOCOL).unwrap_or(-1);
        if !NETLINK_FAMILIES.contains(&family) || self.standard(found).is_some() {
            return self.inherited(found, not_supported(taken, found.inode, net));
        }
        if fd::receive(taken.as_fd(), &mut [0], PEEK).is_ok() {
            return Err(Obstacle::Passing(
                "a netlink socket with messages that were not read yet; try again".into(),
            ));
        }
        let peer = socket::peer_address(taken.as_fd()).map_err(|error| error.to_string())?;
        // Family, padding; then the port and the groups that it sends to: zeros if it was not connected.
        let state =
            if peer.iter().skip(4).any(|&byte| byte != 0) { directed(taken)? } else { SocketState::Idle };
        let mut object = record(taken, (libc::AF_NETLINK, kind), state)?;
        if let Object::Socket(socket) = &mut object {
            for name in NETLINK_OPTIONS {
                if let Ok(value) = socket::option(taken.as_fd(), SOL_NETLINK, name) {
                    socket.options.push(SocketOption { level: SOL_NETLINK, name, value: Blob(value) });
                }
            }
        }
        Ok(object)
    }
}

const EMPTY: &str = "a datagram socket with an empty message that was not read yet; try again";
const NAMELESS: &str =
    "messages that were not read yet wait in a datagram socket without a name: not supported";

fn is_named(taken: &OwnedFd) -> bool {
    socket::local_address(taken.as_fd()).is_ok_and(|name| name.len() > 2)
}

fn peek_all(taken: &OwnedFd, known: impl Fn(scm::Sender) -> Sender) -> Result<Vec<Datagram>, Obstacle> {
    let mut messages = Vec::new();
    let mut buffer = vec![0_u8; MESSAGE_LIMIT];
    loop {
        let seen = match socket::receive_from(taken.as_fd(), &mut buffer, PEEK | libc::MSG_TRUNC) {
            Ok(seen) => seen,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && messages.is_empty() => {
                // The kernel shows an empty message once only (net/core/datagram.c, peeked).
                return Err(Obstacle::Passing(EMPTY.into()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(messages),
            Err(error) => return Err(unreadable(error).into()),
        };
        if seen.cut || !seen.passed.is_empty() {
            return Err(Obstacle::Passing(DESCRIPTORS.into()));
        }
        let data = buffer.get(..seen.len).ok_or_else(|| unreadable(long_message()))?.to_vec();
        if data.is_empty() {
            return Err(note_empty(taken, Obstacle::Passing(EMPTY.into())));
        }
        let sender = seen.sender.map(&known);
        let (from, data) = (Blob(seen.address), Blob(data));
        messages.push(Datagram { from, data, sender, file: None, passed: Vec::new() });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_seen_with_their_senders_and_stay() {
        let new = || socket::new(libc::AF_UNIX, libc::SOCK_DGRAM, 0).unwrap();
        let (receiver, sender, stranger) = (new(), new(), new());
        for end in [&receiver, &sender] {
            socket::bind(end.as_fd(), &1_u16.to_ne_bytes()).unwrap();
        }
        let (to, from) = (socket::local_address(receiver.as_fd()), socket::local_address(sender.as_fd()));
        let (to, from) = (to.unwrap(), from.unwrap());
        scm::send_as(sender.as_fd(), b"one", None, &to).unwrap();
        scm::send_as(stranger.as_fd(), b"second", None, &to).unwrap();
        for _ in 0..2 {
            fd::set_socket_option(receiver.as_fd(), libc::SO_PEEK_OFF, 0).unwrap();
            let known = |scm::Sender { pid, user, group }| Sender { pid, user, group };
            let seen = peek_all(&receiver, known).unwrap();
            let message = |from: &[u8], data: &[u8]| Datagram {
                from: Blob(from.to_vec()),
                data: Blob(data.to_vec()),
                sender: None,
                file: None,
                passed: Vec::new(),
            };
            assert_eq!(seen, [message(&from, b"one"), message(b"", b"second")]);
        }
    }
}
