//! System V shared memory (sysvipc(7)).
//!
//! # Safety
//! Calls take numbers and a local structure of the right type. An attached segment is only written, within its length,
//! by [`Attached`], which detaches it at its end and never lends it out as a slice: other processes may write to it.
#![allow(unsafe_code)]

use crate::{check, procfs, proctext};
use std::io;

/// Bit of a segment's mode: it was removed (include/linux/shm.h, SHM_DEST).
const REMOVED: u32 = 0o1000;

/// A segment as the kernel describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentFacts {
    /// Key; 0: IPC_PRIVATE, or it was removed.
    pub key: i32,
    /// Length.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// It was removed, and goes when it is detached last.
    pub removed: bool,
    /// How many mappings there are of it, in all processes.
    pub attached: u64,
    /// Owner: user and group.
    pub owner: (u32, u32),
    /// The user that has made it, who may do what the owner may.
    pub creator: u32,
}

fn status(id: i32) -> io::Result<libc::shmid_ds> {
    // SAFETY: all-zero bytes are a valid shmid_ds.
    let mut facts: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one shmid_ds.
    check(i64::from(unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut facts) }))?;
    Ok(facts)
}

/// What the kernel knows of a segment.
///
/// # Errors
/// EINVAL, EIDRM: there is none with this id; EACCES.
pub fn segment(id: i32) -> io::Result<SegmentFacts> {
    let facts = status(id)?;
    let mode = u32::from(facts.shm_perm.mode);
    Ok(SegmentFacts {
        key: facts.shm_perm.__key,
        size: facts.shm_segsz as u64,
        mode: mode & 0o777,
        removed: mode & REMOVED != 0,
        attached: facts.shm_nattch,
        owner: (facts.shm_perm.uid, facts.shm_perm.gid),
        creator: facts.shm_perm.cuid,
    })
}

/// Makes a segment; returns its id. Key 0: one that has none.
///
/// # Errors
/// EEXIST: the key is taken; ENOSPC, ENOMEM, EINVAL: the system allows no more, or none so large.
pub fn create(key: i32, size: u64, mode: u32) -> io::Result<i32> {
    let size = usize::try_from(size).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let flags = libc::IPC_CREAT | libc::IPC_EXCL | (mode & 0o777).cast_signed();
    // SAFETY: numbers only.
    let id = check(i64::from(unsafe { libc::shmget(key, size, flags) }))?;
    Ok(i32::try_from(id).unwrap_or(-1))
}

/// The id of the segment with this key.
///
/// # Errors
/// ENOENT: there is none.
pub fn find(key: i32) -> io::Result<i32> {
    // SAFETY: numbers only.
    let id = check(i64::from(unsafe { libc::shmget(key, 0, 0) }))?;
    Ok(i32::try_from(id).unwrap_or(-1))
}

/// Sets the permission bits of a segment.
///
/// # Errors
/// EPERM: it is another user's.
pub fn set_mode(id: i32, mode: u32) -> io::Result<()> {
    change(id, |facts| facts.mode = u16::try_from(mode & 0o777).unwrap_or(0))
}

/// Gives a segment to a user and a group.
///
/// # Errors
/// EPERM: it is another user's.
pub fn set_owner(id: i32, (user, group): (u32, u32)) -> io::Result<()> {
    change(id, |facts| (facts.uid, facts.gid) = (user, group))
}

fn change(id: i32, change: impl FnOnce(&mut libc::ipc_perm)) -> io::Result<()> {
    let mut facts = status(id)?;
    change(&mut facts.shm_perm);
    // SAFETY: the call reads one shmid_ds.
    check(i64::from(unsafe { libc::shmctl(id, libc::IPC_SET, &raw mut facts) })).map(|_| ())
}

/// Removes a segment: it goes when it is detached last.
///
/// # Errors
/// EINVAL: there is none; EPERM: it is another user's.
pub fn remove(id: i32) -> io::Result<()> {
    // SAFETY: numbers only; IPC_RMID ignores the pointer.
    check(i64::from(unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) })).map(|_| ())
}

/// The segments that each of `pids` (0: none) has made, or was the last to attach or detach (/proc/sysvipc/shm): the
/// place of the process, and the id.
///
/// # Errors
/// The list cannot be read.
pub fn last_users(pids: &[i32]) -> io::Result<Vec<(usize, i32)>> {
    let text = proctext::record_text("/proc/sysvipc/shm")?;
    let mut found = Vec::new();
    for line in text.lines().skip(1) {
        // key, shmid, perms, size, cpid, lpid (ipc/shm.c, sysvipc_shm_proc_show).
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<i32>().ok());
        let users = [number(4), number(5)];
        let user = pids.iter().position(|pid| *pid != 0 && users.contains(&Some(*pid)));
        found.extend(user.zip(number(1)));
    }
    Ok(found)
}

/// A segment in this process's own memory, to be written to, or only to be read.
#[derive(Debug)]
pub struct Attached {
    start: *mut u8,
    len: usize,
}

