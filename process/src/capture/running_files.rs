//! Files that running processes change in place, looked at before a stop: what can be read then need not be read in it.
//!
//! Called by [`super::contents`]. Nothing is sure that is seen here: what is found is looked at again inside the stop.
//! How it fails: what cannot be looked at is left out.

use super::written_files::{self, Key};
use holdfast_image::bytes::Name;
use holdfast_sys::procfs::{self, DescriptorFolder};
use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

/// Inodes of files that running processes map for writing; none if that cannot be told of one of them.
pub fn mapped_for_writing(pids: &[i32]) -> Option<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    for &pid in pids {
        // A main thread that has ended has no mappings any more.
        let maps = |tid| procfs::maps(pid, tid).ok().filter(|maps| !maps.is_empty());
        let maps = procfs::by_any_thread(pid, maps).ok()?;
        inodes.extend(maps.iter().filter(|mapping| mapping.shared).map(|mapping| mapping.inode));
    }
    Some(inodes)
}

/// Files that running processes change in place, as far as that can be seen without stopping them.
pub fn changed_in_place(pids: &[i32]) -> Vec<(Key, File, Metadata)> {
    let mut all = Vec::new();
    for &pid in pids {
        let Ok(folder) = DescriptorFolder::open(pid, pid) else { continue };
        for fd in procfs::descriptors(pid, pid).unwrap_or_default() {
            let Some(info) = folder.info(fd) else { continue };
            // Where it ends is not known yet.
            if !written_files::changes_in_place(info.flags.cast_signed(), 0, 1) {
                continue;
            }
            let path = format!("/proc/{pid}/fd/{fd}");
            // Opening something else than a file may do something.
            let is_file =
                |path: &str| fs::metadata(path).is_ok_and(|found| found.is_file() && found.nlink() > 0);
            let name = folder.target(fd).unwrap_or_default();
            if !is_file(&path) || written_files::is_of_kernel(&Name(name)) {
                continue;
            }
            let opened = File::open(&path).and_then(|file| file.metadata().map(|metadata| (file, metadata)));
            if let Ok((file, metadata)) = opened
                && written_files::changes_in_place(info.flags.cast_signed(), info.position, metadata.len())
            {
                all.push(((metadata.dev(), metadata.ino()), file, metadata));
            }
        }
    }
    all
}

/// Reads it for nothing but that the kernel keeps it.
pub fn pass_through(mut file: &File, data: &[(u64, u64)]) {
    for &(from, to) in data {
        if file.seek(SeekFrom::Start(from)).is_ok() {
            // What cannot be read now may be later; this only saves time.
            let _ = io::copy(&mut file.take(to - from), &mut io::sink());
        }
    }
}
