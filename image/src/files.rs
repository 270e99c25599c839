//! The files part of the process record: descriptors, what they refer to, and what was in flight.
//!
//! Written by `process::capture::files` at the stop, read by `process::rebuild`; part of [`crate::record`], where it is
//! checked. Invariants: plain data.

use crate::bytes::{Blob, Name};
pub use crate::contents::*;
use crate::folders::FolderRecord;
pub use crate::inode::*;
pub use crate::inotify::*;
pub use crate::ipc::*;
use crate::region::FileIdentity;
pub use crate::sysv_shm::*;
pub use crate::terminals::*;
pub use crate::unlinked::*;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Address families (include/linux/socket.h).
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;

/// All open files and all files that are mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileTable {
    /// Descriptors, ascending.
    pub descriptors: Vec<Descriptor>,
    /// Open file descriptions that they refer to; sharing by dup is an equal index.
    pub descriptions: Vec<Description>,
    /// Files behind mappings.
    pub mapped: Vec<FileIdentity>,
    /// Files without a name, open or mapped; those of all processes are in the record of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameless: Vec<NamelessFile>,
    /// Pseudo-terminals; those of all processes are in the record of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ptys: Vec<Pty>,
    /// System V shared memory; that of all processes is in the record of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<SysvShmRecord>,
    /// What is in those that no process had attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segment_contents: Vec<SegmentContent>,
    /// System V semaphores and message queues; those of all processes are in the record of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ipc: Vec<IpcObject>,
    /// What was in files with names, if the job saves them; of all processes in the record of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<FileContent>,
    /// Folders that things of all processes were in, and those above them, in the record of the first process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<FolderRecord>,
    /// Of a process that leads its session: which of [`FileTable::ptys`] is its controlling terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controlling: Option<u32>,
    /// The process group is in the foreground of its controlling terminal, of whatever session that is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_foreground: bool,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl FileTable {
    /// Whether there is something in it that only the first process's may have.
    pub fn has_what_is_kept_once(&self) -> bool {
        !self.descriptions.is_empty()
            || !self.nameless.is_empty()
            || !self.ptys.is_empty()
            || !self.segments.is_empty()
            || !self.segment_contents.is_empty()
            || !self.ipc.is_empty()
            || !self.contents.is_empty()
            || !self.folders.is_empty()
    }

    /// What was in the file that an object is, if it was saved.
    pub fn content_of(&self, object: &Object) -> Option<&FileContent> {
        self.contents.iter().find(|content| object.is_saved_as(content))
    }
}

/// A descriptor number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// The number.
    pub fd: i32,
    /// FD_CLOEXEC.
    pub cloexec: bool,
    /// Index into [`FileTable::descriptions`].
    pub description: u32,
}

/// An open file description.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Description {
    /// `flags` of fdinfo without O_CLOEXEC (O_ACCMODE, O_APPEND, O_NONBLOCK …).
    pub flags: u32,
    /// What it is.
    pub object: Object,
    /// Locks that were taken through it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<FileLock>,
    /// Who gets the signals that it causes, if a process was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// As which standard streams the program was given it (bit n: descriptor n): a restart may give it its own.
    #[serde(default, skip_serializing_if = "is_no_stream")]
    pub streams: u8,
}

fn is_no_stream(streams: &u8) -> bool {
    *streams == 0
}

/// Who gets the signals that a file causes, and which (F_SETOWN_EX and F_SETSIG of fcntl(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// F_OWNER_TID (0), F_OWNER_PID (1) or F_OWNER_PGRP (2).
    pub kind: i32,
    /// Its id, as the processes know it.
    pub id: i32,
    /// The signal; 0: SIGIO.
    pub signal: i32,
    /// Real and effective user id of who has said so; whom the signals may reach depends on them. `None`: not told
    /// (images of old).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_by: Option<[u32; 2]>,
}

