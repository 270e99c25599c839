//! What each descriptor leads to: files, pipes, FIFOs, terminals, devices and what has no name.
//!
//! Part of [`FileReader`]; sockets are in `sockets`. Nothing is consumed.

use super::super::hardlinks;
use super::super::identity::{DELETED, born_ns, inode_of, mtime_ns, owner_of};
use super::FileReader;
use super::found::{Found, Look};
use super::in_flight::{peek_pipe, unreadable};
use super::obstacle::Obstacle;
use crate::capture::mounts::DETACHED;
use crate::cuda::uses;
use crate::refuse;
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::record::{EpollEntry, Object};
use holdfast_sys::procfs::{self, DescriptorInfo, Status};
use holdfast_sys::{clone, fd};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const OTHER_NAME: &str = "the name by which it was opened was removed, and its other name is not in that \
folder: a restart could not find it";
const NOT_LISTED: &str = "the name by which it was opened was removed, and Holdfast does not search its \
folder for the other name: an inotify instance of the program would notice; watch without IN_OPEN, \
                          IN_ACCESS and IN_CLOSE_NOWRITE";
/// Devices without state.
const PLAIN_DEVICES: [&[u8]; 5] = [b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom"];
/// The file system of message queues (mqueue_overview(7); ipc/mqueue.c).
const MQUEUE: u64 = 0x1980_0202;
const ONLY_INSIDE: &str = "neither a file nor a folder, in its mount namespace alone, which is not supported: start \
`holdfast run` inside";
const UNKNOWN: &str = "this kind of file is not supported";

impl FileReader<'_> {
    pub(super) fn object(&self, found: &Found) -> Result<Object, Obstacle> {
        if self.holders.get(found.holder).is_some_and(|holder| holder.own == Some(found.fd)) {
            return Ok(Object::Own);
        }
        let target = found.target.as_slice();
        if uses::is_device(target) {
            return Err(refuse::CUDA_DEVICE.into());
        }
        if refuse::is_only_called_deleted(target, (Some(found.device), found.inode)) {
            return Err(refuse::CALLED_DELETED.into());
        }
        if let Some(kind) = target.strip_prefix(b"anon_inode:") {
            return match kind {
                b"inotify" => self.inotify(found),
                b"[pidfd]" => self.process(found),
                _ => anonymous_inode(found, kind),
            };
        }
        if target.starts_with(b"pipe:") {
            return self.pipe(found, None);
        }
        if target.starts_with(b"socket:") {
            return self.socket(found);
        }
        if PLAIN_DEVICES.contains(&target) {
            return Ok(Object::Device { path: Name(target.to_vec()) });
        }
        if let Some(pid) = self.foreign_process(found, target) {
            return self.process_file(found, pid);
        }
        if found.detached && !self.is_queue(found) {
            return Err(DETACHED.into());
        }
        let path = self.link_path(found);
        let metadata = fs::metadata(&path).map_err(|error| Obstacle::of("", &error))?;
        let kind = metadata.mode() & libc::S_IFMT;
        match kind {
            libc::S_IFREG | libc::S_IFDIR if found.only_inside => {
                Ok(Object::Inside { position: found.info.position })
            }
            _ if found.only_inside => Err(ONLY_INSIDE.into()),
            libc::S_IFREG => self.regular(found, &metadata),
            // It is empty, and nothing can be made in it any more.
            libc::S_IFDIR if target.ends_with(DELETED) => {
                let path = Name(target.strip_suffix(DELETED).unwrap_or(target).to_vec());
                Ok(Object::RemovedFolder { path, mode: metadata.mode() & 0o7777 })
            }
            libc::S_IFDIR => {
                let path = Name(self.own_proc_path(found, target));
                Ok(Object::Directory {
                    path,
                    position: found.info.position,
                    inode: Some(inode_of(&metadata)),
                })
            }
            libc::S_IFCHR => self.terminal(found),
            libc::S_IFIFO => self.pipe(found, Some((target, &metadata))),
            // Libraries that walk along a path hold one for a moment (O_PATH; systemd's src/basic/chase.c does,
            // behind getpwnam).
            libc::S_IFLNK if target.ends_with(DELETED) || target.starts_with(b"/proc/") => {
                Err(Obstacle::Passing("a symbolic link that is gone, or of /proc: not supported".into()))
            }
            libc::S_IFLNK => {
                let inode = Some(inode_of(&metadata));
                Ok(Object::Link { path: Name(target.to_vec()), inode })
            }
            _ => Err(UNKNOWN.into()),
        }
    }

    /// What a descriptor of a process is (kernel/pid.c, pidfd_show_fdinfo).
    pub(super) fn process(&self, found: &Found) -> Result<Object, Obstacle> {
        let pid = found.info.get("Pid").and_then(|pid| pid.parse::<i32>().ok());
        match pid.ok_or_else(|| Obstacle::from("its fdinfo cannot be understood"))? {
            // A process has one inode, the same for all who look at it (fs/pidfs.c; Linux 6.9).
            -1 => Ok(Object::PidFd { pid: -1, gone: found.inode }),
            pid => match self.inner_pid(pid) {
                Some(_) if !self.sees(found, pid) => Err(format!(
                    "it leads to process {pid}, which has no id in its pid namespace: not supported"
                )
                .into()),
                Some(pid) => Ok(Object::PidFd { pid, gone: 0 }),
                None => Err(format!("it leads to process {pid}, which is not the program's").into()),
            },
        }
    }

    /// What a process of the job, or a child of one that has ended, calls itself.
    pub(super) fn inner_pid(&self, pid: i32) -> Option<i32> {
        if let Some(holder) = self.holders.iter().find(|holder| holder.pid == pid) {
            return Some(holder.inner_pid);
        }
        let status = Status::read(pid, pid).ok().filter(Status::has_ended)?;
        let parent = status.number("PPid")?;
        let is_child = self.holders.iter().any(|holder| i64::from(holder.pid) == parent);
        is_child.then(|| status.at_depth("NStgid", self.outside.namespaces.depth()))?
    }

    /// Whether a process has an id in the pid namespace of one that has it open.
    fn sees(&self, found: &Found, pid: i32) -> bool {
        let holder = self.holder_of(found);
        let namespace = |pid: i32| procfs::link(&format!("/proc/{pid}/ns/pid")).ok();
        holder.inner_pid == holder.own_pid || namespace(holder.tid) == namespace(pid)
    }

    pub(super) fn link_path(&self, found: &Found) -> String {
        let (pid, tid) = self.leads_from(found);
        format!("/proc/{pid}/task/{tid}/fd/{}", found.fd)
    }

    /// A message queue is shown as a file of the root folder: what is there is asked for its kind.
    fn is_queue(&self, found: &Found) -> bool {
        let kind = || fd::file_system_type(Path::new(&self.link_path(found)));
        is_in_root(found) && kind().is_ok_and(|kind| kind == MQUEUE)
    }

    pub(super) fn regular(&self, found: &Found, metadata: &fs::Metadata) -> Result<Object, Obstacle> {
        let in_root = is_in_root(found);
        if self.is_queue(found) {
            return self.queue(found, metadata);
        }
        if refuse::is_of_objects(&found.target) {
            return Err(Obstacle::Passing(refuse::OBJECTS.into()));
        }
        let mut path = found.target.clone();
        if path.first() != Some(&b'/') {
            path = self.own_namespace(found).ok_or("a namespace that is not its own is not supported")?;
        }
        if path.ends_with(DELETED) && metadata.nlink() > 0 && !in_root {
            let folder = Path::new(OsStr::from_bytes(&path)).parent().unwrap_or(Path::new("/"));
            let is_heard = self.watchers().hear_listing(folder);
            let name = if is_heard { None } else { hardlinks::name_of(&path, metadata.ino()) };
            match name {
                Some(name) => path = name.into_os_string().into_vec(),
                None if found.info.flags & libc::O_ACCMODE.cast_unsigned() == 0 => {}
                None if is_heard => return Err(NOT_LISTED.into()),
                None => return Err(OTHER_NAME.into()),
            }
        } else if metadata.nlink() == 0 && !path.ends_with(DELETED) {
            return self.nameless(found, metadata);
        }
        if path.ends_with(DELETED) {
            return self.nameless(found, metadata);
        }
        Ok(Object::Regular {
            path: Name(self.own_proc_path(found, &path)),
            position: found.info.position,
            size: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            mtime_ns: mtime_ns(metadata),
            born_ns: born_ns(metadata),
            now: None,
            mode: metadata.mode() & 0o7777,
            owner: Some(owner_of(metadata)),
            deleted_content: None,
        })
    }

    /// The descriptor of `holdfast restart` that leads to the same thing outside, if any: a standard one, or one with
    /// which the program was started (a batch system's or a shell's).
    pub(super) fn standard(&self, found: &Found) -> Option<i32> {
        let same = |other: &&Found| other.device == found.device && other.inode == found.inode;
        let of_program = |other: &Found| other.holder == 0 && (0..=2).contains(&other.fd);
        if of_program(found) {
            return Some(found.fd);
        }
        let standard = self.found.iter().filter(|other| of_program(other)).find(same);
        standard.map(|other| other.fd).or_else(|| {
            let started_with = |entry: &&(i32, u64, u64)| (entry.1, entry.2) == (found.device, found.inode);
            self.outside.inherited.iter().find(started_with).map(|entry| entry.0)
        })
    }

    pub(super) fn inherited(
        &self,
        found: &Found,
        otherwise: impl Into<Obstacle>,
    ) -> Result<Object, Obstacle> {
        match self.standard(found) {
            Some(from) => Ok(Object::Inherited { from, was: Name(found.target.clone()) }),
            None => Err(otherwise.into()),
        }
    }

    pub(super) fn terminal(&self, found: &Found) -> Result<Object, Obstacle> {
        if let Some(object) = self.pty(found)? {
            return Ok(object);
        }
        let is_terminal = found.target.starts_with(b"/dev/pts/") || found.target.starts_with(b"/dev/tty");
        if is_terminal || self.standard(found).is_some() {
            return self.inherited(found, "a terminal that is not standard input, output or error");
        }
        Err("a device is not supported".into())
    }

    pub(super) fn take(&self, found: &Found) -> Result<OwnedFd, Obstacle> {
        let Some(holder) = self.holders.get(found.holder) else { return self.passed.take(found.fd) };
        let taken = match &holder.copies {
            Some(copies) => copies
                .get(&found.fd)
                .map_or_else(|| Err(io::Error::from_raw_os_error(libc::EBADF)), |copy| copy.try_clone()),
            None if self.look == Look::Running && !clone::can_take_descriptors() => {
                return Err(Obstacle::Closed("is looked into in the stop only".into()));
            }
            None => clone::pidfd_getfd(holder.pidfd, found.fd),
        };
        taken.map_err(|error| Obstacle::of("cannot be looked into: ", &error))
    }

    /// `name`: path of a FIFO, and what its file is.
    pub(super) fn pipe(
        &self,
        found: &Found,
        name: Option<(&[u8], &fs::Metadata)>,
    ) -> Result<Object, Obstacle> {
        const DIRECT: u32 = libc::O_DIRECT.cast_unsigned();
        let mode = |info: &DescriptorInfo| info.flags & libc::O_ACCMODE.cast_unsigned();
        let reads = |info: &DescriptorInfo| mode(info) != libc::O_WRONLY.cast_unsigned();
        let writes = |info: &DescriptorInfo| mode(info) != libc::O_RDONLY.cast_unsigned();
        let same = |other: &&Found| (other.device, other.inode) == (found.device, found.inode);
        let ends: Vec<&DescriptorInfo> =
            self.with_inode(found.inode).filter(same).map(|end| &end.info).collect();
        let whole = ends.iter().any(|end| reads(end)) && ends.iter().any(|end| writes(end));
        if !whole && self.standard(found).is_some() {
            return self.inherited(found, "");
        }
        let deleted = name.is_some_and(|(path, _)| path.ends_with(DELETED));
        let name = name.map(|(path, file)| (path.strip_suffix(DELETED).unwrap_or(path), file));
        let taken = self.take(found)?;
        // POLLHUP at a read end, POLLERR at a write end: the other end is closed everywhere (fs/pipe.c, pipe_poll).
        let alone =
            || fd::poll_state(taken.as_fd()).is_ok_and(|state| state & (libc::POLLHUP | libc::POLLERR) != 0);
        if !whole && name.is_none() && !alone() {
            let what = "a pipe whose other end is outside the program is not supported yet";
            return Err(Obstacle::Apart(what.into()));
        }
        let capacity = fd::fcntl(taken.as_fd(), libc::F_GETPIPE_SZ, 0).unwrap_or(65536);
        let pieces = if reads(&found.info) && self.look == Look::Stopped {
            peek_pipe(&taken, capacity).map_err(unreadable)?
        } else {
            Vec::new()
        };
        let in_packets = ends.iter().any(|end| writes(end) && end.flags & DIRECT != 0);
        let lengths = pieces.iter().map(|piece| u32::try_from(piece.len()).unwrap_or(u32::MAX));
        Ok(Object::Pipe {
            pipe: found.inode,
            capacity: u64::from(capacity.cast_unsigned()),
            packets: if in_packets { lengths.collect() } else { Vec::new() },
            data: Blob(pieces.concat()),
            path: name.map(|(path, _)| Name(path.to_vec())),
            mode: name.map_or(0, |(_, file)| file.mode() & 0o7777),
            deleted,
            inode: name.map(|(_, file)| inode_of(file)),
        })
    }
}

