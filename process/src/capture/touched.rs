//! Which pages of a file in memory there are.
//!
//! To read one that is not there makes it (mm/shmem.c, shmem_fault); it would be zero. The page tables of the processes
//! do not tell: what write(2) has written, or a process that has ended, need not be in any. mincore(2) does, asked in
//! a process that has the file mapped: it looks into the page tables and at the file (mm/mincore.c, mincore_page). What
//! is in swap alone it does not tell. Where the host has anything there, the file itself is asked, through
//! /proc/PID/map_files, as root may; else all of a mapping counts as long as smaps has something of it in swap.
//!
//! Called by [`super::shared_memory`], inside the stop. What must hold: a page that holds something is in the answer;
//! others may be, also such as are beyond the end of the file. How it fails: what cannot be asked is there.

use crate::error::TraceError;
use crate::inject::live_thread::{BUFFERS, LiveThread, MAX_ROWS};
use crate::inject::stub::Row;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::InjectArea;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_sys::procfs::{self, Mapping};
use holdfast_sys::{memfd, procmem};
use std::fs::File;
use std::os::fd::AsFd;

/// So few pages are read without asking.
const FEW: u64 = (1 << 20) / PAGE_SIZE;
/// Bytes of answers at once, a byte for each page: what lies between the buffers and the frame, but for what a signal
/// may need below that.
const ROOM: u64 = 96 << 10;

/// A process that can be asked.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Its id.
    pub pid: i32,
    /// Any thread of it.
    pub live: i32,
    /// The thread that runs injected calls; stopped at its marker afterwards.
    pub host: &'a LiveThread,
    /// Where they are run.
    pub area: &'a InjectArea,
}

/// Parts of mappings.
pub type Piece<'m> = (&'m Mapping, PageRun);

impl Asked<'_> {
    /// The pages of `pieces`, which lie in mappings of files in memory, that there are.
    ///
    /// # Errors
    /// As [`LiveThread::run`].
    pub fn touched(&self, pieces: &[Piece<'_>]) -> Result<PageSet, TraceError> {
        let all = pieces.iter().map(|(_, run)| *run).collect::<PageSet>();
        if all.pages().0 <= FEW {
            return Ok(all);
        }
        // Before and after: a page may go there meanwhile, or come from there.
        let before = self.swapped();
        let runs: Vec<PageRun> = pieces.iter().map(|(_, run)| *run).collect();
        let mut touched = self.in_core(&runs)?;
        for place in before.into_iter().chain(self.swapped()) {
            for (mapping, run) in pieces.iter().filter(|(mapping, _)| place.holds(mapping)) {
                touched = touched.union(&self.data(mapping, *run));
            }
        }
        Ok(touched)
    }

    /// Where something is in swap.
    fn swapped(&self) -> Vec<Place> {
        if !procfs::has_swap_in_use() {
            return Vec::new();
        }
        match procfs::swapped(self.pid, self.live) {
            Ok(found) => found.into_iter().map(|(start, end)| Place { start, end }).collect(),
            Err(_) => vec![Place { start: 0, end: u64::MAX }],
        }
    }

    /// Where the file has data; all of the run, if it cannot be asked.
    fn data(&self, mapping: &Mapping, run: PageRun) -> PageSet {
        let path = format!("/proc/{}/map_files/{:x}-{:x}", self.live, mapping.start, mapping.end);
        let by_file = || -> std::io::Result<PageSet> {
            let file = File::open(path)?;
            let by = mapping.start.wrapping_sub(mapping.offset);
            let (mut at, end) = (run.start.0.wrapping_sub(by), run.end().0.wrapping_sub(by));
            let mut found = PageSet::new();
            while let Some((from, to)) = memfd::next_data(file.as_fd(), at)?.filter(|(from, _)| *from < end) {
                let (from, to) = (from / PAGE_SIZE * PAGE_SIZE, to.next_multiple_of(PAGE_SIZE).min(end));
                found.insert(PageRun::between(Addr(from.wrapping_add(by)), Addr(to.wrapping_add(by))));
                at = to;
            }
            Ok(found)
        };
        by_file().unwrap_or_else(|_| PageSet::from(vec![run]))
    }

    /// What is in memory.
    fn in_core(&self, runs: &[PageRun]) -> Result<PageSet, TraceError> {
        let mut found = PageSet::new();
        let (mut batch, mut room) = (Vec::new(), ROOM);
        for run in runs {
            let mut rest = *run;
            while rest.pages.0 > 0 {
                if room == 0 || batch.len() == MAX_ROWS {
                    found.append(self.ask(&batch)?);
                    (batch, room) = (Vec::new(), ROOM);
                }
                let now = PageRun { start: rest.start, pages: PageCount(rest.pages.0.min(room)) };
                rest = PageRun::between(now.end(), rest.end());
                room -= now.pages.0;
                batch.push(now);
            }
        }
        found.append(self.ask(&batch)?);
        Ok(found)
    }

    /// One table of calls.
    fn ask(&self, batch: &[PageRun]) -> Result<PageSet, TraceError> {
        let buffer = self.area.scratch.0 + BUFFERS;
        let mut at = buffer;
        let row = |run: &PageRun| {
            let row = Row::new(libc::SYS_mincore, &[run.start.0, run.pages.bytes(), at]);
            at += run.pages.0;
            row
        };
        let rows: Vec<Row> = batch.iter().map(row).collect();
        let results = self.host.run(self.area, &rows, &mut |_| Ok(()))?;
        let mut bytes = vec![0; usize::try_from(at - buffer).unwrap_or(0)];
        procmem::read(self.host.thread.tid, buffer, &mut bytes)?;
        let (mut found, mut rest) = (PageSet::new(), &bytes[..]);
        for (run, result) in batch.iter().zip(results) {
            let (own, later) = rest.split_at(usize::try_from(run.pages.0).unwrap_or(usize::MAX));
            rest = later;
            match result {
                0 => pages_of(run.start, own).for_each(|run| found.insert(run)),
                _ => found.insert(*run),
            }
        }
        Ok(found)
    }
}

/// A range of addresses.
#[derive(Clone, Copy)]
struct Place {
    start: u64,
    end: u64,
}

impl Place {
    fn holds(&self, mapping: &Mapping) -> bool {
        self.start <= mapping.start && mapping.end <= self.end
    }
}

/// What mincore(2) has told of the pages from `start` on.
fn pages_of(start: Addr, told: &[u8]) -> impl Iterator<Item = PageRun> {
    let mut at = 0;
    let runs = told.chunk_by(|one, next| (one ^ next) & 1 == 0).map(move |same| {
        let run = PageRun { start: Addr(start.0 + at * PAGE_SIZE), pages: PageCount(same.len() as u64) };
        at += run.pages.0;
        (run, same.first().is_some_and(|page| page & 1 != 0))
    });
    runs.filter_map(|(run, is_there)| is_there.then_some(run))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lowest_bit_of_an_answer_tells() {
        let page =
            |first: u64, pages: u64| PageRun { start: Addr(first * PAGE_SIZE), pages: PageCount(pages) };
        let found: Vec<PageRun> = pages_of(Addr(7 * PAGE_SIZE), &[1, 3, 0, 2, 0, 1]).collect();
        assert_eq!(found, [page(7, 2), page(12, 1)]);
        assert_eq!(pages_of(Addr(0), &[]).count(), 0);
    }
}
