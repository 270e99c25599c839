//! Pseudo-terminals, made anew with their numbers where they are free.
//!
//! Runs in the new processes, before their exec. All are made by the first before any description is opened
//! ([`Ptys::make`]). The leader of a session takes its controlling terminal again before it has children that
//! inherit it ([`Ptys::take_control`]; [`super::fork_tree`]). When all processes are in their places come the
//! groups in the foreground and what would hinder opening the slave, or be seen at the master ([`Ptys::settle`]).
//! How it fails: an error names the terminal; a number that is not to be had is a note.

use crate::rebuild::error::RebuildError;
use crate::rebuild::paths;
use holdfast_image::record::{Ownership, ProcessRecord, Pty, PtyLine};
use holdfast_sys::terminal_data::{self, Line, Waiting};
use holdfast_sys::{attributes, fd, objects, terminal};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Masters that are opened on the way to a number, at most.
const TRIES: usize = 1024;
const READ_WRITE: u32 = libc::O_RDWR.cast_unsigned();

/// The masters, in the order of the table.
#[derive(Debug, Default)]
pub struct Ptys(Vec<OwnedFd>);

impl Ptys {
    /// Makes all, as descriptors of at least `floor`, unlocked.
    ///
    /// # Errors
    /// There are no pseudo-terminals here.
    pub fn make(wanted: &[Pty], floor: i32, notes: &mut Vec<String>) -> Result<Ptys, RebuildError> {
        if wanted.is_empty() {
            return Ok(Ptys::default());
        }
        let failed = || RebuildError::io("making a pseudo-terminal (/dev/ptmx)");
        let mut slots: Vec<Option<OwnedFd>> = wanted.iter().map(|_| None).collect();
        let highest = wanted.iter().filter(|pty| !pty.hung_up).map(|pty| pty.number).max().unwrap_or(0);
        let mut spare = Vec::new();
        // The kernel gives the lowest free number (fs/devpts/inode.c, devpts_new_index).
        while slots.iter().any(Option::is_none) && spare.len() < TRIES {
            let (master, number) = open_master(floor).map_err(failed())?;
            let slot = wanted.iter().position(|pty| !pty.hung_up && pty.number == number);
            match slot {
                Some(slot) => slots[slot] = Some(master),
                None => spare.push((master, number)),
            }
            let wants = wanted.iter().zip(&slots).any(|(pty, slot)| slot.is_none() && !pty.hung_up);
            if number >= highest || !wants {
                break;
            }
        }
        let mut made = Vec::with_capacity(wanted.len());
        for (pty, slot) in wanted.iter().zip(slots) {
            if let Some(master) = slot {
                made.push(master);
                continue;
            }
            let (master, number) = match spare.pop() {
                Some(spare) => spare,
                None => open_master(floor).map_err(failed())?,
            };
            if !pty.hung_up {
                notes.push(format!(
                    "/dev/pts/{} is /dev/pts/{number} now: another program has that name",
                    pty.number
                ));
            }
            made.push(master);
        }
        for (master, pty) in made.iter().zip(wanted) {
            terminal::lock(master.as_fd(), false).map_err(failed())?;
            if pty.hung_up {
                continue;
            }
            let set = terminal::set_termios(master.as_fd(), &pty.termios.0);
            set.and_then(|()| terminal::set_window(master.as_fd(), &pty.window.0)).map_err(failed())?;
        }
        Ok(Ptys(made))
    }

