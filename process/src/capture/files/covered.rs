//! What the pages of shared mappings hold of files without a name: it need not be read from the files.

use crate::capture::maps::{Kind, Mapped};
use holdfast_image::Addr;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_sys::procfs::Mapping;
use std::collections::{BTreeSet, HashMap};

/// Device and inode.
pub(super) type Key = (u64, u64);

/// What shared mappings show of one file.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// How /proc calls it, each time that it was opened.
    pub(super) names: BTreeSet<Vec<u8>>,
    /// By offset in it.
    pub(super) pages: PageSet,
}

/// What shared mappings cover of each file without a name, by device and inode as the maps file has them.
#[derive(Debug, Default)]
pub struct Covered(pub(super) HashMap<Key, Shown>);

impl Covered {
    /// Adds the mappings of a process.
    pub fn add(&mut self, all: &[Mapped]) {
        for mapping in all.iter().filter(|m| shows_nameless(m)).map(|m| &m.mapping) {
            let known = self.0.entry((mapping.device, mapping.inode)).or_default();
            known.pages = known.pages.union(&PageSet::from(vec![in_file(mapping)]));
            known.names.insert(mapping.name.clone());
        }
    }

    /// What is shown of a file that is open: its device there, its inode, and its names, to which those of the mappings
    /// are added.
    pub(super) fn of(&self, device: u64, inode: u64, names: &mut BTreeSet<Vec<u8>>) -> Option<&PageSet> {
        let is = |(key, shown): &(&Key, &Shown)| {
            key.1 == inode && (key.0 == device || shown.names.iter().any(|name| names.contains(name)))
        };
        let shown = self.0.iter().find(is)?.1;
        names.extend(shown.names.iter().cloned());
        Some(&shown.pages)
    }
}

/// Whether it is a shared mapping of what may be such a file.
pub(super) fn shows_nameless(mapped: &Mapped) -> bool {
    matches!(mapped.kind, Kind::SharedNameless | Kind::SharedAnonymous)
}

/// The pages that a mapping shows, by their offset in the file.
pub(super) fn in_file(mapping: &Mapping) -> PageRun {
    PageRun::between(Addr(mapping.offset), Addr(mapping.offset + (mapping.end - mapping.start)))
}
