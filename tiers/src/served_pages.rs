//! An image whose pages a page server serves, in one file that has each page at its address and zeros elsewhere.
//!
//! Made by [`crate::Image::serve`], before extents are asked for; carried along by [`crate::Lineage`], so that later
//! images know what is still mapped from there. Invariant: a frame is known by its segment's name and its offset there,
//! which never change; what is in the file at an address is what the image served has there, whatever the program has
//! moved to where.

use crate::format::manifest::{IndexRun, Place, SegmentEntry};
use crate::format::segment::Frame;
use crate::locations::{Located, Origin};
use crate::tables::Tables;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{Extent, ExtentSource, PageRun};
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use std::sync::Arc;

/// See the head of the file.
pub(crate) struct ServedPages {
    tables: Arc<Tables>,
}

/// Segment, offset of the frame in it, number of the page in the frame.
type PageName = (Epoch, u32, u64, u32);

/// What an index has at an address.
#[derive(Clone, Copy)]
enum Found {
    Page { frame: u32, page: u32 },
    Nothing,
}

/// What is at `at`, and up to where it goes on, `end` at most.
fn look_up(index: &[IndexRun], at: Addr, end: Addr) -> (Found, Addr) {
    let entry = index.get(index.partition_point(|entry| entry.run.end() <= at));
    match entry.filter(|entry| entry.run.start <= at) {
        None => (Found::Nothing, entry.map_or(end, |next| next.run.start.min(end))),
        Some(IndexRun { run, place: Place::Zero }) => (Found::Nothing, run.end().min(end)),
        Some(IndexRun { run, place: Place::Frame { frame, page } }) => {
            // A frame has at most 256 pages.
            let skipped = u32::try_from((at.0 - run.start.0) / PAGE_SIZE).unwrap_or(u32::MAX);
            (Found::Page { frame: *frame, page: page.saturating_add(skipped) }, run.end().min(end))
        }
    }
}

fn name(entries: &[SegmentEntry], frames: &[Frame], frame: u32, page: u32) -> Option<PageName> {
    let frame = frames.get(frame as usize)?;
    let entry = entries.get(frame.segment as usize)?;
    Some((entry.epoch, entry.number, frame.offset, page))
}

impl ServedPages {
    /// Of an open image.
    pub(crate) fn new(tables: Arc<Tables>) -> ServedPages {
        ServedPages { tables }
    }

    /// Where all pages are, if the file has `number` in the place of a segment's.
    pub(crate) fn extents(&self, number: u32) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for entry in &self.tables.index {
            let is_zero = entry.place == Place::Zero;
            match extents.last_mut() {
                Some(last)
                    if last.run.end() == entry.run.start
                        && (last.source == ExtentSource::Zero) == is_zero =>
                {
                    last.run.pages.0 += entry.run.pages.0;
                }
                _ => {
                    let here = ExtentSource::Mappable { segment: number, offset: entry.run.start.0 };
                    let source = if is_zero { ExtentSource::Zero } else { here };
                    extents.push(Extent { run: entry.run, source });
                }
            }
        }
        extents
    }

    /// Picks those of the `wanted` pages, which are mapped from `offset` of the file on, that `parent` has just so;
    /// returns the others. `offset` belongs to the address 0: it may wrap around.
    pub(crate) fn match_mapping(
        &self,
        parent: &Tables,
        offset: u64,
        wanted: &PageSet,
        found: &mut Vec<Located>,
    ) -> PageSet {
        let mut others = Vec::new();
        for run in wanted.runs() {
            let mut at = run.start;
            while at < run.end() {
                let (theirs, end) = look_up(&parent.index, at, run.end());
                let served = |addr: Addr| Addr(offset.wrapping_add(addr.0));
                let (ours, served_end) = look_up(&self.tables.index, served(at), served(end));
                let end = Addr(served_end.0.wrapping_sub(offset));
                let part = PageRun::between(at, end);
                let origin = match (ours, theirs) {
                    (Found::Nothing, Found::Nothing) => Some(Origin::Zero),
                    (Found::Page { frame, page }, Found::Page { frame: in_parent, page: there }) => {
                        let (own, other) = (&self.tables, parent);
                        let own = name(&own.entries, &own.frames, frame, page);
                        let same = own == name(&other.entries, &other.frames, in_parent, there);
                        same.then_some(Origin::Parent { frame: in_parent, page: there })
                    }
                    _ => None,
                };
                match origin {
                    Some(origin) => Located { run: part, origin }.push_to(found),
                    None => others.push(part),
                }
                at = end;
            }
        }
        PageSet::from(others)
    }
}
