//! What is scanned, and what a scan has found.

use holdfast_image::Addr;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_sys::pagemap::{IS_FILE, IS_GUARD, IS_PFNZERO, IS_SWAPPED, IS_WRITTEN, ScanRegion};

/// A range of private mappings of one kind; holes are allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First byte.
    pub start: u64,
    /// First byte after it.
    pub end: u64,
    /// All of it is registered with the userfaultfd.
    pub tracked: bool,
    /// Mapping of a file.
    pub of_file: bool,
    /// Explicit huge pages.
    pub huge: bool,
}

/// What a scan has found, of one piece or of all.
#[derive(Debug, Default)]
pub struct Swept {
    /// Pages among `written` that may not exist: in a mapping of a file the kernel leaves a marker in the place of a
    /// protected page that was given back (mm/memory.c, zap_install_uffd_wp_if_needed), which is reported like a page
    /// in swap. Reading such a page brings either.
    pub doubtful: PageSet,
    /// Pages that exist and are the program's own.
    pub present: PageSet,
    /// Those of them that were written, or of which that is not known.
    pub written: PageSet,
    /// Guard regions (MADV_GUARD_INSTALL): no pages, though the kernel reports them like pages in swap.
    pub guards: PageSet,
    /// Pages in mappings of files that are still the file's.
    pub files: PageSet,
}

impl Piece {
    /// Its pages.
    pub fn run(&self) -> PageRun {
        PageRun::between(Addr(self.start), Addr(self.end))
    }
}

impl Swept {
    /// What was found of all pieces, in the order of their addresses.
    pub(super) fn concat(parts: Vec<Swept>) -> Swept {
        let (mut doubtful, mut guards, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let (mut present, mut written) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for part in parts {
            doubtful.push(part.doubtful);
            present.push(part.present);
            written.push(part.written);
            guards.push(part.guards);
            files.push(part.files);
        }
        Swept {
            doubtful: PageSet::concat(doubtful),
            present: PageSet::concat(present),
            written: PageSet::concat(written),
            guards: PageSet::concat(guards),
            files: PageSet::concat(files),
        }
    }

    pub(super) fn add(&mut self, found: ScanRegion, of_file: bool) {
        let run = PageRun::between(Addr(found.start), Addr(found.end));
        if found.categories & IS_GUARD != 0 {
            self.guards.insert(run);
            return;
        }
        if found.categories & IS_FILE != 0 {
            self.files.insert(run);
            return;
        }
        // The zero page is what an absent page reads as.
        if found.categories & IS_PFNZERO != 0 {
            return;
        }
        self.present.insert(run);
        let doubtful = of_file && found.categories & IS_SWAPPED != 0;
        if doubtful {
            self.doubtful.insert(run);
        }
        if doubtful || found.categories & IS_WRITTEN != 0 {
            self.written.insert(run);
        }
    }
}
