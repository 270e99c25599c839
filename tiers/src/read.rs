//! The pages of an open image, checked before they are handed out.
//!
//! Called by the agent at restart, from several threads, and by `verify`.
//! Invariants: no byte leaves this file before the whole frame it lies in has matched its checksum, or its page the
//! hash that this process knows of it (see `tables`); the space that a frame needs was checked when the manifest was
//! opened.
//! Fails by: an error that names the segment file and the offset of the frame.

use crate::StoreError;
use crate::format::manifest::{IndexRun, Place};
use crate::format::segment::{BLOCK_LEN, Block, Frame, FrameHeader, first_block, follows};
use crate::gather::each_part;
use crate::image::Image;
use crate::segment_file::{SegmentFile, check_identity};
use crate::tables::Scratch;
use crate::workers;
use holdfast_image::pages::{Extent, MappableSegment, PageError, PageProvider, PageRun, PutPages, coalesce};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Frames that a verifying thread takes at once.
const FRAMES_AT_ONCE: usize = 16;

impl Image {
    /// Whether some of it is read from a server: several readers at once are faster there than one.
    fn is_far(&self) -> bool {
        self.tables.segments.iter().any(|segment| segment.mapped().is_none())
    }

    /// Calls `check` for all frames that `wanted` names, on all processors. The first error ends it.
    pub(crate) fn for_frames<E: From<StoreError> + Send>(
        &self,
        wanted: &(dyn Fn(usize, &Frame) -> bool + Sync),
        check: &(dyn Fn(usize, &mut Scratch) -> Result<(), E> + Sync),
    ) -> Result<(), E> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (count, is_far) = (self.tables.frames.len(), self.is_far());
        let at_once = match is_far {
            // Enough for all threads.
            true => (count / (2 * workers::count(count, true))).clamp(1, FRAMES_AT_ONCE),
            false => FRAMES_AT_ONCE,
        };
        let work = |_| {
            let mut scratch = Scratch::default();
            while !failed.load(Ordering::Relaxed) {
                let from = next.fetch_add(at_once, Ordering::Relaxed);
                let Some(rest) = self.tables.frames.get(from..).filter(|rest| !rest.is_empty()) else {
                    break;
                };
                let frames = (from..).zip(rest.iter().take(at_once));
                for (number, _) in frames.filter(|(number, frame)| wanted(*number, frame)) {
                    check(number, &mut scratch).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                }
            }
            Ok(())
        };
        workers::run("verify", 0..workers::count(count.div_ceil(at_once), is_far), work)
    }

    /// Reads every byte of every frame and every header, and unpacks what is compressed. `progress` gets the bytes
    /// checked so far, from any thread.
    ///
    /// # Errors
    /// The first damage found: file, offset and what is wrong.
    pub fn verify(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<(), StoreError> {
        self.verify_headers()?;
        let bytes = AtomicU64::new(0);
        self.for_frames::<StoreError>(&|_, _| true, &|number, scratch| {
            let frame = &self.tables.frames[number];
            scratch.pages.resize(frame.raw_len(), 0);
            self.tables.unpack(number, &mut scratch.pages, &mut scratch.stored)?;
            progress(bytes.fetch_add(frame.stored_len, Ordering::Relaxed) + frame.stored_len);
            Ok(())
        })
    }

    /// Walks the blocks of headers of each segment and compares them with the frame table.
    fn verify_headers(&self) -> Result<(), StoreError> {
        for (number, segment) in self.tables.segments.iter().enumerate() {
            let headers = read_headers(segment)?;
            for frame in self.tables.frames.iter().filter(|frame| frame.segment as usize == number) {
                let header =
                    headers.get(&frame.offset).map(|header| Frame { segment: frame.segment, ..header.frame });
                if header != Some(*frame) {
                    let what = "the frame has no header in its segment, or a different one";
                    return Err(StoreError::corrupt(segment.address(), frame.offset, what));
                }
            }
        }
        Ok(())
    }
}

/// All frame headers of a segment by the offset of their frames.
fn read_headers(segment: &SegmentFile) -> Result<BTreeMap<u64, FrameHeader>, StoreError> {
    let entry = &segment.entry;
    let mut headers = BTreeMap::new();
    let (mut next, mut last) = (first_block(entry.version, entry.len), None);
    while let Some(base) = next {
        let decode = |bytes: &[u8]| {
            let block =
                Block::decode(bytes, base, entry.len).map_err(StoreError::format(segment.address()))?;
            check_identity(segment.address(), base, &block.segment, entry)?;
            if !follows(block.segment.version, last, block.segment.block) {
                let what = format!("this is block {}, which does not belong here", block.segment.block);
                return Err(StoreError::corrupt(segment.address(), base, what));
            }
            Ok(block)
        };
        let mut bytes = [0; BLOCK_LEN];
        segment
            .read(base, &mut bytes, &|bytes| decode(bytes).map(|_| ()).map_err(|error| error.to_string()))?;
        let block = decode(&bytes)?;
        headers.extend(block.frames.iter().map(|header| (header.frame.offset, *header)));
        (next, last) = (block.next, Some(block.segment.block));
    }
    Ok(headers)
}

