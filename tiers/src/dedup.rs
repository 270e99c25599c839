//! Pages that are in an image twice: an address space that is a copy of another has its pages until one of them is
//! written, and they are stored once.
//!
//! Used by the workers of the pipeline, all at once, while an image of several is made. Pages are told apart by their
//! hashes of 128 bits, as pages of the parent image are. What must hold: a place is noted only when the page lies in
//! its file; a page that is looked for before that is stored a second time, which costs space only.

use crate::lineage::Lineage;
use crate::locations::Origin;
use holdfast_image::{Addr, address_space};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;

/// Parts of the table that are locked each by itself.
const SHARDS: usize = 64;
/// Address spaces of the parent image that are asked for a page.
const MOST_SPACES: usize = 8;

/// See the head of the file.
pub(crate) struct Dedup {
    shards: Vec<Mutex<HashMap<u128, Origin>>>,
    /// Address spaces that the parent image has.
    spaces: Vec<u32>,
}

impl Dedup {
    pub(crate) fn new(parent: Option<&Lineage>) -> Dedup {
        let index = parent.map_or(&[][..], |parent| &parent.tables.index[..]);
        let mut spaces: Vec<u32> =
            index.iter().map(|entry| address_space::split(entry.run.start).0).collect();
        spaces.dedup();
        spaces.truncate(MOST_SPACES);
        Dedup { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), spaces }
    }

    fn shard(&self, hash: u128) -> MutexGuard<'_, HashMap<u128, Origin>> {
        let shard = &self.shards[(hash % SHARDS as u128) as usize];
        shard.lock()
    }

    /// A page with this hash lies there.
    pub(crate) fn note(&self, hash: u128, origin: Origin) {
        if hash != 0 {
            self.shard(hash).insert(hash, origin);
        }
    }

    /// Where a page with this hash lies in this image.
    pub(crate) fn find(&self, hash: u128) -> Option<Origin> {
        self.shard(hash).get(&hash).copied()
    }

    /// Where other address spaces of the parent image may have the same page: at the same address.
    pub(crate) fn elsewhere(&self, page: Addr) -> impl Iterator<Item = Addr> {
        let (own, address) = address_space::split(page);
        let others = self.spaces.iter().filter(move |other| **other != own);
        others.map(move |other| address_space::global(*other, address))
    }
}
