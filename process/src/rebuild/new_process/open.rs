//! Moving descriptors out of the way of the program's numbers.

use crate::rebuild::error::RebuildError;
use holdfast_sys::objects;
use std::os::fd::{AsRawFd, OwnedFd};

/// Moves a descriptor above the program's numbers.
///
/// # Errors
/// EMFILE.
pub fn raise(fd: &OwnedFd, floor: i32) -> Result<OwnedFd, RebuildError> {
    objects::duplicate_above(fd.as_raw_fd(), floor)
        .map_err(RebuildError::io("moving a descriptor out of the way"))
}
