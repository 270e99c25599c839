//! A TCP connection that the job has at both ends: what one of them has sent comes to the other, where it can be seen.
//!
//! Called by `capture::files::internet` at a stop, and by `rebuild::new_process` for what waited in an image. Here are
//! this end, that end, and bytes between them; who the two are is behind [`Sender`] and [`Receiver`]: sockets of this
//! host, or one of them and the word of another member of the gang.
//!
//! At a stop neither end runs. What waits at the sender cannot be seen there by an ordinary user (net/ipv4/tcp.c,
//! tcp_peek_sndq, is for TCP_REPAIR), so the receiver gets room for it, tells the sender, and has it. Nothing is taken
//! out and nothing has to be put back: a program that goes on reads the same bytes, and an agent that dies leaves
//! nothing undone.
//!
//! How it fails: what does not come in time stays where it is, and the rest is told.

use holdfast_sys::socket::{self, TcpInfo, tcp_state};
use holdfast_sys::{fd, tcp_buffers};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long nothing may come before it is given up (an acknowledgement may take 40 ms), and how many looks that takes
/// at least: on a busy host a look may take as long.
const STILL: Duration = Duration::from_millis(60);
const LOOKS: u32 = 40;
const PAUSE: Duration = Duration::from_micros(50);
/// The same of a restart, where nothing is stopped meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// Room beyond what is to come: the kernel tells of room when it is twice as much as before, in whole segments (65483
/// bytes on the loopback device), and a sixteenth of all (net/ipv4/tcp_output.c, __tcp_select_window). More of it is
/// more that the program sends before the next stop.
const SLACK: u64 = 256 << 10;
const MOST_SLACK: u64 = 8;

/// The end that has sent.
pub trait Sender {
    /// All that it will have sent, its end counting as one byte.
    fn total(&self) -> io::Result<u64>;
    /// Whether it waits for room at the receiver.
    fn waits(&self) -> io::Result<bool>;
    /// Sends what it holds back in the hope of more (Nagle's algorithm, TCP_CORK).
    fn push(&self);
    /// Bytes of memory that its queue takes.
    fn queued(&self) -> usize;
    /// Gives up the room of a queue that has moved to the receiver ([`tcp_buffers::lend`]).
    fn lend(&self, queued: usize);
}

/// The end that receives.
pub trait Receiver {
    /// What has come, counted in the same way.
    fn received(&self) -> io::Result<u64>;
    /// Has room for so many bytes beyond those, and tells the sender.
    fn make_room(&self, bytes: u64) -> io::Result<()>;
}

/// Has all that was sent come to the receiver, in this time where one is given. Returns how much has not.
///
/// # Errors
/// An end cannot be asked.
pub fn drain(from: &impl Sender, to: &impl Receiver, until: Option<Instant>) -> io::Result<u64> {
    let left = || Ok::<u64, io::Error>(from.total()?.saturating_sub(to.received()?));
    if left()? == 0 {
        return Ok(0);
    }
    let queued = from.queued();
    from.push();
    let (mut rest, mut moved, mut looks, mut more) = (left()?, Instant::now(), 0, 1);
    if rest == 0 {
        return Ok(0);
    }
    let in_time = || until.is_none_or(|until| Instant::now() < until);
    while rest > 0 && in_time() && (looks < LOOKS || moved.elapsed() < STILL) {
        let waits = from.waits()?;
        if waits {
            to.make_room(rest.saturating_add(SLACK * more))?;
        }
        let before = rest;
        rest = left()?;
        if rest < before {
            (moved, looks) = (Instant::now(), 0);
            continue;
        }
        // What it takes depends on how the kernel has stored what waits.
        more = (more + u64::from(waits)).min(MOST_SLACK);
        looks += 1;
        std::thread::sleep(PAUSE);
    }
    from.lend(queued);
    Ok(rest)
}

