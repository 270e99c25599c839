//! A folder that is open and was checked: what is done in it is done by its descriptor.
//!
//! Called by the tier and by what writes a file. A path would be looked up anew at every call, and where others may
//! write to a folder above, it could be another one the next time.
//! Invariant: an [`Opened`] below the root of a tier is a folder of this user that no other may write to, found without
//! following a link. The root itself may be anybody's.

use crate::lock::euid;
use crate::tier::{TierError, posix};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// An open folder.
pub(super) struct Opened {
    folder: File,
    path: PathBuf,
}

/// What a look at a name has shown.
pub(super) struct Meta(FileStat);

impl Meta {
    pub(super) fn is_ours(&self) -> bool {
        self.0.st_uid == euid()
    }

    pub(super) fn is_folder(&self) -> bool {
        self.kind() == SFlag::S_IFDIR
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind() == SFlag::S_IFREG
    }

    fn kind(&self) -> SFlag {
        SFlag::from_bits_truncate(self.0.st_mode & SFlag::S_IFMT.bits())
    }

    pub(super) fn len(&self) -> u64 {
        u64::try_from(self.0.st_size).unwrap_or(0)
    }

    /// How many names the file has.
    pub(super) fn names(&self) -> u64 {
        self.0.st_nlink
    }

    pub(super) fn modified(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(self.0.st_mtime).ok()?))
    }

    /// Which file it is: device and inode.
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.0.st_dev, self.0.st_ino)
    }

    pub(super) fn of(file: &File) -> Result<Meta, Errno> {
        fstat(file).map(Meta)
    }

    /// Refuses what another user owns or may write to.
    fn check(&self, object: &str) -> Result<(), TierError> {
        let refused = |why: String| Err(TierError::Denied { object: object.to_owned(), why });
        let owner = self.0.st_uid;
        if euid() == 0 && owner >= 65534 {
            return refused(format!(
                "it belongs to uid {owner}: this server does not trust root (root_squash)"
            ));
        }
        posix::not_own(owner, self.0.st_mode).map_or(Ok(()), refused)
    }
}

impl Opened {
    /// The folder `folder` of the tier in `root`, if it is there.
    pub(super) fn walk(root: &Path, folder: &str) -> Result<Option<Opened>, TierError> {
        let Some(mut opened) = open_folder(AT_FDCWD, root, root, OFlag::empty())? else { return Ok(None) };
        for part in parts(folder) {
            let Some(next) = opened.enter(part)? else { return Ok(None) };
            opened = next;
        }
        Ok(Some(opened))
    }

    /// The same; it is made, if need be. None: another has removed it as soon as it was made.
    pub(super) fn make(root: &Path, folder: &str) -> Result<Option<Opened>, TierError> {
        let mut found = open_folder(AT_FDCWD, root, root, OFlag::empty())?;
        if found.is_none() {
            make_folder(AT_FDCWD, root, root)?;
            let above = root.parent().unwrap_or(root);
            // Where the folder above may not be read, its names cannot be made durable: no reason to refuse.
            if let Ok(Some(above)) = open_folder(AT_FDCWD, above, above, OFlag::empty()) {
                above.sync()?;
            }
            found = open_folder(AT_FDCWD, root, root, OFlag::empty())?;
        }
        for part in parts(folder) {
            let Some(opened) = found else { return Ok(None) };
            found = opened.enter(part)?;
            if found.is_none() {
                match make_folder(opened.fd(), Path::new(part), &opened.path.join(part)) {
                    Err(TierError::NotFound { .. }) => return Ok(None),
                    made => made?,
                }
                opened.sync()?;
                found = opened.enter(part)?;
            }
        }
        Ok(found)
    }

    fn enter(&self, part: &str) -> Result<Option<Opened>, TierError> {
        let path = self.path.join(part);
        let next = open_folder(self.folder.as_fd(), Path::new(part), &path, OFlag::O_NOFOLLOW)?;
        if let Some(next) = &next {
            Meta::of(&next.folder).map_err(|e| next.failed("look at", ".")(e))?.check(&next.object("."))?;
        }
        Ok(next)
    }

