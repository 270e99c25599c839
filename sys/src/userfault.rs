//! userfaultfd(2) in asynchronous write-protect mode (WP_ASYNC, Linux 6.7): the kernel notes first writes and lets them
//! pass, without a question, a signal or an event (Documentation/admin-guide/mm/userfaultfd.rst).
//!
//! The descriptor belongs to the address space of the process that made it, whatever process holds it: the agent
//! registers ranges of the program with a descriptor that the program made. Closing the last descriptor ends all
//! tracking. No events are asked for: without a reader they would make munmap and fork of the program wait for ever.
//!
//! # Safety
//! Every ioctl gets a structure of the kernel's layout that lives through the call. Ranges are numbers of the other
//! address space; only [`is_exact`] maps memory of this process, and unmaps it.
#![allow(unsafe_code)]

use crate::fd::owned;
use crate::{check, pagemap};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

const UFFD_USER_MODE_ONLY: i32 = 1;
/// UFFD_FEATURE_WP_ASYNC, which brings WP_UNPOPULATED and WP_HUGETLBFS_SHMEM with it
/// (include/uapi/linux/userfaultfd.h).
const UFFD_FEATURE_WP_ASYNC: u64 = 1 << 15;
const UFFD_API: u64 = 0xAA;
/// `_IOWR(0xAA, 0x3F, struct uffdio_api)`.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
/// `_IOWR(0xAA, 0x00, struct uffdio_register)`.
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
/// `_IOR(0xAA, 0x01, struct uffdio_range)`.
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
/// `_IOWR(0xAA, 0x03, struct uffdio_copy)`.
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;
const COPY_DONTWAKE: u64 = 1;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;

/// A userfaultfd in WP_ASYNC mode.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

/// The flags with which a process makes one for [`Userfault::take_over`], as an argument of userfaultfd(2).
pub const FLAGS: i32 = UFFD_USER_MODE_ONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;

/// userfaultfd(2) of this process, without any mode yet.
pub(crate) fn create(user_mode_only: bool) -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | if user_mode_only { UFFD_USER_MODE_ONLY } else { 0 };
    // SAFETY: numbers only; the result is a new descriptor.
    owned(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })
}

impl Userfault {
    /// Sets up a descriptor that some process has made.
    ///
    /// # Errors
    /// EINVAL: no WP_ASYNC (Linux before 6.7), not a userfaultfd, or set up before.
    pub fn take_over(fd: OwnedFd) -> io::Result<Userfault> {
        let mut api = [UFFD_API, UFFD_FEATURE_WP_ASYNC, 0];
        // SAFETY: struct uffdio_api is three u64, alive through the call.
        check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) }))?;
        Ok(Userfault(fd))
    }

    /// For memory of this process.
    ///
    /// # Errors
    /// As [`Userfault::take_over`]; EPERM: userfaultfd is refused.
    pub fn of_this_process() -> io::Result<Userfault> {
        Userfault::take_over(create(true)?)
    }

    /// Registers all mappings of a range, which may have holes; what is registered already stays as it is.
    ///
    /// # Errors
    /// EBUSY: a mapping belongs to another userfaultfd; EINVAL: nothing is mapped there, or a mapping cannot be
    /// registered; ENOMEM: too many mappings; ESRCH: the address space is gone.
    pub fn register(&self, start: u64, end: u64) -> io::Result<()> {
        register(&self.0, start, end, MODE_WP)
    }
}

fn register(fd: &OwnedFd, start: u64, end: u64, mode: u64) -> io::Result<()> {
    let mut arg = [start, end.saturating_sub(start), mode, 0];
    // SAFETY: struct uffdio_register is four u64, alive through the call.
    check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut arg) })).map(drop)
}

fn unregister(fd: &OwnedFd, start: u64, end: u64) -> io::Result<()> {
    let mut arg = [start, end.saturating_sub(start)];
    // SAFETY: struct uffdio_range is two u64, alive through the call.
    check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_UNREGISTER, &raw mut arg) })).map(drop)
}

impl Userfault {
    /// Ends the tracking of a range; all its pages count as written afterwards (mm/userfaultfd.c,
    /// userfaultfd_clear_vma).
    ///
    /// # Errors
    /// As [`Userfault::register`].
    pub fn unregister(&self, start: u64, end: u64) -> io::Result<()> {
        unregister(&self.0, start, end)
    }
}

/// A userfaultfd by which pages are put into private memory that has none there yet, of a process that does not run:
/// each is made with its content and never zeroed, and never more than what is put, whatever the kernel's huge pages
/// are set to. Nothing waits for faults: what runs into one would get SIGBUS. Closing it leaves ordinary memory.
#[derive(Debug)]
pub struct PageFiller(OwnedFd);

