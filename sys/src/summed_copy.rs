//! Copies bytes past the caches and sums them up on the way: memory is read once for both.
//!
//! Called by [`crate::mapped_buffer`]. The sum is xxh3 (64 bits, without a seed) of all bytes that were given, as
//! <https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md> says for more than 240 bytes; who writes fewer uses
//! the crate. Why by hand: the crate sums what it has been given, and then the copy reads it once more; and it uses
//! AVX2 only where all of the binary does. Invariant: instructions are those that the processor
//! has, which is asked.
//!
//! # Safety
//! Places are pointers into a mapping with room for what is copied, as [`SummedCopy::add`] demands of its caller.
#![allow(unsafe_code)]

/// Fewest bytes that this is the sum of.
pub const LEAST: u64 = 241;
/// Bytes that are summed up at once.
const STRIPE: usize = 64;
/// Stripes between two scrambles.
const STRIPES: usize = 16;
const PRIME32: [u64; 3] = [0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D];
const PRIME64: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];
const SECRET: [u8; 192] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde,
    0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79,
    0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46,
    0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb,
    0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2,
    0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c,
    0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59,
    0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3,
    0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3,
    0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8,
    0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb,
    0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |eight| u64::from_le_bytes(eight.try_into().unwrap_or_default()))
}

/// See the head of the file.
#[derive(Debug)]
pub struct SummedCopy {
    sums: [u64; 8],
    /// Bytes that all will be.
    len: u64,
    /// Bytes that were given.
    given: u64,
    /// Stripes since the last scramble.
    stripes: usize,
    /// What was given last.
    last: [u8; STRIPE],
}

impl SummedCopy {
    /// For so many bytes, [`LEAST`] or more.
    pub fn of(len: u64) -> SummedCopy {
        let [a, b, c, d, e] = PRIME64;
        let sums = [PRIME32[2], a, b, c, d, PRIME32[1], e, PRIME32[0]];
        SummedCopy { sums, len, given: 0, stripes: 0, last: [0; STRIPE] }
    }

    /// Copies the next bytes to `place`. All but the last ones are a multiple of a stripe.
    ///
    /// # Safety
    /// `place` has room for them, at a multiple of 32, and is no part of them.
    pub unsafe fn add(&mut self, place: *mut u8, bytes: &[u8]) {
        debug_assert!(self.given.is_multiple_of(STRIPE as u64), "only the last ones may be odd");
        // The stripe at the end is summed up when it is the end of all.
        let whole = (self.len - 1) / STRIPE as u64 - self.given / STRIPE as u64;
        let stripes = usize::try_from(whole).unwrap_or(usize::MAX).min(bytes.len() / STRIPE);
        let (body, rest) = bytes.split_at(stripes * STRIPE);
        let mut done = 0;
        while done < stripes {
            let now = (stripes - done).min(STRIPES - self.stripes);
            let part = &body[done * STRIPE..(done + now) * STRIPE];
            // SAFETY: a part of what has room at `place`.
            unsafe { stripes_of(&mut self.sums, place.add(done * STRIPE), part, 8 * self.stripes) };
            self.stripes += now;
            done += now;
            if self.stripes == STRIPES {
                self.scramble();
                self.stripes = 0;
            }
        }
        // SAFETY: there is room for what is left, too.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), place.add(body.len()), rest.len()) };
        self.given += bytes.len() as u64;
        // Of all but what may be in the last stripe nothing is kept.
        if self.len.saturating_sub(self.given) < STRIPE as u64 {
            let kept = bytes.len().min(STRIPE);
            self.last.copy_within(kept.., 0);
            self.last[STRIPE - kept..].copy_from_slice(&bytes[bytes.len() - kept..]);
        }
    }

    fn scramble(&mut self) {
        for (lane, sum) in self.sums.iter_mut().enumerate() {
            *sum = (*sum ^ (*sum >> 47) ^ long(&SECRET, 128 + 8 * lane)).wrapping_mul(PRIME32[0]);
        }
    }

