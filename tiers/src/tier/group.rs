//! Blobs of a folder on a local disk that become durable together.
//!
//! Called by [`crate::ImageGroup`], for images that are written one after the other when several are waiting: a disk is
//! asked to make its caches durable some four times for each, and here for all of them. What is published is not there
//! before [`Group::end`].
//! Invariants: a blob that was published is there when all that was finished before is durable, in the order of the
//! publishing; what a crash leaves are parts, and segments that no manifest names: `clean` removes both.
//! Fails by: an error that names the path; what was not published then is not there.

use super::local::{LocalTier, LocalWriter};
use super::{Blob, BlobName, BlobWriter, Listing, Tier, TierError, TierInfo, posix};
use crate::fault;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

/// Most threads that wait for the disk at once: a file system makes what they ask for durable in one go.
const THREADS: usize = 8;

/// What is to become durable.
#[derive(Default)]
struct Late {
    /// Blobs that have their names.
    named: Vec<(File, PathBuf)>,
    /// Blobs that get theirs at the end: file, its name now, and then.
    published: Vec<(File, PathBuf, PathBuf)>,
    /// So many of these have it.
    renamed: usize,
}

/// See the head of the file.
pub(crate) struct Group {
    local: LocalTier,
    late: Arc<Mutex<Late>>,
}

impl Group {
    pub(crate) fn new(folder: &Path) -> Group {
        Group { local: LocalTier::at(folder.to_owned()), late: Arc::default() }
    }

    /// All that was published is there, durably.
    pub(crate) fn end(&self) -> Result<(), TierError> {
        let late = &mut *self.late.lock();
        let named = late.named.iter().map(|(file, path)| (file, path));
        let files: Vec<(&File, &PathBuf)> =
            named.chain(late.published.iter().map(|(file, _, path)| (file, path))).collect();
        sync(&files)?;
        // The names of what manifests refer to must be durable before theirs.
        posix::sync_folder(self.local.root())?;
        fault::point("manifest-temp");
        for (_, part, path) in &late.published {
            posix::rename_new(part, path).map_err(TierError::io("rename", posix::shown(path)))?;
            late.renamed += 1;
        }
        posix::sync_folder(self.local.root())?;
        *late = Late::default();
        fault::point("manifest-renamed");
        Ok(())
    }

    /// Nothing of it stays. What cannot be removed now is removed by `clean`.
    pub(crate) fn abandon(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        // Manifests first: nothing may name segments that were removed.
        let manifests = late.published.iter().enumerate();
        let manifests = manifests.map(|(at, (_, part, path))| if at < late.renamed { path } else { part });
        manifests.chain(late.named.iter().map(|(_, path)| path)).for_each(|path| drop(fs::remove_file(path)));
    }
}

/// Makes files durable.
fn sync(files: &[(&File, &PathBuf)]) -> Result<(), TierError> {
    let one = |(file, path): &(&File, &PathBuf)| {
        file.sync_all().map_err(TierError::io("write", posix::shown(path)))
    };
    let share = files.len().div_ceil(THREADS).max(1);
    thread::scope(|scope| {
        let mut shares = files.chunks(share);
        let first = shares.next().unwrap_or_default();
        let others: Vec<_> =
            shares.map(|files| scope.spawn(move || files.iter().try_for_each(one))).collect();
        let mut done = first.iter().try_for_each(one);
        for other in others {
            let failed = || TierError::io("write", "a blob")(std::io::Error::other("a thread has ended"));
            done = done.and(other.join().unwrap_or_else(|_| Err(failed())));
        }
        done
    })
}

impl Tier for Group {
    fn info(&self) -> &TierInfo {
        self.local.info()
    }

    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.local.list(folder)
    }

    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        self.local.open(name)
    }

    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        let writer = self.local.writer(name, expected)?;
        Ok(Box::new(GroupWriter { writer, late: Arc::clone(&self.late) }))
    }

    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        let path = self.local.vacant(name)?;
        let failed = |what| TierError::io(what, posix::shown(&path));
        let (mut file, part) = posix::create_part(&path, 0).map_err(failed("create"))?;
        if let Err(error) = file.write_all(bytes) {
            let _ = fs::remove_file(&part);
            return Err(failed("write")(error));
        }
        self.late.lock().published.push((file, part, path));
        Ok(())
    }

    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        self.local.remove(name)
    }

    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.local.clean(folder)
    }
}

/// A blob of a group that is being written.
struct GroupWriter {
    writer: LocalWriter,
    late: Arc<Mutex<Late>>,
}

impl BlobWriter for GroupWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        self.writer.append(bytes)
    }

    fn finish(self: Box<Self>) -> Result<u64, TierError> {
        let (file, path, len) = self.writer.name()?;
        self.late.lock().named.push((file, path));
        Ok(len)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn name(text: &str) -> BlobName {
        BlobName::within("", text).unwrap()
    }

    fn bed(what: &str) -> (PathBuf, Group) {
        let folder = std::env::temp_dir().join(format!("holdfast-group-{what}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        posix::make_folder(&folder, true).unwrap();
        let group = Group::new(&folder);
        for number in 1..=20 {
            let mut writer = group.create(&name(&format!("segment-{number}")), None).unwrap();
            writer.append(&vec![number; 5000]).unwrap();
            assert_eq!(writer.finish().unwrap(), 5000);
            group.publish(&name(&format!("manifest-{number}")), &[number]).unwrap();
        }
        (folder, group)
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn what_is_published_is_there_at_the_end_of_the_group() {
        let (folder, group) = bed("end");
        let there = |group: &Group| group.list("").unwrap().blobs.len();
        assert_eq!(there(&group), 20, "segments alone");
        assert!(matches!(group.open(&name("manifest-3")), Err(TierError::NotFound { .. })));
        group.end().unwrap();
        assert_eq!((there(&group), files(&folder)), (40, 40));
        let mut byte = [0];
        group.open(&name("manifest-3")).unwrap().read_at(0, &mut byte).unwrap();
        assert_eq!(byte, [3]);
        group.abandon();
        assert_eq!(files(&folder), 40, "what has ended stays");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_group_that_fails_leaves_nothing_of_its_own() {
        let (folder, group) = bed("fails");
        // Another writer's.
        fs::write(folder.join("manifest-20"), b"other").unwrap();
        assert!(group.end().is_err());
        group.abandon();
        assert_eq!(files(&folder), 1);
        assert_eq!(fs::read(folder.join("manifest-20")).unwrap(), b"other");
        fs::remove_dir_all(folder).unwrap();
    }
}
