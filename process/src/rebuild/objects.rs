//! Descriptors of kernel objects without a name: pipes and socket pairs with what was in flight, eventfd, timerfd,
//! signalfd, epoll. Runs in the new process ([`super::life`]).

use super::error::RebuildError;
use holdfast_image::record::{FileTable, Object};
use holdfast_sys::{fd, objects};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Socket options (asm-generic/socket.h).
const SO_SNDBUFFORCE: i32 = 32;
const SO_RCVBUFFORCE: i32 = 33;

/// Pipes and pairs in the making: each end is asked for on its own.
#[derive(Debug, Default)]
pub struct Makers {
    pipes: HashMap<u64, (OwnedFd, OwnedFd)>,
    pairs: HashMap<u64, Pair>,
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

impl Makers {
    /// One end, or one object.
    ///
    /// # Errors
    /// Of the system call that makes it.
    pub fn make(&mut self, object: &Object, flags: u32) -> io::Result<OwnedFd> {
        let made = match object {
            Object::Pipe { pipe, capacity, .. } => return self.pipe_end(*pipe, *capacity, flags),
            Object::SocketPair {
                pair,
                socket_type,
                send_buffer,
                receive_buffer,
                send_timeout_us,
                receive_timeout_us,
                ..
            } => {
                let end = self.pair_end(*pair, *socket_type)?;
                set_buffer(&end, libc::SO_SNDBUF, SO_SNDBUFFORCE, *send_buffer);
                set_buffer(&end, libc::SO_RCVBUF, SO_RCVBUFFORCE, *receive_buffer);
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
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        set_flags(made.as_fd(), flags)?;
        Ok(made)
    }

    /// A pipe is opened anew through /proc for each description, so that each has flags of its own.
    fn pipe_end(&mut self, pipe: u64, capacity: u64, flags: u32) -> io::Result<OwnedFd> {
        let (reader, writer) = match self.pipes.entry(pipe) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let (reader, writer) = fd::pipe(0)?;
                let capacity = i64::try_from(capacity).unwrap_or(i64::MAX);
                // Refused above /proc/sys/fs/pipe-max-size; an error only if the data does not fit then.
                let _ = fd::fcntl(writer.as_fd(), libc::F_SETPIPE_SZ, capacity);
                entry.insert((reader, writer))
            }
        };
        let end = if is_write_end(flags) { writer } else { reader };
        let path = CString::new(format!("/proc/self/fd/{}", end.as_raw_fd())).unwrap_or_default();
        let access = flags & libc::O_ACCMODE.cast_unsigned();
        let fd = objects::open(&path, access | libc::O_NONBLOCK.cast_unsigned(), 0)?;
        set_flags(fd.as_fd(), flags)?;
        Ok(fd)
    }

    fn pair_end(&mut self, pair: u64, socket_type: u32) -> io::Result<OwnedFd> {
        let entry = match self.pairs.entry(pair) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let (one, two) = fd::socketpair(socket_type.cast_signed())?;
                entry.insert(Pair { ends: [one, two], taken: 0 })
            }
        };
        let end =
            entry.ends.get(entry.taken).ok_or_else(|| io::Error::other("a socket pair with three ends"))?;
        entry.taken += 1;
        end.try_clone()
    }

    /// Puts the data in flight back, then closes what the program did not have open.
    ///
    /// # Errors
    /// Names the descriptor whose data does not fit.
    pub fn fill(&mut self, table: &FileTable) -> Result<(), RebuildError> {
        let mut ends: HashMap<u64, usize> = HashMap::new();
        for (index, description) in table.descriptions.iter().enumerate() {
            let holder =
                table.descriptors.iter().find(|d| d.description as usize == index).map_or(-1, |d| d.fd);
            let io = || RebuildError::io(format!("descriptor {holder}: putting back the data in flight"));
            match &description.object {
                Object::Pipe { pipe, data, .. } if !data.0.is_empty() => {
                    let Some((_, writer)) = self.pipes.get(pipe) else { continue };
                    set_flags(writer.as_fd(), libc::O_NONBLOCK.cast_unsigned()).map_err(io())?;
                    let mut file = File::from(writer.try_clone().map_err(io())?);
                    file.write_all(&data.0).map_err(io())?;
                }
                Object::SocketPair { pair, data, .. } => {
                    let end = ends.entry(*pair).or_default();
                    let Some(Pair { ends: both, .. }) = self.pairs.get(pair) else { continue };
                    // What waits at this end was sent from the other.
                    let other = &both[1 - (*end).min(1)];
                    *end += 1;
                    for message in data {
                        send_back(other, &message.0).map_err(io())?;
                    }
                }
                _ => {}
            }
        }
        self.pipes.clear();
        self.pairs.clear();
        Ok(())
    }
}