/// Whose a file lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockKind {
    /// flock(2).
    Flock,
    /// fcntl(2), F_SETLK: the process's.
    Posix,
    /// fcntl(2), F_OFD_SETLK: the open file description's.
    Description,
    /// fcntl(2), F_SETLEASE.
    Lease,
}

/// A lock on a file (a `lock:` line of fdinfo).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileLock {
    /// Whose it is.
    pub kind: LockKind,
    /// For writing, exclusive; otherwise for reading, shared.
    pub exclusive: bool,
    /// First byte.
    pub start: u64,
    /// Bytes; 0: to the end of the file, wherever that is.
    pub len: u64,
    /// Of a process's lock ([`LockKind::Posix`]): its process, by its place in the job: 0 is the first, n the n-th of
    /// [`crate::record::ProcessRecord::others`].
    #[serde(default, skip_serializing_if = "is_first")]
    pub process: u32,
}

fn is_first(process: &u32) -> bool {
    *process == 0
}

/// What an open file description refers to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Object {
    /// A regular file. At restart one that was open for writing is put back to `size`.
    Regular {
        /// Absolute path; for a deleted file where it was.
        path: Name,
        /// Offset.
        position: u64,
        /// Length at the cut.
        size: u64,
        /// Device and inode at the cut: a replaced file is noticed.
        device: u64,
        /// Inode.
        inode: u64,
        /// Modification time at the cut, nanoseconds.
        mtime_ns: i64,
        /// Time of birth, nanoseconds, where it is known: with the inode, by which a file is found that was renamed
        /// since.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        born_ns: Option<i64>,
        /// At a restart: where it is now, if not at `path`.
        #[serde(skip)]
        now: Option<Name>,
        /// Permission bits, to create it anew when it is gone.
        mode: u32,
        /// Whose it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<Ownership>,
        /// Content of a file that had no name any more (in images made before there was [`Object::Nameless`]).
        deleted_content: Option<Blob>,
    },
    /// A memfd, or a file that was deleted.
    Nameless {
        /// Index into [`FileTable::nameless`].
        file: u32,
        /// Offset.
        position: u64,
    },
    /// A directory.
    Directory {
        /// Absolute path.
        path: Name,
        /// Offset as `lseek` knows it.
        position: u64,
        /// Which one it was, and whose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inode: Option<Inode>,
    },
    /// `/dev/null`, `/dev/zero`, `/dev/full`, `/dev/random`, `/dev/urandom`.
    Device {
        /// Absolute path.
        path: Name,
    },
    /// The master of a pseudo-terminal.
    PtyMaster {
        /// Index into [`FileTable::ptys`].
        pty: u32,
    },
    /// The slave of a pseudo-terminal.
    PtySlave {
        /// Index into [`FileTable::ptys`].
        pty: u32,
    },
    /// A descriptor that the program was started with and that leads outside (terminal, pipe, socket): taken from
    /// `holdfast restart`. One above 2 that is not open there is replaced by `/dev/null`.
    Inherited {
        /// Descriptor of `holdfast restart` to take.
        from: i32,
        /// What it was, for messages (`/dev/pts/3`, `pipe:[77]`).
        was: Name,
    },
    /// One end of a pipe both of whose ends are in the process, or of a named pipe.
    Pipe {
        /// Same number: same pipe.
        pipe: u64,
        /// F_GETPIPE_SZ.
        capacity: u64,
        /// Bytes in flight (stored with the read end; empty at the write end).
        data: Blob,
        /// Of a named pipe (FIFO): absolute path.
        #[serde(default)]
        path: Option<Name>,
        /// Permission bits of a named pipe, to make it anew when it is gone.
        #[serde(default)]
        mode: u32,
        /// Lengths of the packets that the data consists of, of a pipe in packet mode (O_DIRECT); none: a stream.
        #[serde(default)]
        packets: Vec<u32>,
        /// Of a named pipe: it was deleted, and the path is where it was.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        deleted: bool,
        /// Of a named pipe: which one it was, and whose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inode: Option<Inode>,
    },
    /// One end of a pair of nameless unix sockets both of whose ends are in the process, or whose other end was closed.
    SocketPair {
        /// Same number: same pair.
        pair: u64,
        /// SOCK_STREAM, SOCK_DGRAM or SOCK_SEQPACKET.
        socket_type: u32,
        /// Messages waiting to be read at this end.
        data: Vec<Blob>,
        /// Who is told to have sent each of them, where this end is told (SO_PASSCRED).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        senders: Vec<Sender>,
        /// SO_SNDBUF as the kernel reports it (twice what was set).
        send_buffer: u32,
        /// SO_RCVBUF likewise.
        receive_buffer: u32,
        /// SO_SNDTIMEO, microseconds; 0: none.
        #[serde(default)]
        send_timeout_us: u64,
        /// SO_RCVTIMEO likewise.
        #[serde(default)]
        receive_timeout_us: u64,
        /// Options that can be set, as `getsockopt(2)` gives them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        options: Vec<SocketOption>,
        /// This end has sent its last.
        #[serde(default)]
        shut: bool,
        /// Of datagrams: this end receives nothing any more (of streams, the other one has sent its last then).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        shut_reading: bool,
        /// SO_PEERCRED, if that is not who has started the job.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_ids: Option<Ownership>,
        /// Of a stream: where bytes were sent out of band in what waits.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        marks: Vec<UrgentMark>,
    },
    /// Any other socket.
    Socket(Box<SocketRecord>),
    /// eventfd(2).
    EventFd {
        /// Counter.
        count: u64,
        /// EFD_SEMAPHORE.
        semaphore: bool,
    },
    /// epoll(7).
    Epoll {
        /// What it watches.
        entries: Vec<EpollEntry>,
    },
    /// timerfd_create(2).
    TimerFd {
        /// Clock.
        clock: i32,
        /// Expirations not read yet.
        ticks: u64,
        /// Flags of timerfd_settime.
        settime_flags: u32,
        /// Time left, nanoseconds; 0: not armed.
        value_ns: u64,
        /// Period, nanoseconds.
        interval_ns: u64,
    },
    /// signalfd(2).
    SignalFd {
        /// Mask.
        mask: u64,
    },
    /// inotify(7).
    Inotify {
        /// What it watches, by ascending number.
        watches: Vec<Watch>,
    },
    /// pidfd_open(2).
    PidFd {
        /// The process, as the program knows it; -1: it has ended, and its parent has waited for it.
        pid: i32,
        /// Of one that has ended: the same number for the same process; 0: not recorded.
        #[serde(default, skip_serializing_if = "is_zero")]
        gone: u64,
    },
    /// Held open by libholdfast itself; is closed after a restart.
    Own,
}

