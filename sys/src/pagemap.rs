//! Which pages exist, which differ from their file, which were written: the PAGEMAP_SCAN ioctl (Linux 6.7+,
//! Documentation/admin-guide/mm/pagemap.rst).
//!
//! # Safety
//! The ioctl reads struct pm_scan_arg and writes at most `vec_len` regions into the vector given with it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// Registered with a userfaultfd in WP_ASYNC mode.
pub const IS_WPALLOWED: u64 = 1;
/// Written since it was write-protected last; pages that never were count as written.
pub const IS_WRITTEN: u64 = 1 << 1;
/// The page is file-backed: not (yet) a private copy.
pub const IS_FILE: u64 = 1 << 2;
/// In memory.
pub const IS_PRESENT: u64 = 1 << 3;
/// In swap.
pub const IS_SWAPPED: u64 = 1 << 4;
/// The shared zero page.
pub const IS_PFNZERO: u64 = 1 << 5;
/// A guard region (6.15+); older kernels refuse the bit, see [`guard_category`].
pub const IS_GUARD: u64 = 1 << 8;

/// A run of pages with equal categories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ScanRegion {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// `IS_*` bits, those that were asked to be returned.
    pub categories: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)` of include/uapi/linux/fs.h.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

/// Write-protect the written pages that are reported (PM_SCAN_WP_MATCHING).
const WP_MATCHING: u64 = 1;
/// Fail instead of skipping mappings that are not in WP_ASYNC mode (PM_SCAN_CHECK_WPASYNC).
const CHECK_WPASYNC: u64 = 2;
/// Bytes.
const PAGE: u64 = 4096;
/// Regions per call, at most: as many as there can be in the shares that large memory is cut into.
const ROOM: usize = 16384;

thread_local! {
    /// The vector of the last scan of this thread: fresh memory would cost a fault per page inside the stop.
    static REGIONS: Cell<Vec<ScanRegion>> = const { Cell::new(Vec::new()) };
}

/// [`IS_GUARD`] where the kernel knows it, else nothing; asked once.
pub fn guard_category() -> u64 {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    // The lowest pages are never mapped: nothing is walked (fs/proc/task_mmu.c, pagemap_scan_get_args checks the masks
    // first).
    let ask =
        || File::open("/proc/self/pagemap").and_then(|own| scan(&own, 0, 4096, IS_GUARD, IS_GUARD, |_| ()));
    if *KNOWN.get_or_init(|| ask().is_ok()) { IS_GUARD } else { 0 }
}

/// The pages of `start..end` of which any of `any` holds, with the categories in `wanted`.
///
/// # Errors
/// ENOTTY: kernel before 6.7; ESRCH: process gone; EINVAL: unknown category.
pub fn scan(
    pagemap: &File,
    start: u64,
    end: u64,
    any: u64,
    wanted: u64,
    each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let masks = ScanArg { category_anyof_mask: any, return_mask: wanted, ..ScanArg::default() };
    walk(pagemap, start, end, masks, each)
}

/// The pages of `start..end` that were not written since they were write-protected last, and of which any of `any`
/// holds. Protects nothing.
///
/// # Errors
/// As [`scan`].
pub fn scan_clean(
    pagemap: &File,
    start: u64,
    end: u64,
    any: u64,
    each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let masks = ScanArg {
        category_mask: IS_WRITTEN,
        category_inverted: IS_WRITTEN,
        category_anyof_mask: any,
        return_mask: any,
        ..ScanArg::default()
    };
    walk(pagemap, start, end, masks, each)
}

/// The pages of `start..end` that were written since they were write-protected last, and of which any of `any` holds.
/// Protects nothing.
///
/// # Errors
/// As [`scan`].
pub fn scan_written(
    pagemap: &File,
    start: u64,
    end: u64,
    any: u64,
    each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let masks = ScanArg {
        category_mask: IS_WRITTEN,
        category_anyof_mask: any,
        return_mask: IS_WRITTEN,
        ..ScanArg::default()
    };
    walk(pagemap, start, end, masks, each)
}

/// As [`scan`], and write-protects every page that is reported as written, in the same walk: the next scan reports as
/// written only what was written in between. `wanted` must contain [`IS_WRITTEN`].
///
/// # Errors
/// EPERM: the range holds a mapping that is not registered in WP_ASYNC mode; or it holds a part of an explicit huge
/// page. After an error some pages may have been write-protected without having been reported: the caller must take the
/// whole range for written.
pub fn scan_and_protect(
    pagemap: &File,
    start: u64,
    end: u64,
    any: u64,
    wanted: u64,
    each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    walk(pagemap, start, end, protecting(any, wanted), each)
}

/// What both scans ask that protect.
fn protecting(any: u64, wanted: u64) -> ScanArg {
    ScanArg {
        flags: WP_MATCHING | CHECK_WPASYNC,
        category_anyof_mask: any,
        return_mask: wanted,
        ..ScanArg::default()
    }
}

/// As [`scan_and_protect`], but reports only what was written.
///
/// # Errors
/// As [`scan_and_protect`].
pub fn scan_written_and_protect(
    pagemap: &File,
    start: u64,
    end: u64,
    any: u64,
    wanted: u64,
    each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let masks = ScanArg { category_mask: IS_WRITTEN, ..protecting(any, wanted) };
    walk(pagemap, start, end, masks, each)
}

/// The pages of `start..end` that are not write-protected, and those that do not exist, as far as there is a page table
/// for them. Protects nothing. Much faster than the other scans: the kernel looks at nothing but the table entries.
///
/// # Errors
/// As [`scan`].
pub fn scan_unprotected(
    pagemap: &File,
    start: u64,
    end: u64,
    each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let masks = ScanArg { category_mask: IS_WRITTEN, return_mask: IS_WRITTEN, ..ScanArg::default() };
    walk(pagemap, start, end, masks, each)
}

/// The parts of `start..end` that are mapped and not registered in WP_ASYNC mode. Registered mappings are not walked.
///
/// # Errors
/// As [`scan`].
pub fn scan_unregistered(
    pagemap: &File,
    start: u64,
    end: u64,
    each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let masks = ScanArg {
        category_mask: IS_WPALLOWED,
        category_inverted: IS_WPALLOWED,
        return_mask: IS_WPALLOWED,
        ..ScanArg::default()
    };
    walk(pagemap, start, end, masks, each)
}

/// Works through the range; `masks`: flags and categories. What is reported ascends, but for the rare case of [`next`].
fn walk(
    pagemap: &File,
    start: u64,
    end: u64,
    masks: ScanArg,
    mut each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let mut regions = REGIONS.take();
    regions.clear();
    // No more than there are pages, and not cleared: most ranges are short, or empty, and it would cost more than their
    // scan.
    let pages = usize::try_from(end.saturating_sub(start).div_ceil(PAGE)).unwrap_or(ROOM);
    regions.reserve_exact(pages.clamp(1, ROOM));
    let mut from = start;
    let result = loop {
        if from >= end {
            break Ok(());
        }
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: from,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.capacity() as u64,
            ..masks
        };
        // SAFETY: `arg` is a complete pm_scan_arg whose vector is the room of `regions`, alive through the call.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        let found = match crate::check(i64::from(found)) {
            Ok(found) => usize::try_from(found).unwrap_or(0).min(regions.capacity()),
            Err(error) => break Err(error),
        };
        // SAFETY: the kernel has written so many, all of them numbers (fs/proc/task_mmu.c, pagemap_scan_flush_buffer).
        unsafe { regions.set_len(found) };
        let went_to = next(&arg, &regions);
        regions.drain(..).for_each(&mut each);
        if went_to <= from {
            break Err(io::Error::other(format!("the kernel does not scan beyond {from:#x}")));
        }
        from = went_to;
    };
    REGIONS.set(regions);
    result
}

/// Where the scan goes on after a call.
///
/// `walk_end` is where the kernel stopped: `end`, or after the last region that fitted; or where a huge page begins of
/// which it was asked to protect a part (pagemap_scan_hugetlb_entry). But a call that came to the end of the range also
/// has there what is left from within: the kernel collects 512 regions at a time, and the walk breaks off and begins
/// again at `walk_end` when they are full, which the last walk does not set again (do_pagemap_scan). Gone on from
/// there, up to 512 regions would be reported twice. It is told by that a region begins there; where none does (one
/// that went away meanwhile), they are.
fn next(arg: &ScanArg, regions: &[ScanRegion]) -> u64 {
    let begins = || regions.binary_search_by_key(&arg.walk_end, |region| region.start).is_ok();
    if (regions.len() as u64) < arg.vec_len && arg.walk_end < arg.end && begins() {
        arg.end
    } else {
        arg.walk_end
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_region_is_told_where_the_kernel_knows_the_category() {
        const PAGE: usize = 4096;
        const MADV_GUARD_INSTALL: i32 = 102; // Linux 6.13
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory at a place that the kernel chooses; only this test knows of it.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), 3 * PAGE, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the second page of that memory.
        let installed = unsafe { libc::madvise(base.add(PAGE), PAGE, MADV_GUARD_INSTALL) } == 0;
        let start = base.addr() as u64;
        let mut found = Vec::new();
        if installed && guard_category() != 0 {
            let own = File::open("/proc/self/pagemap").unwrap();
            let each = |region: ScanRegion| found.push((region.start - start, region.end - start));
            scan(&own, start, start + 3 * PAGE as u64, IS_GUARD, IS_GUARD, each).unwrap();
            assert_eq!(found, [(PAGE as u64, 2 * PAGE as u64)]);
        }
        // SAFETY: nothing uses the memory any more.
        unsafe { libc::munmap(base, 3 * PAGE) };
    }

    #[test]
    fn every_region_is_reported_once_and_in_order() {
        const PAGE: usize = 4096;
        // More than the kernel collects at a time, more than fit into one call, and a few.
        for pages in [2 * ROOM + 4001, 5461, 1025, 1023, 7] {
            let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: fresh memory at a place that the kernel chooses; only this test knows of it.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, prot, flags, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED);
            // SAFETY: that memory.
            unsafe { libc::madvise(base, pages * PAGE, libc::MADV_NOHUGEPAGE) };
            for page in (0..pages).step_by(2) {
                // SAFETY: a page of that memory.
                unsafe { base.cast::<u8>().add(page * PAGE).write(1) };
            }
            let (own, start) = (File::open("/proc/self/pagemap").unwrap(), base.addr() as u64);
            let mut found = Vec::new();
            let each = |region: ScanRegion| found.push((region.start - start) / PAGE as u64);
            scan(&own, start, start + (pages * PAGE) as u64, IS_PRESENT, IS_PRESENT, each).unwrap();
            assert_eq!(found, (0..pages as u64).step_by(2).collect::<Vec<_>>());
            // SAFETY: nothing uses the memory any more.
            unsafe { libc::munmap(base, pages * PAGE) };
        }
    }

    #[test]
    fn a_walk_that_came_to_the_end_does_not_go_back() {
        let region = |start, end| ScanRegion { start, end, categories: 0 };
        let arg = |walk_end, vec_len| ScanArg { start: 0, end: 100, walk_end, vec_len, ..ScanArg::default() };
        let regions = [region(10, 20), region(40, 50), region(60, 61)];
        assert_eq!(next(&arg(100, 9), &regions), 100);
        // The vector is full.
        assert_eq!(next(&arg(61, 3), &regions), 61);
        assert_eq!(next(&arg(40, 3), &regions), 40);
        // Left from within.
        assert_eq!(next(&arg(40, 9), &regions), 100);
        // A huge page of which a part was asked for: nothing is reported of it.
        assert_eq!(next(&arg(30, 9), &regions), 30);
        assert_eq!(next(&arg(30, 9), &[]), 30);
    }
}
