//! Sockets: who is connected with whom, what waits to be read, which options they have.
//!
//! Called by [`super::FileReader`], inside the stop or for a look at a running program. Nothing is consumed: data is
//! seen with MSG_PEEK. A connection is whole only if everything that one end has sent waits at the other: what is
//! still on its way cannot be seen.

use super::in_flight::{Seen, glance, has_peek_offset, peek};
use super::networks::{self, Net};
use super::socket_options::options;
use super::urgent::{self, Waiting};
use super::{FileReader, Found, Look, Obstacle, packets, passed, pieces, shut, socket_files};
use crate::capture::name_caches;
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::record::{Object, Ownership, SocketOption, SocketRecord, SocketState, internet_address};
use holdfast_sys::sock_diag::UnixSocket;
use holdfast_sys::{fd, objects, procfs, socket, unix_socket};
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Bytes on their way to the other end (tcp(7), unix(7)).
const SIOCOUTQ: libc::c_ulong = 0x5411;
/// So many sockets are asked for one by one.
const FEW_SOCKETS: usize = 16;
pub(super) const NOT_ACCEPTED: &str =
    "a connection to the program itself that was not accepted yet, with data in it; try again";
const AF_INET: i32 = libc::AF_INET;
const AF_INET6: i32 = libc::AF_INET6;

