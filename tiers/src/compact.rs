//! Compaction: pages of segments that hold little else are copied into the image that is being made.
//!
//! Called by [`crate::ImageWriter`] when it knows where all pages are. Keeps two things bounded: the space of segments
//! of which only a few pages are needed any more, and the number of segments that a restart has to open.
//! Invariants: pages are read from the parent with their checksums and stored like pages of the program; what is moved
//! for the sake of space is at most one part in [`MOVE_PART`] of what is stored anyway.
//! Fails by: an error that names the damaged segment.

use crate::locations::{Located, Origin};
use crate::tables::Tables;
use holdfast_image::pages::{PageError, PageRun, PageSource, TakeList};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};

/// Most segments that an image names.
const MAX_SEGMENTS: usize = 96;
/// A segment that is live to less than one part of this many is emptied.
const LIVE_PART: u64 = 4;
/// For the sake of space, at most one page is moved for each so many that are stored. A program that rewrites any tenth
/// of its memory between images so gets increments of 10.3 %, and a segment is emptied once 3 % of it are left, after
/// ln 32 / -ln 0.9 = 33 images; the space was at most 4.7 times the memory in the test with 60 such images.
const MOVE_PART: u64 = 32;

/// The pages to be moved, as a source for the pipeline.
pub(crate) struct Moving<'a> {
    tables: &'a Tables,
    /// Ascending by address.
    pages: Vec<Located>,
    /// The same in the order of the files.
    list: TakeList,
}

/// What is live in one segment of the parent.
#[derive(Clone, Copy, Default)]
struct Live {
    pages: u64,
    bytes: u64,
}

/// Which segments of the parent should be emptied. `own`: segments of the new image; `stored`: pages stored in it.
fn choose(parent: &Tables, located: &[Located], own: usize, stored: u64) -> Vec<bool> {
    let mut live = vec![Live::default(); parent.entries.len()];
    for (entry, frame) in located.iter().filter_map(|entry| match entry.origin {
        Origin::Parent { frame, .. } => Some((entry, parent.frames.get(frame as usize)?)),
        _ => None,
    }) {
        let live = &mut live[frame.segment as usize];
        live.pages += entry.run.pages.0;
        live.bytes += entry.run.pages.0 * frame.stored_len / frame.pages;
    }
    let mut order: Vec<usize> = (0..live.len()).filter(|&segment| live[segment].pages > 0).collect();
    order.sort_by_key(|&segment| live[segment].pages);
    // What is moved needs a segment of the new image.
    let mut named = order.len() + own.max(1);
    let mut room = stored / MOVE_PART;
    let mut chosen = vec![false; live.len()];
    for segment in order {
        let Live { pages, bytes } = live[segment];
        let sparse = bytes < parent.entries[segment].len / LIVE_PART && pages <= room;
        if sparse || named > MAX_SEGMENTS {
            chosen[segment] = true;
            named -= 1;
            room = room.saturating_sub(pages);
        }
    }
    chosen
}

impl<'a> Moving<'a> {
    /// What is to be moved, if anything. `located` is the index of the new image, ascending.
    pub(crate) fn plan(
        parent: &'a Tables,
        located: &[Located],
        own: usize,
        stored: u64,
    ) -> Option<Moving<'a>> {
        let chosen = choose(parent, located, own, stored);
        let pages: Vec<Located> = located
            .iter()
            .filter(|entry| match entry.origin {
                Origin::Parent { frame, .. } => chosen[parent.frames[frame as usize].segment as usize],
                _ => false,
            })
            .copied()
            .collect();
        if pages.is_empty() {
            return None;
        }
        let mut order: Vec<(u32, PageRun)> = pages
            .iter()
            .filter_map(|entry| match entry.origin {
                Origin::Parent { frame, .. } => Some((frame, entry.run)),
                _ => None,
            })
            .collect();
        order.sort_unstable();
        let list = TakeList::new(order.into_iter().map(|(_, run)| run).collect());
        Some(Moving { tables: parent, pages, list })
    }
}

impl PageSource for Moving<'_> {
    fn pages(&self) -> PageCount {
        self.list.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.list.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        // Runs are handed out as they lie in their frames, so that one entry covers each read.
        let at = self.pages.partition_point(|entry| entry.run.end() <= start);
        let Some(Located { run, origin: Origin::Parent { frame, page } }) = self.pages.get(at) else {
            return Ok(false);
        };
        let skipped = start.0.checked_sub(run.start.0);
        let Some(skipped) = skipped.filter(|skipped| skipped + buffer.len() as u64 <= run.pages.bytes())
        else {
            return Ok(false);
        };
        self.tables.read_frame(*frame, u64::from(*page) + skipped / PAGE_SIZE, buffer)?;
        Ok(true)
    }
    fn release(&self, _: PageRun) {}
    fn is_urgent(&self) -> bool {
        // All pages of the program are stored: no copy is waiting for this.
        false
    }
    fn has_several(&self) -> bool {
        // What is the same was found when it was stored first.
        false
    }
}