    /// The sum of all that was given. Stores may be on their way: see [`crate::mapped_buffer::MappedBuffer::set_long`].
    pub fn finish(mut self) -> u64 {
        add_stripe(&mut self.sums, &self.last, 121);
        let mut sum = self.given.wrapping_mul(PRIME64[0]);
        for pair in 0..4 {
            let one = u128::from(self.sums[2 * pair] ^ long(&SECRET, 11 + 16 * pair));
            let product = one * u128::from(self.sums[2 * pair + 1] ^ long(&SECRET, 19 + 16 * pair));
            sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        sum = (sum ^ (sum >> 37)).wrapping_mul(0x1656_6791_9E37_79F9);
        sum ^ (sum >> 32)
    }
}

/// Adds a stripe to the sums; `secret`: where in the secret its key begins.
fn add_stripe(sums: &mut [u64; 8], stripe: &[u8], secret: usize) {
    for lane in 0..8 {
        let value = long(stripe, 8 * lane);
        let keyed = value ^ long(&SECRET, secret + 8 * lane);
        sums[lane ^ 1] = sums[lane ^ 1].wrapping_add(value);
        sums[lane] = sums[lane].wrapping_add((keyed & 0xffff_ffff).wrapping_mul(keyed >> 32));
    }
}

/// Copies stripes, and adds them to the sums; `secret`: where in the secret the first one begins.
///
/// # Safety
/// `place` has room for `bytes`, at a multiple of 32.
unsafe fn stripes_of(sums: &mut [u64; 8], place: *mut u8, bytes: &[u8], secret: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller says; the processor was asked.
    unsafe {
        if has_avx2() {
            vectors::by_avx2(sums, place, bytes, secret);
        } else {
            vectors::by_sse2(sums, place, bytes, secret);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        for (number, stripe) in bytes.chunks_exact(STRIPE).enumerate() {
            add_stripe(sums, stripe, secret + 8 * number);
        }
        // SAFETY: as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }
}

/// Whether the processor has AVX2, and images of this program need not go on where there is none: `holdfast run
/// --cpu-baseline` tells the C library so, in words of its own (`cli/src/front/baseline.rs`).
#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS.get_or_init(|| {
        let told = std::env::var_os("GLIBC_TUNABLES").unwrap_or_default();
        let is_unwanted = told.as_encoded_bytes().windows(5).any(|word| word == b"-AVX2");
        std::arch::is_x86_feature_detected!("avx2") && !is_unwanted
    })
}

#[cfg(target_arch = "x86_64")]
mod vectors {
    use super::{SECRET, STRIPE};
    use std::arch::x86_64::*;

