//! Chunks, ranges of device memory, and which chunk is where. Used by the kernels' callers and by `launch`.
//!
//! The chunks of a table of ranges are numbered through, in the order of the table: a chunk belongs to one range, and
//! the last one of a range may be short. Each chunk has a slot in the tables of digests, which the caller chooses: with
//! it the digest of a chunk is found again when other ranges have come or gone.

/// Bytes of a chunk.
pub const CHUNK: u64 = 64 << 10;

/// Addresses of ranges are multiples of it: kernels load sixteen bytes at a time. All that the driver allocates is
/// aligned to 256 bytes at least (CUDA C++ Programming Guide, "Size and Alignment Requirement").
pub const ALIGN: u64 = 16;

/// Chunks have numbers of 32 bits in lists; one less, so that their count has, too.
pub const MOST_CHUNKS: u64 = u32::MAX as u64;

/// Device memory to be hashed, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    address: u64,
    bytes: u64,
    slot: u64,
    before: u64,
}

impl Range {
    /// Size in a table on the device.
    pub const BYTES: u64 = 32;

    /// `slot` is that of its first chunk, the others follow. `None` if it is empty, not aligned, or wraps around.
    pub const fn new(address: u64, bytes: u64, slot: u64) -> Option<Range> {
        let good = bytes > 0 && address.is_multiple_of(ALIGN) && address.checked_add(bytes).is_some();
        if good && slot.checked_add(bytes.div_ceil(CHUNK)).is_some() {
            Some(Range { address, bytes, slot, before: 0 })
        } else {
            None
        }
    }

    /// Where it begins.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How long it is.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many chunks it has.
    pub const fn chunks(&self) -> u64 {
        self.bytes.div_ceil(CHUNK)
    }

    /// The number of its first chunk, once [`number`] has given it one.
    pub const fn first(&self) -> u64 {
        self.before
    }

    /// As it lies in a table on the device.
    pub fn to_bytes(self) -> [u8; Self::BYTES as usize] {
        let mut bytes = [0; Self::BYTES as usize];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (word, value) in words.iter_mut().zip([self.address, self.bytes, self.slot, self.before]) {
            *word = value.to_le_bytes();
        }
        bytes
    }
}

/// Numbers the chunks of a table and gives their count; `None` if they are more than [`MOST_CHUNKS`].
pub fn number(ranges: &mut [Range]) -> Option<u64> {
    let mut chunks: u64 = 0;
    for range in ranges {
        range.before = chunks;
        chunks = chunks.checked_add(range.chunks()).filter(|&all| all <= MOST_CHUNKS)?;
    }
    Some(chunks)
}

/// Where a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Of its first byte.
    pub address: u64,
    /// Less than [`CHUNK`] at the end of a range.
    pub bytes: u64,
    /// Of its digest.
    pub slot: u64,
}

/// The chunk of that number in a table that [`number`] has numbered.
pub fn find(ranges: &[Range], chunk: u64) -> Option<Piece> {
    let after = ranges.partition_point(|range| range.before <= chunk);
    let range = ranges.get(after.checked_sub(1)?)?;
    let nth = chunk.checked_sub(range.before).filter(|&nth| nth < range.chunks())?;
    let offset = nth.checked_mul(CHUNK)?;
    Some(Piece {
        address: range.address.checked_add(offset)?,
        bytes: range.bytes.checked_sub(offset)?.min(CHUNK),
        slot: range.slot.checked_add(nth)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64, bytes: u64, slot: u64) -> Range {
        Range::new(address, bytes, slot).unwrap_or_else(|| unreachable!())
    }

    #[test]
    fn chunks_are_numbered_through() {
        let mut ranges = [range(0x1000, 1, 9), range(0x20000, CHUNK, 0), range(0x100000, 2 * CHUNK + 5, 20)];
        assert_eq!(number(&mut ranges), Some(5));
        let piece = |address, bytes, slot| Some(Piece { address, bytes, slot });
        assert_eq!(find(&ranges, 0), piece(0x1000, 1, 9));
        assert_eq!(find(&ranges, 1), piece(0x20000, CHUNK, 0));
        assert_eq!(find(&ranges, 2), piece(0x100000, CHUNK, 20));
        assert_eq!(find(&ranges, 4), piece(0x100000 + 2 * CHUNK, 5, 22));
        assert_eq!(find(&ranges, 5), None);
        assert_eq!(find(&[], 0), None);
    }

    #[test]
    fn what_kernels_could_not_read_is_no_range() {
        assert_eq!(Range::new(0x1000, 0, 0), None);
        assert_eq!(Range::new(0x1008, 16, 0), None);
        assert_eq!(Range::new(u64::MAX - 15, 17, 0), None);
        assert_eq!(Range::new(0, CHUNK, u64::MAX), None);
        let mut many = [range(0, u64::MAX, 0), range(0, 1, 0)];
        assert_eq!(number(&mut many), None);
    }

    #[test]
    fn a_range_lies_on_the_device_as_the_kernels_read_it() {
        let mut ranges = [range(0x10, CHUNK, 0), range(0x0102_0304_0506_0710, 0x11, 0x22)];
        assert_eq!(number(&mut ranges), Some(2));
        let bytes = ranges[1].to_bytes();
        assert_eq!(bytes[..8], [0x10, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!((bytes[8], bytes[16], bytes[24]), (0x11, 0x22, 1));
        assert_eq!(size_of::<Range>() as u64, Range::BYTES);
    }
}
