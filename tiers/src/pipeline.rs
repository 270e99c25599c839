//! The pipeline: read runs, drop zero pages and pages that are as in the parent, compress where it pays, append,
//! release.
//!
//! Called by [`crate::ImageWriter`] in the agent while the program runs. Each worker has a segment file of its own and
//! takes the next part of the source's runs, in the source's order, when it has stored the last one. Between two frames
//! it asks whether a thread of the program waits for a page; then the rest of the part goes back, and the next frames
//! are short, for what comes while a frame is being stored has to wait for it.
//! Invariants: memory is bounded (about 9 MiB a worker, 8 MiB more where the source packs, 16 MiB more where compressed
//! pages of the parent have to be compared, besides the index and 16 bytes for the hash of each page); a run
//! is released only when its content lies in a staging buffer or in the file; pages of a long run stay together in the
//! file, so that a restart can map them; the index is complete when all workers have returned without an error.
//! Fails by: the first error stops all workers.

use crate::StoreError;
use crate::buffer::{AlignedBuffer, is_zero};
use crate::codec::choice::Relief;
use crate::codec::{Choices, Codec, Compression, Packer};
use crate::dedup::Dedup;
use crate::format::segment::{MAX_FRAME_BYTES, MAX_FRAME_PAGES, SegmentHeader};
use crate::hashes::{Hashes, hash_of};
use crate::lineage::{Comparer, Lineage};
use crate::link_meter::LinkMeter;
use crate::locations::{Located, Origin};
use crate::segment_writer::SegmentWriter;
use crate::throttle::Throttle;
use crate::tier_folder::TierFolder;
use crate::workers;
use holdfast_image::manifest::FlushFigures;
use holdfast_image::pages::{PageRun, PageSource};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

const PAGE: usize = PAGE_SIZE as usize;
/// Runs of at least this many pages get frames of their own: they are worth a mapping at restart.
const LONG_RUN_PAGES: u64 = 64;
/// Least and most pages that a worker takes at once: 1 MiB to 256 MiB. Large parts keep long runs contiguous in one
/// file, small parts let all workers end at the same time.
const PART_PAGES: (u64, u64) = (1 << 8, 1 << 16);
/// Most pages of a frame when the rate is bounded: what is stored must be released soon.
const SLOW_FRAME_PAGES: u64 = 16;
/// So many frames are short after a thread has waited, and so many seconds long. Shorter ones cost more time than a
/// store of 55 MB/s takes for them, on processors that others use too.
const SHORT_FRAMES: u64 = 64;
const SHORT_FRAME_S: f64 = 300e-6;
/// Parts per worker that the whole flush is divided into, within these limits.
const PARTS_PER_WORKER: u64 = 64;

/// How the pipeline works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipelineOptions {
    /// Threads, at least 1; little is stored by fewer. Each of them waits for the disk while others read, so that two
    /// more than the processors that the program leaves free is not too many.
    pub workers: usize,
    /// How frames are packed.
    pub compression: Compression,
    /// Most bytes stored in a second, by all workers together; `None`: as many as the disk takes. Frames are small
    /// then.
    pub rate: Option<u64>,
    /// Most pages that a worker takes from the source at once; they are stored and released before it takes more.
    /// `None`: by the size of the whole.
    pub part_pages: Option<u64>,
}

/// What one worker has stored so far. The segment lives as long as the image is written, the rest for one pass.
#[derive(Default)]
pub(crate) struct Lane {
    pub(crate) segment: Option<SegmentWriter>,
    pub(crate) index: Vec<Located>,
    pub(crate) hashes: Hashes,
    /// It has stored pages whose hashes are not known.
    pub(crate) unhashed: bool,
    pub(crate) figures: FlushFigures,
}

/// One source to be stored.
pub(crate) struct Pass<'a> {
    pub(crate) folder: &'a TierFolder,
    /// Header of the image's segments, but for their numbers.
    pub(crate) header: SegmentHeader,
    /// Counts the image's segment files, which are made when a worker has something to store.
    pub(crate) segments: &'a AtomicU32,
    pub(crate) source: &'a dyn PageSource,
    /// Pages that are as in this image are not stored.
    pub(crate) parent: Option<&'a Lineage>,
    /// In an image of several address spaces: pages that are the same.
    pub(crate) dedup: Option<&'a Dedup>,
    pub(crate) throttle: &'a Throttle,
    pub(crate) choices: &'a Choices,
    pub(crate) link: &'a LinkMeter,
    pub(crate) options: PipelineOptions,
    /// Pages that are not there any more are an error.
    pub(crate) must_read: bool,
    /// Gets the bytes that need nothing more, and all there are.
    pub(crate) progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// What all workers share.
