//! Sockets of single messages: what waited in unix datagram sockets is sent again, by its sender where that is the
//! program's; netlink sockets get their addresses and groups.
//!
//! Runs in the new process ([`super::objects`]), when all sockets are bound and none is connected: a socket that is
//! takes messages from one sender only (net/unix/af_unix.c, unix_may_send). How it fails: an error names the socket.

use super::flight::{Made, along};
use super::networks::Networks;
use super::senders::{Senders, Way};
use super::socket_files::{self, address_of_held};
use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::Opener;
use holdfast_image::record::{Datagram, Object, SocketRecord, SocketState};
use holdfast_sys::{scm, socket};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const DATAGRAM: (i32, i32, i32) = (libc::AF_UNIX, libc::SOCK_DGRAM, 0);
const SOL_NETLINK: i32 = 270;
const NETLINK_ADD_MEMBERSHIP: i32 = 1;
const NETLINK_LIST_MEMBERSHIPS: i32 = 9;

/// A name, and the network namespace in which it is one; paths are in all.
type Address = (Option<u64>, Vec<u8>);

/// Sockets of single messages, by their address.
#[derive(Debug, Default)]
pub struct Named(Vec<(Address, OwnedFd)>);

impl Named {
    /// Takes note of a socket that may have sent or got something.
    ///
    /// # Errors
    /// EMFILE.
    pub fn note(&mut self, record: &SocketRecord, made: &OwnedFd) -> io::Result<()> {
        let kind = (record.domain.cast_signed(), record.socket_type.cast_signed());
        if kind == (libc::AF_UNIX, libc::SOCK_DGRAM) && record.local.0.len() > 2 {
            self.0.push((key(record.network, &record.local.0), made.try_clone()?));
        }
        Ok(())
    }

    fn at(&self, network: Option<u64>, name: &[u8]) -> Option<&OwnedFd> {
        let wanted = key(network, name);
        self.0.iter().find(|(other, _)| *other == wanted).map(|(_, socket)| socket)
    }

    /// Sends what waited in a socket. A sender that the program has closed is there again for that moment; one that
    /// lives outside has the name: what it sent has no sender now, which the note says. `held`: files of sockets whose
    /// names are gone; `networks`: where it is made; `made`: all descriptions; `opener`: of the process that has the
    /// socket.
    ///
    /// # Errors
    /// Names the socket.
    pub fn send_again(
        &mut self,
        object: &Object,
        ((held, networks), made): ((&HashMap<u64, OwnedFd>, &Networks), Made<'_>),
        (senders, opener): (&Senders, impl Fn() -> Option<Opener>),
        notes: &mut Vec<String>,
    ) -> Result<(), RebuildError> {
        let Object::Socket(record) = object else { return Ok(()) };
        let failed = || RebuildError::io(format!("putting back a message for {}", record.address()));
        let file = record.number.and_then(|number| held.get(&number));
        let address = file.and_then(address_of_held);
        let address = address.as_ref().unwrap_or(&record.local.0);
        for message in &record.messages {
            if message.from.0.len() > 2
                && self.at(record.network, &message.from.0).is_none()
                && let Some(former) = opener().and_then(|opener| former(record, message, (&opener, networks)))
            {
                self.0.push((key(record.network, &message.from.0), former));
            }
            let to = self.at(record.network, &record.local.0).map(AsFd::as_fd);
            let known = self.at(record.network, &message.from.0);
            let stranger = match known {
                Some(_) => None,
                None => Some(networks.socket(record.network, DATAGRAM).map_err(failed())?),
            };
            let Some(from) = known.or(stranger.as_ref()).map(AsFd::as_fd) else { continue };
            let along = along(&message.passed, made).map_err(failed())?;
            let along: Vec<BorrowedFd<'_>> = along.iter().map(AsFd::as_fd).collect();
            let send = |sender| match scm::send_along(from, &message.data.0, sender, address, &along)? {
                sent if sent == message.data.0.len() => Ok(()),
                _ => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
            };
            let name = record.address();
            senders.send(Way { from, to }, message.sender, send, (&name, notes)).map_err(failed())?;
            if stranger.is_some() && message.from.0.len() > 2 {
                notes.push(format!("a message for {name} has lost the name of its sender"));
            }
        }
        Ok(())
    }
}

fn key(network: Option<u64>, name: &[u8]) -> Address {
    let is_path = name.get(2).is_some_and(|first| *first != 0);
    (network.filter(|_| !is_path), name.to_vec())
}

/// A socket with the name of one that has sent a message to the owner of `record` and was closed. Its file is there
/// afterwards if it was at the checkpoint. `None`: the name is in use, or cannot be had.
fn former(
    record: &SocketRecord,
    message: &Datagram,
    (opener, networks): (&Opener, &Networks),
) -> Option<OwnedFd> {
    let made = networks.socket(record.network, DATAGRAM).ok()?;
    let sender = SocketRecord {
        local: message.from.clone(),
        state: SocketState::Idle,
        mode: message.file.map_or(0o600, |file| file.mode),
        owner: message.file.and_then(|file| file.owner),
        deleted: message.file.is_none(),
        renamed: None,
        messages: Vec::new(),
        number: None,
        ..record.clone()
    };
    match sender.path() {
        None => socket::bind(made.as_fd(), &sender.local.0).ok()?,
        // What has come there since is not the program's.
        Some(path) if sender.deleted && path.symlink_metadata().is_ok() => return None,
        Some(path) => socket_files::bind(&made, path, &sender, opener).ok()?,
    }
    socket_files::remove(&sender, opener);
    Some(made)
}

/// Gives a netlink socket its address (struct sockaddr_nl: family, padding, port, groups) and its groups. A port
/// that is taken becomes another one.
///
/// # Errors
/// As bind; EPERM: a group is for the privileged.
pub fn bind_netlink(made: &OwnedFd, record: &SocketRecord) -> io::Result<()> {
    let mut address = record.local.0.clone();
    if address.iter().skip(4).any(|&byte| byte != 0) {
        match socket::bind(made.as_fd(), &address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                address.get_mut(4..8).into_iter().for_each(|port| port.fill(0));
                socket::bind(made.as_fd(), &address)?;
            }
            other => other?,
        }
    }
    let lists = record
        .options
        .iter()
        .filter(|option| (option.level, option.name) == (SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS));
    for (byte, bits) in lists.flat_map(|list| (0_i32..).zip(&list.value.0)) {
        for bit in (0..8).filter(|bit| bits & 1 << bit != 0) {
            let group = (byte * 8 + bit + 1).to_ne_bytes();
            socket::set_option(made.as_fd(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group)?;
        }
    }
    Ok(())
}
