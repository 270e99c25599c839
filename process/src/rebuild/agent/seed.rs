//! The seed: the new process from its exec on, before it is anything: where it works while it becomes another.
//!
//! It has executed the program's own executable (so that `/proc/PID/exe` is right without any privilege) and is stopped
//! at the exec, before the first instruction. [`plant`] has it map a page of stub code (`inject::stub`) and memory
//! for tables in a hole of the address space that is to be rebuilt; from there on that is all that it needs.

use super::remote_calls::{CallArea, Need, SeedThread};
use crate::error::TraceError;
use crate::inject::stub;
use crate::rebuild::error::RebuildError;
use holdfast_image::PAGE_SIZE;
use holdfast_image::record::{Backing, ProcessRecord};
use holdfast_sys::procfs;
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::ptrace;

/// Bytes for tables of calls.
const TABLE_LEN: u64 = 512 * 1024;
/// Bytes for what the calls point to.
const BUFFERS_LEN: u64 = 512 * 1024;
/// Offset at which the kernel's own mappings wait until their old places are free.
const PARK: u64 = 4 << 20;
/// Offset at which shared memory objects are made before their pieces are moved to their places.
const STAGING: u64 = 16 << 20;
/// Distance kept from mappings of the program (a stack that grows down needs a gap of 1 MiB, mm/mmap.c).
const MARGIN: u64 = 256 << 20;

/// Where the seed lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// First byte of the code page.
    pub base: u64,
    /// First byte of the table.
    pub table: u64,
    /// First byte of the buffers.
    pub buffers: u64,
    /// First byte after the seed itself.
    pub end: u64,
    /// Where the kernel's mappings wait.
    pub park: u64,
    /// Where shared objects are made.
    pub staging: u64,
}

impl Layout {
    /// Of a process that has no seed: its calls are made in its own memory.
    pub fn nowhere() -> Layout {
        Layout::at(0)
    }

    fn at(base: u64) -> Layout {
        let table = base + PAGE_SIZE;
        let buffers = table + TABLE_LEN;
        Layout {
            base,
            table,
            buffers,
            end: buffers + BUFFERS_LEN,
            park: base + PARK,
            staging: base + STAGING,
        }
    }

    /// Where tables of the seed are.
    pub fn area(&self) -> CallArea {
        CallArea {
            code: self.base,
            table: self.table,
            table_len: TABLE_LEN as usize,
            buffers: self.buffers,
            buffers_len: BUFFERS_LEN as usize,
        }
    }

    /// A hole of the recorded address space. Always below where the kernel puts stack and vdso of a new program.
    /// `segment`: bytes of the largest segment of System V.
    ///
    /// # Errors
    /// The program leaves no hole that is large enough.
    pub fn choose(record: &ProcessRecord, segment: u64) -> Result<Layout, RebuildError> {
        let largest = record.regions.iter().map(|region| match region.backing {
            Backing::SharedAnonymous { object_size, .. } => object_size,
            _ => 0,
        });
        let largest = largest.max().unwrap_or(0).max(segment);
        let len = STAGING.saturating_add(largest).saturating_add(MARGIN);
        let taken = |start: u64, end: u64| {
            record.regions.iter().any(|region| region.start.0 < end && start < region.end.0)
        };
        (0..0x6e_u64)
            .map(|step| 0x6f00_0000_0000 - (step << 40))
            .find(|base| {
                let end = base.saturating_add(len);
                end < 0x7000_0000_0000 && !taken(base - MARGIN, end)
            })
            .map(Layout::at)
            .ok_or_else(|| {
                RebuildError::Image(
                    "the program leaves no free range in its address space for a restart".into(),
                )
            })
    }
}

/// Room on the fresh stack for the first table: below everything that exec put there, above where the mapping ends
/// (128 KiB, fs/exec.c, setup_arg_pages).
const FIRST_AREA_LEN: u64 = 16 * 1024;

/// Has the process that is stopped at its exec map the seed. The stub for that goes over the first instructions of the
/// executable's or the loader's code, in the process's own copy of the page; all of it is unmapped right afterwards.
///
/// # Errors
/// The process is gone, or has no memory.
pub fn plant(
    record: &ProcessRecord,
    (pid, inner): (i32, i32),
    layout: &Layout,
    memory: &ForcedMemory,
) -> Result<SeedThread, RebuildError> {
    let maps = procfs::maps(pid, pid).map_err(RebuildError::io("reading the mappings of the new process"))?;
    let code = maps
        .iter()
        .find(|mapping| mapping.prot & 4 != 0 && mapping.name.first() == Some(&b'/'))
        .ok_or_else(|| RebuildError::Image("the executable has no code".into()))?;
    let stack = ptrace::registers(pid).map_err(TraceError::from)?.rsp;
    let first = (stack - FIRST_AREA_LEN) & !(PAGE_SIZE - 1);
    let half = (FIRST_AREA_LEN / 2) as usize;
    let area = CallArea {
        code: code.start,
        table: first,
        table_len: half - 64,
        buffers: first + FIRST_AREA_LEN / 2,
        buffers_len: half - 64,
    };
    let io = || RebuildError::io("writing the seed");
    memory.write(area.code, stub::code()).map_err(io())?;
    let leader = SeedThread::new(record, (pid, inner), area)?;
    let mut batch = leader.batch();
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let (code_prot, area_prot) = (libc::PROT_READ | libc::PROT_EXEC, libc::PROT_READ | libc::PROT_WRITE);
    for (start, end, prot) in [(layout.base, layout.table, code_prot), (layout.table, layout.end, area_prot)]
    {
        let args = [start, end - start, prot as u64, flags, u64::MAX, 0];
        batch.call(libc::SYS_mmap, &args, Need::Must("map the seed at", start))?;
    }
    batch.finish()?;
    memory.write(layout.base, stub::code()).map_err(io())?;
    Ok(leader.with_area(layout.area()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{record, region};

    #[test]
    fn the_seed_avoids_the_program() {
        let free = Layout::choose(&record(Vec::new()), 0).unwrap();
        assert_eq!(free.base, 0x6f00_0000_0000);
        let taken = record(vec![region(free.staging, 1, 3, Backing::Anonymous)]);
        let other = Layout::choose(&taken, 0).unwrap();
        assert!(other.base < free.base);
        assert!(Layout::choose(&taken, u64::MAX).is_err());
        let large = Backing::SharedAnonymous { object: 1, offset: 0, object_size: u64::MAX };
        assert!(Layout::choose(&record(vec![region(0x10000, 1, 3, large)]), 0).is_err());
    }
}
