//! The files part of the process record: descriptors, what they refer to, and what was in flight.
//!
//! Written by `process::capture::files` at the stop, read by `process::rebuild`; part of [`crate::record`], where it is
//! checked. Invariants: plain data.

use crate::bytes::{Blob, Name};
pub use crate::contents::*;
pub use crate::inode::*;
pub use crate::inotify::*;
pub use crate::ipc::*;
pub use crate::mounts::{Inside, Within};
pub use crate::queues::*;
use crate::region::FileIdentity;
pub use crate::sockets::*;
pub use crate::sysv_shm::*;
pub use crate::terminals::*;
pub use crate::unlinked::*;
use serde::{Deserialize, Serialize};

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
    /// POSIX message queues; those of all processes are in the record of the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<PosixQueue>,
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
            || !self.queues.is_empty()
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

/// A folder, or one above it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FolderRecord {
    /// Absolute path.
    pub path: Name,
    /// Permission bits.
    pub mode: u32,
    /// Whose it was: user id.
    pub user: u32,
    /// Group id.
    pub group: u32,
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
    /// It was opened in a mount namespace that a program has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Within>,
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
    /// A file or folder of a file system that is mounted nowhere but in a mount namespace of a program's own
    /// ([`Description::within`]); what is in it comes with that.
    Inside {
        /// Offset.
        position: u64,
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
        /// Descriptors that came with some of them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        passed: Vec<Passed>,
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
        /// As [`SocketRecord::network`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        network: Option<u64>,
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
    /// A POSIX message queue.
    MessageQueue {
        /// Index into [`FileTable::queues`].
        queue: u32,
    },
    /// A symbolic link itself, not what it leads to (O_PATH and O_NOFOLLOW).
    Link {
        /// Absolute path.
        path: Name,
        /// Which one it was, and whose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inode: Option<Inode>,
    },
    /// A directory that was removed.
    RemovedFolder {
        /// Absolute path at which it was.
        path: Name,
        /// Permission bits.
        mode: u32,
    },
    /// A file or folder of /proc about another process than the one that has it open.
    ProcessFile {
        /// The process, as the program knows it; -1: it has ended.
        pid: i32,
        /// What follows its folder: `/stat`.
        rest: Name,
        /// Offset.
        position: u64,
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

    /// The network namespace of a socket, if that is not the job's.
    pub fn network_mut(&mut self) -> Option<&mut u64> {
        match self {
            Object::SocketPair { network, .. } => network.as_mut(),
            Object::Socket(socket) => socket.network.as_mut(),
            _ => None,
        }
    }

    /// The path of a file or folder.
    pub fn path(&self) -> Option<&Name> {
        match self {
            Object::Regular { path, .. }
            | Object::Directory { path, .. }
            | Object::Device { path }
            | Object::Link { path, .. }
            | Object::Pipe { path: Some(path), .. } => Some(path),
            _ => None,
        }
    }

    /// The descriptions of descriptors in messages that wait in it.
    pub fn passed(&self) -> impl Iterator<Item = u32> {
        let (with_pieces, messages) = match self {
            Object::SocketPair { passed, .. } => (&passed[..], &[][..]),
            Object::Socket(socket) => match &socket.state {
                SocketState::Connected { passed, .. } => (&passed[..], &socket.messages[..]),
                _ => (&[][..], &socket.messages[..]),
            },
            _ => Default::default(),
        };
        let with_pieces = with_pieces.iter().flat_map(|one| &one.files);
        with_pieces.chain(messages.iter().flat_map(|one| &one.passed)).copied()
    }

    /// Of what has a path: which file it was, and whose.
    pub fn inode(&self) -> Option<Inode> {
        match self {
            Object::Regular { device, inode, born_ns, mode, owner, .. } => {
                Some(Inode::regular((*device, *inode), *born_ns, *mode, *owner))
            }
            Object::Directory { inode, .. } | Object::Pipe { inode, .. } | Object::Link { inode, .. } => {
                *inode
            }
            _ => None,
        }
    }
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