impl Image {
    /// Fills `buffer` with the pages from `start` on; those that the image has not are zero. For a page server.
    ///
    /// # Errors
    /// As [`PageProvider::read`].
    pub fn read_or_zero(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError> {
        let end = Addr(start.0.saturating_add(buffer.len() as u64));
        let index = &self.tables.index;
        let mut at = start;
        let first = index.partition_point(|entry| entry.run.end() <= start);
        for entry in index[first..].iter().take_while(|entry| entry.run.start < end) {
            let part = PageRun::between(entry.run.start.max(start), entry.run.end().min(end));
            let place = |addr: Addr| usize::try_from(addr.0 - start.0).unwrap_or(usize::MAX);
            buffer[place(at)..place(part.start)].fill(0);
            self.read(part.start, &mut buffer[place(part.start)..place(part.end())])?;
            at = part.end();
        }
        let rest = usize::try_from(at.0 - start.0).unwrap_or(usize::MAX);
        buffer[rest..].fill(0);
        Ok(())
    }
}

impl PageProvider for Image {
    fn extents(&self) -> &[Extent] {
        &self.extents
    }
    fn segment(&self, number: u32) -> Option<MappableSegment<'_>> {
        self.tables.segments.get(number as usize)?.mappable()
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError> {
        if !start.is_page_aligned() || !(buffer.len() as u64).is_multiple_of(PAGE_SIZE) {
            let what = format!("{} bytes at {start} are not whole pages", buffer.len());
            return Err(PageError::Misuse(what));
        }
        let mut at = start;
        let mut rest = buffer;
        let first = self.tables.index.partition_point(|entry| entry.run.end() <= start);
        let mut entries = self.tables.index[first..].iter();
        while !rest.is_empty() {
            let Some(IndexRun { run, place }) = entries.next().filter(|entry| entry.run.start <= at) else {
                let what = format!("{}: image {} has no page at {at}", self.dir().display(), self.epoch());
                return Err(PageError::Misuse(what));
            };
            let skipped = at.0 - run.start.0;
            let here = usize::try_from(run.end().0 - at.0).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(here);
            match *place {
                Place::Frame { frame, page } => {
                    self.tables.read_frame(frame, u64::from(page) + skipped / PAGE_SIZE, now)?;
                }
                Place::Zero => now.fill(0),
            }
            at = Addr(at.0 + here as u64);
            rest = later;
        }
        Ok(())
    }
    fn gather(&self, wanted: &[PageRun], put: &PutPages<'_>) -> Result<(), PageError> {
        self.gather_by_frame(wanted, put)
    }
    fn check_mapped(&self, wanted: &[PageRun]) -> Result<Vec<PageRun>, PageError> {
        if self.is_served() {
            // Each frame is checked when it is touched.
            return Ok(Vec::new());
        }
        let mut parts: Vec<(u32, PageRun)> = Vec::new();
        let mut is_wanted = vec![false; self.tables.frames.len()];
        each_part(&self.tables.index, wanted, |frame, part| {
            is_wanted[frame as usize] = true;
            parts.push((frame, PageRun { start: part.start, pages: PageCount(part.pages.into()) }));
        })?;
        let damaged = Mutex::new(BTreeSet::new());
        self.for_frames::<StoreError>(&|number, _| is_wanted[number], &|number, scratch| {
            if self.tables.is_mapped_checked(number) {
                return Ok(());
            }
            scratch.stored.resize(self.tables.frames[number].raw_len(), 0);
            // Whatever is wrong: it cannot be mapped.
            if !self.tables.check_mapped(number, &mut scratch.stored) {
                damaged.lock().insert(number);
            }
            Ok(())
        })?;
        let damaged = damaged.into_inner();
        let mut runs: Vec<PageRun> = parts
            .into_iter()
            .filter(|(frame, _)| damaged.contains(&(*frame as usize)))
            .map(|(_, run)| run)
            .collect();
        coalesce(&mut runs);
        Ok(runs)
    }
    fn shared_pages(&self) -> Option<u32> {
        (self.shared.is_some() || self.is_served()).then(|| self.tables.shared_pages_number())
    }
    fn is_served(&self) -> bool {
        self.served.is_some()
    }
    fn fill_shared_pages(&self, file: &File) -> Result<(), PageError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        file.set_len(shared.len())?;
        let place = |frame: &Frame| shared.place(&self.tables.entries, frame);
        let unpack = |number: usize, scratch: &mut Scratch| {
            let frame = &self.tables.frames[number];
            scratch.pages.resize(frame.raw_len(), 0);
            self.tables.unpack(number, &mut scratch.pages, &mut scratch.stored)?;
            let at = place(frame).unwrap_or(0);
            file.write_all_at(&scratch.pages, at).map_err(StoreError::io("unpack", &self.dir()))
        };
        Ok(self.for_frames::<StoreError>(&|_, frame| place(frame).is_some(), &unpack)?)
    }
}
