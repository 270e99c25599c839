//! Pages of running programs, read before the stop (pre-copy).
//!
//! Nothing is torn by it: the tracker was armed before, so a page that is written while or after it is read here is
//! reported as written at the cut, and stored again. What cannot be read (it was unmapped meanwhile) is left out.

use crate::job::target::Target;
use holdfast_image::{Addr, address_space};
use holdfast_sys::{procfs, procmem};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Whether a device may be writing to the memory of a process by itself: it has a descriptor open with O_DIRECT.
///
/// The kernel pins the pages when such a read begins, which marks them as written, and the data come later without a
/// page fault (block/bio.c, bio_iov_iter_get_pages). Were the tracker re-armed in between, the data would not be
/// noticed. At a cut nothing is under way, because every thread has left its system call. To be asked after
/// [`crate::Members::pass`]: a read that was under way then and is over now has been seen.
///
/// # Errors
/// The process is gone.
pub fn may_have_transfers(pid: i32) -> io::Result<bool> {
    let direct = libc::O_DIRECT.cast_unsigned();
    let mut found = false;
    let by = procfs::shown_by(pid);
    for fd in procfs::descriptors(by, by)? {
        // One that was closed meanwhile has no transfer any more.
        let info = u64::try_from(fd).ok().and_then(|fd| procfs::descriptor_info(by, fd));
        found |= info.is_some_and(|info| info.flags & direct != 0);
    }
    Ok(found)
}

/// See the head of the file. Used by the agent's pre-copy; with global addresses.
#[derive(Debug)]
pub struct LiveMemory {
    /// By space, with `/proc/PID/mem` where there are several: what they share stays shared (see `Living` in
    /// `frozen_memory`).
    processes: Vec<(u32, i32, Option<File>)>,
}

impl LiveMemory {
    /// Of these processes.
    pub fn new(targets: &[Target]) -> LiveMemory {
        let several = targets.len() > 1;
        let memory = |pid| File::open(format!("/proc/{}/mem", procfs::shown_by(pid))).ok();
        let one = |target: &Target| (target.space, target.pid, several.then(|| memory(target.pid)).flatten());
        LiveMemory { processes: targets.iter().map(one).collect() }
    }
    /// Whether there are several processes.
    pub fn has_several(&self) -> bool {
        self.processes.len() > 1
    }
    /// Fills `buffer` with the pages from `start` on. False: they are not there any more.
    pub fn read(&self, start: Addr, buffer: &mut [u8]) -> bool {
        let (space, own) = address_space::split(start);
        let process = self.processes.iter().find(|(other, ..)| *other == space);
        process.is_some_and(|(_, pid, memory)| match memory {
            Some(memory) => memory.read_exact_at(buffer, own.0).is_ok(),
            None => procmem::read(*pid, own.0, buffer).is_ok(),
        })
    }
}
