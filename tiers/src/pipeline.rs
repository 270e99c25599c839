//! The pipeline: read runs, drop zero pages, compress where it pays, append, release.
//!
//! Called by [`crate::ImageWriter::write_pages`] in the agent while the program runs. Each worker has a segment file
//! of its own and takes the next part of the source's runs, in the source's order, when it has stored the last one.
//! Invariants: memory is bounded (about 7 MiB a worker besides the index); a run is released only when its content
//! lies in a staging buffer or in the file; pages of a long run stay together in the file, so that a restart can map
//! them; the index is complete when all workers have returned without an error.
//! Fails by: the first error stops all workers.

use crate::StoreError;
use crate::append::SegmentWriter;
use crate::buffer::{AlignedBuffer, is_zero};
use crate::codec::Chooser;
use crate::format::manifest::{IndexRun, Place};
use crate::format::segment::{Codec, MAX_FRAME_BYTES, MAX_FRAME_PAGES, SegmentHeader};
use holdfast_image::manifest::FlushFigures;
use holdfast_image::pages::{PageRun, PageSource};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;

const PAGE: usize = PAGE_SIZE as usize;
/// Runs of at least this many pages get frames of their own: they are worth a mapping at restart.
const LONG_RUN_PAGES: u64 = 64;
/// Least and most pages that a worker takes at once: 1 MiB to 256 MiB. Large parts keep long runs contiguous in one
/// file, small parts let all workers end at the same time.
const PART_PAGES: (u64, u64) = (1 << 8, 1 << 16);
/// Parts per worker that the whole flush is divided into, within these limits.
const PARTS_PER_WORKER: u64 = 64;

/// How the pipeline works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipelineOptions {
    /// Threads, at least 1. Each of them waits for the disk while others read, so that two more than the processors
    /// that the program leaves free is not too many.
    pub workers: usize,
    /// Compress by LZ4 where it pays.
    pub compress: bool,
}

/// What one worker has stored so far; lives as long as the image is written.
#[derive(Default)]
pub(crate) struct Lane {
    pub(crate) segment: Option<SegmentWriter>,
    /// Frame numbers are those within `segment`.
    pub(crate) index: Vec<IndexRun>,
    pub(crate) figures: FlushFigures,
}

/// What all workers share.
struct Shared<'a> {
    dir: &'a Path,
    header: SegmentHeader,
    segments: &'a AtomicU32,
    source: &'a dyn PageSource,
    progress: &'a (dyn Fn(u64) + Sync),
    compress: bool,
    part_pages: u64,
    total_pages: u64,
    read_pages: AtomicU64,
    failed: AtomicBool,
}

