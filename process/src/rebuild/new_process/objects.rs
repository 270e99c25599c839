//! Descriptors of kernel objects: pipes and sockets with what was in flight, eventfd, timerfd, signalfd, epoll. Runs in
//! the new process ([`super::child`]).

use super::datagrams::Named;
use super::flight::{Flight, Made, PutBack, send_back};
use super::networks::Networks;
use super::open::open_process;
use super::senders::Senders;
use super::socket_buffers;
use super::socket_files::address_of_held;
use super::sockets::{self, Connections};
use super::terminals::LARGE;
use super::unsettled::Unsettled;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::paths::{Opener, Place, change_mode, explain, new_name, reopen};
use crate::rebuild::proc_self::NOT_AGAIN;
use crate::rebuild::socket_setup::{made_by, set_options};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::record::{Inode, Object, SocketState};
use holdfast_sys::{at, attributes, clone, fd, inotify, objects, socket, spawn};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Pipes and pairs in the making: each end is asked for on its own.
#[derive(Debug, Default)]
pub struct ObjectBuilder {
    pipes: HashMap<u64, (OwnedFd, OwnedFd)>,
    pairs: HashMap<u64, Pair>,
    connections: Connections,
    /// Those to other members of a gang, from the agent.
    members: BTreeMap<[u8; 16], OwnedFd>,
    /// Where sockets are made.
    networks: Networks,
    /// How many ends of a connection have been given out.
    given: HashMap<u64, usize>,
    /// To be connected when all sockets are there.
    pending: Vec<Pending>,
    /// What is left to be done when all sockets are bound.
    unsettled: Unsettled,
    /// What is done to sockets last, for nothing would come into them afterwards: what was shut, filters; with names.
    last: Vec<(OwnedFd, u8, Option<Blob>, String)>,
    /// Ends of pipes that were given out as pipe(2) has made them: of which pipe, and whether it is the write end.
    plain: HashSet<(u64, bool)>,
    /// Processes that have ended and that were waited for, by number: not waited for until all that leads to them is
    /// made.
    ended: HashMap<u64, i32>,
    /// Pipes whose data is back.
    filled: HashSet<u64>,
    /// Who may have sent what waits in datagram sockets.
    named: Named,
    /// What is not as it was.
    notes: Vec<String>,
}

/// A socket that leads to another one.
#[derive(Debug)]
struct Pending {
    socket: OwnedFd,
    address: Vec<u8>,
    /// Of the socket there.
    number: Option<u64>,
    name: String,
    /// Of who has it.
    opener: Opener,
}

#[derive(Debug)]
struct Pair {
    ends: [OwnedFd; 2],
    /// How many of the two have been given out.
    taken: usize,
}

fn is_write_end(flags: u32) -> bool {
    flags & libc::O_ACCMODE.cast_unsigned() == libc::O_WRONLY.cast_unsigned()
}

/// Sets the status flags that fcntl can set.
fn set_flags(fd: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    let settable = (libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_ASYNC).cast_unsigned();
    fd::fcntl(fd, libc::F_SETFL, i64::from(flags & settable)).map(|_| ())
}

impl ObjectBuilder {
    /// For all objects of a job. Makes its connections. `openers`: of all processes.
    ///
    /// # Errors
    /// Names an address that cannot be used.
    pub fn new(job: &Job<'_>, openers: &[Opener], networks: Networks) -> Result<ObjectBuilder, RebuildError> {
        let opener = |index| openers.get(job.holder(index).map_or(0, |(place, _)| place));
        let connections = Connections::make(&job.record.files, opener, &networks)?;
        let unsettled = Unsettled::of(job.descriptions());
        Ok(ObjectBuilder { connections, unsettled, networks, ..ObjectBuilder::default() })
    }

    /// With connections to other members of a gang, by their numbers.
    pub fn with_members(self, members: BTreeMap<[u8; 16], OwnedFd>) -> ObjectBuilder {
        ObjectBuilder { members, ..self }
    }

