//! Which pages exist and which differ from their file: the PAGEMAP_SCAN ioctl (Linux 6.7+,
//! Documentation/admin-guide/mm/pagemap.rst).
//!
//! # Safety
//! The ioctl reads struct pm_scan_arg and writes at most `vec_len` regions into the vector given with it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The page is file-backed: not (yet) a private copy.
pub const IS_FILE: u64 = 1 << 2;
/// In memory.
pub const IS_PRESENT: u64 = 1 << 3;
/// In swap.
pub const IS_SWAPPED: u64 = 1 << 4;
/// The shared zero page.
pub const IS_PFNZERO: u64 = 1 << 5;
/// A guard region (6.15+); absent bit on older kernels.
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
#[derive(Default)]
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

/// The pages of `start..end` of which any of `any` holds, with the categories in `wanted`. Returns `false` as soon as
/// `each` does.
///
/// # Errors
/// ENOTTY: kernel before 6.7; ESRCH: process gone; EINVAL: unknown category.
pub fn scan(
    pagemap: &File,
    start: u64,
    end: u64,
    any: u64,
    wanted: u64,
    mut each: impl FnMut(ScanRegion),
) -> io::Result<()> {
    let mut regions = vec![ScanRegion::default(); 512];
    let mut from = start;
    while from < end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: from,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_anyof_mask: any,
            return_mask: wanted,
            ..ScanArg::default()
        };
        // SAFETY: `arg` is a complete pm_scan_arg whose vector is `regions`, alive through the call.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        let found = usize::try_from(crate::check(i64::from(found))?).unwrap_or(0).min(regions.len());
        regions[..found].iter().copied().for_each(&mut each);
        // walk_end is where the kernel stopped: `end`, or after the last region that fitted.
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Ok(())
}
