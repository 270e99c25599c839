//! A file in memory that two processes share, mapped: one fills it, the other reads it by pread(2).
//!
//! Used by programs that put their own memory into a store (compat/objects) or into a stream (compat/streams), and by
//! readers of streams. Invariants: what is written before [`MappedBuffer::set_word`] or [`MappedBuffer::set_long`] is
//! there for a process that sees the word; a child of fork(2) has no such mapping, and ends none.
//! Fails by an errno; EINVAL: out of the mapping's bounds.
//!
//! By hand: mmap(2), so that one type knows bounds and end of a mapping, and stores that pass the caches by.
//!
//! # Safety
//! `start` to `start + len` is a mapping of this value alone until it is dropped. No reference to it is ever made: it
//! is copied from and to by pointers within its bounds, which each function checks. The other process may write to it
//! meanwhile: what is read is bytes, which have no bad values. A file that is cut meanwhile is SIGBUS, but under a
//! [`MappedBuffer::guard`]; the server, which is of the same user, does not cut it.
#![allow(unsafe_code)]

use crate::cut_guard::Guard;
use crate::summed_copy::SummedCopy;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Copies of so many bytes and more pass the caches by: the caller has other use for them, and a line need not be read
/// before it is overwritten.
const STREAMED: usize = 256 << 10;

/// What a mapping is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// All of it will be written at once: its pages are made with it.
    Filled,
    /// Its pages are made when they are touched.
    Sparse,
    /// Reading only: what writes to it fails with EINVAL.
    Read,
}

/// A mapping of the beginning of a file.
#[derive(Debug)]
pub struct MappedBuffer {
    start: *mut u8,
    len: usize,
    owner: u32,
    writable: bool,
    /// It is memory that outlives the host (a file system with DAX): what is written is made to be there when the call
    /// returns.
    durable: bool,
}

// SAFETY: it is memory of the process, of no thread; what writes to it needs it exclusively.
unsafe impl Send for MappedBuffer {}

impl MappedBuffer {
    /// Maps so many bytes of a file, which must have them; all pages at once, and not for children of fork(2).
    ///
    /// # Errors
    /// EINVAL: the file is shorter, or `len` is 0; as mmap(2).
    pub fn of(file: BorrowedFd<'_>, len: u64) -> io::Result<MappedBuffer> {
        MappedBuffer::for_use(file, len, Use::Filled)
    }

