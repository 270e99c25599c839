//! What waits at both ends of a pseudo-terminal: seen, and put back when it is made anew.
//!
//! The kernel shows it to those alone who take it out, so it is taken and written again through the other end, while no
//! program runs that has either: bytes for the master with output processing off, input with no character having a
//! meaning. Which process does it: one that goes on though the caller be killed (`spawn::undying`). What has come to an
//! end is the terminal's; what has not is on its way by a work queue (drivers/tty/tty_buffer.c), for which each step
//! waits where the next one would change what becomes of it.
//!
//! Called inside a stop by `process::capture`, and by `process::rebuild` for a terminal that no program has yet.
//!
//! # Safety
//! Calls take descriptors that the caller borrows, numbers, and local buffers with their lengths.
#![allow(unsafe_code)]

use crate::terminal::{self, TERMIOS_LEN};
use crate::{fd, spawn};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A tty's buffer (N_TTY_BUF_SIZE); of input there may be no more than that.
const INPUT: usize = 4096;
/// From so much on the kernel keeps input back before it has looked at it.
const FULL: usize = 3900;
/// What is on its way to a master at most (8192, drivers/tty/pty.c, pty_common_install), what has come, and some more.
const OUTPUT: usize = 8 * INPUT;
/// How often something that must come is waited for, a tenth of a millisecond each.
const TRIES: u32 = 50_000;

// Offsets in struct termios2, and flags (asm-generic/termbits.h).
const OUTPUT_FLAGS: usize = 4;
const LOCAL_FLAGS: usize = 12;
const CHARACTERS: usize = 17;
const OPOST: u32 = 1;
const IXON: u32 = 0o2000;
const EXTPROC: u32 = 0x10000;

/// A piece of input that a read gives by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its bytes, with what ended it.
    pub data: Vec<u8>,
    /// It ended by the character for the end of a file, which no read gives.
    pub end_of_file: bool,
}

/// What waits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Waiting {
    /// For the master.
    pub output: Vec<u8>,
    /// For the slave: lines; one of them and no end of it, where it gives out bytes.
    pub input: Vec<Line>,
    /// A line that was begun and not ended.
    pub begun: Vec<u8>,
}

/// The two ends, and the settings.
#[derive(Clone, Copy)]
struct Ends<'a> {
    master: BorrowedFd<'a>,
    slave: BorrowedFd<'a>,
    settings: [u8; TERMIOS_LEN],
    packets: bool,
}

/// What was taken, in memory that was there before.
struct Taken {
    output: Vec<u8>,
    output_len: usize,
    input: Vec<u8>,
    input_len: usize,
    /// Where lines end.
    ends: Vec<usize>,
    lines: usize,
    /// What could not be put back.
    failed: Option<&'static str>,
}

/// What waits at the ends of a terminal; afterwards it waits there again. `slave`: for reading and writing.
/// `None`: not now; nothing was taken.
///
/// # Errors
/// It cannot be asked. It was taken and could not be put back.
pub fn look(master: BorrowedFd<'_>, slave: BorrowedFd<'_>) -> io::Result<Option<Waiting>> {
    let settings = terminal::termios(master)?;
    let packets = terminal::packets(master)?;
    let in_lines = flags(&settings, LOCAL_FLAGS) & libc::ICANON != 0;
    // A look at an end waits for what is on its way to it (n_tty_poll). A line may have nothing but its end.
    let for_master = is_readable(master) && waiting(master) > 0;
    let for_slave = is_readable(slave) && in_lines || waiting(slave) > 0;
    if !for_master && !for_slave {
        let begun = terminal::begun_line(master, slave)?;
        return Ok(Some(Waiting { begun, ..Waiting::default() }));
    }
    // Changes that a master in packet mode is told of. Output that has no room, or was stopped (pty_write_room).
    let told = packets && fd::poll_for(master, libc::POLLPRI)? & libc::POLLPRI != 0;
    let no_room = fd::poll_for(slave, libc::POLLOUT)? & libc::POLLOUT == 0;
    let much = usize::try_from(waiting(slave)).unwrap_or(INPUT) >= FULL;
    if told || no_room || much || flags(&settings, LOCAL_FLAGS) & EXTPROC != 0 {
        return Ok(None);
    }
    let ends = Ends { master, slave, settings, packets };
    let mut taken = Taken {
        output: vec![0; OUTPUT],
        output_len: 0,
        input: vec![0; 2 * INPUT],
        input_len: 0,
        ends: vec![0; INPUT + 1],
        lines: 0,
        failed: None,
    };
    let before = fd::fcntl(slave, libc::F_GETFL, 0)?;
    spawn::undying(&mut || {
        // A write must not wait for room: no process makes any.
        let _ = fd::fcntl(slave, libc::F_SETFL, (before | libc::O_NONBLOCK).into());
        ends.exchange(&mut taken);
        let _ = fd::fcntl(slave, libc::F_SETFL, before.into());
    })?;
    match taken.failed {
        Some(what) => Err(io::Error::other(what)),
        None => Ok(Some(taken.told(ends.gives_lines()))),
    }
}

