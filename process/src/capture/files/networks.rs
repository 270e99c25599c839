//! The network namespaces of the job: which one each socket is of, and what the kernel tells of the sockets in it.
//!
//! Called by `sockets`, `internet` and their like. A socket stays in the namespace in which it was made, wherever the
//! process has gone since: so the socket is asked (SO_NETNS_COOKIE), not the process. Its names and its connections are
//! those of its namespace: two may have the same address in different ones. Fails by: words for a refusal.

use super::found::{Group, Holder};
use super::multicast;
use crate::namespaces::Namespaces;
use holdfast_image::record::Object;
use holdfast_sys::namespaces::{self, Network};
use holdfast_sys::sock_diag::{Diag, PacketSocket, UnixSocket};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

const STRANGE: &str = "a socket of a network namespace in which no process of the job is: not supported; close it, or \
                       start `holdfast run` inside";
const OLD: &str = "a socket where the job has several network namespaces, which kernels before 5.14 do not tell apart: \
                   start `holdfast run` inside";

/// One of them.
pub(super) struct Net {
    /// Its inode, if it is not the job's.
    pub(super) place: Option<u64>,
    /// Where /proc tells of its sockets.
    pub(super) folder: String,
    /// The number by which sockets name it, and what answers for it. An error: why none does.
    asked: io::Result<(Option<u64>, Diag)>,
    unixes: OnceCell<HashMap<u64, UnixSocket>>,
    udp: OnceCell<Option<HashMap<u64, u8>>>,
    groups: OnceCell<Result<Vec<Group>, String>>,
    /// Where sockets of single packets send to, by inode: `internet` reads it, once.
    pub(super) packet_peers: OnceCell<Result<HashMap<u64, SocketAddr>, String>>,
}

impl Net {
    fn new(place: Option<u64>, folder: String, diag: io::Result<Diag>) -> Net {
        let asked = diag.map(|diag| (namespaces::of_socket(diag.socket()).ok(), diag));
        let (unixes, udp, groups) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Net { place, folder, asked, unixes, udp, groups, packet_peers: OnceCell::new() }
    }

    fn cookie(&self) -> Option<u64> {
        self.asked.as_ref().ok().and_then(|(cookie, _)| *cookie)
    }

    fn diag(&self) -> Option<&Diag> {
        self.asked.as_ref().ok().map(|(_, diag)| diag)
    }

    /// Who waits to be accepted by a unix listener.
    pub(super) fn waiting_connections(&self, inode: u64) -> io::Result<Vec<u64>> {
        self.diag().ok_or(io::ErrorKind::Unsupported)?.waiting_connections(inode)
    }

    /// What the kernel knows of a unix socket; `many`: all are asked for at once, as it looks for each among all.
    pub(super) fn unix(&self, inode: u64, many: bool) -> Option<UnixSocket> {
        if !many {
            return self.diag()?.unix_socket(inode).ok();
        }
        let all = || self.diag().and_then(|diag| diag.unix_sockets().ok()).unwrap_or_default();
        self.unixes.get_or_init(all).get(&inode).copied()
    }

    /// What was shut down of UDP sockets; `None`: the kernel does not tell.
    pub(super) fn udp_shut(&self) -> Option<&HashMap<u64, u8>> {
        self.udp.get_or_init(|| self.diag()?.udp_shut().ok()).as_ref()
    }

    /// What the kernel knows of a packet socket.
    pub(super) fn packet(&self, inode: u64) -> Option<PacketSocket> {
        self.diag()?.packet_socket(inode).ok().flatten()
    }

    /// Multicast groups that a socket in it has joined.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn groups(&self) -> Result<&[Group], String> {
        let groups = self.groups.get_or_init(|| multicast::of_network(&self.folder));
        groups.as_deref().map_err(Clone::clone)
    }
}

/// The one that a socket is of. `nets`: as [`all`] has them.
///
/// # Errors
/// None of them; or it cannot be told.
pub(super) fn of<'a>(nets: &'a [Net], taken: &OwnedFd) -> Result<&'a Net, String> {
    let Ok(cookie) = namespaces::of_socket(taken.as_fd()) else {
        return match nets {
            [own] => Ok(own),
            _ => Err(OLD.into()),
        };
    };
    if let Some(known) = nets.iter().find(|net| net.cookie() == Some(cookie)) {
        return Ok(known);
    }
    match nets.iter().find_map(|net| net.asked.as_ref().err()) {
        Some(error) => Err(format!("a socket of a network namespace that cannot be asked for it ({error})")),
        None => Err(STRANGE.into()),
    }
}

/// Those that processes are in, that of this one first.
pub(super) fn all(holders: &[Holder<'_>], job: &Namespaces) -> Vec<Net> {
    let own = Namespaces::own();
    let place = |inode: u64| (job.inode(NETWORK) != Some(inode)).then_some(inode);
    let mut all = vec![Net::new(own.inode(NETWORK).and_then(place), "/proc/self/net".into(), Diag::here())];
    let mut known = vec![own.inode(NETWORK)];
    for holder in holders {
        let inode = Namespaces::network_of(holder.tid);
        if inode.is_none() || known.contains(&inode) {
            continue;
        }
        known.push(inode);
        let diag = open(holder.tid, &own).and_then(|network| Diag::of(&network));
        all.push(Net::new(inode.and_then(place), format!("/proc/{}/net", holder.tid), diag));
    }
    all
}

const NETWORK: &str = "network";

/// That of a process, and the user namespace that it belongs to.
fn open(pid: i32, own: &Namespaces) -> io::Result<Network> {
    let network = OwnedFd::from(File::open(format!("/proc/{pid}/ns/net"))?);
    let owner = File::from(namespaces::owner(network.as_fd())?);
    let is_ours = own.inode("user") == Some(owner.metadata()?.ino());
    Ok(Network::new(network, (!is_ours).then(|| owner.into())))
}

/// Has a socket know the one that it is of.
pub(super) fn placed(mut object: Object, net: &Net) -> Object {
    match &mut object {
        Object::Socket(socket) => socket.network = net.place,
        Object::SocketPair { network, .. } => *network = net.place,
        _ => {}
    }
    object
}
