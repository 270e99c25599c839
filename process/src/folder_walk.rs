//! The regular files of a user in folders, and in those below them.
//!
//! Called before a checkpoint (`capture::closed_files`) and a restart (`rebuild::newer_files`), outside the stop:
//! folders are read, files are only looked at. Bounded in entries, so that a home folder costs no time. Links are not
//! followed, other file systems not entered. How it fails: what cannot be looked at is left out.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Entries of folders that are looked at, at most.
pub const ENTRIES: usize = 4000;
/// Folders below a working folder are looked into, so deep.
pub const DEPTH: usize = 4;

/// Gives each file to `each`. `folders`: each with how deep to look below it; `not`: a folder that is left out. Whether
/// there was more to look at.
pub fn files(
    folders: Vec<(PathBuf, usize)>,
    user: u32,
    not: &Path,
    mut each: impl FnMut(PathBuf, Metadata),
) -> bool {
    let (mut left, mut seen) = (ENTRIES, HashSet::new());
    let mut waiting = folders;
    waiting.reverse();
    while let Some((folder, depth)) = waiting.pop() {
        let about = fs::symlink_metadata(&folder).ok().filter(Metadata::is_dir);
        let Some(about) = about.filter(|about| seen.insert((about.dev(), about.ino()))) else { continue };
        if folder == not || folder == Path::new("/") {
            continue;
        }
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            if left == 0 {
                return true;
            }
            left -= 1;
            let Some(now) = entry.metadata().ok().filter(|now| now.uid() == user) else { continue };
            if now.is_dir() && depth > 0 && now.dev() == about.dev() {
                waiting.push((entry.path(), depth - 1));
            } else if now.is_file() {
                each(entry.path(), now);
            }
        }
    }
    false
}

/// How deep to look below a working folder: not below one's home, which has all kinds of things.
pub fn depth_below(folder: &Path) -> usize {
    let is_home = std::env::var_os("HOME").is_some_and(|home| Path::new(&home) == folder);
    if is_home { 0 } else { DEPTH }
}
