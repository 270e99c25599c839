//! Connections that wait in the queue of a listener of the program: who made them has written maybe, and is gone maybe.
//!
//! Called by [`super::sockets`] for each listener, inside the stop. One whose other end the program still has is seen
//! at that end. One from outside is lost by a restart like every connection to the outside; the listener serves new
//! ones. One whose other end was closed is known to the queue alone, which cannot be looked into: the checkpoint
//! waits until it is accepted.

use super::networks::Net;
use super::{FileReader, Look, Obstacle};
use crate::tcp_table::{self, Line};
use holdfast_sys::socket::tcp_state::{CLOSE_WAIT, ESTABLISHED};
use holdfast_sys::socket::{self, TcpInfo};
use std::os::fd::{AsFd, OwnedFd};

const ENDED: &str = "a connection that was not accepted yet, and whose other end is closed already: it would be lost; \
                     try again";
const NOT_ACCEPTED: &str =
    "a connection that was not accepted yet, of another member of the gang perhaps; try again";

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
        let all = tcp_table::table(&net.folder)?;
        let waits = || all.iter().filter(|line| line.inode == 0 && line.ends.0.port() == at.port());
        if waits().any(is_ended) {
            return Err(Obstacle::Passing(ENDED.into()));
        }
        if !self.is_in_gang() {
            return Ok(());
        }
        // One that a member has made is to be accepted first, and one whose other end is closed is known to no member.
        let known = self.known_ends();
        let is_strange = |line: &Line| {
            [ESTABLISHED, CLOSE_WAIT].contains(&line.state) && !known.contains(&(line.ends.1, line.ends.0))
        };
        if waits().any(is_strange) {
            return Err(Obstacle::Passing(NOT_ACCEPTED.into()));
        }
        Ok(())
    }
}

/// Whether it is a connection from this host, not accepted (such have no inode), whose other end is closed.
fn is_ended(line: &Line) -> bool {
    let (local, peer) = line.ends;
    line.state == CLOSE_WAIT && line.inode == 0 && (peer.ip() == local.ip() || peer.ip().is_loopback())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_the_queue_alone_knows_is_told_from_the_rest() {
        let line = |peer: &str, state: u8, inode: u64| {
            let ends = ("127.0.0.1:8080".parse().unwrap(), peer.parse().unwrap());
            Line { ends, state, queued: 0, inode }
        };
        assert!(is_ended(&line("127.0.0.1:49153", CLOSE_WAIT, 0)));
        assert!(!is_ended(&line("127.0.0.1:49153", ESTABLISHED, 0)));
        assert!(!is_ended(&line("127.0.0.1:49153", CLOSE_WAIT, 77)));
        assert!(!is_ended(&line("10.0.0.2:49153", CLOSE_WAIT, 0)));
    }
}
