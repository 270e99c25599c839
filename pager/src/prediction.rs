//! What the history says of the epoch that begins: how and when each page will be written first. Made by
//! [`crate::history::History::predict`]; orders the flush, says which pages a pre-copy should leave alone, and which
//! neighbours a fault should take along.
//!
//! Wrong predictions cost time, never a page: nothing that must be stored depends on them.

use crate::access::{Access, EpochAccess, Packed, PackedChunk, PageAccess};
use crate::chunk::{locate, pieces, run_at};
use crate::order::Rank;
use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use std::collections::BTreeMap;

/// See the head of the file. Two bytes per page that is known. The default knows nothing.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Prediction {
    chunks: BTreeMap<u64, PackedChunk>,
    /// Pages of an earlier flush and how long it took in microseconds (not 0).
    speed: Option<(PageCount, u64)>,
    room: PageCount,
}

impl Prediction {
    /// How far apart in ticks two first writes may be to count as one right after the other: 4 ms at first, one part
    /// in eight of the time later. The sampler sees the program every few milliseconds only.
    const NEXT_TICKS: u16 = 64;

    /// The first of `epochs` that knows a page predicts it.
    pub(crate) fn merge<'a>(epochs: impl IntoIterator<Item = &'a EpochAccess>) -> Prediction {
        let mut chunks: BTreeMap<u64, PackedChunk> = BTreeMap::new();
        for (number, known) in epochs.into_iter().flat_map(EpochAccess::chunks) {
            let Some(merged) = chunks.get_mut(number) else {
                chunks.insert(*number, known.clone());
                continue;
            };
            for (own, other) in merged.iter_mut().zip(known.iter()) {
                if !own.is_known() {
                    *own = *other;
                }
            }
        }
        Prediction { chunks, ..Prediction::default() }
    }
    pub(crate) fn with_speed(self, speed: Option<(PageCount, u64)>) -> Prediction {
        Prediction { speed, ..self }
    }
    /// With the room for copies that the flush order may count on: pages that the program will write before the flush can
    /// reach them are then left for last. For the engine `slots` nearly all slots, for `fork` half of the bound (the rest
    /// is for what the program does between two samples). None at first.
    #[must_use]
    pub fn with_room(self, room: PageCount) -> Prediction {
        Prediction { room, ..self }
    }
    pub(crate) fn room(&self) -> PageCount {
        self.room
    }
    /// How many pages a flush as fast as an earlier one has stored by `at_us`; `None`: no flush is known.
    pub(crate) fn flushed_by(&self, at_us: u64) -> Option<u64> {
        let (pages, flush_us) = self.speed?;
        let flushed = u128::from(pages.0) * u128::from(at_us) / u128::from(flush_us.max(1));
        Some(u64::try_from(flushed).unwrap_or(u64::MAX))
    }
    pub(crate) fn chunk(&self, number: u64) -> Option<&PackedChunk> {
        self.chunks.get(&number)
    }
    fn packed(&self, page: Addr) -> Packed {
        let (number, place) = locate(page);
        self.chunk(number).and_then(|chunk| chunk.get(place)).copied().unwrap_or_default()
    }
    /// What is predicted for a page; `None`: nothing.
    pub fn get(&self, page: Addr) -> Option<PageAccess> {
        self.packed(page).get()
    }
    /// Whether nothing is predicted for any page.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
    /// The place of a page in the order of the flush.
    pub fn rank(&self, page: Addr) -> Rank {
        Rank::of(self.get(page))
    }
    /// Whether the page is predicted to be written while the flush runs: a pre-copy of it would be in vain.
    pub fn is_hot(&self, page: Addr) -> bool {
        hot(self.packed(page))
    }
    /// The pages of `among` that are predicted to be written while the flush runs.
    pub fn hot(&self, among: &PageSet) -> PageSet {
        let mut found = PageSet::new();
        for piece in among.runs().iter().copied().flat_map(pieces) {
            let Some(chunk) = self.chunk(piece.chunk) else { continue };
            for place in piece.from..piece.to {
                if chunk.get(place).copied().is_some_and(hot) {
                    found.insert(run_at(piece.chunk, place, 1));
                }
            }
        }
        found
    }
    /// `page` and the neighbours that are predicted to be written first right after it: a contiguous run of at most
    /// `count` pages (at least one), grown page by page to the side that comes earlier. Pages predicted to be written
    /// before `page` end it too: they have been dealt with.
    pub fn next_after(&self, page: Addr, count: PageCount) -> PageRun {
        let mut run = PageRun { start: page.page_floor(), pages: PageCount(1) };
        let Some(own) = self.get(page).filter(is_during) else { return run };
        let follows = |neighbour: Addr| {
            let next = self.get(neighbour).filter(is_during)?;
            (next.at >= own.at && next.at.since(own.at) <= Prediction::NEXT_TICKS).then_some(next.at)
        };
        while run.pages < count {
            let below = run.start.0.checked_sub(PAGE_SIZE).map(Addr);
            let before = below.and_then(|below| Some((follows(below)?, below)));
            let after = follows(run.end());
            match (before, after) {
                (Some((earlier, below)), after) if after.is_none_or(|after| earlier < after) => {
                    run.start = below
                }
                (_, Some(_)) => {}
                (_, None) => break,
            }
            run.pages = PageCount(run.pages.0 + 1);
        }
        run
    }
}

fn is_during(page: &PageAccess) -> bool {
    matches!(page.access, Access::Wait | Access::Cow | Access::Avoided)
}

fn hot(packed: Packed) -> bool {
    packed.get().as_ref().is_some_and(is_during)
}
