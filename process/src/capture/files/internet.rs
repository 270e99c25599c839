//! Sockets of the internet: which ends of TCP connections belong together, and whether all that was sent has arrived.
//!
//! Part of [`FileReader`], called by `sockets`. A connection is whole only if everything that one end has sent waits at
//! the other: what is still on its way cannot be seen.

use super::found::{Found, Look, Stream};
use super::sockets::{
    NOT_ACCEPTED, canonical, directed, leads_outside, not_supported, peer_of, readable_address, record,
};
use super::urgent::Waiting;
use super::{FileReader, Obstacle, shut};
use holdfast_image::record::{Object, SocketState};
use holdfast_sys::fd;
use holdfast_sys::socket::{self, TcpInfo, tcp_state};
use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

const ON_ITS_WAY: &str = "a TCP connection with data on its way, or that is being closed; try again";
const OVER_WITH_MARK: &str = "a TCP connection that both ends have shut, in which a byte waits that was sent out of \
                              band (MSG_OOB); try again when it was received";
const TCP: (i32, i32) = (libc::AF_INET, libc::SOCK_STREAM);

impl FileReader<'_> {
    pub(super) fn internet(
        &self,
        found: &Found,
        taken: &OwnedFd,
        domain: i32,
        socket_type: i32,
    ) -> Result<Object, Obstacle> {
        let protocol = fd::socket_option(taken.as_fd(), libc::SO_PROTOCOL).unwrap_or(0);
        let kind = (socket_type, protocol);
        let state = if kind == (libc::SOCK_STREAM, libc::IPPROTO_TCP) {
            refuse_layers(taken)?;
            match self.stream(found, taken)? {
                Some(state) => state,
                None => return self.inherited(found, leads_outside(taken, found.inode)),
            }
        } else if kind == (libc::SOCK_DGRAM, libc::IPPROTO_UDP) {
            if self.standard(found).is_some() {
                return self.inherited(found, "");
            }
            match socket::peer_address(taken.as_fd()) {
                Ok(_) => directed(taken)?,
                Err(_) => SocketState::Idle,
            }
        } else {
            return self.inherited(found, not_supported(taken, found.inode));
        };
        let mut object = record(taken, (domain, socket_type), state)?;
        if let Object::Socket(socket) = &mut object {
            if socket_type == libc::SOCK_DGRAM {
                socket.options.extend(self.joined(taken, domain));
                socket.shut = self.udp_shut(found, taken);
            } else {
                socket.shut = shut::of_tcp(taken, &socket.state);
            }
        }
        Ok(object)
    }

    /// The state of a TCP socket; `None`: it leads outside.
    fn stream(&self, found: &Found, taken: &OwnedFd) -> Result<Option<SocketState>, Obstacle> {
        let info = socket::tcp_info(taken.as_fd()).map_err(|error| error.to_string())?;
        if info.state == tcp_state::LISTEN {
            self.all_known_tcp(self.holders[found.holder].pid, taken, &info)?;
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
        let all = self.streams.get_or_init(|| self.internet_streams());
        let own = all.get(&found.inode);
        let other = own.and_then(|own| self.other_end(own));
        let (Some(own), Some(other)) = (own, other) else {
            // Closed by its process of the job: what it has sent can still be read.
            if let Some(own) = own.filter(|own| own.info.state == tcp_state::CLOSE_WAIT && is_alone(own)) {
                let (connection, peer) = (own.inode, peer_of(taken)?);
                let Waiting { data, senders, marks } = self.data(taken, TCP)?;
                self.free_after_death(taken);
                let (shut, ended) = (false, true);
                return Ok(Some(SocketState::Connected {
                    connection,
                    peer,
                    data,
                    senders,
                    marks,
                    shut,
                    ended,
                }));
            }
            // One that is being made has no peer yet; to a listener of the program's own it is made at once.
            let peer = peer_of(taken).ok().filter(|peer| self.listens_at(peer, libc::AF_INET));
            let Some(peer) = peer else {
                return Ok(self.outside.lose_connections.then_some(SocketState::Lost));
            };
            let untouched = info.state == tcp_state::ESTABLISHED && info.sent + info.received == 0;
            return if untouched && info.not_sent == 0 {
                self.free_after_death(taken);
                Ok(Some(SocketState::Pending { peer }))
            } else {
                Err(Obstacle::Passing(NOT_ACCEPTED.into()))
            };
        };
        let whole = is_whole(&own.info, &other.info) && is_whole(&other.info, &own.info);
        if !whole && !self.moves(own) && !self.moves(other) {
            self.hasten(&[own, other]);
            let unsent = own.info.not_sent.max(other.info.not_sent);
            return Err(Obstacle::Passing(if unsent > 0 { unsent_data(unsent) } else { ON_ITS_WAY.into() }));
        }
        self.free_after_death(taken);
        let Waiting { data, senders, marks } = self.data(taken, TCP)?;
        let connection = own.inode.min(other.inode);
        let (peer, shut) = (peer_of(taken)?, is_shut(&info));
        Ok(Some(SocketState::Connected { connection, peer, data, senders, marks, shut, ended: false }))
    }

    /// Has the ends acknowledge at once what they have: then the other one sends what it holds back (Nagle's
    /// algorithm waits for that, and the acknowledgement for up to 40 ms), and the next try finds it.
    fn hasten(&self, ends: &[&Stream]) {
        for found in ends.iter().flat_map(|end| self.with_inode(end.inode)).filter(|found| found.is_socket())
        {
            if let Ok(taken) = self.take(found) {
                let one = 1_i32.to_ne_bytes();
                let _ = socket::set_option(taken.as_fd(), libc::IPPROTO_TCP, libc::TCP_QUICKACK, &one);
            }
        }
    }

    /// Whether the program, which runs on, is using an end: then what was known of both ends is of two moments.
    fn moves(&self, end: &Stream) -> bool {
        let now = |found: &Found| socket::tcp_info(self.take(found).ok()?.as_fd()).ok();
        self.look == Look::Running
            && self
                .with_inode(end.inode)
                .find(|found| found.is_socket())
                .is_none_or(|found| now(found) != Some(end.info))
    }

    /// All TCP connections of the program, by inode.
    fn internet_streams(&self) -> HashMap<u64, Stream> {
        let sockets = self.found.iter().filter(|found| found.is_socket());
        sockets
            .filter_map(|found| {
                let taken = self.take(found).ok()?;
                let info = socket::tcp_info(taken.as_fd()).ok()?;
                let local = canonical(&socket::local_address(taken.as_fd()).ok()?)?;
                let peer = canonical(&socket::peer_address(taken.as_fd()).ok()?)?;
                Some((found.inode, Stream { inode: found.inode, local, peer, info }))
            })
            .collect()
    }

    /// The other end of a connection, if the program has it, too.
    fn other_end(&self, own: &Stream) -> Option<&Stream> {
        let all = self.streams.get_or_init(|| self.internet_streams());
        let by_ends = || all.values().map(|stream| ((stream.local, stream.peer), stream.inode)).collect();
        let inode = self.stream_ends.get_or_init(by_ends).get(&(own.peer, own.local))?;
        all.get(inode).filter(|other| other.inode != own.inode)
    }
}

