//! Compares the bytes of a segment, as they pass, with what a manifest says of it: the data of the frames with their
//! checksums, and the blocks of headers with the frames.
//!
//! Called by the copier, piece by piece. Where a block lies only the block after it says (in old versions: the one
//! before), so that every page between the frames that looks like one is kept as a [`Found`], and the blocks are walked
//! when all bytes were seen. Invariant: a segment that passes is one that `verify` finds good. Memory: a few dozen
//! bytes for each block.

use crate::format::manifest::SegmentEntry;
use crate::format::segment::{BLOCK_LEN, Block, Frame, first_block, follows, same_layout};
use holdfast_image::PAGE_SIZE;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::Xxh3;

/// Where damage begins, and what it is.
pub(crate) type Damage = (u64, String);

/// See the head of the file.
pub(crate) struct SegmentCheck<'a> {
    entry: &'a SegmentEntry,
    all: &'a [Frame],
    /// How many frames are over.
    next: usize,
    hash: Xxh3,
    at: u64,
    /// The part of a page between frames that has passed.
    page: Vec<u8>,
    found: BTreeMap<u64, Found>,
}

/// A page that may be a block of headers.
struct Found {
    number: u64,
    next: Option<u64>,
    /// How many of the manifest's frames it describes.
    frames: usize,
}

impl<'a> SegmentCheck<'a> {
    /// `frames`: those that the manifest has of this segment, ascending.
    pub(crate) fn new(entry: &'a SegmentEntry, frames: &'a [Frame]) -> SegmentCheck<'a> {
        let page = Vec::with_capacity(BLOCK_LEN);
        SegmentCheck { entry, all: frames, next: 0, hash: Xxh3::new(), at: 0, page, found: BTreeMap::new() }
    }

    /// The next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Damage> {
        let part = |bytes: &[u8], until: u64, at: u64| {
            usize::try_from(until.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len())
        };
        while let Some(frame) = self.all.get(self.next) {
            let gap = part(bytes, frame.offset, self.at);
            self.between(&bytes[..gap]);
            bytes = &bytes[gap..];
            if bytes.is_empty() {
                return Ok(());
            }
            self.page.clear();
            let data = part(bytes, frame.end(), self.at);
            self.hash.update(&bytes[..data]);
            self.at += data as u64;
            bytes = &bytes[data..];
            if self.at < frame.end() {
                return Ok(());
            }
            if self.hash.digest() != frame.checksum {
                return Err((frame.offset, "bytes from here on do not match their checksum".into()));
            }
            self.hash.reset();
            self.next += 1;
        }
        self.between(bytes);
        Ok(())
    }

    /// Bytes that are in no frame.
    fn between(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let into = (self.at % PAGE_SIZE) as usize;
            let now = (BLOCK_LEN - into).min(bytes.len());
            // A page of which a part is in a frame is no block.
            if self.page.len() == into {
                self.page.extend_from_slice(&bytes[..now]);
            }
            self.at += now as u64;
            bytes = &bytes[now..];
            if self.at.is_multiple_of(PAGE_SIZE) {
                if self.page.len() == BLOCK_LEN {
                    self.look(self.at - PAGE_SIZE);
                }
                self.page.clear();
            }
        }
    }

    /// Keeps a whole page, if it is a block of this segment.
    fn look(&mut self, base: u64) {
        let entry = self.entry;
        let Ok(block) = Block::decode(&self.page, base, entry.len) else { return };
        let header = &block.segment;
        let is_ours = (header.image_id, header.epoch, header.number)
            == (entry.image_id, entry.epoch, entry.number)
            && same_layout(header.version, entry.version);
        if is_ours {
            let is_named = |frame: &Frame| {
                let at = self.all.partition_point(|named| named.offset < frame.offset);
                self.all.get(at).is_some_and(|named| Frame { segment: named.segment, ..*frame } == *named)
            };
            let frames = block.frames.iter().filter(|header| is_named(&header.frame)).count();
            self.found.insert(base, Found { number: header.block, next: block.next, frames });
        }
    }

    /// All bytes have passed.
    pub(crate) fn finish(&self) -> Result<(), Damage> {
        let (mut base, mut last, mut frames) = (first_block(self.entry.version, self.entry.len), None, 0);
        while let Some(at) = base {
            let Some(found) = self.found.get(&at) else {
                return Err((at, "a block of frame headers should be here".into()));
            };
            if !follows(self.entry.version, last, found.number) {
                return Err((at, format!("this is block {}, which does not belong here", found.number)));
            }
            frames += found.frames;
            (base, last) = (found.next, Some(found.number));
        }
        if frames == self.all.len() {
            return Ok(());
        }
        Err((
            0,
            format!("{} of {} frames have no header", self.all.len().saturating_sub(frames), self.all.len()),
        ))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::format::manifest::Manifest;
    use std::fs;
    use std::path::Path;

    /// A manifest of version 2 calls all its segments its own version's, those that it has from an image before, too.
    #[test]
    fn a_segment_of_version_1_is_good_in_a_manifest_of_version_2() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
        let bytes = fs::read(golden.join("manifest-000001")).unwrap();
        let manifest = Manifest::open(&bytes).unwrap();
        let entries = manifest.segments().unwrap();
        let frames = manifest.frames(&entries).unwrap();
        for (index, entry) in entries.iter().enumerate() {
            let own: Vec<Frame> =
                frames.iter().copied().filter(|frame| frame.segment as usize == index).collect();
            let bytes = fs::read(golden.join(crate::names::segment_name(entry.epoch, entry.number))).unwrap();
            let entry = SegmentEntry { version: 2, ..*entry };
            let mut check = SegmentCheck::new(&entry, &own);
            check.feed(&bytes).unwrap();
            check.finish().unwrap();
        }
        assert_eq!(entries.len(), 2);
    }
}
