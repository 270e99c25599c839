//! What is remembered from scan to scan, so that the kernel need not be asked for everything again.
//!
//! * Of memory without a file: which pages there were. One that is write-protected still has only been protected by
//!   our scans, which saw it; it is still there, and at the same address: mremap(2) takes the registration away
//!   (mm/userfaultfd.c, mremap_userfaultfd_prep), and what must be registered anew is forgotten. To ask only for the
//!   others takes a fifth of the time.
//! * Of memory that a restart has mapped from the store: which pages are the program's own; to ask makes the kernel
//!   look at every struct page (up to 28 ms per GiB). One becomes the program's own only by a write, which the scan
//!   reports; the store's again only by MADV_DONTNEED, which libholdfast turns into something else there (where that
//!   is passed by, the program itself already finds the image's old content where it expects zeros).
//!
//! Used by `scan` for its scans and kept by `tracking`. What must hold: a page that is known is what it is called.
//! How it fails: what is not known is asked.

use crate::track::pieces::{Piece, Swept};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PageCount};
use holdfast_sys::procfs::Mapping;
use std::collections::HashMap;

/// Mappings of the same file at the same distance show the same byte of it at the same address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    device: u64,
    inode: u64,
    distance: u64,
}

impl Place {
    fn of(mapping: &Mapping) -> Place {
        let distance = mapping.start.wrapping_sub(mapping.offset);
        Place { device: mapping.device, inode: mapping.inode, distance }
    }
}

fn run(mapping: &Mapping) -> PageRun {
    PageRun::between(Addr(mapping.start), Addr(mapping.end))
}

fn all(places: &HashMap<Place, PageSet>) -> PageSet {
    places.values().flat_map(|set| set.runs().iter().copied()).collect()
}

/// What is known after a scan.
#[derive(Debug, Default)]
pub struct Known {
    places: HashMap<Place, PageSet>,
    /// All that is in `places`.
    within: PageSet,
    own: PageSet,
    files: PageSet,
    /// Memory without a file that was registered.
    tracked: PageSet,
    /// Pages that there were, in `tracked` and elsewhere.
    present: PageSet,
    /// Guard regions, likewise: the scan protects their markers too.
    guards: PageSet,
}

impl Known {
    /// After a scan of all memory in these pieces. `mappings`: those from the store.
    pub fn after<'a>(mappings: impl Iterator<Item = &'a Mapping>, pieces: &[Piece], swept: &Swept) -> Known {
        let mut known = Known::default();
        for mapping in mappings {
            known.places.entry(Place::of(mapping)).or_default().insert(run(mapping));
        }
        known.within = all(&known.places);
        known.learn(pieces, swept);
        known
    }

    /// What of it still holds when these are the mappings, and `fresh` had to be registered.
    pub fn still<'a>(self, mappings: impl Iterator<Item = &'a Mapping>, fresh: &PageSet) -> Known {
        let mut mapped = Vec::new();
        let mut places: HashMap<Place, PageSet> = HashMap::new();
        for mapping in mappings {
            mapped.push(run(mapping));
            if let Some(before) = self.places.get(&Place::of(mapping)) {
                let same = PageSet::from(vec![run(mapping)]).intersection(before);
                let set = places.entry(Place::of(mapping)).or_default();
                *set = set.union(&same);
            }
        }
        // A piece that is scanned may have holes.
        let mapped = PageSet::from(mapped);
        Known {
            tracked: self.tracked.difference(fresh),
            present: self.present.intersection(&mapped),
            guards: self.guards.intersection(&mapped),
            within: all(&places),
            places,
            ..self
        }
    }

    /// Takes over what a scan of all memory has found.
    pub fn learn(&mut self, pieces: &[Piece], swept: &Swept) {
        let plain = pieces.iter().filter(|piece| piece.tracked && !piece.of_file);
        self.tracked = plain.map(Piece::run).collect();
        self.present = swept.present.clone();
        self.guards = swept.guards.clone();
        if self.within.is_empty() {
            return;
        }
        self.own = swept.present.difference(&swept.doubtful).intersection(&self.within);
        self.files = swept.files.intersection(&self.within);
    }

    /// How many pages there were in all.
    pub fn pages(&self) -> PageCount {
        self.present.pages()
    }

    /// Pages that there were in a range of memory without a file, and guard regions. `None`: not all of it is known.
    pub fn plain(&self, range: PageRun) -> Option<(PageSet, PageSet)> {
        has_all(&self.tracked, range).then(|| (part(&self.present, range), part(&self.guards, range)))
    }

    /// Pages of a range of the store: the program's own, and the store's. `None`: not all of it is known.
    pub fn of(&self, range: PageRun) -> Option<(PageSet, PageSet)> {
        has_all(&self.within, range).then(|| (part(&self.own, range), part(&self.files, range)))
    }
}

