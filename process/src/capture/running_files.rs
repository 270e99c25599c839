//! Files that running processes change in place, looked at before a stop: what can be read then need not be read in it.
//!
//! Called by [`super::contents`]. Nothing is sure that is seen here: what is found is looked at again inside the stop.
//! How it fails: what cannot be looked at is left out.

use super::open_file::{self, OpenFile, Place};
use super::watchers::Watchers;
use super::written_files::{self, Key};
use holdfast_image::bytes::Name;
use holdfast_sys::procfs::{self, DescriptorFolder, DescriptorInfo};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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

/// A descriptor of a running process.
struct Descriptor {
    pid: i32,
    fd: i32,
    info: DescriptorInfo,
    name: Name,
}

fn descriptors(pids: &[i32]) -> Vec<Descriptor> {
    let mut all = Vec::new();
    for &pid in pids {
        let pid = procfs::shown_by(pid);
        let Ok(folder) = DescriptorFolder::open(pid, pid) else { continue };
        for fd in procfs::descriptors(pid, pid).unwrap_or_default() {
            let Some(info) = folder.info(fd) else { continue };
            let name = Name(folder.target(fd).unwrap_or_default());
            all.push(Descriptor { pid, fd, info, name });
        }
    }
    all
}

/// Files that running processes change in place, as far as that can be seen without stopping them.
pub fn changed_in_place(pids: &[i32]) -> Vec<(Key, OpenFile)> {
    let (all, mut watchers) = (descriptors(pids), Watchers::default());
    all.iter().for_each(|one| watchers.add(&one.info.text));
    let mut found = Vec::new();
    for Descriptor { pid, fd, info, name } in &all {
        let flags = info.flags.cast_signed();
        // What is open for writing only is left for the stop. Where it ends is not known yet.
        let is_one = open_file::may_read(flags) && written_files::changes_in_place(flags, 0, 1);
        if !is_one || written_files::is_of_kernel(name) {
            continue;
        }
        // Something else than a file is not looked into.
        let is_file = |path: &str| fs::metadata(path).is_ok_and(|found| found.is_file() && found.nlink() > 0);
        if !is_file(&format!("/proc/{pid}/fd/{fd}")) {
            continue;
        }
        let name = Path::new(OsStr::from_bytes(&name.0));
        let place = Place { pid: *pid, tid: *pid, fd: *fd, flags, name };
        if let Ok(file) = OpenFile::of(place, &watchers)
            && written_files::changes_in_place(flags, info.position, file.metadata.len())
        {
            found.push(((file.metadata.dev(), file.metadata.ino()), file));
        }
    }
    found
}