/// Has this wait at the ends of a new terminal with these settings.
///
/// # Errors
/// It does not come there.
pub fn put(master: BorrowedFd<'_>, slave: BorrowedFd<'_>, waiting: &Waiting) -> io::Result<()> {
    if waiting.output.is_empty() && waiting.input.is_empty() {
        return if waiting.begun.is_empty() {
            Ok(())
        } else {
            terminal::begin_line(master, slave, &waiting.begun)
        };
    }
    let ends =
        Ends { master, slave, settings: terminal::termios(master)?, packets: terminal::packets(master)? };
    let mut taken = Taken::of(waiting);
    ends.unseen(|| ends.put_back(&mut taken));
    taken.failed.map_or(Ok(()), |what| Err(io::Error::other(what)))
}

impl Taken {
    fn of(waiting: &Waiting) -> Taken {
        let mut input: Vec<u8> = Vec::new();
        let mut ends = Vec::new();
        for line in &waiting.input {
            input.extend(&line.data);
            ends.push(end(input.len(), line.end_of_file));
        }
        input.extend(&waiting.begun);
        Taken {
            output: waiting.output.clone(),
            output_len: waiting.output.len(),
            input_len: input.len(),
            input,
            lines: ends.len(),
            ends,
            failed: None,
        }
    }

    fn told(&self, in_lines: bool) -> Waiting {
        let (mut input, mut from) = (Vec::new(), 0);
        for &told in self.ends.iter().take(self.lines) {
            let (to, end_of_file) = (told / 2, told % 2 == 1);
            input.push(Line { data: self.input.get(from..to).unwrap_or_default().to_vec(), end_of_file });
            from = to;
        }
        let rest = self.input.get(from..self.input_len).unwrap_or_default().to_vec();
        let output = self.output.get(..self.output_len).unwrap_or_default().to_vec();
        if in_lines || rest.is_empty() {
            return Waiting { output, input, begun: rest };
        }
        input.push(Line { data: rest, end_of_file: false });
        Waiting { output, input, begun: Vec::new() }
    }
}

/// Where a line ends, and how.
fn end(at: usize, end_of_file: bool) -> usize {
    at * 2 + usize::from(end_of_file)
}

