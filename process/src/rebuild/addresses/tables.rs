//! Addresses that have changed, as libholdfast has them: in the memory of the program, and in a file for programs that
//! are executed later ([`AddressTable`]).
//!
//! Called by the agent: of each process, when its memory is back and before it runs; once for the file. Fails by: an
//! error that names the process; nothing of it has run.

use crate::rebuild::error::RebuildError;
use holdfast_abi::{AddressTable, SharedPage};
use holdfast_image::host_addresses::MovedAddress;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::procmem::ForcedMemory;
use std::collections::BTreeMap;
use std::net::IpAddr;

type Key = [u8; 16];

fn key(ip: IpAddr) -> Key {
    match ip {
        IpAddr::V4(four) => four.to_ipv6_mapped().octets(),
        IpAddr::V6(six) => six.octets(),
    }
}

/// The entries of both tables; of several addresses that are one now, the first counts on the way back.
fn tables(moved: &[MovedAddress]) -> [BTreeMap<Key, Key>; 2] {
    let (mut forward, mut backward) = (BTreeMap::new(), BTreeMap::new());
    for MovedAddress { known, present } in moved {
        forward.entry(key(*known)).or_insert(key(*present));
        backward.entry(key(*present)).or_insert(key(*known));
    }
    let mut both = [forward, backward];
    both.iter_mut().for_each(|table| table.retain(|from, to| from != to));
    both
}

fn entries(table: &BTreeMap<Key, Key>) -> Vec<u8> {
    table.iter().flat_map(|(from, to)| [*from, *to].concat()).collect()
}

fn head(both: &[BTreeMap<Key, Key>; 2]) -> Vec<u8> {
    both.iter().flat_map(|table| (table.len() as u64).to_le_bytes()).collect()
}

/// What the file has.
pub fn file(moved: &[MovedAddress]) -> Vec<u8> {
    let both = tables(moved);
    [head(&both), entries(&both[0]), entries(&both[1])].concat()
}

/// Tells libholdfast in a process.
///
/// # Errors
/// It is of a version that knows no tables, or cannot be told.
pub fn write(
    memory: &ForcedMemory,
    record: &ProcessRecord,
    moved: &[MovedAddress],
) -> Result<(), RebuildError> {
    let (page, both) = (record.inject.shared.0, tables(moved));
    if page == 0 {
        // That there are none was found out before.
        return Ok(());
    }
    let write = || {
        let mut word = [0; 8];
        memory.read(page + SharedPage::ADDRESSES as u64, &mut word)?;
        let at = u64::from_le_bytes(word);
        if at == 0 || at > 1 << 47 || !at.is_multiple_of(8) {
            return Ok(moved.is_empty());
        }
        for (table, place) in both.iter().zip([AddressTable::FORWARD, AddressTable::BACKWARD]) {
            memory.write(at + place as u64, &entries(table))?;
        }
        memory.write(at + AddressTable::COUNT as u64, &head(&both))?;
        Ok(true)
    };
    match write().map_err(RebuildError::io("telling libholdfast in the program of addresses"))? {
        true => Ok(()),
        false => Err(RebuildError::Refused(format!(
            "libholdfast in process {} is of an older version, which cannot translate addresses: restart it where its \
             hosts have the addresses of the checkpoint",
            record.pid
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn tables_ascend_and_the_first_counts_on_the_way_back() {
        let pair = |known: &str, present: &str| MovedAddress {
            known: known.parse().unwrap(),
            present: present.parse().unwrap(),
        };
        let both = tables(&[
            pair("10.0.0.9", "10.0.0.3"),
            pair("10.0.0.2", "10.0.0.3"),
            pair("10.0.0.3", "10.0.0.1"),
        ]);
        let last = |table: &BTreeMap<Key, Key>| -> Vec<(u8, u8)> {
            table.iter().map(|(from, to)| (from[15], to[15])).collect()
        };
        assert_eq!(last(&both[0]), [(2, 3), (3, 1), (9, 3)]);
        assert_eq!(last(&both[1]), [(1, 3), (3, 9)]);
        // One that is itself again hides those that came later.
        let both = tables(&[pair("10.0.0.1", "10.0.0.1"), pair("10.0.0.2", "10.0.0.1")]);
        assert_eq!((last(&both[0]), last(&both[1])), (vec![(2, 1)], vec![]));
        let bytes = file(&[pair("10.0.0.1", "10.0.0.2")]);
        assert_eq!(bytes.len(), AddressTable::HEAD + 2 * AddressTable::ENTRY);
        assert_eq!((bytes[0], bytes[8], bytes[26], bytes[31], bytes[47]), (1, 1, 0xff, 1, 2));
        assert_eq!(file(&[]), [0; AddressTable::HEAD]);
    }
}
