//! Device memory that an image need not have (`holdfast_cuda_discard`, `--cuda-skip`): where it is in the copy of it
//! that a process has.
//!
//! Called by [`super::data`], behind the closed gate, when the content is away. libholdfast makes the same pieces zero
//! in a process of an image (`cuda-hooks/src/arena/discard.rs`), so both count in whole chunks. What is read is another
//! process's and may be anything: what is not within the copy is saved.
//! Fails by: nothing is left out.

use holdfast_abi::{CudaBlock, CudaData};
use holdfast_sys::procmem;

const CHUNK: u64 = CudaData::DISCARD_UNIT;

/// Bytes of an entry of the table.
const ENTRY: usize = 16;

/// Addresses of the copy in a process: first one and bytes, ascending. `word`: one of [`CudaData`]'s.
pub fn of(pid: i32, word: impl Fn(usize) -> u64) -> Vec<(u64, u64)> {
    let rows = |at: u64, count: usize, entry: usize| {
        let mut bytes = vec![0; count * entry];
        let read = at != 0 && procmem::read(pid, at, &mut bytes).is_ok();
        if read { bytes } else { Vec::new() }
    };
    let discards = rows(word(CudaData::DISCARDS), CudaData::MAX_DISCARDS, ENTRY);
    let discards: Vec<(u64, u64)> = discards
        .chunks_exact(ENTRY)
        .map(|row| (number(row, 0), number(row, 8)))
        .filter(|row| row.1 != 0)
        .collect();
    if discards.is_empty() {
        return Vec::new();
    }
    let count = usize::try_from(word(CudaData::BLOCK_COUNT)).unwrap_or(0).min(CudaData::MAX_BLOCKS);
    let blocks = rows(word(CudaData::BLOCKS), count, CudaData::BLOCK_ENTRY);
    let blocks: Vec<Block> = blocks.chunks_exact(CudaData::BLOCK_ENTRY).map(Block::of).collect();
    places(&discards, &blocks, (word(CudaData::COPY), word(CudaData::COPY_LEN)))
}

fn number(row: &[u8], offset: usize) -> u64 {
    row.get(offset..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Where a block is on the device, and in the copy.
struct Block {
    address: u64,
    bytes: u64,
    offset: u64,
}

impl Block {
    fn of(row: &[u8]) -> Block {
        let word = |offset| number(row, offset);
        Block {
            address: word(CudaBlock::ADDRESS),
            bytes: word(CudaBlock::SIZE),
            offset: word(CudaBlock::OFFSET),
        }
    }
}

fn places(discards: &[(u64, u64)], blocks: &[Block], (copy, copy_len): (u64, u64)) -> Vec<(u64, u64)> {
    let place = |&(start, bytes): &(u64, u64)| {
        let end = start.checked_add(bytes)? / CHUNK * CHUNK;
        let start = start.checked_next_multiple_of(CHUNK)?;
        let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
        let holds = |block: &&Block| {
            let block_end = block.address.checked_add(block.bytes);
            block.address != 0
                && block.address <= start
                && block_end.is_some_and(|block_end| end <= block_end)
        };
        let block = blocks.iter().find(holds)?;
        let offset = block.offset.checked_add(start - block.address)?;
        let is_within = offset.checked_add(bytes)? <= copy_len;
        Some((copy.checked_add(offset)?, bytes)).filter(|_| is_within)
    };
    let mut found: Vec<(u64, u64)> = discards.iter().filter_map(place).collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_chunks_within_a_block_are_left_out() {
        let blocks = [Block { address: 100 * CHUNK, bytes: 32 * CHUNK, offset: 64 * CHUNK }];
        let of = |start: u64, bytes: u64| places(&[(start, bytes)], &blocks, (1 << 40, 96 * CHUNK));
        assert_eq!(of(100 * CHUNK, 2 * CHUNK), [((1 << 40) + 64 * CHUNK, 2 * CHUNK)]);
        assert_eq!(of(101 * CHUNK - 5, 2 * CHUNK), [((1 << 40) + 65 * CHUNK, CHUNK)]);
        assert_eq!(of(101 * CHUNK + 5, CHUNK), []);
        assert_eq!(of(131 * CHUNK, 2 * CHUNK), [], "it is in no block");
        assert_eq!(of(u64::MAX - 5, 100), []);
        let long = [Block { address: 100 * CHUNK, bytes: 64 * CHUNK, offset: 64 * CHUNK }];
        assert_eq!(places(&[(100 * CHUNK, 64 * CHUNK)], &long, (1 << 40, 96 * CHUNK)), [], "past the copy");
    }
}
