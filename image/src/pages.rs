//! Runs of pages, and the traits that join what has pages with what stores them.
//!
//! `process` has a frozen copy full of pages, `tiers` writes them to segments; neither knows the other. The agent
//! (`cli`) joins them through [`PageSource`]; a restart goes the other way through [`PageProvider`].

use crate::{Addr, Epoch, PAGE_SIZE, PageCount};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A contiguous run of pages of the program's address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PageRun {
    /// First byte of the first page; page-aligned.
    pub start: Addr,
    /// Number of pages, at least 1.
    pub pages: PageCount,
}

impl PageRun {
    /// The pages from `start` to `end`, both page-aligned; none if they are the wrong way round.
    pub fn between(start: Addr, end: Addr) -> PageRun {
        PageRun { start, pages: PageCount(end.0.saturating_sub(start.0) / PAGE_SIZE) }
    }
    /// First byte after the run (saturating: a run that was read from a file is checked by [`PageRun::is_valid`]).
    pub fn end(&self) -> Addr {
        Addr(self.start.0.saturating_add(self.pages.bytes()))
    }
    /// Whether the run is aligned, not empty, and ends below the end of the last address space
    /// ([`crate::address_space`]).
    pub fn is_valid(&self) -> bool {
        self.start.is_page_aligned()
            && self.pages.0 > 0
            && self
                .pages
                .checked_bytes()
                .and_then(|b| self.start.checked_add(b))
                .is_some_and(|e| e <= Addr::END)
    }
}

/// Why pages cannot be read, whether from a running program, a frozen copy or an image.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// A system call failed on memory, or on a file of the caller's.
    #[error(transparent)]
    System(#[from] io::Error),
    /// A system call on a file of the store failed.
    #[error("{call} {path}: {source}; check the file system and its permissions", path = path.display())]
    File {
        /// The call, as a verb ("open", "read" …).
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// Its errno.
        source: io::Error,
    },
    /// Bytes of the store that are not those that were written.
    #[error("{path}: at byte {offset}: {what}; the file is damaged: use an older image or a copy of this one",
        path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What should be there.
        what: String,
    },
    /// The caller asked for what is not there.
    #[error("{0}")]
    Misuse(String),
}

/// A codec by which a source can have pages packed where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SourceCodec {
    /// One LZ4 block, without a length in front.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

/// What has pages to be stored: the frozen copy, buffers filled at the stop, or (before the stop) the running
/// program.
///
/// The store takes runs from several threads, in the order in which the source hands them out, and says what it has
/// stored so that the source can give it up (release is what keeps later writes of the program free of copies).
pub trait PageSource: Sync {
    /// Number of pages that [`PageSource::take`] hands out in all.
    fn pages(&self) -> PageCount;
    /// Takes what is to be flushed next: appends runs of at most `most` pages in all to `into`. Nothing appended: all
    /// is taken. No page is handed out twice, but those that were taken back.
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>);
    /// Fills `buffer` with the content of `buffer.len() / PAGE_SIZE` pages from `start` on. `false`: they are not
    /// there any more (only a running program may say so), and the image goes without what was asked for.
    ///
    /// # Errors
    /// The source died (for instance the frozen copy was killed), or what it reads is damaged: the checkpoint must
    /// fail.
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError>;
    /// `run` is stored durably enough that the source need not keep it. Must not block for long.
    fn release(&self, run: PageRun);
    /// Asked between two frames: whether a thread of the program waits for a page that is not stored. Then the source
    /// takes back what it has handed out in `rest`, of which nothing was read, and hands out first what is waited for.
    /// The last run of `rest` is the one that would be next.
    fn make_way(&self, _rest: &mut Vec<PageRun>) -> bool {
        false
    }
    /// The program is short of room for copies: do without compression.
    fn is_urgent(&self) -> bool;
    /// There are pages of several processes, which may be the same.
    fn has_several(&self) -> bool;
    /// Takes out of `runs`, which [`PageSource::take`] has handed out, what the source can have packed where it is (on
    /// a device): runs that are each packed by themselves.
    fn packable(&self, _runs: &mut Vec<PageRun>) -> Vec<PageRun> {
        Vec::new()
    }
    /// Appends the content of `units`, which [`PageSource::packable`] gave, to `into`, packed, of as many of them as
    /// there is room for now, in their order: bytes of each. One that does not become shorter comes as it is, as long
    /// as its pages. What there was no room for, maybe all, has to be read.
    ///
    /// # Errors
    /// As [`PageSource::read`].
    fn read_packed(
        &self,
        _units: &[PageRun],
        _codec: SourceCodec,
        _into: &mut Vec<u8>,
    ) -> Result<Vec<usize>, PageError> {
        Ok(Vec::new())
    }
}

/// Runs that are handed out one after the other, in pieces: [`PageSource::take`] of a source whose order is fixed.
#[derive(Debug, Default)]
pub struct TakeList {
    runs: Vec<PageRun>,
    /// Index of the next run, and its first page that was not taken.
    next: Mutex<(usize, u64)>,
}

