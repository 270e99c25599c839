//! Names in folders that are open, and whose the way to a name is.
//!
//! Called by [`super`] and by what makes or removes names. What must hold: a name is made and removed in a folder that
//! is held open, so that no user leads it elsewhere meanwhile. How it fails: as the call.

use holdfast_image::bytes::Name;
use holdfast_image::record::Ownership;
use holdfast_sys::{at, attributes, clock, objects};
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

pub(super) const O_PATH: u32 = libc::O_PATH.cast_unsigned();
/// S_ISVTX (inode(7)).
const STICKY: u32 = 0o1000;

/// Whether only root can lead the way to a name elsewhere, as it is written and as its links lead: all that is
/// there of it is root's, and others may write at most to folders where no user can take away what is another's
/// (sticky, as /tmp is). A part that is not there can be made by root alone, or by who finds that it is there already.
pub fn is_of_root(path: &Path) -> bool {
    let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) else { return false };
    // Where a link leads is asked only when it is root's: the file system of another user may not answer.
    are_roots(folder) && fs::canonicalize(there(folder)).is_ok_and(|real| are_roots(&real))
}

/// What of it is there.
fn there(path: &Path) -> &Path {
    path.ancestors().find(|part| part.symlink_metadata().is_ok()).unwrap_or(Path::new("/"))
}

fn are_roots(folder: &Path) -> bool {
    let mut parts: Vec<&Path> = folder.ancestors().collect();
    parts.reverse();
    for part in parts {
        let found = match fs::symlink_metadata(part) {
            Ok(found) => found,
            Err(error) => return error.kind() == io::ErrorKind::NotFound,
        };
        let is_kept = found.mode() & 0o022 == 0 || found.mode() & STICKY != 0;
        if found.uid() != 0 || !found.file_type().is_symlink() && !is_kept {
            return false;
        }
    }
    true
}

/// A name in a folder that is open: whatever becomes of the path, it is that folder.
#[derive(Debug)]
pub struct Place {
    folder: OwnedFd,
    /// The last part of the path.
    pub name: CString,
}

impl Place {
    /// Of a path from /proc.
    ///
    /// # Errors
    /// ELOOP: see [`explain`]; as open.
    pub fn of(path: &Name) -> io::Result<Place> {
        let (folder, name) = parts(path.as_path())?;
        Ok(Place {
            folder: at::open_without_links(&folder, O_PATH | libc::O_DIRECTORY.cast_unsigned())?,
            name,
        })
    }

    /// Of a path that the program has given, which may be relative and have links in it.
    ///
    /// # Errors
    /// As open.
    pub fn as_given(path: &Path) -> io::Result<Place> {
        let (folder, name) = parts(path)?;
        Ok(Place { folder: objects::open(&folder, O_PATH | libc::O_DIRECTORY.cast_unsigned(), 0)?, name })
    }

