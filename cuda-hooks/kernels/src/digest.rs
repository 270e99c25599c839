//! The digest of a chunk: 128 bits, keyed. The twin of `holdfast_hash`, bit by bit.
//!
//! Vectors of sixteen bytes are dealt out to 256 lanes in turn. A lane has 128 bits of state: it xors a vector in and
//! permutes the state, again and again; the lanes' states are permuted once more and added up, the length is xored in,
//! and the sum is permuted twice. The permutation is a Feistel network of two rounds whose function is
//! `low ^ high` of the 128-bit product `a * (a + key)`: two multiplications for sixteen bytes.
//!
//! What follows from that: every step is a permutation of the state, so two chunks of one length that differ in one
//! vector only (hence in any one bit) have different digests, for every key, but for the one value in 2^128 that is
//! avoided. Chunks that differ in more have equal ones by chance: about one in 2^128 for a key that the data do not
//! depend on, measured only as far as tests go (`tests/digest.rs`). It is no code for authentication: who knows the key
//! can make two chunks of one digest.
//!
//! Equal content has an equal digest wherever it lies: the address is no part of it.

/// Vectors are dealt out to so many lanes: threads of a block.
pub(crate) const LANES: usize = 256;
const VECTOR: usize = 16;
/// What the lanes begin with differs by it: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The key of a job, as the kernels take it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Keys([u64; 4]);

/// Keys are in no log.
impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// Of sixteen random bytes.
    pub const fn new(secret: [u8; 16]) -> Keys {
        let secret = u128::from_le_bytes(secret);
        let (low, high) = (secret as u64, (secret >> 64) as u64);
        let mut keys = [0; 4];
        let mut n = 0;
        while n < 4 {
            let turn = STEP.wrapping_mul(n as u64 + 1);
            keys[n] = scramble(low.wrapping_add(turn)) ^ scramble(high.wrapping_sub(turn).rotate_left(32));
            n += 1;
        }
        // an even one would make products of an even state lose their lowest bits
        keys[0] |= 1;
        keys[1] |= 1;
        Keys(keys)
    }

    /// As parameters of a kernel.
    pub const fn words(&self) -> [u64; 4] {
        self.0
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
const fn scramble(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Of a chunk. Sixteen bytes, little-endian, on the device and in images.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Digest([u64; 2]);

impl Digest {
    /// Size in a table on the device.
    pub const BYTES: u64 = 16;
    /// No chunk's: what the slot of a chunk has that was never stored.
    pub const NONE: Digest = Digest([0, 0]);

    /// As it lies in memory.
    pub fn to_bytes(self) -> [u8; Self::BYTES as usize] {
        (u128::from(self.0[1]) << 64 | u128::from(self.0[0])).to_le_bytes()
    }

    /// What such bytes are.
    pub fn from_bytes(bytes: [u8; Self::BYTES as usize]) -> Digest {
        let (low, high) = words(bytes);
        Digest([low, high])
    }
}

/// State of a lane.
#[derive(Clone, Copy)]
struct Lane {
    a: u64,
    b: u64,
}

impl Lane {
    fn mix(&mut self, keys: &Keys) {
        self.b = self.b.wrapping_add(fold(self.a, keys.0[0]));
        self.a = self.a.wrapping_add(fold(self.b, keys.0[1]));
    }

    fn absorb(&mut self, vector: [u8; VECTOR], keys: &Keys) {
        let (x, y) = words(vector);
        self.a ^= x;
        self.b ^= y;
        self.mix(keys);
    }
}

fn words(bytes: [u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(bytes);
    (both as u64, (both >> 64) as u64)
}

fn fold(a: u64, key: u64) -> u64 {
    let product = u128::from(a) * u128::from(a.wrapping_add(key));
    product as u64 ^ (product >> 64) as u64
}

/// The digest of a chunk, which has at most [`crate::chunk::CHUNK`] bytes. Takes 4 KiB of stack.
pub fn digest(keys: &Keys, chunk: &[u8]) -> Digest {
    let mut lanes = [Lane { a: keys.0[2], b: keys.0[3] }; LANES];
    let mut step: u64 = 0;
    for lane in &mut lanes {
        lane.a = lane.a.wrapping_add(step);
        step = step.wrapping_add(STEP);
    }
    for row in chunk.chunks(LANES * VECTOR) {
        let (vectors, tail) = row.as_chunks::<VECTOR>();
        for (lane, vector) in lanes.iter_mut().zip(vectors) {
            lane.absorb(*vector, keys);
        }
        if let (false, Some(lane)) = (tail.is_empty(), lanes.get_mut(vectors.len())) {
            let mut padded = [0; VECTOR];
            padded.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
            lane.absorb(padded, keys);
        }
    }
    let mut sum = Lane { a: 0, b: 0 };
    for lane in &mut lanes {
        lane.mix(keys);
        sum.a = sum.a.wrapping_add(lane.a);
        sum.b = sum.b.wrapping_add(lane.b);
    }
    sum.a ^= chunk.len() as u64;
    sum.mix(keys);
    sum.mix(keys);
    if sum.a | sum.b == 0 {
        sum.a = 1;
    }
    Digest([sum.a, sum.b])
}

/// Whether there is no byte in it but zero: such a chunk needs no bytes in an image.
pub fn is_zero(chunk: &[u8]) -> bool {
    let (words, tail) = chunk.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && tail.iter().all(|&byte| byte == 0)
}
