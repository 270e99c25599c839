//! A block of headers of any bytes: decoded or refused, its frames lie in order within the segment, and what goes
//! from block to block comes to an end.
#![no_main]

use holdfast_tiers::format::VERSION;
use holdfast_tiers::format::segment::{BLOCK_LEN, Block};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

/// Gives every slot that is used a right checksum and its magic.
fn with_sums(version: u8, data: &[u8]) -> Vec<u8> {
    let mut block = data.to_vec();
    block.resize(BLOCK_LEN, 0);
    block[..16].copy_from_slice(b"HOLDFAST\0\0\0\0\x02\0\0\0");
    block[8] = version;
    for (slot, bytes) in block.chunks_exact_mut(64).enumerate() {
        if slot > 0 && bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        if slot > 0 {
            bytes[..4].copy_from_slice(b"HFRM");
        }
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
    }
    block
}

fn decode(bytes: &[u8], base: u64, segment_len: u64) {
    let Ok(block) = Block::decode(bytes, base, segment_len) else { return };
    let follows = block.segment.version >= 3;
    let (mut floor, end) = if follows { (0, base) } else { (base + BLOCK_LEN as u64, segment_len) };
    for header in &block.frames {
        assert!(header.frame.offset >= floor && header.frame.end() <= end);
        floor = header.frame.end();
        assert_eq!(header.encode().len(), 64);
    }
    let is_on_the_way = |next| if follows { next < base } else { next > base && next < segment_len };
    assert!(block.next.is_none_or(is_on_the_way));
}

fuzz_target!(|data: (u32, u64, &[u8])| {
    let (base, segment_len, bytes) = data;
    decode(bytes, u64::from(base), segment_len);
    for version in 1..=VERSION as u8 {
        decode(&with_sums(version, bytes), u64::from(base), segment_len);
    }
});