impl FileReader<'_> {
    /// The network namespace that a socket is of.
    pub(super) fn net(&self, taken: &OwnedFd) -> Result<&Net, String> {
        networks::of(self.nets.get_or_init(|| networks::all(&self.holders, self.outside.namespaces)), taken)
    }

    /// What a socket is.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub(super) fn socket(&self, found: &Found) -> Result<Object, Obstacle> {
        let taken = self.take(found)?;
        let net = match self.net(&taken) {
            Ok(net) => net,
            Err(why) => return self.inherited(found, why),
        };
        let option = |option| fd::socket_option(taken.as_fd(), option);
        let socket_type = option(libc::SO_TYPE).map_err(|error| error.to_string())?;
        let known = [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET].contains(&socket_type);
        let object = match option(libc::SO_DOMAIN) {
            Ok(libc::AF_UNIX) if known => self.unix(found, &taken, net, socket_type),
            Ok(domain @ (AF_INET | AF_INET6)) if known || socket_type == libc::SOCK_RAW => {
                self.internet(found, &taken, net, (domain, socket_type))
            }
            Ok(libc::AF_NETLINK) => self.netlink(found, &taken, net, socket_type),
            Ok(libc::AF_PACKET) if self.standard(found).is_none() => {
                let mut object = record(&taken, (libc::AF_PACKET, socket_type), SocketState::Idle)?;
                packets::complete(&mut object, &taken, found.inode, net)?;
                Ok(object)
            }
            _ => self.inherited(found, not_supported(&taken, found.inode, net)),
        };
        object.map(|object| networks::placed(object, net))
    }

    fn unix(&self, found: &Found, taken: &OwnedFd, net: &Net, socket_type: i32) -> Result<Object, Obstacle> {
        let refused = || self.inherited(found, not_supported(taken, found.inode, net));
        let Some(kernel) = self.kernels(net, found.inode) else { return refused() };
        let is_datagram = socket_type == libc::SOCK_DGRAM;
        let peer = kernel.peer.and_then(|peer| self.with_inode(peer).find(|other| other.is_socket()));
        let state = match (kernel.peer, peer) {
            _ if kernel.listens => {
                self.all_known_unix(found.inode, net, kernel.waiting)?;
                SocketState::Listening { backlog: kernel.backlog }
            }
            (None, _) => SocketState::Idle,
            // The library notices that the other end is closed.
            (Some(_), None) if peer_of(taken).is_ok_and(|peer| name_caches::is_server(&peer.0)) => {
                return self.pair(taken, found.inode, socket_type, &kernel);
            }
            // As a client of objects sees that its server has gone: it asks another one, and for all again.
            (Some(_), None) if leads_to_objects(taken) => {
                return self.pair_with(taken, found.inode, socket_type, &kernel, Waiting::default());
            }
            // As `holdfast rsh` sees that the agent has gone: it asks the next one.
            (Some(_), None) if leads_to_agent(taken) => {
                return self.pair_with(taken, found.inode, socket_type, &kernel, Waiting::default());
            }
            // Closed by its process: what it has sent can still be read.
            (Some(0), _) if kernel.ended && !is_datagram => {
                return self.pair(taken, found.inode, socket_type, &kernel);
            }
            (Some(0), _) if !is_datagram => {
                let peer = peer_of(taken)?;
                if !self.listens_at(&peer, libc::AF_UNIX, net) {
                    return self.outside_of(found, taken, socket_type, &kernel);
                }
                if fd::ioctl_int(taken.as_fd(), SIOCOUTQ).unwrap_or(1) > 0
                    || kernel.shut
                    || kernel.shut_reading
                {
                    return Err(Obstacle::Passing(NOT_ACCEPTED.into()));
                }
                SocketState::Pending { peer }
            }
            (Some(number), Some(peer)) => {
                let other = self.take(peer)?;
                let named =
                    |end: &OwnedFd| socket::local_address(end.as_fd()).is_ok_and(|name| name.len() > 2);
                let theirs = self.kernels(self.net(&other)?, number);
                let mutual = theirs.is_some_and(|other| other.peer == Some(found.inode));
                if mutual && !named(taken) && !named(&other) {
                    return self.pair(taken, found.inode.min(number), socket_type, &kernel);
                }
                if is_datagram {
                    directed_to(taken, Some(number))?
                } else if theirs.is_some_and(|other| !shut::is_known_to(&kernel, &other)) {
                    return Err(shut::BEFORE.into());
                } else {
                    let Waiting { data, senders, marks, passed } =
                        self.data(taken, (libc::AF_UNIX, socket_type))?;
                    let (connection, peer) = (found.inode.min(number), peer_of(taken)?);
                    let (shut, ended) = (kernel.shut, false);
                    SocketState::Connected { connection, peer, data, senders, passed, marks, shut, ended }
                }
            }
            // As to the system's log: any listener there will do.
            (Some(_), None) if is_datagram => match self.standard(found) {
                Some(_) => return refused(),
                None if self.outside.lose_connections && !has_name(taken) => {
                    return self.pair(taken, found.inode, socket_type, &kernel);
                }
                None => directed(taken)?,
            },
            (Some(_), None) => return self.outside_of(found, taken, socket_type, &kernel),
        };
        let messages =
            if is_datagram { self.datagrams(found, taken, kernel.waiting > 0)? } else { Vec::new() };
        let pid = self.holder_of(found).tid;
        let mut object = record(taken, (libc::AF_UNIX, socket_type), state)?;
        if let Object::Socket(socket) = &mut object {
            socket.messages = messages;
            let is_apart = self.outside.namespaces.other_mounts(pid).is_some();
            socket_files::look((pid, is_apart), kernel.file, socket)?;
            socket.number = (is_datagram && socket.deleted).then_some(found.inode);
            socket.shut = shut::of_unix(&kernel, &socket.state);
        }
        Ok(object)
    }

    /// An end of a unix connection whose other end the job has not got. With `--outside close` it is one that was
    /// closed there after the cut: what has arrived can be read, then comes the end.
    fn outside_of(
        &self,
        found: &Found,
        taken: &OwnedFd,
        socket_type: i32,
        kernel: &UnixSocket,
    ) -> Result<Object, Obstacle> {
        match self.inherited(found, Obstacle::Apart(leads_to_another(taken))) {
            Err(_) if self.outside.lose_connections => self.pair(taken, found.inode, socket_type, kernel),
            answer => answer,
        }
    }

    /// What the kernel knows of a unix socket. Of many all are asked for at once: it looks for each among all of the
    /// host.
    fn kernels(&self, net: &Net, inode: u64) -> Option<UnixSocket> {
        let many = self.found.iter().filter(|found| found.is_socket()).nth(FEW_SOCKETS).is_some();
        net.unix(inode, many)
    }

    fn pair(
        &self,
        taken: &OwnedFd,
        number: u64,
        socket_type: i32,
        kernel: &UnixSocket,
    ) -> Result<Object, Obstacle> {
        let waiting = self.data(taken, (libc::AF_UNIX, socket_type))?;
        self.pair_with(taken, number, socket_type, kernel, waiting)
    }

    /// The same, with this to be read.
    fn pair_with(
        &self,
        taken: &OwnedFd,
        number: u64,
        socket_type: i32,
        kernel: &UnixSocket,
        Waiting { data, senders, marks, passed }: Waiting,
    ) -> Result<Object, Obstacle> {
        if filter(taken)?.is_some() {
            return Err("a filter of a socket pair is not supported".into());
        }
        let option = |option| fd::socket_option(taken.as_fd(), option).unwrap_or(0).cast_unsigned();
        Ok(Object::SocketPair {
            pair: number,
            socket_type: socket_type.cast_unsigned(),
            data,
            senders,
            passed,
            marks,
            send_buffer: option(libc::SO_SNDBUF),
            receive_buffer: option(libc::SO_RCVBUF),
            send_timeout_us: objects::socket_timeout_us(taken.as_fd(), libc::SO_SNDTIMEO).unwrap_or(0),
            receive_timeout_us: objects::socket_timeout_us(taken.as_fd(), libc::SO_RCVTIMEO).unwrap_or(0),
            options: options(taken, libc::AF_UNIX, 0).into_iter().filter(is_of_pairs).collect(),
            shut: kernel.shut,
            shut_reading: kernel.shut_reading && socket_type == libc::SOCK_DGRAM,
            peer_ids: peer_ids(taken),
            network: None,
        })
    }

    /// What waits to be read; nothing while the program runs on: then only whether it could be read.
    pub(super) fn data(
        &self,
        taken: &OwnedFd,
        (domain, socket_type): (i32, i32),
    ) -> Result<Waiting, Obstacle> {
        if self.look == Look::Running {
            return glance(taken, socket_type).map(|()| Waiting::default());
        }
        if let Some(seen) = self.seen(taken) {
            return Ok(self.told(seen.to_vec()));
        }
        if domain == libc::AF_UNIX && has_peek_offset(taken) {
            return Ok(self.told(pieces::look(taken)?));
        }
        if socket_type == libc::SOCK_STREAM
            && let Some(waiting) = urgent::stream(taken, domain != libc::AF_UNIX)?
        {
            return Ok(waiting);
        }
        Ok(self.told(peek(taken, socket_type)?))
    }

    fn told(&self, seen: Vec<Seen>) -> Waiting {
        let senders = seen.iter().filter_map(|seen| Some(self.known_sender(seen.sender?))).collect();
        let passed = passed::with_each(&seen);
        let data = seen.into_iter().map(|seen| Blob(seen.data)).collect();
        Waiting { data, senders, marks: Vec::new(), passed }
    }

    /// Lets a restart have the port of a listener, or of an end of a connection, at once: connections of a dead
    /// program stay in TIME_WAIT for a minute, in which no socket can listen there unless they, too, had SO_REUSEADDR
    /// (net/ipv4/inet_connection_sock.c, inet_csk_bind_conflict). Most servers set it. What a listener accepts has
    /// the option from it; no other can have the address of a socket that listens, with it or without.
    pub(super) fn free_after_death(&self, taken: &OwnedFd) {
        if self.look == Look::Stopped {
            let one = 1_i32.to_ne_bytes();
            let _ = socket::set_option(taken.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, &one);
        }
    }

    /// Whether the program itself listens at an address. A path is one in all network namespaces.
    pub(super) fn listens_at(&self, address: &Blob, domain: i32, net: &Net) -> bool {
        let has_path = domain == libc::AF_UNIX && address.0.get(2).is_some_and(|first| *first != 0);
        let is_there = |taken: &OwnedFd| has_path || self.net(taken).is_ok_and(|its| its.place == net.place);
        let sockets = self.found.iter().filter(|found| found.is_socket());
        sockets.filter_map(|found| self.take(found).ok()).any(|taken| {
            if fd::socket_option(taken.as_fd(), libc::SO_ACCEPTCONN).unwrap_or(0) == 0 || !is_there(&taken) {
                return false;
            }
            let Ok(local) = socket::local_address(taken.as_fd()) else { return false };
            if domain == libc::AF_UNIX {
                return local == address.0;
            }
            match (canonical(&local), canonical(&address.0)) {
                (Some(here), Some(there)) => {
                    here.port() == there.port() && (here.ip() == there.ip() || here.ip().is_unspecified())
                }
                _ => false,
            }
        })
    }
}

