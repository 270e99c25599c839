//! Sockets of the internet: which ends of TCP connections belong together, and what was sent and not read yet.
//!
//! Part of [`FileReader`], called by `sockets`. A connection is whole only if everything that one end has sent waits at
//! the other: what is still on its way cannot be seen, so inside the stop it is made to arrive first
//! ([`crate::connection`]).

use super::found::{Found, Look, Stream, TcpEnds};
use super::in_flight::waiting;
use super::networks::Net;
use super::sockets::{
    NOT_ACCEPTED, canonical, directed, leads_outside, not_supported, peer_of, readable_address, record,
};
use super::urgent::Waiting;
use super::{FileReader, Obstacle, multicast, shut};
use crate::connection::{self, Local, Orphan, is_shut};
use crate::net_tables;
use crate::tcp_table::{self, Line};
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Object, SocketState};
use holdfast_sys::fd;
use holdfast_sys::socket::{self, TcpInfo, tcp_state};
use holdfast_sys::tcp_buffers;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

pub(super) const ON_ITS_WAY: &str = "a TCP connection that is being made or closed; try again";
const OVER_WITH_MARK: &str = "a TCP connection that both ends have shut, in which a byte waits that was sent out of \
                              band (MSG_OOB); try again when it was received";
const WITHOUT_PORT: &str = "a socket that is connected to an address of one device alone and has no port there: the \
                            kernel does not tell the device, so it is not supported; connect it with a port (any \
                            number), or send with an address";
/// A reader that has less than so much before it is slow no more: as much as a buffer has room for at first.
pub(super) const CAUGHT_UP: usize = 64 << 10;
pub(super) const TCP: (i32, i32) = (libc::AF_INET, libc::SOCK_STREAM);