/// What follows makes system calls alone: it runs in memory of a process that may be dead.
impl Ends<'_> {
    fn gives_lines(&self) -> bool {
        flags(&self.settings, LOCAL_FLAGS) & libc::ICANON != 0
    }

    fn exchange(&self, taken: &mut Taken) {
        self.unseen(|| {
            self.take_output(taken);
            if self.gives_lines() {
                self.take_lines(taken);
            }
            self.take_bytes(taken);
            self.put_back(taken);
        });
    }

    /// Without a master in packet mode being told of other settings.
    fn unseen(&self, act: impl FnOnce()) {
        if self.packets {
            let _ = terminal::set_packets(self.master, false);
        }
        act();
        if self.packets {
            let _ = terminal::set_packets(self.master, true);
        }
    }

    fn take_output(&self, taken: &mut Taken) {
        // A look that finds nothing waits for what is on its way (n_tty_poll).
        while is_readable(self.master) && waiting(self.master) > 0 {
            let room = taken.output.get_mut(taken.output_len..).unwrap_or_default();
            match read(self.master, room) {
                0 => return,
                len => taken.output_len += len,
            }
        }
    }

    fn take_lines(&self, taken: &mut Taken) {
        while is_readable(self.slave) {
            let Some(place) = taken.ends.get_mut(taken.lines) else { return };
            let room = taken.input.get_mut(taken.input_len..).unwrap_or_default();
            // Nothing: the character for the end of a file, alone.
            let len = read(self.slave, room);
            let last = len.checked_sub(1).and_then(|last| room.get(last)).copied();
            taken.input_len += len;
            *place = end(taken.input_len, !last.is_some_and(|last| self.ends_line(last)));
            taken.lines += 1;
        }
    }

    /// Whether a character is the end of a line that a read gives.
    fn ends_line(&self, byte: u8) -> bool {
        let is_at = |at: usize| byte != 0 && self.settings.get(CHARACTERS + at) == Some(&byte);
        byte == b'\n' || is_at(libc::VEOL) || is_at(libc::VEOL2)
    }

    /// What is not in lines.
    fn take_bytes(&self, taken: &mut Taken) {
        let mut raw = self.plain(0);
        set_character(&mut raw, libc::VMIN, 0);
        set_character(&mut raw, libc::VTIME, 0);
        self.set(&raw);
        while waiting(self.slave) > 0 {
            let room = taken.input.get_mut(taken.input_len..).unwrap_or_default();
            match read(self.slave, room) {
                0 => break,
                len => taken.input_len += len,
            }
        }
        // While it is empty: what is in it when lines are asked for would count as one.
        self.set(&self.settings);
    }

    fn put_back(&self, taken: &mut Taken) {
        let output = taken.output.get(..taken.output_len).unwrap_or_default();
        if !output.is_empty() {
            let mut plain = self.settings;
            set_flags(&mut plain, OUTPUT_FLAGS, flags(&self.settings, OUTPUT_FLAGS) & !OPOST);
            self.set(&plain);
            if !self.write(self.slave, output, self.master) {
                taken.failed = Some("output of a terminal could not be put back");
            }
            self.set(&self.settings);
        }
        let mut from = 0;
        for at in 0..taken.lines {
            let Some(told) = taken.ends.get(at) else { break };
            let line = taken.input.get(from..told / 2).unwrap_or_default();
            if !self.type_line(line, Some(told % 2 == 1)) {
                taken.failed = Some("input of a terminal could not be put back");
            }
            from = told / 2;
        }
        let rest = taken.input.get(from..taken.input_len).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let typed = if self.gives_lines() { self.type_line(rest, None) } else { self.type_bytes(rest) };
        if !typed {
            taken.failed = Some("input of a terminal could not be put back");
        }
    }

    /// Types bytes, where no lines are given out: they have come when they can be counted.
    fn type_bytes(&self, bytes: &[u8]) -> bool {
        self.set(&self.plain(0));
        let before = waiting(self.slave);
        let wanted = before.saturating_add(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        let typed = self.write(self.master, bytes, self.slave) && comes(|| waiting(self.slave) >= wanted);
        self.set(&self.settings);
        typed
    }

    /// Types a line, of which some characters have to be said to mean nothing. `end`: whether that is the end of a
    /// file. A character that stops output comes last, and tells when all has come: the settings are others then.
    fn type_line(&self, line: &[u8], end: Option<bool>) -> bool {
        let unused = |not: &[u8]| {
            let free = |byte: &u8| *byte != b'\n' && !line.contains(byte) && !not.contains(byte);
            (1..=255).find(free).unwrap_or(not.len().to_le_bytes()[0] + 1)
        };
        let next = unused(&[]);
        let last = unused(&[next]);
        let stop = unused(&[next, last]);
        let mut plain = self.plain(libc::ICANON | libc::IEXTEN);
        set_flags(&mut plain, 0, IXON);
        set_character(&mut plain, libc::VLNEXT, next);
        set_character(&mut plain, libc::VEOF, last);
        set_character(&mut plain, libc::VSTOP, stop);
        let (body, ending) = match (end, line.split_last()) {
            (Some(false), Some((ending, body))) => (body, Some(*ending)),
            _ => (line, None),
        };
        if let Some(ending) = ending.filter(|ending| *ending != b'\n') {
            set_character(&mut plain, libc::VEOL, ending);
        }
        self.set(&plain);
        let special = |byte: u8| [next, last, stop, b'\n'].contains(&byte) || ending == Some(byte);
        let mut from = 0;
        let mut typed = true;
        for (at, &byte) in body.iter().enumerate() {
            if special(byte) {
                typed &= self.write(self.master, body.get(from..at).unwrap_or_default(), self.slave);
                typed &= self.write(self.master, &[next, byte], self.slave);
                from = at + 1;
            }
        }
        typed &= self.write(self.master, body.get(from..).unwrap_or_default(), self.slave);
        typed &= match (end, ending) {
            (_, Some(ending)) => self.write(self.master, &[ending], self.slave),
            (Some(_), None) => self.write(self.master, &[last], self.slave),
            (None, None) => true,
        };
        typed &= self.write(self.master, &[stop], self.slave);
        typed &= comes(|| !has_room(self.slave));
        // That starts output again (n_tty_set_termios), whatever the settings say that come then.
        set_flags(&mut plain, 0, 0);
        self.set(&plain);
        self.set(&self.settings);
        typed
    }

    /// Settings by which no character of input means anything, with these local flags.
    fn plain(&self, local: u32) -> [u8; TERMIOS_LEN] {
        let mut plain = self.settings;
        let all = libc::ICANON | libc::ISIG | libc::IEXTEN | libc::ECHO | libc::ECHONL;
        set_flags(&mut plain, 0, 0);
        set_flags(&mut plain, LOCAL_FLAGS, flags(&self.settings, LOCAL_FLAGS) & !all | local);
        // All but the two that are numbers, where no lines are given out.
        for at in 0..TERMIOS_LEN - CHARACTERS - 8 {
            if local & libc::ICANON != 0 || ![libc::VMIN, libc::VTIME].contains(&at) {
                set_character(&mut plain, at, 0);
            }
        }
        plain
    }

    fn set(&self, settings: &[u8; TERMIOS_LEN]) {
        let _ = terminal::set_termios(self.master, settings);
    }

    /// Writes all; `other` takes it in.
    fn write(&self, to: BorrowedFd<'_>, bytes: &[u8], other: BorrowedFd<'_>) -> bool {
        let mut rest = bytes;
        comes(|| {
            if rest.is_empty() {
                return true;
            }
            if has_room(to) {
                // SAFETY: the buffer has this length.
                let len = unsafe { libc::write(to.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
                rest = rest.get(usize::try_from(len).unwrap_or(0)..).unwrap_or_default();
            }
            is_readable(other);
            rest.is_empty()
        })
    }
}

fn flags(settings: &[u8; TERMIOS_LEN], at: usize) -> u32 {
    let bytes = settings.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}

fn set_flags(settings: &mut [u8; TERMIOS_LEN], at: usize, flags: u32) {
    for (place, byte) in settings.iter_mut().skip(at).zip(flags.to_ne_bytes()) {
        *place = byte;
    }
}

fn set_character(settings: &mut [u8; TERMIOS_LEN], at: usize, byte: u8) {
    if let Some(place) = settings.get_mut(CHARACTERS + at) {
        *place = byte;
    }
}

/// Whether something becomes true in time.
fn comes(mut it: impl FnMut() -> bool) -> bool {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 100_000 };
    for _ in 0..TRIES {
        if it() {
            return true;
        }
        // SAFETY: a local value is read.
        unsafe { libc::nanosleep(&raw const pause, std::ptr::null_mut()) };
    }
    false
}

/// Bytes that a read would give.
fn waiting(end: BorrowedFd<'_>) -> i32 {
    let mut count = 0_i32;
    // SAFETY: the call writes an int.
    unsafe { libc::ioctl(end.as_raw_fd(), libc::FIONREAD, &raw mut count) };
    count
}

fn poll(end: BorrowedFd<'_>, events: i16) -> bool {
    let mut asked = libc::pollfd { fd: end.as_raw_fd(), events, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut asked, 1, 0) };
    asked.revents & events != 0
}