pub(crate) struct Shared<'a> {
    pub(crate) pass: &'a Pass<'a>,
    part_pages: u64,
    pub(crate) frame_pages: u64,
    total_pages: u64,
    /// Processors that pack frames, and threads.
    processors: usize,
    threads: usize,
    pub(crate) read_pages: AtomicU64,
    /// Frames that are still to be short.
    short_frames: AtomicU64,
    done_pages: AtomicU64,
    pub(crate) failed: AtomicBool,
}

/// Stores all pages of the source by way of `lanes`, one worker each.
pub(crate) fn run(pass: &Pass<'_>, lanes: &mut [Lane]) -> Result<(), StoreError> {
    let total_pages = pass.source.pages().0;
    let part = pass.options.part_pages.map_or(u64::MAX, |pages| pages.max(1));
    let most = if pass.options.rate.is_some() { SLOW_FRAME_PAGES } else { MAX_FRAME_PAGES };
    let shared = Shared {
        pass,
        part_pages: part_pages(total_pages, lanes.len()).min(part),
        frame_pages: most.min(part),
        total_pages,
        threads: lanes.len(),
        processors: thread::available_parallelism().map_or(1, |cores| cores.get().min(lanes.len())),
        read_pages: AtomicU64::new(0),
        short_frames: AtomicU64::new(0),
        done_pages: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    workers::run("flush", lanes, |lane| Worker::new(&shared, lane).run())
}

impl Shared<'_> {
    /// Takes the next part: runs of at most `part_pages` pages in all. Empty: nothing is left.
    pub(crate) fn take(&self, part: &mut Vec<PageRun>) {
        part.clear();
        self.pass.source.take(PageCount(self.part_pages), part);
    }

    /// To be called between two frames; the last run of `rest` would be the next.
    fn make_way(&self, rest: &mut Vec<PageRun>) -> bool {
        let is_awaited = self.pass.source.make_way(rest);
        if is_awaited {
            self.short_frames.store(SHORT_FRAMES, Ordering::Relaxed);
        } else {
            let less = |left: u64| left.checked_sub(1);
            let _ = self.short_frames.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        is_awaited
    }

    /// Most pages of the next frame.
    fn next_frame_pages(&self) -> u64 {
        if self.short_frames.load(Ordering::Relaxed) == 0 {
            return self.frame_pages;
        }
        let pages = self.relief().link * SHORT_FRAME_S / PAGE_SIZE as f64;
        (pages as u64).clamp(1, self.frame_pages)
    }

    /// Nothing more is to be done with these pages.
    pub(crate) fn release(&self, run: PageRun) {
        self.pass.source.release(run);
        let done = self.done_pages.fetch_add(run.pages.0, Ordering::Relaxed) + run.pages.0;
        (self.pass.progress)(done.saturating_mul(PAGE_SIZE), self.total_pages.saturating_mul(PAGE_SIZE));
    }

    /// What packing relieves.
    pub(crate) fn relief(&self) -> Relief {
        let link = self.pass.link.speed(self.pass.options.rate);
        Relief { link, processors: self.processors as f64, threads: self.threads as f64 }
    }

    /// Upper bound of the bytes that are still to be stored.
    fn needed(&self) -> u64 {
        let left = self.total_pages.saturating_sub(self.read_pages.load(Ordering::Relaxed));
        left.saturating_mul(PAGE_SIZE).saturating_add(MAX_FRAME_BYTES as u64)
    }
}

/// A frame that is being filled.
struct Gathering {
    buffer: AlignedBuffer,
    /// Pages in the buffer.
    filled: u64,
    /// Where they belong: run of pages, and its first page in the buffer.
    placed: Vec<(PageRun, u32)>,
    /// Runs to be released when the frame is stored.
    pending: Vec<PageRun>,
}

impl Gathering {
    fn new() -> Gathering {
        Gathering {
            buffer: AlignedBuffer::new(MAX_FRAME_BYTES),
            filled: 0,
            placed: Vec::new(),
            pending: Vec::new(),
        }
    }
}

pub(crate) struct Worker<'a> {
    pub(crate) shared: &'a Shared<'a>,
    pub(crate) lane: &'a mut Lane,
    packer: Packer,
    /// What the source has packed, a batch at a time.
    pub(crate) packed: Vec<u8>,
    comparer: Comparer<'a>,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>, lane: &'a mut Lane) -> Worker<'a> {
        let comparer = Comparer::new(shared.pass.parent);
        Worker {
            shared,
            lane,
            packer: Packer::new(shared.pass.options.compression),
            packed: Vec::new(),
            comparer,
        }
    }

    fn run(mut self) -> Result<(), StoreError> {
        if self.shared.pass.options.rate.is_some() {
            // It sleeps until the next frame is due, which may be less than the 50 us by which sleeps come late (the
            // least is in nanoseconds). If it cannot be set, it stays as it was.
            let _ = nix::sys::prctl::set_timerslack(1);
        }
        let result = self.store_parts();
        if result.is_err() {
            self.shared.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn store_parts(&mut self) -> Result<(), StoreError> {
        let mut part = Vec::new();
        let mut frames = [Gathering::new(), Gathering::new()];
        loop {
            self.shared.take(&mut part);
            if part.is_empty() {
                return self.store(&mut frames[0]);
            }
            self.store_packed(&mut part)?;
            part.reverse();
            let made_way = self.store_part(&mut part, &mut frames)?;
            if self.shared.failed.load(Ordering::Relaxed) {
                return Ok(()); // Another worker has the reason.
            }
            let is_bounded = self.shared.pass.options.part_pages.is_some();
            if made_way || is_bounded || self.shared.pass.source.is_urgent() {
                self.store(&mut frames[0])?;
            }
        }
    }

    /// Stores the runs of a part, the last one first, until they are all stored or given back. Short ones are gathered
    /// in the first frame, long ones have frames of their own. Returns whether a thread waits.
    fn store_part(
        &mut self,
        part: &mut Vec<PageRun>,
        [scattered, long]: &mut [Gathering; 2],
    ) -> Result<bool, StoreError> {
        let mut is_awaited = self.shared.make_way(&mut Vec::new());
        while !self.shared.failed.load(Ordering::Relaxed)
            && let Some(run) = part.pop()
        {
            let frame_pages = self.shared.next_frame_pages();
            if run.pages.0 < LONG_RUN_PAGES.min(frame_pages) {
                if scattered.filled + run.pages.0 > frame_pages {
                    self.store(scattered)?;
                    part.push(run);
                    is_awaited = self.shared.make_way(part);
                } else {
                    self.read(run, scattered)?;
                }
                continue;
            }
            let (piece, rest) = split(run, frame_pages);
            part.extend(rest);
            self.read(piece, long)?;
            self.store(long)?;
            is_awaited = self.shared.make_way(part);
        }
        Ok(is_awaited)
    }

    /// Reads a run into the frame and drops its zero pages and those that are as in the parent.
    fn read(&mut self, run: PageRun, into: &mut Gathering) -> Result<(), StoreError> {
        let pass = self.shared.pass;
        let from = into.filled as usize * PAGE;
        let bytes = run.pages.0 as usize * PAGE;
        let fresh = &mut into.buffer[from..from + bytes];
        let read = pass.source.read(run.start, fresh).map_err(|error| StoreError::of_source(run, error))?;
        if !read {
            let gone = || io::Error::new(io::ErrorKind::NotFound, "the pages are not there any more");
            return if pass.must_read { Err(StoreError::of_source(run, gone().into())) } else { Ok(()) };
        }
        let may_compare = pass.parent.is_some() && !pass.source.is_urgent();
        let figures = &mut self.lane.figures;
        let mut kept = 0_usize;
        for page in 0..run.pages.0 as usize {
            let start = Addr(run.start.0 + page as u64 * PAGE_SIZE);
            let place = |origin| Located { run: PageRun { start, pages: PageCount(1) }, origin };
            let at = page * PAGE..(page + 1) * PAGE;
            let content = &fresh[at.clone()];
            // Zero pages are named: in a private mapping of a file, a page that is not named is as in the file.
            if is_zero(content) {
                place(Origin::Zero).push_to(&mut self.lane.index);
                figures.pages_zero += 1;
                continue;
            }
            let hash = hash_of(content);
            self.lane.hashes.set(start, hash);
            if let Some((frame, page)) = self.comparer.same(start, hash, content, may_compare) {
                place(Origin::Parent { frame, page }).push_to(&mut self.lane.index);
                figures.pages_unchanged += 1;
                continue;
            }
            if let Some(origin) = pass.dedup.and_then(|dedup| twin(dedup, &self.comparer, start, hash)) {
                place(origin).push_to(&mut self.lane.index);
                figures.pages_deduplicated += 1;
                continue;
            }
            if kept != page {
                fresh.copy_within(at, kept * PAGE);
            }
            push_placed(&mut into.placed, start, into.filled as u32 + kept as u32);
            kept += 1;
        }
        into.filled += kept as u64;
        if kept > 0 {
            into.pending.push(run);
        } else {
            self.shared.release(run);
        }
        figures.pages_read += run.pages.0;
        self.shared.read_pages.fetch_add(run.pages.0, Ordering::Relaxed);
        Ok(())
    }

    /// Appends the frame and releases what it was read from.
    fn store(&mut self, gathered: &mut Gathering) -> Result<(), StoreError> {
        let pass = self.shared.pass;
        if gathered.filled > 0 {
            let raw = &gathered.buffer[..gathered.filled as usize * PAGE];
            let first = gathered.placed.first().map_or(Addr(0), |(run, _)| run.start);
            let (codec, data) = if pass.source.is_urgent() {
                (Codec::Raw, raw)
            } else {
                self.packer.pack(pass.choices, first, raw, self.shared.relief())
            };
            let (segment, frame) = append(self.shared, self.lane, first, gathered.filled, codec, data)?;
            let origin = |page| Origin::Own { segment, frame, page };
            for (run, page) in gathered.placed.drain(..) {
                self.lane.index.push(Located { run, origin: origin(page) });
                let Some(dedup) = pass.dedup else { continue };
                for number in 0..run.pages.0 {
                    let hash = self.lane.hashes.get(Addr(run.start.0 + number * PAGE_SIZE));
                    dedup.note(hash, origin(page + number as u32));
                }
            }
            gathered.filled = 0;
        }
        gathered.pending.drain(..).for_each(|run| self.shared.release(run));
        Ok(())
    }
}

/// Appends a frame to the lane's segment: numbers of the segment, and of the frame in it.
pub(crate) fn append(
    shared: &Shared<'_>,
    lane: &mut Lane,
    first: Addr,
    pages: u64,
    codec: Codec,
    data: &[u8],
) -> Result<(u32, u32), StoreError> {
    let pass = shared.pass;
    if let Some(rate) = pass.options.rate {
        pass.throttle.wait(data.len() as u64, rate, &shared.failed);
    }
    let needed = shared.needed();
    let segment = match &mut lane.segment {
        Some(segment) => segment,
        none => {
            let number = pass.segments.fetch_add(1, Ordering::Relaxed);
            let header = SegmentHeader { number, ..pass.header };
            none.insert(SegmentWriter::create(pass.folder, header, needed)?)
        }
    };
    let append = || segment.append(first, pages, codec, data, needed);
    let frame = pass.link.measure(data.len() as u64, append)?;
    let figures = &mut lane.figures;
    figures.pages_stored += pages;
    if codec != Codec::Raw {
        figures.bytes_compressed_from += pages * PAGE_SIZE;
        figures.bytes_compressed_to += data.len() as u64;
    }
    Ok((segment.header().number, frame))
}

/// Where a page with this content is, of whatever address space.
fn twin(dedup: &Dedup, comparer: &Comparer<'_>, start: Addr, hash: u128) -> Option<Origin> {
    dedup.find(hash).or_else(|| {
        let (frame, page) = dedup.elsewhere(start).find_map(|other| comparer.same_hash(other, hash))?;
        Some(Origin::Parent { frame, page })
    })
}

/// How many pages a worker takes at once: whole frames.
fn part_pages(total_pages: u64, workers: usize) -> u64 {
    let even = total_pages / (PARTS_PER_WORKER * workers.max(1) as u64);
    even.next_multiple_of(MAX_FRAME_PAGES).clamp(PART_PAGES.0, PART_PAGES.1)
}

/// The first pages of a run, at most so many, and what is left of it.
fn split(run: PageRun, pages: u64) -> (PageRun, Option<PageRun>) {
    let first = PageRun { start: run.start, pages: PageCount(pages.min(run.pages.0)) };
    let rest = PageRun::between(first.end(), run.end());
    (first, (rest.pages.0 > 0).then_some(rest))
}

fn push_placed(placed: &mut Vec<(PageRun, u32)>, start: Addr, page: u32) {
    if let Some((run, first)) = placed.last_mut()
        && run.end() == start
        && u64::from(*first) + run.pages.0 == u64::from(page)
    {
        run.pages.0 += 1;
        return;
    }
    placed.push((PageRun { start, pages: PageCount(1) }, page));
}