impl FileReader<'_> {
    pub(super) fn internet(
        &self,
        found: &Found,
        taken: &OwnedFd,
        net: &Net,
        (domain, socket_type): (i32, i32),
    ) -> Result<Object, Obstacle> {
        let protocol = fd::socket_option(taken.as_fd(), libc::SO_PROTOCOL).unwrap_or(0);
        let kind = (socket_type, protocol);
        let state = if kind == (libc::SOCK_STREAM, libc::IPPROTO_TCP) {
            refuse_layers(taken)?;
            match self.stream(found, taken, net)? {
                Some(state) => state,
                None => return self.inherited(found, leads_outside(taken, found.inode, net)),
            }
        } else if is_of_packets(kind) {
            if self.standard(found).is_some() {
                return self.inherited(found, "");
            }
            match socket::peer_address(taken.as_fd()) {
                Ok(_) => directed(taken)?,
                // One without ports has one all the same (inet_getname does not say it).
                Err(_) => match unseen_peer(net, found.inode)? {
                    Some(peer) if has_scope(&peer) => return Err(WITHOUT_PORT.into()),
                    Some(peer) => SocketState::Directed { peer: Blob(bytes_of(peer)), number: None },
                    None => SocketState::Idle,
                },
            }
        } else {
            return self.inherited(found, not_supported(taken, found.inode, net));
        };
        let mut object = record(taken, (domain, socket_type), state)?;
        if let Object::Socket(socket) = &mut object {
            if socket_type != libc::SOCK_STREAM {
                socket.options.extend(multicast::joined(net.groups()?, taken, domain));
                socket.shut = Self::udp_shut(net, found, taken);
            } else {
                socket.shut = shut::of_tcp(taken, &socket.state);
            }
        }
        Ok(object)
    }

    /// The state of a TCP socket; `None`: it leads outside.
    fn stream(&self, found: &Found, taken: &OwnedFd, net: &Net) -> Result<Option<SocketState>, Obstacle> {
        let told = || socket::tcp_info(taken.as_fd()).map_err(|error| error.to_string());
        let mut info = told()?;
        if ![tcp_state::LISTEN, tcp_state::CLOSE].contains(&info.state) {
            // What arrives by that may be its end.
            self.streams();
            info = told()?;
        }
        if info.state == tcp_state::LISTEN {
            self.all_known_tcp(net, taken, &info)?;
            self.free_after_death(taken);
            return Ok(Some(SocketState::Listening { backlog: info.backlog }));
        }
        if info.state == tcp_state::CLOSE {
            if info.sent == 0 && info.received == 0 {
                return Ok(Some(SocketState::Idle));
            }
            // An error waits to be told: it was reset. Otherwise both ends have sent their last, or it was told.
            let is_reset = fd::poll_state(taken.as_fd()).is_ok_and(|state| state & libc::POLLERR != 0);
            let over = || match self.data(taken, TCP)? {
                Waiting { data, marks, .. } if marks.is_empty() => Ok(SocketState::Over { data }),
                _ => Err(Obstacle::Passing(OVER_WITH_MARK.into())),
            };
            return if is_reset { Ok(SocketState::Lost) } else { over() }.map(Some);
        }
        if let Some(known) = self.members.known.get(&found.inode) {
            return self.of_member(taken, known, &info).map(Some);
        }
        let own = self.streams().get(&found.inode);
        let other = own.and_then(|own| self.other_end(own));
        let (Some(own), Some(other)) = (own, other) else {
            // Closed by its process of the job: what it has sent can still be read.
            if let Some(own) = own.filter(|own| self.is_ended(own) && !self.is_of_a_listener(&own.peer)) {
                let (connection, peer) = (own.inode, peer_of(taken)?);
                let Waiting { data, senders, marks, passed } = self.data(taken, TCP)?;
                self.free_after_death(taken);
                let (shut, ended) = (false, true);
                return Ok(Some(SocketState::Connected {
                    connection,
                    peer,
                    data,
                    senders,
                    passed,
                    marks,
                    shut,
                    ended,
                }));
            }
            self.settled_in_gang((taken, found.inode), &info)?;
            // One that is being made has no peer yet; to a listener of the program's own it is made at once.
            let peer = peer_of(taken).ok().filter(|peer| self.listens_at(peer, libc::AF_INET, net));
            let Some(peer) = peer else {
                let is_lost = self.outside.lose_connections || self.may_lead_to_members();
                return Ok(is_lost.then_some(SocketState::Lost));
            };
            let untouched = info.state == tcp_state::ESTABLISHED && info.sent + info.received == 0;
            return if untouched && info.not_sent == 0 {
                self.free_after_death(taken);
                Ok(Some(SocketState::Pending { peer }))
            } else {
                Err(Obstacle::Passing(NOT_ACCEPTED.into()))
            };
        };
        let whole = || is_whole(&own.info, &other.info) && is_whole(&other.info, &own.info);
        if self.look == Look::Stopped && !whole() {
            let left = own.info.not_sent.max(other.info.not_sent);
            return Err(Obstacle::Passing(if left > 0 { unsent_data(left) } else { ON_ITS_WAY.into() }));
        }
        self.free_after_death(taken);
        let Waiting { data, senders, marks, passed } = self.data(taken, TCP)?;
        let connection = own.inode.min(other.inode);
        let (peer, shut) = (peer_of(taken)?, is_shut(info.state));
        let ended = false;
        Ok(Some(SocketState::Connected { connection, peer, data, senders, passed, marks, shut, ended }))
    }

    /// All TCP connections of the program, by inode.
    pub(super) fn internet_streams(&self) -> HashMap<u64, Stream> {
        let sockets = self.found.iter().filter(|found| found.is_socket());
        sockets
            .filter_map(|found| {
                let taken = self.take(found).ok()?;
                let info = socket::tcp_info(taken.as_fd()).ok()?;
                let local = canonical(&socket::local_address(taken.as_fd()).ok()?)?;
                let peer = canonical(&socket::peer_address(taken.as_fd()).ok()?)?;
                let net = self.net(&taken).ok()?;
                let network = (net.place, net.folder.clone());
                Some((found.inode, Stream { inode: found.inode, network, local, peer, info }))
            })
            .collect()
    }

    /// The same, once all that was sent has come to the other end, as far as it can.
    pub(super) fn streams(&self) -> &HashMap<u64, Stream> {
        self.streams.get_or_init(|| {
            let mut all = self.internet_streams();
            if self.look == Look::Stopped {
                self.drain(&mut all);
            }
            all
        })
    }

    /// Has what is on its way arrive, and looks again where anything has.
    fn drain(&self, all: &mut HashMap<u64, Stream>) {
        let ends: HashMap<_, u64> = all.values().map(|stream| (stream.ends(), stream.inode)).collect();
        let mut closed = HashMap::new();
        let mut moved = Vec::new();
        for own in all.values() {
            let other = ends.get(&own.ends_there()).and_then(|inode| all.get(inode));
            match other.filter(|other| other.inode != own.inode) {
                Some(other) if !is_whole(&own.info, &other.info) => {
                    let Some((from, to)) = self.end(own.inode).zip(self.end(other.inode)) else { continue };
                    moved.extend([own.inode, other.inode]);
                    if !matches!(
                        connection::drain(&Local::of_program(&from), &Local::of_program(&to), None),
                        Ok(0)
                    ) {
                        // It is refused, or tried again: the others need not wait for it.
                        break;
                    }
                }
                Some(other) => {
                    if let Some((from, to)) = self.end(own.inode).zip(self.end(other.inode))
                        && waiting(&to).is_ok_and(|waiting| waiting < CAUGHT_UP)
                    {
                        tcp_buffers::give_back(&from);
                    }
                }
                None if own.info.state != tcp_state::CLOSE_WAIT => {
                    let queues = closed.entry(own.network.0).or_insert_with(|| closing(&own.network.1));
                    let Some(left) = queues.get(&(own.peer, own.local)) else { continue };
                    let Some(to) = self.end(own.inode) else { continue };
                    let orphan = Orphan { to: &to, total: own.info.received + left + 1 };
                    moved.push(own.inode);
                    if !matches!(connection::drain(&orphan, &Local::of_program(&to), None), Ok(0)) {
                        break;
                    }
                }
                None => {}
            }
        }
        for inode in moved {
            let now = self.end(inode).and_then(|end| socket::tcp_info(end.as_fd()).ok());
            if let (Some(stream), Some(now)) = (all.get_mut(&inode), now) {
                stream.info = now;
            }
        }
    }

    /// Whether the other end has been closed, and all of what it has sent waits here, or will at a stop.
    fn is_ended(&self, own: &Stream) -> bool {
        let other = (own.peer, own.local);
        if own.info.state == tcp_state::CLOSE_WAIT {
            // Those of other hosts are not in this one's table.
            let here = own.peer.ip() == own.local.ip() || own.peer.ip().is_loopback();
            if here && self.ends(own).is_some_and(|ends| !ends.held.contains(&other)) {
                return true;
            }
        }
        self.look == Look::Running && self.ends(own).is_some_and(|ends| ends.closing.contains(&other))
    }

    /// Whether the other end is one of this host, of a process outside the job.
    pub(super) fn is_held_by_others(&self, inode: u64) -> bool {
        let own = self.streams().get(&inode);
        own.is_some_and(|own| self.ends(own).is_some_and(|ends| ends.held.contains(&(own.peer, own.local))))
    }

    /// Ends of the network namespace of a connection, as they are at the first question: the table is long where there
    /// are many connections. `None`: the kernel does not tell.
    fn ends(&self, own: &Stream) -> Option<Rc<TcpEnds>> {
        let mut known = self.tcp_ends.borrow_mut();
        let ends = known.entry(own.network.0).or_insert_with(|| Some(Rc::new(ends(&own.network.1)?)));
        ends.clone()
    }

    /// A duplicate of an end.
    pub(super) fn end(&self, inode: u64) -> Option<OwnedFd> {
        self.take(self.with_inode(inode).find(|found| found.is_socket())?).ok()
    }

    /// The other end of a connection, if the program has it, too.
    fn other_end(&self, own: &Stream) -> Option<&Stream> {
        let all = self.streams();
        let by_ends = || all.values().map(|stream| (stream.ends(), stream.inode)).collect();
        let inode = self.stream_ends.get_or_init(by_ends).get(&own.ends_there())?;
        all.get(inode).filter(|other| other.inode != own.inode)
    }
}

