//! Memory that the processes of an image have in common by copy-on-write: unpacked once, into a file in memory without a name that
//! all of them map privately, so that they share it again until they write.
//!
//! The first new process makes the file ([`make`]); all inherit it at a number that both halves of a restart know ([`number`]). The
//! agent fills it ([`Common::take`]) before anything is mapped, and seals it: nobody can change it any more. What is mapped from
//! it is to all that follow as what a lazy restart maps from segments (see `lazy`, `fill`). Only jobs of several processes have one.
//! How it fails: an error; nothing runs then.

use super::error::RebuildError;
use super::hand::Need;
use super::member::Job;
use super::place::Builder;
use super::shared;
use holdfast_image::pages::PageProvider;
use holdfast_sys::{clone, fd, memfd, objects};
use std::ffi::{CString, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Its size and content stay as they are (include/uapi/linux/fcntl.h).
const SEALS: i32 = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
/// How maps(5) shows a file that has no name any more.
const DELETED: &[u8] = b" (deleted)";

/// The number of the file in all new processes: the first after those of [`shared`] and `nameless`.
pub fn number(job: &Job<'_>) -> i32 {
    shared::end(job)
}

/// Whether a job has such a file.
fn has_one(job: &Job<'_>) -> bool {
    !job.record.others.is_empty()
}

/// Makes it, empty, with a number of at least `floor`.
///
/// # Errors
/// EMFILE, ENOMEM.
pub fn make(job: &Job<'_>, floor: i32) -> Result<Option<OwnedFd>, RebuildError> {
    if !has_one(job) {
        return Ok(None);
    }
    let made = || {
        // By the name mappings are known as ours: no program can guess it.
        let mut random = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        let name = CString::new(format!("holdfast-common-{:032x}", u128::from_le_bytes(random)))?;
        let file = File::from(memfd::create(&name, false)?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        objects::duplicate_above(file.as_raw_fd(), floor)
    };
    made().map(Some).map_err(RebuildError::io("making the memory that the processes have in common"))
}

/// Closes it in a process that has mapped what it needs.
///
/// # Errors
/// The process is gone.
pub fn close(builder: &Builder<'_>, job: &Job<'_>) -> Result<(), RebuildError> {
    if !has_one(job) {
        return Ok(());
    }
    let fd = u64::from(number(job).cast_unsigned());
    let mut batch = builder.batch();
    batch.call(libc::SYS_close, &[fd], Need::Must("close descriptor", fd))?;
    batch.finish().map(|_| ())
}

/// The file, in the agent, which keeps it open as long as anything may be mapped from it: unchanged pages are read there.
#[derive(Debug)]
pub struct Common {
    file: File,
    /// Path of its mappings, without what says that it is deleted.
    name: PathBuf,
}

impl Common {
    /// From the first new process, filled. `None`: no pages are in common.
    ///
    /// # Errors
    /// The process is gone; the image cannot be read; there is no memory.
    pub fn take(job: &Job<'_>, pid: i32, pages: &dyn PageProvider) -> Result<Option<Common>, RebuildError> {
        if !has_one(job) || pages.common().is_none() {
            return Ok(None);
        }
        let io = || {
            RebuildError::io(
                "filling the memory that the processes have in common (restart --eager does without)",
            )
        };
        let taken = || clone::pidfd_getfd(&clone::pidfd_open(pid)?, number(job)).map(File::from);
        let file = taken().map_err(io())?;
        pages.fill_common(&file).map_err(io())?;
        fd::fcntl(file.as_fd(), memfd::F_ADD_SEALS, i64::from(SEALS)).map_err(io())?;
        let name = name(&file).map_err(io())?;
        Ok(Some(Common { file, name }))
    }

    /// The path of its mappings as maps(5) shows it.
    pub fn shown(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec([self.name.as_os_str().as_bytes(), DELETED].concat()))
    }

    /// Whether it is the file of a mapping with this path.
    pub fn is_at(&self, path: &Path) -> bool {
        without_deleted(path.as_os_str().as_bytes()) == self.name.as_os_str().as_bytes()
    }

    /// By what path this process can open it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

fn without_deleted(path: &[u8]) -> &[u8] {
    path.strip_suffix(DELETED).unwrap_or(path)
}

fn name(file: &File) -> io::Result<PathBuf> {
    let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(PathBuf::from(OsString::from_vec(without_deleted(link.as_os_str().as_bytes()).to_vec())))
}