fn send_back(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let mut sent = fd::send(socket.as_fd(), message, flags);
    if let Err(error) = &sent
        && error.kind() == io::ErrorKind::WouldBlock
    {
        // It did fit before: the kernel counts its own overhead, which depends on how the data was sent.
        let now = fd::socket_option(socket.as_fd(), libc::SO_SNDBUF)?;
        set_buffer(socket, libc::SO_SNDBUF, SO_SNDBUFFORCE, now.saturating_mul(4).cast_unsigned());
        sent = fd::send(socket.as_fd(), message, flags);
        set_buffer(socket, libc::SO_SNDBUF, SO_SNDBUFFORCE, now.cast_unsigned());
    }
    if sent? == message.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EMSGSIZE)) }
}

/// Sets a buffer size as the kernel reports it (twice what is asked for), where it differs. Best effort: the limits of
/// this host may be lower.
fn set_buffer(socket: &OwnedFd, option: i32, force: i32, wanted: u32) {
    if fd::socket_option(socket.as_fd(), option).is_ok_and(|now| now.cast_unsigned() == wanted) {
        return;
    }
    let half = (wanted / 2).cast_signed();
    if fd::set_socket_option(socket.as_fd(), force, half).is_err() {
        let _ = fd::set_socket_option(socket.as_fd(), option, half);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::bytes::Blob;
    use holdfast_image::record::{Description, Descriptor};
    use std::io::Read;

    fn table(objects: Vec<(u32, Object)>) -> FileTable {
        let descriptors = (0..).zip(&objects).map(|(n, _)| Descriptor {
            fd: n + 10,
            cloexec: false,
            description: n.cast_unsigned(),
        });
        FileTable {
            descriptors: descriptors.collect(),
            descriptions: objects.into_iter().map(|(flags, object)| Description { flags, object }).collect(),
            mapped: Vec::new(),
        }
    }

    fn make_all(table: &FileTable) -> Vec<OwnedFd> {
        let mut makers = Makers::default();
        let made = table.descriptions.iter().map(|d| makers.make(&d.object, d.flags).unwrap()).collect();
        makers.fill(table).unwrap();
        made
    }

    #[test]
    fn a_pipe_comes_back_with_its_data_and_its_end() {
        let pipe = |data: &[u8]| Object::Pipe { pipe: 7, capacity: 1 << 17, data: Blob(data.to_vec()) };
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
            data: data.iter().map(|d| Blob(d.to_vec())).collect(),
            send_buffer: 65536,
            receive_buffer: 65536,
            send_timeout_us: 0,
            receive_timeout_us: 2_500_000,
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
    fn an_event_counter_comes_back() {
        let all = table(vec![(2, Object::EventFd { count: u64::MAX - 1, semaphore: false })]);
        let mut count = [0_u8; 8];
        File::from(make_all(&all).pop().unwrap()).read_exact(&mut count).unwrap();
        assert_eq!(u64::from_le_bytes(count), u64::MAX - 1);
    }
}
