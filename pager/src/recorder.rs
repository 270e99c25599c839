//! The epoch that runs: which pages were stored, which were written before or after that, how many copies are held.
//! The agent's watcher feeds it from the cut on; at the next cut it becomes an [`EpochAccess`].
//!
//! States of a page of the flush: *stored* or not; *held* (a copy exists) or not; first write *unknown*, or one of the
//! classes. Legal transitions: unknown -> AVOIDED, COW, WAIT, AFTER; AVOIDED -> COW, WAIT and COW -> WAIT, because the
//! sampler may see a write before the word of the fault handler arrives, which knows better; not stored -> stored;
//! not held -> held only while not stored; held -> not held by being stored or by the end of the flush. The time is
//! that of the first event and never changes.
//!
//! Runs in: the agent; one owner (the caller locks). Cost: words of 64 pages; what was seen before costs one test per
//! word, so that the sampler may report everything written so far again and again.
//!
//! AI-Ckpt's PROTECTED_PAGE_HANDLER and ASYNC_COMMIT (HPDC'13, algorithms 2 and 3). Avoided here: the branch of
//! ASYNC_COMMIT for copied pages never sets PAGE_PROCESSED, so that such a page is processed for ever; here a page is
//! stored whatever its class ([`Recorder::stored`]), and the copy goes with it.

use crate::access::{
    Access, EpochAccess, Packed, PackedChunk, PageAccess, Tick, count, counter, unknown_chunk,
};
use crate::chunk::{Bits, Piece, WORDS, has, locate, masks, pieces, places, set};
use holdfast_image::manifest::AccessCounts;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PageCount};
use std::collections::BTreeMap;

struct Chunk {
    /// In the flush of this epoch.
    flushing: Bits,
    /// A write costs a copy until the page is stored.
    frozen: Bits,
    /// Stored and released.
    stored: Bits,
    /// Copied, and the copy is still needed.
    held: Bits,
    /// First write known.
    written: Bits,
    access: PackedChunk,
}

impl Chunk {
    fn new() -> Chunk {
        let none = [0; WORDS];
        Chunk {
            flushing: none,
            frozen: none,
            stored: none,
            held: none,
            written: none,
            access: unknown_chunk(),
        }
    }
}

/// See the head of the file.
#[derive(Default)]
pub struct Recorder {
    chunks: BTreeMap<u64, Box<Chunk>>,
    flushing: u64,
    stored: u64,
    /// Pages whose first write costs a copy, and that are not stored yet.
    copyable: u64,
    held: u64,
    held_peak: u64,
    /// Classes of the pages of the flush whose first write is known.
    counts: AccessCounts,
    /// The counts when the flush was done.
    at_done: Option<AccessCounts>,
    /// When it was done, in microseconds since the cut.
    flush_us: u64,
}

impl Recorder {
    /// Begins an epoch at the cut. `flushing`: what will be stored by the flush. `copied_on_write`: pages of it whose
    /// later write costs a copy until they are stored (all that a frozen copy shares with the program; none of those
    /// that were copied inside the stop). Pages that are not in `flushing` are ignored there.
    pub fn new(flushing: &PageSet, copied_on_write: &PageSet) -> Recorder {
        let mut recorder = Recorder { flushing: flushing.pages().0, ..Recorder::default() };
        for piece in flushing.runs().iter().copied().flat_map(pieces) {
            let chunk = recorder.chunks.entry(piece.chunk).or_insert_with(|| Box::new(Chunk::new()));
            add(&mut chunk.flushing, piece);
        }
        for piece in flushing.intersection(copied_on_write).runs().iter().copied().flat_map(pieces) {
            if let Some(chunk) = recorder.chunks.get_mut(&piece.chunk) {
                add(&mut chunk.frozen, piece);
            }
            recorder.copyable += masks(piece).map(|(_, mask)| ones(mask)).sum::<u64>();
        }
        recorder
    }

    /// `run` is stored and released: later writes to it are free. Pages outside the flush are ignored, and so is
    /// everything once the flush has ended.
    pub fn stored(&mut self, run: PageRun) {
        if self.at_done.is_some() {
            return;
        }
        for piece in pieces(run) {
            let Some(chunk) = self.chunks.get_mut(&piece.chunk) else { continue };
            for (word, mask) in masks(piece) {
                let fresh = mask & chunk.flushing[word] & !chunk.stored[word];
                self.stored += ones(fresh);
                self.copyable -= ones(fresh & chunk.frozen[word]);
                self.held -= ones(fresh & chunk.held[word]);
                chunk.stored[word] |= fresh;
                chunk.held[word] &= !fresh;
            }
        }
    }

