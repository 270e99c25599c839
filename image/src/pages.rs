//! Runs of pages, and the traits that join whoever has pages with whoever stores them.
//!
//! `process` has a frozen copy full of pages, `tiers` writes them to segments; neither knows the other. The agent
//! (`cli`) joins them through [`PageSource`]; a restart goes the other way through [`PageProvider`].

use crate::{Addr, PAGE_SIZE, PageCount};
use serde::{Deserialize, Serialize};
use std::io;

/// A contiguous run of pages of the program's address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PageRun {
    /// First byte of the first page; page-aligned.
    pub start: Addr,
    /// Number of pages, at least 1.
    pub pages: PageCount,
}

impl PageRun {
    /// First byte after the run (saturating: a run that was read from a file is checked by [`PageRun::is_valid`]).
    pub fn end(&self) -> Addr {
        Addr(self.start.0.saturating_add(self.pages.bytes()))
    }
    /// Whether the run is aligned, not empty, and ends below 2^57 (the end of user space of x86-64 with five-level
    /// page tables, Documentation/arch/x86/x86_64/mm.rst).
    pub fn is_valid(&self) -> bool {
        self.start.is_page_aligned()
            && self.pages.0 > 0
            && self
                .pages
                .checked_bytes()
                .and_then(|b| self.start.checked_add(b))
                .is_some_and(|e| e.0 <= 1 << 57)
    }
}

/// Somebody who has the pages of one instant: the frozen copy, or buffers filled at the stop.
///
/// The store reads runs from several threads, in any order, and says what it has stored so that the source can let
/// it go (release is what keeps later writes of the program free of copies).
pub trait PageSource: Sync {
    /// All runs to be stored, in the order in which they should be flushed. Runs do not overlap.
    fn runs(&self) -> &[PageRun];
    /// Fills `buffer` with the content of `buffer.len() / PAGE_SIZE` pages from `start` on.
    ///
    /// # Errors
    /// The source died (for instance the frozen copy was killed): the checkpoint must fail.
    fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()>;
    /// `run` is stored durably enough that the source need not keep it. Must not block for long.
    fn release(&self, run: PageRun);
}

/// Where one extent of the restarted address space comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentSource {
    /// Uncompressed and page-aligned in a segment file: may be mapped privately.
    Mappable {
        /// Index into [`PageProvider::segments`].
        segment: u32,
        /// Byte offset in that file, page-aligned.
        offset: u64,
    },
    /// Only reachable through [`PageProvider::read`].
    Stored,
    /// All zero bytes.
    Zero,
}

/// A run of pages of an image and where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Where the pages belong in the program.
    pub run: PageRun,
    /// Where their content is.
    pub source: ExtentSource,
}

/// An image opened for restart. Everything it hands out has been verified against its checksums.
pub trait PageProvider: Sync {
    /// All extents, by ascending address, without overlap.
    fn extents(&self) -> &[Extent];
    /// Paths of the segment files that [`ExtentSource::Mappable`] refers to.
    fn segments(&self) -> &[std::path::PathBuf];
    /// Fills `buffer` with the pages from `start` on, all of which must lie within extents.
    ///
    /// # Errors
    /// Names the file and the offset that could not be read or does not match its checksum.
    fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()>;
    /// Checks the content of every mappable extent, so that mapping it cannot bring back a wrong byte.
    ///
    /// # Errors
    /// As [`PageProvider::read`].
    fn verify_mappable(&self) -> io::Result<()>;
}

/// Joins neighbouring runs of a list sorted by address. Overlaps are merged as well.
pub fn coalesce(runs: &mut Vec<PageRun>) {
    runs.sort_unstable();
    let mut kept: Vec<PageRun> = Vec::with_capacity(runs.len());
    for run in runs.drain(..) {
        match kept.last_mut() {
            Some(last) if last.end() >= run.start => {
                let end = last.end().max(run.end());
                last.pages = PageCount((end.0 - last.start.0) / PAGE_SIZE);
            }
            _ => kept.push(run),
        }
    }
    *runs = kept;
}
