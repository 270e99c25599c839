//! The root directory of a new process, where it had another one than its job (chroot(2)).
//!
//! Called by [`super::rebuild_process`] when all files are open, and before the process gives up rights: from then on
//! its paths are others than the restart's. The working folder stays where it is, be it outside. What must hold: the
//! directory is that of the record, found without links; it is entered by descriptor. How it fails: names it.

use super::remote_calls::{Need, SeedThread};
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::{Opener, c_path};
use holdfast_image::record::{ProcessRecord, RootFolder};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Flags of openat2(2) (include/uapi/linux/openat2.h).
const RESOLVE_NO_SYMLINKS: u64 = 4;

/// Changes it, if the record says so.
///
/// # Errors
/// It is not there, or another one; the restart may not (CAP_SYS_CHROOT).
pub fn change(leader: SeedThread, record: &ProcessRecord) -> Result<(), RebuildError> {
    let Some(RootFolder { path, inode }) = &record.root else { return Ok(()) };
    let folder = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC).cast_unsigned();
    let (_, found) = Opener::of(record).open(path, inode.as_ref(), folder)?;
    let here = libc::AT_FDCWD as u64;
    let mut batch = leader.batch();
    let name = c_path(path)?.into_bytes_with_nul();
    batch.reserve(name.len() + 64)?;
    let (name, dot) = (batch.data(&name), batch.data(b".\0"));
    let how: Vec<u8> =
        [u64::from(folder), 0, RESOLVE_NO_SYMLINKS].iter().flat_map(|word| word.to_le_bytes()).collect();
    let how = (batch.data(&how), how.len() as u64);
    let what = |what: &'static str| Need::MustOn(what, path.to_string());
    batch.row(Row::new(libc::SYS_openat2, &[here, name, how.0, how.1]), what("open the root directory"));
    let args = [here, dot, u64::from(folder), 0];
    batch.row(Row::new(libc::SYS_openat, &args), what("open the working folder before going to"));
    let (opened, _) = batch.finish()?;
    let [root, folder] = opened[..] else {
        return Err(RebuildError::file(path, "the root directory was not opened"));
    };
    let now = fs::metadata(format!("/proc/{}/fd/{root}", leader.remote.tid));
    let now = now.map_err(RebuildError::io(format!("looking at {path}")))?;
    if (now.dev(), now.ino()) != (found.now.dev(), found.now.ino()) {
        return Err(RebuildError::file(path, "it was replaced while it was opened; restart again"));
    }
    let (root, folder) = (root.cast_unsigned(), folder.cast_unsigned());
    let mut batch = leader.batch();
    batch.reserve(16)?;
    let dot = batch.data(b".\0");
    batch.row(Row::new(libc::SYS_fchdir, &[root]), what("enter the root directory"));
    batch.row(Row::new(libc::SYS_chroot, &[dot]), what("change the root directory to"));
    batch.row(Row::new(libc::SYS_fchdir, &[folder]), what("go back to the working folder from"));
    batch.call(libc::SYS_close, &[root], Need::May)?;
    batch.call(libc::SYS_close, &[folder], Need::May)?;
    batch.finish().map(|_| ())
}
