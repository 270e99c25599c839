//! Segments: frames, and blocks of headers that describe them.
//!
//! ```text
//!  0        data of up to 63 frames; raw frames page-aligned and back to back
//!  ...      block 0 (on a page boundary): slot 0 = segment header, slots 1..63 = frame headers, 64 bytes each
//!  ...      data of the next 63 frames, block 1, ...
//!  end      the last block: a reader begins there and goes back, each block says where its data begins
//! ```
//! Headers follow their frames, so that a segment is written by appending alone. They are gathered in blocks, and do
//! not stand at each frame, so that the raw frames of a long run lie contiguous in the file: a restart maps tens of MiB
//! with one mapping instead of one mapping per MiB. In versions 1 and 2 each block was before its frames.
//! A restart believes the manifest and the data checksums; the headers make a segment readable by itself and let
//! `verify` find damage that the manifest does not cover.

use super::{
    Fields, FormatError, HEADER_LEN, Kind, VERSION, bad, begin_header, check_sum, open_header, seal_header,
};
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use std::ops::Range;

/// Length of a block of headers, bytes.
pub const BLOCK_LEN: usize = 4096;
/// Frame headers in a block.
pub const FRAMES_PER_BLOCK: usize = BLOCK_LEN / HEADER_LEN - 1;
/// Most pages in one frame.
pub const MAX_FRAME_PAGES: u64 = 256;
/// Most bytes that the pages of one frame have: 1 MiB.
pub const MAX_FRAME_BYTES: usize = (MAX_FRAME_PAGES * PAGE_SIZE) as usize;
/// First bytes of a frame header.
const FRAME_MAGIC: [u8; 4] = *b"HFRM";
/// The version since which blocks follow their frames.
pub(crate) const FOLLOWING: u32 = 3;
/// The version since which there are more codecs than LZ4.
const SEVERAL_CODECS: u32 = 3;

/// Where the block of headers lies that is read first, and says which segment this is; `None`: it is too short.
pub fn first_block(version: u32, segment_len: u64) -> Option<u64> {
    let last = segment_len.checked_sub(BLOCK_LEN as u64)?;
    match version < FOLLOWING {
        true => Some(0),
        false => last.is_multiple_of(PAGE_SIZE).then_some(last),
    }
}

/// What of a segment may be the data of frames, as far as its length tells.
pub(crate) fn data_of(version: u32, segment_len: u64) -> Range<u64> {
    match version < FOLLOWING {
        true => BLOCK_LEN as u64..segment_len,
        false => 0..segment_len.saturating_sub(BLOCK_LEN as u64),
    }
}

/// Whether the block of this number may come behind that of number `before` (`None`: it is read first), as they are
/// read: forwards from 0 in old versions, backwards to 0 else.
pub(crate) fn follows(version: u32, before: Option<u64>, block: u64) -> bool {
    match (before, version < FOLLOWING) {
        (None, true) => block == 0,
        (None, false) => true,
        (Some(before), true) => before.checked_add(1) == Some(block),
        (Some(before), false) => before.checked_sub(1) == Some(block),
    }
}

/// Whether segments of both versions have their blocks in the same places. A manifest of an old version does not say of
/// which one a segment is.
pub(crate) fn same_layout(one: u32, other: u32) -> bool {
    (one < FOLLOWING) == (other < FOLLOWING)
}

pub use crate::codec::Codec;

/// Where a frame's data is and what it must be. The manifest's frame table and the frame headers hold the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Index into the manifest's segment table.
    pub segment: u32,
    /// How it is stored.
    pub codec: Codec,
    /// First byte of the data in the segment file.
    pub offset: u64,
    /// Bytes of the data in the file.
    pub stored_len: u64,
    /// Pages that the data becomes.
    pub pages: u64,
    /// XXH3-64 of the stored data.
    pub checksum: u64,
}

