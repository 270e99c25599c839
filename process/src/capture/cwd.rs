//! The current directory of the program, and whether it still has a name.
//!
//! Called by `cut`, inside the stop. How it fails: the program is gone.

use super::identity::{DELETED, inode_of};
use super::mounts::{Place, View};
use super::own_proc;
use holdfast_image::bytes::Name;
use holdfast_image::record::{Inode, Within};
use holdfast_sys::procfs;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

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
    pub inode: Option<Inode>,
    /// It is in /proc, of another process or thread, which a restart would not find there.
    pub foreign: Option<i32>,
}

impl Folder {
    /// Of a process in a mount namespace of its own: where it is inside. It gets the path by which the job has it; one
    /// that is only inside gets the root, where a restart begins.
    ///
    /// # Errors
    /// It is on a mount that was taken away.
    pub fn follow(&mut self, pid: i32, view: &View) -> Result<Option<Within>, String> {
        let Some((path, place)) = view.follow(&format!("/proc/{pid}/cwd"))? else { return Ok(None) };
        if self.path.0 != path || self.deleted.is_some() {
            // Of /proc, or removed: found, or made again, where the job is.
            return match place {
                Place::Outside(outside) if path.starts_with(b"/proc/") || outside == path => Ok(None),
                _ => {
                    Err("its working folder was removed in its mount namespace, which is not supported"
                        .into())
                }
            };
        }
        match place {
            Place::Outside(outside) => self.path = Name(outside),
            Place::Only => (self.path, self.inode) = (Name::from("/"), None),
        }
        Ok(Some(Within { namespace: view.inode, path: Name(path) }))
    }
}

/// Looks at that of a process. `by`: see [`procfs::shown_by`]; `ids`: its own as we see it, and as it does itself.
///
/// # Errors
/// Process gone.
pub fn current(by: i32, ids: [i32; 2]) -> io::Result<Folder> {
    let link = format!("/proc/{by}/cwd");
    let path = procfs::link(&link)?;
    let here = fs::metadata(&link)?;
    let inode = Some(inode_of(&here));
    let foreign = own_proc::foreign(&path, ids);
    let named =
        |path: Vec<u8>| Ok(Folder { path: Name(own_proc::named(&path, ids)), deleted: None, inode, foreign });
    let Some(was) = path.strip_suffix(DELETED) else { return named(path) };
    // A living directory may have such a name.
    let identity = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    if fs::metadata(Path::new(OsStr::from_bytes(&path))).is_ok_and(|m| identity(&m) == identity(&here)) {
        return named(path);
    }
    Ok(Folder { path: Name(was.to_vec()), deleted: Some(here.mode() & PERMISSIONS), inode, foreign })
}
