//! Files whose name was removed while they have another one: link(2) and unlink(2) of the first, as sem_open(3) does
//! with each semaphore it makes.
//!
//! /proc calls such a file by the name under which it was opened, and ` (deleted)`; who opened it by the other name has
//! the same file. It is looked for in the same folder, by its inode. Called wherever mappings and descriptors are read,
//! also inside the stop: what was found in a folder is kept until the folder is changed.

use super::identity::{DELETED, mtime_ns};
use holdfast_sys::clock;
use holdfast_sys::procfs::Mapping;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A folder changed less than this before it was read may have changed again with the same time: the clock of file
/// systems moves by ticks (fs/inode.c, current_time).
const TICK_NS: i64 = 50_000_000;
/// Entries of a folder that are kept, at most.
const KEPT_ENTRIES: usize = 1 << 16;

/// Entries of a folder, by inode.
struct Folder {
    mtime_ns: i64,
    read_ns: i64,
    names: HashMap<u64, OsString>,
}

static KNOWN: Mutex<Option<HashMap<PathBuf, Folder>>> = Mutex::new(None);

/// Gives shared mappings of such files the names that lead to them.
pub fn name_mappings(maps: &mut [Mapping]) {
    for mapping in maps.iter_mut().filter(|mapping| mapping.shared) {
        if let Some(name) = name_of(&mapping.name, mapping.inode)
            && device_of(&name) == Some(mapping.device)
        {
            mapping.name = name.into_os_string().into_vec();
        }
    }
}

/// Another name of a file that /proc calls deleted.
pub fn name_of(deleted: &[u8], inode: u64) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(deleted.strip_suffix(DELETED)?));
    // What the kernel makes for itself is named like a deleted file in the root folder.
    let folder = path.parent().filter(|folder| folder.is_absolute() && folder.parent().is_some())?;
    let name = folder.join(named(folder, |names| names.get(&inode).cloned())?);
    fs::symlink_metadata(&name).is_ok_and(|found| found.is_file() && found.ino() == inode).then_some(name)
}

/// What `choose` makes of the names in a folder, which it gets by inode.
pub fn named<T>(folder: &Path, choose: impl FnOnce(&HashMap<u64, OsString>) -> Option<T>) -> Option<T> {
    let mut known = KNOWN.lock();
    let known = known.get_or_insert_default();
    let changed_ns = mtime_ns(&fs::metadata(folder).ok()?);
    let fresh = |kept: &&Folder| kept.mtime_ns == changed_ns && kept.read_ns - changed_ns > TICK_NS;
    if known.get(folder).filter(fresh).is_none() {
        known.retain(|other, _| other.is_dir());
        known.insert(folder.to_owned(), read(folder, changed_ns)?);
    }
    choose(&known.get(folder)?.names)
}

fn read(folder: &Path, changed_ns: i64) -> Option<Folder> {
    let read_ns = i64::try_from(clock::realtime_ns()).ok()?;
    let entries = fs::read_dir(folder).ok()?.flatten().take(KEPT_ENTRIES);
    let names = entries.map(|entry| (entry.ino(), entry.file_name())).collect();
    Some(Folder { mtime_ns: changed_ns, read_ns, names })
}

/// As the maps file numbers it.
fn device_of(path: &Path) -> Option<u64> {
    let device = fs::metadata(path).ok()?.dev();
    Some(u64::from(libc::major(device)) << 32 | u64::from(libc::minor(device)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_other_name_of_a_file_is_found() {
        let folder = std::env::temp_dir().join(format!("holdfast-links-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let (first, second) = (folder.join("first"), folder.join("second"));
        fs::write(&first, "x").unwrap();
        let inode = fs::metadata(&first).unwrap().ino();
        let deleted = [first.as_os_str().as_bytes(), DELETED].concat();
        for _ in 0..3 {
            fs::remove_file(&first).unwrap();
            assert_eq!(name_of(&deleted, inode), None);
            fs::write(&first, "x").unwrap();
            fs::hard_link(&first, &second).unwrap();
            let inode = fs::metadata(&first).unwrap().ino();
            fs::remove_file(&first).unwrap();
            assert_eq!(name_of(&deleted, inode), Some(second.clone()));
            assert_eq!(name_of(first.as_os_str().as_bytes(), inode), None);
            fs::rename(&second, &first).unwrap();
            assert_eq!(name_of(&deleted, inode), Some(first.clone()));
        }
        assert_eq!(name_of(b"/[aio] (deleted)", 1), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
