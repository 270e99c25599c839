//! Files that have lost the name under which the program had them open: renamed since the checkpoint, as programs do with what they
//! have just written, or to make room for a new one. They are known by inode and time of birth (statx(2)), in the folder where they were.
//!
//! Called by [`super::regular`] and [`super::preflight`](fn@super::preflight). How it fails: what is not found is as if it were gone.

use crate::capture::identity::born_ns;
use holdfast_image::record::Object;
use std::fs;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where a file is that is not in its place any more. `None`: it is there, or nobody knows.
pub fn elsewhere(object: &Object) -> Option<PathBuf> {
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
    same.find(|entry| entry.metadata().is_ok_and(|now| now.is_file() && is_it(&now)))
        .map(|entry| entry.path())
}