fn is_in_root(found: &Found) -> bool {
    found.target.iter().filter(|byte| **byte == b'/').count() == 1
}

/// eventfd, epoll, timerfd, signalfd from fdinfo (fs/eventfd.c, fs/eventpoll.c, fs/timerfd.c, fs/signalfd.c).
fn anonymous_inode(found: &Found, kind: &[u8]) -> Result<Object, Obstacle> {
    let info = &found.info;
    let number =
        |key: &str, radix| info.get(key).and_then(|text| u64::from_str_radix(text.trim(), radix).ok());
    let unclear = || Obstacle::from("its fdinfo cannot be understood");
    match kind {
        b"[eventfd]" => Ok(Object::EventFd {
            count: number("eventfd-count", 16).ok_or_else(unclear)?,
            semaphore: number("eventfd-semaphore", 10) == Some(1),
        }),
        b"[eventpoll]" => {
            let entries: Option<Vec<EpollEntry>> =
                info.text.lines().filter(|line| line.starts_with("tfd:")).map(epoll_entry).collect();
            Ok(Object::Epoll { entries: entries.ok_or_else(unclear)? })
        }
        b"[timerfd]" => {
            let pair = |key: &str| {
                let text = info.get(key)?.trim_matches(['(', ')']);
                let (seconds, nanoseconds) = text.split_once(", ")?;
                Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?)
            };
            Ok(Object::TimerFd {
                clock: number("clockid", 10).and_then(|n| i32::try_from(n).ok()).ok_or_else(unclear)?,
                ticks: number("ticks", 10).ok_or_else(unclear)?,
                settime_flags: number("settime flags", 8).and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
                value_ns: pair("it_value").ok_or_else(unclear)?,
                interval_ns: pair("it_interval").ok_or_else(unclear)?,
            })
        }
        b"[signalfd]" => Ok(Object::SignalFd { mask: number("sigmask", 16).ok_or_else(unclear)? }),
        b"[io_uring]" => Err(refuse::IO_URING.into()),
        _ => Err("this kind of kernel object is not supported".into()),
    }
}

/// `tfd:        5 events:       19 data:  5  pos:0 ino:…`, numbers as fs/eventpoll.c prints them.
fn epoll_entry(line: &str) -> Option<EpollEntry> {
    let mut words = line.split_whitespace();
    let mut after = |key: &str| {
        let word = words.next()?;
        let rest = word.strip_prefix(key)?;
        if rest.is_empty() { words.next().map(str::to_owned) } else { Some(rest.to_owned()) }
    };
    Some(EpollEntry {
        fd: after("tfd:")?.parse().ok()?,
        events: u32::from_str_radix(&after("events:")?, 16).ok()?,
        data: u64::from_str_radix(&after("data:")?, 16).ok()?,
        description: None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn epoll_lines_are_understood() {
        let line = "tfd:       12 events:       19 data:     deadbeef00c  pos:0 ino:2a sdev:9";
        let entry = epoll_entry(line).unwrap();
        assert_eq!((entry.fd, entry.events, entry.data), (12, 0x19, 0x0dea_dbee_f00c));
        assert!(epoll_entry("tfd: x").is_none());
    }
}
