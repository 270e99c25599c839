//! Who is alive: a byte of the log's file, far behind its end, is locked by the writer and by each reader.
//!
//! Open file description locks (fcntl(2), F_OFD_SETLK): they end with the last descriptor of the description, however
//! its process ends. Called by writer and reader.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;

/// The first of the bytes: no log is as long.
const AT: i64 = 1 << 60;
/// The writer's, behind those of readers.
const WRITER: u64 = 1 << 20;

fn lock(byte: u64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: AT + i64::try_from(byte).unwrap_or(0),
        l_len: 1,
        l_pid: 0, // must be 0 for F_OFD_* (fcntl(2))
    }
}

fn take(file: &File, byte: u64) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock(byte, libc::F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether another description has it.
fn is_taken(file: &File, byte: u64) -> io::Result<bool> {
    let mut asked = lock(byte, libc::F_WRLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut asked))?;
    Ok(i32::from(asked.l_type) != libc::F_UNLCK)
}

/// Takes the writer's lock. `false`: another one has it.
pub(crate) fn take_writer(file: &File) -> io::Result<bool> {
    take(file, WRITER)
}

/// Whether a writer is alive.
pub(crate) fn has_writer(file: &File) -> io::Result<bool> {
    is_taken(file, WRITER)
}

/// Takes a reader's lock. `false`: another one has it.
pub(crate) fn take_reader(file: &File, slot: u64) -> io::Result<bool> {
    take(file, slot)
}

/// Whether the reader of a slot is alive.
pub(crate) fn has_reader(file: &File, slot: u64) -> io::Result<bool> {
    is_taken(file, slot)
}
