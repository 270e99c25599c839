//! Open files: what each descriptor refers to, and the data in flight in pipes and socket pairs.
//!
//! Runs inside the stop, because all of it can change; a few microseconds per descriptor. Nothing is consumed: pipes
//! are read with tee(2), sockets with MSG_PEEK. What cannot be brought back is refused by number and name.

use super::identity::mtime_ns;
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::record::{Description, Descriptor, EpollEntry, FileTable, Object};
use holdfast_sys::procfs::{self, DescriptorInfo};
use holdfast_sys::{clone, diag, fd, objects};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Content of a nameless file up to this size goes into the image.
const NAMELESS_LIMIT: u64 = 64 << 20;
/// Devices without state.
const PLAIN_DEVICES: [&[u8]; 5] = [b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom"];

/// Device, inode, flags, offset: descriptors that differ in one of them cannot share a description.
type ObjectKey = (u64, u64, u32, u64);

/// A descriptor as found.
struct Found {
    fd: i32,
    info: DescriptorInfo,
    target: Vec<u8>,
    device: u64,
    inode: u64,
}

/// Reads descriptor tables.
pub struct FileReader<'a> {
    pid: i32,
    tid: i32,
    /// The process as it sees itself.
    inner_pid: i32,
    pidfd: &'a OwnedFd,
    /// The library's own connection, if it is waiting for an answer of ours.
    own: Option<i32>,
    /// Descriptors that the program was started with and that lead outside: number, device, inode.
    inherited: &'a [(i32, u64, u64)],
    found: Vec<Found>,
}