impl Object {
    /// Whether it is the file whose content was saved.
    pub fn is_saved_as(&self, content: &FileContent) -> bool {
        let saved = (content.device, content.inode);
        matches!(self, Object::Regular { device, inode, .. } if (*device, *inode) == saved)
    }

    /// Of what has a path: which file it was, and whose.
    pub fn inode(&self) -> Option<Inode> {
        match self {
            Object::Regular { device, inode, born_ns, mode, owner, .. } => {
                Some(Inode::regular((*device, *inode), *born_ns, *mode, *owner))
            }
            Object::Directory { inode, .. } | Object::Pipe { inode, .. } => *inode,
            _ => None,
        }
    }
}

/// A socket with an address, or one that is not connected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketRecord {
    /// AF_UNIX, AF_INET, AF_INET6 or AF_NETLINK.
    pub domain: u32,
    /// SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET, or SOCK_RAW of AF_NETLINK.
    pub socket_type: u32,
    /// SO_PROTOCOL.
    pub protocol: u32,
    /// Bytes of its struct sockaddr; of a socket without address: its family alone, or zeros.
    pub local: Blob,
    /// What it is doing.
    pub state: SocketState,
    /// Options that can be set, as `getsockopt(2)` gives them.
    pub options: Vec<SocketOption>,
    /// Permission bits of the file of a unix socket with a path.
    pub mode: u32,
    /// Whose that file was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Ownership>,
    /// That file was deleted, or another one has its name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// What that file is called now, in the same folder, if it has got another name since it was bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed: Option<Name>,
    /// What waits to be read in a unix datagram socket.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Datagram>,
    /// What was shut down, where the other end of a connection does not show it: 1 reading, 2 writing.
    #[serde(default, skip_serializing_if = "is_open")]
    pub shut: u8,
    /// The program of a classic filter (SO_ATTACH_FILTER), as SO_GET_FILTER gives it: struct sock_filter, 8 bytes each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Blob>,
    /// Of a unix datagram socket whose name is gone: its number, by which others are connected to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// Of a unix socket, SO_PEERCRED, if that is not who has started the job: of the other end of a connection, or of
    /// who listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_ids: Option<Ownership>,
    /// Who has made it, if that is not who has started the job: whose it is to rules of the network, and who may share
    /// its port (SO_REUSEPORT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Ownership>,
}

