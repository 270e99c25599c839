//! Which pages of memory that a restart has mapped from the store are the program's own, remembered from scan to scan: to ask the
//! kernel makes it look at every struct page (28 ms per GiB of the page cache, where all else takes 1.2).
//!
//! Used by `sweep` for its scans and kept by `track`. What must hold: a page that is known is what it is called. It can only become the
//! program's own by a write, which the scan reports; the store's again only by MADV_DONTNEED, which libholdfast turns into something
//! else in such memory (where that is passed by, the program itself already finds the image's old content where it expects zeros).
//! How it fails: what is not known is asked.

use crate::sweep::Swept;
use holdfast_image::Addr;
use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
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
}

impl Known {
    /// After a scan of all memory. `mappings`: those from the store.
    pub fn after<'a>(mappings: impl Iterator<Item = &'a Mapping>, swept: &Swept) -> Known {
        let mut known = Known::default();
        for mapping in mappings {
            known.places.entry(Place::of(mapping)).or_default().insert(run(mapping));
        }
        known.within = all(&known.places);
        known.learn(swept);
        known
    }

    /// What of it still holds when these are the mappings.
    pub fn still<'a>(self, mappings: impl Iterator<Item = &'a Mapping>) -> Known {
        if self.places.is_empty() {
            return self;
        }
        let mut places: HashMap<Place, PageSet> = HashMap::new();
        for mapping in mappings {
            if let Some(before) = self.places.get(&Place::of(mapping)) {
                let same = PageSet::from(vec![run(mapping)]).intersection(before);
                let set = places.entry(Place::of(mapping)).or_default();
                *set = set.union(&same);
            }
        }
        Known { within: all(&places), places, ..self }
    }

    /// Takes over what a scan of all memory has found.
    pub fn learn(&mut self, swept: &Swept) {
        if self.within.is_empty() {
            return;
        }
        self.own = swept.present.difference(&swept.doubtful).intersection(&self.within);
        self.files = swept.files.intersection(&self.within);
    }

    /// Pages of a range: the program's own, and the store's. `None`: not all of it is known.
    pub fn of(&self, range: PageRun) -> Option<(PageSet, PageSet)> {
        let whole = self
            .within
            .touching(range)
            .iter()
            .any(|run| run.start <= range.start && range.end() <= run.end());
        let part = |set: &PageSet| {
            let cut =
                |run: &PageRun| PageRun::between(run.start.max(range.start), run.end().min(range.end()));
            set.touching(range).iter().map(cut).collect()
        };
        whole.then(|| (part(&self.own), part(&self.files)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::{PAGE_SIZE, PageCount};

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
            ..Swept::default()
        }
    }

    #[test]
    fn what_was_seen_is_known_and_nothing_else() {
        let known = Known::after([mapping(8, 12, 0, 7)].iter(), &swept());
        let expected = (PageSet::from(vec![pages(10, 3)]), PageSet::from(vec![pages(16, 2)]));
        assert_eq!(known.of(pages(8, 12)), Some(expected));
        assert_eq!(known.of(pages(12, 5)), Some((vec![pages(12, 1)].into(), vec![pages(16, 1)].into())));
        assert_eq!(known.of(pages(7, 12)), None);
        assert_eq!(known.of(pages(30, 1)), None, "not from the store");
        assert_eq!(Known::default().of(pages(8, 1)), None);
    }

    #[test]
    fn what_lies_elsewhere_now_is_not_known() {
        let known = || Known::after([mapping(8, 12, 0, 7)].iter(), &swept());
        let is_known = |now: &[Mapping]| known().still(now.iter()).of(pages(9, 2)).is_some();
        assert!(is_known(&[mapping(8, 12, 0, 7)]));
        assert!(is_known(&[mapping(8, 2, 0, 7), mapping(10, 10, 2, 7)]), "cut in two");
        assert!(!is_known(&[mapping(8, 12, 1, 7)]), "other bytes of the file");
        assert!(!is_known(&[mapping(8, 12, 0, 9)]), "another file");
        assert!(!is_known(&[mapping(10, 10, 2, 7)]), "not all of it");
        assert!(!is_known(&[]));
        // What has come back is as new.
        assert!(known().still([].iter()).still([mapping(8, 12, 0, 7)].iter()).of(pages(9, 2)).is_none());
    }
}
