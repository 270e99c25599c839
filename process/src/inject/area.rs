//! The library's memory in the stopped program: is it still there, is the stub in it, is the library busy.
//!
//! Called inside the stop, before anything is written to the program.

use crate::error::CutError;
use crate::error::TraceError;
use crate::inject::stub;
use holdfast_abi::SharedPage;
use holdfast_image::record::InjectArea;
use holdfast_sys::attributes;
use holdfast_sys::procfs::{self, Mapping};
use holdfast_sys::procmem::{self, ForcedMemory};
use std::io;

const MAGIC: &[u8] = &SharedPage::MAGIC_BYTES;

/// What is wrong if it is not [`is_ours`].
pub const NOT_OURS: &str =
    "the program has executed another program, whose libholdfast has not registered yet";

/// Whether the area is still the one that the library registered: an exec leaves the address without meaning, and
/// what lies there now must not be written to.
pub fn is_ours<'a>(tid: i32, area: &InjectArea, maps: impl Iterator<Item = &'a Mapping> + Clone) -> bool {
    const READ_EXECUTE: u32 = 5;
    const READ_WRITE: u32 = 3;
    // A lazy restart may have made several mappings of a range.
    let lies_in = |start: u64, len: u64, prot: u32| {
        let fits = |m: &&Mapping| !m.shared && m.prot == prot;
        let reach = maps.clone().filter(fits).fold(start, |reach, mapping| {
            if mapping.start <= reach { reach.max(mapping.end) } else { reach }
        });
        reach >= start + len
    };
    let mut magic = [0_u8; MAGIC.len()];
    let named = area.shared.0 == 0
        || procmem::read(tid, area.shared.0 + SharedPage::MAGIC as u64, &mut magic).is_ok() && magic == MAGIC;
    named
        && lies_in(area.code.0, area.code_len, READ_EXECUTE)
        && lies_in(area.scratch.0, area.scratch_len, READ_WRITE)
}

/// A quick look, by any thread of ours, whether the area has not lost its meaning yet.
pub fn is_still_there(pid: i32, area: &InjectArea) -> bool {
    let code = stub::code();
    let (at, wanted) = match area.shared.0 {
        // Where the agent has made it itself there is nothing but the stub to know it by.
        0 => (area.code.0, code),
        shared => (shared + SharedPage::MAGIC as u64, MAGIC),
    };
    let mut there = vec![0_u8; wanted.len()];
    area.is_valid() && procmem::read(pid, at, &mut there).is_ok() && there == wanted
}

/// Puts the stub into the program's code range, unless it is there already.
pub fn ready_stub(memory: &ForcedMemory, area: &InjectArea) -> io::Result<()> {
    let code = stub::code();
    let mut there = vec![0_u8; code.len()];
    memory.read(area.code.0, &mut there)?;
    if there != code {
        memory.write(area.code.0, code)?;
    }
    Ok(())
}

/// Whether the library is opening or closing descriptors of its own at this instant.
pub fn is_connecting(tid: i32, area: &InjectArea) -> bool {
    let own = || procmem::read_u64(tid, area.shared.0 + SharedPage::OWN_FD as u64);
    area.shared.0 != 0 && own().is_ok_and(|own| own == SharedPage::OWN_FD_CHANGING)
}

/// Number of the library's own connection, if it is waiting for us.
pub fn own_descriptor(tid: i32, area: &InjectArea) -> Result<Option<i32>, CutError> {
    if area.shared.0 == 0 {
        return Ok(None);
    }
    if procmem::read_u64(tid, area.shared.0 + SharedPage::WALKERS as u64)? != 0 {
        return Err(CutError::Busy { what: "libholdfast is looking at the program's mappings".into() });
    }
    match procmem::read_u64(tid, area.shared.0 + SharedPage::OWN_FD as u64)? {
        SharedPage::OWN_FD_CHANGING => {
            Err(CutError::Busy { what: "libholdfast is connecting to the agent".into() })
        }
        number => {
            Ok(i32::try_from(number).ok().and_then(|number| number.checked_sub(1)).filter(|&fd| fd >= 0))
        }
    }
}

/// The bytes of this process's vdso: those of all others here.
pub fn own_vdso() -> Option<Vec<u8>> {
    let pid = attributes::own_pid();
    let maps = procfs::maps(pid, pid).ok()?;
    let vdso = maps.iter().find(|mapping| mapping.name == b"[vdso]")?;
    let mut bytes = vec![0; usize::try_from(vdso.end - vdso.start).ok()?];
    // By a call that needs no file: /proc/self/mem may be opened only where the process is dumpable.
    procmem::read(pid, vdso.start, &mut bytes).ok()?;
    Some(bytes)
}

/// The bytes of the vdso; those of our own, which the kernel gives to all, where a program has unmapped its own.
///
/// # Errors
/// The thread ended.
pub fn read_vdso<'a>(tid: i32, mut maps: impl Iterator<Item = &'a Mapping>) -> Result<Vec<u8>, TraceError> {
    let Some(vdso) = maps.find(|mapping| mapping.name == b"[vdso]") else {
        return Ok(own_vdso().unwrap_or_default());
    };
    let mut bytes = vec![0_u8; usize::try_from(vdso.end - vdso.start).unwrap_or(0)];
    procmem::read(tid, vdso.start, &mut bytes)?;
    Ok(bytes)
}