impl Frame {
    /// First byte after the data (saturating; [`Frame::check`] compares it with the file's length).
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.stored_len)
    }
    /// Bytes of the pages.
    pub fn raw_len(&self) -> usize {
        usize::try_from(self.pages.saturating_mul(PAGE_SIZE)).unwrap_or(usize::MAX)
    }
    /// Checks every number before a reader computes with it or allocates by it. `version`: of the segment; `room`:
    /// where in it the data may lie.
    ///
    /// # Errors
    /// Says what is wrong.
    pub(crate) fn check(&self, version: u32, room: &Range<u64>) -> Result<(), String> {
        if version < SEVERAL_CODECS && !matches!(self.codec, Codec::Raw | Codec::Lz4) {
            return Err(format!("{} is no codec of format version {version}", self.codec.name()));
        }
        if self.pages == 0 || self.pages > MAX_FRAME_PAGES {
            return Err(format!("a frame of {} pages; 1 to {MAX_FRAME_PAGES} are possible", self.pages));
        }
        let raw = self.pages * PAGE_SIZE;
        match self.codec {
            Codec::Raw if self.stored_len != raw => {
                return Err(format!("a raw frame of {} pages has {} bytes", self.pages, self.stored_len));
            }
            Codec::Raw if !self.offset.is_multiple_of(PAGE_SIZE) => {
                return Err(format!("a raw frame at {} is not page-aligned", self.offset));
            }
            Codec::Raw => {}
            _ if self.stored_len == 0 || self.stored_len >= raw => {
                return Err(format!("{} bytes became {} by compression", raw, self.stored_len));
            }
            _ => {}
        }
        if self.offset < room.start || self.end() > room.end {
            return Err(format!(
                "a frame at {} of {} bytes does not lie between byte {} and {}",
                self.offset, self.stored_len, room.start, room.end
            ));
        }
        Ok(())
    }
}

/// Slot 0 of a block: which segment of which image this is. A segment of another image or job, or one that was
/// swapped with its neighbour, is known by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Version of the format that the segment was written in.
    pub version: u32,
    /// Epoch of the image that the segment was written for.
    pub epoch: Epoch,
    /// Random number of that image.
    pub image_id: [u8; 16],
    /// Number of the segment within the image.
    pub number: u32,
    /// Number of the block within the segment, from 0.
    pub block: u64,
    /// Pages between the block before, or the beginning of the segment, and this block. 0 in versions 1 and 2.
    pub data_pages: u32,
}

impl SegmentHeader {
    /// The 64 bytes of slot 0; `version` must be that of this program.
    pub fn encode(&self) -> Vec<u8> {
        debug_assert_eq!(self.version, VERSION);
        let mut header = begin_header(Kind::Segment);
        header.extend_from_slice(&self.epoch.0.to_le_bytes());
        header.extend_from_slice(&self.image_id);
        header.extend_from_slice(&self.number.to_le_bytes());
        header.extend_from_slice(&self.data_pages.to_le_bytes());
        header.extend_from_slice(&self.block.to_le_bytes());
        seal_header(&mut header);
        header
    }
    /// Reads slot 0 of a block that lies at `base` in its file.
    ///
    /// # Errors
    /// Not a segment, another version, or damaged.
    pub fn decode(bytes: &[u8], base: u64) -> Result<SegmentHeader, FormatError> {
        let (version, mut fields) = open_header(bytes, base, Kind::Segment)?;
        let epoch = Epoch(fields.u64()?);
        let image_id = fields.array()?;
        let number = fields.u32()?;
        let data_pages = match version < FOLLOWING {
            true => fields.reserved_u32().map(|()| 0)?,
            false => fields.u32()?,
        };
        let block = fields.u64()?;
        Ok(SegmentHeader { version, epoch, image_id, number, block, data_pages })
    }

    /// Where the data of the block's frames may lie, if the block is at `base`.
    fn data(&self, base: u64, segment_len: u64) -> Result<Range<u64>, FormatError> {
        if self.version < FOLLOWING {
            return Ok(base.saturating_add(BLOCK_LEN as u64)..segment_len);
        }
        let from = base.checked_sub(u64::from(self.data_pages) * PAGE_SIZE);
        // The first block's data begins where the segment does; before that of all others a block must have room.
        match from.filter(|from| if self.block == 0 { *from == 0 } else { *from >= BLOCK_LEN as u64 }) {
            Some(from) => Ok(from..base),
            None => Err(bad(
                base,
                format!("block {} cannot have {} pages of data before it", self.block, self.data_pages),
            )),
        }
    }
}

/// One of the slots 1 to 63 of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Address of the first page of the frame (the index in the manifest knows all of them).
    pub first: Addr,
    /// Where the data is.
    pub frame: Frame,
}

