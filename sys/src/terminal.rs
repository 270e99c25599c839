//! Terminals and pseudo-terminals, by ioctl(2) (ioctl_tty(2)).
//!
//! By hand: the termios of `nix` is that of libc, without what struct termios2 has beyond it; all else here it lacks.
//!
//! # Safety
//! Calls take descriptors that the caller borrows, numbers, and local buffers of the size that the request has.
#![allow(unsafe_code)]

use crate::check;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Bytes of struct termios2.
pub const TERMIOS_LEN: usize = 44;
/// Bytes of struct winsize.
pub const WINDOW_LEN: usize = 8;

// asm-generic/ioctls.h.
const TCGETS2: libc::c_ulong = 0x802c_542a;
const TCSETS2: libc::c_ulong = 0x402c_542b;
const TIOCEXCL: libc::c_ulong = 0x540c;
const TIOCSCTTY: libc::c_ulong = 0x540e;
const TIOCGPGRP: libc::c_ulong = 0x540f;
const TIOCSPGRP: libc::c_ulong = 0x5410;
const TIOCGWINSZ: libc::c_ulong = 0x5413;
const TIOCSWINSZ: libc::c_ulong = 0x5414;
const TIOCPKT: libc::c_ulong = 0x5420;
const TIOCGETD: libc::c_ulong = 0x5424;
const TIOCGPTN: libc::c_ulong = 0x8004_5430;
const TIOCSPTLCK: libc::c_ulong = 0x4004_5431;
const TIOCGDEV: libc::c_ulong = 0x8004_5432;
const TIOCGPKT: libc::c_ulong = 0x8004_5438;
const TIOCGPTLCK: libc::c_ulong = 0x8004_5439;
const TIOCGEXCL: libc::c_ulong = 0x8004_5440;
const TIOCGPTPEER: libc::c_ulong = 0x5441;

fn get<const N: usize>(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<[u8; N]> {
    let mut value = [0_u64; 8];
    debug_assert!(N <= 64);
    // SAFETY: the requests of this file write N bytes, all of which `value` has room for.
    check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), request, value.as_mut_ptr()) }))?;
    let mut bytes = [0; N];
    let all: Vec<u8> = value.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.copy_from_slice(&all[..N]);
    Ok(bytes)
}

fn get_int(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<i32> {
    get::<4>(fd, request).map(i32::from_ne_bytes)
}

fn set(fd: BorrowedFd<'_>, request: libc::c_ulong, value: &[u8]) -> io::Result<()> {
    let mut room = [0_u8; 64];
    let len = value.len().min(64);
    room[..len].copy_from_slice(&value[..len]);
    // SAFETY: the requests of this file read no more than 64 bytes.
    check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), request, room.as_ptr()) })).map(|_| ())
}

fn set_number(fd: BorrowedFd<'_>, request: libc::c_ulong, value: i32) -> io::Result<i32> {
    // SAFETY: requests whose argument is a number.
    let result = check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), request, value) }))?;
    Ok(i32::try_from(result).unwrap_or(-1))
}

/// The number of the pseudo-terminal that a master belongs to.
///
/// # Errors
/// ENOTTY: it is no master.
pub fn number_of_master(fd: BorrowedFd<'_>) -> io::Result<u32> {
    get_int(fd, TIOCGPTN).map(i32::cast_unsigned)
}

