//! A block of headers of any bytes: decoded or refused, and its frames lie in order within the segment.
#![no_main]

use holdfast_tiers::format::segment::{BLOCK_LEN, Block};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

/// Gives every slot that is used a right checksum and its magic.
fn with_sums(data: &[u8]) -> Vec<u8> {
    let mut block = data.to_vec();
    block.resize(BLOCK_LEN, 0);
    block[..16].copy_from_slice(b"HOLDFAST\x01\0\0\0\x02\0\0\0");
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
    let mut floor = base + BLOCK_LEN as u64;
    for header in &block.frames {
        assert!(header.frame.offset >= floor && header.frame.end() <= segment_len);
        floor = header.frame.end();
        assert_eq!(header.encode().len(), 64);
    }
    assert!(block.next(segment_len).is_none_or(|next| next > base && next < segment_len));
}

fuzz_target!(|data: (u32, u64, &[u8])| {
    let (base, segment_len, bytes) = data;
    decode(bytes, u64::from(base), segment_len);
    decode(&with_sums(bytes), u64::from(base), segment_len);
});
