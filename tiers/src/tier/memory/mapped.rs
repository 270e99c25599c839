//! A file in memory, mapped, into which bytes are copied past the caches; and the calls for it that std does not have.
//!
//! Called by [`super::writer`] and [`super::pool`].
//! A mapping whose pages are there and mapped takes bytes at the speed of memory; write(2) has a page's cost for each
//! page, and on a page that is new several times that (docs/history/store.md).
//! Invariants: nothing is written beyond the length that the file had when it was mapped; what was written is seen by
//! every other process when [`Mapped::write`] has returned.
//! Fails by: errno. Another process of the same user that makes the file shorter meanwhile ends this one (SIGBUS);
//! no other user can open it.
//!
//! # Safety
//! A [`Mapped`] owns its mapping alone: no reference into it exists, bytes go in through raw pointers that are checked
//! against its length. The other calls have numbers, a borrowed descriptor, or a local of the right type.
#![allow(unsafe_code)]

use holdfast_image::PAGE_SIZE;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

/// From this length on bytes go past the caches.
const STREAM_FROM: usize = 16 << 10;
/// asm-generic/fcntl.h; libc lacks it.
const F_SETSIG: i32 = 10;

/// See the head of the file.
pub(super) struct Mapped {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, and no thread has anything of it.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the first `len` bytes of a file that is open for reading and writing and has them.
    pub(super) fn new(file: &File, len: usize, dax: bool) -> io::Result<Mapped> {
        // mmap(2): MAP_SYNC needs MAP_SHARED_VALIDATE, and is granted for DAX files alone. With it the file's metadata
        // are durable before a page is written the first time: less is left to do when the file is finished.
        let flags = if dax { libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC } else { libc::MAP_SHARED };
        // SAFETY: needed to have the file's memory; a new mapping at an address that the kernel chooses touches no
        // other, the descriptor is open as long as `file` is borrowed.
        let at = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0)
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapped { at, len }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps all pages now, so that no write meets a page fault.
    pub(super) fn populate(&self) -> io::Result<()> {
        // SAFETY: needed because std has no such call; the range is this mapping, whose content stays as it is
        // (madvise(2), MADV_POPULATE_WRITE: "without actually modifying").
        let done = unsafe { libc::madvise(self.at.as_ptr().cast(), self.len, libc::MADV_POPULATE_WRITE) };
        match io::Error::last_os_error() {
            _ if done == 0 => Ok(()),
            // Linux before 5.14: the first writes are slower.
            error if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            error => Err(error),
        }
    }

    /// Bytes that it has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Unmaps what lies behind `len` bytes (at least one stays).
    pub(super) fn shorten(&mut self, len: usize) {
        const PAGE: usize = PAGE_SIZE as usize;
        let len = len.clamp(1, self.len);
        let (old, new) = (self.len.next_multiple_of(PAGE), len.next_multiple_of(PAGE));
        if new < old {
            // SAFETY: needed because the file is shorter now; the range is the end of this mapping, from a boundary
            // of pages on, and `len` no longer reaches there. If it fails, the pages stay mapped and are not used.
            unsafe { libc::munmap(self.at.as_ptr().add(new).cast(), old - new) };
        }
        self.len = len;
    }