    /// What is not as it was, for the user.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// One end, or one object, for a descriptor with this number.
    ///
    /// # Errors
    /// Of the system call that makes it.
    pub fn make(
        &mut self,
        object: &Object,
        flags: u32,
        holder: i32,
        opener: &Opener,
    ) -> Result<OwnedFd, RebuildError> {
        let failed = || RebuildError::io(format!("making descriptor {holder}"));
        let socket = match object {
            Object::Socket(socket) => socket,
            Object::Pipe { pipe, capacity, .. } => {
                return self.pipe_end((*pipe, *capacity), object, flags, opener);
            }
            Object::RemovedFolder { path, mode } => return removed_folder(path, *mode, flags, opener),
            Object::ProcessFile { rest, position, .. } => {
                // Each is of a process of its own.
                let child = self.ended_process(u64::MAX - self.ended.len() as u64).map_err(failed())?;
                return opener.open_process_file(child, rest, flags, *position).map_err(failed());
            }
            _ => return self.make_nameless(object, flags).map_err(failed()),
        };
        let made = match &socket.state {
            SocketState::Connected { connection, .. } => {
                let given = self.given.entry(*connection).or_default();
                let end = self.connections.get(*connection).and_then(|ends| ends.get(*given));
                *given += 1;
                let none =
                    || RebuildError::Image(format!("descriptor {holder}: a connection with three ends"));
                end.ok_or_else(none)?.try_clone().map_err(failed())?
            }
            SocketState::Member { connection, .. } => {
                let none = || {
                    RebuildError::Image(format!("descriptor {holder}: the agent has no connection for it"))
                };
                let number = connection.0.as_slice().try_into().map_err(|_| none())?;
                self.members.remove::<[u8; 16]>(&number).ok_or_else(none)?
            }
            _ => sockets::make(socket, (opener, &self.networks), &mut self.unsettled)?,
        };
        self.named.note(socket, &made).map_err(failed())?;
        if socket.domain.cast_signed() == libc::AF_NETLINK
            && socket::local_address(made.as_fd()).map_err(failed())? != socket.local.0
        {
            self.notes.push(format!("descriptor {holder} (netlink socket) has another port now"));
        }
        let name = || format!("descriptor {holder} ({})", socket.address());
        if let Some((peer, number)) = sockets::leads_to(socket) {
            let socket = made.try_clone().map_err(failed())?;
            let (address, name, opener) = (peer.to_vec(), name(), opener.clone());
            self.pending.push(Pending { socket, address, number, name, opener });
        }
        if socket.shut != 0 || socket.filter.is_some() {
            let end = made.try_clone().map_err(failed())?;
            self.last.push((end, socket.shut, socket.filter.clone(), name()));
        }
        set_flags(made.as_fd(), flags).map_err(failed())?;
        Ok(made)
    }

