//! Files without a name: memfds, their seals, and where a file has data.
//!
//! # Safety
//! Calls take descriptors that the caller borrows, numbers, and NUL-terminated strings.
#![allow(unsafe_code)]

use crate::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// F_ADD_SEALS (include/uapi/linux/fcntl.h).
pub const F_ADD_SEALS: i32 = 1033;
const F_GET_SEALS: i32 = 1034;
/// Seal of the bits that make it executable (Linux 6.3).
pub const F_SEAL_EXEC: u32 = 0x20;

/// `memfd_create(2)`, close-on-exec, to which seals may be added. `executable`: as it says; kernels before 6.3 know no
/// difference.
///
/// # Errors
/// EMFILE, ENOMEM; EACCES: this system forbids executable ones (vm.memfd_noexec).
pub fn create(name: &CStr, executable: bool) -> io::Result<OwnedFd> {
    const MFD_NOEXEC_SEAL: u32 = 8;
    const MFD_EXEC: u32 = 0x10;
    let kind = if executable { MFD_EXEC } else { MFD_NOEXEC_SEAL };
    let make = |flags: u32| {
        // SAFETY: a NUL-terminated string and numbers.
        let fd = check(i64::from(unsafe { libc::memfd_create(name.as_ptr(), flags) }))?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).unwrap_or(-1)) })
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    make(flags | kind).or_else(|error: io::Error| match error.raw_os_error() {
        Some(libc::EINVAL) => make(flags),
        _ => Err(error),
    })
}

/// The seals of a file; 0 where there can be none.
pub fn seals(fd: BorrowedFd<'_>) -> u32 {
    // SAFETY: numbers only.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), F_GET_SEALS) };
    u32::try_from(seals).unwrap_or(0)
}

/// The next range at `from` or later that holds data: first byte, first byte after it. `None`: there is none. Moves the
/// offset.
///
/// # Errors
/// As lseek.
pub fn next_data(fd: BorrowedFd<'_>, from: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |at: u64, whence: i32| -> io::Result<u64> {
        let at = i64::try_from(at).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: numbers only.
        check(unsafe { libc::lseek(fd.as_raw_fd(), at, whence) }).map(i64::cast_unsigned)
    };
    match seek(from, libc::SEEK_DATA) {
        Ok(start) => Ok(Some((start, seek(start, libc::SEEK_HOLE)?))),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn data_is_found_between_holes_and_seals_are_told() {
        let file = File::from(create(c"holes", true).unwrap());
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"x", 8192).unwrap();
        assert_eq!(next_data(file.as_fd(), 0).unwrap(), Some((8192, 12288)));
        assert_eq!(next_data(file.as_fd(), 12288).unwrap(), None);
        assert_eq!(seals(file.as_fd()), 0);
        crate::fd::fcntl(file.as_fd(), F_ADD_SEALS, 2).unwrap();
        assert_eq!(seals(file.as_fd()), 2);
        assert_eq!(seals(File::open("/proc/self/status").unwrap().as_fd()), 0);
    }
}
