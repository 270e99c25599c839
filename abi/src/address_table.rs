//! Addresses of hosts that the program remembers, and what they are since a restart elsewhere.

use core::mem::size_of;

/// The tables by which libholdfast translates addresses of the internet. Memory of the library (.bss), inherited by
/// fork, part of every image. The agent writes it at a restart, while the program is stopped; the library itself when a
/// program was executed, of the file [`AddressTable::FILE`] beside the agent's socket. Both tables ascend by
/// [`AddressPair::from`]. That file has the two numbers, and then the entries of both tables.
#[repr(C)]
pub struct AddressTable {
    /// Entries of `forward`.
    pub count: u64,
    /// Entries of `backward`.
    pub back_count: u64,
    /// From what the program knows to what the kernel has.
    pub forward: [AddressPair; AddressTable::MAX],
    /// The other way.
    pub backward: [AddressPair; AddressTable::MAX],
}

/// Two addresses of IPv6, or of IPv4 as IPv6 has them (`::ffff:a.b.c.d`), in the order of the network.
#[repr(C)]
pub struct AddressPair {
    /// What is translated.
    pub from: [u8; 16],
    /// What it becomes.
    pub to: [u8; 16],
}

offsets! { AddressTable {
    COUNT = count;
    BACK_COUNT = back_count;
    FORWARD = forward;
    BACKWARD = backward;
} }

impl AddressTable {
    /// Most entries of either table.
    pub const MAX: usize = 2048;
    /// Bytes of an entry.
    pub const ENTRY: usize = size_of::<AddressPair>();
    /// Bytes of all.
    pub const LEN: usize = size_of::<AddressTable>();
    /// Bytes of the two numbers.
    pub const HEAD: usize = AddressTable::FORWARD;
    /// Name of the file for programs that are executed.
    pub const FILE: &str = "addresses";
}

// Padding would be memory without a name.
const _: () = assert!(
    AddressTable::ENTRY == 32
        && AddressTable::HEAD == 16
        && AddressTable::LEN == AddressTable::HEAD + 2 * AddressTable::MAX * AddressTable::ENTRY
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Images hold it.
    #[test]
    fn the_layout_is_frozen() {
        let found = [
            AddressTable::COUNT,
            AddressTable::BACK_COUNT,
            AddressTable::FORWARD,
            AddressTable::BACKWARD,
            AddressTable::LEN,
        ];
        assert_eq!(found, [0, 8, 16, 65_552, 131_088]);
    }
}