/// The number of the pseudo-terminal that a slave belongs to.
///
/// # Errors
/// ENOTTY, EIO: it is no terminal, or hung up; ENODEV: it is another kind of terminal.
pub fn number_of_slave(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let device = get_int(fd, TIOCGDEV)?.cast_unsigned();
    number_of_device(device).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// The pseudo-terminal with a device number as the kernel tells it (new_encode_dev, include/linux/kdev_t.h); `None`: it
/// is another device. Slaves have 136 to 143 as their major number.
pub fn number_of_device(device: u32) -> Option<u32> {
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    (136..=143).contains(&major).then(|| (major - 136) * 256 + minor)
}

/// Struct termios2 of the slave, from either end.
///
/// # Errors
/// As the call.
pub fn termios(fd: BorrowedFd<'_>) -> io::Result<[u8; TERMIOS_LEN]> {
    get(fd, TCGETS2)
}

/// Sets it.
///
/// # Errors
/// As the call.
pub fn set_termios(fd: BorrowedFd<'_>, termios: &[u8]) -> io::Result<()> {
    set(fd, TCSETS2, termios)
}

/// Struct winsize, from either end.
///
/// # Errors
/// As the call.
pub fn window(fd: BorrowedFd<'_>) -> io::Result<[u8; WINDOW_LEN]> {
    get(fd, TIOCGWINSZ)
}

/// Sets it.
///
/// # Errors
/// As the call.
pub fn set_window(fd: BorrowedFd<'_>, window: &[u8]) -> io::Result<()> {
    set(fd, TIOCSWINSZ, window)
}

/// Packet mode of a master.
///
/// # Errors
/// As the call.
pub fn packets(fd: BorrowedFd<'_>) -> io::Result<bool> {
    get_int(fd, TIOCGPKT).map(|on| on != 0)
}

/// Sets it.
///
/// # Errors
/// As the call.
pub fn set_packets(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set(fd, TIOCPKT, &i32::from(on).to_ne_bytes())
}

/// Whether the slave of a master cannot be opened.
///
/// # Errors
/// As the call.
pub fn is_locked(fd: BorrowedFd<'_>) -> io::Result<bool> {
    get_int(fd, TIOCGPTLCK).map(|on| on != 0)
}

/// Sets that.
///
/// # Errors
/// As the call.
pub fn lock(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set(fd, TIOCSPTLCK, &i32::from(on).to_ne_bytes())
}

/// Whether a terminal cannot be opened again.
///
/// # Errors
/// As the call.
pub fn is_exclusive(fd: BorrowedFd<'_>) -> io::Result<bool> {
    get_int(fd, TIOCGEXCL).map(|on| on != 0)
}

/// Sees to that.
///
/// # Errors
/// As the call.
pub fn make_exclusive(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_number(fd, TIOCEXCL, 0).map(|_| ())
}

/// Line discipline; 0: the usual one.
///
/// # Errors
/// As the call.
pub fn discipline(fd: BorrowedFd<'_>) -> io::Result<i32> {
    get_int(fd, TIOCGETD)
}

/// The foreground process group, asked for at the master; 0: none.
///
/// # Errors
/// As the call.
pub fn foreground(fd: BorrowedFd<'_>) -> io::Result<i32> {
    get_int(fd, TIOCGPGRP)
}

/// Whether the caller has a controlling terminal; and it, if the caller's process group is in its foreground. To be
/// asked outside of a new pid namespace, in which other groups have no numbers.
pub fn held() -> (bool, Option<OwnedFd>) {
    let flags = (libc::O_RDWR | libc::O_NOCTTY).cast_unsigned();
    let Ok(terminal) = crate::objects::open(c"/dev/tty", flags, 0) else { return (false, None) };
    let own = foreground(terminal.as_fd()).is_ok_and(|group| group == crate::attributes::own_process_group());
    (true, own.then_some(terminal))
}

/// Sets it; for members of the terminal's session.
///
/// # Errors
/// ENOTTY: it is not the caller's controlling terminal; EPERM, ESRCH: no such group in the session.
pub fn set_foreground(fd: BorrowedFd<'_>, group: i32) -> io::Result<()> {
    set(fd, TIOCSPGRP, &group.to_ne_bytes())
}

/// Makes a terminal the caller's controlling one; it must lead a session that has none.
///
/// # Errors
/// EPERM.
pub fn take_control(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_number(fd, TIOCSCTTY, 0).map(|_| ())
}

/// Opens the slave of a master, close-on-exec, without making it a controlling terminal.
///
/// # Errors
/// EIO: locked; EBUSY: exclusive.
pub fn open_slave(master: BorrowedFd<'_>, flags: u32) -> io::Result<OwnedFd> {
    // Not with O_CLOEXEC: it would stay among the flags of the description, and /proc show it for all its duplicates
    // (drivers/tty/pty.c, ptm_open_peer).
    let fd = set_number(master, TIOCGPTPEER, flags.cast_signed() | libc::O_NOCTTY)?;
    crate::fd::inherited(fd)
}

/// Where struct termios2 has c_lflag and c_cc (asm-generic/termbits.h).
const LOCAL_FLAGS: usize = 12;
const CHARACTERS: usize = 17;
const EXTPROC: u32 = 0x10000;
/// Characters that have a meaning in a line, and end one: erase, kill, end of file, end of line, reprint, discard,
/// erase a word, next is literal, another end of line.
const IN_LINES: [usize; 9] = [2, 3, 4, 11, 12, 13, 14, 15, 16];

fn local_flags(termios: &[u8; TERMIOS_LEN]) -> u32 {
    let [.., a, b, c, d] = termios[..LOCAL_FLAGS + 4] else { return 0 };
    u32::from_ne_bytes([a, b, c, d])
}

/// Without `flags`.
fn without(termios: &[u8; TERMIOS_LEN], flags: u32) -> [u8; TERMIOS_LEN] {
    let mut changed = *termios;
    let left = local_flags(termios) & !flags;
    changed[LOCAL_FLAGS..LOCAL_FLAGS + 4].copy_from_slice(&left.to_ne_bytes());
    changed
}

/// The line that was begun and not ended at a terminal which gives out whole lines (canonical mode). It can only be
/// seen by taking it out, so it is put back. No other process may read meanwhile; the master sees nothing of it.
///
/// # Errors
/// As the calls; the line is lost if it could not be put back.
pub fn begun_line(master: BorrowedFd<'_>, slave: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let settings = termios(master)?;
    let is_write_only = crate::fd::fcntl(slave, libc::F_GETFL, 0)? & libc::O_ACCMODE == libc::O_WRONLY;
    if local_flags(&settings) & (libc::ICANON | EXTPROC) != libc::ICANON || is_write_only {
        return Ok(Vec::new());
    }
    let mut raw = without(&settings, libc::ICANON | libc::ECHO | libc::ECHONL);
    (raw[CHARACTERS + libc::VMIN], raw[CHARACTERS + libc::VTIME]) = (0, 0);
    set_termios(master, &raw)?;
    let taken = take_out(slave);
    // Only when it is empty: what is in it when lines are asked for again would count as a whole one.
    let restored = set_termios(master, &settings);
    let line = taken.and_then(|line| restored.map(|()| line))?;
    if !line.is_empty() {
        begin_line(master, slave, &line)?;
    }
    Ok(line)
}

fn take_out(slave: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let waiting = usize::try_from(get_int(slave, libc::FIONREAD)?).unwrap_or(0);
    let mut line = vec![0; waiting];
    File::from(slave.try_clone_to_owned()?).read_exact(&mut line)?;
    Ok(line)
}

/// Types the beginning of a line, which is not echoed and in which no character has a meaning.
///
/// # Errors
/// As the calls.
pub fn begin_line(master: BorrowedFd<'_>, slave: BorrowedFd<'_>, line: &[u8]) -> io::Result<()> {
    let settings = termios(master)?;
    let mut plain = without(&settings, libc::ISIG | libc::IEXTEN | libc::ECHO | libc::ECHONL);
    // c_iflag but for IXON, whose change is reported to a master in packet mode.
    let input = u32::from_ne_bytes([plain[0], plain[1], plain[2], plain[3]]) & libc::IXON;
    plain[..4].copy_from_slice(&input.to_ne_bytes());
    IN_LINES.iter().for_each(|&at| plain[CHARACTERS + at] = 0);
    set_termios(master, &plain)?;
    let typed = File::from(master.try_clone_to_owned()?).write_all(line);
    // Waits until it has come to the other end (n_tty_poll, tty_buffer_flush_work).
    let polled = crate::fd::poll_state(slave);
    set_termios(master, &settings)?;
    typed.and(polled.map(|_| ()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_known_by_one_number_from_both_ends() {
        let master = crate::objects::open(c"/dev/ptmx", 2, 0).unwrap();
        let number = number_of_master(master.as_fd()).unwrap();
        assert!(is_locked(master.as_fd()).unwrap());
        assert_eq!(open_slave(master.as_fd(), 2).unwrap_err().raw_os_error(), Some(libc::EIO));
        lock(master.as_fd(), false).unwrap();
        let slave = open_slave(master.as_fd(), 2).unwrap();
        assert_eq!(number_of_slave(slave.as_fd()).unwrap(), number);
        assert!(number_of_master(slave.as_fd()).is_err());
        set_window(master.as_fd(), &[1, 0, 2, 0, 3, 0, 4, 0]).unwrap();
        assert_eq!(window(slave.as_fd()).unwrap(), [1, 0, 2, 0, 3, 0, 4, 0]);
        let mut modes = termios(master.as_fd()).unwrap();
        modes[12] ^= 8; // ECHO
        set_termios(master.as_fd(), &modes).unwrap();
        assert_eq!(termios(slave.as_fd()).unwrap(), modes);
    }

    #[test]
    fn a_begun_line_is_seen_and_stays() {
        let master = crate::objects::open(c"/dev/ptmx", 2 | libc::O_NOCTTY.cast_unsigned(), 0).unwrap();
        lock(master.as_fd(), false).unwrap();
        let slave = open_slave(master.as_fd(), 2).unwrap();
        let settings = termios(slave.as_fd()).unwrap();
        let (mut typist, mut reader) =
            (File::from(master.try_clone().unwrap()), File::from(slave.try_clone().unwrap()));
        assert!(begun_line(master.as_fd(), slave.as_fd()).unwrap().is_empty());
        // The third one is the literal erase character.
        typist.write_all(b"ab\x16\x7fc").unwrap();
        crate::fd::poll_state(slave.as_fd()).unwrap();
        for _ in 0..2 {
            assert_eq!(begun_line(master.as_fd(), slave.as_fd()).unwrap(), b"ab\x7fc");
            assert_eq!(get_int(slave.as_fd(), libc::FIONREAD).unwrap(), 0);
        }
        assert_eq!(termios(slave.as_fd()).unwrap(), settings);
        typist.write_all(b"x\x7fd\n").unwrap();
        crate::fd::poll_state(slave.as_fd()).unwrap();
        let mut line = [0; 10];
        let len = reader.read(&mut line).unwrap();
        assert_eq!(&line[..len], b"ab\x7fcd\n");
        // The kernel passes it on by pieces, when it comes to it (drivers/tty/tty_buffer.c, flush_to_ldisc).
        let (mut echo, mut piece) = (Vec::new(), [0; 100]);
        while !echo.ends_with(b"\n") {
            let len = typist.read(&mut piece).unwrap();
            echo.extend_from_slice(&piece[..len]);
        }
        assert_eq!(echo, b"ab^\x08^?cx\x08 \x08d\r\n");
    }

    #[test]
    fn device_numbers_are_taken_apart() {
        assert_eq!(number_of_device(136 << 8 | 5), Some(5));
        assert_eq!(number_of_device(137 << 8 | 1), Some(257));
        assert_eq!(number_of_device(5 << 8), None);
    }
}