fn is_readable(end: BorrowedFd<'_>) -> bool {
    poll(end, libc::POLLIN)
}

fn has_room(end: BorrowedFd<'_>) -> bool {
    poll(end, libc::POLLOUT)
}

/// Bytes that were read; none if there are none.
fn read(end: BorrowedFd<'_>, room: &mut [u8]) -> usize {
    // SAFETY: the buffer has this length.
    let len = unsafe { libc::read(end.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
    usize::try_from(len).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};

    struct Pty {
        master: OwnedFd,
        slave: OwnedFd,
    }

    impl Pty {
        fn new() -> Pty {
            let master = crate::objects::open(c"/dev/ptmx", 2 | libc::O_NOCTTY.cast_unsigned(), 0).unwrap();
            terminal::lock(master.as_fd(), false).unwrap();
            let slave = terminal::open_slave(master.as_fd(), (2 | libc::O_NONBLOCK).cast_unsigned()).unwrap();
            Pty { master, slave }
        }

        fn change(&self, change: impl FnOnce(&mut [u8; TERMIOS_LEN])) {
            let mut settings = terminal::termios(self.master.as_fd()).unwrap();
            change(&mut settings);
            terminal::set_termios(self.master.as_fd(), &settings).unwrap();
        }

        fn quiet(&self) {
            self.change(|settings| {
                let local = flags(settings, LOCAL_FLAGS) & !(libc::ECHO | libc::ECHONL);
                set_flags(settings, LOCAL_FLAGS, local);
            });
        }

        fn write(end: &OwnedFd, bytes: &[u8]) {
            File::from(end.try_clone().unwrap()).write_all(bytes).unwrap();
        }

        fn read(end: &OwnedFd) -> Vec<u8> {
            let mut bytes = [0; 200];
            assert!(comes(|| is_readable(end.as_fd())));
            let len = File::from(end.try_clone().unwrap()).read(&mut bytes).unwrap();
            bytes[..len].to_vec()
        }

        fn look(&self) -> Waiting {
            look(self.master.as_fd(), self.slave.as_fd()).unwrap().unwrap()
        }
    }

    fn line(data: &[u8], end_of_file: bool) -> Line {
        Line { data: data.to_vec(), end_of_file }
    }

    #[test]
    fn lines_wait_as_they_did_and_a_new_terminal_has_the_same() {
        let (pty, other) = (Pty::new(), Pty::new());
        for one in [&pty, &other] {
            one.quiet();
            one.change(|settings| set_character(settings, libc::VEOL, b';'));
        }
        let settings = terminal::termios(pty.master.as_fd()).unwrap();
        // With a newline and an end that are data, the ends of files, alone and not, another end of a line, one begun.
        Pty::write(&pty.master, b"one\nt\x16\nw\x16\x04o\n\x04end\x04a;beg\x16\x7fun");
        let expected = Waiting {
            output: Vec::new(),
            input: vec![
                line(b"one\n", false),
                line(b"t\nw\x04o\n", false),
                line(b"", true),
                line(b"end", true),
                line(b"a;", false),
            ],
            begun: b"beg\x7fun".to_vec(),
        };
        assert!(comes(|| waiting(pty.slave.as_fd()) == 15));
        for _ in 0..3 {
            assert_eq!(pty.look(), expected);
        }
        put(other.master.as_fd(), other.slave.as_fd(), &expected).unwrap();
        for one in [&pty, &other] {
            assert_eq!(terminal::termios(one.master.as_fd()).unwrap(), settings);
            let read = || Pty::read(&one.slave);
            assert_eq!((read(), read(), read()), (b"one\n".to_vec(), b"t\nw\x04o\n".to_vec(), Vec::new()));
            assert_eq!((read(), read()), (b"end".to_vec(), b"a;".to_vec()));
            Pty::write(&one.master, b"\x7f\n");
            assert_eq!(Pty::read(&one.slave), b"beg\x7fu\n");
            assert!(!is_readable(one.master.as_fd()), "nothing was echoed");
        }
    }

    #[test]
    fn bytes_and_output_wait_as_they_did() {
        let (pty, other) = (Pty::new(), Pty::new());
        for one in [&pty, &other] {
            one.change(|settings| {
                let local = flags(settings, LOCAL_FLAGS) & !(libc::ICANON | libc::ECHO | libc::ISIG);
                set_flags(settings, LOCAL_FLAGS, local);
                set_flags(settings, 0, flags(settings, 0) & !0o400);
            });
            terminal::set_packets(one.master.as_fd(), true).unwrap();
        }
        Pty::write(&pty.master, b"\x03raw\n\x00\xff\r");
        let long = b"row\tand\n".repeat(800);
        Pty::write(&pty.slave, &long);
        assert!(comes(|| waiting(pty.slave.as_fd()) == 8));
        let first = pty.look();
        assert_eq!(first.input, [line(b"\x03raw\n\x00\xff\r", false)]);
        assert_eq!(first.output.len(), 800 * 9, "each newline became two");
        assert_eq!(pty.look(), first);
        put(other.master.as_fd(), other.slave.as_fd(), &first).unwrap();
        for one in [&pty, &other] {
            assert_eq!(Pty::read(&one.slave), b"\x03raw\n\x00\xff\r");
            let mut output = Vec::new();
            while output.len() < first.output.len() {
                let packet = Pty::read(&one.master);
                assert_eq!(packet[0], 0, "data");
                output.extend_from_slice(&packet[1..]);
            }
            assert_eq!(output, first.output);
        }
    }

    #[test]
    fn stopped_output_is_left_alone() {
        let pty = Pty::new();
        pty.quiet();
        Pty::write(&pty.slave, b"before");
        Pty::write(&pty.master, b"\x13");
        assert!(comes(|| !has_room(pty.slave.as_fd())));
        assert_eq!(look(pty.master.as_fd(), pty.slave.as_fd()).unwrap(), None);
        assert_eq!(Pty::read(&pty.master), b"before");
        Pty::write(&pty.master, b"\x11");
        assert!(comes(|| has_room(pty.slave.as_fd())));
    }
}
