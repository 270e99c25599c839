//! What is in a file, read through a mapping instead of by read(2).
//!
//! For the agent, which must not be noticed: read(2) is an event for inotify(7) and fanotify(7) (fs/read_write.c,
//! vfs_read: fsnotify_access); a mapping, and the faults in it, are none. The mapping is private: a shared one of a
//! descriptor that may write would keep the program from sealing its memfd (mm/memfd.c, memfd_add_seals:
//! mapping_deny_writable). It lasts for one call: it holds the open file description, and with it the description's
//! locks. How it fails: by an errno.
//!
//! # Safety
//! No reference to the mapped memory is ever made: the kernel copies it (`process_vm_readv(2)` of our own memory), so
//! that a file which is cut meanwhile is EFAULT and not SIGBUS.
#![allow(unsafe_code)]

use crate::{attributes, procmem};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const PAGE: u64 = 4096;

/// A mapping of ours, until it is dropped.
struct View {
    start: *mut libc::c_void,
    len: usize,
}

impl View {
    /// Of whole pages of a file from `offset` on, for reading.
    fn of(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<View> {
        let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let offset = libc::off_t::try_from(offset).map_err(invalid)?;
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE);
        // SAFETY: a new mapping, wherever the kernel likes, of a descriptor that the caller borrows.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(View { start, len })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: what `View::of` has mapped, as long as it was; nothing points into it.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Fills `buffer` from `offset` on. The descriptor must be open for reading.
///
/// # Errors
/// ENODEV: files there cannot be mapped; EACCES: not open for reading; EFAULT, or a short copy: the file ends before.
pub fn read_exact_at(file: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    if buffer.is_empty() {
        return Ok(());
    }
    let skipped = offset % PAGE;
    let len = usize::try_from(skipped).unwrap_or(0).saturating_add(buffer.len());
    let view = View::of(file, offset - skipped, len)?;
    procmem::read(attributes::own_pid(), view.start as u64 + skipped, buffer)
}

/// Has the kernel read a file into memory, without waiting for it (readahead).
///
/// # Errors
/// As posix_fadvise.
pub fn will_need(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let number = |n: u64| libc::off_t::try_from(n).unwrap_or(libc::off_t::MAX);
    Ok(posix_fadvise(file, number(offset), number(len), PosixFadviseAdvice::POSIX_FADV_WILLNEED)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Seek, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_file_is_read_where_it_is_and_no_further() {
        let mut file = File::from(crate::memfd::create(c"mapped", false).unwrap());
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        file.write_all(&bytes).unwrap();
        will_need(file.as_fd(), 0, 10_000).unwrap();
        for (from, to) in [(0, 10_000), (4095, 4097), (4096, 8192), (9_999, 10_000), (7, 7)] {
            let mut buffer = vec![0; to - from];
            read_exact_at(file.as_fd(), from as u64, &mut buffer).unwrap();
            assert_eq!(buffer, bytes[from..to]);
        }
        assert_eq!(file.stream_position().unwrap(), 10_000, "the position is the program's");
        file.set_len(4096).unwrap();
        assert!(read_exact_at(file.as_fd(), 4096, &mut [0; 8]).is_err(), "no SIGBUS");
        assert!(read_exact_at(file.as_fd(), u64::MAX - 4095, &mut [0; 8]).is_err());
    }
}