    /// The pages of `run` have been written since the cut; `at_us` (since the cut) is when that was seen. Only the
    /// first time counts. Pages outside the flush are remembered too: they say what the program will want next time.
    pub fn written(&mut self, run: PageRun, at_us: u64) {
        let at = Tick::from_us(at_us);
        for piece in pieces(run) {
            let chunk = self.chunks.entry(piece.chunk).or_insert_with(|| Box::new(Chunk::new()));
            for (word, mask) in masks(piece) {
                let fresh = mask & !chunk.written[word];
                if fresh == 0 {
                    continue;
                }
                chunk.written[word] |= fresh;
                let (inside, outside) = (fresh & chunk.flushing[word], fresh & !chunk.flushing[word]);
                let mut note = |bits, access, flushed| {
                    mark(&mut chunk.access, word, bits, PageAccess { access, at, flushed });
                };
                if self.at_done.is_some() {
                    note(inside, Access::After, true);
                    note(outside, Access::After, false);
                    self.counts.after += ones(inside);
                    continue;
                }
                let copied = inside & chunk.frozen[word] & !chunk.stored[word];
                note(copied, Access::Cow, true);
                note(inside & !copied, Access::Avoided, true);
                note(outside, Access::Avoided, false);
                self.counts.cow += ones(copied);
                self.counts.avoided += ones(inside & !copied);
                let held = copied & !chunk.held[word];
                chunk.held[word] |= held;
                self.held += ones(held);
            }
        }
        self.held_peak = self.held_peak.max(self.held);
    }

    /// A writer had to wait for `page`: until it was stored, or because the program was held while it wrote there.
    pub fn waited(&mut self, page: Addr, at_us: u64) {
        self.fault(page, at_us, Access::Wait);
    }

    /// `page` was copied into a slot before its first write (engine `slots`). The slot is held until the page is
    /// stored; a page that is stored already holds none.
    pub fn slot(&mut self, page: Addr, at_us: u64) {
        self.fault(page, at_us, Access::Cow);
        let (number, place) = locate(page);
        if self.at_done.is_none()
            && let Some(chunk) = self.chunks.get_mut(&number)
            && has(&chunk.flushing, place)
            && !has(&chunk.stored, place)
            && set(&mut chunk.held, place)
        {
            self.copyable += u64::from(set(&mut chunk.frozen, place));
            self.held += 1;
            self.held_peak = self.held_peak.max(self.held);
        }
    }

    /// The word of a fault handler on one page: it overrules what the sampler made of it, but not the time.
    fn fault(&mut self, page: Addr, at_us: u64, access: Access) {
        let (number, place) = locate(page);
        let chunk = self.chunks.get_mut(&number).filter(|chunk| has(&chunk.flushing, place));
        let (Some(chunk), None) = (chunk, self.at_done) else {
            return self.written(PageRun { start: page.page_floor(), pages: PageCount(1) }, at_us);
        };
        let access = match access {
            Access::Cow if has(&chunk.stored, place) => Access::Avoided,
            other => other,
        };
        let before = chunk.access[place].get();
        let at = before.map_or(Tick::from_us(at_us), |before| before.at);
        // The classes are ordered by what they say: WAIT overrules COW overrules AVOIDED.
        if before.is_some_and(|before| before.access <= access) {
            return;
        }
        if let Some(before) = before {
            *counter(&mut self.counts, before.access) -= 1;
        }
        count(&mut self.counts, access, 1);
        set(&mut chunk.written, place);
        chunk.access[place] = Packed::new(PageAccess { access, at, flushed: true });
    }

    /// The flush has ended, `at_us` after the cut: no copy is held any more, and first writes from now on are AFTER.
    /// The image is committed, or has failed.
    pub fn flush_done(&mut self, at_us: u64) {
        if self.at_done.is_none() {
            self.at_done = Some(self.during());
            self.flush_us = if self.stored == self.flushing { at_us } else { 0 };
            self.held = 0;
        }
    }
    /// Pages copied on write whose copy is still held.
    pub fn copies(&self) -> PageCount {
        PageCount(self.held)
    }
    /// The most copies that were held at one time.
    pub fn copies_peak(&self) -> PageCount {
        PageCount(self.held_peak)
    }
    /// Pages of the flush that are not stored yet and may have a copy, or have one: what was copied inside the stop, or
    /// lies on a device, is not among them. 0 once the flush has ended.
    pub fn unreleased(&self) -> PageCount {
        match self.at_done {
            Some(_) => PageCount(0),
            None => PageCount(self.copyable),
        }
    }
    /// First writes to the pages of the flush up to now, or up to its end if it has ended. Pages not written by then
    /// count as untouched; none is AFTER.
    pub fn flush_counts(&self) -> AccessCounts {
        self.at_done.unwrap_or_else(|| self.during())
    }
    fn during(&self) -> AccessCounts {
        let AccessCounts { wait, cow, avoided, .. } = self.counts;
        AccessCounts { untouched: self.flushing - wait - cow - avoided, ..self.counts }
    }

