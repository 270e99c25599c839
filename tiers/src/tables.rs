//! The tables of an image with its segments open: what a restart and the next image need to find and read pages.
//!
//! Made when an image is opened ([`crate::Image`]) and when one is committed ([`crate::Lineage`]).
//! Invariants: all numbers have been checked against each other and against the length of the segments; no byte is
//! handed out before the whole frame it lies in has matched its checksum once, in the copy that it is read from, or its
//! page a hash that this process has computed when it stored it.
//! Fails by: an error that names the segment and the offset of the frame.

use crate::StoreError;
use crate::codec::decode;
use crate::format::manifest::{IndexRun, SegmentEntry};
use crate::format::segment::{Codec, Frame, MAX_FRAME_BYTES};
use crate::hashes::hash_of;
use crate::piece_cache::PieceCache;
use crate::segment_file::SegmentFile;
use crate::tier_folder::TierFolder;
use holdfast_image::{Epoch, PAGE_SIZE};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// See the head of the file.
pub(crate) struct Tables {
    /// The job's folder on the tier that is asked first.
    pub(crate) folder: TierFolder,
    pub(crate) epoch: Epoch,
    pub(crate) entries: Vec<SegmentEntry>,
    pub(crate) segments: Vec<Arc<SegmentFile>>,
    pub(crate) frames: Vec<Frame>,
    /// For each frame: 1 + the number of the copy whose data has matched its checksum once; 0: none.
    checked: Vec<AtomicU8>,
    pub(crate) index: Vec<IndexRun>,
    /// Frames that were unpacked, or came from another tier, to serve a part of them.
    cache: PieceCache<u32>,
}

/// So many frames are kept, of 1 MiB at most.
const KEPT: usize = 32;

