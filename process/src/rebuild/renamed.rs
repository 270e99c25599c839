//! Files that have lost the name under which the program had them open: renamed since the checkpoint, as programs do with what they
//! have just written, or to make room for a new one. They are known by inode and time of birth (statx(2)), in the folder where they were.
//!
//! [`find`] is called by both halves of a restart, for their copies of the record; [`super::regular`] and
//! [`super::preflight`](fn@super::preflight) go by what it notes. What a restart has copied it [`keep`]s: the program will replace the
//! file by its copy, and the image may be wanted again. How it fails: what is not found is as if it were gone.

use crate::capture::identity::born_ns;
use holdfast_image::bytes::Name;
use holdfast_image::record::{FileTable, Object, ProcessRecord};
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Notes of each file of the job where it is, if that is not where it was. `saved_dir`: the job's folder for what restarts keep.
pub fn find(record: &mut ProcessRecord, saved_dir: &Path) {
    let FileTable { descriptions, contents, .. } = &mut record.files;
    for description in descriptions {
        // What was in it will be put where it was.
        let is_saved = contents.iter().any(|content| content.is_of(&description.object));
        let found = if is_saved { None } else { elsewhere(&description.object, saved_dir) };
        if let Object::Regular { now, .. } = &mut description.object {
            *now = found.map(|path| Name::from(path.as_path()));
        }
    }
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

fn kept(saved_dir: &Path, inode: u64, born_ns: i64) -> PathBuf {
    saved_dir.join(format!("renamed-{inode:x}-{born_ns:x}"))
}

/// Keeps a file that was found: another name for it, or a copy. How it fails: the same image may not be restarted again.
pub fn keep(object: &Object, saved_dir: &Path) {
    let Object::Regular { inode, born_ns: Some(born), now: Some(now), .. } = object else { return };
    let (from, to) = (now.as_path(), kept(saved_dir, *inode, *born));
    if to.exists() {
        return;
    }
    let kept = super::regular::make_saved_dir(saved_dir)
        .and_then(|()| fs::hard_link(from, &to).or_else(|_| fs::copy(from, &to).map(|_| ())));
    if let Err(error) = kept {
        tracing::warn!("{now} is not kept for another restart: {error}");
    }
}