/// Whether sockets of this type and protocol send single packets, and have no state but their address, their options,
/// and where they send to: UDP, UDP-Lite, those for echoes (icmp(7)), and raw ones (raw(7)).
fn is_of_packets((socket_type, protocol): (i32, i32)) -> bool {
    let of_datagrams = [libc::IPPROTO_UDP, libc::IPPROTO_UDPLITE, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];
    socket_type == libc::SOCK_RAW || socket_type == libc::SOCK_DGRAM && of_datagrams.contains(&protocol)
}

/// Where a socket sends to that is connected without a port.
fn unseen_peer(net: &Net, inode: u64) -> Result<Option<SocketAddr>, String> {
    let all = net.packet_peers.get_or_init(|| packet_peers(&net.folder));
    all.as_ref().map(|all| all.get(&inode).copied()).map_err(Clone::clone)
}

/// Where the sockets of a network namespace send to that send single packets and are connected, by inode: state 1 in
/// the tables of their kinds (net/ipv4/raw.c, raw_sock_seq_show; ping.c, udp.c). `folder`: where /proc has these.
fn packet_peers(folder: &str) -> Result<HashMap<u64, SocketAddr>, String> {
    let mut all = HashMap::new();
    for table in ["raw", "raw6", "icmp", "icmp6", "udp", "udp6", "udplite", "udplite6"] {
        let text = net_tables::read(folder, table)?;
        all.extend(text.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let inode = words.get(9)?.parse::<u64>().ok().filter(|_| words.get(3) == Some(&"01"))?;
            Some((inode, readable_address(words.get(2)?)?.parse::<SocketAddr>().ok()?))
        }));
    }
    Ok(all)
}

