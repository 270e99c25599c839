//! Pages of an image in the order in which they are stored.
//!
//! Called by `read` for a restart that copies. After some increments neighbours in the program lie in many frames, and
//! each frame has pages from all over the program: read by address, every page would be a call, and a compressed frame
//! be unpacked again and again. Read by frame, each is read, checked and unpacked once, and the segments are read from
//! front to back. Of few pages that this process has stored itself the rest of the frame is not read. Invariants and
//! errors as in `read`.

use crate::StoreError;
use crate::format::manifest::{IndexRun, Place};
use crate::image::Image;
use holdfast_image::pages::{PageError, PageRun, PutPages};
use holdfast_image::{Addr, PAGE_SIZE};

/// Single pages are read if they are no more than this part of their frame.
const KNOWN_PART: usize = 2;

/// Pages of one frame that belong together in the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: Addr,
    /// Of the first of them in the frame.
    page: u32,
    pub(crate) pages: u32,
}

/// Parts by their frames.
struct Parts {
    all: Vec<Part>,
    /// For each frame, where its parts begin; and the end of the last.
    begins: Vec<usize>,
}

impl Parts {
    /// What `wanted` has of the index. Both ascend.
    fn of(index: &[IndexRun], frames: usize, wanted: &[PageRun]) -> Result<Parts, PageError> {
        let mut found: Vec<(u32, Part)> = Vec::with_capacity(index.len());
        let mut begins = vec![0; frames + 2];
        each_part(index, wanted, |frame, part| {
            begins[frame as usize + 2] += 1;
            found.push((frame, part));
        })?;
        for frame in 2..begins.len() {
            begins[frame] += begins[frame - 1];
        }
        let mut all = vec![Part::default(); found.len()];
        for (frame, part) in found {
            let next = &mut begins[frame as usize + 1];
            all[*next] = part;
            *next += 1;
        }
        Ok(Parts { all, begins })
    }

    fn of_frame(&self, frame: usize) -> &[Part] {
        &self.all[self.begins[frame]..self.begins[frame + 1]]
    }
}

/// Calls `each` with every part that is in a frame, and its frame, by address.
pub(crate) fn each_part(
    index: &[IndexRun],
    wanted: &[PageRun],
    mut each: impl FnMut(u32, Part),
) -> Result<(), PageError> {
    let first = wanted.first().map_or(Addr(0), |run| run.start);
    let mut at = index.partition_point(|entry| entry.run.end() <= first);
    for run in wanted {
        let mut start = run.start;
        while start < run.end() {
            let Some(entry) = index.get(at).filter(|entry| entry.run.start <= start) else {
                return Err(PageError::Misuse(format!("the image has no page at {start}")));
            };
            let end = entry.run.end().min(run.end());
            if let Place::Frame { frame, page } = entry.place
                && start < end
            {
                // A frame has at most 256 pages.
                let number = |bytes: u64| u32::try_from(bytes / PAGE_SIZE).unwrap_or(u32::MAX);
                let page = page.saturating_add(number(start.0 - entry.run.start.0));
                each(frame, Part { start, page, pages: number(end.0 - start.0) });
            }
            start = start.max(end);
            if entry.run.end() <= start {
                at += 1;
            }
        }
    }
    Ok(())
}

impl Image {
    /// See [`holdfast_image::pages::PageProvider::gather`].
    pub(crate) fn gather_by_frame(&self, wanted: &[PageRun], put: &PutPages<'_>) -> Result<(), PageError> {
        let tables = &self.tables;
        let parts = Parts::of(&tables.index, tables.frames.len(), wanted)?;
        self.for_frames(&|_, _| true, &|number, scratch| {
            let parts = parts.of_frame(number);
            if parts.is_empty() {
                return Ok(());
            }
            if let Some(found) = self.read_known(number, parts, &mut scratch.pages) {
                return put(&found);
            }
            let frame = &tables.frames[number];
            scratch.pages.resize(frame.raw_len(), 0);
            tables.unpack(number, &mut scratch.pages, &mut scratch.stored)?;
            let bytes = |part: &Part| {
                let from = part.page as usize * PAGE_SIZE as usize;
                scratch.pages.get(from..from + part.pages as usize * PAGE_SIZE as usize)
            };
            let found: Option<Vec<(Addr, &[u8])>> =
                parts.iter().map(|part| Some((part.start, bytes(part)?))).collect();
            // Cannot be: the index was compared with the frames when the image was opened.
            let short = || StoreError::corrupt(&self.dir(), frame.offset, "a frame is too short");
            put(&found.ok_or_else(short)?)
        })
    }

