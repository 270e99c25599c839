//! Files in a job's folders that were written between the image and the end of its program, and that no process had
//! open at the image: results that were appended to, a state file. A restart leaves them as they are, and the program
//! does for a second time what it did to them; so they are named.
//!
//! [`find`] is called by the front before anything is made. It looks, opens nothing but folders and changes nothing.
//! Which files a program has written the kernel does not tell afterwards: those of its user in its working folders, and
//! beside the files that it has open for writing, are taken for its own. Bounded in entries, so that a home folder
//! costs no time.
//! How it fails: what cannot be looked at is left out: this is a note, and nothing is decided by it.

use super::file_role::may_write;
use crate::capture::identity::mtime_ns;
use crate::folder_walk;
use holdfast_image::record::{Object, ProcessRecord};
use holdfast_sys::unix_socket;
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// File systems give times by ticks (fs/inode.c, current_time): a file that was written after the cut may have a time
/// from shortly before.
const TICK_NS: u64 = 10_000_000;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NewerFiles {
    /// The files, the newest first.
    pub paths: Vec<PathBuf>,
    /// There was more to look at than is looked at.
    pub is_part: bool,
}

/// Finds them. `until_ns`: when the program has ended, if that is known (CLOCK_REALTIME). `store`: a folder that is not
/// the program's. `own`: files that this process writes.
pub fn find(record: &ProcessRecord, until_ns: Option<u64>, store: &Path, own: &[Metadata]) -> NewerFiles {
    let user = record.rights.as_ref().map_or_else(unix_socket::effective_user, |rights| rights.users[1]);
    let known = Known::of(record, own);
    let mut found: Vec<(i64, PathBuf)> = Vec::new();
    let is_part = folder_walk::files(folders(record), user, store, |path, now| {
        if is_between(&now, record.host.realtime_ns, until_ns) && !known.has(&path, &now) {
            found.push((mtime_ns(&now), path));
        }
    });
    found.sort_by(|one, other| other.cmp(one));
    NewerFiles { paths: found.into_iter().map(|(_, path)| path).collect(), is_part }
}

fn is_between(now: &Metadata, from_ns: u64, until_ns: Option<u64>) -> bool {
    let Ok(written) = u64::try_from(mtime_ns(now)) else { return false };
    written > from_ns.saturating_sub(TICK_NS) && until_ns.is_none_or(|until| written <= until)
}

/// Where to look, and how deep.
fn folders(record: &ProcessRecord) -> Vec<(PathBuf, usize)> {
    let cwds = record.processes().filter(|process| process.cwd_deleted.is_none());
    let cwds = cwds.map(|process| process.cwd.as_path());
    let cwds = cwds.map(|folder| (folder.to_owned(), folder_walk::depth_below(folder)));
    let beside = record.files.descriptions.iter().filter_map(|one| match &one.object {
        Object::Regular { path, deleted_content: None, .. } if may_write(one.flags) => {
            path.as_path().parent()
        }
        _ => None,
    });
    cwds.chain(beside.map(|folder| (folder.to_owned(), 0))).collect()
}

/// Files of which a restart says itself what becomes of them.
struct Known<'a> {
    paths: BTreeSet<&'a Path>,
    beside: BTreeSet<OsString>,
    own: HashSet<(u64, u64)>,
}

impl<'a> Known<'a> {
    fn of(record: &'a ProcessRecord, own: &[Metadata]) -> Known<'a> {
        let mut paths: BTreeSet<&Path> = BTreeSet::new();
        for description in &record.files.descriptions {
            match &description.object {
                Object::Regular { path, now, .. } => {
                    paths.insert(path.as_path());
                    paths.extend(now.as_ref().map(|now| now.as_path()));
                }
                // A stream that goes elsewhere now.
                Object::Inherited { was, .. } => drop(paths.insert(was.as_path())),
                _ => {}
            }
        }
        paths.extend(record.files.contents.iter().map(|content| content.path.as_path()));
        paths.extend(record.processes().flat_map(|one| &one.files.mapped).map(|file| file.path.as_path()));
        let beside = record.files.contents.iter().flat_map(|content| content.absent_paths());
        let beside = beside.map(|path| path.as_path().as_os_str().to_owned()).collect();
        Known { paths, beside, own: own.iter().map(|file| (file.dev(), file.ino())).collect() }
    }

    fn has(&self, path: &Path, now: &Metadata) -> bool {
        self.paths.contains(path)
            || self.beside.contains(path.as_os_str())
            || self.own.contains(&(now.dev(), now.ino()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::folder_walk::ENTRIES;
    use crate::rebuild::testing::{Folder, record};
    use holdfast_image::bytes::Name;
    use std::fs::{self, File};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn what_was_written_between_image_and_end_is_found() {
        let folder = Folder::new("newer");
        let base = fs::canonicalize(&folder.0).unwrap();
        let (store, deep) = (base.join("store"), base.join("a/b"));
        fs::create_dir_all(&store).unwrap();
        fs::create_dir_all(&deep).unwrap();
        let write = |path: &Path, seconds: u64| {
            let file = File::create(path).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        for (name, seconds) in [
            ("before", 99),
            ("after", 101),
            ("a/b/later", 102),
            ("beyond", 104),
            ("store/image", 102),
            ("own", 102),
        ] {
            write(&base.join(name), seconds);
        }
        std::os::unix::fs::symlink(base.join("after"), base.join("link")).unwrap();
        let mut record = record(Vec::new());
        record.cwd = Name::from(base.as_path());
        record.host.realtime_ns = 100_000_000_000;
        let own = [fs::metadata(base.join("own")).unwrap()];
        let found = |until| find(&record, until, &store, &own).paths;
        let expected = [base.join("a/b/later"), base.join("after")];
        assert_eq!(found(Some(103_000_000_000)), expected);
        assert_eq!(found(None)[0], base.join("beyond"));
        record.host.realtime_ns = 102_500_000_000;
        assert_eq!(find(&record, Some(103_000_000_000), &store, &own), NewerFiles::default());
        for number in 0..ENTRIES {
            File::create(base.join(format!("many{number}"))).unwrap();
        }
        assert!(find(&record, None, &store, &own).is_part);
    }
}
