//! The memory of a process as an image has it.
//!
//! Called by the parent. Pages that the image has are read from it, and checked; others of private memory are zero, or
//! what the mapped file has, if that is unchanged. What must hold: nothing else is given for what the program had.

use super::unchanged;
use crate::exit::{self, Exit, Failure};
use holdfast_image::pages::{PageProvider, PageRun};
use holdfast_image::record::{Backing, FileIdentity, ProcessRecord, Region};
use holdfast_image::{Addr, PAGE_SIZE, address_space};
use holdfast_tiers::Image;
use std::os::unix::fs::FileExt;

/// More at once is not read.
const MOST_BYTES: u64 = 64 << 30;

/// See the head of the file.
pub struct Space<'a> {
    image: &'a Image,
    process: &'a ProcessRecord,
}

impl<'a> Space<'a> {
    /// That of a process.
    ///
    /// # Errors
    /// The image has only what its program has protected.
    pub fn new(
        image: &'a Image,
        record: &ProcessRecord,
        process: &'a ProcessRecord,
    ) -> Result<Space<'a>, Failure> {
        if image.protected_only() {
            let what = format!(
                "image {} of {} has protected memory only, not what else process {} had",
                image.epoch(),
                image.dir().display(),
                record.pid
            );
            return Err(Failure::new(Exit::Refused, what));
        }
        Ok(Space { image, process })
    }

    /// What was there.
    ///
    /// # Errors
    /// It was not mapped; the image does not have it; a mapped file is another by now; bytes are damaged.
    pub fn read(&self, start: u64, bytes: u64) -> Result<Vec<u8>, Failure> {
        let end = start.checked_add(bytes).filter(|_| bytes <= MOST_BYTES).ok_or_else(|| {
            Failure::new(
                Exit::Usage,
                format!("{bytes} bytes at {start:#x} are more than can be read at once"),
            )
        })?;
        let first = start & !(PAGE_SIZE - 1);
        let last = end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX);
        // Before memory is taken for it.
        let parts = self.parts(first, last)?;
        let length = usize::try_from(last - first).unwrap_or(usize::MAX);
        let mut all = Vec::new();
        all.try_reserve_exact(length)
            .map_err(|_| Failure::new(Exit::Internal, format!("there is no memory for {bytes} bytes")))?;
        all.resize(length, 0);
        let mut rest = &mut all[..];
        for (region, run) in parts {
            let (here, after) = rest.split_at_mut(usize::try_from(run.pages.bytes()).unwrap_or(usize::MAX));
            self.part(region, run, here)?;
            rest = after;
        }
        let skipped = usize::try_from(start - first).unwrap_or(0);
        all.drain(..skipped);
        all.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(all)
    }

    /// The mappings that lie there, each with its part of it.
    fn parts(&self, first: u64, last: u64) -> Result<Vec<(&'a Region, PageRun)>, Failure> {
        let (mut at, mut parts) = (first, Vec::new());
        for region in self.process.regions.iter().filter(|region| region.end.0 > first) {
            if at >= last || region.start.0 > at {
                break;
            }
            let end = region.end.0.min(last);
            parts.push((region, PageRun::between(Addr(at), Addr(end))));
            at = end;
        }
        if at < last {
            let what = format!("process {} had nothing mapped at {at:#x}", self.process.pid);
            return Err(Failure::new(Exit::NotFound, what));
        }
        Ok(parts)
    }

    fn part(&self, region: &Region, run: PageRun, into: &mut [u8]) -> Result<(), Failure> {
        let files = &self.process.files;
        match &region.backing {
            Backing::Anonymous => self.pages(run, into),
            Backing::PrivateFile { file, offset } => {
                let from = *offset + (run.start.0 - region.start.0);
                if !self.has_all(run) {
                    let mapped = files.mapped.get(*file as usize).ok_or_else(|| {
                        Failure::new(
                            Exit::BadImage,
                            format!("the image lacks the name of mapped file {file}"),
                        )
                    })?;
                    file_pages(mapped, from, into)?;
                }
                self.pages_over(run, into)
            }
            other => {
                let kind = match other {
                    Backing::SharedFile { .. } => "a file mapped shared: read the file",
                    Backing::SharedAnonymous { .. } | Backing::SystemV { .. } => "shared memory",
                    Backing::Kernel { .. } => "the kernel's",
                    _ => "a file without a name",
                };
                let what = format!(
                    "process {} has at {}: {kind}; only private memory can be read from images",
                    self.process.pid, run.start
                );
                Err(Failure::new(Exit::Refused, what))
            }
        }
    }

    fn global(&self, run: PageRun) -> PageRun {
        address_space::global_run(self.process.space, run)
    }

    fn pages(&self, run: PageRun, into: &mut [u8]) -> Result<(), Failure> {
        self.image.read_or_zero(self.global(run).start, into).map_err(failure)
    }

    /// Those that the image has, over what is there.
    fn pages_over(&self, run: PageRun, into: &mut [u8]) -> Result<(), Failure> {
        let wanted = self.global(run);
        for part in self.held(wanted) {
            let place = |addr: Addr| usize::try_from(addr.0 - wanted.start.0).unwrap_or(usize::MAX);
            let into = &mut into[place(part.start)..place(part.end())];
            self.image.read(part.start, into).map_err(failure)?;
        }
        Ok(())
    }

    fn has_all(&self, run: PageRun) -> bool {
        self.held(self.global(run)).map(|part| part.pages.0).sum::<u64>() == run.pages.0
    }

    /// The parts of a run that the image has.
    fn held(&self, wanted: PageRun) -> impl Iterator<Item = PageRun> {
        let extents = self.image.extents();
        let first = extents.partition_point(|extent| extent.run.end() <= wanted.start);
        let there =
            extents[first..].iter().map(|extent| extent.run).take_while(move |run| run.start < wanted.end());
        there.map(move |run| PageRun::between(run.start.max(wanted.start), run.end().min(wanted.end())))
    }
}

fn failure(error: holdfast_image::pages::PageError) -> Failure {
    Failure::new(exit::of_pages(&error), error.to_string())
}

/// What a mapped file has; behind its end there are zeros (mmap(2)).
fn file_pages(mapped: &FileIdentity, offset: u64, into: &mut [u8]) -> Result<(), Failure> {
    let file = unchanged::open(mapped, ", and the image lacks its pages")?;
    let there = usize::try_from(mapped.size.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
    let (from_file, behind) = into.split_at_mut(there);
    file.read_exact_at(from_file, offset)
        .map_err(|error| Failure::system(format_args!("reading {}", mapped.path), &error))?;
    behind.fill(0);
    Ok(())
}
