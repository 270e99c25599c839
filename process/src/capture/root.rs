//! The root directory of a process (chroot(2)), where it is not that of its job.
//!
//! Called before the stop to refuse, and inside it to record. The kernel shows all paths of such a process as the agent
//! sees them (fs/d_path.c: up to the root of the reader), so that only names which the program has given itself are
//! others: a restart opens everything first, and changes the root last. Fails by: words for a refusal; a process that
//! has ended has no root.

use crate::namespaces::Namespaces;
use holdfast_image::bytes::Name;
use holdfast_sys::{procfs, unix_socket};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;

/// That of a process, and what it is; `None`: the job's. `job`: what all processes have that have changed nothing.
///
/// # Errors
/// A restart could not find it, or not go there.
pub fn of(pid: i32, job: &Namespaces) -> Result<Option<(Name, Metadata)>, String> {
    // That of another mount namespace is another one by nature: see `mounts`.
    if job.other_mounts(pid).is_some() {
        return Ok(None);
    }
    let link = format!("/proc/{pid}/root");
    let Ok(here) = fs::metadata(&link) else { return Ok(None) };
    if !job.has_other_root((here.dev(), here.ino())) {
        return Ok(None);
    }
    let path = Name(procfs::link(&link).map_err(|error| error.to_string())?);
    if unix_socket::effective_user() != 0 {
        return Err(format!(
            "its root directory is {path} (chroot), which only root can restore: start `holdfast run` inside it"
        ));
    }
    let is_it = |found: Metadata| (found.dev(), found.ino()) == (here.dev(), here.ino());
    if !fs::symlink_metadata(path.as_path()).is_ok_and(is_it) {
        return Err(format!(
            "its root directory {path} (chroot) is not at that path any more, where a restart could find it: start \
             `holdfast run` inside it"
        ));
    }
    Ok(Some((path, here)))
}
