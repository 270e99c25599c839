//! Who gets the signals that a file causes (F_SETOWN, F_SETSIG; fcntl(2)): the kernel tells it of a descriptor only.
//!
//! Inside the stop. Asked of what can cause any: O_ASYNC, sockets (SIGURG), leases.

use super::{FileReader, Found, Look, Obstacle};
use holdfast_image::record::{FileLock, LockKind, Owner};
use holdfast_sys::fd;
use std::os::fd::AsFd;

impl FileReader<'_> {
    /// The owner of a description; `None`: it has none, or one whose id in the job is not known.
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
        let set_by = fd::owner_set_by(taken.as_fd()).ok();
        Ok(self.inner_id(id).map(|id| Owner { kind, id, signal, set_by }))
    }

    /// An id as the processes know it. Threads and groups have the same one everywhere, but where all ids differ.
    fn inner_id(&self, id: i32) -> Option<i32> {
        let nested = self.holders.iter().any(|holder| holder.pid != holder.inner_pid);
        match self.holders.iter().find(|holder| holder.pid == id) {
            Some(holder) => Some(holder.inner_pid),
            None if id > 0 && !nested => Some(id),
            None => None,
        }
    }
}