    /// In a folder that is open.
    ///
    /// # Errors
    /// EINVAL: it is no name of one part; EMFILE.
    pub fn within(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Place> {
        if name.is_empty() || name.as_bytes().contains(&b'/') {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Place { folder: folder.try_clone_to_owned()?, name: CString::new(name.as_bytes())? })
    }

    /// Another name in the same folder.
    pub fn named(self, name: CString) -> Place {
        Place { name, ..self }
    }

    /// The folder.
    pub fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// What has the name, opened, or made with this mode where the flags say so.
    ///
    /// # Errors
    /// As openat; ELOOP: it is a symbolic link.
    pub fn open(&self, flags: u32, mode: u32) -> io::Result<File> {
        at::open(self.folder(), &self.name, flags, mode).map(File::from)
    }

    /// What has the name, opened with O_PATH and not followed.
    ///
    /// # Errors
    /// ENOENT.
    pub fn look(&self) -> io::Result<File> {
        self.open(O_PATH, 0)
    }

    /// Removes the name, of what is no folder.
    ///
    /// # Errors
    /// As unlinkat.
    pub fn remove(&self) -> io::Result<()> {
        at::remove(self.folder(), &self.name, false)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// As unlinkat; ENOTEMPTY.
    pub fn remove_folder(&self) -> io::Result<()> {
        at::remove(self.folder(), &self.name, true)
    }

    /// Makes a folder, which no other user may enter yet; it is open then.
    ///
    /// # Errors
    /// As mkdirat; EEXIST.
    pub fn make_folder(&self) -> io::Result<File> {
        at::make_folder(self.folder(), &self.name, 0o700)?;
        self.open(libc::O_DIRECTORY.cast_unsigned(), 0)
    }

    /// Makes a named pipe, with exactly these permission bits.
    ///
    /// # Errors
    /// As mknodat; EEXIST.
    pub fn make_fifo(&self, mode: u32) -> io::Result<()> {
        let mask = attributes::umask(0);
        let made = at::make_fifo(self.folder(), &self.name, mode);
        attributes::umask(mask);
        made
    }

    /// Gives what has the name another one in the same folder.
    ///
    /// # Errors
    /// As renameat.
    pub fn rename(&self, to: &CStr) -> io::Result<()> {
        at::rename(self.folder(), &self.name, to)
    }

    /// Makes a file without a name in the same folder.
    ///
    /// # Errors
    /// As openat.
    pub fn make_unlinked(&self) -> io::Result<File> {
        let flags = (libc::O_TMPFILE | libc::O_RDWR).cast_unsigned();
        let made = at::open(self.folder(), c".", flags, 0o600).or_else(|_| {
            // Not every file system has O_TMPFILE.
            let place = Place::within(self.folder(), OsStr::new(&new_name()))?;
            let file = place.open((libc::O_RDWR | libc::O_CREAT | libc::O_EXCL).cast_unsigned(), 0o600)?;
            place.remove().map(|()| OwnedFd::from(file))
        });
        made.map(File::from)
    }
}

/// A name for what is there for a moment only.
pub fn new_name() -> String {
    format!(".holdfast-{}-{}", std::process::id(), clock::monotonic_ns())
}

/// Opens a folder by O_PATH, no part of whose path is a symbolic link.
///
/// # Errors
/// As open; ELOOP.
pub fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    at::open_without_links(&path, O_PATH | libc::O_DIRECTORY.cast_unsigned())
}

fn parts(path: &Path) -> io::Result<(CString, CString)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let name = path.file_name().ok_or_else(invalid)?;
    let folder = path.parent().map_or(OsStr::new(""), Path::as_os_str);
    let folder = if folder.is_empty() { OsStr::new(".") } else { folder };
    Ok((CString::new(folder.as_bytes())?, CString::new(name.as_bytes())?))
}

/// Makes a folder that is open the working folder.
///
/// # Errors
/// As fchdir.
pub fn enter(folder: BorrowedFd<'_>) -> io::Result<()> {
    std::env::set_current_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// What a descriptor of a program leads to, opened once more: also where the permission bits forbid that to the owner,
/// as they may to a program that has made the file so (open(2) with O_CREAT does not look at them). They are changed
/// for a moment.
///
/// # Errors
/// As open.
pub fn reopen(file: BorrowedFd<'_>, flags: u32) -> io::Result<OwnedFd> {
    let as_owner = || {
        let file = File::from(file.try_clone_to_owned()?);
        let mode = file.metadata()?.permissions().mode() & 0o7777;
        file.set_permissions(Permissions::from_mode(mode | 0o600))?;
        let opened = at::reopen(file.as_fd(), flags);
        file.set_permissions(Permissions::from_mode(mode)).and(opened)
    };
    at::reopen(file, flags).or_else(|error| match error.raw_os_error() {
        Some(libc::EACCES) => as_owner().map_err(|_| error),
        _ => Err(error),
    })
}

/// Sets permission bits of what a descriptor with O_PATH leads to.
///
/// # Errors
/// As chmod.
pub fn change_mode(file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    // fchmod(2) does not take such a descriptor before Linux 6.6; the link of /proc leads to the same file.
    fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(mode))
}

/// Gives what a descriptor with O_PATH leads to to a user and group.
///
/// # Errors
/// As chown.
pub fn change_owner(file: BorrowedFd<'_>, owner: Ownership) -> io::Result<()> {
    chown(format!("/proc/self/fd/{}", file.as_raw_fd()), Some(owner.user), Some(owner.group))
}
