//! Tracking goes on after a restart: what came from the image counts as unchanged until it is written.
//!
//! Called when all pages are in and nothing else has been written to them. Only pages that the image holds are armed:
//! whatever else exists counts as written. A failure costs the first image after the restart, not the restart.

use super::address_space::AddressSpaceBuilder;
use super::remote_calls::Need;
use crate::rebuild::error::RebuildError;
use crate::track::tracking::Tracking;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::Extent;
use holdfast_sys::{clone, userfault};
use std::os::fd::OwnedFd;

/// Makes the tracker of the new process.
pub fn make(builder: &AddressSpaceBuilder<'_>, pid: i32, extents: &[Extent]) -> Tracking {
    let userfault = match descriptor(builder, pid) {
        Ok(fd) => fd,
        Err(error) => {
            tracing::warn!("changes will be found by content: {error}");
            None
        }
    };
    let tracking = Tracking::new(userfault);
    let pages: PageSet = extents.iter().map(|extent| extent.run).collect();
    if let Err(error) = tracking.arm(pid, &pages) {
        tracing::warn!("the next image will hold all pages: {error}");
    }
    tracking
}

/// Has the process make a userfaultfd, and takes it over.
pub fn descriptor(builder: &AddressSpaceBuilder<'_>, pid: i32) -> Result<Option<OwnedFd>, RebuildError> {
    let mut batch = builder.batch();
    let flags = u64::from(userfault::FLAGS.cast_unsigned());
    batch.call(libc::SYS_userfaultfd, &[flags], Need::May)?;
    let (results, _) = batch.finish()?;
    let Some(number) = results.first().and_then(|&fd| u64::try_from(fd).ok()) else {
        return Ok(None);
    };
    let taken = clone::pidfd_open(pid)
        .and_then(|pidfd| clone::pidfd_getfd(&pidfd, i32::try_from(number).unwrap_or(-1)));
    let mut batch = builder.batch();
    batch.call(libc::SYS_close, &[number], Need::Must("close descriptor", number))?;
    batch.finish()?;
    match taken {
        // A container with a filter of its own.
        Err(_) if !clone::can_take_descriptors() => Ok(None),
        taken => taken.map(Some).map_err(RebuildError::io("taking over the userfaultfd of the new process")),
    }
}
