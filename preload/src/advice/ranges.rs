//! Ranges of memory as `madvise` and `mremap` need them: whether they may be mapped from segments of an image, that
//! they are no longer, and how a call by its number fails.
//!
//! Runs in: the host program, any thread, also in signal handlers.
//!
//! # Safety
//! Memory is mapped only where the program asked for just that.
#![allow(unsafe_code)]

use crate::maps::Mapping;
use crate::{shared, sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use holdfast_abi::{AddressRange, FileNumber, PAGE, SharedPage};

pub(super) const fn failed(number: c_int) -> isize {
    -(number as isize)
}

pub(super) const fn is_error(result: isize) -> bool {
    result < 0 && result >= -4095
}

/// The page-aligned range of a call; `None` where the kernel will refuse it or has nothing to do.
pub(super) fn range(start: usize, len: usize) -> Option<(usize, usize)> {
    let end = start.checked_add(len.checked_next_multiple_of(PAGE)?)?;
    (start.is_multiple_of(PAGE) && end > start).then_some((start, end))
}

/// Whether memory of the range may be mapped from segments.
pub(super) fn touches(start: usize, end: usize) -> bool {
    let count = (shared::from_agent(SharedPage::LAZY_COUNT) as usize).min(SharedPage::LAZY_MAX);
    (0..count).any(|index| {
        let at = SharedPage::LAZY_TABLE + index * size_of::<AddressRange>();
        (shared::from_agent(at + AddressRange::START) as usize) < end
            && start < shared::from_agent(at + AddressRange::END) as usize
    })
}

/// Adds a range to those of [`touches`], before anybody is told of it.
pub(super) fn note(start: usize, end: usize) {
    let count = (shared::word(SharedPage::LAZY_COUNT).load(Acquire) as usize).min(SharedPage::LAZY_MAX);
    for index in count..SharedPage::LAZY_MAX {
        let at = SharedPage::LAZY_TABLE + index * size_of::<AddressRange>();
        if shared::word(at + AddressRange::START).compare_exchange(0, start as u64, AcqRel, Relaxed).is_ok() {
            shared::word(at + AddressRange::END).store(end as u64, Release);
            shared::word(SharedPage::LAZY_COUNT).fetch_max(index as u64 + 1, AcqRel);
            return;
        }
    }
    // Full: from now on every call looks at the mappings themselves.
    shared::word(SharedPage::LAZY_TABLE + AddressRange::START).store(1, Relaxed);
    shared::word(SharedPage::LAZY_TABLE + AddressRange::END).store(u64::MAX, Relaxed);
}

/// Whether a mapping is one that the restart made from a segment.
pub(super) fn is_lazy(mapping: &Mapping) -> bool {
    let count = (shared::from_agent(SharedPage::LAZY_FILE_COUNT) as usize).min(SharedPage::LAZY_FILE_MAX);
    !mapping.shared
        && mapping.inode != 0
        && (0..count).any(|index| {
            let at = SharedPage::LAZY_FILES + index * size_of::<FileNumber>();
            shared::from_agent(at + FileNumber::DEVICE) == mapping.device
                && shared::from_agent(at + FileNumber::INODE) == mapping.inode
        })
}

/// Fresh private memory, not accounted: as the restart makes it.
///
/// # Safety
/// With MAP_FIXED: what is there is given away.
pub(super) unsafe fn map(start: usize, len: usize, prot: c_int, flags: c_int) -> isize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: the caller's promise.
    unsafe { sys::raw(libc::SYS_mmap, [start, len, prot as usize, flags as usize, usize::MAX, 0]) }
}
