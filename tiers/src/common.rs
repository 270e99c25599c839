//! Which pages two images have in common because both have them from the same place of the store.
//!
//! For a rollback: what the newest image still has from an older one has not changed between them. Pages that are equal
//! but stored twice are not found; they only cost time. Called by the agent. Pure.

use crate::format::manifest::{IndexRun, Place};
use crate::tables::Tables;
use crate::{Image, Lineage};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE};

/// Where a page is: the image that its segment was written for, the segment's number, offset of the frame in it, and
/// page in the frame. `None`: all zero.
type Spot = Option<([u8; 16], u32, u64, u64)>;

impl Image {
    /// The pages that have the same content here and in the newest image.
    pub fn in_common(&self, newest: &Lineage) -> PageSet {
        in_common(&self.tables, &newest.tables)
    }
}

/// Where the page at `address` is, which is in `entry`.
fn spot(tables: &Tables, entry: &IndexRun, address: Addr) -> Option<Spot> {
    let Place::Frame { frame, page } = entry.place else { return Some(None) };
    let frame = tables.frames.get(frame as usize)?;
    let segment = tables.entries.get(frame.segment as usize)?;
    let page = u64::from(page) + (address.0 - entry.run.start.0) / PAGE_SIZE;
    Some(Some((segment.image_id, segment.number, frame.offset, page)))
}

fn in_common(one: &Tables, other: &Tables) -> PageSet {
    let (mut ones, mut others) = (one.index.iter().peekable(), other.index.iter().peekable());
    let mut found = Vec::new();
    while let (Some(a), Some(b)) = (ones.peek(), others.peek()) {
        let start = a.run.start.max(b.run.start);
        let end = a.run.end().min(b.run.end());
        if start < end && spot(one, a, start).is_some_and(|at| Some(at) == spot(other, b, start)) {
            found.push(PageRun::between(start, end));
        }
        if a.run.end() <= b.run.end() {
            ones.next();
        } else {
            others.next();
        }
    }
    PageSet::from(found)
}