/// Whether the other end of a connection of this host has been closed: the kernel finishes it alone, or has done so.
fn is_alone(own: &Stream) -> bool {
    let here = own.peer.ip() == own.local.ip() || own.peer.ip().is_loopback();
    let address = |text: &str| readable_address(text)?.parse::<SocketAddr>().ok();
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let held = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ends = || Some((canonical(address(words.get(1)?)?), canonical(address(words.get(2)?)?)));
        ends() == Some((own.peer, own.local)) && words.get(9) != Some(&"0")
    };
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/net/{table}")));
    here && tables.iter().all(|text| text.as_ref().is_ok_and(|text| !text.lines().any(held)))
}

fn is_shut(info: &TcpInfo) -> bool {
    [tcp_state::FIN_WAIT1, tcp_state::FIN_WAIT2].contains(&info.state)
}

/// Whether all that was sent at this end has come to the other. The end of the stream counts as one byte received.
fn is_whole(sender: &TcpInfo, receiver: &TcpInfo) -> bool {
    let open = [tcp_state::ESTABLISHED, tcp_state::CLOSE_WAIT].contains(&sender.state);
    (open || is_shut(sender))
        && sender.not_sent == 0
        && receiver.received == sender.sent + u64::from(is_shut(sender))
}

/// More than the reader's buffer takes: it stays in the sender's queue, which only TCP_REPAIR reads (CAP_NET_ADMIN;
/// net/ipv4/tcp.c, tcp_peek_sndq).
fn unsent_data(bytes: u32) -> String {
    format!(
        "a TCP connection of the program with itself whose reader is slow: {bytes} bytes of data on its way wait at \
         their sender, where they cannot be read from outside; try again when the reader has caught up, or give it a \
         larger buffer (SO_RCVBUF), or let them use a unix socket or a pipe, which are read whole"
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