pub(super) fn peer_of(taken: &OwnedFd) -> Result<Blob, String> {
    socket::peer_address(taken.as_fd()).map(Blob).map_err(|error| error.to_string())
}

/// With a default destination.
pub(super) fn directed(taken: &OwnedFd) -> Result<SocketState, String> {
    directed_to(taken, None)
}

/// The same; `number`: of that socket, if it is the program's.
fn directed_to(taken: &OwnedFd, number: Option<u64>) -> Result<SocketState, String> {
    let peer = peer_of(taken)?;
    if peer.0.len() <= 2 {
        return Err("it sends to a socket without a name: not supported yet".into());
    }
    Ok(SocketState::Directed { peer, number })
}

/// The program of a socket's filter.
fn filter(taken: &OwnedFd) -> Result<Option<Blob>, String> {
    match socket::filter(taken.as_fd()) {
        Ok(program) => Ok(program.map(Blob)),
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Err(
            "a socket with a filter of eBPF (SO_ATTACH_BPF), which the kernel does not tell: not supported"
                .into(),
        ),
        // A kernel without filters.
        Err(_) => Ok(None),
    }
}

/// The record of a socket that does something.
pub(super) fn record(
    taken: &OwnedFd,
    (domain, kind): (i32, i32),
    state: SocketState,
) -> Result<Object, String> {
    let local = socket::local_address(taken.as_fd()).map_err(|error| error.to_string())?;
    let protocol = fd::socket_option(taken.as_fd(), libc::SO_PROTOCOL).unwrap_or(0);
    let record = SocketRecord {
        domain: domain.cast_unsigned(),
        socket_type: kind.cast_unsigned(),
        protocol: protocol.cast_unsigned(),
        local: Blob(local),
        state,
        options: options(taken, domain, protocol),
        mode: 0,
        owner: None,
        deleted: false,
        renamed: None,
        messages: Vec::new(),
        shut: 0,
        filter: filter(taken)?,
        number: None,
        peer_ids: (domain == libc::AF_UNIX).then(|| peer_ids(taken)).flatten(),
        made_by: made_by(taken),
        network: None,
    };
    Ok(Object::Socket(Box::new(record)))
}

