//! The current directory of the program, and whether it still has a name.
//!
//! Called by `cut`, inside the stop. How it fails: the program is gone.

use super::identity::inode_of;
use super::own_proc;
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
    /// It is in /proc, of another process or thread, which a restart would not find there.
    pub foreign: Option<i32>,
}

/// Looks at that of a process. `inner`: its id as it sees it itself.
///
/// # Errors
/// Process gone.
pub fn current(pid: i32, inner: i32) -> io::Result<Folder> {
    let link = format!("/proc/{pid}/cwd");
    let path = procfs::link(&link)?;
    let here = fs::metadata(&link)?;
    let inode = inode_of(&here);
    let foreign = own_proc::foreign(&path, [pid, inner]);
    let named = |path: Vec<u8>| {
        Ok(Folder { path: Name(own_proc::named(&path, [pid, inner])), deleted: None, inode, foreign })
    };
    let Some(was) = path.strip_suffix(DELETED) else { return named(path) };
    // A living directory may have such a name.
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    if fs::metadata(Path::new(OsStr::from_bytes(&path))).is_ok_and(|m| identity(&m) == identity(&here)) {
        return named(path);
    }
    Ok(Folder { path: Name(was.to_vec()), deleted: Some(here.mode() & PERMISSIONS), inode, foreign })
}
