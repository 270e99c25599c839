//! Pages that their source packs where they are, on a device: they come packed and are stored so.
//!
//! Part of the workers of [`crate::pipeline`], for what [`PageSource::packable`] hands out. Whether, and by which
//! codec, is decided batch by batch from what the last batches became ([`crate::codec::SourceChoices`]).
//! Invariants: such pages are not compared with the parent's, and their hashes are not known afterwards
//! ([`crate::pipeline::Lane::unhashed`]): the source hands out what has changed; a frame is as `docs/format.md` says:
//! one LZ4 block, Zstandard frames one behind the other, or raw.
//!
//! [`PageSource::packable`]: holdfast_image::pages::PageSource::packable

use crate::StoreError;
use crate::codec::Codec;
use crate::codec::choice::Trial;
use crate::locations::{Located, Origin};
use crate::pipeline::{Worker, append};
use holdfast_image::pages::{PageRun, SourceCodec, coalesce};
use holdfast_image::{PAGE_SIZE, PageCount};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Most units that are asked for at once. A device packs many as fast as one; 64 KiB each are 8 MiB.
const BATCH: usize = 128;

fn codec_of(codec: SourceCodec) -> Codec {
    match codec {
        SourceCodec::Lz4 => Codec::Lz4,
        SourceCodec::Zstd => Codec::Zstd,
    }
}

impl Worker<'_> {
    /// Stores what of a part comes packed; what is left in the part is to be read.
    pub(crate) fn store_packed(&mut self, part: &mut Vec<PageRun>) -> Result<(), StoreError> {
        let pass = self.shared.pass;
        let mut units = pass.source.packable(part);
        // Units need no copies when the program writes; what does need them goes first.
        if !part.is_empty() && pass.source.is_urgent() {
            coalesce(&mut units);
            part.append(&mut units);
            return Ok(());
        }
        // A part may be less than what a device packs at once; what has to be released soon does not wait for it.
        let may_wait = |part: &[PageRun]| part.is_empty() || pass.options.part_pages.is_none();
        while (1..BATCH).contains(&units.len()) && may_wait(part) {
            let mut more = Vec::new();
            self.shared.take(&mut more);
            if more.is_empty() {
                break;
            }
            units.append(&mut pass.source.packable(&mut more));
            part.append(&mut more);
        }
        let mut left = Vec::new();
        for batch in units.chunks(BATCH) {
            if self.shared.failed.load(Ordering::Relaxed) {
                return Ok(()); // Another worker has the reason.
            }
            let fits = batch.iter().all(|unit| unit.pages.0 <= self.shared.frame_pages);
            let mut rest = if fits { batch } else { &[] };
            while !rest.is_empty()
                && let Some(codec) =
                    pass.choices.of_source.choose(pass.options.compression, self.shared.relief())
            {
                match self.store_batch(rest, codec)? {
                    0 => break,
                    count => rest = &rest[count..],
                }
            }
            left.extend(if fits { rest } else { batch });
        }
        coalesce(&mut left);
        part.append(&mut left);
        Ok(())
    }

    /// Has a batch packed, and stores it: how many of the units.
    fn store_batch(&mut self, batch: &[PageRun], codec: SourceCodec) -> Result<usize, StoreError> {
        let pass = self.shared.pass;
        let begun = Instant::now();
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        let failed = |error| StoreError::of_source(batch[0], error);
        let lens = pass.source.read_packed(batch, codec, &mut packed).map_err(failed)?;
        let units = &batch[..lens.len().min(batch.len())];
        let bytes: u64 = units.iter().map(|unit| unit.pages.bytes()).sum();
        if bytes > 0 {
            let part = |of: f64| of / bytes as f64;
            let cost = part(begun.elapsed().as_nanos() as f64);
            let trial = Trial { codec: codec_of(codec), size: part(packed.len() as f64), cost };
            pass.choices.of_source.note(trial);
            self.lane.unhashed = true;
            self.lane.figures.pages_read += bytes / PAGE_SIZE;
            self.shared.read_pages.fetch_add(bytes / PAGE_SIZE, Ordering::Relaxed);
        }
        let mut at = 0;
        for frame in frames(units, &lens, codec_of(codec), self.shared.frame_pages) {
            let len: usize = lens[frame.clone()].iter().sum();
            let data = packed.get(at..at + len).ok_or_else(|| {
                failed(holdfast_image::pages::PageError::Misuse(
                    "a source has packed less than it says".into(),
                ))
            })?;
            at += len;
            self.store_frame(&units[frame], codec, data)?;
        }
        units.iter().for_each(|unit| self.shared.release(*unit));
        self.packed = packed;
        Ok(units.len())
    }

    fn store_frame(&mut self, units: &[PageRun], codec: SourceCodec, data: &[u8]) -> Result<(), StoreError> {
        let pages: u64 = units.iter().map(|unit| unit.pages.0).sum();
        let is_raw = data.len() as u64 == PageCount(pages).bytes();
        let codec = if is_raw { Codec::Raw } else { codec_of(codec) };
        let (segment, frame) = append(self.shared, self.lane, units[0].start, pages, codec, data)?;
        if !is_raw {
            self.lane.figures.bytes_compressed_on_device += PageCount(pages).bytes();
        }
        let mut page = 0;
        for unit in units {
            let origin = Origin::Own { segment, frame, page };
            Located { run: *unit, origin }.push_to(&mut self.lane.index);
            page += unit.pages.0 as u32;
        }
        Ok(())
    }
}

/// Which units share a frame: raw ones, and what Zstandard has packed, with those of their kind behind them.
fn frames(units: &[PageRun], lens: &[usize], codec: Codec, most: u64) -> Vec<Range<usize>> {
    let is_raw = |nth: usize| lens[nth] as u64 == units[nth].pages.bytes();
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut pages = 0;
    for (nth, unit) in units.iter().enumerate() {
        pages += unit.pages.0;
        match all.last_mut() {
            Some(last)
                if pages <= most
                    && is_raw(nth) == is_raw(last.start)
                    && (is_raw(nth) || codec == Codec::Zstd) =>
            {
                last.end = nth + 1;
            }
            _ => {
                all.push(nth..nth + 1);
                pages = unit.pages.0;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::Addr;

    #[test]
    fn raw_units_and_those_of_zstandard_share_frames() {
        let unit = |nth: u64| PageRun { start: Addr(nth << 16), pages: PageCount(16) };
        let units: Vec<PageRun> = (0..8).map(unit).collect();
        let lens = [65_536, 65_536, 65_536, 10, 20, 65_536, 30, 40];
        assert_eq!(frames(&units, &lens, Codec::Zstd, 32), [0..2, 2..3, 3..5, 5..6, 6..8]);
        assert_eq!(frames(&units, &lens, Codec::Lz4, 256), [0..3, 3..4, 4..5, 5..6, 6..7, 7..8]);
        assert_eq!(frames(&[], &[], Codec::Lz4, 256), []);
    }
}