impl<'a> FileReader<'a> {
    /// Looks at all descriptors.
    ///
    /// # Errors
    /// The process is gone, or not ours.
    pub fn new(
        (pid, inner_pid): (i32, i32),
        tid: i32,
        pidfd: &'a OwnedFd,
        own: Option<i32>,
        inherited: &'a [(i32, u64, u64)],
    ) -> io::Result<FileReader<'a>> {
        let mut found = Vec::new();
        for fd in procfs::descriptors(pid, tid)? {
            let path = format!("/proc/{pid}/task/{tid}/fd/{fd}");
            let info = procfs::descriptor_info(pid, u64::from(fd.cast_unsigned()))
                .ok_or_else(|| io::Error::other(format!("fd {fd}: no fdinfo")))?;
            let metadata = fs::metadata(&path).ok();
            let (device, inode) = metadata.map_or((0, 0), |m| (m.dev(), m.ino()));
            found.push(Found { fd, info, target: procfs::link(&path)?, device, inode });
        }
        Ok(FileReader { pid, tid, inner_pid, pidfd, own, inherited, found })
    }

    /// The file table.
    ///
    /// # Errors
    /// One line per descriptor that cannot be brought back.
    pub fn table(&self) -> Result<FileTable, Vec<String>> {
        let mut table = FileTable::default();
        let mut reasons = Vec::new();
        let mut by_object: HashMap<ObjectKey, Vec<(i32, u32)>> = HashMap::new();
        for found in &self.found {
            let flags = found.info.flags & !libc::O_CLOEXEC.cast_unsigned();
            let cloexec = found.info.flags != flags;
            let key = (found.device, found.inode, flags, found.info.position);
            let twins = by_object.entry(key).or_default();
            let twin = twins
                .iter()
                .find(|(fd, _)| clone::same_description(self.pid, *fd, self.pid, found.fd).unwrap_or(false));
            let description = match twin {
                Some(&(_, index)) => index,
                None => match self.object(found) {
                    Ok(object) => {
                        table.descriptions.push(Description { flags, object });
                        u32::try_from(table.descriptions.len() - 1).unwrap_or(u32::MAX)
                    }
                    Err(reason) => {
                        let name = String::from_utf8_lossy(&found.target);
                        reasons.push(format!("fd {} ({name}): {reason}", found.fd));
                        continue;
                    }
                },
            };
            twins.push((found.fd, description));
            table.descriptors.push(Descriptor { fd: found.fd, cloexec, description });
        }
        if reasons.is_empty() { Ok(table) } else { Err(reasons) }
    }

    fn object(&self, found: &Found) -> Result<Object, String> {
        if self.own == Some(found.fd) {
            return Ok(Object::Own);
        }
        let target = found.target.as_slice();
        if let Some(kind) = target.strip_prefix(b"anon_inode:") {
            return anonymous_inode(found, kind);
        }
        if target.starts_with(b"pipe:") {
            return self.pipe(found);
        }
        if target.starts_with(b"socket:") {
            return self.socket(found);
        }
        if PLAIN_DEVICES.contains(&target) {
            return Ok(Object::Device { path: Name(target.to_vec()) });
        }
        let path = self.link_path(found);
        let metadata = fs::metadata(&path).map_err(|error| error.to_string())?;
        let kind = metadata.mode() & libc::S_IFMT;
        match kind {
            libc::S_IFREG => self.regular(found, &metadata),
            libc::S_IFDIR if target.ends_with(b" (deleted)") => Err("a deleted directory".into()),
            libc::S_IFDIR => {
                Ok(Object::Directory { path: Name(target.to_vec()), position: found.info.position })
            }
            libc::S_IFCHR => self.terminal(found),
            libc::S_IFIFO => Err("a named pipe (FIFO) is not supported yet".into()),
            _ => Err("this kind of file is not supported".into()),
        }
    }

    fn link_path(&self, found: &Found) -> String {
        format!("/proc/{}/task/{}/fd/{}", self.pid, self.tid, found.fd)
    }

    /// A file of the process's own folder in /proc is named so that it is its own in the next life too, whatever the
    /// mount of /proc.
    fn own_proc_path(&self, path: &[u8]) -> Vec<u8> {
        for pid in [self.pid, self.inner_pid] {
            if let Some(rest) = path.strip_prefix(format!("/proc/{pid}/").as_bytes()) {
                return [b"/proc/self/", rest].concat();
            }
        }
        path.to_vec()
    }

    fn regular(&self, found: &Found, metadata: &fs::Metadata) -> Result<Object, String> {
        const O_TMPFILE: u32 = 0o20_200_000;
        if found.target.starts_with(b"/memfd:") {
            return Err("a memfd is not supported yet".into());
        }
        let name = found.target.strip_suffix(b" (deleted)");
        let nameless = name.is_some() || metadata.nlink() == 0 || found.info.flags & O_TMPFILE == O_TMPFILE;
        let deleted_content = if nameless {
            if metadata.len() > NAMELESS_LIMIT {
                return Err(format!("a deleted file of {} MiB (the limit is 64)", metadata.len() >> 20));
            }
            let mut content = Vec::new();
            File::open(self.link_path(found))
                .and_then(|mut file| file.read_to_end(&mut content))
                .map_err(|error| format!("its content cannot be read: {error}"))?;
            Some(Blob(content))
        } else {
            None
        };
        Ok(Object::Regular {
            path: Name(self.own_proc_path(name.unwrap_or(&found.target))),
            position: found.info.position,
            size: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            mtime_ns: mtime_ns(metadata),
            mode: metadata.mode() & 0o7777,
            deleted_content,
        })
    }

    /// The descriptor of `holdfast restart` that leads to the same thing outside, if any: a standard one, or one with
    /// which the program was started (a batch system's or a shell's).
    fn standard(&self, found: &Found) -> Option<i32> {
        let same = |other: &&Found| other.device == found.device && other.inode == found.inode;
        if (0..=2).contains(&found.fd) {
            return Some(found.fd);
        }
        let standard = self.found.iter().filter(|other| (0..=2).contains(&other.fd)).find(same);
        standard.map(|other| other.fd).or_else(|| {
            let started_with = |entry: &&(i32, u64, u64)| (entry.1, entry.2) == (found.device, found.inode);
            self.inherited.iter().find(started_with).map(|entry| entry.0)
        })
    }

    fn inherited(&self, found: &Found, otherwise: &str) -> Result<Object, String> {
        match self.standard(found) {
            Some(from) => Ok(Object::Inherited { from, was: Name(found.target.clone()) }),
            None => Err(otherwise.to_owned()),
        }
    }

    fn terminal(&self, found: &Found) -> Result<Object, String> {
        let is_terminal = found.target.starts_with(b"/dev/pts/") || found.target.starts_with(b"/dev/tty");
        if is_terminal || (0..=2).contains(&found.fd) {
            return self.inherited(found, "a terminal that is not standard input, output or error");
        }
        Err("a device is not supported".into())
    }

    fn take(&self, fd: i32) -> Result<OwnedFd, String> {
        clone::pidfd_getfd(self.pidfd, fd).map_err(|error| format!("cannot be looked into: {error}"))
    }

    fn pipe(&self, found: &Found) -> Result<Object, String> {
        let access = |info: &DescriptorInfo| info.flags & libc::O_ACCMODE.cast_unsigned();
        let ends =
            self.found.iter().filter(|other| other.inode == found.inode && other.target == found.target);
        let accesses: Vec<u32> = ends.map(|end| access(&end.info)).collect();
        let (reader, writer) = (libc::O_RDONLY.cast_unsigned(), libc::O_WRONLY.cast_unsigned());
        let whole = accesses.contains(&reader) && accesses.contains(&writer);
        if !whole && self.standard(found).is_some() {
            return self.inherited(found, "");
        }
        if found.info.flags & libc::O_DIRECT.cast_unsigned() != 0 {
            return Err("a pipe in packet mode is not supported yet".into());
        }
        let taken = self.take(found.fd)?;
        // POLLHUP at a read end, POLLERR at a write end: the other end is closed everywhere (fs/pipe.c, pipe_poll).
        let alone =
            || fd::poll_state(taken.as_fd()).is_ok_and(|state| state & (libc::POLLHUP | libc::POLLERR) != 0);
        if !whole && !alone() {
            return Err("a pipe whose other end is outside the program is not supported yet".into());
        }
        let capacity = fd::fcntl(taken.as_fd(), libc::F_GETPIPE_SZ, 0).unwrap_or(65536);
        let data = if access(&found.info) == reader {
            peek_pipe(&taken, capacity).map_err(|error| format!("its data cannot be read: {error}"))?
        } else {
            Vec::new()
        };
        let capacity = u64::from(capacity.cast_unsigned());
        Ok(Object::Pipe { pipe: found.inode, capacity, data: Blob(data) })
    }

    fn socket(&self, found: &Found) -> Result<Object, String> {
        let taken = self.take(found.fd)?;
        let option = |option| fd::socket_option(taken.as_fd(), option);
        let describe = || describe_socket(&taken, found.inode);
        if option(libc::SO_DOMAIN).ok() != Some(libc::AF_UNIX) {
            return self.inherited(found, &format!("{}: not supported yet", describe()));
        }
        let peer = diag::unix_peer(found.inode).ok().flatten();
        let inside = peer.is_some_and(|peer| self.found.iter().any(|other| other.inode == peer));
        let (Some(peer), true) = (peer, inside) else {
            return self.inherited(found, &format!("{}: not supported yet", describe()));
        };
        let socket_type = option(libc::SO_TYPE).map_err(|error| error.to_string())?;
        let data = peek_socket(&taken, socket_type)?;
        Ok(Object::SocketPair {
            pair: found.inode.min(peer),
            socket_type: socket_type.cast_unsigned(),
            data: data.into_iter().map(Blob).collect(),
            send_buffer: option(libc::SO_SNDBUF).unwrap_or(0).cast_unsigned(),
            receive_buffer: option(libc::SO_RCVBUF).unwrap_or(0).cast_unsigned(),
            send_timeout_us: objects::socket_timeout_us(taken.as_fd(), libc::SO_SNDTIMEO).unwrap_or(0),
            receive_timeout_us: objects::socket_timeout_us(taken.as_fd(), libc::SO_RCVTIMEO).unwrap_or(0),
        })
    }
}

