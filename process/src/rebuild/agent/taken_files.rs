//! The files that the new processes have open, in the agent: what is put back is done by their own descriptors, so that
//! it is done to what the program will write, whatever has the name by now.
//!
//! Used by [`super::regular`] and [`super::contents`] when all processes are built. How it fails: an error names the
//! file.

use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::paths::{self, Found, Opener, explain};
use crate::rebuild::renamed;
use holdfast_image::bytes::Name;
use holdfast_image::record::{FileContent, Inode, Object};
use holdfast_sys::clone;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// Descriptors of all processes.
pub struct TakenFiles<'a> {
    job: &'a Job<'a>,
    /// The description with this index, from a process that has it.
    take: &'a dyn Fn(usize) -> io::Result<File>,
}

/// The description with an index, from the process that holds it. `pid`: of the process with a place in the job.
///
/// # Errors
/// The process is gone.
pub fn take(job: &Job<'_>, index: usize, pid: impl Fn(usize) -> Option<i32>) -> io::Result<File> {
    let gone = || io::Error::from_raw_os_error(libc::ESRCH);
    let (place, fd) = job.holder(index).ok_or_else(gone)?;
    clone::file_of(pid(place).ok_or_else(gone)?, fd)
}

impl<'a> TakenFiles<'a> {
    /// Of a job. `take`: see [`take`].
    pub fn new(job: &'a Job<'a>, take: &'a dyn Fn(usize) -> io::Result<File>) -> TakenFiles<'a> {
        TakenFiles { job, take }
    }

    /// The description with this index, as its process has it. `path`: for messages.
    ///
    /// # Errors
    /// The process is gone.
    pub fn take(&self, index: usize, path: &Name) -> Result<File, RebuildError> {
        (self.take)(index).map_err(|error| {
            RebuildError::file(path, format!("its descriptor cannot be taken from the new process: {error}"))
        })
    }

    /// Who opens a file that no process has open: the process that has one open of which its path is the beginning
    /// (a database, and its journal), or the first.
    pub fn opener_beside(&self, path: &Name) -> Opener {
        let is_beside = |other: &Name| path.0.starts_with(&other.0);
        let mut all = self.job.descriptions().iter();
        let beside = all
            .position(|one| matches!(&one.object, Object::Regular { path: other, .. } if is_beside(other)));
        let holder = beside.and_then(|index| self.job.holder(index));
        let member = holder.and_then(|(place, _)| self.job.member(place));
        Opener::of(member.map_or(self.job.record, |member| member.own))
    }

    /// A file that was saved and that no process has open, for reading and writing; made anew if it is gone.
    ///
    /// # Errors
    /// It is another user's; as open.
    pub fn at_path(&self, content: &FileContent) -> Result<File, RebuildError> {
        let opener = self.opener_beside(&content.path);
        let FileContent { path, device, inode, mode, owner, .. } = content;
        let was = Inode::regular((*device, *inode), None, *mode, *owner);
        let opened = match opener.find(path, Some(&was))? {
            Some(found) => for_both(&opener, &found),
            None => opener.create(path, Some(&was), *mode),
        };
        opened.map_err(|error| {
            RebuildError::file(
                path,
                format!("it cannot be opened to be put back as it was: {}", explain(&error)),
            )
        })
    }

    /// The file of a description that is called `now`, to be read.
    ///
    /// # Errors
    /// As open.
    pub fn source(&self, index: usize, path: &Name, now: &Name) -> Result<File, RebuildError> {
        if renamed::is_kept(path, now) {
            return File::open(now.as_path())
                .map_err(|error| RebuildError::file(now, format!("it cannot be opened: {error}")));
        }
        let inode = self.job.descriptions().get(index).and_then(|description| description.object.inode());
        Ok(self.opener_of(index).open(now, inode.as_ref(), 0)?.0.into())
    }

    /// Who opens the file of a description: the process that has it.
    pub fn opener_of(&self, index: usize) -> Opener {
        let holder = self.job.holder(index).and_then(|(place, _)| self.job.member(place));
        Opener::of(holder.map_or(self.job.record, |holder| holder.own))
    }
}

/// For reading and writing, whatever its permission bits are.
fn for_both(opener: &Opener, found: &Found) -> io::Result<File> {
    let both = libc::O_RDWR.cast_unsigned();
    let opened = opener.open_found(found, both).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let file = opener.open_found(found, 0)?;
            let _acting = opener.act()?;
            paths::reopen(file.as_fd(), both)
        }
        _ => Err(error),
    });
    opened.map(File::from)
}
