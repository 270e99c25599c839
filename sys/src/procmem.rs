//! Reading and writing the memory of another process.
//!
//! # Safety
//! `process_vm_readv`/`writev` take addresses of the *other* process as numbers; only the local side is memory of
//! ours, and it is always a slice. Addresses of the program are [`u64`]s and never become pointers here.
#![allow(unsafe_code)]

use crate::procfs;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

fn whole(done: i64, wanted: usize, what: &str, address: u64) -> io::Result<()> {
    let done = usize::try_from(crate::check(done)?).unwrap_or(0);
    if done == wanted {
        return Ok(());
    }
    Err(io::Error::other(format!("{what} at {address:#x}: {done} of {wanted} bytes")))
}

/// Fills `buffer` from `address` of the process that thread `tid` belongs to. A main thread that has ended has no
/// memory: another one is asked then.
///
/// # Errors
/// ESRCH when it is gone, EPERM, EFAULT, or a short read (all with nothing promised about `buffer`).
pub fn read(tid: i32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let error = match read_by(tid, address, buffer) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => error,
        other => return other,
    };
    match procfs::shown_by(tid) {
        other if other != tid => read_by(other, address, buffer),
        _ => Err(error),
    }
}

fn read_by(tid: i32, address: u64, buffer: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: buffer.len() };
    // SAFETY: `local` describes `buffer`, which is writable; `remote` is not touched in this address space.
    let done = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    whole(done as i64, buffer.len(), "reading memory", address)
}

/// The word at `address` of the process that thread `tid` belongs to.
///
/// # Errors
/// As [`read`].
pub fn read_u64(tid: i32, address: u64) -> io::Result<u64> {
    let mut word = [0; 8];
    read(tid, address, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// Most ranges of one [`read_many`] (UIO_MAXIOV, include/uapi/linux/uio.h).
pub const MANY: usize = 1024;

/// Fills `buffer` from several ranges (address and length) one after the other; at most [`MANY`], together as long as
/// the buffer. Costs half of what one call per page does.
///
/// # Errors
/// As [`read`]; one range that cannot be read spoils all.
pub fn read_many(tid: i32, ranges: &[(u64, usize)], buffer: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let remote: Vec<libc::iovec> =
        ranges.iter().map(|&(start, len)| libc::iovec { iov_base: start as *mut _, iov_len: len }).collect();
    let count = remote.len() as libc::c_ulong;
    // SAFETY: `local` describes `buffer`, which is writable, and bounds what is written; the ranges of `remote` are not
    // touched in this address space.
    let done = unsafe { libc::process_vm_readv(tid, &raw const local, 1, remote.as_ptr(), count, 0) };
    whole(done as i64, buffer.len(), "reading memory", ranges.first().map_or(0, |range| range.0))
}

/// Writes `data` at `address` of the process that thread `tid` belongs to. Needs writable mappings.
///
/// # Errors
/// As [`read`].
pub fn write(tid: i32, address: u64, data: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: data.len() };
    // SAFETY: `local` describes `data`, which the call only reads; `remote` is not touched in this address space.
    let done = unsafe { libc::process_vm_writev(tid, &raw const local, 1, &raw const remote, 1, 0) };
    whole(done as i64, data.len(), "writing memory", address)
}

/// Writes several parts (address and data), at most [`MANY`], as [`write`] does each of them.
///
/// # Errors
/// As [`read`]; some of the parts may have been written.
pub fn write_many(tid: i32, parts: &[(u64, &[u8])]) -> io::Result<()> {
    let of = |base: *mut libc::c_void, data: &[u8]| libc::iovec { iov_base: base, iov_len: data.len() };
    let local: Vec<libc::iovec> =
        parts.iter().map(|(_, data)| of(data.as_ptr().cast_mut().cast(), data)).collect();
    let remote: Vec<libc::iovec> = parts.iter().map(|&(start, data)| of(start as *mut _, data)).collect();
    let count = parts.len() as libc::c_ulong;
    // SAFETY: `local` describes the data, which the call only reads; `remote` is not touched in this address space.
    let done = unsafe { libc::process_vm_writev(tid, local.as_ptr(), count, remote.as_ptr(), count, 0) };
    let wanted = parts.iter().map(|(_, data)| data.len()).sum();
    whole(done as i64, wanted, "writing memory", parts.first().map_or(0, |part| part.0))
}

/// `/proc/PID/task/TID/mem`: writes through protections (FOLL_FORCE, mm/gup.c), for stub code and relocated data.
#[derive(Debug)]
pub struct ForcedMemory(File);

impl ForcedMemory {
    /// Opens it; the thread must be traced by the caller.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open(pid: i32, tid: i32) -> io::Result<ForcedMemory> {
        File::options().read(true).write(true).open(format!("/proc/{pid}/task/{tid}/mem")).map(ForcedMemory)
    }
    /// Writes `data` at `address` whatever its protection.
    ///
    /// # Errors
    /// EIO where nothing is mapped.
    pub fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, address)
    }
    /// What can be read from `address` on, `len` bytes at most.
    pub fn read_some(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match self.0.read_at(&mut bytes[done..], address + done as u64) {
                Ok(more) if more > 0 => done += more,
                _ => break,
            }
        }
        bytes.truncate(done);
        bytes
    }
    /// Reads whatever its protection.
    ///
    /// # Errors
    /// EIO where nothing is mapped.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, address)
    }
}