fn is_open(shut: &u8) -> bool {
    *shut == 0
}

/// A message, and where it came from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Datagram {
    /// Bytes of the struct sockaddr of the sender; none: it has no name.
    pub from: Blob,
    /// What it sent.
    pub data: Blob,
    /// Who is told to have sent it, where the socket is told (SO_PASSCRED).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<Sender>,
    /// The file of the socket that has sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<SenderFile>,
}

/// The file of a socket whose name a message has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SenderFile {
    /// Its permission bits.
    pub mode: u32,
    /// Whose it is.
    pub owner: Option<Ownership>,
}

/// Who has sent a message: struct ucred of unix(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sender {
    /// Its id, as the processes know it; 0: it had none here.
    pub pid: i32,
    /// User id; 65534 of a message that says nothing of its sender.
    pub user: u32,
    /// Group id.
    pub group: u32,
}

impl Sender {
    /// Whether the message says nothing of its sender: it was sent when neither end wanted to be told.
    pub fn is_none(&self) -> bool {
        /// What the kernel shows for no id (/proc/sys/kernel/overflowuid).
        const OVERFLOW_ID: u32 = 65534;
        self.pid == 0 && self.user == OVERFLOW_ID
    }
}

impl SocketRecord {
    /// The path of a unix socket that has one.
    pub fn path(&self) -> Option<&Path> {
        unix_path(&self.local.0).filter(|_| self.domain == AF_UNIX)
    }
    /// The address as people write it.
    pub fn address(&self) -> String {
        if self.domain == AF_UNIX {
            return match (self.path(), self.local.0.get(3..)) {
                (Some(path), _) => path.display().to_string(),
                (None, Some(name)) => format!("@{}", String::from_utf8_lossy(name)),
                (None, None) => "unix socket without a name".into(),
            };
        }
        if self.domain == AF_NETLINK {
            return "netlink socket".into();
        }
        let address = internet_address(&self.local.0);
        address.map_or_else(|| "socket without an address".into(), |address| address.to_string())
    }
}

/// The path in a struct sockaddr_un, if it has one.
pub fn unix_path(bytes: &[u8]) -> Option<&Path> {
    let name = bytes.get(2..)?;
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    (len > 0).then(|| Path::new(OsStr::from_bytes(&name[..len])))
}

/// The address in a struct sockaddr_in or sockaddr_in6.
pub fn internet_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = bytes.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*rest.first_chunk()?);
    match u32::from(u16::from_ne_bytes(*family)) {
        AF_INET => Some((Ipv4Addr::from(*rest.get(2..)?.first_chunk::<4>()?), port).into()),
        // The flow label comes first.
        AF_INET6 => Some((Ipv6Addr::from(*rest.get(6..)?.first_chunk::<16>()?), port).into()),
        _ => None,
    }
}

