//! The area of libholdfast in the program, read and written from here.
//!
//! Invariants: while the program runs only words of the agent are written (`holdfast_abi::GuardArea` says whose is
//! which). What it changes meanwhile is read in whole words of 8 bytes: where the processor has no fast `rep movsb`
//! the kernel copies those with one instruction each, and what is left over byte by byte
//! (arch/x86/lib/copy_user_64.S, rep_movs_alternative), so that half of another value could be among them. Fails by:
//! the error of process_vm_readv(2) or process_vm_writev(2); ESRCH when the program ended.

use holdfast_abi::{GuardArea, SharedPage};
use holdfast_image::record::InjectArea;
use holdfast_sys::procmem;
use std::io;

/// The area of one program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Any thread that shares the memory.
    tid: i32,
    base: u64,
}

impl Remote {
    /// The area, if the program was started with the engine.
    ///
    /// # Errors
    /// The shared page cannot be read.
    pub fn of(tid: i32, area: &InjectArea) -> io::Result<Option<Remote>> {
        if area.shared.0 == 0 {
            return Ok(None);
        }
        let base = procmem::read_u64(tid, area.shared.0 + SharedPage::GUARD_AREA as u64)?;
        Ok((base != 0).then_some(Remote { tid, base }))
    }
    /// The same area through another thread: that of `pid`.
    pub fn by(self, pid: i32) -> Remote {
        Remote { tid: pid, ..self }
    }
    /// Address of a byte of it in the program.
    pub fn address(&self, offset: usize) -> u64 {
        self.base + offset as u64
    }
    /// Bytes.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        procmem::read(self.tid, self.address(offset), buffer)
    }
    /// A word.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn word(&self, offset: usize) -> io::Result<u64> {
        procmem::read_u64(self.tid, self.address(offset))
    }
    /// `count` words.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn words(&self, offset: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.read(offset, &mut bytes)?;
        Ok(bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(crate::stop::xstate::array(word, 0)))
            .collect())
    }
    /// `count` u32, each as it was at some instant.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn halves(&self, offset: usize, count: usize) -> io::Result<Vec<u32>> {
        let (start, skip, len) = whole_words(offset, count);
        let mut bytes = vec![0; len];
        self.read(start, &mut bytes)?;
        let halves = bytes.as_chunks().0.iter().skip(skip).take(count);
        Ok(halves.map(|half| u32::from_le_bytes(*half)).collect())
    }
    /// Writes bytes.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        procmem::write(self.tid, self.address(offset), bytes)
    }
    /// Writes a word.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn set(&self, offset: usize, value: u64) -> io::Result<()> {
        self.write(offset, &value.to_le_bytes())
    }
    /// States of pages, by their numbers.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn states(&self, first: u64, count: u64) -> io::Result<Vec<u32>> {
        let first = usize::try_from(first).unwrap_or(usize::MAX / 8);
        self.halves(GuardArea::STATE + first * 4, usize::try_from(count).unwrap_or(0))
    }
    /// Marks pages, by their numbers.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn flag(&self, first: u64, count: u64, flag: u8) -> io::Result<()> {
        let first = usize::try_from(first).unwrap_or(usize::MAX / 8);
        self.write(GuardArea::FLAGS + first, &vec![flag; usize::try_from(count).unwrap_or(0)])
    }
}

/// What is to be read for `count` u32 from `offset` on: where from, how many u32 lie before them, how many bytes.
fn whole_words(offset: usize, count: usize) -> (usize, usize, usize) {
    let start = offset / 8 * 8;
    (start, (offset - start) / 4, (offset + count * 4 - start).next_multiple_of(8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_read_in_whole_words() {
        assert_eq!(whole_words(16, 0), (16, 0, 0));
        assert_eq!(whole_words(16, 1), (16, 0, 8));
        assert_eq!(whole_words(20, 1), (16, 1, 8));
        assert_eq!(whole_words(20, 2), (16, 1, 16));
        assert_eq!(whole_words(16, 3), (16, 0, 16));
    }

    #[test]
    fn any_of_them_can_be_asked_for() {
        let mut all: Vec<u64> = (0..8).map(|n| ((2 * n + 1) << 32) | (2 * n)).collect();
        let own = Remote { tid: std::process::id().cast_signed(), base: all.as_mut_ptr().addr() as u64 };
        for first in 0..16_usize {
            for count in 0..16 - first {
                let expected: Vec<u32> =
                    (first..first + count).map(|n| u32::try_from(n).unwrap_or(0)).collect();
                assert_eq!(own.halves(first * 4, count).ok(), Some(expected), "{first} {count}");
            }
        }
    }
}
