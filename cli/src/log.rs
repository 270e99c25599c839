//! The agent's log, in the folder of the job.
//!
//! A program can have its agent write lines without end: the log keeps the last [`LIMIT`] bytes and as many before
//! them.

use crate::exit::Failure;
use holdfast_sys::fd;
use holdfast_tiers::Job;
use parking_lot::Mutex;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// From this length on the log is put aside, in place of the one that was put aside before.
const LIMIT: u64 = 16 << 20;

/// Where it is.
pub fn path(job: &Job) -> PathBuf {
    job.dir().join("agent.log")
}

/// Opens the log of a job for appending.
///
/// # Errors
/// As open(2).
pub fn open(job: &Job) -> Result<OwnedFd, Failure> {
    let path = path(job);
    open_at(&path).map_err(|error| Failure::system(format_args!("opening {}", path.display()), &error))
}

/// The log of the agent that calls, once more: its standard error.
///
/// # Errors
/// EMFILE.
pub fn again() -> Result<OwnedFd, Failure> {
    let log = io::stderr().as_fd().try_clone_to_owned();
    log.map_err(|error| Failure::system("duplicating the log", &error))
}

fn open_at(path: &Path) -> io::Result<OwnedFd> {
    fs::File::options().append(true).create(true).mode(0o600).open(path).map(OwnedFd::from)
}

/// Standard error of the agent, which is the log at this path.
#[derive(Debug)]
pub struct Bounded(pub PathBuf);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        static TURN: Mutex<()> = Mutex::new(());
        let error = io::stderr();
        {
            let _turn = TURN.lock();
            if fs::File::from(error.as_fd().try_clone_to_owned()?).metadata()?.len() >= LIMIT {
                // Without a new one the old one grows on.
                let _ = put_aside(&self.0);
            }
        }
        error.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Goes on with an empty log, unless the job has been removed: what is at the path by now is not ours.
fn put_aside(path: &Path) -> io::Result<()> {
    let old = path.with_extension("log.old");
    fs::rename(path, old)?;
    let fresh = open_at(path)?;
    for number in [1, 2] {
        fd::replace(number, fresh.as_fd())?;
    }
    Ok(())
}