    fn get(&self, pty: u32) -> io::Result<&OwnedFd> {
        self.0.get(pty as usize).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// The master.
    ///
    /// # Errors
    /// EMFILE.
    pub fn master(&self, pty: u32, flags: u32) -> io::Result<OwnedFd> {
        let master = self.get(pty)?.try_clone()?;
        let nonblocking = flags & (libc::O_NONBLOCK | libc::O_ASYNC).cast_unsigned();
        fd::fcntl(master.as_fd(), libc::F_SETFL, i64::from(nonblocking))?;
        Ok(master)
    }

    /// A description of the slave.
    ///
    /// # Errors
    /// As open.
    pub fn slave(&self, pty: u32, flags: u32) -> io::Result<OwnedFd> {
        let settable = (libc::O_ACCMODE | libc::O_NONBLOCK | libc::O_APPEND).cast_unsigned() | LARGE;
        terminal::open_slave(self.get(pty)?.as_fd(), flags & settable)
    }

    /// Makes that of a process which leads a session without one its controlling terminal. In that process.
    ///
    /// # Errors
    /// As the ioctl.
    pub fn take_control(&self, process: &ProcessRecord) -> Result<(), RebuildError> {
        let Some(pty) = process.files.controlling else { return Ok(()) };
        self.slave(pty, READ_WRITE)
            .and_then(|slave| terminal::take_control(slave.as_fd()))
            .map_err(RebuildError::io("taking the controlling terminal again"))
    }

    /// Puts the process group that was there into the foreground of the controlling terminal of this process; all
    /// groups are there, and SIGTTOU is blocked. A note if it cannot be.
    pub fn set_foreground(&self, wanted: &[Pty], process: &ProcessRecord) -> Option<String> {
        let pty = process.files.controlling?;
        let group = wanted.get(pty as usize)?.foreground;
        // The id of the only process may be another one now.
        let group = if group == process.pgid { attributes::own_process_group() } else { group };
        // The others have no number in a pid namespace of the job's own: who is in them sets them.
        if group == 0 || process.inner.is_some() && wanted.get(pty as usize)?.foreground != process.pgid {
            return None;
        }
        let set = self.get(pty).and_then(|master| terminal::set_foreground(master.as_fd(), group));
        set.err()
            .map(|error| format!("process group {group} is not in the foreground of its terminal: {error}"))
    }

    /// What comes last. A terminal that was hung up is so when the last master is closed, with the last exec.
    ///
    /// # Errors
    /// As the ioctls.
    pub fn settle(&self, wanted: &[Pty]) -> io::Result<Vec<String>> {
        let mut notes = Vec::new();
        for (master, pty) in self.0.iter().zip(wanted).filter(|(_, pty)| !pty.hung_up) {
            // By the master: in /dev/pts the number may be another one's. And not opened, which the master would see.
            let slave = terminal::open_slave(master.as_fd(), libc::O_PATH.cast_unsigned());
            notes.extend(slave.ok().and_then(|slave| give(&File::from(slave), pty)));
            let waiting = waiting(pty);
            if waiting != Waiting::default() {
                terminal_data::put(master.as_fd(), self.open_again(master)?.as_fd(), &waiting)?;
            }
            if pty.slave_closed {
                drop(self.open_again(master)?);
            }
            if pty.exclusive {
                terminal::make_exclusive(self.open_again(master)?.as_fd())?;
            }
            if pty.packets {
                terminal::set_packets(master.as_fd(), true)?;
            }
            if pty.locked {
                terminal::lock(master.as_fd(), true)?;
            }
        }
        Ok(notes)
    }

    fn open_again(&self, master: &OwnedFd) -> io::Result<OwnedFd> {
        terminal::open_slave(master.as_fd(), READ_WRITE | libc::O_NONBLOCK.cast_unsigned())
    }
}

/// What waited at its ends.
fn waiting(pty: &Pty) -> Waiting {
    let line = |line: &PtyLine| Line { data: line.data.0.clone(), end_of_file: line.end_of_file };
    Waiting {
        output: pty.output.0.clone(),
        input: pty.input.iter().map(line).collect(),
        begun: pty.line.0.clone(),
    }
}

/// Gives the file of a slave to whose it was, with its permission bits. A note if that is not to be had: who is not
/// root may give it to groups of its own only.
fn give(slave: &File, pty: &Pty) -> Option<String> {
    let is_same = |owner: &Ownership| {
        slave.metadata().is_ok_and(|now| (now.uid(), now.gid()) == (owner.user, owner.group))
    };
    let owner = pty.owner.filter(|owner| !is_same(owner));
    let given = owner.map_or(Ok(()), |owner| paths::change_owner(slave.as_fd(), owner));
    // The owner may always.
    let _ = paths::change_mode(slave.as_fd(), pty.mode);
    let (owner, error) = (owner?, given.err()?);
    // An id that this user namespace does not have: it is shown as another one here.
    (error.raw_os_error() != Some(libc::EINVAL)).then(|| {
        format!(
            "/dev/pts/{} belonged to user {} and group {}, and cannot be given to them: {error}",
            pty.number, owner.user, owner.group
        )
    })
}

/// O_LARGEFILE as the kernel has it: the C library leaves it out where all files are large.
pub const LARGE: u32 = 0o100_000;

fn open_master(floor: i32) -> io::Result<(OwnedFd, u32)> {
    let master = objects::open(c"/dev/ptmx", READ_WRITE | libc::O_NOCTTY.cast_unsigned(), 0)?;
    let number = terminal::number_of_master(master.as_fd())?;
    Ok((objects::duplicate_above(master.as_raw_fd(), floor)?, number))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::bytes::Blob;

    #[test]
    fn settings_come_back_and_a_taken_number_is_noted() {
        let (taken, number) = open_master(0).unwrap();
        let termios = terminal::termios(taken.as_fd()).unwrap().to_vec();
        let pty = Pty {
            number,
            termios: Blob(termios.clone()),
            window: Blob(vec![9, 0, 8, 0, 7, 0, 6, 0]),
            packets: true,
            locked: true,
            slave_closed: true,
            mode: 0o600,
            ..Pty::default()
        };
        let dead = Pty { number, hung_up: true, ..Pty::default() };
        let mut notes = Vec::new();
        let wanted = [pty, dead];
        let made = Ptys::make(&wanted, 50, &mut notes).unwrap();
        assert!(notes.len() == 1 && notes[0].contains(&format!("/dev/pts/{number} is")), "{notes:?}");
        let slave = made.slave(1, READ_WRITE).unwrap();
        made.settle(&wanted).unwrap();
        let master = made.master(0, libc::O_NONBLOCK.cast_unsigned()).unwrap();
        drop(made);
        assert_eq!(terminal::window(master.as_fd()).unwrap()[..2], [9, 0]);
        assert!(terminal::packets(master.as_fd()).unwrap() && terminal::is_locked(master.as_fd()).unwrap());
        assert_ne!(fd::poll_state(master.as_fd()).unwrap() & libc::POLLHUP, 0);
        assert_ne!(fd::poll_state(slave.as_fd()).unwrap() & libc::POLLHUP, 0);
    }
}
