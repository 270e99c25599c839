//! What the head of an ELF file says: its class, its processor, its program headers.
//!
//! Used by `cli`, for programs that are to be run, and by `process`, for those that run already ([`Running`]).
//! Offsets are those of Elf64_Ehdr and Elf64_Phdr (System V gABI, chapters 4 and 5).
//! Fails by: [`ElfError`]; a damaged file is no reason to panic.

use crate::{procfs, procmem};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use thiserror::Error;

/// The linker that is to load it.
pub const PT_INTERP: u32 = 3;
/// Notes.
pub const PT_NOTE: u32 = 4;
const HEAD_LEN: usize = 64;
const X86_64: u16 = 62;

/// Why a file is no program for this processor.
#[derive(Debug, Error)]
pub enum ElfError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("is no ELF file")]
    Foreign,
    /// Its header makes no sense.
    #[error("has a damaged ELF header")]
    Damaged,
    /// The class.
    #[error("is a 32-bit program; only 64-bit x86-64 programs are supported")]
    Small,
    /// The processor.
    #[error("is for another processor (ELF machine {0}); only x86-64 is supported")]
    Machine(u16),
}

/// One program header: the part of a file that it describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// PT_*.
    pub kind: u32,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length there, bytes.
    pub len: u64,
}

/// Where a program is read.
pub trait Bytes {
    /// As pread(2).
    ///
    /// # Errors
    /// As pread(2).
    fn at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl Bytes for File {
    fn at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_at(buffer, offset)
    }
}

/// The program of a process, read where the process has it mapped: to open its file might be noticed (a lease,
/// inotify). The linker maps its head with its first segment, which nothing writes.
#[derive(Debug)]
pub enum Running {
    /// A thread of the process, and the first byte and the length of the mapping.
    Mapped(i32, u64, u64),
    /// Its head is not mapped.
    Opened(File),
}

impl Running {
    /// That of a process.
    ///
    /// # Errors
    /// Process gone, or not ours.
    pub fn of(pid: i32) -> io::Result<Running> {
        let link = format!("/proc/{pid}/exe");
        let (name, inode) = (procfs::link(&link)?, fs::metadata(&link)?.ino());
        let maps = |tid| Some((tid, procfs::maps(pid, tid).ok().filter(|maps| !maps.is_empty())?));
        let (tid, maps) = procfs::by_any_thread(pid, maps)?;
        let head = maps.iter().find(|one| one.offset == 0 && one.inode == inode && one.name == name);
        match head {
            Some(head) => Ok(Running::Mapped(tid, head.start, head.end - head.start)),
            None => File::open(link).map(Running::Opened),
        }
    }
}

impl Bytes for Running {
    fn at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Running::Mapped(tid, start, len) => {
                let there = usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX);
                let there = there.min(buffer.len());
                procmem::read(*tid, start.saturating_add(offset), &mut buffer[..there])?;
                Ok(there)
            }
            Running::Opened(file) => file.read_at(buffer, offset),
        }
    }
}

fn exactly(program: &impl Bytes, offset: u64, buffer: &mut [u8]) -> Result<(), ElfError> {
    let mut done = 0;
    while done < buffer.len() {
        match program.at(offset.saturating_add(done as u64), &mut buffer[done..]) {
            Ok(more) if more > 0 => done += more,
            _ => return Err(ElfError::Damaged),
        }
    }
    Ok(())
}

