//! What only the kernel knows of unix, UDP and packet sockets, by NETLINK_SOCK_DIAG (sock_diag(7); allowed to every
//! user). It tells of the sockets of one network namespace: that of the socket by which it is asked.
//!
//! # Safety
//! A netlink socket, one send and one recv with local buffers; the answer is parsed from bytes with bounds checked.
#![allow(unsafe_code)]

use crate::namespaces::Network;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_VFS: u32 = 2;
const UDIAG_SHOW_PEER: u32 = 4;
const UDIAG_SHOW_ICONS: u32 = 8;
const UDIAG_SHOW_RQLEN: u32 = 16;
const UDIAG_SHOW_UID: u32 = 64;
/// What is asked of each.
const SHOWN: u32 = UDIAG_SHOW_VFS | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_ICONS: u16 = 3;
const UNIX_DIAG_RQLEN: u16 = 4;
const UNIX_DIAG_SHUTDOWN: u16 = 6;
const UNIX_DIAG_UID: u16 = 7;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const TCP_LISTEN: u8 = 10;
/// Bytes of struct unix_diag_msg.
const UNIX_DIAG_MSG: usize = 16;
/// Bytes of struct inet_diag_msg, whose last word is the inode, and of struct inet_diag_sockid (linux/inet_diag.h).
const INET_DIAG_MSG: usize = 72;
const INET_DIAG_SOCKID: usize = 48;
const INET_DIAG_SHUTDOWN: u16 = 8;

/// What is asked of packet sockets: PACKET_SHOW_INFO, _MCLIST, _RING_CFG, _FANOUT.
const PACKET_SHOWN: u32 = 1 | 2 | 4 | 8;
const PACKET_DIAG_INFO: u16 = 0;
const PACKET_DIAG_MCLIST: u16 = 1;
const PACKET_DIAG_RX_RING: u16 = 2;
const PACKET_DIAG_TX_RING: u16 = 3;
const PACKET_DIAG_FANOUT: u16 = 4;
const PACKET_DIAG_MCLIST_LEN: usize = 44;
/// Times that a group is joined again at most.
const PACKET_JOINED: usize = 64;

/// A unix socket (include/uapi/linux/unix_diag.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UnixSocket {
    /// Inode of the socket that it is connected to.
    pub peer: Option<u64>,
    /// It waits for connections.
    pub listens: bool,
    /// Bytes to be read; of one that listens: connections that wait to be accepted.
    pub waiting: u32,
    /// Of one that listens: how many may wait.
    pub backlog: u32,
    /// Nothing can be sent any more: this end was shut for writing, or the other for reading.
    pub shut: bool,
    /// Nothing will be received any more: this end was shut for reading.
    pub shut_reading: bool,
    /// Nor will anything come: so it is when the other end was closed.
    pub ended: bool,
    /// The lower 32 bits of the inode of the file that it was bound to, whatever that is called now.
    pub file: Option<u32>,
}

/// A packet socket (include/uapi/linux/packet_diag.h).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PacketSocket {
    /// PACKET_RX_RING or PACKET_TX_RING.
    pub has_ring: bool,
    /// PACKET_FANOUT.
    pub has_fanout: bool,
    /// PACKET_COPY_THRESH.
    pub copy_thresh: u32,
    /// What it has joined, as often as it has: struct packet_mreq_max of packet(7) each.
    pub joined: Vec<Vec<u8>>,
}

/// What is asked.
#[derive(Debug)]
pub struct Diag(OwnedFd);

