//! In which network namespace a socket is made: the job's, or one that a program of the job had made.
//!
//! Called by [`super::objects`], [`super::sockets`] and [`super::datagrams`], in the first new process. A socket stays
//! in the namespace in which it was made, so that the process itself need not go there. How it fails: as socket(2); the
//! image has no such namespace.

use super::namespaces::MadeNamespaces;
use holdfast_image::namespaces::{NamespaceContent, NamespaceRecord};
use holdfast_sys::namespaces::Network;
use holdfast_sys::sock_diag::{self, Diag, UnixSocket};
use holdfast_sys::{fd, socket};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

/// Those that programs had made, by their places.
#[derive(Debug, Default)]
pub struct Networks(HashMap<u64, Network>);

impl Networks {
    /// Of a job.
    ///
    /// # Errors
    /// EMFILE.
    pub fn of(records: &[NamespaceRecord], made: &MadeNamespaces) -> io::Result<Networks> {
        let mut all = HashMap::new();
        for (place, record) in (0_u32..).zip(records) {
            if !matches!(record.content, NamespaceContent::Network { .. }) {
                continue;
            }
            let opened = |place: u32| made.get(place).ok_or_else(none)?.try_clone();
            let owner = record.owner.map(opened).transpose()?;
            all.insert(u64::from(place), Network::new(opened(place)?, owner));
        }
        Ok(Networks(all))
    }

    fn at(&self, place: u64) -> io::Result<&Network> {
        self.0.get(&place).ok_or_else(none)
    }

    /// `socket(2)` at a place; `None`: in the job's.
    ///
    /// # Errors
    /// As the call.
    pub fn socket(
        &self,
        place: Option<u64>,
        (domain, socket_type, protocol): (i32, i32, i32),
    ) -> io::Result<OwnedFd> {
        match place {
            Some(place) => self.at(place)?.socket(domain, socket_type, protocol),
            None => socket::new(domain, socket_type, protocol),
        }
    }

    /// The same of a pair of unix sockets.
    ///
    /// # Errors
    /// As the call.
    pub fn pair(&self, place: Option<u64>, socket_type: i32) -> io::Result<(OwnedFd, OwnedFd)> {
        match place {
            Some(place) => self.at(place)?.pair(socket_type),
            None => fd::socketpair(socket_type),
        }
    }

    /// What the kernel knows of a unix socket.
    ///
    /// # Errors
    /// It has no unix diag.
    pub fn unix_socket(&self, place: Option<u64>, inode: u64) -> io::Result<UnixSocket> {
        match place {
            Some(place) => Diag::of(self.at(place)?)?.unix_socket(inode),
            None => sock_diag::unix_socket(inode),
        }
    }
}

fn none() -> io::Error {
    io::Error::other("it is in a network namespace that the image does not have")
}
