//! POSIX message queues: those that are still there, or new ones. What waited in them is put back by the agent
//! ([`crate::rebuild::agent::queues`]), when nothing else can fail any more.
//!
//! Runs in the new process, before any description is opened. How it fails: an error names the queue; one that is
//! another user's by now, or of other sizes, is left alone.

use crate::rebuild::error::RebuildError;
use crate::rebuild::paths::{Opener, change_mode, change_owner, new_name};
use holdfast_image::record::PosixQueue;
use holdfast_sys::mqueue::{self, Attributes};
use holdfast_sys::{at, objects};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Descriptors of all, in the order of the table.
#[derive(Debug, Default)]
pub struct Queues(Vec<OwnedFd>);

impl Queues {
    /// Finds or makes all, as descriptors of at least `floor`. `openers`: of who has each.
    ///
    /// # Errors
    /// Names the queue.
    pub fn make(wanted: &[PosixQueue], openers: &[&Opener], floor: i32) -> Result<Queues, RebuildError> {
        let made = wanted.iter().zip(openers).map(|(queue, opener)| {
            let failed = |error: io::Error| {
                RebuildError::Refused(format!(
                    "message queue {}: it cannot be made anew: {error}",
                    queue.name
                ))
            };
            let _acting = opener.acting()?;
            let made = if queue.deleted { make_deleted(queue) } else { find(queue)? };
            let made = made.map_err(failed)?;
            objects::duplicate_above(made.as_raw_fd(), floor).map_err(failed)
        });
        made.collect::<Result<_, _>>().map(Queues)
    }

    /// A description of its own of one of them.
    ///
    /// # Errors
    /// As open.
    pub fn open(&self, queue: u32, flags: u32) -> io::Result<OwnedFd> {
        let settable = (libc::O_ACCMODE | libc::O_NONBLOCK).cast_unsigned();
        let master = self.0.get(queue as usize).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        at::reopen(master.as_fd(), flags & settable)
    }
}

fn attributes(queue: &PosixQueue) -> Attributes {
    let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    Attributes { room: number(queue.room), size: number(queue.size), count: 0 }
}

fn make(name: &CString, queue: &PosixQueue) -> io::Result<OwnedFd> {
    let made = mqueue::create(name, attributes(queue))?;
    let file = File::from(made.try_clone()?);
    let now = file.metadata()?;
    if (now.uid(), now.gid()) != (queue.owner.user, queue.owner.group) {
        // Only root may.
        let _ = change_owner(made.as_fd(), queue.owner);
    }
    change_mode(made.as_fd(), queue.mode)?;
    Ok(made)
}

fn make_deleted(queue: &PosixQueue) -> io::Result<OwnedFd> {
    let name = CString::new(new_name())?;
    let made = make(&name, queue)?;
    mqueue::remove(&name)?;
    Ok(made)
}

/// The one with its name: the same, or one of the same user that is like it.
fn find(queue: &PosixQueue) -> Result<io::Result<OwnedFd>, RebuildError> {
    let name = CString::new(queue.name.0.strip_prefix(b"/").unwrap_or(&queue.name.0)).unwrap_or_default();
    let ways = [libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY];
    let opened = ways
        .into_iter()
        .map(|way| mqueue::open(&name, way))
        .find(|opened| !opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied));
    let there = match opened {
        Some(Ok(there)) => there,
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(make(&name, queue)),
        Some(Err(error)) => return Ok(Err(error)),
        None => return Ok(Err(io::ErrorKind::PermissionDenied.into())),
    };
    let is_like_it = || {
        let now = File::from(there.try_clone()?).metadata()?;
        let sizes = mqueue::attributes(there.as_fd())?;
        let is_it = (now.dev(), now.ino()) == (queue.device, queue.inode);
        Ok::<bool, io::Error>(
            is_it || now.uid() == queue.owner.user && Attributes { count: 0, ..sizes } == attributes(queue),
        )
    };
    match is_like_it() {
        Ok(true) => Ok(Ok(there)),
        Ok(false) => Err(RebuildError::Refused(format!(
            "message queue {}: another one has its name now; remove that (mq_unlink), or end the program that uses it",
            queue.name
        ))),
        Err(error) => Ok(Err(error)),
    }
}
