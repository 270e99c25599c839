//! The current directory of the program, and whether it still has a name.
//!
//! Called by `cut`, inside the stop. How it fails: the program is gone.

use super::identity::inode_of;
use holdfast_image::bytes::Name;
use holdfast_image::record::Inode;
use holdfast_sys::procfs;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What the kernel appends to the path of a removed directory (fs/d_path.c, path_with_deleted).
const DELETED: &[u8] = b" (deleted)";
/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// A current directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Folder {
    /// Where it is, or was.
    pub path: Name,
    /// It was removed: its permission bits.
    pub deleted: Option<u32>,
    /// Which it is, and whose.
    pub inode: Inode,
}

/// Looks at that of a process.
///
/// # Errors
/// Process gone.
pub fn current(pid: i32) -> io::Result<Folder> {
    let link = format!("/proc/{pid}/cwd");
    let path = procfs::link(&link)?;
    let here = fs::metadata(&link)?;
    let inode = inode_of(&here);
    let named = |path| Ok(Folder { path: Name(path), deleted: None, inode });
    let Some(was) = path.strip_suffix(DELETED) else { return named(path) };
    // A living directory may have such a name.
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    if fs::metadata(Path::new(OsStr::from_bytes(&path))).is_ok_and(|m| identity(&m) == identity(&here)) {
        return named(path);
    }
    Ok(Folder { path: Name(was.to_vec()), deleted: Some(here.mode() & PERMISSIONS), inode })
}
