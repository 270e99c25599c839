//! The seed: the smallest program that can be told to become another one, and where it lies while it does.
//!
//! A static ELF file built in memory: one page of stub code (`inject::stub`) and room for tables. It lies in a hole of
//! the address space that it rebuilds. Called by [`super::life`] (to execute it) and [`super::place`] (to use it); both
//! compute the same [`Layout`] from the record.

use super::error::RebuildError;
use crate::inject::stub;
use holdfast_image::PAGE_SIZE;
use holdfast_image::record::{Backing, ProcessRecord};

/// Bytes for tables of calls.
pub const TABLE_LEN: u64 = 512 * 1024;
/// Bytes for what the calls point to.
pub const BUFFERS_LEN: u64 = 512 * 1024;
/// Offset at which the kernel's own mappings wait until their old places are free.
const PARK: u64 = 4 << 20;
/// Offset at which shared memory objects are made before their pieces are moved to their places.
const WORKSHOP: u64 = 16 << 20;
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
    pub workshop: u64,
}

impl Layout {
    fn at(base: u64) -> Layout {
        let table = base + PAGE_SIZE;
        let buffers = table + TABLE_LEN;
        Layout {
            base,
            table,
            buffers,
            end: buffers + BUFFERS_LEN,
            park: base + PARK,
            workshop: base + WORKSHOP,
        }
    }

    /// A hole of the recorded address space. Always below where the kernel puts stack and vdso of a new program.
    ///
    /// # Errors
    /// The program leaves no hole that is large enough.
    pub fn choose(record: &ProcessRecord) -> Result<Layout, RebuildError> {
        let largest = record.regions.iter().map(|region| match region.backing {
            Backing::SharedAnonymous { object_size, .. } => object_size,
            _ => 0,
        });
        let len = WORKSHOP.saturating_add(largest.max().unwrap_or(0)).saturating_add(MARGIN);
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
                RebuildError::Image("the program leaves no room in its address space for a restart".into())
            })
    }
}

/// Bytes of an ELF header of 64 bits, of a program header (elf(5)).
const HEADER_LEN: u16 = 64;
const PROGRAM_HEADER_LEN: u16 = 56;
const PT_LOAD: u32 = 1;
const PT_GNU_STACK: u32 = 0x6474_e551;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

fn program_header(kind: u32, flags: u32, offset: u64, address: u64, file_len: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PROGRAM_HEADER_LEN.into());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    for word in [offset, address, address, file_len, len, PAGE_SIZE] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// The file: header page, code page, one page of data (the rest of it is zero memory).
pub fn image(layout: &Layout) -> Vec<u8> {
    let page = PAGE_SIZE as usize;
    let code = stub::code();
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    file.extend(2_u16.to_le_bytes()); // ET_EXEC
    file.extend(62_u16.to_le_bytes()); // EM_X86_64
    file.extend(1_u32.to_le_bytes());
    file.extend(layout.base.to_le_bytes()); // entry
    file.extend(u64::from(HEADER_LEN).to_le_bytes()); // program headers
    file.extend(0_u64.to_le_bytes()); // no section headers
    file.extend(0_u32.to_le_bytes());
    for half in [HEADER_LEN, PROGRAM_HEADER_LEN, 3, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    let code_len = code.len() as u64;
    file.extend(program_header(PT_LOAD, PF_R | PF_X, PAGE_SIZE, layout.base, code_len, code_len));
    let room = layout.end - layout.table;
    file.extend(program_header(PT_LOAD, PF_R | PF_W, 2 * PAGE_SIZE, layout.table, PAGE_SIZE, room));
    file.extend(program_header(PT_GNU_STACK, PF_R | PF_W, 0, 0, 0, 0));
    file.resize(page, 0);
    file.extend_from_slice(code);
    file.resize(3 * page, 0);
    file
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_executes_the_seed() {
        // Its table is all zero: read(0, NULL, 0) for ever, until the table ends and the next row is not mapped.
        let layout = Layout::at(0x6f00_0000_0000);
        let path = std::env::temp_dir().join(format!("seed-{}", std::process::id()));
        std::fs::write(&path, image(&layout)).unwrap();
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&path, permissions).unwrap();
        let status = std::process::Command::new(&path).stdin(std::process::Stdio::null()).status().unwrap();
        std::fs::remove_file(&path).unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(libc::SIGSEGV), "{status:?}");
    }
}
