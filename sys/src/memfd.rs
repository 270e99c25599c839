//! Files without a name: memfds, their seals, and where a file has data.

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Whence, lseek};
use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// F_ADD_SEALS (include/uapi/linux/fcntl.h).
pub const F_ADD_SEALS: i32 = 1033;
const F_GET_SEALS: i32 = 1034;
/// Seal of the bits that make it executable (Linux 6.3).
pub const F_SEAL_EXEC: u32 = 0x20;
/// It may be executed (include/uapi/linux/memfd.h, Linux 6.3).
const MFD_EXEC: u32 = 0x10;

/// `memfd_create(2)`, close-on-exec, to which seals may be added. `executable`: as it says; kernels before 6.3 know no
/// difference.
///
/// # Errors
/// EMFILE, ENOMEM; EACCES: this system forbids executable ones (vm.memfd_noexec).
pub fn create(name: &CStr, executable: bool) -> io::Result<OwnedFd> {
    const MFD_NOEXEC_SEAL: u32 = 8;
    let kind = MFdFlags::from_bits_retain(if executable { MFD_EXEC } else { MFD_NOEXEC_SEAL });
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    Ok(memfd_create(name, flags | kind).or_else(|error| match error {
        Errno::EINVAL => memfd_create(name, flags),
        _ => Err(error),
    })?)
}

/// `memfd_create(2)` with MFD_CLOEXEC, executable where the kernel asks for that to be said.
///
/// # Errors
/// EMFILE, ENOMEM.
pub fn unsealed(name: &CStr) -> io::Result<OwnedFd> {
    let create = |flags: MFdFlags| memfd_create(name, MFdFlags::MFD_CLOEXEC | flags);
    // MFD_EXEC is Linux 6.3+; older kernels refuse the bit and need none.
    let executable = MFdFlags::from_bits_retain(MFD_EXEC);
    Ok(create(executable).or_else(|_| create(MFdFlags::empty()))?)
}

/// The seals of a file; 0 where there can be none.
pub fn seals(fd: BorrowedFd<'_>) -> u32 {
    crate::fd::fcntl(fd, F_GET_SEALS, 0).map_or(0, i32::cast_unsigned)
}

/// The next range at `from` or later that holds data: first byte, first byte after it. `None`: there is none. Moves the
/// offset.
///
/// # Errors
/// As lseek.
pub fn next_data(fd: BorrowedFd<'_>, from: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |at: u64, whence: Whence| {
        let at = i64::try_from(at).map_err(|_| Errno::EINVAL)?;
        lseek(fd, at, whence).map(i64::cast_unsigned)
    };
    match seek(from, Whence::SeekData) {
        Ok(start) => Ok(Some((start, seek(start, Whence::SeekHole)?))),
        Err(Errno::ENXIO) => Ok(None),
        Err(error) => Err(error.into()),
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
