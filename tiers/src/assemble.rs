//! Joins what the passes have stored with what is inherited: the tables of a new image.
//!
//! Called by [`crate::ImageWriter`] at the end of the flush and at the commit. Pure but for the names of files.
//! Invariants: a page gets a place only if it was stored; frames and segments that no page needs are not named;
//! the tables are in the order that the format demands, whatever the order in which workers stored.

use crate::format::manifest::{IndexRun, Place, SegmentEntry};
use crate::format::segment::Frame;
use crate::locations::{Located, Origin};
use crate::segment_writer::SegmentWriter;
use crate::tables::Tables;
use std::collections::BTreeMap;

/// Segment table, frame table and page index of a new image.
#[derive(Debug, Default)]
pub(crate) struct Assembled {
    pub(crate) entries: Vec<SegmentEntry>,
    /// For each entry that is the parent's: its place in the parent's table. They come first.
    pub(crate) inherited: Vec<usize>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) index: Vec<IndexRun>,
}

/// Marks a frame that no page needs.
const UNUSED: u32 = u32::MAX;

/// Makes the tables for `located`, which is ascending. `own`: the image's segments by number.
///
/// # Errors
/// There are more frames than the format can count, or a run names a frame that is not there.
pub(crate) fn assemble(
    parent: Option<&Tables>,
    own: &BTreeMap<u32, &SegmentWriter>,
    located: &[Located],
) -> Result<Assembled, String> {
    let mut parent_frames = vec![UNUSED; parent.map_or(0, |parent| parent.frames.len())];
    let mut own_frames: BTreeMap<u32, Vec<u32>> =
        own.iter().map(|(number, segment)| (*number, vec![UNUSED; segment.frames().len()])).collect();
    for entry in located {
        if let Some(slot) = slot(&mut parent_frames, &mut own_frames, entry.origin)? {
            *slot = 0;
        }
    }
    let mut made = Assembled::default();
    if let Some(parent) = parent {
        let mut last = None;
        for (frame, slot) in parent.frames.iter().zip(&mut parent_frames).filter(|(_, slot)| **slot == 0) {
            if last != Some(frame.segment) {
                last = Some(frame.segment);
                made.entries.push(parent.entries[frame.segment as usize]);
                made.inherited.push(frame.segment as usize);
            }
            *slot = made.push_frame(frame)?;
        }
    }
    for (number, slots) in &mut own_frames {
        let (Some(segment), true) = (own.get(number), slots.contains(&0)) else { continue };
        made.entries.push(segment.entry());
        for (frame, slot) in segment.frames().iter().zip(slots).filter(|(_, slot)| **slot == 0) {
            *slot = made.push_frame(frame)?;
        }
    }
    made.index.reserve(located.len());
    for entry in located {
        let place = match (entry.origin, slot(&mut parent_frames, &mut own_frames, entry.origin)?) {
            (Origin::Own { page, .. } | Origin::Parent { page, .. }, Some(frame)) => {
                Place::Frame { frame: *frame, page }
            }
            _ => Place::Zero,
        };
        made.push_run(IndexRun { run: entry.run, place });
    }
    Ok(made)
}

/// Where the number of a run's frame is noted; `None`: it is in no frame.
fn slot<'a>(
    parent: &'a mut [u32],
    own: &'a mut BTreeMap<u32, Vec<u32>>,
    origin: Origin,
) -> Result<Option<&'a mut u32>, String> {
    let slot = match origin {
        Origin::Zero => return Ok(None),
        Origin::Parent { frame, .. } => parent.get_mut(frame as usize),
        Origin::Own { segment, frame, .. } => {
            own.get_mut(&segment).and_then(|frames| frames.get_mut(frame as usize))
        }
    };
    slot.map(Some).ok_or_else(|| format!("{origin:?} is not there"))
}

impl Assembled {
    /// Adds a frame of the last segment.
    fn push_frame(&mut self, frame: &Frame) -> Result<u32, String> {
        let number = u32::try_from(self.frames.len()).ok().filter(|number| *number != UNUSED);
        let number = number.ok_or_else(|| format!("too many frames in {} segments", self.entries.len()))?;
        self.frames.push(Frame { segment: self.entries.len() as u32 - 1, ..*frame });
        Ok(number)
    }

    /// Adds a run, to the last one if it goes on where that ends, in the program and in its frame.
    fn push_run(&mut self, entry: IndexRun) {
        if let Some(last) = self.index.last_mut()
            && last.run.end() == entry.run.start
            && match (last.place, entry.place) {
                (Place::Zero, Place::Zero) => true,
                (Place::Frame { frame: a, page }, Place::Frame { frame: b, page: next }) => {
                    a == b && u64::from(page) + last.run.pages.0 == u64::from(next)
                }
                _ => false,
            }
        {
            last.run.pages.0 += entry.run.pages.0;
            return;
        }
        self.index.push(entry);
    }
}
