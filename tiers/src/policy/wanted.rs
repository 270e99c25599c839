//! Which segment is prefetched next.
//!
//! Used by [`super::Hierarchy`]; kept up to date by `evictable`.

use super::SegmentId;
use std::collections::BTreeMap;

/// The segments that are to be prefetched by way of each link, by the place of their hints.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    by_link: Vec<BTreeMap<u64, SegmentId>>,
    of: BTreeMap<SegmentId, (usize, u64)>,
}

impl Wanted {
    pub fn new(links: usize) -> Wanted {
        Wanted { by_link: vec![BTreeMap::new(); links], of: BTreeMap::new() }
    }

    /// The one that is wanted first.
    pub fn first(&self, link: usize) -> Option<SegmentId> {
        self.by_link.get(link)?.values().next().copied()
    }

    /// Takes note of the link and the place of a segment; `None`: it is not to be prefetched.
    pub fn note(&mut self, id: SegmentId, at: Option<(usize, u64)>) {
        if let Some((link, place)) = self.of.remove(&id) {
            self.by_link[link].remove(&place);
        }
        if let Some((link, place)) = at {
            self.by_link[link].insert(place, id);
            self.of.insert(id, (link, place));
        }
    }
}
