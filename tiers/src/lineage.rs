//! What the next image needs of the one before it, its parent: where each page is, and what it was.
//!
//! Made at each commit and, after a restart, of the image restarted from; handed to [`crate::Job::begin`] by the agent.
//! Never changed once made: an image that fails leaves it as it was, and the next one may use it again.
//! Invariants: a hash is known only for pages that lie in a frame, and is that of the content there; the segments are
//! open, so that contents can be compared even if the parent's manifest is removed meanwhile.

use crate::Image;
use crate::format::manifest::{IndexRun, Place};
use crate::format::segment::{Codec, Frame};
use crate::hashes::Hashes;
use crate::locations::{Located, Origin, pick};
use crate::served_pages::ServedPages;
use crate::shared_pages::SharedPages;
use crate::tables::Tables;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::MappedFrom;
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use std::sync::Arc;

/// See the head of the file. Its size is that of the page index, and 16 bytes for each page whose hash is known.
pub struct Lineage {
    pub(crate) tables: Arc<Tables>,
    pub(crate) hashes: Hashes,
    /// What the restart before has unpacked for several address spaces.
    pub(crate) shared: Option<Arc<SharedPages>>,
    /// What is served since.
    pub(crate) served: Option<Arc<ServedPages>>,
}

impl Image {
    /// What this process knows of the pages of the newest image, if this is it: few pages of a frame are then compared
    /// with that, and the rest of the frame is not read.
    pub fn know(&mut self, newest: &Lineage) {
        let (own, other) = (&self.tables, &newest.tables);
        let is_same = (own.epoch, &own.entries, &own.index) == (other.epoch, &other.entries, &other.index);
        self.known = is_same.then(|| newest.hashes.clone());
    }
}

impl Lineage {
    /// The parent of the first image after a restart. No hashes are known: contents are compared by reading the
    /// parent.
    pub fn of_image(image: &Image) -> Arc<Lineage> {
        let (shared, served) = (image.shared.clone(), image.served.clone());
        Arc::new(Lineage { tables: Arc::clone(&image.tables), hashes: Hashes::default(), shared, served })
    }

    /// Whether an increment may build on it: all its segments are on the first tier, and intact as far as they were
    /// read.
    pub fn may_be_parent(&self) -> bool {
        self.tables.segments.iter().all(|segment| segment.is_in_first_folder())
    }

    /// Number of the image.
    pub fn epoch(&self) -> Epoch {
        self.tables.epoch
    }

    /// Where a frame lies, uncompressed, in what pages are mapped from.
    fn place_in(&self, from: MappedFrom, frame: &Frame) -> Option<u64> {
        let entry = self.tables.entries.get(frame.segment as usize)?;
        match from {
            MappedFrom::Segment { version, number } => {
                let is_there = (entry.epoch, entry.number) == (version, number) && frame.codec == Codec::Raw;
                is_there.then_some(frame.offset)
            }
            MappedFrom::SharedPages => self.shared.as_ref()?.place(&self.tables.entries, frame),
        }
    }

    /// Picks those of the `wanted` pages, mapped with an `offset` in what they are `from`, that the index places
    /// exactly there; returns the others. `offset` belongs to the address 0: it may wrap around.
    pub(crate) fn match_mapping(
        &self,
        from: MappedFrom,
        offset: u64,
        wanted: &PageSet,
        found: &mut Vec<Located>,
    ) -> PageSet {
        if let (MappedFrom::SharedPages, Some(served)) = (from, &self.served) {
            return served.match_mapping(&self.tables, offset, wanted, found);
        }
        let (Some(first), Some(last)) = (wanted.runs().first(), wanted.runs().last()) else {
            return PageSet::new();
        };
        let index = &self.tables.index;
        let begin = index.partition_point(|entry| entry.run.end() <= first.start);
        let end = index.partition_point(|entry| entry.run.start < last.end());
        let index = index.get(begin..end).unwrap_or_default();
        let mut in_index = Vec::new();
        let mut others = pick(index, Located::in_parent, wanted, &mut in_index).into_runs();
        for part in in_index {
            let is_there = match part.origin {
                Origin::Parent { frame, page } => {
                    let place = self.place_in(from, &self.tables.frames[frame as usize]);
                    let mapped = offset.wrapping_add(part.run.start.0);
                    place.is_some_and(|place| place + u64::from(page) * PAGE_SIZE == mapped)
                }
                Origin::Zero | Origin::Own { .. } => false,
            };
            if is_there {
                part.push_to(found);
            } else {
                others.push(part.run);
            }
        }
        PageSet::from(others)
    }
}

/// Finds out for one worker whether a page is still what the parent holds.
pub(crate) struct Comparer<'a> {
    parent: Option<&'a Lineage>,
    /// Position in the parent's index of the last page that was asked for.
    at: usize,
    page: Vec<u8>,
}

impl<'a> Comparer<'a> {
    pub(crate) fn new(parent: Option<&'a Lineage>) -> Comparer<'a> {
        Comparer { parent, at: 0, page: Vec::new() }
    }

    fn entry(&mut self, index: &'a [IndexRun], start: Addr) -> Option<&'a IndexRun> {
        let holds =
            |at: usize| index.get(at).filter(|entry| entry.run.start <= start && start < entry.run.end());
        if holds(self.at).is_none() {
            self.at = match holds(self.at + 1) {
                Some(_) => self.at + 1,
                None => index.partition_point(|entry| entry.run.end() <= start),
            };
        }
        holds(self.at)
    }

    /// The parent's place of the page at `start` if it has this content. A hash that is not known is made up for by
    /// reading the parent, unless there is no time for that.
    pub(crate) fn same(
        &mut self,
        start: Addr,
        hash: u128,
        content: &[u8],
        may_read: bool,
    ) -> Option<(u32, u32)> {
        let parent = self.parent?;
        let entry = self.entry(&parent.tables.index, start)?;
        let Place::Frame { frame, page } = entry.place else { return None };
        let page = page + ((start.0 - entry.run.start.0) / PAGE_SIZE) as u32;
        let same = match parent.hashes.get(start) {
            0 => may_read && self.reads_the_same(parent, frame, page, content),
            known => known == hash,
        };
        same.then_some((frame, page))
    }

    /// The parent's place of the page at `elsewhere`, if that is known to have this hash.
    pub(crate) fn same_hash(&self, elsewhere: Addr, hash: u128) -> Option<(u32, u32)> {
        let parent = self.parent.filter(|parent| parent.hashes.get(elsewhere) == hash)?;
        let index = &parent.tables.index;
        let entry = index.get(index.partition_point(|entry| entry.run.end() <= elsewhere))?;
        let skipped = elsewhere.0.checked_sub(entry.run.start.0)?;
        let Place::Frame { frame, page } = entry.place else { return None };
        Some((frame, page + (skipped / PAGE_SIZE) as u32))
    }

    /// A parent that cannot be read any more is a reason to store the page.
    fn reads_the_same(&mut self, parent: &Lineage, frame: u32, page: u32, content: &[u8]) -> bool {
        self.page.resize(content.len(), 0);
        parent.tables.read_frame(frame, u64::from(page), &mut self.page).is_ok() && self.page == content
    }
}
