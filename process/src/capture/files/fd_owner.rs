//! Who gets the signals that a file causes (F_SETOWN, F_SETSIG; fcntl(2)): the kernel tells it of a descriptor only.
//!
//! Inside the stop. Asked of what can cause any: O_ASYNC, sockets (SIGURG), leases.

use super::{FileReader, Found, Look, Obstacle};
use holdfast_image::record::{FileLock, LockKind, Owner};
use holdfast_sys::fd;
use std::os::fd::AsFd;

/// include/uapi/asm-generic/fcntl.h: the owner is a process group.
const F_OWNER_PGRP: i32 = 2;

impl FileReader<'_> {
    /// The owner of a description; `None`: it has none, or one that is not of the job.
    pub(super) fn owner(
        &self,
        found: &Found,
        flags: u32,
        locks: &[FileLock],
    ) -> Result<Option<Owner>, Obstacle> {
        let asynchronous = flags & libc::O_ASYNC.cast_unsigned() != 0;
        let may = asynchronous
            || found.target.starts_with(b"socket:")
            || locks.iter().any(|lock| lock.kind == LockKind::Lease);
        if !may || self.look == Look::Running {
            return Ok(None);
        }
        let taken = self.take(found)?;
        // Opened by O_PATH, perhaps.
        let Ok((kind, id, signal)) = fd::owner(taken.as_fd()) else { return Ok(None) };
        Ok(self.inner_id(kind, id).map(|id| Owner { kind, id, signal }))
    }

    /// An id as the processes know it. Threads have the same one everywhere, but where all ids differ.
    fn inner_id(&self, kind: i32, id: i32) -> Option<i32> {
        let nested = self.holders.iter().any(|holder| holder.pid != holder.inner_pid);
        match self.holders.iter().find(|holder| holder.pid == id) {
            Some(holder) => Some(holder.inner_pid),
            None if id > 0 && !nested && kind != F_OWNER_PGRP => Some(id),
            None => None,
        }
    }
}
