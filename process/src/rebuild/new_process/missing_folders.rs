//! Folders that are gone and that the program needs, made as they were: its working folder, those that it has open, and
//! those of files that are made anew.
//!
//! Called by `child` in the first new process, before it opens anything. Each is made in the one above it, which is
//! open: nobody can lead it elsewhere meanwhile. Those that had been gone at the checkpoint, and in which the file of
//! a socket has to be made for a moment, are removed when all is open; all of them if that fails. How it fails: an
//! error names the folder.

use crate::rebuild::error::RebuildError;
use holdfast_image::bytes::Name;
use holdfast_image::folders::{FolderRecord, Need, Needs};
use holdfast_image::record::ProcessRecord;
use holdfast_sys::at;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, fchown};
use std::path::{Path, PathBuf};

const FOLDER: u32 = (libc::O_PATH | libc::O_DIRECTORY).cast_unsigned();

/// What was made, outermost first.
#[derive(Debug, Default)]
pub struct MissingFolders {
    made: Vec<Made>,
}

#[derive(Debug)]
struct Made {
    path: PathBuf,
    /// The folder that it is in, and its name there.
    parent: OwnedFd,
    name: CString,
    need: Need,
}

impl MissingFolders {
    /// Makes all that are gone.
    ///
    /// # Errors
    /// Names the folder; what was made is removed again.
    pub fn make(record: &ProcessRecord) -> Result<MissingFolders, RebuildError> {
        let known: BTreeMap<&Path, &FolderRecord> =
            record.files.folders.iter().map(|folder| (folder.path.as_path(), folder)).collect();
        let usual = 0o777 & !record.umask;
        let mut made = MissingFolders::default();
        let mut needed: Vec<(PathBuf, Need)> = Needs::of(record).folders().into_iter().collect();
        // What is to stay is not made for a moment only.
        needed.sort_by_key(|(_, need)| std::cmp::Reverse(*need));
        for (folder, need) in needed {
            if folder.is_dir() {
                continue;
            }
            made.make_with_parents(&folder, need, &|path| known.get(path).copied(), usual).map_err(|error| {
                let what = format!(
                    "the folder is gone and cannot be made anew: {error}; make it, or say where it is now \
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
    fn make_with_parents<'r>(
        &mut self,
        path: &Path,
        need: Need,
        known: &dyn Fn(&Path) -> Option<&'r FolderRecord>,
        usual: u32,
    ) -> io::Result<OwnedFd> {
        let opened = at::open_without_links(&c_string(path)?, FOLDER);
        let Err(error) = opened else { return opened };
        let is_gone = match error.raw_os_error() {
            Some(libc::ENOENT) => true,
            Some(libc::ELOOP) => !path.exists(),
            _ => false,
        };
        let (Some(above), Some(last)) = (path.parent().filter(|_| is_gone), path.file_name()) else {
            return through_links(path, error, known);
        };
        let parent = self.make_with_parents(above, need, known, usual)?;
        let name = c_string(Path::new(last))?;
        at::make_folder(parent.as_fd(), &name, 0o700)?;
        let was = known(path);
        // One that was there at the checkpoint is to be there.
        let need = if was.is_some() { Need::Lasting } else { need };
        let made = File::from(at::open(parent.as_fd(), &name, libc::O_DIRECTORY.cast_unsigned(), 0)?);
        self.made.push(Made { path: path.to_owned(), parent, name, need });
        if let Some(was) = was {
            // Whose it is only root can say; for others it is their own.
            let _ = fchown(&made, Some(was.user), Some(was.group));
        }
        made.set_permissions(Permissions::from_mode(was.map_or(usual, |was| was.mode)))?;
        Ok(made.into())
    }
}

/// The path of a socket is as the program gave it: there may be links in it, if they were there at the checkpoint.
fn through_links<'r>(
    path: &Path,
    error: io::Error,
    known: &dyn Fn(&Path) -> Option<&'r FolderRecord>,
) -> io::Result<OwnedFd> {
    let is_new = |part: &Path| known(part).is_some() && part.is_symlink();
    if error.raw_os_error() != Some(libc::ELOOP) || path.ancestors().any(is_new) {
        return Err(error);
    }
    at::open_without_links(&c_string(&fs::canonicalize(path)?)?, FOLDER)
}

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

impl Drop for MissingFolders {
    fn drop(&mut self) {
        for Made { parent, name, .. } in self.made.iter().rev() {
            // Somebody else may have put something into it meanwhile: then it stays.
            let _ = at::remove(parent.as_fd(), name, true);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{Folder, record};
    use holdfast_image::record::{Description, Object};
    use std::os::unix::fs::MetadataExt;

    /// A record of a program in `cwd` that has a folder open.
    fn of(cwd: &Path, open: &Path) -> ProcessRecord {
        let mut record = record(Vec::new());
        (record.cwd, record.umask) = (Name::from(cwd), 0o027);
        let object = Object::Directory { path: Name::from(open), position: 0, inode: None };
        record.files.descriptions =
            vec![Description { flags: 0, object, locks: Vec::new(), owner: None, streams: 0 }];
        record
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
        let notes = MissingFolders::make(&record).unwrap().keep();
        assert_eq!(notes.len(), 3, "{notes:?}");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!([&base.join("a"), &cwd, &open].map(|path| mode(path)), [0o1777, 0o750, 0o705]);
        assert_eq!(MissingFolders::make(&record).unwrap().keep(), [""; 0], "all are there");
        fs::remove_dir_all(base.join("a")).unwrap();
        drop(MissingFolders::make(&record).unwrap());
        assert!(!base.join("a").exists(), "the restart has failed");
        // A link where there was a folder leads elsewhere; one that has always been there is the program's own.
        std::os::unix::fs::symlink(&base, base.join("a")).unwrap();
        let error = MissingFolders::make(&record).map(drop).unwrap_err().to_string();
        assert!(error.contains("a/b: the folder is gone") && error.contains("--map"), "{error}");
        record.files.folders.remove(0);
        MissingFolders::make(&record).unwrap().keep();
        assert!(base.join("b").is_dir() && base.join("c").is_dir());
    }
}
