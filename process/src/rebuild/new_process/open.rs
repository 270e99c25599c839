//! Opening by name, and moving descriptors out of the way of the program's numbers.

use crate::rebuild::error::RebuildError;
use crate::rebuild::proc_self::NOT_AGAIN;
use holdfast_image::bytes::Name;
use holdfast_sys::objects;
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

/// A path as the kernel takes it.
pub fn c_path(path: &Name) -> Result<CString, RebuildError> {
    CString::new(path.0.clone()).map_err(|_| RebuildError::file(path, "the path has a zero byte in it"))
}

/// Opens what has a name, with the flags that it had.
pub fn open_path(path: &Name, flags: u32) -> Result<OwnedFd, RebuildError> {
    let name = c_path(path)?;
    let wanted = flags & !NOT_AGAIN | libc::O_NOCTTY.cast_unsigned();
    let no_atime = libc::O_NOATIME.cast_unsigned();
    objects::open(&name, wanted, 0)
        // O_NOATIME is for the owner only; the file may have another one here.
        .or_else(
            |error| {
                if flags & no_atime != 0 { objects::open(&name, wanted & !no_atime, 0) } else { Err(error) }
            },
        )
        .map_err(|error| {
            RebuildError::file(
                path,
                format!("the program had it open, and it cannot be opened: {error}; put it back"),
            )
        })
}

/// Moves a descriptor above the program's numbers.
///
/// # Errors
/// EMFILE.
pub fn raise(fd: &OwnedFd, floor: i32) -> Result<OwnedFd, RebuildError> {
    objects::duplicate_above(fd.as_raw_fd(), floor)
        .map_err(RebuildError::io("moving a descriptor out of the way"))
}
