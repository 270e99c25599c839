//! Small files that the programs have written and closed again: with `run --rollback-files` they are in the image with
//! what is in them, as open ones are, and a restart puts them back.
//!
//! Called by [`super::contents`]: [`ClosedFiles::look`] before the stop, [`ClosedFiles::read`] inside it. Which files a
//! program has written the kernel does not tell: those of its user in its working folders that were changed since the
//! job was started are taken for its own. They are opened by name, which who watches them is told (inotify(7)): so this
//! is an option, and what the job itself watches is left out. Bounded in number and bytes. How it fails: what cannot be
//! read is left out, and a restart says that it was written since.

use super::identity::mtime_ns;
use super::watchers::Watchers;
use super::written_files::{Key, Sight, Written};
use crate::folder_walk;
use holdfast_image::record::{FileTable, Object};
use holdfast_sys::procfs;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Most bytes of a file, and of all of them, and how many: they are read in the stop.
const SMALL: u64 = 256 << 10;
const TOGETHER: u64 = 4 << 20;
const COUNT: usize = 64;

/// Those of a job.
#[derive(Debug)]
pub struct ClosedFiles {
    /// When it was started: CLOCK_REALTIME.
    since_ns: u64,
    /// A folder that is not the programs'.
    store: PathBuf,
    /// What was found before the stop, what was written last first.
    found: Mutex<Vec<PathBuf>>,
}

impl ClosedFiles {
    /// Of a job that was started then.
    pub fn new(since_ns: u64, store: PathBuf) -> ClosedFiles {
        ClosedFiles { since_ns, store, found: Mutex::default() }
    }

    /// Before the stop: finds them. Those that are open are sorted out in it.
    pub fn look(&self, pids: &[i32]) {
        let mut all: Vec<(i64, PathBuf)> = Vec::new();
        let users: BTreeSet<u32> = pids.iter().filter_map(|pid| Some(about(*pid)?.uid())).collect();
        let pids: Vec<i32> = pids.iter().map(|pid| procfs::shown_by(*pid)).collect();
        // The paths of other mount namespaces are not ours.
        let mounts = |pid: &str| procfs::link(&format!("/proc/{pid}/ns/mnt")).ok();
        let cwds = pids.iter().filter(|pid| mounts(&pid.to_string()) == mounts("self"));
        let cwds = cwds.filter_map(|pid| fs::read_link(format!("/proc/{pid}/cwd")).ok());
        let cwds: BTreeSet<PathBuf> = cwds.collect();
        for user in users {
            let folders = cwds.iter().map(|folder| (folder.clone(), folder_walk::depth_below(folder)));
            folder_walk::files(folders.collect(), user, &self.store, |path, now| {
                let is_new = u64::try_from(mtime_ns(&now)).is_ok_and(|written| written >= self.since_ns);
                // Programs are no state, and one that runs could not be put back (ETXTBSY).
                if is_new && now.len() <= SMALL && now.mode() & 0o111 == 0 {
                    all.push((mtime_ns(&now), path));
                }
            });
        }
        all.sort_by(|one, other| other.cmp(one));
        *self.found.lock() = all.into_iter().map(|(_, path)| path).take(2 * COUNT).collect();
    }

    /// Inside the stop: those that no process has open. `tables`: what the processes have open. `known`: what is saved
    /// already.
    pub fn read(&self, tables: &[FileTable], known: impl Iterator<Item = Key>) -> Vec<(Written, Sight)> {
        let open = tables.iter().flat_map(|table| &table.descriptions).filter_map(|one| match &one.object {
            Object::Regular { device, inode, .. } => Some((*device, *inode)),
            _ => None,
        });
        let mut known: BTreeSet<Key> = open.chain(known).collect();
        let (mut read, mut left) = (Vec::new(), TOGETHER);
        let watchers = Watchers::of(tables.first().map_or(&[][..], |first| &first.descriptions));
        for path in self.found.lock().drain(..) {
            let Ok((written, sight)) = Written::closed(&path, &watchers) else { continue };
            if read.len() < COUNT && sight.len() <= left.min(SMALL) && known.insert(written.key) {
                left -= sight.len();
                read.push((written, sight));
            }
        }
        read
    }
}

fn about(pid: i32) -> Option<fs::Metadata> {
    fs::metadata(format!("/proc/{pid}")).ok()
}