impl Diag {
    /// Of this network namespace.
    ///
    /// # Errors
    /// The kernel has no netlink sockets.
    pub fn here() -> io::Result<Diag> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: numbers only; the result is a new descriptor.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, NETLINK_SOCK_DIAG) };
        crate::fd::owned(i64::from(fd)).map(Diag)
    }

    /// Of another one.
    ///
    /// # Errors
    /// As [`Network::socket`].
    pub fn of(network: &Network) -> io::Result<Diag> {
        network.socket(libc::AF_NETLINK, libc::SOCK_RAW, NETLINK_SOCK_DIAG).map(Diag)
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The unix socket with this inode.
    ///
    /// # Errors
    /// The kernel has no unix diag, or no such socket.
    pub fn unix_socket(&self, inode: u64) -> io::Result<UnixSocket> {
        Ok(understand(&self.ask(inode, SHOWN)?))
    }

    /// All unix sockets of the network namespace, by inode.
    ///
    /// # Errors
    /// The kernel has no unix diag, or cannot tell all.
    pub fn unix_sockets(&self) -> io::Result<HashMap<u64, UnixSocket>> {
        let mut all = HashMap::new();
        self.request(0, SHOWN, NLM_F_REQUEST | NLM_F_DUMP)?;
        read_all(&self.0, |answer| {
            all.insert(u64::from(word(answer, 16 + 4).unwrap_or(0)), understand(answer));
        })?;
        Ok(all)
    }

    /// Who waits to be accepted by a listener: the inodes of the other ends, 0 for one that was closed
    /// (net/unix/diag.c, sk_diag_dump_icons).
    ///
    /// # Errors
    /// As [`Diag::unix_socket`]; EMSGSIZE: there are too many.
    pub fn waiting_connections(&self, inode: u64) -> io::Result<Vec<u64>> {
        let answer = self.ask(inode, UDIAG_SHOW_ICONS)?;
        let icons = attributes(&answer, UNIX_DIAG_MSG).find(|(kind, _)| *kind == UNIX_DIAG_ICONS);
        let words = icons.map_or(&[][..], |(_, value)| value).chunks_exact(4);
        Ok(words.filter_map(|bytes| word(bytes, 0).map(u64::from)).collect())
    }

    /// The packet socket with this inode; `None`: there is none.
    ///
    /// # Errors
    /// The kernel has no diag of packet sockets, or cannot tell all.
    pub fn packet_socket(&self, inode: u64) -> io::Result<Option<PacketSocket>> {
        // struct packet_diag_req: family, protocol, padding, inode, what is told, cookie (linux/packet_diag.h).
        let mut body = vec![u8::try_from(libc::AF_PACKET).unwrap_or(0), 0, 0, 0];
        body.extend_from_slice(&u32::try_from(inode).unwrap_or(0).to_ne_bytes());
        body.extend_from_slice(&PACKET_SHOWN.to_ne_bytes());
        body.extend_from_slice(&[0; 8]);
        self.ask_for(&body, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut found = None;
        read_all(&self.0, |answer| {
            if word(answer, 16 + 4).map(u64::from) == Some(inode) {
                found = Some(packet_socket(answer));
            }
        })?;
        Ok(found)
    }

    /// What was shut down of each UDP socket of the network namespace of which something was, by inode: 1 reading, 2
    /// writing.
    ///
    /// # Errors
    /// The kernel has no diag of UDP, or cannot tell all.
    pub fn udp_shut(&self) -> io::Result<HashMap<u64, u8>> {
        let mut all = HashMap::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            // struct inet_diag_req_v2: family, protocol, extensions, padding, states, struct inet_diag_sockid.
            let mut body =
                vec![u8::try_from(family).unwrap_or(0), u8::try_from(libc::IPPROTO_UDP).unwrap_or(0), 0, 0];
            body.extend_from_slice(&u32::MAX.to_ne_bytes());
            body.extend_from_slice(&[0; INET_DIAG_SOCKID]);
            self.ask_for(&body, NLM_F_REQUEST | NLM_F_DUMP)?;
            read_all(&self.0, |answer| {
                let shut = attributes(answer, INET_DIAG_MSG).find(|(kind, _)| *kind == INET_DIAG_SHUTDOWN);
                let bits = shut.and_then(|(_, value)| value.first().copied()).unwrap_or(0);
                if bits != 0 {
                    all.insert(u64::from(word(answer, 16 + INET_DIAG_MSG - 4).unwrap_or(0)), bits);
                }
            })?;
        }
        Ok(all)
    }

    /// What the kernel says of a socket: struct nlmsghdr, struct unix_diag_msg (family, type, state, inode …),
    /// attributes.
    fn ask(&self, inode: u64, what: u32) -> io::Result<Vec<u8>> {
        self.request(inode, what, NLM_F_REQUEST)?;
        let answer = receive(&self.0, 0)?;
        if half(&answer, 4) == Some(NLMSG_ERROR) { Err(error_of(&answer)) } else { Ok(answer) }
    }

    /// Asks for unix sockets.
    fn request(&self, inode: u64, what: u32, flags: u16) -> io::Result<()> {
        let mut body = vec![1, 0, 0, 0]; // struct unix_diag_req: AF_UNIX
        body.extend_from_slice(&u32::MAX.to_ne_bytes()); // all states
        body.extend_from_slice(&u32::try_from(inode).unwrap_or(0).to_ne_bytes());
        body.extend_from_slice(&what.to_ne_bytes());
        body.extend_from_slice(&[0xff; 8]); // no cookie
        self.ask_for(&body, flags)
    }

    fn ask_for(&self, body: &[u8], flags: u16) -> io::Result<()> {
        // Of an answer that could not be read to its end the rest is no answer to this.
        while receive(&self.0, libc::MSG_DONTWAIT).is_ok() {}
        let len = u32::try_from(16 + body.len()).unwrap_or(0);
        let mut request = len.to_ne_bytes().to_vec(); // struct nlmsghdr
        request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        request.extend_from_slice(&flags.to_ne_bytes());
        request.extend_from_slice(&[0; 8]);
        request.extend_from_slice(body);
        crate::fd::send(self.0.as_fd(), &request, 0).map(drop)
    }
}

