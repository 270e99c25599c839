//! Appends frames to one segment: their data, and after it the blocks of headers that describe it.
//!
//! Used by one pipeline worker at a time, so that there is no lock. Nothing is written twice: any tier can take it.
//! Invariants: everything that was appended is with the tier's writer; a block of headers follows the frames that it
//! describes when it is full or the segment ends.
//! Fails by: an error that names the blob; the image must then be given up.

use crate::StoreError;
use crate::fault;
use crate::format::VERSION;
use crate::format::manifest::SegmentEntry;
use crate::format::segment::{BLOCK_LEN, Codec, FRAMES_PER_BLOCK, Frame, FrameHeader, SegmentHeader};
use crate::names;
use crate::tier::{BlobWriter, TierError};
use crate::tier_folder::TierFolder;
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// A segment that is being written.
pub(crate) struct SegmentWriter {
    /// Until it is finished or given up.
    blob: Option<Box<dyn BlobWriter>>,
    /// The blob may have its name.
    named: bool,
    /// Path or address, for messages.
    address: PathBuf,
    header: SegmentHeader,
    /// Bytes handed to the tier.
    len: u64,
    /// The block of headers that is being filled, how much of it is used, and where its data begins.
    block: Box<[u8; BLOCK_LEN]>,
    slots: usize,
    data_at: u64,
    frames: Vec<Frame>,
}

/// The segment of a new image that has this number, but for its blocks.
pub(crate) fn header(epoch: Epoch, image_id: [u8; 16]) -> SegmentHeader {
    SegmentHeader { version: VERSION, epoch, image_id, number: 0, block: 0, data_pages: 0 }
}

impl SegmentWriter {
    /// Begins the blob, which must not exist.
    pub(crate) fn create(
        folder: &TierFolder,
        header: SegmentHeader,
        needed: u64,
    ) -> Result<SegmentWriter, StoreError> {
        let name = names::segment_name(header.epoch, header.number);
        let blob = folder.create(&name).map_err(|error| error.needing(needed))?;
        fault::point("segment-created");
        Ok(SegmentWriter {
            blob: Some(blob),
            named: false,
            address: folder.address(&name),
            header,
            len: 0,
            block: Box::new([0; BLOCK_LEN]),
            slots: 0,
            data_at: 0,
            frames: Vec::new(),
        })
    }

    pub(crate) fn header(&self) -> &SegmentHeader {
        &self.header
    }
    /// Frames appended so far, in order; their `segment` is the number in the blob's name.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }
    /// Whether there may be a blob of this name, and it is this one.
    pub(crate) fn is_named(&self) -> bool {
        self.named
    }
    /// Its entry in the segment table, when nothing else is appended.
    pub(crate) fn entry(&self) -> SegmentEntry {
        let SegmentHeader { epoch, number, image_id, version, .. } = self.header;
        let last =
            if self.slots > 0 { self.len.next_multiple_of(PAGE_SIZE) + BLOCK_LEN as u64 } else { self.len };
        SegmentEntry { epoch, number, len: last, image_id, version }
    }

    /// Appends the data of a frame, and returns the frame's number within this segment. `needed` is the number of
    /// bytes still to be stored, for the message of a full disk.
    pub(crate) fn append(
        &mut self,
        first: Addr,
        pages: u64,
        codec: Codec,
        data: &[u8],
        needed: u64,
    ) -> Result<u32, StoreError> {
        let Ok(number) = u32::try_from(self.frames.len()) else {
            return Err(StoreError::misuse(&self.address, "too many frames"));
        };
        if self.slots == FRAMES_PER_BLOCK {
            self.end_block(needed)?;
        }
        if codec == Codec::Raw {
            self.pad_to_page(needed)?;
        }
        let frame = Frame {
            segment: self.header.number,
            codec,
            offset: self.len,
            stored_len: data.len() as u64,
            pages,
            checksum: xxh3_64(data),
        };
        self.put(data, needed)?;
        let slot = FrameHeader { first, frame }.encode();
        self.slots += 1;
        let at = self.slots * slot.len();
        self.block[at..at + slot.len()].copy_from_slice(&slot);
        self.frames.push(frame);
        if number == 0 {
            fault::point("segment-half");
        }
        Ok(number)
    }

    /// Writes the last block, and makes the segment durable under its name.
    pub(crate) fn finish(&mut self) -> Result<(), StoreError> {
        // What was taken by a buffer may meet the full disk only now.
        let needed = self.len + BLOCK_LEN as u64;
        let entry = self.entry();
        if self.slots > 0 {
            self.end_block(needed)?;
        }
        let Some(blob) = self.blob.take() else {
            return Err(StoreError::misuse(&self.address, "a segment was to be finished twice"));
        };
        let result = blob.finish();
        // Another writer's is there; after any other error it may be this one.
        self.named = !matches!(result, Err(TierError::Exists { .. }));
        let len = result.map_err(|error| StoreError::from(error).needing(needed))?;
        if len == entry.len {
            return Ok(());
        }
        Err(StoreError::misuse(&self.address, format!("{len} bytes were written, not {}", entry.len)))
    }

    /// Gives it up: nothing of it stays.
    pub(crate) fn abandon(&mut self) {
        self.blob = None;
    }

    fn end_block(&mut self, needed: u64) -> Result<(), StoreError> {
        self.pad_to_page(needed)?;
        // A block describes 63 frames of at most 257 pages.
        self.header.data_pages = u32::try_from((self.len - self.data_at) / PAGE_SIZE).unwrap_or(u32::MAX);
        let slot = self.header.encode();
        self.block[..slot.len()].copy_from_slice(&slot);
        let block = std::mem::replace(&mut self.block, Box::new([0; BLOCK_LEN]));
        self.put(&block[..], needed)?;
        self.header.block += 1;
        self.slots = 0;
        self.data_at = self.len;
        Ok(())
    }

    fn pad_to_page(&mut self, needed: u64) -> Result<(), StoreError> {
        let missing = (self.len.next_multiple_of(PAGE_SIZE) - self.len) as usize;
        self.put(&[0; PAGE_SIZE as usize][..missing], needed)
    }

    fn put(&mut self, data: &[u8], needed: u64) -> Result<(), StoreError> {
        let Some(blob) = &mut self.blob else {
            return Err(StoreError::misuse(&self.address, "a segment that was finished was to grow"));
        };
        blob.append(data).map_err(|error| StoreError::from(error).needing(needed))?;
        self.len += data.len() as u64;
        Ok(())
    }
}