    fn make_nameless(&mut self, object: &Object, flags: u32) -> io::Result<OwnedFd> {
        let made = match object {
            Object::SocketPair {
                pair,
                socket_type,
                send_buffer,
                receive_buffer,
                send_timeout_us,
                receive_timeout_us,
                options,
                shut_reading,
                peer_ids,
                network,
                ..
            } => {
                let end = made_by(*peer_ids, || self.pair_end(*pair, *socket_type, *network))?;
                if *shut_reading {
                    self.last.push((end.try_clone()?, 1, None, "a socket pair".into()));
                }
                set_options(&end, options);
                socket_buffers::set_buffer(&end, libc::SO_SNDBUF, *send_buffer);
                socket_buffers::set_buffer(&end, libc::SO_RCVBUF, *receive_buffer);
                objects::set_socket_timeout_us(end.as_fd(), libc::SO_SNDTIMEO, *send_timeout_us)?;
                objects::set_socket_timeout_us(end.as_fd(), libc::SO_RCVTIMEO, *receive_timeout_us)?;
                end
            }
            Object::EventFd { count, semaphore } => {
                let mut file = File::from(objects::eventfd(*semaphore)?);
                if *count > 0 {
                    file.write_all(&count.to_le_bytes())?;
                }
                file.into()
            }
            Object::TimerFd { clock, .. } => objects::timerfd(*clock)?,
            Object::SignalFd { mask } => objects::signalfd(*mask)?,
            Object::Epoll { .. } => objects::epoll()?,
            Object::Inotify { .. } => inotify::inotify()?,
            Object::PidFd { pid: -1, gone } => return self.open_ended(*gone, flags),
            Object::PidFd { pid, .. } => return open_process(*pid, flags),
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        set_flags(made.as_fd(), flags)?;
        Ok(made)
    }

    /// A pipe is opened anew through /proc for each description, so that each has flags of its own; but for those of
    /// pipe(2), which have no O_LARGEFILE, as all that is opened has (fs/open.c, force_o_largefile).
    fn pipe_end(
        &mut self,
        (pipe, capacity): (u64, u64),
        object: &Object,
        flags: u32,
        opener: &Opener,
    ) -> Result<OwnedFd, RebuildError> {
        let (reader, writer) = match self.pipes.entry(pipe) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let (reader, writer) = match object {
                    Object::Pipe { path: Some(path), mode, deleted: true, .. } => {
                        deleted_pipe(path, *mode, opener)?
                    }
                    Object::Pipe { path: Some(path), mode, inode, .. } => {
                        named_pipe(path, inode.as_ref(), *mode, opener)?
                    }
                    _ => fd::pipe(0).map_err(RebuildError::io("making a pipe"))?,
                };
                let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
                // Refused above /proc/sys/fs/pipe-max-size; an error only if the data does not fit then.
                let _ = fd::fcntl(writer.as_fd(), libc::F_SETPIPE_SZ, capacity);
                entry.insert((reader, writer))
            }
        };
        let writes = is_write_end(flags);
        let end = if writes { writer } else { reader };
        let access = flags & libc::O_ACCMODE.cast_unsigned();
        let is_plain = flags & LARGE == 0 && matches!(object, Object::Pipe { path: None, .. });
        let made = if is_plain && self.plain.insert((pipe, writes)) {
            end.try_clone()
        } else {
            at::reopen(end.as_fd(), access | libc::O_NONBLOCK.cast_unsigned())
        };
        made.and_then(|fd| set_flags(fd.as_fd(), flags).map(|()| fd))
            .map_err(RebuildError::io("opening an end of a pipe"))
    }

    fn pair_end(&mut self, pair: u64, socket_type: u32, network: Option<u64>) -> io::Result<OwnedFd> {
        let entry = match self.pairs.entry(pair) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let (one, two) = self.networks.pair(network, socket_type.cast_signed())?;
                entry.insert(Pair { ends: [one, two], taken: 0 })
            }
        };
        let end =
            entry.ends.get(entry.taken).ok_or_else(|| io::Error::other("a socket pair with three ends"))?;
        entry.taken += 1;
        end.try_clone()
    }

    /// Puts the data in flight back, then closes what the program did not have open. `made`: all descriptions.
    ///
    /// # Errors
    /// Names the descriptor whose data does not fit.
    pub fn fill(&mut self, job: &Job<'_>, made: Made<'_>) -> Result<(), RebuildError> {
        self.unsettled.settle()?;
        let mut ends: HashMap<u64, usize> = HashMap::new();
        let (mut shut, mut notes) = (Vec::new(), Vec::new());
        let senders = Senders::of(job.record);
        for (index, description) in job.descriptions().iter().enumerate() {
            let filled = match &description.object {
                Object::Pipe { pipe, data, packets, .. } => self.fill_pipe(*pipe, &data.0, packets),
                object => {
                    let Some(flight) = self.flight(object) else { continue };
                    let end = ends.entry(flight.number).or_default();
                    let own = (*end).min(1);
                    *end += 1;
                    shut.extend(flight.shut.then(|| flight.ends[own].try_clone()));
                    // What waits at this end was sent from the other.
                    let (other, own) = (&flight.ends[1 - own], &flight.ends[own]);
                    let name = format!("descriptor {}", job.holder(index).map_or(-1, |(_, fd)| fd));
                    flight.send_again((other, own), made, &senders, (&name, &mut notes))
                }
            };
            let holder = job.holder(index).map_or(-1, |(_, fd)| fd);
            let io = RebuildError::io(format!("descriptor {holder}: putting back the data in flight"));
            filled.map_err(io)?;
        }
        self.notes.append(&mut notes);
        for (index, description) in job.descriptions().iter().enumerate() {
            let opener = || Some(Opener::of(job.member(job.holder(index)?.0)?.own));
            let (held, by) = ((&self.unsettled.held, &self.networks), (&senders, opener));
            self.named.send_again(&description.object, (held, made), by, &mut self.notes)?;
        }
        self.named = Named::default();
        for Pending { socket, address, number, name, opener } in self.pending.drain(..) {
            let held = number.and_then(|number| self.unsettled.held.get(&number)).and_then(address_of_held);
            let connect = || {
                // What is held is the job's own.
                let acting = if held.is_some() { Ok(None) } else { opener.act_on_way(&address) };
                let _acting = acting?;
                sockets::connect_later(&socket, held.as_ref().unwrap_or(&address))
            };
            // As to the log of a system that has none.
            if let Err(error) = made_by(opener.ids(), connect) {
                self.notes.push(format!("{name} is not connected any more: {error}"));
            }
        }
        for end in shut {
            let shut = end.and_then(|end| socket::shut_writing(end.as_fd()));
            shut.map_err(RebuildError::io("shutting a connection"))?;
        }
        for (end, shut, filter, name) in self.last.drain(..) {
            let filter = filter.map_or(Ok(()), |filter| socket::set_filter(end.as_fd(), &filter.0));
            filter.map_err(RebuildError::io(format!("{name}: setting its filter")))?;
            socket::shut(end.as_fd(), shut).map_err(RebuildError::io(format!("{name}: shutting it down")))?;
        }
        for child in self.ended.drain().map(|(_, child)| child) {
            spawn::wait(child, true).map_err(RebuildError::io("waiting for a process"))?;
        }
        self.unsettled = Unsettled::default();
        self.pipes.clear();
        self.pairs.clear();
        self.connections = Connections::default();
        Ok(())
    }

    /// A descriptor of a process that has ended and was waited for: another one that ends at once is in its place.
    fn open_ended(&mut self, number: u64, flags: u32) -> io::Result<OwnedFd> {
        open_process(self.ended_process(number)?, flags)
    }

    /// A process that ends at once, the same for the same number.
    fn ended_process(&mut self, number: u64) -> io::Result<i32> {
        if let Some(child) = self.ended.get(&number) {
            return Ok(*child);
        }
        let child = clone::fork_with(0, 0)?;
        if child == 0 {
            attributes::exit_now(0);
        }
        self.ended.insert(number, child);
        Ok(child)
    }

    /// What comes with an end of a pair or connection.
    fn flight<'a>(&'a self, object: &'a Object) -> Option<Flight<'a>> {
        match object {
            Object::SocketPair { pair, socket_type, data, senders, passed, marks, shut, .. } => {
                let ends = &self.pairs.get(pair)?.ends;
                let stream = socket_type.cast_signed() == libc::SOCK_STREAM;
                let put_back: PutBack = if stream { socket_buffers::refill } else { send_back };
                let (number, shut) = (*pair, *shut);
                Some(Flight { number, ends, data, senders, passed, marks, shut, put_back })
            }
            Object::Socket(socket) => {
                let SocketState::Connected { connection, data, senders, passed, marks, shut, .. } =
                    &socket.state
                else {
                    return None;
                };
                let packets = socket.socket_type.cast_signed() == libc::SOCK_SEQPACKET;
                let is_unix = socket.domain.cast_signed() == libc::AF_UNIX;
                let put_back: PutBack = match (packets, is_unix) {
                    (true, _) => send_back,
                    (false, true) => socket_buffers::refill,
                    (false, false) => socket_buffers::fill,
                };
                let ends = self.connections.get(*connection)?;
                let (number, shut) = (*connection, *shut);
                Some(Flight { number, ends, data, senders, passed, marks, shut, put_back })
            }
            _ => None,
        }
    }

    /// Several descriptions of a pipe may have its data.
    fn fill_pipe(&mut self, pipe: u64, data: &[u8], packets: &[u32]) -> io::Result<()> {
        if data.is_empty() || !self.filled.insert(pipe) {
            return Ok(());
        }
        let Some((reader, writer)) = self.pipes.get(&pipe) else { return Ok(()) };
        if unread(reader)? > 0 {
            // A named pipe that another program has written to meanwhile.
            return Err(io::Error::other("there is data in it already"));
        }
        let direct = if packets.is_empty() { 0 } else { libc::O_DIRECT };
        let nonblocking = libc::O_NONBLOCK.cast_unsigned();
        // The flags of the writer are the program's, perhaps.
        let writer = at::reopen(writer.as_fd(), libc::O_WRONLY.cast_unsigned() | nonblocking)?;
        set_flags(writer.as_fd(), nonblocking | direct.cast_unsigned())?;
        let mut file = File::from(writer);
        let mut rest = data;
        for &len in packets {
            let (packet, after) = rest.split_at(usize::try_from(len).unwrap_or(usize::MAX).min(rest.len()));
            file.write_all(packet)?;
            rest = after;
        }
        file.write_all(rest)
    }
}

