//! Byte shuffle: the first bytes of all words, then the second bytes of all words, and so on.
//!
//! In numbers the bytes of sign and exponent change little from word to word, and those of the mantissa much: apart,
//! a codec finds the former. Words have eight bytes; in arrays of four-byte numbers each place has the same kind of
//! byte too, so that they gain by it as well. Works on blocks of 64 bytes, as a transposed matrix of eight by eight.

/// Bytes of a word, and words of a block.
const WORD: usize = 8;
const BLOCK: usize = WORD * WORD;

/// Transposes a matrix of eight rows of eight bytes: three rounds that exchange halves of halves.
fn transpose(mut rows: [u64; WORD]) -> [u64; WORD] {
    let masks =
        [(4, 32, 0x0000_0000_ffff_ffff), (2, 16, 0x0000_ffff_0000_ffff), (1, 8, 0x00ff_00ff_00ff_00ff_u64)];
    for (distance, bits, low) in masks {
        for row in (0..WORD).filter(|row| row & distance == 0) {
            let (one, two) = (rows[row], rows[row + distance]);
            rows[row] = (one & low) | ((two & low) << bits);
            rows[row + distance] = ((one >> bits) & low) | (two & !low);
        }
    }
    rows
}

/// Shuffles `raw` into `out`, which has the same length. What is left of the last block stays as it is.
pub(super) fn shuffle(raw: &[u8], out: &mut [u8]) {
    let plane = raw.len() / BLOCK * WORD;
    let (blocks, rest) = raw.as_chunks::<BLOCK>();
    for (number, block) in blocks.iter().enumerate() {
        let mut rows = [0; WORD];
        for (row, word) in rows.iter_mut().zip(block.as_chunks::<WORD>().0) {
            *row = u64::from_le_bytes(*word);
        }
        for (byte, row) in transpose(rows).into_iter().enumerate() {
            let at = byte * plane + number * WORD;
            out[at..at + WORD].copy_from_slice(&row.to_le_bytes());
        }
    }
    out[plane * WORD..].copy_from_slice(rest);
}

/// The reverse.
pub(super) fn unshuffle(shuffled: &[u8], raw: &mut [u8]) {
    let plane = shuffled.len() / BLOCK * WORD;
    let (blocks, rest) = raw.as_chunks_mut::<BLOCK>();
    for (number, block) in blocks.iter_mut().enumerate() {
        let mut rows = [0; WORD];
        for (byte, row) in rows.iter_mut().enumerate() {
            let at = byte * plane + number * WORD;
            let mut word = [0; WORD];
            word.copy_from_slice(&shuffled[at..at + WORD]);
            *row = u64::from_le_bytes(word);
        }
        for (row, word) in transpose(rows).into_iter().zip(block.as_chunks_mut::<WORD>().0) {
            *word = row.to_le_bytes();
        }
    }
    rest.copy_from_slice(&shuffled[plane * WORD..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_where_its_place_in_the_word_says_and_is_put_back(
            raw in prop::collection::vec(any::<u8>(), 0..400)
        ) {
            let (mut out, mut back) = (vec![0; raw.len()], vec![0; raw.len()]);
            shuffle(&raw, &mut out);
            let whole = raw.len() / BLOCK * BLOCK;
            for (at, byte) in raw[..whole].iter().enumerate() {
                prop_assert_eq!(out[at % WORD * (whole / WORD) + at / WORD], *byte);
            }
            unshuffle(&out, &mut back);
            prop_assert_eq!(raw, back);
        }
    }
}
