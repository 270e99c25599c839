//! Regular files: opened where they are; nothing is changed yet ([`crate::rebuild::agent`] puts lengths and content
//! back when all else has succeeded). One that was renamed since ([`crate::rebuild::renamed`]) is read where it is.

use super::open::{c_path, open_path};
use crate::rebuild::error::RebuildError;
use crate::rebuild::file_role::{Role, may_write, refuse_shrunk};
use holdfast_image::record::Object;
use holdfast_sys::{clock, objects};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// O_TMPFILE contains O_DIRECTORY; neither is for a file that exists.
const TMPFILE_BITS: u32 = libc::O_TMPFILE.cast_unsigned();

/// Opens a file that has a name; sets its offset.
///
/// # Errors
/// Names the file and what to do.
pub fn open(
    object: &Object,
    flags: u32,
    role: Role,
    notes: &mut Vec<String>,
) -> Result<OwnedFd, RebuildError> {
    let Object::Regular { path, position, size, device, inode, mode, now: other, .. } = object else {
        return Err(RebuildError::Image("not a regular file".into()));
    };
    let is_copied = role == Role::Saved || other.is_some() && role == Role::Written;
    if ((*size == 0 && may_write(flags)) || is_copied) && !path.as_path().exists() {
        // Nothing of it is lost: it was empty, or is filled in time.
        let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY).cast_unsigned();
        match objects::open(&c_path(path)?, flags, 0o600).and_then(|made| {
            // Whatever the mask of the moment.
            File::from(made).set_permissions(PermissionsExt::from_mode(*mode))
        }) {
            // Another one of the new processes was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.map_err(|error| {
                RebuildError::file(path, format!("it is gone and cannot be made anew: {error}"))
            })?,
        }
        if !is_copied {
            notes.push(format!("{path}: it was gone; made anew, empty as it was"));
        }
    }
    let now = other.as_ref().filter(|_| !is_copied);
    if let Some(now) = now {
        notes.push(format!("{path}: it is called {now} now"));
    }
    let fd = open_path(now.unwrap_or(path), flags & !TMPFILE_BITS)?;
    if flags & libc::O_PATH.cast_unsigned() != 0 {
        return Ok(fd);
    }
    let file = File::from(fd);
    let io = |what: &str| RebuildError::io(format!("{path}: {what}"));
    let now = file.metadata().map_err(io("asking for its length"))?;
    if !now.is_file() {
        return Err(RebuildError::file(path, "it was a regular file and is none now; put it back"));
    }
    if !is_copied && (now.dev(), now.ino()) != (*device, *inode) {
        notes.push(format!(
            "{path}: it is another file than at the checkpoint (it was replaced); used all the same"
        ));
    }
    if is_copied {
        // It has no content yet: `put_back`.
    } else if may_write(flags) {
        refuse_shrunk(path, *size, now.len())?;
    } else if now.len() < *position {
        notes.push(format!("{path}: it is {} bytes long and was read up to {position}", now.len()));
    }
    // Not all of them have one: a namespace has not.
    if *position > 0 {
        objects::seek(file.as_fd(), *position).map_err(io("setting the offset"))?;
    }
    Ok(file.into())
}

/// Files without a name, each made once however often it was open; from images made before they had a table of
/// their own ([`super::unlinked`]).
#[derive(Debug, Default)]
pub struct OldUnlinkedFiles(HashMap<(u64, u64), File>);

impl OldUnlinkedFiles {
    /// Opens one, made of its content.
    ///
    /// # Errors
    /// No folder takes it.
    pub fn open(&mut self, object: &Object, flags: u32, content: &[u8]) -> Result<OwnedFd, RebuildError> {
        let Object::Regular { path, position, device, inode, mode, .. } = object else {
            return Err(RebuildError::Image("not a regular file".into()));
        };
        let io =
            |error| RebuildError::file(path, format!("a file without a name cannot be made anew: {error}"));
        let key = (*device, *inode);
        let file = match self.0.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let mut file = make_unlinked(path.as_path()).map_err(io)?;
                file.write_all(content).map_err(io)?;
                file.set_permissions(PermissionsExt::from_mode(*mode)).map_err(io)?;
                entry.insert(file)
            }
        };
        let number = file.as_raw_fd();
        let again = CString::new(format!("/proc/self/fd/{number}")).unwrap_or_default();
        // O_NOFOLLOW is about the way there, which is a link here.
        let made = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW).cast_unsigned();
        let fd = objects::open(&again, flags & !(TMPFILE_BITS | made), 0).map_err(io)?;
        objects::seek(fd.as_fd(), *position).map_err(io)?;
        Ok(fd)
    }
}

/// A new file without a name in the folder of `path`, or where such files go.
///
/// # Errors
/// As open.
pub fn make_unlinked(path: &Path) -> io::Result<File> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let in_folder = |folder: &Path| -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).mode(0o600);
        options.clone().custom_flags(libc::O_TMPFILE).open(folder).or_else(|_| {
            // Not every file system has O_TMPFILE.
            let name = folder.join(format!(".holdfast-{}-{}", std::process::id(), clock::monotonic_ns()));
            let file = options.create_new(true).open(&name)?;
            fs::remove_file(&name).map(|()| file)
        })
    };
    in_folder(folder).or_else(|_| in_folder(&std::env::temp_dir()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::Folder;
    use holdfast_image::bytes::{Blob, Name};
    use std::io::Read;

    #[test]
    fn a_nameless_file_is_one_file_however_often_it_is_open() {
        let folder = Folder::new("nameless");
        let gone = Object::Regular {
            path: Name::from(folder.0.join("gone").as_path()),
            position: 4,
            size: 8,
            device: 1,
            inode: 2,
            mtime_ns: 0,
            born_ns: None,
            now: None,
            mode: 0o600,
            deleted_content: Some(Blob(b"contents".to_vec())),
        };
        let mut nameless = OldUnlinkedFiles::default();
        let mut writer = File::from(nameless.open(&gone, libc::O_RDWR.cast_unsigned(), b"contents").unwrap());
        let mut reader = File::from(nameless.open(&gone, 0, b"contents").unwrap());
        writer.write_all(b"INUE").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "INUE");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }
}