/// The unix socket of this network namespace with this inode.
///
/// # Errors
/// As [`Diag::unix_socket`].
pub fn unix_socket(inode: u64) -> io::Result<UnixSocket> {
    Diag::here()?.unix_socket(inode)
}

/// All unix sockets of this network namespace, by inode.
///
/// # Errors
/// As [`Diag::unix_sockets`].
pub fn unix_sockets() -> io::Result<HashMap<u64, UnixSocket>> {
    Diag::here()?.unix_sockets()
}

/// A name without a file (unix(7)) that a socket has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AbstractName {
    /// Without the zero that it begins with.
    pub name: Vec<u8>,
    /// Who has made the socket, in the caller's user namespace.
    pub user: u32,
}

/// All names without a file in this network namespace. Everybody may take one: whose it is tells who has made the
/// socket (the owner of its inode, which only root can give away).
///
/// # Errors
/// The kernel has no unix diag, or cannot tell all; Unsupported: it does not tell whose they are (before Linux 5.3).
pub fn abstract_names() -> io::Result<Vec<AbstractName>> {
    let (mut all, mut lacks) = (Vec::new(), false);
    let shown = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
    let diag = Diag::here()?;
    diag.request(0, shown, NLM_F_REQUEST | NLM_F_DUMP)?;
    read_all(&diag.0, |answer| {
        let value = |wanted| attributes(answer, UNIX_DIAG_MSG).find(|(kind, _)| *kind == wanted);
        let name = value(UNIX_DIAG_NAME).and_then(|(_, name)| name.strip_prefix(&[0]));
        let user = value(UNIX_DIAG_UID).and_then(|(_, user)| word(user, 0));
        match (name, user) {
            (Some(name), Some(user)) => all.push(AbstractName { name: name.to_vec(), user }),
            (Some(_), None) => lacks = true,
            (None, _) => {}
        }
    })?;
    if lacks { Err(io::ErrorKind::Unsupported.into()) } else { Ok(all) }
}