    /// Parts of a frame whose pages this process knows by their hashes, where that is less than to read all of the
    /// frame. `None`: it is not, or a page is damaged or not known: then all of the frame is read, and checked.
    fn read_known<'b>(
        &self,
        number: usize,
        parts: &[Part],
        pages: &'b mut Vec<u8>,
    ) -> Option<Vec<(Addr, &'b [u8])>> {
        let known = self.known.as_ref()?;
        let bytes = |part: &Part| part.pages as usize * PAGE_SIZE as usize;
        let all: usize = parts.iter().map(bytes).sum();
        if all > self.tables.frames.get(number)?.raw_len() / KNOWN_PART {
            return None;
        }
        pages.resize(all, 0);
        let mut rest = &mut pages[..];
        for part in parts {
            let (now, later) = rest.split_at_mut(bytes(part));
            let hashes = |at: u64| known.get(Addr(part.start.0 + at * PAGE_SIZE));
            if !self.tables.read_known(number, part.page, now, &hashes) {
                return None;
            }
            rest = later;
        }
        let mut rest = &pages[..];
        let mut next = |part: &Part| {
            let (now, later) = rest.split_at(bytes(part));
            rest = later;
            (part.start, now)
        };
        Some(parts.iter().map(&mut next).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::PageCount;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn run(page: u64, pages: u64) -> PageRun {
        PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) }
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let index = [IndexRun { run: run(5, 3), place: Place::Frame { frame: 0, page: 7 } }];
        for wanted in [run(4, 1), run(4, 2), run(7, 2), run(8, 1)] {
            assert!(Parts::of(&index, 1, &[wanted]).is_err(), "{wanted:?}");
        }
        let parts = Parts::of(&index, 1, &[run(6, 2)]).unwrap();
        assert_eq!(parts.of_frame(0), [Part { start: Addr(6 * PAGE_SIZE), page: 8, pages: 2 }]);
        assert!(Parts::of(&index, 1, &[]).unwrap().of_frame(0).is_empty());
    }

    proptest! {
        #[test]
        fn every_wanted_page_is_handed_out_once_with_its_frame(
            entries in prop::collection::vec((0..3_u64, 1..6_u64, 0..4_u32, 0..9_u32), 1..20),
            cuts in prop::collection::vec((0..4_u64, 1..7_u64), 0..20),
        ) {
            let mut page = 1;
            let (mut index, mut model) = (Vec::new(), BTreeMap::new());
            for (gap, pages, frame, first) in entries {
                page += gap;
                let place = if frame == 3 { Place::Zero } else { Place::Frame { frame, page: first } };
                index.push(IndexRun { run: run(page, pages), place });
                for n in 0..pages {
                    model.insert(page + n, (frame, u64::from(first) + n));
                }
                page += pages;
            }
            // Runs of pages that there are.
            let (mut wanted, mut at) = (Vec::new(), 1);
            for (gap, pages) in cuts {
                at += gap;
                for n in at..at + pages {
                    if model.contains_key(&n) {
                        wanted.push(run(n, 1));
                    }
                }
                at += pages;
            }
            holdfast_image::pages::coalesce(&mut wanted);
            let parts = Parts::of(&index, 3, &wanted).unwrap();
            let mut found = BTreeMap::new();
            for frame in 0..3 {
                for part in parts.of_frame(frame) {
                    for n in 0..u64::from(part.pages) {
                        let place = (u32::try_from(frame).unwrap(), u64::from(part.page) + n);
                        prop_assert!(found.insert(part.start.0 / PAGE_SIZE + n, place).is_none());
                    }
                }
            }
            let is_wanted = |n: &u64| wanted.iter().any(|run| (run.start.0..run.end().0).contains(&(n * PAGE_SIZE)));
            let expected: BTreeMap<u64, (u32, u64)> =
                model.into_iter().filter(|(n, place)| is_wanted(n) && place.0 != 3).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