/// The program headers of a 64-bit program for x86-64.
///
/// # Errors
/// See [`ElfError`].
pub fn segments(program: &impl Bytes) -> Result<Vec<Segment>, ElfError> {
    let mut head = Vec::with_capacity(HEAD_LEN);
    let mut room = [0_u8; HEAD_LEN];
    while head.len() < HEAD_LEN {
        match program.at(head.len() as u64, &mut room[..HEAD_LEN - head.len()])? {
            0 => break,
            len => head.extend_from_slice(&room[..len]),
        }
    }
    if !head.starts_with(b"\x7fELF") {
        return Err(ElfError::Foreign);
    }
    if head.get(4) != Some(&2) {
        return Err(ElfError::Small);
    }
    let half = |bytes: &[u8], at| word(bytes, at).map(u16::from_le_bytes).ok_or(ElfError::Damaged);
    let machine = half(&head, 18)?;
    if head.get(5) != Some(&1) || machine != X86_64 {
        return Err(ElfError::Machine(machine));
    }
    let table = u64::from_le_bytes(word(&head, 32).ok_or(ElfError::Damaged)?);
    let (entry_len, count) = (usize::from(half(&head, 54)?), usize::from(half(&head, 56)?));
    if entry_len < 56 || count == 0 {
        return Err(ElfError::Damaged);
    }
    let mut entries = vec![0_u8; entry_len * count];
    exactly(program, table, &mut entries)?;
    let segment = |entry: &[u8]| {
        let long = |at| word(entry, at).map(u64::from_le_bytes);
        Some(Segment { kind: u32::from_le_bytes(word(entry, 0)?), offset: long(8)?, len: long(32)? })
    };
    entries.chunks_exact(entry_len).map(segment).collect::<Option<_>>().ok_or(ElfError::Damaged)
}

/// Path of the linker that loads a program; `None`: it is statically linked.
///
/// # Errors
/// See [`ElfError`].
pub fn interpreter(program: &impl Bytes) -> Result<Option<Vec<u8>>, ElfError> {
    let all = segments(program)?;
    let Some(segment) = all.iter().find(|segment| segment.kind == PT_INTERP) else { return Ok(None) };
    let len = usize::try_from(segment.len).ok().filter(|len| *len <= libc::PATH_MAX as usize);
    let mut path = vec![0_u8; len.ok_or(ElfError::Damaged)?];
    exactly(program, segment.offset, &mut path)?;
    path.truncate(path.iter().position(|byte| *byte == 0).unwrap_or(path.len()));
    Ok(Some(path))
}

/// Bytes at a place, if they are there.
pub fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(content: &[u8]) -> File {
        let mut file = File::from(crate::memfd::create(c"elf", false).unwrap());
        file.write_all(content).unwrap();
        file
    }

    /// A file with one program header for `linker`, and the linker's name behind it.
    fn program(class: u8, machine: u8, linker: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0_u8; 64 + 56];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        bytes[18] = machine;
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 1;
        bytes[64] = u8::from(!linker.is_empty()) * 2 + 1;
        bytes[72] = 120;
        bytes[96] = u8::try_from(linker.len()).unwrap();
        bytes.extend(linker);
        bytes
    }

    #[test]
    fn a_program_names_its_linker_or_has_none() {
        let dynamic = program(2, 62, b"/lib/ld.so\0");
        assert_eq!(interpreter(&file(&dynamic)).unwrap().unwrap(), b"/lib/ld.so");
        assert_eq!(interpreter(&file(&program(2, 62, b""))).unwrap(), None);
        let running = Running::of(crate::attributes::own_pid()).unwrap();
        assert!(matches!(running, Running::Mapped(..)));
        assert_eq!(
            interpreter(&File::open("/proc/self/exe").unwrap()).unwrap(),
            interpreter(&running).unwrap()
        );
        assert!(matches!(interpreter(&file(&program(1, 3, b""))), Err(ElfError::Small)));
        assert!(matches!(interpreter(&file(&program(2, 183, b""))), Err(ElfError::Machine(183))));
        assert!(matches!(interpreter(&file(b"#!/bin/sh")), Err(ElfError::Foreign)));
        for len in 4..dynamic.len() {
            assert!(interpreter(&file(&dynamic[..len])).is_err(), "{len}");
        }
        let mut endless = dynamic;
        endless[96..104].fill(0xff);
        assert!(matches!(interpreter(&file(&endless)), Err(ElfError::Damaged)));
    }
}
