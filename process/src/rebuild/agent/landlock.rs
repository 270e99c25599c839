//! The process goes into the Landlock domain that it had made (`image::landlock`): the rule sets are made anew by the
//! agent and handed to it, and each of its threads goes into one layer after the other.
//!
//! Called by [`super::rebuild_process`] when nothing else of the process is opened any more. Threads and children had
//! one domain, and have domains of their own then, of the same rules: none of them may look into another process that
//! way (security/landlock/task.c, hook_ptrace_access_check). How it fails: names the file of a rule that is not there.

use super::passed_files;
use super::remote_calls::Need;
use super::threads::NewThread;
use crate::capture::identity;
use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::Opener;
use holdfast_image::bytes::Name;
use holdfast_image::landlock::{LandlockLayer, LandlockRule};
use holdfast_image::record::{Inode, ProcessRecord};
use holdfast_sys::landlock::Ruleset;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Has all threads be in the domain.
///
/// # Errors
/// A file of a rule is another one now; the kernel does not know what the domain forbids.
pub fn restrict(threads: &[NewThread<'_>], record: &ProcessRecord) -> Result<(), RebuildError> {
    let Some(leader) = threads.first().map(|thread| thread.seed).filter(|_| !record.domain.is_empty()) else {
        return Ok(());
    };
    let pid = leader.remote.tid;
    let all: Result<Vec<Ruleset>, RebuildError> =
        record.domain.iter().map(|layer| ruleset(layer, record, pid)).collect();
    let all = all?;
    let files: Vec<_> = all.iter().map(AsFd::as_fd).collect();
    let numbers = passed_files::pass(leader, &files)?;
    for thread in threads {
        let mut batch = thread.seed.batch();
        for (layer, number) in record.domain.iter().zip(&numbers) {
            let need = Need::Must("go into the Landlock domain of rule set", *number);
            batch.call(libc::SYS_landlock_restrict_self, &[*number, layer.flags.into()], need)?;
        }
        batch.finish()?;
    }
    let mut batch = leader.batch();
    for number in numbers {
        batch.call(libc::SYS_close, &[number], Need::Must("close descriptor", number))?;
    }
    batch.finish().map(drop)
}

fn ruleset(layer: &LandlockLayer, record: &ProcessRecord, pid: i32) -> Result<Ruleset, RebuildError> {
    let made = Ruleset::new(layer.files, layer.network).map_err(|error| {
        RebuildError::Refused(format!("this kernel cannot make the Landlock domain of the program: {error}"))
    })?;
    for rule in &layer.rules {
        match rule {
            LandlockRule::Port { access, port } => made.allow_port(*access, *port),
            LandlockRule::Path { access, path, inode } => {
                let opened = match inode {
                    Some(inode) => same(path, inode, record)?,
                    None => of_proc(path, pid)?,
                };
                made.allow_path(*access, opened.as_fd())
            }
        }
        .map_err(RebuildError::io("making a rule of a Landlock domain"))?;
    }
    Ok(made)
}

/// The very file.
fn same(path: &Name, was: &Inode, record: &ProcessRecord) -> Result<OwnedFd, RebuildError> {
    let (opened, _) = Opener::of(record).open(path, Some(was), libc::O_PATH.cast_unsigned())?;
    let opened = File::from(opened);
    let now = opened.metadata().map_err(RebuildError::io(format!("looking at {path}")))?;
    if was.is(&identity::inode_of(&now)) {
        return Ok(opened.into());
    }
    Err(RebuildError::Refused(format!(
        "{path}: the Landlock domain of the program allows access to what was there, and it is another file now: put \
         that one back"
    )))
}

/// A file of the /proc of the process.
fn of_proc(path: &Name, pid: i32) -> Result<OwnedFd, RebuildError> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    let inside = path.as_path().strip_prefix("/").unwrap_or(Path::new(""));
    let opened = File::options().read(true).custom_flags(flags).open(root.join(inside));
    opened.map(OwnedFd::from).map_err(RebuildError::io(format!("opening {path}")))
}
