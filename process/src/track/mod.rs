//! Where dirty pages are found.
//!
//! * [`tracking`]: write protection of a process from image to image. [`scan`]: one PAGEMAP_SCAN of all its memory;
//!   [`pieces`]: what it is asked for and has found.
//! * [`scan_cache`]: what a scan need not ask again. [`hugetlb`]: explicit huge pages. [`precopy_source`]: pages
//!   before the stop.

pub(crate) mod hugetlb;
pub(crate) mod pieces;
pub(crate) mod precopy_source;
pub(crate) mod scan;
pub(crate) mod scan_cache;
pub(crate) mod tracking;