impl Attached {
    /// Attaches it.
    ///
    /// # Errors
    /// EACCES: it may not be written; EINVAL, EIDRM: there is none with this id.
    pub fn new(id: i32) -> io::Result<Attached> {
        Attached::with(id, 0)
    }

    /// Attaches it to be read: nothing else may be done with it then.
    ///
    /// # Errors
    /// EACCES: it may not be read; EINVAL, EIDRM: there is none with this id.
    pub fn for_reading(id: i32) -> io::Result<Attached> {
        Attached::with(id, libc::SHM_RDONLY)
    }

    fn with(id: i32, flags: i32) -> io::Result<Attached> {
        // SAFETY: the kernel chooses a place that is free.
        let start = unsafe { libc::shmat(id, std::ptr::null(), flags) };
        if start.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let mut attached = Attached { start: start.cast(), len: 0 };
        // As long as its pages make it, which may be huge ones.
        let own = std::process::id().cast_signed();
        let is_ours = |mapping: &procfs::Mapping| mapping.start == start.addr() as u64;
        let mapping = procfs::maps(own, own)?.into_iter().find(is_ours);
        let len = mapping.map_or(0, |mapping| mapping.end - mapping.start);
        attached.len = usize::try_from(len).unwrap_or(0);
        Ok(attached)
    }

    fn place(&self, offset: u64, len: usize) -> io::Result<*mut u8> {
        let start = usize::try_from(offset).ok();
        match start.filter(|start| start.checked_add(len).is_some_and(|end| end <= self.len)) {
            // SAFETY: inside the mapping.
            Some(start) => Ok(unsafe { self.start.add(start) }),
            None => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Its length, bytes, as its pages make it.
    pub fn size(&self) -> u64 {
        self.len as u64
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// EFAULT: it is not so long.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let place = self.place(offset, bytes.len())?;
        // SAFETY: a place of this length in a mapping that no reference leads to.
        unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// EFAULT: it is not so long.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let place = self.place(offset, bytes.len())?;
        // SAFETY: a place of this length in a writable mapping that no reference leads to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
        Ok(())
    }

    /// Makes whole pages zero, by giving them back; a part of a huge page is written.
    ///
    /// # Errors
    /// EFAULT: it is not so long; as madvise.
    pub fn clear(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let place = self.place(offset, len)?;
        // SAFETY: a range of the mapping, whose content nothing in this process relies on.
        let given_back = check(i64::from(unsafe { libc::madvise(place.cast(), len, libc::MADV_REMOVE) }));
        match given_back {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                // SAFETY: as in `write`.
                unsafe { std::ptr::write_bytes(place, 0, len) };
                Ok(())
            }
            result => result.map(|_| ()),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: attached by `new`, and nothing has its address any more.
        unsafe { libc::shmdt(self.start.cast()) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_described_until_it_is_removed() {
        let id = create(libc::IPC_PRIVATE, 5000, 0o600).unwrap();
        set_mode(id, 0o640).unwrap();
        let now = segment(id).unwrap();
        let SegmentFacts { owner, creator, .. } = now;
        let facts =
            SegmentFacts { key: 0, size: 5000, mode: 0o640, removed: false, attached: 0, owner, creator };
        assert_eq!((now, owner.0), (facts, crate::unix_socket::effective_user()));
        set_owner(id, owner).unwrap();
        remove(id).unwrap();
        assert!(segment(id).is_err() && Attached::new(id).is_err());
    }

    /// Whether it holds within some seconds.
    fn soon(mut holds: impl FnMut() -> bool) -> bool {
        (0..5000).any(|_| {
            let held = holds();
            std::thread::sleep(std::time::Duration::from_millis(u64::from(!held)));
            held
        })
    }

    #[test]
    fn a_removed_segment_is_filled_and_goes_when_it_is_detached() {
        let id = create(libc::IPC_PRIVATE, 5000, 0o600).unwrap();
        let one = Attached::new(id).unwrap();
        remove(id).unwrap();
        let other = Attached::new(id).unwrap();
        // Children of other tests have it too, until they execute their programs.
        assert!(soon(|| segment(id).is_ok_and(|facts| facts.removed && facts.attached == 2)));
        // SAFETY: inside the mapping.
        let seen = |at: usize| unsafe { other.start.add(at).read_volatile() };
        one.write(4096, b"holdfast").unwrap();
        assert_eq!((seen(4096), seen(4103)), (b'h', b't'));
        one.clear(4096, 4096).unwrap();
        assert_eq!(seen(4096), 0);
        let (reader, mut bytes) = (Attached::for_reading(id).unwrap(), [1; 8]);
        one.write(100, b"read").unwrap();
        reader.read(98, &mut bytes).unwrap();
        assert_eq!((&bytes, reader.size()), (b"\0\0read\0\0", 8192));
        assert!(reader.read(8190, &mut bytes).is_err());
        drop(reader);
        let own = std::process::id().cast_signed();
        assert!(last_users(&[0, own]).unwrap().contains(&(1, id)));
        assert!(one.write(8190, b"abc").is_err() && one.clear(4096, 8192).is_err());
        assert!(one.write(u64::MAX, b"a").is_err());
        drop((one, other));
        assert!(soon(|| segment(id).is_err()));
    }
}