/// Bytes that wait in a pipe.
fn unread(pipe: &OwnedFd) -> io::Result<i32> {
    const FIONREAD: libc::c_ulong = 0x541b;
    fd::ioctl_int(pipe.as_fd(), FIONREAD)
}

/// Both ends of a named pipe, which is made anew if it is gone.
fn named_pipe(
    path: &Name,
    was: Option<&Inode>,
    mode: u32,
    opener: &Opener,
) -> Result<(OwnedFd, OwnedFd), RebuildError> {
    let failed = |error: io::Error| {
        RebuildError::file(path, format!("the named pipe cannot be opened: {}", explain(&error)))
    };
    let make = || {
        let _acting = opener.act_at(path.as_path(), was.and_then(|was| was.owner))?;
        Place::of(path)?.make_fifo(mode)
    };
    let found = match opener.find(path, was)? {
        Some(found) => found,
        None => {
            make().map_err(failed)?;
            opener.find(path, None)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?
        }
    };
    if !std::os::unix::fs::FileTypeExt::is_fifo(&found.now.file_type()) {
        return Err(RebuildError::file(path, "it is not a named pipe any more"));
    }
    // A reader need not wait for a writer then, and the writer finds the reader (fifo(7)).
    let nonblocking = libc::O_NONBLOCK.cast_unsigned();
    let reader = opener.open_found(&found, nonblocking).map_err(failed)?;
    let writer = opener.open_found(&found, nonblocking | libc::O_WRONLY.cast_unsigned()).map_err(failed)?;
    Ok((reader, writer))
}