    /// As [`MappedBuffer::of`], for another use.
    ///
    /// # Errors
    /// As [`MappedBuffer::of`].
    pub fn for_use(file: BorrowedFd<'_>, len: u64, what_for: Use) -> io::Result<MappedBuffer> {
        let size = nix::sys::stat::fstat(file)?.st_size;
        let len = usize::try_from(len).map_err(|_| out_of_bounds())?;
        if len == 0 || u64::try_from(size).unwrap_or(0) < len as u64 {
            return Err(out_of_bounds());
        }
        let writable = what_for != Use::Read;
        let rights = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let map = |flags| {
            // SAFETY: a new mapping at an address that the kernel chooses.
            let start = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, file.as_raw_fd(), 0) };
            if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start) }
        };
        // mmap(2): MAP_SYNC is granted for files of DAX alone.
        let sync = match what_for {
            Use::Sparse => map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC).ok(),
            Use::Filled | Use::Read => None,
        };
        let filled = if what_for == Use::Filled { libc::MAP_POPULATE } else { 0 };
        let (durable, start) = (sync.is_some(), sync.map_or_else(|| map(libc::MAP_SHARED | filled), Ok)?);
        // SAFETY: the mapping that was just made. Where the advice is not taken a child has it, and leaves it.
        unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) };
        Ok(MappedBuffer { start: start.cast(), len, owner: std::process::id(), writable, durable })
    }

    /// Its length, bytes.
    pub fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// While it is there, a file that is cut is no SIGBUS, but an error that it tells of.
    pub fn guard(&self) -> Guard {
        Guard::of(self.start, self.len)
    }

    fn place(&self, at: u64, len: usize) -> io::Result<*mut u8> {
        let at = usize::try_from(at).map_err(|_| out_of_bounds())?;
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(out_of_bounds());
        }
        // SAFETY: within the mapping, as was just looked at.
        Ok(unsafe { self.start.add(at) })
    }

    /// As [`MappedBuffer::place`], to be written to.
    fn room(&self, at: u64, len: usize) -> io::Result<*mut u8> {
        if self.writable { self.place(at, len) } else { Err(out_of_bounds()) }
    }

    /// Where its bytes from `at` on are, for readers of C. They are there until it is dropped; another process may
    /// change them.
    ///
    /// # Errors
    /// EINVAL: out of bounds.
    pub fn address(&self, at: u64, len: u64) -> io::Result<*const u8> {
        Ok(self.place(at, usize::try_from(len).map_err(|_| out_of_bounds())?)?.cast_const())
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    /// EINVAL.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let place = self.room(at, bytes.len())?;
        let streamed = if bytes.len() >= STREAMED { stream(place, bytes) } else { 0 };
        // SAFETY: `place` has room for all of `bytes`, of which `streamed` are there; a caller's slice is not in the
        // mapping, to which there are no references.
        unsafe {
            let (from, to) = (bytes.as_ptr().add(streamed), place.add(streamed));
            std::ptr::copy_nonoverlapping(from, to, bytes.len() - streamed);
        }
        self.flush(at + streamed as u64, bytes.len() - streamed);
        Ok(())
    }

    /// As [`MappedBuffer::write`], and adds them to a sum; at a multiple of 64.
    ///
    /// # Errors
    /// EINVAL.
    pub fn write_summed(&mut self, at: u64, bytes: &[u8], sum: &mut SummedCopy) -> io::Result<()> {
        const LAST: usize = 128;
        let place = self.room(at, bytes.len())?;
        if !at.is_multiple_of(64) {
            return Err(out_of_bounds());
        }
        // SAFETY: there is room, as was looked at; mappings begin at a page; a caller's slice is not in the mapping.
        unsafe { sum.add(place, bytes) };
        // Its last bytes do not pass the caches.
        let last = bytes.len().min(LAST);
        self.flush(at + (bytes.len() - last) as u64, last);
        Ok(())
    }

    /// Has pages made and mapped for bytes that will be written: at once, which is less work than one by one.
    ///
    /// # Errors
    /// EINVAL: out of bounds; ENOMEM: there are none.
    pub fn populate(&mut self, at: u64, len: u64) -> io::Result<()> {
        const PAGE: u64 = 4096;
        let (from, end) = (at - at % PAGE, at.saturating_add(len));
        let len = usize::try_from(end - from).map_err(|_| out_of_bounds())?;
        let place = self.room(from, len)?;
        // SAFETY: a part of this mapping, whose contents stay (madvise(2)).
        match unsafe { libc::madvise(place.cast(), len, libc::MADV_POPULATE_WRITE) } {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                // Linux before 5.14: one by one.
                error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
                error => Err(error),
            },
        }
    }

    /// What is in the caches of these bytes goes to memory, where that outlives the host.
    fn flush(&self, at: u64, len: usize) {
        #[cfg(target_arch = "x86_64")]
        if self.durable && len > 0 {
            const LINE: usize = 64;
            let Ok(place) = self.place(at, len) else { return };
            let skew = place.addr() % LINE;
            for line in (0..len + skew).step_by(LINE) {
                // SAFETY: a line that has some of the bytes, which are in the mapping; it is aligned to whole lines.
                unsafe { std::arch::x86_64::_mm_clflush(place.sub(skew).add(line)) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (at, len);
    }

    /// Copies so many bytes of another one, from `from` there to `at` here.
    ///
    /// # Errors
    /// EINVAL: nothing was copied.
    pub fn copy(&mut self, at: u64, other: &MappedBuffer, from: u64, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| out_of_bounds())?;
        let (from, to) = (other.place(from, len)?, self.room(at, len)?);
        // SAFETY: both have as many bytes, and are mappings of their own.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        Ok(())
    }

    /// Copies from `at` into `bytes`.
    ///
    /// # Errors
    /// EINVAL: nothing was copied.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let place = self.place(at, bytes.len())?;
        // SAFETY: `place` has as many bytes; the slice is not in the mapping.
        unsafe { std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Sets a word, little-endian: all that was written before is there when it is, and nothing that is written later.
    ///
    /// # Errors
    /// EINVAL: out of bounds, or not at a multiple of 4.
    pub fn set_word(&mut self, at: u64, word: u32) -> io::Result<()> {
        let place = self.room(at, 4)?;
        if !at.is_multiple_of(4) {
            return Err(out_of_bounds());
        }
        all_stores();
        // SAFETY: four bytes of the mapping, aligned, which only atomic operations of both processes touch meanwhile.
        unsafe { AtomicU32::from_ptr(place.cast()) }.store(word.to_le(), Ordering::SeqCst);
        all_stores();
        Ok(())
    }

    /// As [`MappedBuffer::set_word`], of eight bytes.
    ///
    /// # Errors
    /// EINVAL: out of bounds, or not at a multiple of 8.
    pub fn set_long(&mut self, at: u64, long: u64) -> io::Result<()> {
        let place = self.room(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(out_of_bounds());
        }
        all_stores();
        // SAFETY: eight bytes of the mapping, aligned, which only atomic operations of both processes touch meanwhile.
        unsafe { AtomicU64::from_ptr(place.cast()) }.store(long.to_le(), Ordering::SeqCst);
        self.flush(at, 8);
        all_stores();
        Ok(())
    }

    /// As [`MappedBuffer::word`], of eight bytes.
    ///
    /// # Errors
    /// EINVAL: out of bounds, or not at a multiple of 8.
    pub fn long(&self, at: u64) -> io::Result<u64> {
        let place = self.place(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(out_of_bounds());
        }
        // SAFETY: eight bytes of the mapping, aligned, which only atomic operations of both processes touch meanwhile;
        // a load is one where the mapping is for reading only, too.
        Ok(u64::from_le(unsafe { AtomicU64::from_ptr(place.cast()) }.load(Ordering::SeqCst)))
    }

    /// Sets a word of eight bytes if it is `old`; says whether it did.
    ///
    /// # Errors
    /// EINVAL: out of bounds, or not at a multiple of 8.
    pub fn exchange_long(&mut self, at: u64, old: u64, new: u64) -> io::Result<bool> {
        let place = self.room(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(out_of_bounds());
        }
        // SAFETY: as in `set_long`.
        let word = unsafe { AtomicU64::from_ptr(place.cast()) };
        Ok(word.compare_exchange(old.to_le(), new.to_le(), Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }
}

impl MappedBuffer {
    /// A word that another process may set, little-endian: what it has stored before is seen afterwards. Of two
    /// processes that both set a word and then look at that of the other one, at least one sees it.
    ///
    /// # Errors
    /// EINVAL: out of bounds, or not at a multiple of 4.
    pub fn word(&self, at: u64) -> io::Result<u32> {
        let place = self.place(at, 4)?;
        if !at.is_multiple_of(4) {
            return Err(out_of_bounds());
        }
        // SAFETY: four bytes of the mapping, aligned, which only atomic operations of both processes touch meanwhile.
        Ok(u32::from_le(unsafe { AtomicU32::from_ptr(place.cast()) }.load(Ordering::SeqCst)))
    }
}

impl Drop for MappedBuffer {
    fn drop(&mut self) {
        // A child of fork has not got it, and may have something else there.
        if std::process::id() == self.owner {
            // SAFETY: the mapping of this value.
            unsafe { libc::munmap(self.start.cast(), self.len) };
        }
    }
}

fn out_of_bounds() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// What was stored before, by streams as well, is seen before what is stored later.
fn all_stores() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    fence(Ordering::SeqCst);
}

/// Copies as much of `bytes` as goes in whole lines from `place` on, past the caches; says how much that was.
#[cfg(target_arch = "x86_64")]
fn stream(place: *mut u8, bytes: &[u8]) -> usize {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE: usize = 64;
    if !place.addr().is_multiple_of(16) {
        return 0;
    }
    let lines = bytes.len() / LINE;
    let (mut from, mut to) = (bytes.as_ptr().cast::<__m128i>(), place.cast::<__m128i>());
    for _ in 0..lines {
        // SAFETY: a line of `bytes` and the line of `place`, which has room for all of them (its caller has looked) and
        // is aligned to 16 bytes; every x86-64 processor has SSE2.
        unsafe {
            // By name: a closure for each was not always inlined, and cost as much as the copy.
            let (one, two) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (three, four) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(to, one);
            _mm_stream_si128(to.add(1), two);
            _mm_stream_si128(to.add(2), three);
            _mm_stream_si128(to.add(3), four);
            (from, to) = (from.add(4), to.add(4));
        }
    }
    lines * LINE
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(_: *mut u8, _: &[u8]) -> usize {
    0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_is_in_the_file_and_bounds_hold() {
        let file = File::from(crate::memfd::unsealed(c"buffer").unwrap());
        assert!(MappedBuffer::of(file.as_fd(), 4096).is_err(), "shorter than what is to be mapped");
        let len = 2 * STREAMED as u64;
        file.set_len(len).unwrap();
        let mut mapped = MappedBuffer::of(file.as_fd(), len).unwrap();
        // Odd lengths and places, small and large.
        for (at, count) in [(0, 1), (64, STREAMED + 77), (16, STREAMED), (3, STREAMED + 1), (4097, 100)] {
            let bytes: Vec<u8> = (0..count).map(|i| (i * 7 + count) as u8).collect();
            mapped.write(at, &bytes).unwrap();
            let (mut read, mut mirrored) = (vec![0; count], vec![0; count]);
            file.read_exact_at(&mut read, at).unwrap();
            mapped.read(at, &mut mirrored).unwrap();
            assert!(read == bytes && mirrored == bytes, "{count} bytes at {at}");
        }
        let copied = File::from(crate::memfd::unsealed(c"copy").unwrap());
        copied.set_len(len).unwrap();
        let mut copy = MappedBuffer::of(copied.as_fd(), len).unwrap();
        copy.copy(4096, &mapped, 16, 1000).unwrap();
        let (mut one, mut other) = ([0; 1000], [0; 1000]);
        copy.read(4096, &mut one).unwrap();
        mapped.read(16, &mut other).unwrap();
        assert_eq!(one, other);
        assert!(copy.copy(len - 1, &mapped, 0, 2).is_err() && copy.copy(0, &mapped, len - 1, 2).is_err());
        mapped.set_word(8, 0x0102_0304).unwrap();
        let mut word = [0; 4];
        file.read_exact_at(&mut word, 8).unwrap();
        assert_eq!(word, [4, 3, 2, 1]);
        file.write_all_at(&[1, 0, 0, 2], 12).unwrap();
        assert_eq!(mapped.word(12).unwrap(), 0x0200_0001);
        assert!(mapped.word(len).is_err() && mapped.word(6).is_err());
        assert!(mapped.write(len - 3, b"four").is_err() && mapped.read(u64::MAX, &mut [0]).is_err());
        assert!(mapped.set_word(len, 1).is_err() && mapped.set_word(6, 1).is_err());
        mapped.set_long(16, 0x0102_0304_0506_0708).unwrap();
        assert!(!mapped.exchange_long(16, 1, 2).unwrap() && mapped.set_long(12, 1).is_err());
        let mut read = MappedBuffer::for_use(file.as_fd(), len, Use::Read).unwrap();
        assert_eq!(read.long(16).unwrap(), 0x0102_0304_0506_0708);
        assert!(mapped.exchange_long(16, 0x0102_0304_0506_0708, 9).unwrap());
        assert_eq!(read.long(16).unwrap(), 9);
        assert!(read.write(0, b"x").is_err() && read.set_word(0, 1).is_err() && read.set_long(0, 1).is_err());
        assert!(read.address(len - 1, 1).is_ok() && read.address(len - 1, 2).is_err());
    }
}
