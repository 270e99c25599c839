//! Who has connected to a listener that a restart has for a moment: the other end of the connection, or a stranger.
//!
//! Runs in the new process; called by [`super::sockets`]. The address is one that others know, and any process of the
//! host may connect to it: only the program's own end is taken, others are closed, as without a listener. How it
//! fails: an error of accept(2).

use super::networks::Networks;
use holdfast_image::record::internet_address;
use holdfast_sys::sock_diag::UnixSocket;
use holdfast_sys::socket;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Accepts the connection that a socket has made to a listener, which is of the network namespace at this place.
///
/// # Errors
/// As `accept(2)`.
pub fn accept_from(
    listener: &OwnedFd,
    client: &OwnedFd,
    (networks, place): (&Networks, Option<u64>),
) -> io::Result<OwnedFd> {
    loop {
        let accepted = socket::accept(listener.as_fd())?;
        if is_other_end(&accepted, client, |inode| networks.unix_socket(place, inode))? {
            return Ok(accepted);
        }
    }
}

fn is_other_end(
    accepted: &OwnedFd,
    client: &OwnedFd,
    unix_socket: impl Fn(u64) -> io::Result<UnixSocket>,
) -> io::Result<bool> {
    let there = socket::peer_address(accepted.as_fd())?;
    let here = socket::local_address(client.as_fd())?;
    if let (Some(there), Some(here)) = (canonical(&there), canonical(&here)) {
        return Ok(there == here);
    }
    // Most unix sockets that connect have no name. A kernel without diag of them cannot tell.
    let peer = unix_socket(inode(accepted)?);
    peer.map_or(Ok(there == here), |told| inode(client).map(|client| told.peer == Some(client)))
}

/// An address of IPv4 is the same in either family.
fn canonical(address: &[u8]) -> Option<SocketAddr> {
    let address = internet_address(address)?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

fn inode(socket: &OwnedFd) -> io::Result<u64> {
    Ok(File::from(socket.try_clone()?).metadata()?.ino())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn check(domain: i32, address: &[u8]) {
        let new = || socket::new(domain, libc::SOCK_STREAM, 0).unwrap();
        let listener = new();
        socket::bind(listener.as_fd(), address).unwrap();
        socket::listen(listener.as_fd(), 8).unwrap();
        let address = socket::local_address(listener.as_fd()).unwrap();
        let connect = |client: &OwnedFd| socket::connect(client.as_fd(), &address).unwrap();
        let (stranger, own, last) = (new(), new(), new());
        [&stranger, &own, &last].into_iter().for_each(connect);
        let accepted = accept_from(&listener, &own, (&Networks::default(), None)).unwrap();
        holdfast_sys::fd::send(own.as_fd(), b"mine", 0).unwrap();
        assert_eq!(socket::receive_from(accepted.as_fd(), &mut [0; 8], 0).unwrap().len, 4);
        assert_eq!(socket::receive_from(stranger.as_fd(), &mut [0; 8], 0).unwrap().len, 0, "it was closed");
    }

    #[test]
    fn a_stranger_is_never_taken_for_the_other_end() {
        check(libc::AF_INET, &[&2_u16.to_ne_bytes()[..], &[0, 0], &[127, 0, 0, 1], &[0; 8]].concat());
        check(libc::AF_UNIX, &1_u16.to_ne_bytes());
    }
}
