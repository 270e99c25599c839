//! Who in the job would notice that a file is opened: inotify instances, and leases.
//!
//! Known from fdinfo (fs/notify/fdinfo.c; fs/locks.c, show_fd_locks), and leases of others from /proc/locks. Used where
//! a file of the program cannot be read without opening it ([`super::open_file`]), or a folder would have to be listed.
//! Who watches from outside the job is not known. What must hold: what is not understood counts as nothing.

use holdfast_image::record::{Description, LockKind, Object};
use holdfast_sys::proctext;
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// What an opening, a read and a close are for a watch.
const HEARD: u32 = libc::IN_OPEN | libc::IN_ACCESS | libc::IN_CLOSE_NOWRITE;

/// Files and folders by inode, with their devices as the kernel has them (include/linux/kdev_t.h).
#[derive(Debug, Default)]
pub struct Watchers {
    watched: HashMap<u64, Vec<u64>>,
    leased: HashMap<u64, Vec<u64>>,
    /// Files on which any process has a lease for writing: found out once for all files of a look.
    leased_for_writing: OnceLock<HashMap<u64, Vec<u64>>>,
}

impl Watchers {
    /// Adds what a descriptor's fdinfo tells.
    pub fn add(&mut self, info: &str) {
        for line in info.lines() {
            if let Some((device, inode, mask)) = watch(line) {
                self.add_watch(device, inode, mask);
            } else if let Some((device, inode)) = line.strip_prefix("lock:").and_then(lease) {
                self.leased.entry(inode).or_default().push(device);
            }
        }
    }

    /// Those of all these descriptions.
    pub fn of(descriptions: &[Description]) -> Watchers {
        let mut watchers = Watchers::default();
        for description in descriptions {
            match &description.object {
                Object::Inotify { watches } => {
                    watches
                        .iter()
                        .for_each(|watch| watchers.add_watch(watch.device, watch.inode, watch.mask));
                }
                Object::Regular { device, inode, .. }
                    if description.locks.iter().any(|lock| lock.kind == LockKind::Lease) =>
                {
                    watchers.leased.entry(*inode).or_default().push(in_kernel(*device));
                }
                _ => {}
            }
        }
        watchers
    }

    /// A watch on a file or folder.
    pub fn add_watch(&mut self, device: u64, inode: u64, mask: u32) {
        if mask & HEARD != 0 {
            self.watched.entry(inode).or_default().push(device);
        }
    }

    /// What would tell the job that this file, or folder, is opened.
    pub fn hear_of(&self, name: &Path, metadata: &Metadata) -> Option<&'static str> {
        let folder = || name.parent().and_then(|folder| fs::metadata(folder).ok());
        if has(&self.leased, metadata) {
            Some("a lease")
        } else if has(&self.watched, metadata)
            || !self.watched.is_empty() && folder().is_some_and(|folder| has(&self.watched, &folder))
        {
            Some("inotify")
        } else {
            None
        }
    }

    fn is_leased_for_writing(&self, metadata: &Metadata) -> io::Result<bool> {
        let known = match self.leased_for_writing.get() {
            Some(known) => known,
            None => {
                let found = leased_for_writing()?;
                self.leased_for_writing.get_or_init(|| found)
            }
        };
        Ok(has(known, metadata))
    }

    /// Whether the job would notice that a folder is listed.
    pub fn hear_listing(&self, folder: &Path) -> bool {
        fs::metadata(folder).is_ok_and(|metadata| self.hear_of(folder, &metadata).is_some())
    }
}

/// Whether opening a file would be noticed in the job, or break a lease. `is_open`: the job has it open, for reading or
/// writing. Then no other process has a lease that an opening for reading breaks: one for writing is given only while
/// nothing else has the file open, and ends by any opening (fs/locks.c, `check_conflicting_open`; `break_lease`).
///
/// # Errors
/// It would; the text says by what.
pub fn allow_opening(name: &Path, metadata: &Metadata, watchers: &Watchers, is_open: bool) -> io::Result<()> {
    let by = match watchers.hear_of(name, metadata) {
        None if !is_open && watchers.is_leased_for_writing(metadata)? => Some("a lease"),
        by => by,
    };
    match by {
        None => Ok(()),
        Some(by) => Err(io::Error::other(format!(
            "it is open for writing only, or has holes, and cannot be opened unnoticed: there is {by} on it or its \
             folder"
        ))),
    }
}

