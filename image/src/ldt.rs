//! The local descriptor table of a process (modify_ldt(2)): as the processor has it, and as the kernel takes it.
//!
//! Written by `process::capture::ldt`, read by `process::rebuild`. Invariants: plain data; the kernel checks what it is
//! given.

/// Bytes of an entry.
pub const ENTRY_LEN: usize = 8;
/// Bytes of the largest table (arch/x86/include/uapi/asm/ldt.h, LDT_ENTRIES).
pub const LEN_MAX: usize = 8192 * ENTRY_LEN;

/// A table of the record, as one `struct user_desc` for each entry that is not empty
/// (arch/x86/include/uapi/asm/ldt.h): number, base, limit, flags.
pub fn entries(table: &[u8]) -> impl Iterator<Item = [u32; 4]> {
    let (entries, _) = table.as_chunks::<ENTRY_LEN>();
    let numbered = (0_u32..).zip(entries.iter().map(|entry| u64::from_le_bytes(*entry)));
    numbered.filter(|(_, entry)| *entry != 0).map(|(number, entry)| user_desc(number, entry))
}

/// The inverse of the kernel's fill_ldt (arch/x86/include/asm/desc.h).
fn user_desc(number: u32, entry: u64) -> [u32; 4] {
    let bits = |at: u32, count: u32| ((entry >> at) & ((1 << count) - 1)) as u32;
    let base = bits(16, 24) | bits(56, 8) << 24;
    let limit = bits(0, 16) | bits(48, 4) << 16;
    let read_only = 1 - bits(41, 1);
    let not_present = 1 - bits(47, 1);
    let (contents, usable, wide, in_pages) = (bits(42, 2), bits(52, 1), bits(54, 1), bits(55, 1));
    let flags = wide | contents << 1 | read_only << 3 | in_pages << 4 | not_present << 5 | usable << 6;
    [number, base, limit, flags]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_as_they_were_given() {
        // Data, writable, 32 bits, base 0x12345000, limit 0xfff bytes; as fill_ldt makes it.
        let data = 0x1240_f334_5000_0fff_u64;
        // Code, readable, in pages, not usable, base 0xff000000, limit 0xfffff.
        let code = 0xffcf_fb00_0000_ffff_u64;
        let table: Vec<u8> = [0, 0, 0, data, code].iter().flat_map(|entry| entry.to_le_bytes()).collect();
        let expected = [[3, 0x1234_5000, 0xfff, 0b0000_0001], [4, 0xff00_0000, 0xf_ffff, 0b0001_0101]];
        assert_eq!(entries(&table).collect::<Vec<_>>(), expected);
        assert_eq!(entries(&[1, 2, 3]).count(), 0);
    }
}
