//! Folders that are gone and that the program needs, made as they were: its working folder, those that it has open, and
//! those of files that are made anew.
//!
//! Called by `child` in the first new process, before it opens anything. Each is made in the one above it, which is
//! open: no user can lead it elsewhere meanwhile; and as the process that needs it ([`Opener::act_at_folder`]). Those
//! that had been gone at the checkpoint, and in which the file of a socket has to be made for a moment, are removed
//! when all is open; all of them if that fails. How it fails: an error names the folder.

use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::paths::{Opener, Place, is_of_root, open_folder};
use holdfast_image::bytes::Name;
use holdfast_image::folders::{By, Need, Needs};
use holdfast_image::record::FolderRecord;
use holdfast_image::record::Ownership;
use holdfast_sys::unix_socket;
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What was made, outermost first.
#[derive(Debug, Default)]
pub struct MissingFolders {
    made: Vec<Made>,
}

#[derive(Debug)]
struct Made {
    path: PathBuf,
    place: Place,
    need: Need,
    /// For whom, and whose it was.
    opener: Opener,
    was: Option<Ownership>,
}

/// What is known of the folders of a job.
struct Known<'a> {
    records: BTreeMap<&'a Path, &'a FolderRecord>,
    /// Permission bits of one of which nothing is known.
    usual: u32,
}

impl Known<'_> {
    fn owner(&self, path: &Path) -> Option<Ownership> {
        self.records.get(path).map(|was| Ownership { user: was.user, group: was.group })
    }
}

impl MissingFolders {
    /// Makes all that are gone, each as a process that needs it.
    ///
    /// # Errors
    /// Names the folder; what was made is removed again.
    pub fn make(job: &Job<'_>) -> Result<MissingFolders, RebuildError> {
        let record = job.record;
        let records = record.files.folders.iter().map(|folder| (folder.path.as_path(), folder)).collect();
        let known = Known { records, usual: 0o777 & !record.umask };
        let openers: Vec<Opener> = record.processes().map(Opener::of).collect();
        let place = |by: By| match by {
            By::Process(place) => place,
            By::Description(index) => job.holder(index).map_or(0, |(place, _)| place),
        };
        let mut made = MissingFolders::default();
        let mut needed: Vec<(PathBuf, Need, By)> = Needs::of(record).each();
        // What is to stay is not made for a moment only; and whose it was makes it, if that process needs it.
        needed.sort_by_key(|(folder, need, by)| {
            let own = openers.get(place(*by)).and_then(Opener::ids).map(|ids| ids.user);
            (std::cmp::Reverse(*need), own != known.owner(folder).map(|was| was.user))
        });
        for (folder, need, by) in needed {
            let Some(opener) = openers.get(place(by)).filter(|_| !folder.is_dir()) else { continue };
            made.make_with_parents(&folder, need, opener, &known).map_err(|error| {
                let what = format!(
                    "the folder is gone and cannot be made anew: {error}; make it, or give its new path \
                     (restart --map OLD=NEW)"
                );
                RebuildError::file(&Name::from(folder.as_path()), what)
            })?;
        }
        Ok(made)
    }

    /// All that needed them is there: those that were gone at the checkpoint go again. What the user should know.
    pub fn keep(mut self) -> Vec<String> {
        let made = std::mem::take(&mut self.made);
        let (lasting, passing): (Vec<Made>, Vec<Made>) =
            made.into_iter().partition(|made| made.need == Need::Lasting);
        self.made = passing;
        let remedy = "if it is elsewhere now: restart --map OLD=NEW";
        let note = |made: Made| format!("{}: the folder was gone; made anew ({remedy})", made.path.display());
        lasting.into_iter().map(note).collect()
    }

    /// Makes one, and those above it; it is open then.
    fn make_with_parents(
        &mut self,
        path: &Path,
        need: Need,
        opener: &Opener,
        known: &Known<'_>,
    ) -> io::Result<OwnedFd> {
        let was = known.owner(path);
        let opened = {
            let _acting = opener.act_at_folder(path, was)?;
            let opened = open_folder(path);
            let Err(error) = opened else { return opened };
            let is_gone = match error.raw_os_error() {
                Some(libc::ENOENT) => true,
                Some(libc::ELOOP) => !path.exists(),
                _ => false,
            };
            if is_gone { Err(error) } else { through_links(path, error, opener, known) }
        };
        let Err(error) = opened else { return opened };
        let is_gone = error.raw_os_error() == Some(libc::ENOENT) || !path.exists();
        let (Some(above), Some(last)) = (path.parent().filter(|_| is_gone), path.file_name()) else {
            return Err(error);
        };
        let parent = self.make_with_parents(above, need, opener, known)?;
        let place = Place::within(parent.as_fd(), last)?;
        let _acting = opener.act_at_folder(path, was)?;
        let made = place.make_folder()?;
        // One that was there at the checkpoint is to be there.
        let need = if was.is_some() { Need::Lasting } else { need };
        let (path, opener) = (path.to_owned(), opener.clone());
        let mode = known.records.get(path.as_path()).map_or(known.usual, |was| was.mode);
        self.made.push(Made { path, place, need, opener, was });
        made.set_permissions(Permissions::from_mode(mode))?;
        Ok(made.into())
    }
}