/// Stores all pages of `source` by way of `lanes`, one worker each. `header` is that of the image; `segments` counts
/// its segment files, which are made when a worker has something to store.
pub(crate) fn run(
    dir: &Path,
    header: SegmentHeader,
    segments: &AtomicU32,
    lanes: &mut [Lane],
    source: &dyn PageSource,
    compress: bool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), StoreError> {
    let total_pages = source.pages().0;
    let shared = Shared {
        dir,
        header,
        segments,
        source,
        progress,
        compress,
        part_pages: part_pages(total_pages, lanes.len()),
        total_pages,
        read_pages: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let shared = &shared;
        let mut lanes = lanes.iter_mut();
        let own = lanes.next();
        // A thread that cannot be started leaves its work to the others.
        let others: Vec<_> = lanes
            .filter_map(|lane| {
                thread::Builder::new()
                    .name("flush".into())
                    .spawn_scoped(scope, move || Worker::new(shared, lane).run())
                    .ok()
            })
            .collect();
        let mut result = own.map_or(Ok(()), |lane| Worker::new(shared, lane).run());
        for other in others {
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}

impl Shared<'_> {
    /// Takes the next part: runs of at most `part_pages` pages in all. Empty: nothing is left.
    fn take(&self, part: &mut Vec<PageRun>) {
        part.clear();
        self.source.take(PageCount(self.part_pages), part);
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

struct Worker<'a> {
    shared: &'a Shared<'a>,
    lane: &'a mut Lane,
    chooser: Chooser,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a Shared<'a>, lane: &'a mut Lane) -> Worker<'a> {
        Worker { shared, lane, chooser: Chooser::new(shared.compress) }
    }

    fn run(mut self) -> Result<(), StoreError> {
        let result = self.store_parts();
        if result.is_err() {
            self.shared.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn store_parts(&mut self) -> Result<(), StoreError> {
        let mut part = Vec::new();
        let (mut long, mut scattered) = (Gathering::new(), Gathering::new());
        loop {
            self.shared.take(&mut part);
            if part.is_empty() {
                return self.store(&mut scattered);
            }
            for run in &part {
                if self.shared.failed.load(Ordering::Relaxed) {
                    return Ok(()); // Another worker has the reason.
                }
                if run.pages.0 < LONG_RUN_PAGES {
                    if scattered.filled + run.pages.0 > MAX_FRAME_PAGES {
                        self.store(&mut scattered)?;
                    }
                    self.read(*run, &mut scattered)?;
                    continue;
                }
                for piece in pieces(*run).take_while(|_| !self.shared.failed.load(Ordering::Relaxed)) {
                    self.read(piece, &mut long)?;
                    self.store(&mut long)?;
                }
            }
        }
    }

    /// Reads a run into the frame and drops its zero pages.
    fn read(&mut self, run: PageRun, into: &mut Gathering) -> Result<(), StoreError> {
        let from = into.filled as usize * PAGE;
        let bytes = run.pages.0 as usize * PAGE;
        let fresh = &mut into.buffer[from..from + bytes];
        let read = self.shared.source.read(run.start, fresh).map_err(|source| StoreError::Source {
            start: run.start,
            bytes: bytes as u64,
            source,
        })?;
        if !read {
            return Ok(());
        }
        let mut kept = 0_usize;
        for page in 0..run.pages.0 as usize {
            let start = Addr(run.start.0 + page as u64 * PAGE_SIZE);
            let content = page * PAGE..(page + 1) * PAGE;
            if is_zero(&fresh[content.clone()]) {
                push_zero(&mut self.lane.index, start);
                continue;
            }
            if kept != page {
                fresh.copy_within(content, kept * PAGE);
            }
            push_placed(&mut into.placed, start, into.filled as u32 + kept as u32);
            kept += 1;
        }
        into.filled += kept as u64;
        if kept > 0 {
            into.pending.push(run);
        } else {
            self.shared.source.release(run);
        }
        let figures = &mut self.lane.figures;
        figures.pages_read += run.pages.0;
        figures.pages_zero += run.pages.0 - kept as u64;
        let read = self.shared.read_pages.fetch_add(run.pages.0, Ordering::Relaxed) + run.pages.0;
        (self.shared.progress)(read.saturating_mul(PAGE_SIZE));
        Ok(())
    }

    /// Appends the frame and releases what it was read from.
    fn store(&mut self, gathered: &mut Gathering) -> Result<(), StoreError> {
        if gathered.filled > 0 {
            let raw = &gathered.buffer[..gathered.filled as usize * PAGE];
            let (codec, data) = match self.chooser.compress(raw) {
                Some(data) => (Codec::Lz4, data),
                None => (Codec::Raw, raw),
            };
            let needed = self.shared.needed();
            let segment = match &mut self.lane.segment {
                Some(segment) => segment,
                none => {
                    let number = self.shared.segments.fetch_add(1, Ordering::Relaxed);
                    let header = SegmentHeader { number, ..self.shared.header };
                    none.insert(SegmentWriter::create(self.shared.dir, header, needed)?)
                }
            };
            let first = gathered.placed.first().map_or(Addr(0), |(run, _)| run.start);
            let frame = segment.append(first, gathered.filled, codec, data, needed)?;
            let figures = &mut self.lane.figures;
            figures.pages_stored += gathered.filled;
            if codec == Codec::Lz4 {
                figures.bytes_compressed_from += raw.len() as u64;
                figures.bytes_compressed_to += data.len() as u64;
            }
            let runs = gathered.placed.drain(..);
            self.lane
                .index
                .extend(runs.map(|(run, page)| IndexRun { run, place: Place::Frame { frame, page } }));
            gathered.filled = 0;
        }
        for run in gathered.pending.drain(..) {
            self.shared.source.release(run);
        }
        Ok(())
    }
}

/// How many pages a worker takes at once: whole frames.
fn part_pages(total_pages: u64, workers: usize) -> u64 {
    let even = total_pages / (PARTS_PER_WORKER * workers.max(1) as u64);
    even.next_multiple_of(MAX_FRAME_PAGES).clamp(PART_PAGES.0, PART_PAGES.1)
}

/// Cuts a long run into frames.
fn pieces(run: PageRun) -> impl Iterator<Item = PageRun> {
    (0..run.pages.0).step_by(MAX_FRAME_PAGES as usize).map(move |page| PageRun {
        start: Addr(run.start.0 + page * PAGE_SIZE),
        pages: PageCount(MAX_FRAME_PAGES.min(run.pages.0 - page)),
    })
}

/// Adds a zero page to the index. Zero pages are named: in a private mapping of a file, a page that is not named is
/// as in the file.
fn push_zero(index: &mut Vec<IndexRun>, start: Addr) {
    if let Some(last) = index.last_mut()
        && last.place == Place::Zero
        && last.run.end() == start
    {
        last.run.pages.0 += 1;
        return;
    }
    index.push(IndexRun { run: PageRun { start, pages: PageCount(1) }, place: Place::Zero });
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