    /// Ends the epoch. Call [`Recorder::written`] with the dirty set of the next cut before. Pages of the flush that
    /// were never written are UNTOUCHED.
    pub fn finish(self) -> EpochAccess {
        let untouched = PageAccess { access: Access::Untouched, at: Tick::default(), flushed: true };
        let finished = self.chunks.into_iter().map(|(number, mut chunk)| {
            for word in 0..WORDS {
                mark(&mut chunk.access, word, chunk.flushing[word] & !chunk.written[word], untouched);
            }
            (number, chunk.access)
        });
        EpochAccess::new(finished.collect(), self.flush_us)
    }
}

fn ones(bits: u64) -> u64 {
    u64::from(bits.count_ones())
}

/// Sets the bits of a piece.
fn add(bits: &mut Bits, piece: Piece) {
    for (word, mask) in masks(piece) {
        bits[word] |= mask;
    }
}

/// Writes down `page` for every bit that is set in `bits`.
fn mark(chunk: &mut PackedChunk, word: usize, bits: u64, page: PageAccess) {
    let packed = Packed::new(page);
    for place in places(word, bits) {
        chunk[place] = packed;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use holdfast_image::PAGE_SIZE;
    use proptest::prelude::*;

    /// Pages of the little world: the border between two chunks lies in it.
    const WORLD: std::ops::Range<u64> = 440..600;

    #[derive(Clone, Debug)]
    enum Event {
        Stored(u64, u64),
        Written(u64, u64),
        Waited(u64),
        Slot(u64),
        Done,
    }

    /// One page, as the head of the file tells it.
    #[derive(Clone, Copy, Default, Debug)]
    struct Page {
        flushing: bool,
        frozen: bool,
        stored: bool,
        held: bool,
        first: Option<(Access, Tick)>,
    }

    #[derive(Default)]
    struct Model {
        pages: BTreeMap<u64, Page>,
        done: Option<AccessCounts>,
        peak: u64,
    }

    impl Model {
        fn write(&mut self, number: u64, at: Tick) {
            let (done, page) = (self.done.is_some(), self.pages.get_mut(&number).unwrap());
            if page.first.is_some() {
                return;
            }
            page.first = Some(match (done, page.flushing && page.frozen && !page.stored) {
                (true, _) => (Access::After, at),
                (false, true) => (Access::Cow, at),
                (false, false) => (Access::Avoided, at),
            });
            page.held |= page.first == Some((Access::Cow, at));
        }
        fn overrule(&mut self, number: u64, access: Access, at: Tick) {
            let page = self.pages.get_mut(&number).unwrap();
            if !page.flushing || self.done.is_some() {
                return self.write(number, at);
            }
            let (holds, access) = match access {
                Access::Cow if page.stored => (false, Access::Avoided),
                Access::Cow => (true, Access::Cow),
                other => (false, other),
            };
            page.held |= holds;
            page.first = Some(match page.first {
                None => (access, at),
                Some((Access::Wait, at)) => (Access::Wait, at),
                Some((Access::Cow, at)) if access == Access::Avoided => (Access::Cow, at),
                Some((_, at)) => (access, at),
            });
        }
        fn event(&mut self, event: &Event, at: Tick) {
            match *event {
                Event::Stored(from, to) => {
                    let stored = self.pages.range_mut(from..to).map(|(_, page)| page);
                    for page in stored.filter(|page| page.flushing) {
                        (page.stored, page.held) = (true, false);
                    }
                }
                Event::Written(from, to) => (from..to).for_each(|n| self.write(n, at)),
                Event::Waited(number) => self.overrule(number, Access::Wait, at),
                Event::Slot(number) => self.overrule(number, Access::Cow, at),
                Event::Done if self.done.is_none() => {
                    self.done = Some(self.counts());
                    self.pages.values_mut().for_each(|page| page.held = false);
                }
                Event::Done => {}
            }
            self.peak = self.peak.max(self.held());
        }
        fn held(&self) -> u64 {
            self.pages.values().filter(|page| page.held).count() as u64
        }
        fn counts(&self) -> AccessCounts {
            let mut counts = AccessCounts::default();
            for page in self.pages.values().filter(|page| page.flushing) {
                count(&mut counts, page.first.map_or(Access::Untouched, |(access, _)| access), 1);
            }
            counts
        }
    }

    fn run(from: u64, to: u64) -> PageRun {
        PageRun { start: Addr(from * PAGE_SIZE), pages: PageCount(to - from) }
    }

    fn span() -> impl Strategy<Value = (u64, u64)> {
        (WORLD, 1..40_u64).prop_map(|(from, pages)| (from, (from + pages).min(WORLD.end)))
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            5 => span().prop_map(|(from, to)| Event::Stored(from, to)),
            5 => span().prop_map(|(from, to)| Event::Written(from, to)),
            3 => WORLD.prop_map(Event::Waited),
            3 => WORLD.prop_map(Event::Slot),
            1 => Just(Event::Done),
        ];
        prop::collection::vec(event, 0..40)
    }

    fn set_of(spans: &[(u64, u64)]) -> PageSet {
        spans.iter().map(|(from, to)| run(*from, *to)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 5 } else { 1000 }))]
        #[test]
        fn an_epoch_is_what_the_naive_model_says(
            flushing in prop::collection::vec(span(), 0..6),
            frozen in prop::collection::vec(span(), 0..6),
            events in events(),
        ) {
            let (flushing, frozen) = (set_of(&flushing), set_of(&frozen));
            let mut recorder = Recorder::new(&flushing, &frozen);
            let mut model = Model::default();
            for number in WORLD {
                let at = Addr(number * PAGE_SIZE);
                let page = Page { flushing: flushing.contains(at), frozen: frozen.contains(at), ..Page::default() };
                model.pages.insert(number, page);
            }
            for (index, event) in events.iter().enumerate() {
                let at_us = index as u64 * 1000;
                match *event {
                    Event::Stored(from, to) => recorder.stored(run(from, to)),
                    Event::Written(from, to) => recorder.written(run(from, to), at_us),
                    Event::Waited(page) => recorder.waited(Addr(page * PAGE_SIZE), at_us),
                    Event::Slot(page) => recorder.slot(Addr(page * PAGE_SIZE), at_us),
                    Event::Done => recorder.flush_done(at_us),
                }
                model.event(event, Tick::from_us(at_us));
                let may_be_copied = |page: &&Page| page.flushing && !page.stored && (page.frozen || page.held);
                let unreleased = model.pages.values().filter(may_be_copied).count() as u64;
                prop_assert_eq!(recorder.copies().0, model.held());
                prop_assert_eq!(recorder.copies_peak().0, model.peak);
                prop_assert_eq!(recorder.unreleased().0, if model.done.is_some() { 0 } else { unreleased });
                prop_assert_eq!(recorder.flush_counts(), model.done.unwrap_or_else(|| model.counts()));
                prop_assert!(recorder.copies() <= recorder.unreleased());
            }
            let epoch = recorder.finish();
            prop_assert_eq!(epoch.counts(), model.counts());
            prop_assert_eq!(epoch.flushed(), flushing.pages());
            for (number, page) in &model.pages {
                let got = epoch.get(Addr(number * PAGE_SIZE));
                let got = got.map(|got| (got.access, got.at, got.flushed));
                let expected = match page.first {
                    Some((access, at)) => Some((access, at, page.flushing)),
                    None => page.flushing.then_some((Access::Untouched, Tick::default(), true)),
                };
                prop_assert_eq!(got, expected, "page {}", number);
            }
        }
    }

    #[test]
    fn a_million_pages_in_thousands_of_runs() {
        let all = run(1 << 20, 2 << 20);
        let flushing: PageSet = [all].into_iter().collect();
        let mut recorder = Recorder::new(&flushing, &flushing);
        for round in 1..=20_u64 {
            // Every second page up to here, again and again, as the sampler reports them.
            for page in ((1 << 20)..(1 << 20) + round * 1000).step_by(2) {
                recorder.written(run(page, page + 1), round * 1000);
            }
        }
        assert_eq!(recorder.copies().0, 10_000);
        recorder.stored(all);
        assert_eq!((recorder.copies().0, recorder.copies_peak().0), (0, 10_000));
        recorder.written(all, 30_000);
        recorder.flush_done(40_000);
        let counts = recorder.finish().counts();
        assert_eq!((counts.cow, counts.avoided), (10_000, (1 << 20) - 10_000));
    }
}