/// Sends bytes that the other end has not read, which has room for all of them.
///
/// # Errors
/// ENOBUFS: it has not.
pub fn fill(from: &Local<'_>, to: &impl Receiver, data: &[u8]) -> io::Result<()> {
    let (mut rest, mut more, mut moved) = (data, 1, Instant::now());
    while !rest.is_empty() {
        match fd::send(from.socket.as_fd(), rest, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) => {
                rest = &rest[sent..];
                moved = Instant::now();
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if moved.elapsed() > PATIENCE => return Err(io::Error::from_raw_os_error(libc::ENOBUFS)),
            Err(_) => {
                if from.waits()? {
                    to.make_room((rest.len() as u64).saturating_add(SLACK * more))?;
                    more = (more + 1).min(MOST_SLACK);
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
    from.push();
    Ok(())
}

/// A socket of this host.
#[derive(Clone, Copy, Debug)]
pub struct Local<'a> {
    socket: &'a OwnedFd,
    is_used: bool,
}

impl<'a> Local<'a> {
    /// One that a stopped program has.
    pub fn of_program(socket: &'a OwnedFd) -> Local<'a> {
        Local { socket, is_used: true }
    }

    /// One that no program has yet. No process is made for it: ids may be given out one after the other just now.
    pub fn in_the_making(socket: &'a OwnedFd) -> Local<'a> {
        Local { socket, is_used: false }
    }

    fn info(self) -> io::Result<TcpInfo> {
        socket::tcp_info(self.socket.as_fd())
    }
}

/// Whether an end has sent its last.
pub fn is_shut(state: u8) -> bool {
    use tcp_state::{CLOSING, FIN_WAIT1, FIN_WAIT2, LAST_ACK};
    [FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING].contains(&state)
}

/// All that an end will have sent, its end counting as one byte. As long as that was not sent it is among the bytes
/// that were not (net/ipv4/tcp.c, tcp_get_info: what lies between snd_nxt and write_seq, of which it has one).
pub fn total(info: &TcpInfo) -> u64 {
    info.sent + u64::from(info.not_sent) + u64::from(is_shut(info.state) && info.not_sent == 0)
}

impl Sender for Local<'_> {
    fn total(&self) -> io::Result<u64> {
        let info = self.info()?;
        // Over: the other end has all of it.
        Ok(if info.state == tcp_state::CLOSE { 0 } else { total(&info) })
    }

    fn waits(&self) -> io::Result<bool> {
        let info = self.info()?;
        let on_its_way = info.sent.saturating_sub(info.acknowledged);
        let room = u64::from(info.window).saturating_sub(on_its_way);
        // A kernel that does not tell has not told of any.
        Ok(info.not_sent > 0 && room < u64::from(info.not_sent.min(info.segment)))
    }

    fn push(&self) {
        let set = |on: i32| {
            let _ = socket::set_option(
                self.socket.as_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_NODELAY,
                &on.to_ne_bytes(),
            );
        };
        let was = socket::option(self.socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY);
        // Setting it sends what is there, corked or not (net/ipv4/tcp.c, __tcp_sock_set_nodelay).
        set(1);
        if was.is_ok_and(|was| was.iter().all(|&byte| byte == 0)) {
            set(0);
        }
    }

    fn queued(&self) -> usize {
        tcp_buffers::queued(self.socket).unwrap_or(0)
    }

    fn lend(&self, queued: usize) {
        tcp_buffers::lend(self.socket, queued);
    }
}

impl Receiver for Local<'_> {
    fn received(&self) -> io::Result<u64> {
        let info = self.info()?;
        Ok(if info.state == tcp_state::CLOSE { u64::MAX } else { info.received })
    }

    fn make_room(&self, bytes: u64) -> io::Result<()> {
        // A look would move it.
        if fd::socket_option(self.socket.as_fd(), libc::SO_PEEK_OFF).is_ok_and(|offset| offset >= 0) {
            return Err(io::Error::other("the program uses SO_PEEK_OFF itself"));
        }
        let waiting = unread(self.socket)?;
        let wanted =
            waiting.saturating_add(waiting / 8).saturating_add(usize::try_from(bytes).unwrap_or(usize::MAX));
        let here = |calls: &mut dyn FnMut()| {
            calls();
            Ok(())
        };
        if self.is_used {
            tcp_buffers::make_room(self.socket, wanted, tcp_buffers::undying)?;
        } else {
            tcp_buffers::make_room(self.socket, wanted, here)?;
        }
        // A look tells the sender of the room (tcp_recvmsg ends in tcp_cleanup_rbuf), and an acknowledgement that was
        // due anyway.
        let _ = socket::set_option(
            self.socket.as_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_QUICKACK,
            &1_i32.to_ne_bytes(),
        );
        let _ = fd::receive(self.socket.as_fd(), &mut [0], libc::MSG_PEEK | libc::MSG_DONTWAIT);
        Ok(())
    }
}

/// Bytes that wait to be read, all that count for the buffer; up to a byte out of band, where one is.
fn unread(end: &OwnedFd) -> io::Result<usize> {
    const FIONREAD: libc::c_ulong = 0x541b;
    Ok(usize::try_from(fd::ioctl_int(end.as_fd(), FIONREAD)?).unwrap_or(0))
}

/// An end that no process has any more, of whose queue the kernel sends the rest by itself.
#[derive(Clone, Copy, Debug)]
pub struct Orphan<'a> {
    /// The other end of it.
    pub to: &'a OwnedFd,
    /// Where that will have received all.
    pub total: u64,
}

impl Sender for Orphan<'_> {
    fn total(&self) -> io::Result<u64> {
        let state = Local::of_program(self.to).info()?.state;
        let has_ended = [tcp_state::ESTABLISHED, tcp_state::FIN_WAIT1, tcp_state::FIN_WAIT2];
        Ok(if has_ended.contains(&state) { self.total } else { 0 })
    }

    fn waits(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn push(&self) {}

    fn queued(&self) -> usize {
        0
    }

    fn lend(&self, _: usize) {}
}

/// The end of another member of the gang, which has said what it has sent and is stopped.
#[derive(Clone, Copy, Debug)]
pub struct Remote(pub u64);

impl Sender for Remote {
    fn total(&self) -> io::Result<u64> {
        Ok(self.0)
    }

    /// It cannot be asked meanwhile.
    fn waits(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn push(&self) {}

    fn queued(&self) -> usize {
        0
    }

    fn lend(&self, _: usize) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn byte(at: u64) -> u8 {
        u8::try_from(at % 251).unwrap()
    }

    /// Sends until nothing more fits; returns where the stream is then.
    fn stuff(from: &OwnedFd, mut at: u64) -> u64 {
        loop {
            let piece: Vec<u8> = (at..at + 65536).map(byte).collect();
            match fd::send(from.as_fd(), &piece, libc::MSG_DONTWAIT) {
                Ok(sent) => at += sent as u64,
                Err(_) => return at,
            }
        }
    }

    fn check(to: OwnedFd, total: u64) {
        let mut all = Vec::new();
        TcpStream::from(to).read_to_end(&mut all).unwrap();
        assert_eq!(all.len() as u64, total);
        assert!(all.iter().zip(0..).all(|(&found, at)| found == byte(at)));
    }

    fn ends() -> (OwnedFd, OwnedFd) {
        let (from, to) = pair();
        (from.into(), to.into())
    }

    /// What is left at last. A try ends when nothing has come for a moment, as it may on a busy host.
    fn drained(from: &impl Sender, to: &OwnedFd) -> u64 {
        let mut tries = (0..100).map(|_| drain(from, &Local::of_program(to), None).unwrap());
        tries.find(|left| *left == 0).unwrap_or(u64::MAX)
    }

    /// Time after time, and without a reader.
    #[test]
    fn what_waits_at_the_sender_comes_to_the_receiver() {
        let (from, to) = ends();
        let (mut total, mut first) = (0, 0);
        for round in 0..12 {
            total = stuff(&from, total);
            first = if round == 0 { total } else { first };
            assert_eq!(drained(&Local::of_program(&from), &to), 0, "{round}");
            assert_eq!(unread(&to).unwrap() as u64, total);
        }
        assert!(total < 6 * first, "what moves later is less: {first} first, {total} in all");
        socket::shut_writing(from.as_fd()).unwrap();
        check(to, total);
    }

    #[test]
    fn the_ends_of_both_streams_come_behind_what_waits() {
        let (one, other) = ends();
        let totals = [stuff(&one, 0), stuff(&other, 0)];
        socket::shut_writing(one.as_fd()).unwrap();
        socket::shut_writing(other.as_fd()).unwrap();
        assert_eq!(Local::of_program(&one).info().unwrap().state, tcp_state::FIN_WAIT1);
        for (from, to) in [(&one, &other), (&other, &one), (&one, &other)] {
            drain(&Local::of_program(from), &Local::of_program(to), None).unwrap();
        }
        // The last acknowledgement may be on its way.
        while ![&one, &other]
            .iter()
            .all(|end| Local::of_program(end).info().unwrap().state == tcp_state::CLOSE)
        {
            std::thread::sleep(PAUSE);
        }
        check(other, totals[0]);
        check(one, totals[1]);
    }

    #[test]
    fn what_a_closed_end_had_to_send_comes() {
        let (from, to) = ends();
        let total = stuff(&from, 0);
        drop(from);
        let rest = drained(&Orphan { to: &to, total: total + 1 }, &to);
        assert_eq!((rest, unread(&to).unwrap() as u64), (0, total));
        check(to, total);
    }

    #[test]
    fn what_is_held_back_is_sent() {
        let (from, to) = ends();
        socket::set_option(from.as_fd(), libc::IPPROTO_TCP, libc::TCP_CORK, &1_i32.to_ne_bytes()).unwrap();
        fd::send(from.as_fd(), &[byte(0)], 0).unwrap();
        assert_eq!(drained(&Local::of_program(&from), &to), 0);
        let option = |name| socket::option(from.as_fd(), libc::IPPROTO_TCP, name).unwrap()[0];
        assert_eq!([option(libc::TCP_CORK), option(libc::TCP_NODELAY)], [1, 0]);
        drop(from);
        check(to, 1);
    }

    #[test]
    fn more_than_a_new_connection_has_room_for_is_filled_in() {
        let (from, to) = ends();
        let data: Vec<u8> = (0..6 << 20).map(byte).collect();
        fill(&Local::in_the_making(&from), &Local::in_the_making(&to), &data).unwrap();
        drop(from);
        check(to, data.len() as u64);
    }
}