/// Buffers of one thread.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) pages: Vec<u8>,
    pub(crate) stored: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Tables {
    /// Joins tables that fit each other. `segments` are those of `entries`, open.
    pub(crate) fn new(
        folder: &TierFolder,
        epoch: Epoch,
        entries: Vec<SegmentEntry>,
        segments: Vec<Arc<SegmentFile>>,
        frames: Vec<Frame>,
        index: Vec<IndexRun>,
    ) -> Tables {
        let checked = frames.iter().map(|_| AtomicU8::new(0)).collect();
        let cache = PieceCache::new(KEPT);
        Tables { folder: folder.clone(), epoch, entries, segments, frames, checked, index, cache }
    }

    /// The number after those of the segments: that of shared pages ([`crate::shared_pages`]).
    pub(crate) fn shared_pages_number(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX)
    }

    /// Where in its segment a frame lies as it is in memory, if it does and the segment can be mapped.
    pub(crate) fn mapped_at(&self, frame: &Frame) -> Option<u64> {
        let is_there = self.segments[frame.segment as usize].mapped().is_some();
        (is_there && frame.codec == Codec::Raw).then_some(frame.offset)
    }

    /// Whether the data of a frame has matched its checksum once where it is mapped from.
    pub(crate) fn is_mapped_checked(&self, number: usize) -> bool {
        let mapped = self.segments[self.frames[number].segment as usize].mapped();
        let checked = self.checked[number].load(Ordering::Relaxed).checked_sub(1);
        checked.is_some_and(|copy| mapped == Some(usize::from(copy)))
    }

    fn corrupt(&self, frame: &Frame, what: String) -> StoreError {
        StoreError::corrupt(self.segments[frame.segment as usize].address(), frame.offset, what)
    }

    /// Reads the stored data of a frame, from the fastest copy that matches its checksum.
    pub(crate) fn read_stored(&self, number: usize, stored: &mut [u8]) -> Result<(), StoreError> {
        let frame = &self.frames[number];
        let copy =
            self.segments[frame.segment as usize].read(frame.offset, stored, &|data| check(frame, data))?;
        let copy = u8::try_from(copy + 1).unwrap_or(0);
        self.checked[number].store(copy, Ordering::Relaxed);
        Ok(())
    }

    /// Checks a frame that is to be mapped, where it is mapped from; `buffer` has its length.
    pub(crate) fn check_mapped(&self, number: usize, buffer: &mut [u8]) -> bool {
        let frame = &self.frames[number];
        let segment = &self.segments[frame.segment as usize];
        let Some(copy) = segment.mapped() else { return true };
        let is_good = segment.read_copy(copy, frame.offset, buffer).is_ok() && check(frame, buffer).is_ok();
        if is_good {
            self.checked[number].store(u8::try_from(copy + 1).unwrap_or(0), Ordering::Relaxed);
        }
        is_good
    }

    /// Reads a part of an uncompressed frame from the copy that has matched as a whole. `false`: none has, or it cannot
    /// be read any more.
    fn read_part(&self, number: usize, from: u64, out: &mut [u8]) -> bool {
        let frame = &self.frames[number];
        let checked = self.checked[number].load(Ordering::Relaxed).checked_sub(1);
        checked.is_some_and(|copy| {
            let segment = &self.segments[frame.segment as usize];
            segment.read_copy(copy.into(), frame.offset + from, out).is_ok()
        })
    }

    /// Fills `pages` with all pages of a frame.
    pub(crate) fn unpack(
        &self,
        number: usize,
        pages: &mut [u8],
        stored: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let frame = &self.frames[number];
        if frame.codec == Codec::Raw {
            return self.read_stored(number, pages);
        }
        let len = usize::try_from(frame.stored_len).unwrap_or(MAX_FRAME_BYTES).min(MAX_FRAME_BYTES);
        if stored.len() < len {
            stored.resize(len, 0);
        }
        self.read_stored(number, &mut stored[..len])?;
        decode(frame.codec, &stored[..len], pages).map_err(|what| self.corrupt(frame, what))
    }

    /// Fills `out` with pages of an uncompressed frame from page `page` on, each of which has its hash (`hashes`, by
    /// its number in `out`). Whether it did.
    pub(crate) fn read_known(
        &self,
        number: usize,
        page: u32,
        out: &mut [u8],
        hashes: &dyn Fn(u64) -> u128,
    ) -> bool {
        let frame = &self.frames[number];
        let segment = &self.segments[frame.segment as usize];
        let bytes = usize::try_from(PAGE_SIZE).unwrap_or(usize::MAX);
        let is_known = |number: usize, page: &[u8]| hash_of(page) == hashes(number as u64);
        let check = |out: &[u8]| match out.chunks(bytes).enumerate().all(|(at, page)| is_known(at, page)) {
            true => Ok(()),
            false => Err("a page is not what was stored".to_owned()),
        };
        frame.codec == Codec::Raw
            && segment.mapped().is_some()
            && u64::from(page) * PAGE_SIZE + out.len() as u64 <= frame.raw_len() as u64
            && segment.read(frame.offset + u64::from(page) * PAGE_SIZE, out, &check).is_ok()
    }

    /// Copies pages of a frame from page `page` on. A frame is read and checked as a whole when the first of its pages
    /// is asked for; after that, single pages of an uncompressed one in a file are read by themselves, and of others
    /// those that were used last are kept, for all threads.
    pub(crate) fn read_frame(&self, number: u32, page: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let (at, frame) = (number as usize, &self.frames[number as usize]);
        let from = page * PAGE_SIZE;
        SCRATCH.with_borrow_mut(|scratch| {
            let Scratch { pages, stored } = scratch;
            if out.len() == frame.raw_len() {
                return self.unpack(at, out, stored);
            }
            // Elsewhere than in a file a part costs as much as all of it.
            let in_a_file = self.segments[frame.segment as usize].mapped().is_some();
            if frame.codec == Codec::Raw && in_a_file && self.read_part(at, from, out) {
                return Ok(());
            }
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            if frame.codec == Codec::Raw && in_a_file {
                pages.resize(frame.raw_len(), 0);
                self.read_stored(at, pages)?;
                out.copy_from_slice(&pages[from..from + out.len()]);
                return Ok(());
            }
            self.cache.with(
                number,
                |unpacked| {
                    unpacked.resize(frame.raw_len(), 0);
                    self.unpack(at, unpacked, stored)
                },
                |unpacked| out.copy_from_slice(&unpacked[from..from + out.len()]),
            )
        })
    }
}

fn check(frame: &Frame, stored: &[u8]) -> Result<(), String> {
    match xxh3_64(stored) == frame.checksum {
        true => Ok(()),
        false => Err(format!("{} bytes from here on do not match their checksum", frame.stored_len)),
    }
}
