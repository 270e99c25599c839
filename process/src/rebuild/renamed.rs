//! Files that have lost the name under which the program had them open: renamed since the checkpoint, as programs
//! do with what they have just written, or to give its name to a new one. They are known by inode and time of birth
//! (statx(2)), in the folder where they were.
//!
//! [`find`] is called by both halves of a restart, for their copies of the record; what it notes is used where
//! files are opened and put back, and by [`super::preflight`](fn@super::preflight). What a restart has copied is
//! kept (`agent::saved_files`): the program will replace the file by its copy, and the image may be wanted again.
//! How it fails: what is not found is as if it were gone.

use super::file_role::may_write;
use crate::capture::identity::born_ns;
use holdfast_image::bytes::Name;
use holdfast_image::record::{Description, FileContent, FileTable, Object, ProcessRecord};
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Notes of each file of the job where it is, if that is not where it was. `saved_dir`: the job's folder for what
/// restarts keep.
pub fn find(record: &mut ProcessRecord, saved_dir: &Path) {
    let saved_dir = &fs::canonicalize(saved_dir).unwrap_or_else(|_| saved_dir.to_owned());
    leave_what_is_there(&mut record.files);
    let FileTable { descriptions, contents, .. } = &mut record.files;
    for description in descriptions {
        // What was in it will be put where it was.
        let saved_as = |content: &FileContent| description.object.is_saved_as(content);
        let is_saved = contents.iter().any(|content| !content.only_if_gone && saved_as(content));
        let found = if is_saved { None } else { elsewhere(&description.object, saved_dir) };
        if found.is_some() {
            contents.retain(|content| !saved_as(content));
        }
        if let Object::Regular { now, .. } = &mut description.object {
            *now = found.map(|path| Name::from(path.as_path()));
        }
    }
}

/// Forgets what is in the image of files that are there: they are used as they are, but what was written into, if it is
/// not that any more.
pub fn leave_what_is_there(files: &mut FileTable) {
    let FileTable { descriptions, contents, .. } = files;
    contents.retain(|content| {
        let is_written =
            || descriptions.iter().any(|one| may_write(one.flags) && one.object.is_saved_as(content));
        let path = content.path.as_path();
        !content.only_if_gone || is_gone(path) || is_written() && !has_grown(content)
    });
}

/// Forgets what is in the image of files that no process has any more: streams that go elsewhere now. Both halves call
/// it after [`super::streams::apply`], with what that has left. A file that is still there is put back all the same.
pub fn leave(record: &mut ProcessRecord, left: &[Description]) {
    let FileTable { descriptions, contents, .. } = &mut record.files;
    let is_one = |all: &[Description], content: &FileContent| {
        all.iter().any(|description| description.object.is_saved_as(content))
    };
    contents.retain(|content| {
        let is_left = is_one(left, content) && !is_one(descriptions, content);
        !is_left || !content.only_if_gone && !is_gone(content.path.as_path())
    });
}

/// Whether it is the same file, with all that it had at least.
fn has_grown(content: &FileContent) -> bool {
    let key = (content.device, content.inode);
    let now = content.path.as_path().symlink_metadata();
    now.is_ok_and(|now| (now.dev(), now.ino()) == key && now.len() >= content.size)
}

fn is_gone(path: &Path) -> bool {
    let found = path.symlink_metadata().map_err(|error| error.raw_os_error());
    matches!(found, Err(Some(libc::ENOENT | libc::ENOTDIR)))
}

fn elsewhere(object: &Object, saved_dir: &Path) -> Option<PathBuf> {
    let Object::Regular { path, inode, born_ns: Some(born), deleted_content: None, .. } = object else {
        return None;
    };
    let is_it = |metadata: &fs::Metadata| (metadata.ino(), born_ns(metadata)) == (*inode, Some(*born));
    let path = path.as_path();
    if fs::metadata(path).is_ok_and(|now| is_it(&now)) {
        return None;
    }
    let entries = fs::read_dir(path.parent().unwrap_or(Path::new("/"))).ok()?;
    let mut same = entries.flatten().filter(|entry| entry.ino() == *inode);
    let found = same.find(|entry| entry.metadata().is_ok_and(|now| now.is_file() && is_it(&now)));
    let kept = || Some(kept(saved_dir, *inode, *born)).filter(|kept| kept.is_file());
    found.map(|entry| entry.path()).or_else(kept)
}

/// Whether it is what a restart has kept: it was not found in the folder where it was.
pub(super) fn is_kept(path: &Name, now: &Name) -> bool {
    path.as_path().parent() != now.as_path().parent()
}

/// Where a restart keeps it under another name.
pub(super) fn kept(saved_dir: &Path, inode: u64, born_ns: i64) -> PathBuf {
    saved_dir.join(format!("renamed-{inode:x}-{born_ns:x}"))
}
