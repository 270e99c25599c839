//! What a process has mapped at an address now, by the PROCMAP_QUERY request ([`ProcmapQuery`]).
//!
//! Called by: the capture, while the program runs. Older kernels: the text of /proc/PID/maps. The request could give
//! the build-id of the file, too; for that Linux 6.18.44 reads the file, and who watches it by inotify(7) has an event.
//! Fails by: the kernel's error; `None`: nothing is mapped there.
//!
//! # Safety
//! The request reads and writes struct procmap_query, which lies on this file's stack; no room for names or build-ids
//! is given to it.
#![allow(unsafe_code)]

use crate::procfs;
use holdfast_abi::ProcmapQuery;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// First byte.
    pub start: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Device: major << 32 | minor.
    pub device: u64,
    /// Inode; 0: no file.
    pub inode: u64,
}

/// What thread `tid`'s process has at an address.
///
/// # Errors
/// Of open(2) and of the request; ENOENT (nothing there) is none.
pub fn at(tid: i32, address: u64) -> io::Result<Option<Found>> {
    let maps = File::open(format!("/proc/{tid}/maps"))?;
    let mut query = ProcmapQuery::at(address, 0);
    // SAFETY: `query` is a complete procmap_query without room for anything else.
    let answer =
        unsafe { libc::ioctl(maps.as_raw_fd(), ProcmapQuery::REQUEST as libc::c_ulong, &raw mut query) };
    match crate::check(i64::from(answer)) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => return by_text(tid, address),
        Err(error) => return Err(error),
    }
    Ok(Some(Found { start: query.start, offset: query.offset, device: query.device(), inode: query.inode }))
}

fn by_text(tid: i32, address: u64) -> io::Result<Option<Found>> {
    let all = procfs::maps(tid, tid)?;
    let found = all.into_iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
    Ok(found.map(|mapping| Found {
        start: mapping.start,
        offset: mapping.offset,
        device: mapping.device,
        inode: mapping.inode,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_tell_the_same() {
        let own = std::process::id().cast_signed();
        let all = procfs::maps(own, own).unwrap();
        let program = std::env::current_exe().unwrap();
        let is_head = |name: &[u8]| name == program.as_os_str().as_encoded_bytes();
        let head = all.iter().find(|mapping| is_head(&mapping.name) && mapping.offset == 0).unwrap();
        let (found, text) =
            (at(own, head.start).unwrap().unwrap(), by_text(own, head.start).unwrap().unwrap());
        assert_eq!(found, text);
        assert_eq!(at(own, 0).unwrap(), None);
        assert_eq!(by_text(own, 0).unwrap(), None);
    }
}
