//! Packed segments: what a segment is on a tier that is slower than a codec.
//!
//! ```text
//!  0     stripe 0 | stripe 1 | ...    each 1 MiB of the segment (the last one less), by a codec of its own
//!  ...   the last 4096 bytes of the segment, as they are (then 8 zeros, if it would be as long as the segment)
//!  ...   table: for each stripe codec (4), length as stored (4), XXH3-64 of it as stored (8)
//!  end   trailer, 64 bytes
//! ```
//! Unpacked it is the segment, byte for byte: manifests, frame tables and checksums are the same on all tiers, and a
//! frame can be read from any of them. The last bytes stay as they are because they say whose segment it is.
//! A blob that is as long as the segment is the segment; only another one may be packed.

use super::segment::BLOCK_LEN;
use super::{Fields, FormatError, HEADER_LEN, bad, check_sum, seal_header};
use crate::codec::Codec;
use xxhash_rust::xxh3::xxh3_64;

/// First bytes of the trailer.
const MAGIC: [u8; 8] = *b"HOLDPACK";
/// The version of packed segments.
const VERSION: u32 = 1;
/// Bytes of a stripe, unpacked.
pub const STRIPE: u64 = 1 << 20;
/// Bytes at the end of a segment that stay as they are.
pub const TAIL: u64 = BLOCK_LEN as u64;
/// Bytes of the trailer.
pub const TRAILER_LEN: u64 = HEADER_LEN as u64;
/// Bytes of an entry of the table.
const ENTRY: usize = 16;
/// Zeros that give a packed segment a length of its own.
const PADDING: u64 = 8;
/// Most stripes: segments of 4 TiB. More could only come from a mistake, and the table is read into memory.
const MOST_STRIPES: u64 = 1 << 22;

/// How one stripe is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    /// By which codec.
    pub codec: Codec,
    /// Bytes as stored.
    pub stored_len: u32,
    /// XXH3-64 of them.
    pub checksum: u64,
}

/// The last bytes of a packed segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Length of the segment.
    pub segment_len: u64,
    /// Length of the packed segment.
    pub packed_len: u64,
    /// XXH3-64 of the table.
    pub table_sum: u64,
}

/// Stripes of a segment of this length.
pub fn stripes_of(segment_len: u64) -> u64 {
    segment_len.saturating_sub(TAIL).div_ceil(STRIPE)
}

/// Bytes of a stripe, unpacked.
pub fn stripe_len(segment_len: u64, stripe: u64) -> u64 {
    segment_len.saturating_sub(TAIL).saturating_sub(stripe.saturating_mul(STRIPE)).min(STRIPE)
}

/// The table and the trailer of a packed segment whose stripes and tail have been written.
pub fn encode(segment_len: u64, stripes: &[Stripe]) -> Vec<u8> {
    let stored: u64 = stripes.iter().map(|stripe| u64::from(stripe.stored_len)).sum();
    let mut packed_len = stored + TAIL + (stripes.len() * ENTRY) as u64 + TRAILER_LEN;
    let mut out = Vec::with_capacity(stripes.len() * ENTRY + HEADER_LEN);
    if packed_len == segment_len {
        out.resize(PADDING as usize, 0);
        packed_len += PADDING;
    }
    let table = out.len();
    for stripe in stripes {
        out.extend_from_slice(&(stripe.codec as u32).to_le_bytes());
        out.extend_from_slice(&stripe.stored_len.to_le_bytes());
        out.extend_from_slice(&stripe.checksum.to_le_bytes());
    }
    let table_sum = xxh3_64(&out[table..]);
    let mut trailer = MAGIC.to_vec();
    trailer.extend_from_slice(&VERSION.to_le_bytes());
    trailer.extend_from_slice(&0_u32.to_le_bytes());
    for number in [segment_len, packed_len, table_sum, 0, 0] {
        trailer.extend_from_slice(&number.to_le_bytes());
    }
    seal_header(&mut trailer);
    out.extend_from_slice(&trailer);
    out
}

impl Trailer {
    /// Reads the last bytes of a blob of `len` bytes; `None`: it is not packed.
    ///
    /// # Errors
    /// It is packed, and damaged or of another version.
    pub fn decode(bytes: &[u8; HEADER_LEN], len: u64) -> Result<Option<Trailer>, FormatError> {
        let at = len.saturating_sub(TRAILER_LEN);
        let mut fields = Fields::new(bytes, at);
        if fields.array::<8>()? != MAGIC {
            return Ok(None);
        }
        check_sum(bytes, at)?;
        let version = fields.u32()?;
        if version != VERSION {
            return Err(bad(at, format!("a packed segment of version {version}")));
        }
        fields.reserved_u32()?;
        let trailer =
            Trailer { segment_len: fields.u64()?, packed_len: fields.u64()?, table_sum: fields.u64()? };
        let (stripes, least) = (stripes_of(trailer.segment_len), TAIL + TRAILER_LEN);
        let room =
            len.checked_sub(least).filter(|_| trailer.packed_len == len && trailer.segment_len >= TAIL);
        match room.filter(|room| stripes <= MOST_STRIPES && stripes * ENTRY as u64 <= *room) {
            Some(_) => Ok(Some(trailer)),
            None => Err(bad(
                at,
                format!(
                    "{} bytes are no packed segment of {len}, said to be {}",
                    trailer.segment_len, trailer.packed_len
                ),
            )),
        }
    }