/// Whether an address is one of a single device, which `/proc` does not tell (ipv6(7), sin6_scope_id).
fn has_scope(peer: &SocketAddr) -> bool {
    match peer {
        SocketAddr::V6(peer) => peer.ip().is_unicast_link_local() || peer.ip().is_multicast(),
        SocketAddr::V4(_) => false,
    }
}

/// struct sockaddr_in or sockaddr_in6.
fn bytes_of(address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    match address {
        SocketAddr::V4(four) => [&2_u16.to_ne_bytes()[..], &port, &four.ip().octets(), &[0; 8]].concat(),
        SocketAddr::V6(six) => {
            [&10_u16.to_ne_bytes()[..], &port, &[0; 4], &six.ip().octets(), &[0; 4]].concat()
        }
    }
}

/// Ends that no process has and that still send, by their ends: how much of it.
fn closing(folder: &str) -> HashMap<(SocketAddr, SocketAddr), u64> {
    let all = tcp_table::table(folder).unwrap_or_default().into_iter();
    all.filter(Line::is_closing).map(|line| (line.ends, line.queued)).collect()
}

/// Those of a network namespace; `None`: the kernel does not tell.
fn ends(folder: &str) -> Option<TcpEnds> {
    let all = tcp_table::table(folder).ok()?;
    let held = all.iter().filter(|line| line.inode != 0).map(|line| line.ends).collect();
    let closing = all.iter().filter(|line| line.is_closing()).map(|line| line.ends).collect();
    Some(TcpEnds { held, closing })
}

/// Whether all that was sent at this end has come to the other. The end of the stream counts as one byte received.
fn is_whole(sender: &TcpInfo, receiver: &TcpInfo) -> bool {
    use tcp_state::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT1, FIN_WAIT2};
    // The other states pass as soon as all has arrived.
    [ESTABLISHED, CLOSE_WAIT, FIN_WAIT1, FIN_WAIT2].contains(&sender.state)
        && sender.not_sent == 0
        && receiver.received == sender.sent + u64::from(is_shut(sender.state))
}

/// More than the reader's buffer takes: it stays in the sender's queue, which only TCP_REPAIR reads (CAP_NET_ADMIN;
/// net/ipv4/tcp.c, tcp_peek_sndq).
fn unsent_data(bytes: u32) -> String {
    format!(
        "a TCP connection of the program with itself whose reader is slow: {bytes} bytes wait at their sender, for \
         which the reader has no room: try again when it has caught up, or raise the third number of \
         net.ipv4.tcp_rmem"
    )
}

/// Refuses a TCP socket in which another protocol runs (kernel TLS, SMC): its keys are not told.
fn refuse_layers(taken: &OwnedFd) -> Result<(), String> {
    const TCP_ULP: i32 = 31;
    let name = socket::option(taken.as_fd(), libc::IPPROTO_TCP, TCP_ULP).unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    if name.is_empty() {
        return Ok(());
    }
    let name = String::from_utf8_lossy(name);
    Err(format!("a TCP socket with {name} in the kernel (TCP_ULP) is not supported: do that in the program"))
}
