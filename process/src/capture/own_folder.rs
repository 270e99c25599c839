//! Threads with a directory and a umask of their own (unshare(2) with CLONE_FS), and processes that have those of their
//! parents (clone(2) with CLONE_FS).
//!
//! Called by `capture_process` inside the stop, and by `check`, by any thread of ours. kcmp(2) tells who has what in
//! common; /proc what each has. A restart makes them so again (`rebuild::agent::own_folder`). How it fails: it names
//! what a restart would not find, or could not give to two threads together.

use crate::capture::identity::{DELETED, inode_of};
use crate::job::membership;
use crate::refuse;
use holdfast_image::bytes::Name;
use holdfast_image::record::OwnFolder;
use holdfast_image::refusal::Refusal;
use holdfast_sys::clone::{Common, have_in_common};
use holdfast_sys::procfs::{self, Status};
use std::fs;
use std::io;

/// The threads that have some, of these (their ids as we see them and as they do); the first has what is called the
/// process's. What the kernel does not tell is no difference: kcmp(2) is missing in some containers. `is_moved`:
/// whether the process is in namespaces, or has a root, that are not the job's; asked only where a thread has some.
///
/// # Errors
/// What a restart cannot make.
pub fn of_threads(
    threads: &[(i32, i32)],
    is_moved: &dyn Fn() -> bool,
) -> Result<Vec<(i32, OwnFolder)>, Vec<Refusal>> {
    let Some((&(first, _), others)) = threads.split_first() else { return Ok(Vec::new()) };
    let shares = |one, other| have_in_common(one, other, Common::Folders).unwrap_or(true);
    let (mut found, mut refusals): (Vec<(i32, OwnFolder)>, _) = (Vec::new(), Vec::new());
    for &(tid, inner) in others.iter().filter(|(tid, _)| !shares(first, *tid)) {
        let why = match of_thread(first, tid) {
            // The kernel compares: `true` where it does not tell, and then it has told nothing of these two before.
            _ if found.iter().any(|(other, _)| shares(*other, tid)) => refuse::FOLDER_OF_SOME,
            _ if is_moved() => refuse::FOLDER_IN_A_NAMESPACE,
            Ok(Some(own)) => {
                found.push((tid, own));
                continue;
            }
            Ok(None) => refuse::FOLDER_GONE,
            Err(_) => continue, // it has ended
        };
        refusals.push(refuse::own_folder(inner, why));
    }
    if refusals.is_empty() { Ok(found) } else { Err(refusals) }
}

/// Whether a process has its directory and umask in common with its parent. By any thread of it.
pub fn is_shared_with_parent(live: i32) -> bool {
    let parent = membership::parent(live).map(procfs::shown_by);
    parent.is_some_and(|parent| have_in_common(parent, live, Common::Folders).unwrap_or(false))
}

/// What one has; `None`: it was removed, is in /proc, or its root is not the process's.
fn of_thread(first: i32, tid: i32) -> io::Result<Option<OwnFolder>> {
    let (link, root) = (format!("/proc/{tid}/cwd"), |tid: i32| procfs::link(&format!("/proc/{tid}/root")));
    let (path, here) = (procfs::link(&link)?, fs::metadata(&link)?);
    let umask = Status::read(tid, tid)?.get("Umask").and_then(|text| u32::from_str_radix(text, 8).ok());
    let umask = umask.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    if path.ends_with(DELETED) || path.starts_with(b"/proc/") || root(first)? != root(tid)? {
        return Ok(None);
    }
    Ok(Some(OwnFolder { path: Name(path), inode: Some(inode_of(&here)), umask }))
}