impl TakeList {
    /// All of `runs`, in this order.
    pub fn new(runs: Vec<PageRun>) -> TakeList {
        TakeList { runs, next: Mutex::default() }
    }
    /// All runs, taken or not.
    pub fn runs(&self) -> &[PageRun] {
        &self.runs
    }
    /// See [`PageSource::pages`].
    pub fn pages(&self) -> PageCount {
        PageCount(self.runs.iter().map(|run| run.pages.0).sum())
    }
    /// See [`PageSource::take`].
    pub fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, page) = &mut *next;
        let mut room = most.0;
        while room > 0
            && let Some(run) = self.runs.get(*index)
        {
            let pages = room.min(run.pages.0 - *page);
            into.push(PageRun { start: Addr(run.start.0 + *page * PAGE_SIZE), pages: PageCount(pages) });
            room -= pages;
            *page += pages;
            if *page == run.pages.0 {
                *index += 1;
                *page = 0;
            }
        }
    }
}

/// What an image holds besides the pages that were read for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Inherited {
    /// Pages whose content is that in the parent, or that a pre-copy has stored in this image since they were written
    /// last. Ascending.
    pub unchanged: Vec<PageRun>,
    /// Pages that are privately mapped from segment files of the store and were never written there. Ascending.
    pub mapped: Vec<StoreMapping>,
}

/// What of the store pages are mapped from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MappedFrom {
    /// A segment.
    Segment {
        /// The version that it was written for.
        version: Epoch,
        /// Its number in that.
        number: u32,
    },
    /// What the restart has unpacked for several address spaces ([`PageProvider::shared_pages`]).
    SharedPages,
}

/// Pages of the program that are still what a lazy restart has mapped them from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreMapping {
    /// The pages.
    pub run: PageRun,
    /// What they are mapped from.
    pub from: MappedFrom,
    /// Byte offset in that.
    pub offset: u64,
}

/// An open file that holds a segment as it is.
#[derive(Clone, Copy, Debug)]
pub struct MappableSegment<'a> {
    /// Which one.
    pub from: MappedFrom,
    /// The file.
    pub file: &'a File,
    /// Where the segment begins in it; page-aligned.
    pub begin: u64,
    /// Bytes of the segment.
    pub len: u64,
}

/// Where one extent of the restarted address space comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentSource {
    /// Uncompressed and page-aligned in a segment file: may be mapped privately.
    Mappable {
        /// Number for [`PageProvider::segment`], or that of [`PageProvider::shared_pages`].
        segment: u32,
        /// Byte offset in the segment, page-aligned.
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

/// What [`PageProvider::gather`] calls with pages: the address of each run, and its bytes.
pub type PutPages<'a> = dyn Fn(&[(Addr, &[u8])]) -> Result<(), PageError> + Sync + 'a;

/// An image opened for restart. Everything it hands out has been verified against its checksums.
pub trait PageProvider: Sync {
    /// All extents, by ascending address, without overlap.
    fn extents(&self) -> &[Extent];
    /// The segment of this number, if it lies in a file of this host.
    fn segment(&self, number: u32) -> Option<MappableSegment<'_>>;
    /// Fills `buffer` with the pages from `start` on, all of which must lie within extents.
    ///
    /// # Errors
    /// Names the file and the offset that could not be read or does not match its checksum.
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError>;
    /// Hands out all pages of `wanted` that are not zero, in the order in which they are stored, so that every piece
    /// of a file is read and unpacked once: `put` gets what one piece has of them, from several threads at once.
    /// `wanted` ascends and lies within extents.
    ///
    /// # Errors
    /// As [`PageProvider::read`]; and what `put` fails with. Nothing is handed out after an error but what is under
    /// way.
    fn gather(&self, wanted: &[PageRun], put: &PutPages<'_>) -> Result<(), PageError>;
    /// Checks the content of what is to be mapped, so that mapping it cannot restore a wrong byte. `wanted` ascends and
    /// lies within mappable extents. Returns those pages of it that are damaged where they would be mapped from; some
    /// other copy may have them intact: they are to be read instead.
    ///
    /// # Errors
    /// As [`PageProvider::read`], but for damage.
    fn check_mapped(&self, wanted: &[PageRun]) -> Result<Vec<PageRun>, PageError>;
    /// The number in the place of a segment's ([`ExtentSource::Mappable`]) of pages that several address spaces have
    /// and that no segment holds uncompressed: they lie in a file that [`PageProvider::fill_shared_pages`] fills.
    /// `None`: there are none.
    fn shared_pages(&self) -> Option<u32>;
    /// Whether that file is served: it has every page of this image at its address, and zeros elsewhere, and is read
    /// when it is touched. Else it is filled before.
    fn is_served(&self) -> bool;
    /// Fills that file, unless it is served. The caller keeps it open as long as anything is mapped from it.
    ///
    /// # Errors
    /// As [`PageProvider::read`], or the file cannot be written.
    fn fill_shared_pages(&self, file: &File) -> Result<(), PageError>;
}

/// Sorts runs by address, unless they are, and joins those that overlap or touch. In place.
pub fn coalesce(runs: &mut Vec<PageRun>) {
    if !runs.is_sorted() {
        runs.sort_unstable();
    }
    runs.dedup_by(|next, last| {
        let joins = last.end() >= next.start;
        if joins {
            *last = PageRun::between(last.start, last.end().max(next.end()));
        }
        joins
    });
}