    /// # Safety
    /// As [`super::stripes_of`]; the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn by_avx2(sums: &mut [u64; 8], place: *mut u8, bytes: &[u8], secret: usize) {
        // SAFETY: eight sums are two vectors; each stripe of `bytes` is two, as is its place, at a multiple of 32; of
        // the secret 64 bytes are read from at most 8 * 15 on, of 192.
        unsafe {
            let at = sums.as_mut_ptr().cast::<__m256i>();
            let (mut low, mut high) = (_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1)));
            let add = |sum: __m256i, value: __m256i, key: __m256i| {
                let keyed = _mm256_xor_si256(value, key);
                let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
                _mm256_add_epi64(_mm256_add_epi64(sum, _mm256_shuffle_epi32::<0x4e>(value)), product)
            };
            for number in 0..bytes.len() / STRIPE {
                let from = bytes.as_ptr().add(number * STRIPE).cast::<__m256i>();
                let to = place.add(number * STRIPE).cast::<__m256i>();
                let key = SECRET.as_ptr().add(secret + 8 * number).cast::<__m256i>();
                let (one, two) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                _mm256_stream_si256(to, one);
                _mm256_stream_si256(to.add(1), two);
                low = add(low, one, _mm256_loadu_si256(key));
                high = add(high, two, _mm256_loadu_si256(key.add(1)));
            }
            _mm256_storeu_si256(at, low);
            _mm256_storeu_si256(at.add(1), high);
        }
    }

    /// # Safety
    /// As [`super::stripes_of`].
    pub unsafe fn by_sse2(sums: &mut [u64; 8], place: *mut u8, bytes: &[u8], secret: usize) {
        // SAFETY: as in `by_avx2`, with four vectors; every x86-64 processor has SSE2.
        unsafe {
            let at = sums.as_mut_ptr().cast::<__m128i>();
            for number in 0..bytes.len() / STRIPE {
                for part in 0..4 {
                    let value =
                        _mm_loadu_si128(bytes.as_ptr().add(number * STRIPE).cast::<__m128i>().add(part));
                    let key =
                        _mm_loadu_si128(SECRET.as_ptr().add(secret + 8 * number).cast::<__m128i>().add(part));
                    _mm_stream_si128(place.add(number * STRIPE).cast::<__m128i>().add(part), value);
                    let keyed = _mm_xor_si128(value, key);
                    let product = _mm_mul_epu32(keyed, _mm_srli_epi64::<32>(keyed));
                    let sum = _mm_add_epi64(_mm_loadu_si128(at.add(part)), _mm_shuffle_epi32::<0x4e>(value));
                    _mm_storeu_si128(at.add(part), _mm_add_epi64(sum, product));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room at a multiple of 64.
    #[repr(align(64))]
    struct Room([u8; 1 << 14]);

    /// The sum and the copy of bytes that are given in pieces.
    fn copied(pieces: &[&[u8]]) -> (u64, Vec<u8>) {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let (mut room, mut sum, mut at) = (Room([0; 1 << 14]), SummedCopy::of(len as u64), 0);
        for piece in pieces {
            // SAFETY: the pieces are no longer than the room, and begin at multiples of 64.
            unsafe { sum.add(room.0.as_mut_ptr().add(at), piece) };
            at += piece.len();
        }
        (sum.finish(), room.0[..len].to_vec())
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 131 + at / 251) as u8).collect()
    }

    #[test]
    fn the_sum_does_not_depend_on_the_pieces_and_all_is_copied() {
        for len in (241..5000).step_by(13).chain([1024, 1025, 2048, 4096, 8191, 8192]) {
            let all = bytes(len);
            let (sum, copy) = copied(&[&all]);
            assert!(copy == all, "{len}");
            for cut in [64, 192, len / 128 * 64] {
                let (one, other) = all.split_at(cut);
                assert_eq!(copied(&[one, other]), (sum, copy.clone()), "{len} cut at {cut}");
            }
        }
    }

    /// Of the reference implementation, of these bytes.
    #[test]
    fn the_sum_is_xxh3() {
        for (len, sum) in KNOWN {
            assert_eq!(copied(&[&bytes(len)]).0, sum, "{len} bytes");
        }
    }

    const KNOWN: [(usize, u64); 4] = [
        (241, 0x44db_d318_0a66_4e27),
        (1024, 0x7117_c50d_a8f5_f7df),
        (1025, 0x5feb_e27d_2f62_f725),
        (10_000, 0x9da0_4acb_e69b_a3f1),
    ];

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_sets_of_instructions_do_the_same() {
        let all = bytes(16 * STRIPE);
        let (mut one, mut other) = (Room([0; 1 << 14]), Room([0; 1 << 14]));
        let (mut sums, mut same) = ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8]);
        // SAFETY: both have room for all; AVX2 is asked for.
        unsafe {
            vectors::by_sse2(&mut sums, one.0.as_mut_ptr(), &all, 0);
            if std::arch::is_x86_feature_detected!("avx2") {
                vectors::by_avx2(&mut same, other.0.as_mut_ptr(), &all, 0);
                assert!(sums == same && one.0 == other.0);
            }
        }
        assert!(one.0.starts_with(&all));
    }
}