/// Who has made a unix connection at its other end, or listens, where that is not who makes it at a restart by the same
/// user.
fn peer_ids(taken: &OwnedFd) -> Option<Ownership> {
    let told = socket::option(taken.as_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
    // struct ucred of unix(7): process, user, group; of a socket that was never used, none.
    let number = |at: usize| Some(u32::from_ne_bytes(told.get(at..at + 4)?.try_into().ok()?));
    let ids = Ownership { user: number(4)?, group: number(8)? };
    let own = Ownership { user: unix_socket::effective_user(), group: unix_socket::effective_group() };
    (ids.user != u32::MAX && ids != own).then_some(ids)
}

/// Who has made a socket, where that is not who makes it at a restart by the same user.
fn made_by(taken: &OwnedFd) -> Option<Ownership> {
    let now = fs::File::from(taken.try_clone().ok()?).metadata().ok()?;
    let made_by = Ownership { user: now.uid(), group: now.gid() };
    (made_by.user != unix_socket::effective_user()).then_some(made_by)
}

/// What is left to be set of a pair: its buffers and time-outs are kept by themselves.
fn is_of_pairs(option: &SocketOption) -> bool {
    ![libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_SNDTIMEO, libc::SO_RCVTIMEO].contains(&option.name)
}

/// An address; one of IPv4 is the same in either family.
pub(super) fn canonical(bytes: &[u8]) -> Option<SocketAddr> {
    internet_address(bytes).map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Whether the other end of a unix socket has a name.
fn has_name(taken: &OwnedFd) -> bool {
    peer_of(taken).is_ok_and(|peer| peer.0.len() > 2)
}

/// How a unix connection is refused whose other end the job has not got.
fn leads_to_another(taken: &OwnedFd) -> String {
    let path = peer_of(taken).ok().filter(|peer| peer.0.len() > 2).map(|peer| peer.0);
    // A name of the abstract kind begins with a NUL (unix(7)), and is shown as ss(8) shows it.
    let name = path.as_deref().and_then(|address| address.get(2..)).map(|name| match name {
        [0, rest @ ..] => format!("@{}", Name(rest.to_vec())),
        path => Name(path.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()).to_string(),
    });
    let to = name.as_deref().unwrap_or("a socket without a name");
    let display = match name.as_deref().and_then(|name| name.rsplit('/').next()) {
        Some(last) if last.starts_with("wayland-") => "; run the compositor in the job, too",
        Some(last)
            if name.as_ref().is_some_and(|name| name.contains(".X11-unix/")) && last.starts_with('X') =>
        {
            "; run an X server in the job, too (Xvfb, Xvnc)"
        }
        _ => "",
    };
    format!(
        "unix connection to {to} leads outside the job; --outside close takes the image all the same (the connection \
         is closed after a restart){display}"
    )
}

/// How a TCP connection is refused whose other end the job has not got.
pub(super) fn leads_outside(socket: &OwnedFd, inode: u64, net: &Net) -> String {
    match internet_peer(inode, net) {
        Some(ends) if ends.contains(ARROW) => format!(
            "TCP connection {ends} leads outside the job; --outside close takes the image all the same (the connection \
             is reset after a restart)"
        ),
        _ => not_supported(socket, inode, net),
    }
}

/// Whether the path of the other end, behind two bytes of the family, ends so.
fn leads_to(socket: &OwnedFd, ending: &[u8]) -> bool {
    let ends_so =
        |path: &[u8]| path.split(|byte| *byte == 0).next().is_some_and(|path| path.ends_with(ending));
    peer_of(socket).is_ok_and(|peer| peer.0.get(2..).is_some_and(ends_so))
}

/// Whether it is a client's connection to the server of a store's objects (`compat/objects/src/wire.rs`).
pub(super) fn leads_to_objects(socket: &OwnedFd) -> bool {
    leads_to(socket, b"/objects/serve.sock")
}

/// Whether it is a connection to an agent of ours (`tiers/src/job.rs`): this process, or another one of its program.
/// Others have sockets of that name, too.
pub(super) fn leads_to_agent(socket: &OwnedFd) -> bool {
    leads_to(socket, b"/agent.sock") && is_agent(socket)
}

/// Whether an agent listens at the other end.
fn is_agent(socket: &OwnedFd) -> bool {
    unix_socket::peer(socket.as_fd()).is_ok_and(|peer| procfs::executes_own(peer.pid))
}

/// How a socket is refused.
pub(super) fn not_supported(socket: &OwnedFd, inode: u64, net: &Net) -> String {
    let what = describe(socket, inode, net);
    let remedy =
        if what.starts_with("netlink") { ": close it before a checkpoint, or do without" } else { "" };
    format!("{what}: not supported yet{remedy}")
}

/// As include/uapi/linux/netlink.h calls a family.
fn netlink_name(family: i32) -> String {
    const NAMES: [(i32, &str); 18] = [
        (0, "ROUTE"),
        (2, "USERSOCK"),
        (4, "SOCK_DIAG"),
        (5, "NFLOG"),
        (6, "XFRM"),
        (7, "SELINUX"),
        (8, "ISCSI"),
        (9, "AUDIT"),
        (10, "FIB_LOOKUP"),
        (11, "CONNECTOR"),
        (12, "NETFILTER"),
        (15, "KOBJECT_UEVENT"),
        (16, "GENERIC"),
        (18, "SCSITRANSPORT"),
        (19, "ECRYPTFS"),
        (20, "RDMA"),
        (21, "CRYPTO"),
        (22, "SMC"),
    ];
    let name = NAMES.iter().find(|(number, _)| *number == family).map(|(_, name)| *name);
    name.map_or_else(|| format!("family {family}"), |name| format!("NETLINK_{name}"))
}

/// Kind and peer of a socket, for refusals.
fn describe(socket: &OwnedFd, inode: u64, net: &Net) -> String {
    let domain = fd::socket_option(socket.as_fd(), libc::SO_DOMAIN).unwrap_or(-1);
    let kind = match fd::socket_option(socket.as_fd(), libc::SO_TYPE).unwrap_or(0) {
        libc::SOCK_STREAM => "stream",
        libc::SOCK_DGRAM => "datagram",
        _ => "raw",
    };
    match domain {
        libc::AF_UNIX => format!("unix {kind} socket"),
        libc::AF_INET | libc::AF_INET6 => {
            format!("{kind} socket, {}", internet_peer(inode, net).unwrap_or_else(|| "not connected".into()))
        }
        libc::AF_NETLINK => match fd::socket_option(socket.as_fd(), libc::SO_PROTOCOL) {
            Ok(family) => format!("netlink socket of {}", netlink_name(family)),
            Err(_) => "netlink socket".into(),
        },
        other => format!("socket of address family {other}"),
    }
}

/// Between the ends of a connection.
const ARROW: &str = " -> ";

/// `local -> remote` of a TCP or UDP socket from /proc/net, or `listening on …`.
fn internet_peer(inode: u64, net: &Net) -> Option<String> {
    let wanted = inode.to_string();
    ["tcp", "tcp6", "udp", "udp6"].into_iter().find_map(|table| {
        let text = fs::read_to_string(format!("{}/{table}", net.folder)).ok()?;
        let line = text.lines().find(|line| line.split_whitespace().nth(9) == Some(&wanted))?;
        let mut words = line.split_whitespace().skip(1);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        if state == "0A" {
            return Some(format!("listening on {}", readable_address(local)?));
        }
        Some(format!("{}{ARROW}{}", readable_address(local)?, readable_address(remote)?))
    })
}

/// `0100007F:1F90` as `127.0.0.1:8080` (address words are in host order, net/ipv4/tcp_ipv4.c).
pub(super) fn readable_address(text: &str) -> Option<String> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<[u8; 4]>> = (0..address.len() / 8)
        .map(|i| u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    let bytes = words?.concat();
    if let Ok(four) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(format!("{}:{port}", std::net::Ipv4Addr::from(four)));
    }
    let sixteen = <[u8; 16]>::try_from(bytes.as_slice()).ok()?;
    Some(format!("[{}]:{port}", std::net::Ipv6Addr::from(sixteen)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_people_write_them() {
        assert_eq!(readable_address("0100007F:1F90").unwrap(), "127.0.0.1:8080");
        assert_eq!(readable_address("00000000000000000000000001000000:0050").unwrap(), "[::1]:80");
        assert!(readable_address("zz").is_none());
    }

    #[test]
    fn one_address_has_two_families() {
        let four = [&2_u16.to_ne_bytes()[..], &80_u16.to_be_bytes(), &[127, 0, 0, 1], &[0; 8]].concat();
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
        let six = [&10_u16.to_ne_bytes()[..], &80_u16.to_be_bytes(), &[0; 4], &mapped, &[0; 4]].concat();
        assert_eq!(canonical(&four), Some("127.0.0.1:80".parse().unwrap()));
        assert_eq!(canonical(&six), canonical(&four));
        assert_eq!(canonical(&six[..20]), None);
    }
}