/// The path of a socket is as the program gave it: there may be links in it, if they were there at the checkpoint. The
/// process follows them, as which this is called; for root's own they are root's.
fn through_links(path: &Path, error: io::Error, opener: &Opener, known: &Known<'_>) -> io::Result<OwnedFd> {
    let is_new = |part: &Path| known.records.contains_key(part) && part.is_symlink();
    let is_roots = opener.ids().is_none() && unix_socket::effective_user() == 0;
    if error.raw_os_error() != Some(libc::ELOOP)
        || path.ancestors().any(is_new)
        || is_roots && !is_of_root(&path.join("inside"))
    {
        return Err(error);
    }
    open_folder(&fs::canonicalize(path)?)
}

impl Drop for MissingFolders {
    fn drop(&mut self) {
        for Made { path, place, opener, was, .. } in self.made.iter().rev() {
            // Another process may have put something into it meanwhile: then it stays.
            let _ = opener.act_at_folder(path, *was).and_then(|_acting| place.remove_folder());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{Folder, record};
    use holdfast_image::credentials::Credentials;
    use holdfast_image::record::{Description, Object, ProcessRecord};
    use std::os::unix::fs::MetadataExt;

    /// A record of a program in `cwd` that has a folder open.
    fn of(cwd: &Path, open: &Path) -> ProcessRecord {
        let mut record = record(Vec::new());
        (record.cwd, record.umask) = (Name::from(cwd), 0o027);
        let object = Object::Directory { path: Name::from(open), position: 0, inode: None };
        record.files.descriptions =
            vec![Description { flags: 0, object, locks: Vec::new(), owner: None, streams: 0, within: None }];
        record
    }

    fn make(record: &ProcessRecord) -> Result<MissingFolders, RebuildError> {
        MissingFolders::make(&Job::new(record))
    }

    #[test]
    fn folders_come_back_with_their_modes() {
        let base = Folder::new("missing");
        let base = fs::canonicalize(&base.0).unwrap();
        let (cwd, open) = (base.join("a/b"), base.join("a/c"));
        let mut record = of(&cwd, &open);
        let owner = fs::metadata(&base).unwrap();
        let known = |path: PathBuf, mode| FolderRecord {
            path: Name::from(&*path),
            mode,
            user: owner.uid(),
            group: owner.gid(),
        };
        record.files.folders = vec![known(base.join("a"), 0o1777), known(open.clone(), 0o705)];
        let notes = make(&record).unwrap().keep();
        assert_eq!(notes.len(), 3, "{notes:?}");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!([&base.join("a"), &cwd, &open].map(|path| mode(path)), [0o1777, 0o750, 0o705]);
        assert_eq!(make(&record).unwrap().keep(), [""; 0], "all are there");
        fs::remove_dir_all(base.join("a")).unwrap();
        drop(make(&record).unwrap());
        assert!(!base.join("a").exists(), "the restart has failed");
        // A link where there was a folder leads elsewhere; one that has always been there is the program's own.
        std::os::unix::fs::symlink(&base, base.join("a")).unwrap();
        let error = make(&record).map(drop).unwrap_err().to_string();
        assert!(error.contains("a/b: the folder is gone") && error.contains("--map"), "{error}");
        record.files.folders.remove(0);
        make(&record).unwrap().keep();
        assert!(base.join("b").is_dir() && base.join("c").is_dir());
    }

    /// As root restarts a process that is another user.
    #[test]
    fn a_folder_is_made_by_whom_it_is_for_unless_the_way_there_is_roots() {
        if unix_socket::effective_user() != 0 {
            return println!("not run: this test needs root");
        }
        const USER: u32 = 2102;
        let base = Folder::new("missing-as");
        let base = fs::canonicalize(&base.0).unwrap();
        fs::set_permissions(&base, Permissions::from_mode(0o755)).unwrap();
        let (theirs, roots) = (base.join("theirs"), base.join("roots"));
        for folder in [&theirs, &roots] {
            fs::create_dir(folder).unwrap();
        }
        std::os::unix::fs::chown(&theirs, Some(USER), Some(USER)).unwrap();
        let of = |open: &Path| {
            let mut record = of(&base, open);
            record.rights =
                Some(Credentials { users: [USER; 3], groups: [USER; 3], ..Credentials::default() });
            let path = Name::from(open);
            record.files.folders = vec![FolderRecord { path, mode: 0o755, user: USER, group: USER }];
            record
        };
        let owner = |path: &Path| fs::symlink_metadata(path).map(|now| now.uid()).unwrap();
        // As a server finds its folder in /run after a boot.
        make(&of(&roots.join("run"))).unwrap().keep();
        make(&of(&theirs.join("own"))).unwrap().keep();
        assert_eq!([roots.join("run"), theirs.join("own")].map(|path| owner(&path)), [USER; 2]);
        std::os::unix::fs::symlink(&roots, theirs.join("link")).unwrap();
        make(&of(&theirs.join("link/new"))).unwrap_err();
        // Nor does root's own process follow it.
        let mut roots_own = of(&theirs.join("link/new"));
        roots_own.rights = None;
        make(&roots_own).unwrap_err();
        assert!(!roots.join("new").exists());
    }
}