    /// A name in it, for messages.
    pub(super) fn object(&self, name: &str) -> String {
        if name == "." { self.path.display().to_string() } else { self.path.join(name).display().to_string() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// For `map_err` after a call on a name in it.
    pub(super) fn failed(&self, call: &'static str, name: &str) -> impl FnOnce(Errno) -> TierError {
        let object = self.object(name);
        move |errno| TierError::io(call, object)(errno.into())
    }

    /// All names in it, sorted; those that are not UTF-8 are not ours. They are read by the path, which may lead
    /// elsewhere by now: what is there under a name is always looked at by the descriptor.
    pub(super) fn names(&self) -> Result<Vec<String>, TierError> {
        let failed = |error: io::Error| TierError::io("list", self.object("."))(error);
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// A look at a name, if it is there; a link is not followed.
    pub(super) fn look(&self, name: &str) -> Result<Option<Meta>, TierError> {
        match fstatat(self.fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Meta(stat))),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(self.failed("look at", name)(errno)),
        }
    }

    pub(super) fn has(&self, name: &str) -> Result<bool, TierError> {
        Ok(self.look(name)?.is_some())
    }

    /// A file of ours for reading, with its length.
    pub(super) fn open_file(&self, name: &str) -> Result<(File, u64), TierError> {
        // O_NONBLOCK: a FIFO that another has put there must not hold us.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let object = self.object(name);
        let file = match openat(self.fd(), name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::ELOOP) => return Err(TierError::Denied { object, why: "it is a link".to_owned() }),
            Err(errno) => return Err(self.failed("open", name)(errno)),
        };
        let meta = Meta::of(&file).map_err(self.failed("look at", name))?;
        if !meta.is_file() {
            return Err(TierError::Denied { object, why: "it is not a regular file".to_owned() });
        }
        meta.check(&object)?;
        Ok((file, meta.len()))
    }

    /// Removes a file of this user; one that is gone is no error.
    pub(super) fn remove_own(&self, name: &str) -> Result<(), TierError> {
        let Some(meta) = self.look(name)? else { return Ok(()) };
        meta.check(&self.object(name))?;
        match unlinkat(self.fd(), name, UnlinkatFlags::NoRemoveDir) {
            Err(errno) if errno != Errno::ENOENT => Err(self.failed("remove", name)(errno)),
            _ => Ok(()),
        }
    }

    /// Removes a folder in it, if that is empty. Whether it was.
    pub(super) fn remove_folder(&self, name: &str) -> bool {
        unlinkat(self.fd(), name, UnlinkatFlags::RemoveDir).is_ok()
    }

    /// Makes its names durable.
    pub(super) fn sync(&self) -> Result<(), TierError> {
        self.folder.sync_all().map_err(TierError::io("sync", self.object(".")))
    }
}

fn parts(folder: &str) -> impl Iterator<Item = &str> {
    folder.split('/').filter(|part| !part.is_empty())
}

fn open_folder(
    at: BorrowedFd<'_>,
    name: &Path,
    path: &Path,
    more: OFlag,
) -> Result<Option<Opened>, TierError> {
    let object = || path.display().to_string();
    match openat(at, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | more, Mode::empty()) {
        Ok(folder) => Ok(Some(Opened { folder: folder.into(), path: path.to_owned() })),
        Err(Errno::ENOENT) => Ok(None),
        // ELOOP, or ENOTDIR first: open(2), O_NOFOLLOW with O_DIRECTORY.
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            Err(TierError::Denied { object: object(), why: "it is not a folder".to_owned() })
        }
        Err(errno) => Err(TierError::io("open", object())(errno.into())),
    }
}

/// Makes a folder of mode 0700; one that is there is no error.
fn make_folder(at: BorrowedFd<'_>, name: &Path, path: &Path) -> Result<(), TierError> {
    let failed = |call, errno: Errno| TierError::io(call, path.display().to_string())(errno.into());
    match mkdirat(at, name, Mode::S_IRWXU) {
        Ok(()) => fchmodat(at, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)
            .map_err(|errno| failed("change the mode of", errno)),
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(failed("create", errno)),
    }
}
