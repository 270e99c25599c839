//! What several address spaces of an image have by copy-on-write: a restart unpacks it once, into a file in memory
//! that all of them map. What is not compressed a lazy restart maps from the segments instead.
//!
//! Laid out by [`crate::Image::share`], before extents are asked for; filled by `read`; carried along by
//! [`crate::Lineage`], so that later images know what is still mapped from there. Invariant: a frame is known by its
//! segment's name and its offset there, which never change.

use crate::format::manifest::{IndexRun, Place, SegmentEntry};
use crate::format::segment::{Codec, Frame};
use holdfast_image::{Epoch, address_space};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// Shorter runs do not count: a restart maps none, and they would cost memory for nothing. Pages.
const LEAST: u64 = 16;

/// Segment, and offset of the frame in it.
type FrameName = (Epoch, u32, u64);

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct SharedPages {
    /// Where each frame lies in the file: bytes.
    places: HashMap<FrameName, u64>,
    len: u64,
}

fn name(entries: &[SegmentEntry], frame: &Frame) -> Option<FrameName> {
    let entry = entries.get(frame.segment as usize)?;
    Some((entry.epoch, entry.number, frame.offset))
}

impl SharedPages {
    /// Of frames that longer runs of several spaces lie in, in the order of the index; `raw`: of uncompressed ones too.
    pub(crate) fn of(
        index: &[IndexRun],
        frames: &[Frame],
        entries: &[SegmentEntry],
        raw: bool,
    ) -> SharedPages {
        let framed = index.iter().filter_map(|entry| match entry.place {
            Place::Frame { frame, .. } if entry.run.pages.0 >= LEAST => {
                Some((frame, address_space::split(entry.run.start).0))
            }
            _ => None,
        });
        let mut first: HashMap<u32, u32> = HashMap::new();
        let several: HashSet<u32> = framed
            .clone()
            .filter(|(frame, space)| *first.entry(*frame).or_insert(*space) != *space)
            .map(|(frame, _)| frame)
            .collect();
        let mut shared = SharedPages::default();
        for number in framed.map(|(frame, _)| frame).filter(|frame| several.contains(frame)) {
            let frame = &frames[number as usize];
            if frame.codec == Codec::Raw && !raw {
                continue;
            }
            if let Some(name) = name(entries, frame)
                && let Entry::Vacant(entry) = shared.places.entry(name)
            {
                entry.insert(shared.len);
                shared.len += frame.raw_len() as u64;
            }
        }
        shared
    }

    /// Where a frame lies in the file.
    pub(crate) fn place(&self, entries: &[SegmentEntry], frame: &Frame) -> Option<u64> {
        self.places.get(&name(entries, frame)?).copied()
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }
}
