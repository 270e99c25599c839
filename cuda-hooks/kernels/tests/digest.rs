//! The digest as a function: what it depends on, how far a change spreads, that nothing simple collides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::collections::HashSet;

use holdfast_cuda_kernels::digest::{Digest, Keys, digest, is_zero};

const CHUNK: usize = 64 << 10;

/// Values without an order; the same every time.
fn noise(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).flat_map(|n| noise(seed << 32 | n).to_le_bytes());
    words.take(length).collect()
}

fn keys(seed: u64) -> Keys {
    Keys::new(bytes(seed, 16).try_into().unwrap())
}

fn value(digest: Digest) -> u128 {
    u128::from_le_bytes(digest.to_bytes())
}

fn full() -> bool {
    std::env::var_os("HOLDFAST_TEST_FULL").is_some()
}

/// Flips each of the bits and compares.
fn flip(chunk: &mut [u8], bits: impl Iterator<Item = usize>) -> u32 {
    let keys = keys(1);
    let known = digest(&keys, chunk);
    let mut flipped = 0;
    for bit in bits {
        chunk[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(digest(&keys, chunk), known, "bit {bit} of {} bytes", chunk.len());
        chunk[bit / 8] ^= 1 << (bit % 8);
        flipped += 1;
    }
    assert_eq!(digest(&keys, chunk), known);
    flipped
}

#[test]
fn every_bit_of_a_chunk_counts() {
    for length in [1, 15, 16, 17, 100, 4095, 4096, 4101] {
        for mut chunk in [vec![0; length], vec![0xff; length], bytes(5, length)] {
            assert_eq!(flip(&mut chunk, 0..length * 8), length as u32 * 8);
        }
    }
    let all = 0..CHUNK * 8;
    let flipped = flip(&mut bytes(6, CHUNK), all.step_by(if full() { 1 } else { 487 }));
    println!("{flipped} bits of a whole chunk");
}

#[test]
fn a_change_spreads_over_all_bits() {
    for length in [16, 4096, 4100] {
        let (keys, mut chunk) = (keys(2), bytes(7, length));
        let known = value(digest(&keys, &chunk));
        let (mut each, mut all) = ([0u32; 128], 0);
        let bits: Vec<usize> = (0..length * 8).step_by((length * 8 / 4000).max(1)).collect();
        for &bit in &bits {
            chunk[bit / 8] ^= 1 << (bit % 8);
            let change = value(digest(&keys, &chunk)) ^ known;
            chunk[bit / 8] ^= 1 << (bit % 8);
            assert!((20..=108).contains(&change.count_ones()), "bit {bit}: {change:#x}");
            all += change.count_ones();
            each.iter_mut().enumerate().for_each(|(n, count)| *count += (change >> n & 1) as u32);
        }
        let flips = bits.len() as f64;
        let mean = f64::from(all) / flips;
        assert!((62.5..65.5).contains(&mean), "{mean} bits of 128 change");
        // five standard deviations
        let most = 2.5 * flips.sqrt();
        let worst = each.map(|count| (f64::from(count) - flips / 2.0).abs()).into_iter().fold(0.0, f64::max);
        assert!(worst < most, "one bit changes {worst} times more or less often than every other time");
    }
}

#[test]
fn every_bit_of_the_key_counts() {
    let (secret, chunk) = ([0x5au8; 16], bytes(8, 1000));
    let mut seen = HashSet::from([digest(&Keys::new(secret), &chunk)]);
    for bit in 0..128 {
        let mut other = secret;
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(seen.insert(digest(&Keys::new(other), &chunk)), "bit {bit}");
    }
    assert_eq!(format!("{:?}", keys(1)), "Keys");
}

#[test]
fn zeros_of_every_length_differ() {
    let (keys, zeros) = (keys(3), vec![0; CHUNK]);
    let lengths = (0..=CHUNK).step_by(if full() { 1 } else { 13 });
    let seen: HashSet<Digest> = lengths.clone().map(|length| digest(&keys, &zeros[..length])).collect();
    assert_eq!(seen.len(), lengths.count());
    assert!(!seen.contains(&Digest::NONE));
    assert!(is_zero(&zeros) && is_zero(&zeros[..17]) && is_zero(&[]));
    for at in [0, 15, 16, 17, 40] {
        let mut chunk = vec![0; 41];
        chunk[at] = 1;
        assert!(!is_zero(&chunk), "byte {at}");
    }
}

/// No two digests, and no two halves of digests, are the same.
struct Seen {
    halves: [HashSet<u64>; 2],
    count: usize,
}

impl Seen {
    fn new() -> Seen {
        Seen { halves: [HashSet::new(), HashSet::new()], count: 0 }
    }

    fn add(&mut self, digest: Digest, what: std::fmt::Arguments<'_>) {
        let value = value(digest);
        let fresh = self.halves[0].insert(value as u64) & self.halves[1].insert((value >> 64) as u64);
        assert!(fresh, "{what} is the {}th, and not alone", self.count);
        self.count += 1;
    }
}

#[test]
fn small_numbers_anywhere_differ() {
    let (keys, mut seen) = (keys(4), Seen::new());
    let most = if full() { 1 << 20 } else { 1 << 15 };
    for n in 1..=most as u64 {
        let mut chunk = [0; 64];
        chunk[n as usize % 8 * 8..][..8].copy_from_slice(&(n / 8 + 1).to_le_bytes());
        seen.add(digest(&keys, &chunk), format_args!("number {n}"));
    }
}

#[test]
fn two_changes_do_not_cancel_each_other() {
    // the same bit, and the same difference, in two vectors: of one lane, of neighbours, of one vector's halves
    let keys = keys(5);
    for (length, first, second) in
        [(8192, 0, 4096), (8192, 8, 4096), (8192, 8, 4104), (64, 0, 16), (64, 8, 24), (64, 0, 8)]
    {
        for base in [vec![0u8; length], bytes(9, length)] {
            let (mut seen, mut chunks) = (Seen::new(), HashSet::from([base.clone()]));
            seen.add(digest(&keys, &base), format_args!("nothing changed"));
            let add = |chunk: &mut [u8], at: usize, what: u64, xor: bool| {
                let word: &mut [u8; 8] = (&mut chunk[at..at + 8]).try_into().unwrap();
                let old = u64::from_le_bytes(*word);
                *word = if xor { old ^ what } else { old.wrapping_add(what) }.to_le_bytes();
            };
            for bit in 0..64 {
                let (plus, minus) = (1u64 << bit, (1u64 << bit).wrapping_neg());
                for (one, other, xor) in [(plus, plus, true), (plus, minus, false), (plus, plus, false)] {
                    let mut chunk = base.clone();
                    add(&mut chunk, first, one, xor);
                    add(&mut chunk, second, other, xor);
                    let digest = digest(&keys, &chunk);
                    if chunks.insert(chunk) {
                        seen.add(digest, format_args!("bit {bit} of {first} and {second}"));
                    }
                }
            }
        }
    }
}

#[test]
fn the_order_of_vectors_counts() {
    let keys = keys(6);
    let chunk = bytes(10, 3 * 4096);
    let mut seen = Seen::new();
    seen.add(digest(&keys, &chunk), format_args!("nothing changed"));
    for (first, second) in (0..768).step_by(7).map(|n| (n, (n * 5 + 256) % 768)).filter(|(a, b)| a < b) {
        let mut other = chunk.clone();
        let (left, right) = other.split_at_mut(second * 16);
        left[first * 16..first * 16 + 16].swap_with_slice(&mut right[..16]);
        seen.add(digest(&keys, &other), format_args!("vectors {first} and {second}"));
    }
}

/// Digests are in images: these values never change.
#[test]
fn digests_are_what_they_were() {
    let keys = Keys::new(*b"sixteen bytes...");
    let found =
        [0, 1, 16, 4097, CHUNK].map(|length| format!("{:032x}", value(digest(&keys, &bytes(11, length)))));
    assert_eq!(
        found,
        [
            "e7f68af8866427da021469b33d83cb8c",
            "4d8e8ab4cb7b2a8958cca684ac161d07",
            "57030798421ff4bf7a5e7d8b9a4e5739",
            "339becd7e9ef51ca855ed54cd88d3c56",
            "156111590a18680014de5464fd3e5764",
        ]
    );
}
