//! Slots and digests of blocks, as runs of addresses of the space of devices.

use super::messages::{Block, Run};
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_cuda_kernels::digest::Digest;
use holdfast_image::PAGE_SIZE;
use holdfast_image::address_space::DIGESTS;
use std::collections::BTreeSet;

/// Bytes of the digests of a page.
const SLOTS_OF_PAGE: u64 = PAGE_SIZE / Digest::BYTES;

/// Slots, ascending by device, as runs of addresses.
pub fn runs(mut slots: Vec<u64>) -> Vec<Run> {
    slots.sort_unstable();
    let mut all: Vec<Run> = Vec::new();
    for slot in slots {
        let start = slot * CHUNK;
        match all.last_mut() {
            Some((first, len)) if *first + *len == start => *len += CHUNK,
            _ => all.push((start, CHUNK)),
        }
    }
    all
}

/// The pages with the digests of these blocks.
pub fn digest_pages(blocks: &[Block]) -> Vec<Run> {
    let pages = blocks.iter().flat_map(|block| {
        let last = block.name + block.bytes / CHUNK;
        block.name / SLOTS_OF_PAGE..last.div_ceil(SLOTS_OF_PAGE)
    });
    let pages: BTreeSet<u64> = pages.collect();
    let mut all: Vec<Run> = Vec::new();
    for page in pages {
        let start = DIGESTS + page * PAGE_SIZE;
        match all.last_mut() {
            Some((first, len)) if *first + *len == start => *len += PAGE_SIZE,
            _ => all.push((start, PAGE_SIZE)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 2 << 20;

    #[test]
    fn slots_and_digests_are_runs_of_addresses() {
        assert_eq!(runs(vec![40, 41, 33]), [(33 * CHUNK, CHUNK), (40 * CHUNK, 2 * CHUNK)]);
        let block = |name, bytes| Block { name, bytes, owner: 1, uuid: [0; 16] };
        let pages = digest_pages(&[block(32, UNIT), block(64, 16 * UNIT), block(1024, UNIT)]);
        assert_eq!(pages, [(DIGESTS, 3 * PAGE_SIZE), (DIGESTS + 4 * PAGE_SIZE, PAGE_SIZE)]);
    }
}
