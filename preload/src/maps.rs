//! The mappings of this process, one after the other, as the kernel has them.
//!
//! Runs in: the host program, any thread, also in signal handlers and in allocators; called by [`crate::advice`].
//! By the PROCMAP_QUERY request where the kernel has it ([`ProcmapQuery`]), else from the text.
//! Invariants: no heap; the one descriptor is closed before the caller returns. While it is open
//! [`SharedPage::WALKERS`] is not 0, so that no image is taken, and no signal handler runs, so that none can jump out.
//! Fails by: `Err` with the number of the kernel (no descriptor left, no /proc).
//!
//! # Safety
//! One request, whose structure is that of the kernel.
#![allow(unsafe_code)]

use crate::shared;
use crate::sys::{self, Sys};
use core::ffi::c_int;
use core::sync::atomic::Ordering::AcqRel;
use holdfast_abi::{ProcmapQuery, SharedPage};

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    /// First byte.
    pub start: usize,
    /// First byte after it.
    pub end: usize,
    /// PROT_* bits.
    pub prot: c_int,
    /// MAP_SHARED.
    pub shared: bool,
    /// Major << 32 | minor; 0: no file.
    pub device: u64,
    /// 0: no file.
    pub inode: u64,
}

/// The mapping at the address, or the next one.
const COVERING_OR_NEXT: u64 = 0x10;
/// Such with a file only.
const FILE_BACKED: u64 = 0x20;
/// In `vma_flags`, above the three PROT_* bits, which are the same.
const VMA_SHARED: u64 = 8;

/// An open list of mappings.
pub struct Walk {
    fd: c_int,
    mask: u64,
    /// The kernel does not know the request.
    by_text: bool,
    text: Text,
}

impl Walk {
    /// Opens it.
    pub fn begin() -> Sys<Walk> {
        let mask = sys::set_signal_mask(u64::MAX);
        shared::word(SharedPage::WALKERS).fetch_add(1, AcqRel);
        let mut walk = Walk { fd: -1, mask, by_text: false, text: Text::new() };
        // Not /proc/self: the thread group's leader may have ended.
        walk.fd = sys::open(c"/proc/thread-self/maps", libc::O_RDONLY)?;
        Ok(walk)
    }

    /// The mapping at `address` or the first one after it. Addresses must not descend between two calls of
    /// [`Walk::rewind`]. `files`: mappings without a file may be left out.
    pub fn next(&mut self, address: usize, files: bool) -> Sys<Option<Mapping>> {
        if !self.by_text {
            match query(self.fd, address, files) {
                Err(libc::ENOTTY) => self.by_text = true,
                other => return other,
            }
        }
        self.text.next(self.fd, address)
    }

    /// Addresses may begin from low ones again.
    pub fn rewind(&mut self) -> Sys<()> {
        self.text = Text::new();
        sys::rewind(self.fd)
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        if self.fd >= 0 {
            sys::close(self.fd);
        }
        shared::word(SharedPage::WALKERS).fetch_sub(1, AcqRel);
        sys::set_signal_mask(self.mask);
    }
}

fn query(fd: c_int, address: usize, files: bool) -> Sys<Option<Mapping>> {
    let flags = COVERING_OR_NEXT | if files { FILE_BACKED } else { 0 };
    let mut query = ProcmapQuery::at(address as u64, flags);
    // SAFETY: the request reads and writes one such structure; no buffers for name and build id are given.
    match unsafe { sys::ioctl(fd, ProcmapQuery::REQUEST, (&raw mut query).cast()) } {
        Ok(()) => Ok(Some(Mapping {
            start: query.start as usize,
            end: query.end as usize,
            prot: (query.vma_flags & 7) as c_int,
            shared: query.vma_flags & VMA_SHARED != 0,
            device: query.device(),
            inode: query.inode,
        })),
        Err(libc::ENOENT) => Ok(None),
        Err(number) => Err(number),
    }
}

/// The text of a maps file, piece by piece. Lines may be longer than any buffer: paths are skipped.
struct Text {
    buffer: [u8; 512],
    len: usize,
    at: usize,
    /// The mapping that was read last: it may be asked for again.
    last: Mapping,
}

impl Text {
    const fn new() -> Text {
        let last = Mapping { start: 0, end: 0, prot: 0, shared: false, device: 0, inode: 0 };
        Text { buffer: [0; 512], len: 0, at: 0, last }
    }