/// The files on which a process has a lease that an opening for reading breaks: one for writing. Each read of the list
/// waits for all processors of the host (fs/locks.c, `locks_start`: `percpu_down_write`, an RCU grace period): 5 to 15
/// ms.
fn leased_for_writing() -> io::Result<HashMap<u64, Vec<u64>>> {
    let mut found: HashMap<u64, Vec<u64>> = HashMap::new();
    let text = proctext::list_text("/proc/locks")?;
    for (device, inode) in text.lines().filter(|line| line.contains("WRITE")).filter_map(lease) {
        found.entry(inode).or_default().push(device);
    }
    Ok(found)
}

fn has(all: &HashMap<u64, Vec<u64>>, metadata: &Metadata) -> bool {
    let devices = all.get(&metadata.ino());
    devices.is_some_and(|devices| devices.iter().any(|&device| is_same_device(device, metadata.dev())))
}

/// stat(2) gives another device than the kernel's own where neither is one of a disk (btrfs, overlayfs): then any such
/// one may be meant.
fn is_same_device(in_kernel_form: u64, of_stat: u64) -> bool {
    in_kernel_form == in_kernel(of_stat) || in_kernel_form >> 20 == 0 && libc::major(of_stat) == 0
}

/// A device of stat(2) as the kernel has it.
pub fn in_kernel(device: u64) -> u64 {
    u64::from(libc::major(device)) << 20 | u64::from(libc::minor(device))
}

/// `inotify wd:1 ino:3c4a7 sdev:fe00000 mask:100 …`.
fn watch(line: &str) -> Option<(u64, u64, u32)> {
    let rest = line.strip_prefix("inotify ")?;
    let value = |key: &str| {
        u64::from_str_radix(rest.split_whitespace().find_map(|word| word.strip_prefix(key))?, 16).ok()
    };
    Some((value("sdev:")?, value("ino:")?, u32::try_from(value("mask:")?).ok()?))
}

/// `1: LEASE  ACTIVE    WRITE 77 08:01:1234 0 EOF`.
fn lease(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace().skip_while(|word| *word != "LEASE").skip(4);
    let mut file = words.next()?.split(':');
    let hexadecimal = |text: Option<&str>| u64::from_str_radix(text?, 16).ok();
    let (major, minor) = (hexadecimal(file.next())?, hexadecimal(file.next())?);
    Some((major << 20 | minor, file.next()?.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn watches_and_leases_are_known_by_their_files() {
        let (folder, file) =
            (std::env::temp_dir(), std::env::temp_dir().join(std::process::id().to_string()));
        fs::write(&file, "x").unwrap();
        let (of_folder, of_file) = (fs::metadata(&folder).unwrap(), fs::metadata(&file).unwrap());
        let hears = |info: &str| {
            let mut watchers = Watchers::default();
            watchers.add(info);
            watchers.hear_of(&file, &of_file)
        };
        let inotify = |of: &Metadata, mask: u32| {
            format!(
                "pos:\t0\ninotify wd:1 ino:{:x} sdev:{:x} mask:{mask:x} x:0",
                of.ino(),
                in_kernel(of.dev())
            )
        };
        assert_eq!(hears(&inotify(&of_file, libc::IN_ALL_EVENTS)), Some("inotify"));
        assert_eq!(hears(&inotify(&of_folder, libc::IN_ACCESS)), Some("inotify"));
        assert_eq!(hears(&inotify(&of_folder, libc::IN_MODIFY | libc::IN_CREATE)), None);
        let (major, minor) = (libc::major(of_file.dev()), libc::minor(of_file.dev()));
        let lease =
            format!("lock:\t1: LEASE  ACTIVE    READ 7 {major:02x}:{minor:02x}:{} 0 EOF", of_file.ino());
        assert_eq!(hears(&lease), Some("a lease"));
        assert_eq!(hears(&lease.replace("LEASE", "POSIX")), None);
        assert_eq!(hears("inotify wd:1 ino:zz\nlock:\t1: LEASE"), None);
        fs::remove_file(&file).unwrap();
    }
}
