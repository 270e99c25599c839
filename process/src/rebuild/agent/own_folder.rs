//! Threads with a directory and a umask of their own. Called by [`super::rebuild_process`] when all threads are there:
//! each leaves what it shares with the others by unshare(2), and goes into its folder by a descriptor that the agent
//! has opened as for the process. How it fails: names the folder.

use super::passed_files;
use super::remote_calls::{Need, SeedThread};
use super::threads::NewThread;
use crate::inject::stub::Row;
use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::Opener;
use holdfast_image::record::{OwnFolder, ProcessRecord};
use std::os::fd::AsFd;

/// Gives those that had them their folders and umasks.
///
/// # Errors
/// See the head.
pub fn restore(
    leader: SeedThread,
    record: &ProcessRecord,
    threads: &[NewThread<'_>],
) -> Result<(), RebuildError> {
    for thread in threads {
        if let Some(own) = &thread.record.folder {
            give(leader, record, thread.seed, own)?;
        }
    }
    Ok(())
}

fn give(
    leader: SeedThread,
    record: &ProcessRecord,
    thread: SeedThread,
    own: &OwnFolder,
) -> Result<(), RebuildError> {
    let flags = (libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC).cast_unsigned();
    let (folder, _) = Opener::of(record).open(&own.path, own.inode.as_ref(), flags)?;
    let passed = passed_files::pass(leader, &[folder.as_fd()])?;
    let &[number] = &passed[..] else {
        return Err(RebuildError::file(&own.path, "the folder was not passed"));
    };
    let what = |what: &'static str| Need::MustOn(what, own.path.to_string());
    let mut batch = thread.batch();
    batch.row(
        Row::new(libc::SYS_unshare, &[libc::CLONE_FS as u64]),
        what("leave the folder of its process for"),
    );
    batch.row(Row::new(libc::SYS_fchdir, &[number]), what("enter"));
    batch.row(Row::new(libc::SYS_umask, &[u64::from(own.umask)]), Need::May);
    batch.call(libc::SYS_close, &[number], Need::May)?;
    batch.finish().map(|_| ())
}