fn has_all(set: &PageSet, range: PageRun) -> bool {
    set.touching(range).iter().any(|run| run.start <= range.start && range.end() <= run.end())
}

fn part(set: &PageSet, range: PageRun) -> PageSet {
    let cut = |run: &PageRun| PageRun::between(run.start.max(range.start), run.end().min(range.end()));
    set.touching(range).iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::PAGE_SIZE;

    fn pages(first: u64, count: u64) -> PageRun {
        PageRun { start: Addr(first * PAGE_SIZE), pages: PageCount(count) }
    }

    fn mapping(first: u64, count: u64, offset: u64, inode: u64) -> Mapping {
        Mapping {
            start: first * PAGE_SIZE,
            end: (first + count) * PAGE_SIZE,
            prot: 3,
            shared: false,
            offset: offset * PAGE_SIZE,
            device: 1,
            inode,
            name: b"/store/segment".to_vec(),
        }
    }

    fn swept() -> Swept {
        let set = |run: PageRun| PageSet::from(vec![run]);
        Swept {
            present: set(pages(10, 4)).union(&set(pages(30, 1))),
            doubtful: set(pages(13, 1)),
            files: set(pages(16, 2)),
            guards: set(pages(9, 1)),
            ..Swept::default()
        }
    }

    #[test]
    fn what_was_seen_is_known_and_nothing_else() {
        let known = Known::after([mapping(8, 12, 0, 7)].iter(), &[], &swept());
        let expected = (PageSet::from(vec![pages(10, 3)]), PageSet::from(vec![pages(16, 2)]));
        assert_eq!(known.of(pages(8, 12)), Some(expected));
        assert_eq!(known.of(pages(12, 5)), Some((vec![pages(12, 1)].into(), vec![pages(16, 1)].into())));
        assert_eq!(known.of(pages(7, 12)), None);
        assert_eq!(known.of(pages(30, 1)), None, "not from the store");
        assert_eq!(Known::default().of(pages(8, 1)), None);
    }

    #[test]
    fn memory_without_a_file_is_known_until_it_is_registered_anew() {
        let piece = |first: u64, count: u64, tracked, of_file| Piece {
            start: first * PAGE_SIZE,
            end: (first + count) * PAGE_SIZE,
            tracked,
            of_file,
            huge: false,
        };
        let pieces = [
            piece(8, 4, true, false),
            piece(12, 2, true, false),
            piece(14, 2, true, true),
            piece(30, 2, false, false),
        ];
        let known = Known::after([].iter(), &pieces, &swept());
        let pages_of = |known: &Known, run| known.plain(run).map(|(present, _)| present);
        assert_eq!(known.plain(pages(9, 4)), Some((vec![pages(10, 3)].into(), vec![pages(9, 1)].into())));
        assert_eq!(known.plain(pages(14, 1)), None, "of a file");
        assert_eq!(known.plain(pages(30, 1)), None, "not tracked");
        let known =
            known.still([mapping(8, 5, 0, 0), mapping(13, 20, 0, 0)].iter(), &vec![pages(10, 1)].into());
        assert_eq!(pages_of(&known, pages(8, 2)), Some(PageSet::new()));
        assert_eq!(known.plain(pages(9, 4)), None, "some of it is new");
        assert_eq!(pages_of(&known, pages(11, 2)), Some(vec![pages(11, 2)].into()));
        let known = known.still([mapping(8, 4, 0, 0)].iter(), &PageSet::new());
        assert_eq!(
            pages_of(&known, pages(11, 2)),
            Some(vec![pages(11, 1)].into()),
            "some of it is not mapped any more"
        );
    }

    #[test]
    fn what_lies_elsewhere_now_is_not_known() {
        let known = || Known::after([mapping(8, 12, 0, 7)].iter(), &[], &swept());
        let is_known = |now: &[Mapping]| known().still(now.iter(), &PageSet::new()).of(pages(9, 2)).is_some();
        assert!(is_known(&[mapping(8, 12, 0, 7)]));
        assert!(is_known(&[mapping(8, 2, 0, 7), mapping(10, 10, 2, 7)]), "cut in two");
        assert!(!is_known(&[mapping(8, 12, 1, 7)]), "other bytes of the file");
        assert!(!is_known(&[mapping(8, 12, 0, 9)]), "another file");
        assert!(!is_known(&[mapping(10, 10, 2, 7)]), "not all of it");
        assert!(!is_known(&[]));
        // What has come back is as new.
        assert!(
            known()
                .still([].iter(), &PageSet::new())
                .still([mapping(8, 12, 0, 7)].iter(), &PageSet::new())
                .of(pages(9, 2))
                .is_none()
        );
    }
}
