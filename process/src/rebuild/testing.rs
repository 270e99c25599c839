//! Records and folders for unit tests.
#![allow(clippy::unwrap_used)]

use holdfast_image::record::{Backing, ProcessRecord, Region};
use holdfast_image::testing::empty_record;
use holdfast_image::{Addr, PAGE_SIZE};
use std::fs;
use std::path::PathBuf;

/// Memory with nothing special about it.
pub fn region(start: u64, pages: u64, prot: u32, backing: Backing) -> Region {
    let end = Addr(start + pages * PAGE_SIZE);
    Region { start: Addr(start), end, prot, backing, vm_flags: Vec::new(), name: None, memory_policy: None }
}

/// A process without threads and files.
pub fn record(regions: Vec<Region>) -> ProcessRecord {
    ProcessRecord { regions, ..empty_record() }
}

/// A folder of one test, removed at its end.
pub struct Folder(pub PathBuf);

impl Folder {
    /// With the name of the test in its own.
    pub fn new(name: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("regular-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