/// What is in a pipe, without taking it out.
fn peek_pipe(pipe: &OwnedFd, capacity: i32) -> io::Result<Vec<u8>> {
    const FIONREAD: libc::c_ulong = 0x541b;
    let waiting = usize::try_from(fd::ioctl_int(pipe.as_fd(), FIONREAD)?).unwrap_or(0);
    if waiting == 0 {
        return Ok(Vec::new());
    }
    let (reader, writer) = fd::pipe(libc::O_NONBLOCK)?;
    fd::fcntl(writer.as_fd(), libc::F_SETPIPE_SZ, i64::from(capacity))?;
    let copied = fd::tee(pipe.as_fd(), writer.as_fd(), waiting)?;
    if copied != waiting {
        return Err(io::Error::other(format!("{copied} of {waiting} bytes")));
    }
    drop(writer);
    let mut data = Vec::with_capacity(waiting);
    File::from(reader).read_to_end(&mut data)?;
    Ok(data)
}

/// What waits to be received at this end, without taking it out: one piece for a stream, one per message otherwise.
fn peek_socket(socket: &OwnedFd, socket_type: i32) -> Result<Vec<Vec<u8>>, String> {
    const FIONREAD: libc::c_ulong = 0x541b;
    let fails = |error: io::Error| format!("its data cannot be read: {error}");
    let waiting = fd::ioctl_int(socket.as_fd(), FIONREAD).map_err(fails)?;
    let waiting = usize::try_from(waiting).unwrap_or(0);
    if waiting == 0 {
        return Ok(Vec::new());
    }
    if socket_type != libc::SOCK_STREAM {
        return peek_messages(socket).map_err(fails);
    }
    let mut data = vec![0_u8; waiting];
    match fd::receive(socket.as_fd(), &mut data, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(got) if got == waiting => Ok(vec![data]),
        Ok(got) => Err(format!("only {got} of {waiting} waiting bytes can be seen (descriptors in flight?)")),
        Err(error) => Err(fails(error)),
    }
}