/// Reads all messages of an answer.
fn read_all(socket: &OwnedFd, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    loop {
        let answers = receive(socket, 0)?;
        let mut rest = answers.as_slice();
        // Messages begin at multiples of four bytes (netlink(7)).
        while let Some(len) =
            word(rest, 0).map(|len| len as usize).filter(|len| (16..=rest.len()).contains(len))
        {
            let answer = &rest[..len];
            match half(answer, 4) {
                Some(NLMSG_DONE) => return Ok(()),
                Some(NLMSG_ERROR) => return Err(error_of(answer)),
                _ => each(answer),
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        if answers.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// A message about a packet socket.
fn packet_socket(answer: &[u8]) -> PacketSocket {
    let mut found = PacketSocket::default();
    for (kind, value) in attributes(answer, UNIX_DIAG_MSG) {
        match kind {
            // struct packet_diag_info: device, version, reserve, copy_thresh.
            PACKET_DIAG_INFO => found.copy_thresh = word(value, 12).unwrap_or(0),
            // struct packet_diag_mclist: device, count, type, length, address.
            PACKET_DIAG_MCLIST => {
                for group in value.chunks_exact(PACKET_DIAG_MCLIST_LEN) {
                    let one = [&group[..4], &group[8..]].concat();
                    let count = word(group, 4).unwrap_or(0) as usize;
                    found.joined.extend(std::iter::repeat_n(one, count.min(PACKET_JOINED)));
                }
            }
            PACKET_DIAG_RX_RING | PACKET_DIAG_TX_RING => found.has_ring = true,
            PACKET_DIAG_FANOUT => found.has_fanout = true,
            _ => {}
        }
    }
    found
}

/// A message about one socket.
fn understand(answer: &[u8]) -> UnixSocket {
    let mut found = UnixSocket { listens: answer.get(16 + 2) == Some(&TCP_LISTEN), ..UnixSocket::default() };
    for (kind, value) in attributes(answer, UNIX_DIAG_MSG) {
        match kind {
            // struct unix_diag_vfs: inode, device.
            UNIX_DIAG_VFS => found.file = word(value, 0),
            UNIX_DIAG_PEER => found.peer = word(value, 0).map(u64::from),
            UNIX_DIAG_RQLEN => {
                (found.waiting, found.backlog) = (word(value, 0).unwrap_or(0), word(value, 4).unwrap_or(0));
            }
            // RCV_SHUTDOWN 1, SEND_SHUTDOWN 2 (include/net/sock.h).
            UNIX_DIAG_SHUTDOWN => {
                let bits = value.first().copied().unwrap_or(0);
                (found.shut, found.shut_reading, found.ended) = (bits & 2 != 0, bits & 1 != 0, bits & 3 == 3);
            }
            _ => {}
        }
    }
    found
}

/// What comes next; at most as much as the kernel sends at once (net/netlink/af_netlink.c, netlink_dump).
fn receive(socket: &OwnedFd, flags: i32) -> io::Result<Vec<u8>> {
    let mut answer = vec![0_u8; 32 << 10];
    let len = crate::fd::receive(socket.as_fd(), &mut answer, flags)?;
    answer.truncate(len);
    Ok(answer)
}

/// The reason in a message of an error.
fn error_of(answer: &[u8]) -> io::Error {
    io::Error::from_raw_os_error(word(answer, 16).unwrap_or(0).cast_signed().wrapping_neg())
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_ne_bytes([b[0], b[1]]))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

/// Kinds and values, behind struct nlmsghdr and a structure of so many bytes.
fn attributes(answer: &[u8], before: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = 16 + before;
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(half(answer, at)?), half(answer, at + 2)?);
        let value = answer.get(at + 4..at.checked_add(len)?)?;
        at += len.next_multiple_of(4);
        Some((kind, value))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    fn inode(fd: &OwnedFd) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap().ino()
    }

    #[test]
    fn the_two_ends_of_a_pair_find_each_other() {
        let (a, b) = crate::fd::socketpair(libc::SOCK_STREAM).unwrap();
        let found = unix_socket(inode(&a)).unwrap();
        assert_eq!((found.peer, found.listens, found.shut), (Some(inode(&b)), false, false));
        crate::socket::shut_writing(a.as_fd()).unwrap();
        assert!(unix_socket(inode(&a)).unwrap().shut && !unix_socket(inode(&b)).unwrap().shut);
        drop(b);
        let found = unix_socket(inode(&a)).unwrap();
        assert_eq!((found.peer, found.ended), (Some(0), true), "it was closed");
    }

    #[test]
    fn all_at_once_are_what_they_are_one_by_one() {
        let pairs: Vec<_> = (0..300).map(|_| crate::fd::socketpair(libc::SOCK_STREAM).unwrap()).collect();
        crate::socket::shut_writing(pairs[7].0.as_fd()).unwrap();
        let all = unix_sockets().unwrap();
        for end in pairs.iter().flat_map(|(a, b)| [a, b]) {
            assert_eq!(all.get(&inode(end)), Some(&unix_socket(inode(end)).unwrap()));
        }
    }

    #[test]
    fn names_without_a_file_are_told_with_their_user() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("holdfast-test/{}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let socket = std::os::unix::net::UnixDatagram::bind_addr(&address).unwrap();
        let own = AbstractName { name: name.into_bytes(), user: crate::unix_socket::effective_user() };
        assert!(abstract_names().unwrap().contains(&own));
        drop(socket);
    }

    #[test]
    fn what_was_shut_down_of_datagram_sockets_is_told() {
        let (a, b) = crate::fd::socketpair(libc::SOCK_DGRAM).unwrap();
        crate::socket::shut(a.as_fd(), 1).unwrap();
        let (one, other) = (unix_socket(inode(&a)).unwrap(), unix_socket(inode(&b)).unwrap());
        assert_eq!((one.shut, one.shut_reading, other.shut, other.shut_reading), (false, true, false, false));
        let udp = |bits: u8| {
            let made = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            made.connect(made.local_addr().unwrap()).unwrap();
            crate::socket::shut(made.as_fd(), bits).unwrap();
            OwnedFd::from(made)
        };
        let sockets = [0, 1, 2, 3].map(udp);
        // A kernel may be built without.
        let Ok(all) = Diag::here().and_then(|diag| diag.udp_shut()) else { return };
        let found = sockets.each_ref().map(|socket| all.get(&inode(socket)).copied());
        assert_eq!(found, [None, Some(1), Some(2), Some(3)]);
    }

    /// As root, who alone may make one.
    #[test]
    fn what_a_packet_socket_has_joined_is_told() {
        const SOL_PACKET: i32 = 263;
        let Ok(made) = crate::socket::new(libc::AF_PACKET, libc::SOCK_RAW, 0) else {
            return println!("not run: this test needs root");
        };
        // struct packet_mreq: the loopback device, PACKET_MR_PROMISC, no address.
        let group = [&1_i32.to_ne_bytes()[..], &1_u16.to_ne_bytes(), &[0; 10]].concat();
        for _ in 0..2 {
            crate::socket::set_option(made.as_fd(), SOL_PACKET, 1, &group).unwrap();
        }
        // A kernel may be built without.
        let Ok(found) = Diag::here().and_then(|diag| diag.packet_socket(inode(&made))) else { return };
        let found = found.unwrap();
        assert!(!found.has_ring && !found.has_fanout);
        assert_eq!(found.joined.len(), 2);
        assert_eq!((&found.joined[1][..6], found.joined[1].len()), (&group[..6], 40));
    }

    #[test]
    fn a_listener_tells_who_waits() {
        let listener = crate::socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).unwrap();
        crate::socket::bind(listener.as_fd(), &1_u16.to_ne_bytes()).unwrap();
        crate::socket::listen(listener.as_fd(), 7).unwrap();
        let client = crate::socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).unwrap();
        let address = crate::socket::local_address(listener.as_fd()).unwrap();
        crate::socket::connect(client.as_fd(), &address).unwrap();
        let found = unix_socket(inode(&listener)).unwrap();
        assert_eq!((found.listens, found.waiting, found.backlog), (true, 1, 7));
        let found = unix_socket(inode(&client)).unwrap();
        assert_eq!((found.peer, found.ended), (Some(0), false), "not accepted yet");
        let diag = Diag::here().unwrap();
        assert_eq!(diag.waiting_connections(inode(&listener)).unwrap(), [inode(&client)]);
        drop(client);
        // Another test's child, made meanwhile, has the socket until its exec.
        while diag.waiting_connections(inode(&listener)).unwrap() != [0] {
            std::thread::yield_now();
        }
    }
}
