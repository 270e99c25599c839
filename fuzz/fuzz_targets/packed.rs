//! Trailer and table of a packed segment of any bytes: decoded or refused; what is decoded lies within the blob.
#![no_main]

use holdfast_tiers::format::packed::{TAIL, Trailer, stripe_len};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

fn decode(trailer: &[u8; 64], len: u64, table: &[u8]) {
    let Ok(Some(trailer)) = Trailer::decode(trailer, len) else { return };
    let (at, table_len) = trailer.table();
    assert!(at.checked_add(table_len as u64 + 64) == Some(len));
    let Ok((stripes, tail)) = trailer.stripes(table) else { return };
    assert!(tail + TAIL <= at);
    for (number, (offset, stripe)) in (0..).zip(&stripes) {
        assert!(offset + u64::from(stripe.stored_len) <= tail);
        assert!(u64::from(stripe.stored_len) <= stripe_len(trailer.segment_len, number));
    }
}

fuzz_target!(|data: (u64, [u8; 32], [u8; 32], &[u8])| {
    let (len, low, high, table) = data;
    let mut trailer = [0; 64];
    trailer[..32].copy_from_slice(&low);
    trailer[32..].copy_from_slice(&high);
    decode(&trailer, len, table);
    // With a right magic, version and checksums.
    trailer[..16].copy_from_slice(b"HOLDPACK\x01\0\0\0\0\0\0\0");
    trailer[24..32].copy_from_slice(&len.to_le_bytes());
    trailer[32..40].copy_from_slice(&xxh3_64(table).to_le_bytes());
    let sum = xxh3_64(&trailer[..56]);
    trailer[56..].copy_from_slice(&sum.to_le_bytes());
    decode(&trailer, len, table);
});
