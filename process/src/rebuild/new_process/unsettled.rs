//! What is done to sockets when all are bound: until then one could be in the way of another.
//!
//! Runs in the new process; filled by [`super::sockets`], done by [`super::objects`]. The kernel lets sockets share a
//! port by options that they have at that moment (net/ipv4/inet_connection_sock.c, inet_csk_bind_conflict), and the
//! program may have changed them since: so they have what lets them share until the last is bound and listens. Files
//! that get another name get it when no socket needs their old one any more. How it fails: an error names the address
//! or the file.

use super::socket_files::Renaming;
use crate::rebuild::error::RebuildError;
use crate::rebuild::socket_addresses::not_bound;
use crate::rebuild::socket_setup::{canonical_address, made_by, set_options};
use holdfast_image::record::{Description, Object, SocketRecord, SocketState};
use holdfast_sys::socket;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Sockets with what is left to be done.
#[derive(Debug, Default)]
pub struct Unsettled {
    ports: Vec<Port>,
    /// Those of the internet, with their options.
    sockets: Vec<(OwnedFd, SocketRecord)>,
    /// Files that are to get another name.
    pub renamings: Vec<Renaming>,
    /// Files of sockets whose names are gone, and that others are connected to, by number.
    pub held: HashMap<u64, OwnedFd>,
}

/// An address that a socket is bound to, and that is no connection's.
#[derive(Debug)]
struct Port {
    network: Option<u64>,
    protocol: u32,
    address: SocketAddr,
    /// SO_REUSEPORT.
    shares: bool,
    listens: bool,
}

impl Unsettled {
    /// For the sockets of a job.
    pub fn of(descriptions: &[Description]) -> Unsettled {
        let ports = descriptions.iter().filter_map(|description| match &description.object {
            Object::Socket(record) => port(record),
            _ => None,
        });
        Unsettled { ports: ports.collect(), ..Unsettled::default() }
    }

    /// Whether a socket shares its port with another one, by SO_REUSEPORT.
    pub fn shares_port(&self, record: &SocketRecord) -> bool {
        let Some(own) = port(record) else { return false };
        let meets = |other: &&Port| {
            let (one, two) = (own.address.ip(), other.address.ip());
            (other.network, other.protocol, other.address.port())
                == (own.network, own.protocol, own.address.port())
                && (one == two || one.is_unspecified() || two.is_unspecified())
        };
        let all: Vec<&Port> = self.ports.iter().filter(meets).collect();
        // Two that listen have shared it by that, whatever has become of the option.
        all.len() > 1
            && (all.iter().any(|port| port.shares) || all.iter().filter(|port| port.listens).nth(1).is_some())
    }

    /// Takes note of a socket of the internet that was just bound.
    ///
    /// # Errors
    /// EMFILE.
    pub fn note(&mut self, made: &OwnedFd, record: &SocketRecord) -> io::Result<()> {
        self.sockets.push((made.try_clone()?, record.clone()));
        Ok(())
    }

    /// All are bound.
    ///
    /// # Errors
    /// Another program has an address, or a name.
    pub fn settle(&mut self) -> Result<(), RebuildError> {
        for (made, record) in &self.sockets {
            if let SocketState::Listening { backlog } = &record.state {
                listen(made, record, *backlog)?;
            }
        }
        for (made, record) in self.sockets.drain(..) {
            set_options(&made, &record.options);
        }
        self.renamings.drain(..).try_for_each(Renaming::finish)
    }
}

/// Has a socket listen, made by whom it was.
///
/// # Errors
/// Another program has the address.
pub fn listen(made: &OwnedFd, record: &SocketRecord, backlog: u32) -> Result<(), RebuildError> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    made_by(record.peer_ids, || socket::listen(made.as_fd(), backlog))
        .map_err(|error| not_bound(record, error))
}

fn port(record: &SocketRecord) -> Option<Port> {
    let address = canonical_address(record).filter(|address| address.port() != 0)?;
    let listens = match record.state {
        SocketState::Connected { .. } | SocketState::Member { .. } => return None,
        SocketState::Listening { .. } => true,
        _ => false,
    };
    let shares = record.options.iter().any(|option| {
        (option.level, option.name) == (libc::SOL_SOCKET, libc::SO_REUSEPORT)
            && option.value.0.iter().any(|&byte| byte != 0)
    });
    Some(Port { network: record.network, protocol: record.protocol, address, shares, listens })
}
