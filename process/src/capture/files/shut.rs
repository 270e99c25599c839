//! What was shut down of a socket (shutdown(2)), as far as the other end does not show it.
//!
//! Called by `sockets`, inside the stop or for a look at a running program. Bits: 1 reading, 2 writing.

use super::networks::Net;
use super::{FileReader, Found};
use holdfast_image::record::SocketState;
use holdfast_sys::fd;
use holdfast_sys::sock_diag::UnixSocket;
use holdfast_sys::socket::{self, tcp_state};
use std::os::fd::{AsFd, OwnedFd};

/// How a connection is refused that shows at one end only that something was shut.
pub(super) const BEFORE: &str = "one end of the connection was shut down (shutdown(2)) before it was \
connected, and the other end does not know: not supported; close it, or shut it down again";

/// Of a unix socket that is not connected. What is shut at one end of a connection shows at the other.
pub(super) fn of_unix(kernel: &UnixSocket, state: &SocketState) -> u8 {
    match state {
        SocketState::Connected { .. } => 0,
        _ => u8::from(kernel.shut_reading) | u8::from(kernel.shut) << 1,
    }
}

/// Whether the two ends of a unix connection say the same.
pub(super) fn is_known_to(own: &UnixSocket, other: &UnixSocket) -> bool {
    (own.shut, own.shut_reading) == (other.shut_reading, other.shut)
}

/// Of a TCP socket, reading. One that is not connected can be shut down, too (net/ipv4/af_inet.c, inet_shutdown, says
/// ENOTCONN and does it), but the kernel does not tell of writing then: what was shut for reading counts as shut for
/// both, as nearly everybody does it.
pub(super) fn of_tcp(taken: &OwnedFd, state: &SocketState) -> u8 {
    let is_shut =
        || fd::poll_for(taken.as_fd(), libc::POLLRDHUP).is_ok_and(|state| state & libc::POLLRDHUP != 0);
    let open = [tcp_state::ESTABLISHED, tcp_state::FIN_WAIT1, tcp_state::FIN_WAIT2];
    match state {
        SocketState::Idle if is_shut() => 3,
        // In other states the other end has sent its last.
        SocketState::Connected { ended: false, .. }
        | SocketState::Member { .. }
        | SocketState::Pending { .. }
            if socket::tcp_info(taken.as_fd()).is_ok_and(|info| open.contains(&info.state)) && is_shut() =>
        {
            1
        }
        _ => 0,
    }
}

impl FileReader<'_> {
    /// Of a socket of packets. A kernel without diag of UDP tells of reading alone (net/core/datagram.c,
    /// datagram_poll), and so it is with the other kinds.
    pub(super) fn udp_shut(net: &Net, found: &Found, taken: &OwnedFd) -> u8 {
        let is_udp =
            fd::socket_option(taken.as_fd(), libc::SO_PROTOCOL).is_ok_and(|kind| kind == libc::IPPROTO_UDP);
        match net.udp_shut().filter(|_| is_udp) {
            Some(all) => all.get(&found.inode).copied().unwrap_or(0),
            None => {
                let state = fd::poll_for(taken.as_fd(), libc::POLLRDHUP);
                u8::from(state.is_ok_and(|state| state & libc::POLLRDHUP != 0))
            }
        }
    }
}
