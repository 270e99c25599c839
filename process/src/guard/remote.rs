//! The area of libholdfast in the program, read and written from here.
//!
//! Invariants: while the program runs only words of the agent are written (`holdfast_image::control::GuardArea` says
//! whose is which). Fails by: the error of process_vm_readv(2) or process_vm_writev(2); ESRCH when the program ended.

use holdfast_image::control::{GuardArea, SharedPage};
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
        Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(crate::xstate::array(word, 0))).collect())
    }
    /// `count` u32.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn halves(&self, offset: usize, count: usize) -> io::Result<Vec<u32>> {
        let mut bytes = vec![0; count * 4];
        self.read(offset, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|half| u32::from_le_bytes(*half)).collect())
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
