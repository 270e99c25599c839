//! Pseudo-terminals whose master is in the program.
//!
//! Called by [`super::FileReader`], inside the stop or for a look at a running program. All that is asked can be
//! asked at the master without changing anything; the slave is never opened here, because that would be seen at the
//! master. What waits to be read at either end cannot be seen without being taken out: inside the stop, in which no
//! process of the job reads, it is, and put back ([`terminal_data::look`]). That takes both ends: where the job has not
//! got a slave for reading and writing, there is no image while something waits.

use super::{FileReader, Found, Holder, Look, Obstacle};
use crate::capture::identity::owner_of;
use holdfast_image::bytes::Blob;
use holdfast_image::record::{Object, Pty, PtyLine};
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::terminal_data::{self, Line, Waiting};
use holdfast_sys::{fd, terminal};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

const FIONREAD: libc::c_ulong = 0x541b;
const STOPPED: &str = "a pseudo-terminal with data that were not read yet, and its output is stopped or full, or its \
                       input is full; try again";
/// What was written to one end comes to the other by a work queue of the kernel (drivers/tty/tty_buffer.c): it is there
/// after this time, or the queue is blocked because much waits already.
const ON_ITS_WAY: Duration = Duration::from_micros(300);

impl Found {
    /// A standard stream that is a slave. Of one that was opened by TIOCGPTPEER with O_CLOEXEC /proc shows that flag
    /// for all duplicates (drivers/tty/pty.c, ptm_open_peer), and a standard stream is one because it outlives an
    /// exec.
    pub(super) fn is_standard_terminal(&self) -> bool {
        (0..=2).contains(&self.fd) && self.target.starts_with(b"/dev/pts/")
    }

    /// The pseudo-terminal whose master this is.
    pub(super) fn master(&self) -> Option<u32> {
        if self.target != b"/dev/ptmx" && !self.target.ends_with(b"/pts/ptmx") {
            return None;
        }
        self.info.get("tty-index")?.parse().ok()
    }
}