    fn next(&mut self, fd: c_int, address: usize) -> Sys<Option<Mapping>> {
        while self.last.end <= address {
            match self.line(fd)? {
                Some(mapping) => self.last = mapping,
                None => return Ok(None),
            }
        }
        Ok(Some(self.last))
    }

    /// The next byte; 0 at the end of the file.
    fn byte(&mut self, fd: c_int) -> Sys<u8> {
        if self.at >= self.len {
            self.len = sys::read(fd, &mut self.buffer)?;
            self.at = 0;
            if self.len == 0 {
                return Ok(0);
            }
        }
        let byte = self.buffer.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        Ok(byte)
    }

    /// A number and the byte that ends it.
    fn number(&mut self, fd: c_int, base: u64) -> Sys<(u64, u8)> {
        let mut value = 0_u64;
        loop {
            let byte = self.byte(fd)?;
            let digit = match byte {
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return Ok((value, byte)),
            };
            value = value.wrapping_mul(base).wrapping_add(u64::from(digit));
        }
    }

    /// `START-END rwxp OFFSET MAJOR:MINOR INODE NAME`; `None` at the end.
    fn line(&mut self, fd: c_int) -> Sys<Option<Mapping>> {
        let (start, dash) = self.number(fd, 16)?;
        if dash != b'-' {
            return Ok(None);
        }
        let (end, _) = self.number(fd, 16)?;
        let mut prot = 0;
        for (letter, bit) in [(b'r', libc::PROT_READ), (b'w', libc::PROT_WRITE), (b'x', libc::PROT_EXEC)] {
            if self.byte(fd)? == letter {
                prot |= bit;
            }
        }
        let shared = self.byte(fd)? == b's';
        self.byte(fd)?;
        self.number(fd, 16)?;
        let (major, _) = self.number(fd, 16)?;
        let (minor, _) = self.number(fd, 16)?;
        let (inode, mut last) = self.number(fd, 10)?;
        while last != b'\n' && last != 0 {
            last = self.byte(fd)?;
        }
        Ok(Some(Mapping {
            start: start as usize,
            end: end as usize,
            prot,
            shared,
            device: major << 32 | minor,
            inode,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn all(mut next: impl FnMut(usize) -> Option<Mapping>) -> Vec<Mapping> {
        let (mut list, mut at) = (Vec::new(), 0);
        while let Some(mapping) = next(at) {
            at = mapping.end;
            list.push(mapping);
        }
        list
    }

    #[test]
    fn text_with_long_paths_is_understood() {
        let path = std::env::temp_dir().join(format!("holdfast-maps-{}", std::process::id()));
        let long = "/x".repeat(700);
        let mut file = File::create(&path).unwrap();
        write!(
            file,
            "1000-3000 rw-p 00000000 00:00 0 \n\
             3000-5000 r-xs 0001f000 fd:1a 1234567                    {long}\n\
             7f0000000000-7f0000001000 ---p 00000000 00:2b 99 /a b (deleted)\n"
        )
        .unwrap();
        let file = File::open(&path).unwrap();
        let mut text = Text::new();
        let list = all(|at| text.next(file.as_raw_fd(), at).unwrap());
        std::fs::remove_file(&path).unwrap();
        let mapping =
            |start, end, prot, shared, device, inode| Mapping { start, end, prot, shared, device, inode };
        assert_eq!(
            list,
            [
                mapping(0x1000, 0x3000, 3, false, 0, 0),
                mapping(0x3000, 0x5000, 5, true, 0xfd_0000_001a, 1_234_567),
                mapping(0x7f00_0000_0000, 0x7f00_0000_1000, 0, false, 0x2b, 99),
            ]
        );
    }

    #[test]
    fn both_ways_find_the_mapping_of_this_program() {
        let here = both_ways_find_the_mapping_of_this_program as fn() as usize;
        let by_text = |files: bool, text: bool| {
            let mut walk = Walk::begin().unwrap();
            walk.by_text = text;
            assert!(shared::word(SharedPage::WALKERS).load(Relaxed) > 0);
            walk.next(here, files).unwrap().unwrap()
        };
        let found = by_text(false, true);
        assert!(found.start <= here && here < found.end && found.prot == 5 && found.inode != 0, "{found:?}");
        assert_eq!(found, by_text(false, false));
        assert_eq!(found, by_text(true, false));
        let mut walk = Walk::begin().unwrap();
        walk.by_text = true;
        let first = walk.next(0, false).unwrap();
        walk.next(usize::MAX / 4, false).unwrap();
        walk.rewind().unwrap();
        assert_eq!(walk.next(0, false).unwrap(), first);
    }
}
