//! Connections that wait in the queue of a listener of the program: who made them has written maybe, and is gone maybe.
//!
//! Called by [`super::sockets`] for each listener, inside the stop. One whose other end the program still has is seen
//! at that end. One from outside is lost by a restart like every connection to the outside; the listener serves new
//! ones. One whose other end was closed is known to the queue alone, which cannot be looked into: the checkpoint
//! waits until it is accepted.

use super::networks::Net;
use super::{FileReader, Look, Obstacle, net_tables};
use holdfast_sys::socket::{self, TcpInfo};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

const ENDED: &str = "a connection that was not accepted yet, and whose other end is closed already: it would be lost; \
                     try again";
/// State of a connection whose other end was closed, as /proc/net/tcp prints it (include/net/tcp_states.h).
const CLOSE_WAIT: &str = "08";

impl FileReader<'_> {
    /// Nothing in the queue of a unix listener is known to the queue alone.
    pub(super) fn all_known_unix(&self, inode: u64, net: &Net, waiting: u32) -> Result<(), Obstacle> {
        if waiting == 0 || self.look == Look::Running {
            return Ok(());
        }
        match net.waiting_connections(inode) {
            Ok(clients) if !clients.contains(&0) => Ok(()),
            Ok(_) => Err(Obstacle::Passing(ENDED.into())),
            Err(error) => Err(Obstacle::Passing(format!("connections that were not accepted yet ({error})"))),
        }
    }

    /// The same for a TCP listener.
    pub(super) fn all_known_tcp(&self, net: &Net, taken: &OwnedFd, info: &TcpInfo) -> Result<(), Obstacle> {
        if info.waiting == 0 || self.look == Look::Running {
            return Ok(());
        }
        let at = socket::local_address(taken.as_fd()).ok();
        let Some(at) = at.and_then(|at| super::sockets::canonical(&at)) else { return Ok(()) };
        for table in ["tcp", "tcp6"] {
            let text = net_tables::read(&net.folder, table)?;
            if text.lines().any(|line| is_ended(line, at.port())) {
                return Err(Obstacle::Passing(ENDED.into()));
            }
        }
        Ok(())
    }
}

/// Whether a line of /proc/net/tcp is a connection from this host to a port, not accepted (such have no inode), whose
/// other end is closed.
fn is_ended(line: &str, port: u16) -> bool {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (Some(local), Some(peer), Some(&state), Some(&inode)) =
        (fields.get(1), fields.get(2), fields.get(3), fields.get(9))
    else {
        return false;
    };
    let (Some(local), Some(peer)) = (address(local), address(peer)) else { return false };
    state == CLOSE_WAIT
        && inode == "0"
        && local.port() == port
        && (peer.ip() == local.ip() || peer.ip().is_loopback())
}

/// An address of /proc/net/tcp: words of hexadecimal digits in the byte order of the host (net/ipv4/tcp_ipv4.c,
/// get_tcp4_sock).
fn address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<[u8; 4]>> = (0..host.len() / 8)
        .map(|word| u32::from_str_radix(host.get(word * 8..word * 8 + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    let ip = match words?.as_slice() {
        [four] => IpAddr::from(*four),
        [a, b, c, d] => IpAddr::from(<[u8; 16]>::try_from([*a, *b, *c, *d].concat()).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let line = |peer: &str, state: &str, inode: &str| {
            format!(
                "   3: 0100007F:1F90 {peer} {state} 00000000:00000005 00:00000000 00000000     \
                 0        0 {inode} 1 0 20"
            )
        };
        assert!(is_ended(&line("0100007F:C001", "08", "0"), 8080));
        assert!(!is_ended(&line("0100007F:C001", "08", "0"), 8081));
        assert!(!is_ended(&line("0100007F:C001", "01", "0"), 8080));
        assert!(!is_ended(&line("0100007F:C001", "08", "77"), 8080));
        assert!(!is_ended(&line("0200000A:C001", "08", "0"), 8080));
        assert!(!is_ended("  sl  local_address rem_address   st tx_queue", 8080));
        let six = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(address(six).map(|at| at.to_string()).as_deref(), Some("127.0.0.1:8080"));
    }
}
