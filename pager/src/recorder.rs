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
use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
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
    held: u64,
    held_peak: u64,
    /// Classes of the pages of the flush whose first write is known.
    counts: AccessCounts,
    /// The counts when the flush was done.
    at_done: Option<AccessCounts>,
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
        }
        recorder
    }

    /// `run` is stored and released: later writes to it are free. Pages outside the flush are ignored.
    pub fn stored(&mut self, run: PageRun) {
        for piece in pieces(run) {
            let Some(chunk) = self.chunks.get_mut(&piece.chunk) else { continue };
            for (word, mask) in masks(piece) {
                let fresh = mask & chunk.flushing[word] & !chunk.stored[word];
                self.stored += ones(fresh);
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

    /// The flush has ended: no copy is held any more, and first writes from now on are AFTER. The image is committed,
    /// or has failed.
    pub fn flush_done(&mut self) {
        if self.at_done.is_none() {
            self.at_done = Some(self.during());
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
    /// Pages of the flush that are not stored yet; those that are copied are among them. 0 once the flush has ended.
    pub fn unreleased(&self) -> PageCount {
        match self.at_done {
            Some(_) => PageCount(0),
            None => PageCount(self.flushing - self.stored),
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
        EpochAccess::from_chunks(finished.collect())
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