impl FileReader<'_> {
    /// What an end of a pseudo-terminal is; `None`: its master is not the program's.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub(super) fn pty(&self, found: &Found) -> Result<Option<Object>, Obstacle> {
        if let Some(number) = found.master() {
            let taken = self.take(found)?;
            let pty = self.pty_number(number, found, &taken)?;
            // With the slave it is seen.
            if self.slave(number).is_none() {
                self.nothing_waits(&taken)?;
            }
            return Ok(Some(Object::PtyMaster { pty }));
        }
        if found.target.ends_with(b" (deleted)") && self.standard(found).is_none() {
            let name =
                found.target.strip_prefix(b"/dev/pts/").and_then(|name| name.strip_suffix(b" (deleted)"));
            let number = name.and_then(|name| std::str::from_utf8(name).ok()?.parse().ok());
            let Some(number) = number else { return Ok(None) };
            let pty = self.add_pty(Pty { number, hung_up: true, ..Pty::default() })?;
            return Ok(Some(Object::PtySlave { pty }));
        }
        if !found.target.starts_with(b"/dev/pts/") && found.target != b"/dev/tty" {
            return Ok(None);
        }
        let taken = self.take(found)?;
        let Ok(number) = terminal::number_of_slave(taken.as_fd()) else { return Ok(None) };
        let Some(master) = self.found.iter().find(|other| other.master() == Some(number)) else {
            return Ok(None);
        };
        let master_taken = self.take(master)?;
        let pty = self.pty_number(number, master, &master_taken)?;
        let is_first = self.ptys_seen.borrow_mut().insert(number);
        if is_first && self.look == Look::Stopped {
            self.see(number, pty, (&master_taken, &taken))?;
        }
        if let Some(pty) = self.ptys.borrow_mut().get_mut(pty as usize) {
            pty.exclusive |= terminal::is_exclusive(taken.as_fd()).unwrap_or(false);
        }
        Ok(Some(Object::PtySlave { pty }))
    }

    /// A slave with a number, for reading and writing.
    fn slave(&self, number: u32) -> Option<&Found> {
        let name = format!("/dev/pts/{number}");
        let is_both = |one: &&Found| one.info.flags.cast_signed() & libc::O_ACCMODE == libc::O_RDWR;
        self.found.iter().filter(|one| one.target == name.as_bytes()).find(is_both)
    }

    /// What waits at both ends.
    fn see(&self, number: u32, pty: u32, (master, slave): (&OwnedFd, &OwnedFd)) -> Result<(), Obstacle> {
        let failed = |error| Obstacle::of("what waits in this terminal cannot be read: ", &error);
        let both = self.slave(number).map(|found| self.take(found)).transpose()?;
        let Some(both) = both else {
            self.nothing_waits(master)?;
            return self.nothing_waits(slave);
        };
        let seen = terminal_data::look(master.as_fd(), both.as_fd()).map_err(failed)?;
        let Waiting { output, input, begun } = seen.ok_or(Obstacle::Passing(STOPPED.into()))?;
        let line = |line: Line| PtyLine { data: Blob(line.data), end_of_file: line.end_of_file };
        if let Some(pty) = self.ptys.borrow_mut().get_mut(pty as usize) {
            (pty.output, pty.line) = (Blob(output), Blob(begun));
            pty.input = input.into_iter().map(line).collect();
        }
        Ok(())
    }

    /// The index in the table of one with a master; it is described when it is met first.
    fn pty_number(&self, number: u32, found: &Found, master: &OwnedFd) -> Result<u32, Obstacle> {
        let known = |pty: &Pty| (pty.number, pty.hung_up) == (number, false);
        let index = self.ptys.borrow().iter().position(known);
        match index {
            Some(index) => u32::try_from(index).map_err(|_| "too many terminals".into()),
            None => self.add_pty(self.describe_pty(found, master, number)?),
        }
    }

    fn add_pty(&self, pty: Pty) -> Result<u32, Obstacle> {
        let mut all = self.ptys.borrow_mut();
        all.push(pty);
        u32::try_from(all.len() - 1).map_err(|_| "too many terminals".into())
    }

    fn describe_pty(&self, found: &Found, master: &OwnedFd, number: u32) -> Result<Pty, Obstacle> {
        let failed = |error| Obstacle::of("this terminal cannot be asked for its settings: ", &error);
        let master = master.as_fd();
        if terminal::discipline(master).map_err(failed)? != 0 {
            return Err("a terminal with a line discipline of its own is not supported".into());
        }
        let group = terminal::foreground(master).unwrap_or(0);
        let inner = Status::read(group, group)
            .ok()
            .and_then(|status| status.at_depth("NStgid", self.outside.namespaces.depth()));
        let holder = self.holder_of(found).tid;
        // Not opened (O_PATH), which the master would see. A kernel before 4.13 does not lead from it to the slave.
        let file = terminal::open_slave(master, libc::O_PATH.cast_unsigned())
            .and_then(|slave| File::from(slave).metadata());
        let file = file.or_else(|_| fs::metadata(format!("/proc/{holder}/root/dev/pts/{number}")));
        Ok(Pty {
            number,
            hung_up: false,
            slave_closed: fd::poll_state(master).is_ok_and(|state| state & libc::POLLHUP != 0),
            termios: Blob(terminal::termios(master).map_err(failed)?.to_vec()),
            window: Blob(terminal::window(master).map_err(failed)?.to_vec()),
            packets: terminal::packets(master).map_err(failed)?,
            locked: terminal::is_locked(master).map_err(failed)?,
            exclusive: false,
            mode: file.as_ref().map_or(0o620, |metadata| metadata.permissions().mode() & 0o7777),
            owner: file.as_ref().ok().map(owner_of),
            foreground: inner.unwrap_or(group),
            line: Blob::default(),
            input: Vec::new(),
            output: Blob::default(),
        })
    }

    fn nothing_waits(&self, end: &OwnedFd) -> Result<(), Obstacle> {
        // No process writes to any of them any more.
        if self.look == Look::Stopped && !self.written.replace(true) {
            thread::sleep(ON_ITS_WAY);
        }
        match fd::ioctl_int(end.as_fd(), FIONREAD) {
            Ok(waiting) if waiting > 0 => {
                let what =
                    format!("a pseudo-terminal with {waiting} bytes that were not read yet; try again");
                Err(Obstacle::Passing(what))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The controlling terminal of a process that leads its session, if it is one of the program's own; and whether the
    /// process is in the foreground of the one that it has.
    pub(super) fn controlling(&self, holder: &Holder<'_>) -> Option<(Option<u32>, bool)> {
        let fields = procfs::stat_fields(holder.pid, holder.tid).ok()?;
        let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
        // proc_pid_stat(5): pgrp, session, tty_nr, tpgid.
        let (group, session, device, foreground) = (number(2)?, number(3)?, number(4)?, number(5)?);
        let own = terminal::number_of_device(device.cast_unsigned())
            .filter(|_| session == holder.pid)
            .and_then(|own| self.ptys.borrow().iter().position(|pty| pty.number == own && !pty.hung_up))
            .and_then(|index| u32::try_from(index).ok());
        Some((own, foreground > 0 && foreground == group))
    }
}