    /// Where the table lies, and its length.
    pub fn table(&self) -> (u64, usize) {
        let len = stripes_of(self.segment_len) * ENTRY as u64;
        (self.packed_len - TRAILER_LEN - len, usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Reads the table: all stripes, with where each begins; and where the tail does.
    ///
    /// # Errors
    /// Damaged, or a number cannot be true.
    pub fn stripes(&self, table: &[u8]) -> Result<(Vec<(u64, Stripe)>, u64), FormatError> {
        let base = self.table().0;
        if xxh3_64(table) != self.table_sum {
            return Err(bad(base, "the table of a packed segment does not match its checksum"));
        }
        let mut fields = Fields::new(table, base);
        let (mut stripes, mut offset) = (Vec::new(), 0);
        for number in 0..stripes_of(self.segment_len) {
            let at = fields.offset();
            let codec =
                Codec::from_number(fields.u32()?).ok_or_else(|| bad(at, "unknown codec of a stripe"))?;
            let stripe = Stripe { codec, stored_len: fields.u32()?, checksum: fields.u64()? };
            let (stored, raw) = (u64::from(stripe.stored_len), stripe_len(self.segment_len, number));
            if if codec == Codec::Raw { stored != raw } else { stored == 0 || stored >= raw } {
                return Err(bad(at, format!("a stripe of {raw} bytes became {stored} by {}", codec.name())));
            }
            stripes.push((offset, stripe));
            offset += stored;
        }
        let padding = base.checked_sub(offset + TAIL);
        match padding.is_some_and(|padding| padding == 0 || padding == PADDING) && fields.is_empty() {
            true => Ok((stripes, offset)),
            false => Err(bad(base, format!("stripes of {offset} bytes do not fit before the table"))),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn trailer_of(bytes: &[u8], len: u64) -> Result<Option<Trailer>, FormatError> {
        Trailer::decode(bytes.last_chunk().unwrap(), len)
    }

    proptest! {
        #[test]
        fn tables_come_back_and_no_change_of_a_byte_goes_unnoticed(
            lens in prop::collection::vec(1..STRIPE, 0..20), last in 2..STRIPE,
            flip in any::<prop::sample::Index>(), value in 1..=255_u8,
        ) {
            let stored = |len: u64| u32::try_from(len).unwrap();
            let stripe = |len: u64| Stripe { codec: Codec::Zstd, stored_len: stored(len), checksum: len };
            let mut stripes: Vec<Stripe> = lens.iter().map(|&len| stripe(len)).collect();
            stripes.push(stripe(last - 1));
            let segment_len = lens.len() as u64 * STRIPE + last + TAIL;
            let mut bytes = encode(segment_len, &stripes);
            let stored: u64 = stripes.iter().map(|stripe| u64::from(stripe.stored_len)).sum();
            let len = stored + TAIL + bytes.len() as u64;
            let trailer = trailer_of(&bytes, len).unwrap().unwrap();
            prop_assert_eq!((trailer.segment_len, trailer.packed_len), (segment_len, len));
            let table_len = trailer.table().1;
            let back = trailer.stripes(&bytes[..table_len]).unwrap();
            prop_assert_eq!(back.1, len - TAIL - bytes.len() as u64);
            prop_assert_eq!(back.0.iter().map(|(_, stripe)| *stripe).collect::<Vec<_>>(), stripes);
            prop_assert!(trailer_of(&bytes, len + 1).is_err() && trailer_of(&bytes, len - 1).is_err());
            let at = flip.index(bytes.len());
            bytes[at] ^= value;
            let read = trailer_of(&bytes, len);
            let read = read.map(|trailer| trailer.map(|trailer| trailer.stripes(&bytes[..table_len])));
            prop_assert!(!matches!(read, Ok(Some(Ok(_)))), "byte {at}");
        }
    }

    #[test]
    fn lying_numbers_are_refused() {
        let raw = |stored_len| Stripe { codec: Codec::Raw, stored_len, checksum: 0 };
        let read = |segment_len: u64, stripes: &[Stripe]| {
            let bytes = encode(segment_len, stripes);
            let len =
                stripes.iter().map(|s| u64::from(s.stored_len)).sum::<u64>() + TAIL + bytes.len() as u64;
            let trailer = trailer_of(&bytes, len)?.unwrap();
            let table = bytes.len() - HEADER_LEN - trailer.table().1.min(bytes.len() - HEADER_LEN);
            trailer.stripes(&bytes[table..bytes.len() - HEADER_LEN])
        };
        assert!(read(TAIL + 5, &[raw(5)]).is_ok());
        // As long as the segment, but for the padding.
        let short = Stripe { codec: Codec::Zstd, ..raw(1000 - 80) };
        assert!(read(TAIL + 1000, &[short]).is_ok());
        assert_eq!(encode(TAIL + 1000, &[short]).len(), 88);
        for (segment_len, stripes) in [
            (TAIL + 6, &[raw(5)][..]),
            (TAIL - 1, &[]),
            (TAIL + 5, &[raw(5), raw(5)]),
            (u64::MAX, &[raw(5)]),
            (TAIL + 5, &[Stripe { codec: Codec::Zstd, ..raw(5) }]),
            (TAIL + 5, &[Stripe { codec: Codec::Lz4, ..raw(0) }]),
        ] {
            assert!(read(segment_len, stripes).is_err(), "{segment_len} {stripes:?}");
        }
    }
}