/// Both ends of a named pipe that was deleted: made in its folder, or where temporary files go, and deleted again.
fn deleted_pipe(path: &Name, mode: u32, opener: &Opener) -> Result<(OwnedFd, OwnedFd), RebuildError> {
    let _acting = opener.acting()?;
    let in_folder = |place: io::Result<Place>| {
        let place = place?.named(CString::new(new_name())?);
        place.make_fifo(mode)?;
        let nonblocking = libc::O_NONBLOCK.cast_unsigned();
        let open = |flags| place.open(nonblocking | flags, 0).map(OwnedFd::from);
        let ends = open(0).and_then(|reader| Ok((reader, open(libc::O_WRONLY.cast_unsigned())?)));
        place.remove()?;
        ends
    };
    let elsewhere = || Place::as_given(&std::env::temp_dir().join("fifo"));
    in_folder(Place::of(path)).or_else(|_| in_folder(elsewhere())).map_err(|error| {
        RebuildError::file(path, format!("a deleted named pipe cannot be made anew: {error}"))
    })
}

/// A folder that is removed as soon as it is open; elsewhere if the folder that it was in is gone too.
fn removed_folder(path: &Name, mode: u32, flags: u32, opener: &Opener) -> Result<OwnedFd, RebuildError> {
    let _acting = opener.acting()?;
    let in_folder = |place: io::Result<Place>| {
        let place = place?.named(CString::new(new_name())?);
        let made = place.make_folder()?;
        // Nothing can be in it that set-group-id would be for.
        let opened = change_mode(made.as_fd(), mode & 0o1777)
            .and_then(|()| reopen(made.as_fd(), flags & !(NOT_AGAIN | libc::O_NOFOLLOW.cast_unsigned())));
        place.remove_folder()?;
        opened
    };
    let elsewhere = || Place::as_given(&std::env::temp_dir().join("folder"));
    in_folder(Place::of(path)).or_else(|_| in_folder(elsewhere())).map_err(|error| {
        RebuildError::file(path, format!("a folder that was removed cannot be made anew: {error}"))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::record::{Description, Descriptor, FileTable};
    use std::io::Read;

    fn table(objects: Vec<(u32, Object)>) -> FileTable {
        let descriptors = (0..).zip(&objects).map(|(n, _)| Descriptor {
            fd: n + 10,
            cloexec: false,
            description: n.cast_unsigned(),
        });
        FileTable {
            descriptors: descriptors.collect(),
            descriptions: objects
                .into_iter()
                .map(|(flags, object)| Description {
                    flags,
                    object,
                    locks: Vec::new(),
                    owner: None,
                    streams: 0,
                    within: None,
                })
                .collect(),
            ..FileTable::default()
        }
    }

    fn make_all(table: &FileTable) -> Vec<OwnedFd> {
        let mut record = crate::rebuild::testing::record(Vec::new());
        record.files = table.clone();
        let (job, opener) = (Job::new(&record), Opener::of(&record));
        let mut object_builder =
            ObjectBuilder::new(&job, std::slice::from_ref(&opener), Networks::default()).unwrap();
        let mut make = |d: &Description| object_builder.make(&d.object, d.flags, 0, &opener).unwrap();
        let made: Vec<Option<OwnedFd>> = table.descriptions.iter().map(|d| Some(make(d))).collect();
        object_builder.fill(&job, &made).unwrap();
        made.into_iter().flatten().collect()
    }

    #[test]
    fn a_pipe_is_restored_with_its_data_and_its_end() {
        let pipe = |data: &[u8]| Object::Pipe {
            pipe: 7,
            capacity: 1 << 17,
            data: Blob(data.to_vec()),
            path: None,
            mode: 0,
            packets: Vec::new(),
            deleted: false,
            inode: None,
        };
        let write = (libc::O_WRONLY | libc::O_NONBLOCK).cast_unsigned();
        let all = table(vec![(write, pipe(b"")), (0, pipe(&[42; 100_000]))]);
        let mut made = make_all(&all);
        assert_eq!(fd::fcntl(made[0].as_fd(), libc::F_GETPIPE_SZ, 0).unwrap(), 1 << 17);
        assert_ne!(fd::fcntl(made[0].as_fd(), libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK, 0);
        assert_eq!(fd::fcntl(made[1].as_fd(), libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK, 0);
        let mut reader = File::from(made.pop().unwrap());
        made.clear(); // no writer is left
        let mut data = Vec::new();
        reader.read_to_end(&mut data).unwrap();
        assert_eq!(data, [42; 100_000]);
    }

    #[test]
    fn messages_keep_their_borders_and_their_direction() {
        let pair = |data: &[&[u8]]| Object::SocketPair {
            pair: 3,
            socket_type: libc::SOCK_SEQPACKET.cast_unsigned(),
            senders: Vec::new(),
            passed: Vec::new(),
            data: data.iter().map(|d| Blob(d.to_vec())).collect(),
            send_buffer: 65536,
            receive_buffer: 65536,
            send_timeout_us: 0,
            receive_timeout_us: 2_500_000,
            options: Vec::new(),
            shut: false,
            shut_reading: false,
            peer_ids: None,
            network: None,
            marks: Vec::new(),
        };
        let all = table(vec![(2, pair(&[b"to first"])), (2, pair(&[b"to", b"second"]))]);
        let made = make_all(&all);
        let mut buffer = [0_u8; 64];
        let mut read = |fd: &OwnedFd| {
            let len = fd::receive(fd.as_fd(), &mut buffer, libc::MSG_DONTWAIT).unwrap();
            String::from_utf8_lossy(&buffer[..len]).into_owned()
        };
        assert_eq!(read(&made[0]), "to first");
        assert_eq!((read(&made[1]), read(&made[1])), ("to".into(), "second".into()));
        assert_eq!(fd::socket_option(made[1].as_fd(), libc::SO_SNDBUF).unwrap(), 65536);
        let timeout = |option| objects::socket_timeout_us(made[1].as_fd(), option).unwrap();
        assert_eq!((timeout(libc::SO_SNDTIMEO), timeout(libc::SO_RCVTIMEO)), (0, 2_500_000));
    }

    #[test]
    fn an_event_counter_is_restored() {
        let all = table(vec![(2, Object::EventFd { count: u64::MAX - 1, semaphore: false })]);
        let mut count = [0_u8; 8];
        File::from(make_all(&all).pop().unwrap()).read_exact(&mut count).unwrap();
        assert_eq!(u64::from_le_bytes(count), u64::MAX - 1);
    }
}
