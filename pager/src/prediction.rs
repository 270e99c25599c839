//! What the history says of the epoch that begins: how and when each page will be written first. Made by
//! [`crate::history::History::predict`]; orders the flush, says which pages a pre-copy should leave alone, and which
//! neighbours a fault should take along.
//!
//! Wrong predictions cost time, never a page: nothing that must be stored depends on them.

use crate::access::{Access, EpochAccess, Packed, PackedChunk, PageAccess, Tick};
use crate::chunk::{locate, pieces, run_at};
use crate::rank::Rank;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PageCount};
use std::collections::BTreeMap;
use std::time::Duration;

/// See the head of the file. Two bytes per page that is known. The default knows nothing.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Prediction {
    chunks: BTreeMap<u64, PackedChunk>,
    /// Pages of an earlier flush and how long it took in microseconds (not 0).
    speed: Option<(PageCount, u64)>,
    copies: PageCount,
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
    /// With the room for copies that the flush order may count on: pages that the program will write before the flush
    /// can reach them are then left for last. The caller keeps some of the bound back for what the program does
    /// before it is seen. None at first.
    #[must_use]
    pub fn with_copies(self, copies: PageCount) -> Prediction {
        Prediction { copies, ..self }
    }
    pub(crate) fn copies(&self) -> PageCount {
        self.copies
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
        self.those(among, is_during)
    }
    /// The same, and those that are predicted to be written so soon after a cut: a program that goes through the same
    /// steps again and again writes them so soon after any other moment, too.
    pub fn soon(&self, among: &PageSet, within: Duration) -> PageSet {
        let until = Tick::from_us(u64::try_from(within.as_micros()).unwrap_or(u64::MAX));
        self.those(among, |page| is_during(page) || (page.access == Access::After && page.at <= until))
    }
    fn those(&self, among: &PageSet, is_one: impl Fn(&PageAccess) -> bool) -> PageSet {
        let mut found = PageSet::new();
        for piece in among.runs().iter().copied().flat_map(pieces) {
            let Some(chunk) = self.chunk(piece.chunk) else { continue };
            for place in piece.from..piece.to {
                if chunk.get(place).and_then(|packed| packed.get()).as_ref().is_some_and(&is_one) {
                    found.insert(run_at(piece.chunk, place, 1));
                }
            }
        }
        found
    }
    /// Pages that are predicted to cost a copy or a wait, together with a neighbour at most
    /// [`Prediction::NEXT_TICKS`] away in time: a program that writes one of them will soon write the other, so that
    /// one fault may resolve both. Not pages that are predicted to be stored by then: copying those early would be in
    /// vain.
    pub fn together(&self) -> PageSet {
        let mut found = PageSet::new();
        let mut before: Option<(PageRun, Tick)> = None;
        for (number, chunk) in &self.chunks {
            for (place, packed) in chunk.iter().enumerate() {
                let Some(at) = packed.get().filter(costs).map(|page| page.at) else { continue };
                let page = run_at(*number, place, 1);
                if let Some((last, then)) = before
                    && last.end() == page.start
                    && at.since(then).max(then.since(at)) <= Prediction::NEXT_TICKS
                {
                    found.insert(last);
                    found.insert(page);
                }
                before = Some((page, at));
            }
        }
        found
    }
}

/// Whether the page is predicted to be written before it is stored.
fn costs(page: &PageAccess) -> bool {
    matches!(page.access, Access::Wait | Access::Cow)
}

fn is_during(page: &PageAccess) -> bool {
    matches!(page.access, Access::Wait | Access::Cow | Access::Avoided)
}

fn hot(packed: Packed) -> bool {
    packed.get().as_ref().is_some_and(is_during)
}