impl PageFiller {
    /// Sets up a descriptor that some process has made for its address space, with [`FLAGS`].
    ///
    /// # Errors
    /// EINVAL: not a userfaultfd, or set up before.
    pub fn take_over(fd: OwnedFd) -> io::Result<PageFiller> {
        let mut api = [UFFD_API, 0, 0];
        // SAFETY: struct uffdio_api is three u64, alive through the call.
        check(i64::from(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) }))?;
        Ok(PageFiller(fd))
    }

    /// For memory of this process.
    ///
    /// # Errors
    /// As [`PageFiller::take_over`]; EPERM: userfaultfd is refused.
    pub fn of_this_process() -> io::Result<PageFiller> {
        PageFiller::take_over(create(true)?)
    }

    /// Has a range filled by it from here on.
    ///
    /// # Errors
    /// As [`Userfault::register`]; EINVAL as well where memory is that of a file.
    pub fn register(&self, start: u64, end: u64) -> io::Result<()> {
        register(&self.0, start, end, MODE_MISSING)
    }

    /// Leaves a range to ordinary writes again.
    ///
    /// # Errors
    /// As [`Userfault::register`].
    pub fn unregister(&self, start: u64, end: u64) -> io::Result<()> {
        unregister(&self.0, start, end)
    }

    /// Makes the pages from `address` on, of whole pages of bytes.
    ///
    /// # Errors
    /// EEXIST: there is a page already; ENOENT: the range is not registered; ENOMEM. Some of the pages may be there.
    pub fn put(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let (to, from) = (address + done as u64, rest.as_ptr().addr() as u64);
            let mut arg = [to, from, rest.len() as u64, COPY_DONTWAKE, 0];
            // SAFETY: struct uffdio_copy is five u64, alive through the call; the kernel reads `rest`, which is as long
            // as it says; the destination is memory of the address space that the descriptor belongs to.
            let result = unsafe { libc::ioctl(self.0.as_raw_fd(), UFFDIO_COPY, &raw mut arg) };
            // What was copied before it broke off (mm/userfaultfd.c, mfill_atomic), or a negative errno.
            match (check(i64::from(result)), usize::try_from(arg[4].cast_signed())) {
                (Ok(_), Ok(copied)) | (Err(_), Ok(copied)) if copied > 0 => done += copied,
                (Err(error), _) => return Err(error),
                (Ok(_), _) => return Err(io::Error::other("the kernel has copied nothing")),
            }
        }
        Ok(())
    }
}

/// A mapping of this process that is gone at the end.
struct Memory(*mut libc::c_void, usize);

impl Memory {
    fn new(len: usize) -> io::Result<Memory> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: fresh memory at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Memory(start, len)) }
    }
    /// Moves it to where the kernel finds room.
    fn moved(self) -> io::Result<Memory> {
        let target = Memory::new(self.1)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both are mappings of this function's own; the target is replaced by the moved one.
        let start = unsafe { libc::mremap(self.0, self.1, self.1, flags, target.0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        std::mem::forget(self); // now lies where the target was
        Ok(target)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

/// Tries the one thing about WP_ASYNC that kernels differ in: older ones kept the write protection of pages that
/// mremap(2) moved although the registration was gone, so that moved pages looked unchanged at their new place
/// (mm/mremap.c, fixed by "mm: clear uffd-wp PTE/PMD state on mremap()", 6.13). `false` as well where there is no
/// WP_ASYNC at all. Tried once.
pub fn is_exact() -> bool {
    static EXACT: OnceLock<bool> = OnceLock::new();
    let try_it = || -> io::Result<bool> {
        const LEN: usize = 4 * 4096;
        let userfault = Userfault::of_this_process()?;
        let pagemap = File::open("/proc/self/pagemap")?;
        let written = |memory: &Memory| -> io::Result<u64> {
            let (start, end) = (memory.0.addr() as u64, (memory.0.addr() + memory.1) as u64);
            userfault.register(start, end)?;
            let mut bytes = 0;
            let wanted = pagemap::IS_WRITTEN | pagemap::IS_PRESENT;
            pagemap::scan_and_protect(&pagemap, start, end, pagemap::IS_PRESENT, wanted, |found| {
                if found.categories & pagemap::IS_WRITTEN != 0 {
                    bytes += found.end - found.start;
                }
            })?;
            Ok(bytes)
        };
        let memory = Memory::new(LEN)?;
        let first = written(&memory)?;
        let second = written(&memory)?;
        let moved = written(&memory.moved()?)?;
        Ok((first, second, moved) == (LEN as u64, 0, LEN as u64))
    };
    *EXACT.get_or_init(|| try_it().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::unwrap_used)]
    fn pages_are_put_where_there_are_none_and_nowhere_else() {
        const PAGE: usize = 4096;
        let Ok(filler) = PageFiller::of_this_process() else { return };
        let (prot, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory at a place that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), 4 * PAGE, prot, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let memory = Memory(base, 4 * PAGE);
        let start = memory.0.addr() as u64;
        let error = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());
        let bytes = [7_u8; 2 * PAGE];
        assert_eq!(error(filler.put(start, &bytes)), Some(libc::ENOENT));
        filler.register(start, start + 4 * PAGE as u64).unwrap();
        filler.put(start + PAGE as u64, &bytes).unwrap();
        assert_eq!(error(filler.put(start + 2 * PAGE as u64, &bytes[..PAGE])), Some(libc::EEXIST));
        assert_eq!(error(filler.put(start, &bytes)), Some(libc::EEXIST), "the first is made");
        drop(filler);
        // SAFETY: that memory, which is readable; nothing writes to it.
        let seen = unsafe { std::slice::from_raw_parts(memory.0.cast::<u8>(), 4 * PAGE) };
        assert_eq!(seen.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 3 * PAGE * 7);
    }

    #[test]
    fn this_kernel_tracks_exactly() {
        // The machines of the project run Linux 6.18; elsewhere the agent falls back to hashes.
        assert!(is_exact());
    }
}
