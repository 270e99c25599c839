//! Regular files: opened where they are; nothing is changed yet ([`crate::rebuild::agent`] puts lengths and content
//! back when all else has succeeded). One that was renamed since ([`crate::rebuild::renamed`]) is read where it is.

use crate::rebuild::error::RebuildError;
use crate::rebuild::file_role::{Role, may_write, refuse_shrunk};
use crate::rebuild::paths::{Found, Opener, Place, Verdict, c_path, explain};
use crate::rebuild::proc_self::NOT_AGAIN;
use crate::rebuild::renamed;
use holdfast_image::bytes::Name;
use holdfast_image::record::Object;
use holdfast_sys::objects;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
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
    opener: &Opener,
    notes: &mut Vec<String>,
) -> Result<OwnedFd, RebuildError> {
    let Object::Regular { path, position, size, now: other, .. } = object else {
        return Err(RebuildError::Image("not a regular file".into()));
    };
    let is_copied = role == Role::Saved || other.is_some() && role.is_written();
    // Who appends goes on in an empty file: `put_back` says so.
    let appends = role == Role::Appended;
    let may_be_made = *size == 0 && may_write(flags) || is_copied || appends;
    let now = other.as_ref().filter(|_| !is_copied);
    if let Some(now) = now {
        notes.push(format!("{path}: it is called {now} now"));
    }
    let (fd, found) = match now.filter(|now| renamed::is_kept(path, now)) {
        Some(kept) => (open_kept(path, kept, flags)?, None),
        None => open_or_make(object, now.unwrap_or(path), flags, opener, may_be_made)?,
    };
    if flags & libc::O_PATH.cast_unsigned() != 0 {
        return Ok(fd);
    }
    let file = File::from(fd);
    let io = |what: &str| RebuildError::io(format!("{path}: {what}"));
    let now_len = file.metadata().map_err(io("asking for its length"))?.len();
    let is_anew = appends && now_len < *size;
    match &found {
        None if now.is_none() && !is_copied && *size == 0 => {
            notes.push(format!("{path}: it was gone; made anew, empty as it was"));
        }
        Some(found) if found.verdict == Verdict::Replaced && !is_copied && !is_anew => notes.push(format!(
            "{path}: it is another file than at the checkpoint (it was replaced); used all the same"
        )),
        _ => {}
    }
    if is_copied || appends {
        // It has no content yet, or needs none: `put_back`.
    } else if may_write(flags) {
        refuse_shrunk(path, *size, now_len)?;
    } else if now_len < *position {
        notes.push(format!("{path}: it is {now_len} bytes long and was read up to {position}"));
    }
    // Not all of them have one: a namespace has not.
    if *position > 0 {
        objects::seek(file.as_fd(), *position).map_err(io("setting the offset"))?;
    }
    Ok(file.into())
}

/// Opens what is at `path`; `None`: there was nothing, and it was made. Nothing of it is lost: it was empty, or is
/// filled in time.
fn open_or_make(
    object: &Object,
    path: &Name,
    flags: u32,
    opener: &Opener,
    may_be_made: bool,
) -> Result<(OwnedFd, Option<Found>), RebuildError> {
    let was = object.inode();
    let flags = flags & !TMPFILE_BITS;
    if may_be_made && opener.find(path, was.as_ref())?.is_none() {
        // What is filled in time gets its own then (`agent::contents`).
        let more = if object_is_empty(object) { 0 } else { 0o600 };
        let mode = was.map_or(0o600, |was| was.mode & 0o7777) | more;
        let failed = |error: io::Error| {
            RebuildError::file(path, format!("it is gone and cannot be made anew: {}", explain(&error)))
        };
        let made = opener.create(path, was.as_ref(), mode).map_err(failed)?;
        return Ok((opener.open_made(&made, flags).map_err(failed)?, None));
    }
    opener.open(path, was.as_ref(), flags).map(|(fd, found)| (fd, Some(found)))
}

fn object_is_empty(object: &Object) -> bool {
    matches!(object, Object::Regular { size: 0, .. })
}

/// What an earlier restart has kept in the folder of the job, where no other user makes files.
fn open_kept(path: &Name, kept: &Name, flags: u32) -> Result<OwnedFd, RebuildError> {
    let failed =
        |error| RebuildError::file(path, format!("{kept}, as it is called now, cannot be opened: {error}"));
    objects::open(&c_path(kept)?, flags & !(TMPFILE_BITS | NOT_AGAIN), 0).map_err(failed)
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
    let elsewhere = || Place::as_given(&std::env::temp_dir().join("file"));
    let beside = Place::of(&Name::from(path)).and_then(|place| place.make_unlinked());
    beside.or_else(|_| elsewhere()?.make_unlinked())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::Folder;
    use holdfast_image::bytes::Blob;
    use std::fs;
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
            owner: None,
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
