//! The record of an image of objects: memory that a program has put into the store itself, as a version.
//!
//! Written and read by the server of a store (`holdfast serve`), read by `show`. Such an image has no processes: each
//! object is an address space of its own ([`crate::address_space`]), whose first page is at [`BASE`], so that an object
//! keeps its addresses from version to version and only what has changed is stored. Invariant: no two objects of a
//! record have the same space.

use crate::address_space::{SPACES, global};
use crate::pages::PageRun;
use crate::{Addr, PAGE_SIZE, PageCount};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Where an object begins in its space.
pub const BASE: Addr = Addr(1 << 16);

/// Longest object, bytes.
pub const MAX_OBJECT: u64 = 1 << 46;

/// One object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredObject {
    /// Its name.
    pub key: String,
    /// Its length, bytes.
    pub bytes: u64,
    /// Bytes of one element; 1 where that is not known.
    pub element: u64,
    /// Its address space.
    pub space: u32,
}

impl StoredObject {
    /// Its pages, at their global addresses; none, if it is empty.
    pub fn run(&self) -> Option<PageRun> {
        let pages = PageCount(self.bytes.div_ceil(PAGE_SIZE));
        (pages.0 > 0).then_some(PageRun { start: global(self.space, BASE), pages })
    }
}

/// See the head of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ObjectRecord {
    /// The set of objects.
    pub set: String,
    /// The rank that has put it.
    pub rank: u32,
    /// Ranks of the set: a version is whole when all have put theirs.
    pub ranks: u32,
    /// The version.
    pub version: u64,
    /// The run of the set that has put it: parts of one version belong together if they are of one run.
    pub run: u64,
    /// The objects, in the order in which they were put.
    pub objects: Vec<StoredObject>,
}

impl ObjectRecord {
    /// The kind of record that this is, among those that a store keeps.
    pub const KIND: u32 = 2;

    /// The bytes that a store keeps: JSON, so that fields can be added.
    ///
    /// # Errors
    /// A value cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }

    /// Reads what [`ObjectRecord::encode`] has written, and checks it.
    ///
    /// # Errors
    /// It is of another kind, or says what is not possible.
    pub fn decode(kind: u32, bytes: &[u8]) -> Result<ObjectRecord, String> {
        if kind != ObjectRecord::KIND {
            return Err(format!("the record is of kind {kind}: this is no image of objects"));
        }
        let record: ObjectRecord = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let (mut keys, mut spaces) = (BTreeSet::new(), BTreeSet::new());
        for object in &record.objects {
            let is_possible = object.bytes <= MAX_OBJECT && object.space < SPACES && object.element > 0;
            if !is_possible || !keys.insert(&object.key) || !spaces.insert(object.space) {
                return Err(format!("the object \"{}\" cannot be as the record says", object.key));
            }
        }
        if record.rank >= record.ranks {
            return Err(format!("rank {} of {} ranks is not possible", record.rank, record.ranks));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(objects: Vec<StoredObject>) -> ObjectRecord {
        ObjectRecord { set: "heat".into(), rank: 0, ranks: 2, version: 3, run: 1, objects }
    }

    fn object(key: &str, bytes: u64, space: u32) -> StoredObject {
        StoredObject { key: key.into(), bytes, element: 8, space }
    }

    #[test]
    fn what_was_written_is_read_and_what_cannot_be_is_refused() -> Result<(), String> {
        let good = record(vec![object("a", 0, 0), object("b", 4097, 7)]);
        assert_eq!(ObjectRecord::decode(ObjectRecord::KIND, &good.encode()?)?, good);
        assert_eq!(good.objects[0].run(), None);
        assert!(good.objects[1].run().is_some_and(|run| run.pages.0 == 2 && run.is_valid()));
        assert!(ObjectRecord::decode(1, &good.encode()?).is_err());
        let bad = [
            record(vec![object("a", 1, 0), object("a", 1, 1)]),
            record(vec![object("a", 1, 1), object("b", 1, 1)]),
            record(vec![object("a", u64::MAX, 1)]),
            record(vec![object("a", 1, SPACES)]),
            ObjectRecord { rank: 2, ..good.clone() },
        ];
        for record in bad {
            assert!(ObjectRecord::decode(ObjectRecord::KIND, &record.encode()?).is_err(), "{record:?}");
        }
        Ok(())
    }
}