/// All messages that wait, by a moving peek offset (SO_PEEK_OFF, socket(7)), which is taken away again.
fn peek_messages(socket: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    const OFF: i32 = -1;
    if fd::socket_option(socket.as_fd(), libc::SO_PEEK_OFF)? != OFF {
        return Err(io::Error::other("the program uses SO_PEEK_OFF itself"));
    }
    fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, 0)?;
    let mut messages = Vec::new();
    let mut buffer = vec![0_u8; 256 * 1024];
    let result = loop {
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // MSG_TRUNC: the true length, should a message be larger than the buffer.
        match fd::receive(socket.as_fd(), &mut buffer, flags) {
            Ok(len) if len > buffer.len() => break Err(io::Error::other("a message of more than 256 KiB")),
            Ok(0) => break Err(io::Error::other("an empty message cannot be told from the end")),
            Ok(len) => messages.push(buffer[..len].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(messages),
            Err(error) => break Err(error),
        }
    };
    fd::set_socket_option(socket.as_fd(), libc::SO_PEEK_OFF, OFF)?;
    result
}

/// Kind and peer of a socket, for refusals.
fn describe_socket(socket: &OwnedFd, inode: u64) -> String {
    let domain = fd::socket_option(socket.as_fd(), libc::SO_DOMAIN).unwrap_or(-1);
    let kind = match fd::socket_option(socket.as_fd(), libc::SO_TYPE).unwrap_or(0) {
        libc::SOCK_STREAM => "stream",
        libc::SOCK_DGRAM => "datagram",
        _ => "raw",
    };
    match domain {
        libc::AF_UNIX => format!("unix {kind} socket"),
        libc::AF_INET | libc::AF_INET6 => {
            format!("{kind} socket, {}", internet_peer(inode).unwrap_or_else(|| "not connected".into()))
        }
        libc::AF_NETLINK => "netlink socket".into(),
        other => format!("socket of address family {other}"),
    }
}

/// `local -> remote` of a TCP or UDP socket from /proc/net, or `listening on …`.
fn internet_peer(inode: u64) -> Option<String> {
    let wanted = inode.to_string();
    ["tcp", "tcp6", "udp", "udp6"].into_iter().find_map(|table| {
        let text = fs::read_to_string(format!("/proc/net/{table}")).ok()?;
        let line = text.lines().find(|line| line.split_whitespace().nth(9) == Some(&wanted))?;
        let mut words = line.split_whitespace().skip(1);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        if state == "0A" {
            return Some(format!("listening on {}", internet_address(local)?));
        }
        Some(format!("{} -> {}", internet_address(local)?, internet_address(remote)?))
    })
}

/// `0100007F:1F90` as `127.0.0.1:8080` (address words are in host order, net/ipv4/tcp_ipv4.c).
fn internet_address(text: &str) -> Option<String> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Option<Vec<[u8; 4]>> = (0..address.len() / 8)
        .map(|i| u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_ne_bytes))
        .collect();
    let bytes = words?.concat();
    if let Ok(four) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(format!("{}:{port}", std::net::Ipv4Addr::from(four)));
    }
    let sixteen = <[u8; 16]>::try_from(bytes.as_slice()).ok()?;
    Some(format!("[{}]:{port}", std::net::Ipv6Addr::from(sixteen)))
}

/// eventfd, epoll, timerfd, signalfd from fdinfo (fs/eventfd.c, fs/eventpoll.c, fs/timerfd.c, fs/signalfd.c).
fn anonymous_inode(found: &Found, kind: &[u8]) -> Result<Object, String> {
    let info = &found.info;
    let number =
        |key: &str, radix| info.get(key).and_then(|text| u64::from_str_radix(text.trim(), radix).ok());
    let unclear = || "its fdinfo cannot be understood".to_owned();
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
        b"[io_uring]" => Err("io_uring is not supported".into()),
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

    #[test]
    fn addresses_read_as_people_write_them() {
        assert_eq!(internet_address("0100007F:1F90").unwrap(), "127.0.0.1:8080");
        assert_eq!(internet_address("00000000000000000000000001000000:0050").unwrap(), "[::1]:80");
        assert!(internet_address("zz").is_none());
    }

    #[test]
    fn waiting_messages_are_seen_and_stay() {
        let (reader, writer) = fd::socketpair(libc::SOCK_SEQPACKET).unwrap();
        fd::send(writer.as_fd(), b"one", 0).unwrap();
        fd::send(writer.as_fd(), b"second", 0).unwrap();
        for _ in 0..2 {
            let seen = peek_socket(&reader, libc::SOCK_SEQPACKET).unwrap();
            assert_eq!(seen, [b"one".to_vec(), b"second".to_vec()]);
        }
        let mut buffer = [0; 16];
        assert_eq!(fd::receive(reader.as_fd(), &mut buffer, 0).unwrap(), 3);
    }

    #[test]
    fn a_pipe_is_read_without_being_emptied() {
        let (reader, writer) = fd::pipe(0).unwrap();
        std::io::Write::write_all(&mut File::from(writer), b"in flight").unwrap();
        assert_eq!(peek_pipe(&reader, 65536).unwrap(), b"in flight");
        assert_eq!(peek_pipe(&reader, 65536).unwrap(), b"in flight");
    }
}