impl FrameHeader {
    /// The 64 bytes of the slot. The segment's number is in slot 0 and is not repeated.
    pub fn encode(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_LEN);
        header.extend_from_slice(&FRAME_MAGIC);
        header.extend_from_slice(&(self.frame.codec as u32).to_le_bytes());
        for value in
            [self.first.0, self.frame.pages, self.frame.offset, self.frame.stored_len, self.frame.checksum, 0]
        {
            header.extend_from_slice(&value.to_le_bytes());
        }
        seal_header(&mut header);
        header
    }
    /// Reads a slot that lies at `base` in `segment`, with data in `room`; `None`: not used.
    ///
    /// # Errors
    /// Damaged, or the numbers in it cannot be true.
    fn decode(
        bytes: &[u8],
        base: u64,
        segment: &SegmentHeader,
        room: &Range<u64>,
    ) -> Result<Option<FrameHeader>, FormatError> {
        if bytes.len() != HEADER_LEN {
            return Err(bad(base, format!("a frame header has {HEADER_LEN} bytes, not {}", bytes.len())));
        }
        if bytes.iter().all(|&b| b == 0) {
            return Ok(None);
        }
        let mut fields = Fields::new(bytes, base);
        if fields.array::<4>()? != FRAME_MAGIC {
            return Err(bad(base, "a frame header should be here"));
        }
        check_sum(bytes, base)?;
        let at = fields.offset();
        let codec = Codec::from_number(fields.u32()?).ok_or_else(|| bad(at, "unknown codec of a frame"))?;
        let first = Addr(fields.u64()?);
        let pages = fields.u64()?;
        let offset = fields.u64()?;
        let stored_len = fields.u64()?;
        let checksum = fields.u64()?;
        let frame = Frame { segment: segment.number, codec, offset, stored_len, pages, checksum };
        frame.check(segment.version, room).map_err(|what| bad(base, what))?;
        Ok(Some(FrameHeader { first, frame }))
    }
}

/// A decoded block of headers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Slot 0.
    pub segment: SegmentHeader,
    /// The used slots; only the last block of a segment has fewer than [`FRAMES_PER_BLOCK`].
    pub frames: Vec<FrameHeader>,
    /// Where the block that is to be read after this one lies.
    pub next: Option<u64>,
}

impl Block {
    /// Reads the block that lies at `base` in a segment of `segment_len` bytes.
    ///
    /// # Errors
    /// Damaged, or frames that overlap or lie where they cannot.
    pub fn decode(bytes: &[u8], base: u64, segment_len: u64) -> Result<Block, FormatError> {
        if bytes.len() != BLOCK_LEN {
            return Err(bad(base, format!("a block of headers has {BLOCK_LEN} bytes, not {}", bytes.len())));
        }
        let segment = SegmentHeader::decode(bytes, base)?;
        let room = segment.data(base, segment_len)?;
        let mut frames: Vec<FrameHeader> = Vec::new();
        let mut floor = room.start;
        let mut ended = false;
        for (slot, header) in bytes.chunks_exact(HEADER_LEN).enumerate().skip(1) {
            let at = base.saturating_add((slot * HEADER_LEN) as u64);
            let Some(header) = FrameHeader::decode(header, at, &segment, &room)? else {
                ended = true;
                continue;
            };
            if ended || header.frame.offset < floor {
                return Err(bad(at, "frame headers are not in the order of their data"));
            }
            floor = header.frame.end();
            frames.push(header);
        }
        let next = if segment.version < FOLLOWING {
            let last = frames.get(FRAMES_PER_BLOCK - 1);
            let end = last.and_then(|last| last.frame.end().checked_next_multiple_of(PAGE_SIZE));
            end.filter(|&next| next < segment_len)
        } else {
            room.start.checked_sub(BLOCK_LEN as u64)
        };
        Ok(Block { segment, frames, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_codecs_came_with_version_3() {
        let room = 0..1 << 20;
        for codec in Codec::ALL {
            let stored_len = if codec == Codec::Raw { 8192 } else { 100 };
            let frame = Frame { segment: 0, codec, offset: 4096, stored_len, pages: 2, checksum: 0 };
            let is_old = matches!(codec, Codec::Raw | Codec::Lz4);
            assert_eq!(frame.check(1, &room).is_ok(), is_old);
            assert_eq!(frame.check(2, &room).is_ok(), is_old);
            assert_eq!(frame.check(3, &room), Ok(()));
        }
    }
}