/// What a socket is doing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SocketState {
    /// Nothing: not connected, maybe bound.
    Idle,
    /// It waits for connections.
    Listening {
        /// How many may wait.
        backlog: u32,
    },
    /// A datagram socket with a default destination.
    Directed {
        /// Bytes of its struct sockaddr.
        peer: Blob,
        /// A socket of the program whose name is gone: [`SocketRecord::number`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        number: Option<u64>,
    },
    /// A connection to a listener in the process that was not accepted, and through which nothing went.
    Pending {
        /// Bytes of the struct sockaddr of the listener, as this end sees it.
        peer: Blob,
    },
    /// A stream both of whose ends are in the process.
    Connected {
        /// Same number: same connection.
        connection: u64,
        /// Bytes of the struct sockaddr of the other end, as this one sees it.
        peer: Blob,
        /// What waits to be read at this end: pieces of a stream, or messages.
        data: Vec<Blob>,
        /// Who is told to have sent each of them, where this end is told (SO_PASSCRED).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        senders: Vec<Sender>,
        /// This end has sent its last.
        shut: bool,
        /// No process has the other end any more.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ended: bool,
        /// Of a stream: where bytes were sent out of band in what waits.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        marks: Vec<UrgentMark>,
    },
    /// A connection that was lost: to a peer outside, by the choice of the user (`--tcp close`).
    Lost,
    /// A TCP connection that both ends have shut for writing: after what waits to be read comes the end.
    Over {
        /// What waits to be read.
        data: Vec<Blob>,
    },
}

/// Where a byte was sent out of band in a stream (MSG_OOB of send(2)), by ascending place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UrgentMark {
    /// How many bytes of those that wait lie before it.
    pub at: u64,
    /// It is the next one of those that wait. Otherwise it was received, and the mark alone is left.
    pub waits: bool,
}

/// An option of a socket.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SocketOption {
    /// SOL_SOCKET, IPPROTO_TCP ...
    pub level: i32,
    /// SO_REUSEADDR ...
    pub name: i32,
    /// As the kernel gives and takes it.
    pub value: Blob,
}

/// One entry of an epoll instance (a `tfd:` line of fdinfo).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpollEntry {
    /// Descriptor number it was added with.
    pub fd: i32,
    /// EPOLL* bits.
    pub events: u32,
    /// User data.
    pub data: u64,
    /// Index into [`FileTable::descriptions`] of what is watched, where the number is closed by now, or another file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(domain: u32, address: &[&[u8]]) -> SocketRecord {
        let local = Blob(address.concat());
        let state = SocketState::Idle;
        SocketRecord {
            domain,
            socket_type: 1,
            protocol: 0,
            local,
            state,
            options: Vec::new(),
            mode: 0,
            owner: None,
            deleted: false,
            renamed: None,
            messages: Vec::new(),
            shut: 0,
            filter: None,
            number: None,
            peer_ids: None,
            made_by: None,
        }
    }

    #[test]
    fn addresses_read_as_people_write_them() {
        let unix = |name: &[u8]| at(AF_UNIX, &[&[1, 0], name]);
        assert_eq!(unix(b"/run/x\0").address(), "/run/x");
        assert_eq!(unix(b"relative").path(), Some(Path::new("relative")));
        assert_eq!(unix(b"\0hidden").address(), "@hidden");
        assert_eq!((unix(b"").path(), unix(b"\0hidden").path()), (None, None));
        let port = 8080_u16.to_be_bytes();
        assert_eq!(at(AF_INET, &[&[2, 0], &port, &[127, 0, 0, 1], &[0; 8]]).address(), "127.0.0.1:8080");
        let six = at(AF_INET6, &[&[10, 0], &port, &[0; 4], &[0; 15], &[1], &[0; 4]]);
        assert_eq!((six.address().as_str(), six.path()), ("[::1]:8080", None));
        assert_eq!(at(AF_INET6, &[&[10]]).address(), "socket without an address");
    }
}
