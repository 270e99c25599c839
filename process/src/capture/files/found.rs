//! What is known of descriptors while they are read, and of who has them.

use crate::capture::identity::DELETED;
use crate::capture::mounts::{Place, View};
use crate::inject::copied_files::Copies;
use crate::namespaces::Namespaces;
use holdfast_image::bytes::Name;
use holdfast_image::record::Within;
use holdfast_sys::procfs::DescriptorInfo;
use holdfast_sys::socket::TcpInfo;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// One process whose descriptors are read.
pub struct Holder<'a> {
    /// Its id.
    pub pid: i32,
    /// Its id as it sees it itself.
    pub inner_pid: i32,
    /// Its id as it sees itself: another one in a pid namespace that a program of the job has made.
    pub own_pid: i32,
    /// Any thread of it.
    pub tid: i32,
    /// The process.
    pub pidfd: &'a OwnedFd,
    /// Copies of its descriptors, where the agent cannot take them.
    pub copies: Option<Copies>,
    /// The library's own connection, if it is waiting for an answer of ours.
    pub own: Option<i32>,
    /// It runs on, and the CUDA driver will give back its devices before a cut: they are left out.
    pub uses_cuda: bool,
}

/// A descriptor as found.
pub(super) struct Found {
    /// Place of its process; behind all of them: this one, which has copies of what is in flight.
    pub(super) holder: usize,
    /// It is in a message that waits.
    pub(super) is_passed: bool,
    pub(super) fd: i32,
    pub(super) info: DescriptorInfo,
    pub(super) target: Vec<u8>,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// It is on a mount of a namespace that a program has made.
    pub(super) within: Option<Within>,
    /// Its path is that, and none of the job's.
    pub(super) only_inside: bool,
    /// It is on a mount that no namespace of the job has any more.
    pub(super) detached: bool,
}

impl Found {
    /// Has it at the path by which the job has it. `views`: the mount namespaces that programs have made.
    pub(super) fn follow(&mut self, views: &[View]) {
        // A restart finds what is of /proc in its own.
        let is_other = self.target.starts_with(b"/") && !self.target.starts_with(b"/proc/");
        if !is_other || self.target.ends_with(DELETED) {
            return;
        }
        let Some(mount) = self.info.get("mnt_id").and_then(|id| id.parse().ok()) else { return };
        let placed = views.iter().find_map(|view| Some((view, view.place(mount, &self.target)?)));
        let Some((view, place)) = placed else {
            // Of message queues and the like, which are on no mount that is seen, the kind says what they are.
            self.detached = !views.iter().any(|view| view.is_of_job(mount));
            return;
        };
        self.within = Some(Within { namespace: view.inode, path: Name(self.target.clone()) });
        match place {
            Place::Outside(outside) => self.target = outside,
            Place::Only => self.only_inside = true,
        }
    }

    pub(super) fn is_socket(&self) -> bool {
        self.target.starts_with(b"socket:")
    }
}

/// What may lead out of the program.
#[derive(Clone, Copy, Debug)]
pub struct Outside<'a> {
    /// Descriptors that the program was started with and that lead outside: number, device, inode.
    pub inherited: &'a [(i32, u64, u64)],
    /// TCP connections to peers outside are given up at a restart, instead of refused.
    pub lose_connections: bool,
    /// It is a member of a gang: TCP connections that this member has at one end only may lead to others.
    pub in_gang: bool,
    /// `holdfast run` or `restart`, while it lives: it has the standard streams that the program was given.
    pub front: Option<i32>,
    /// Those of the job.
    pub namespaces: &'a Namespaces,
}

/// What the program does while it is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// It is stopped, and everything is read.
    Stopped,
    /// It runs on, and only what is refused counts.
    Running,
}

/// An internet stream of the program.
pub(super) struct Stream {
    pub(super) inode: u64,
    /// The network namespace that it is of, and where /proc tells of that.
    pub(super) network: (Option<u64>, String),
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) info: TcpInfo,
}

impl Stream {
    pub(super) fn ends(&self) -> StreamEnds {
        (self.network.0, self.local, self.peer)
    }

    /// As the other end has them.
    pub(super) fn ends_there(&self) -> StreamEnds {
        (self.network.0, self.peer, self.local)
    }
}

/// The network namespace of a stream, its address, and that of the other end.
pub(super) type StreamEnds = (Option<u64>, SocketAddr, SocketAddr);

/// Ends of TCP connections of a network namespace: their address, and that of the other end.
#[derive(Debug)]
pub(super) struct TcpEnds {
    /// A process has them.
    pub(super) held: HashSet<(SocketAddr, SocketAddr)>,
    /// No process has them, and they still send.
    pub(super) closing: HashSet<(SocketAddr, SocketAddr)>,
}

/// A group that a socket has joined on an interface.
pub(super) type Group = (u32, IpAddr);

/// What the members of a gang have said of their ends of TCP connections.
#[derive(Default)]
pub(super) struct Members {
    /// The job is a member, and its programs are stopped together with those of the others.
    pub(super) is_gang: bool,
    /// By the inode of the own end.
    pub(super) known: HashMap<u64, Known>,
    /// Where other members listen.
    pub(super) listening: Vec<(u32, SocketAddr)>,
    /// At which addresses they have connections.
    pub(super) addresses: HashMap<IpAddr, u32>,
}

/// An end whose other end another member has.
pub(super) struct Known {
    /// Which.
    pub(super) member: u32,
    /// Both images call the connection so.
    pub(super) connection: [u8; 16],
    /// Why it is not whole.
    pub(super) why: Option<String>,
}
