//! A version as one file: its header, and the headers of its parts. Docs: `docs/format.md`, "A version as one file".
//!
//! ```text
//!  header (64 bytes) | origin | manifest | segment | segment ... | end
//!  each part: header (64 bytes), data, checksum of the data (8 bytes); the end has no more than its header
//! ```

use super::{Fields, FormatError, HEADER_LEN, Kind, bad, begin_header, check_sum, open_header, seal_header};
use holdfast_image::Epoch;

/// First bytes of the header of each part.
const PART_MAGIC: [u8; 4] = *b"HPRT";

/// Which version a file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArchiveHeader {
    /// Its number.
    pub epoch: Epoch,
    /// Random number of the image.
    pub image_id: [u8; 16],
}

impl ArchiveHeader {
    /// The 64 bytes at the front.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = begin_header(Kind::Archive);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.image_id);
        out.extend_from_slice(&[0; 16]);
        seal_header(&mut out);
        out
    }

    /// Reads them.
    ///
    /// # Errors
    /// No such file, another version, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<ArchiveHeader, FormatError> {
        let (_, mut fields) = open_header(bytes, 0, Kind::Archive)?;
        Ok(ArchiveHeader { epoch: Epoch(fields.u64()?), image_id: fields.array()? })
    }
}

/// What a part is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PartKind {
    /// Where the version is from: JSON of the caller.
    Origin = 1,
    /// The manifest.
    Manifest = 2,
    /// A segment.
    Segment = 3,
    /// The end.
    End = 4,
}

/// The header of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Epoch in the name of a segment; of all others the number of the version.
    pub epoch: Epoch,
    /// Number in the name of a segment; else 0.
    pub number: u32,
    /// Bytes of its data.
    pub len: u64,
}

impl Part {
    /// The 64 bytes before its data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN);
        out.extend_from_slice(&PART_MAGIC);
        out.extend_from_slice(&(self.kind as u32).to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&0_u32.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&[0; 24]);
        seal_header(&mut out);
        out
    }

    /// Reads the header of a part that lies at `base`.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn decode(bytes: &[u8; HEADER_LEN], base: u64) -> Result<Part, FormatError> {
        let mut fields = Fields::new(bytes, base);
        if fields.array::<4>()? != PART_MAGIC {
            return Err(bad(base, "the header of a part should be here"));
        }
        check_sum(bytes, base)?;
        let at = fields.offset();
        let kind = match fields.u32()? {
            1 => PartKind::Origin,
            2 => PartKind::Manifest,
            3 => PartKind::Segment,
            4 => PartKind::End,
            other => return Err(bad(at, format!("a part of kind {other}"))),
        };
        let (epoch, number) = (Epoch(fields.u64()?), fields.u32()?);
        fields.reserved_u32()?;
        Ok(Part { kind, epoch, number, len: fields.u64()? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        let header = ArchiveHeader { epoch: Epoch(7), image_id: [3; 16] };
        assert_eq!(header.encode().len(), HEADER_LEN);
        assert_eq!(ArchiveHeader::decode(&header.encode()), Ok(header));
        let part = Part { kind: PartKind::Segment, epoch: Epoch(2), number: 5, len: 1 << 40 };
        let mut bytes: [u8; HEADER_LEN] = part.encode().try_into().unwrap();
        assert_eq!(Part::decode(&bytes, 64), Ok(part));
        for at in 0..HEADER_LEN {
            bytes[at] ^= 1;
            assert!(Part::decode(&bytes, 64).is_err(), "byte {at}");
            bytes[at] ^= 1;
        }
    }
}