    /// Copies as many bytes as there is room for behind `from`; how many.
    pub(super) fn write(&mut self, from: usize, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.len.saturating_sub(from));
        if count == 0 {
            return 0;
        }
        // SAFETY: from + count <= len, so that the result lies in the mapping.
        let to = unsafe { self.at.as_ptr().add(from) };
        if count >= STREAM_FROM {
            // SAFETY: `count` bytes from `to` on are in the mapping, which no reference leads to; `bytes` has them.
            unsafe { stream(to, &bytes[..count]) };
        } else {
            // SAFETY: as above; the slice is no part of the mapping, for no reference leads there.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, count) };
        }
        count
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: needed to give the mapping back; it is this value's alone, which ends here. An error cannot be:
        // the range is what mmap has given.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Copies by stores that leave the caches out, and waits until all are done.
///
/// # Safety
/// `bytes.len()` bytes from `to` on may be written, and are none of `bytes`.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, bytes: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    /// A cache line.
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(bytes.len());
    let (first, rest) = bytes.split_at(head);
    let (lines, last) = rest.as_chunks::<LINE>();
    // SAFETY: head <= bytes.len(); the caller's promise.
    let body = unsafe {
        ptr::copy_nonoverlapping(first.as_ptr(), to, head);
        to.add(head)
    };
    for (number, line) in lines.iter().enumerate() {
        // SAFETY: line `number` is in the slice, so its place is among the bytes that may be written; both are read
        // and written in four pieces of 16 bytes. SSE2 is part of x86-64. The place is aligned to 64 bytes.
        unsafe {
            let from = line.as_ptr().cast::<__m128i>();
            let place = body.add(number * LINE).cast::<__m128i>();
            for piece in 0..LINE / size_of::<__m128i>() {
                _mm_stream_si128(place.add(piece), _mm_loadu_si128(from.add(piece)));
            }
        }
    }
    // SAFETY: behind the lines there are as many bytes as `last` has.
    unsafe { ptr::copy_nonoverlapping(last.as_ptr(), body.add(lines.len() * LINE), last.len()) };
    // Streamed stores pass others (Intel SDM volume 1, 10.4.6.2): none of them may be on its way when the file gets
    // its name.
    // SAFETY: an instruction without operands; SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

/// As on x86-64, but through the caches.
///
/// # Safety
/// As there.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Whether nothing but `file` has the file open or mapped. Nothing may be able to open it by a name any more.
///
/// A write lease is granted only then (fcntl(2), F_SETLEASE: "no other open file descriptors"); a mapping counts as
/// the open file that it was made of. It is given back at once.
pub(super) fn is_alone(file: &File) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: needed because std has no leases; numbers and a descriptor that is open as long as `file` is borrowed.
    unsafe {
        // What is opened in this moment would be told by SIGIO, which ends a process: SIGURG does not.
        libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
            && libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::Read;

    /// A file of `len` bytes in memory, without a name.
    fn file(len: usize) -> (File, File) {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("holdfast-mapped-{}-{number}", std::process::id()));
        let open = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        open.set_len(len as u64).unwrap();
        let reader = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (open, reader)
    }

    #[test]
    fn bytes_of_any_length_lie_where_they_belong_and_none_beyond_the_end() {
        let data: Vec<u8> = (0..400_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for (len, from, count) in [
            (1, 0, 1),
            (100, 99, 5),
            (400_000, 0, 400_000),
            (400_000, 1, 300_001),
            (400_000, 63, STREAM_FROM + 1),
            (400_000, 399_999, 10),
            (300_000, 17, 400_000),
            (4096, 5000, 10),
        ] {
            let (open, mut reader) = file(len);
            let mut mapped = Mapped::new(&open, len, false).unwrap();
            mapped.populate().unwrap();
            let written = mapped.write(from, &data[..count]);
            mapped.shorten(len / 3);
            assert_eq!((mapped.len(), mapped.write(len / 3 + 1, &data)), ((len / 3).max(1), 0));
            assert_eq!(written, count.min(len.saturating_sub(from)));
            let mut wanted = vec![0; len];
            if written > 0 {
                wanted[from..from + written].copy_from_slice(&data[..written]);
            }
            let mut found = Vec::new();
            reader.read_to_end(&mut found).unwrap();
            assert!(found == wanted, "{len} {from} {count}");
        }
    }

    #[test]
    fn a_file_is_alone_when_nothing_else_has_it_open_or_mapped() {
        let (open, reader) = file(4096);
        assert!(!is_alone(&open));
        let other = Mapped::new(&open, 4096, false).unwrap();
        let copy = reader.try_clone().unwrap();
        drop(reader);
        assert!(!is_alone(&open), "a copy of the descriptor counts");
        drop(copy);
        assert!(is_alone(&open), "its own mapping does not count");
        drop(other);
        assert!(is_alone(&open) && is_alone(&open));
    }
}
