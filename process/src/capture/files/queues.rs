//! POSIX message queues that a process has open (mq_overview(7)).
//!
//! Called by [`super::FileReader`], inside the stop or for a look at a running program. What waits in one is taken
//! out inside the stop and sent again ([`mqueue::look`]); programs outside the job that use it may see that. How it
//! fails: a queue that is full, or of which a process is to be told (mq_notify(3): the kernel does not say what), is an
//! obstacle.

use super::{FileReader, Found, Look, Obstacle};
use crate::capture::identity::{DELETED, owner_of};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::record::{Object, PosixQueue, QueuedMessage};
use holdfast_sys::{at, mqueue, procfs};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

const FULL: &str = "a POSIX message queue that is full; try again";
const TOLD: &str = "a POSIX message queue of which a process wants to be told (mq_notify): not supported; do without, \
                    or try again when it was";
const ELSEWHERE: &str = "a POSIX message queue of an ipc namespace of its own, which is not supported: start \
                         `holdfast run` inside";

impl FileReader<'_> {
    /// What a queue is.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub(super) fn queue(&self, found: &Found, metadata: &fs::Metadata) -> Result<Object, Obstacle> {
        let namespace = |who: &str| procfs::link(&format!("/proc/{who}/ns/ipc")).ok();
        if namespace(&self.holder_of(found).tid.to_string()) != namespace("self") {
            return Err(ELSEWHERE.into());
        }
        let (device, inode) = (metadata.dev(), metadata.ino());
        let known = |one: &PosixQueue| (one.device, one.inode) == (device, inode);
        let place = self.queues.borrow().iter().position(known);
        let place = match place {
            Some(place) => place,
            None => {
                let queue = self.describe_queue(found, metadata)?;
                self.queues.borrow_mut().push(queue);
                self.queues.borrow().len() - 1
            }
        };
        Ok(Object::MessageQueue { queue: u32::try_from(place).map_err(|_| "too many message queues")? })
    }

    fn describe_queue(&self, found: &Found, metadata: &fs::Metadata) -> Result<PosixQueue, Obstacle> {
        let failed =
            |error: io::Error| Obstacle::of("a POSIX message queue that cannot be looked into: ", &error);
        let taken = self.take(found)?;
        let attributes = mqueue::attributes(taken.as_fd()).map_err(failed)?;
        let name = found.target.strip_suffix(DELETED);
        let deleted = metadata.nlink() == 0;
        if is_to_tell(&taken).map_err(failed)? {
            return Err(Obstacle::Passing(TOLD.into()));
        }
        let messages = match attributes.count {
            0 => Vec::new(),
            _ if self.look == Look::Running => Vec::new(),
            _ => messages(&taken).map_err(failed)?.ok_or(Obstacle::Passing(FULL.into()))?,
        };
        Ok(PosixQueue {
            name: Name(name.filter(|_| deleted).unwrap_or(&found.target).to_vec()),
            deleted,
            device: metadata.dev(),
            inode: metadata.ino(),
            mode: metadata.mode() & 0o7777,
            owner: owner_of(metadata),
            room: attributes.room as u64,
            size: attributes.size as u64,
            messages: messages
                .into_iter()
                .map(|(priority, data)| QueuedMessage { priority, data: Blob(data) })
                .collect(),
        })
    }
}

/// Another description of it, whatever the program's may do: for reading and writing, without waiting.
fn messages(taken: &OwnedFd) -> io::Result<Option<Vec<mqueue::Message>>> {
    let both = at::reopen(taken.as_fd(), (libc::O_RDWR | libc::O_NONBLOCK).cast_unsigned())?;
    mqueue::look(both.as_fd())
}

/// Whether a process is told when a message comes (ipc/mqueue.c, mqueue_read_file). Of one that its user may not read
/// that is not known.
fn is_to_tell(taken: &OwnedFd) -> io::Result<bool> {
    let reader = at::reopen(taken.as_fd(), libc::O_RDONLY.cast_unsigned())?;
    let mut text = String::new();
    fs::File::from(reader).read_to_string(&mut text)?;
    let pid = text.split_whitespace().find_map(|word| word.strip_prefix("NOTIFY_PID:"));
    Ok(pid.is_none_or(|pid| pid != "0"))
}
