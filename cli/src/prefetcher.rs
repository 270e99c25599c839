//! `holdfast __prefetch`: the process that opens the file of a page server, hands it to the front, and reads it ahead.
//!
//! Started by the page server (`crate::page_server`) before that has /dev/fuse, because who has the device must never
//! wait for the file ([`holdfast_sys::fuse`]). The server tells it range by range what to read ([`Prefetcher`]), and is
//! told of each when it is in the kernel's cache. It ends with the server, and when the server closes the socket.
//!
//! What must hold: it has nothing that others need, so that it may die at any time; what it has open keeps the server
//! running no longer than the server wants. How it fails: nothing more is read ahead; before the front has the file,
//! it tells the front why it cannot have it.

use crate::args::PrefetchArgs;
use crate::entries::helper_environment;
use crate::exit::Failure;
use crate::helper::Helper;
use crate::log;
use holdfast_sys::fuse::protocol::LONGEST;
use holdfast_sys::fuse::{self, Mount};
use holdfast_sys::{attributes, fd, scm, signals, spawn};
use std::collections::VecDeque;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What the first message to the front says if all is well.
pub const READY: &[u8] = b"ready";
/// How much less it gets of a processor (nice(2)), as the threads that answer it.
pub const LATER: i32 = 10;
/// Longest range: bytes.
pub const STEP: u64 = LONGEST as u64;

/// The process, to the page server.
pub struct Prefetcher {
    pid: i32,
    socket: OwnedFd,
}

impl Prefetcher {
    /// Starts it. Not to be called by a process that has the device: between fork and exec the child had it, too.
    ///
    /// # Errors
    /// As [`Helper::start`].
    pub fn start(root: &Path, job: &str, front: OwnedFd) -> Result<Prefetcher, Failure> {
        let job = format!("--job={job}");
        let mut words: Vec<&OsStr> = vec!["--store".as_ref(), root.as_os_str()];
        words.extend(["__prefetch", &job, "--server", "3", "--front", "4"].map(OsStr::new));
        let helper = Helper {
            what: "the process that reads ahead",
            words,
            environment: helper_environment()?,
            log: log::again()?,
            descriptors: vec![front],
            at_default: &[],
        };
        helper.start().map(|(pid, socket)| Prefetcher { pid, socket })
    }

    /// The thread by which the file system knows it.
    pub fn thread(&self) -> u32 {
        self.pid.cast_unsigned()
    }

    /// Has it open the file and send it to the front.
    ///
    /// # Errors
    /// EPIPE: it has ended.
    pub fn open(&self, mount: Mount, name: &CStr) -> io::Result<()> {
        scm::send(self.socket.as_fd(), name.to_bytes_with_nul(), Some(mount.as_fd()))
    }

    /// Has it read a range of [`STEP`] bytes at most.
    ///
    /// # Errors
    /// EPIPE: it has ended.
    pub fn ask(&self, offset: u64, len: u64) -> io::Result<()> {
        let message = [offset.to_ne_bytes(), len.to_ne_bytes()].concat();
        fd::send(self.socket.as_fd(), &message, libc::MSG_NOSIGNAL).map(|_| ())
    }

    /// Waits until the range that was asked for first is read: bytes. `None`: it has ended.
    ///
    /// # Errors
    /// As recv.
    pub fn answer(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 8];
        match fd::receive(self.socket.as_fd(), &mut bytes, 0)? {
            8 => Ok(Some(u64::from_ne_bytes(bytes))),
            _ => Ok(None),
        }
    }

    /// Lets it end, and waits for that no longer than it may take to read a range.
    pub fn end(self) {
        drop(self.socket);
        let _ = spawn::wait(self.pid, true);
    }
}

/// Opens the file for the front, and reads it ahead until the server closes the socket.
///
/// # Errors
/// It cannot be opened: the front has been told.
pub fn run(args: &PrefetchArgs) -> Result<(), Failure> {
    let inherited = |fd| fd::inherited(fd).map_err(|error| Failure::system("taking over a socket", &error));
    let (server, front) = (inherited(args.server)?, inherited(args.front)?);
    attributes::leave_no_core();
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        signals::set_ignored(signal, true);
    }
    let result = open(server.as_fd(), front.as_fd());
    match result {
        Ok(None) => Ok(()),
        Ok(Some(file)) => {
            drop(front);
            let _ = attributes::set_nice(0, LATER);
            read_ahead(&file, server.as_fd());
            Ok(())
        }
        Err(error) => {
            let failure = Failure::system("opening the file of the pages", &error);
            let _ = scm::send(front.as_fd(), failure.message.as_bytes(), None);
            Err(failure)
        }
    }
}

/// Sends the file to the front; once more, to be read ahead. None: the server has ended, or has failed and said so.
fn open(server: BorrowedFd<'_>, front: BorrowedFd<'_>) -> io::Result<Option<File>> {
    let mut name = [0; 256];
    let (len, Some(mount)) = scm::receive_with(server, &mut name, 0)? else { return Ok(None) };
    let name = CStr::from_bytes_with_nul(&name[..len]).map_err(io::Error::other)?;
    let mount = Mount::from(mount);
    let ahead = mount.open(name, true)?;
    let file = mount.open(name, false)?;
    scm::send(front, READY, Some(file.as_fd()))?;
    fuse::read_in_sequence(ahead.as_fd())?;
    Ok(Some(File::from(ahead)))
}

/// Reads what the server says, of which the kernel asks for all at once, and tells the server of one after the other.
fn read_ahead(file: &File, server: BorrowedFd<'_>) {
    let mut asked: VecDeque<(u64, usize)> = VecDeque::new();
    let mut pages = vec![0; STEP as usize];
    loop {
        let mut message = [0; 16];
        let flags = if asked.is_empty() { 0 } else { libc::MSG_DONTWAIT };
        match fd::receive(server, &mut message, flags) {
            Ok(16) => {
                let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
                let (offset, len) = (number(&message[..8]), number(&message[8..]).min(STEP));
                // What it does not begin is read below.
                let _ = fuse::begin_reading(file.as_fd(), offset, len);
                asked.push_back((offset, usize::try_from(len).unwrap_or(0)));
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
        let Some((offset, len)) = asked.pop_front() else { continue };
        // A page that cannot be read is left to who touches it; without the server nothing can be.
        let read = file.read_exact_at(&mut pages[..len], offset).map_or(0, |()| len as u64);
        if fd::send(server, &read.to_ne_bytes(), libc::MSG_NOSIGNAL).is_err() {
            return;
        }
    }
}
