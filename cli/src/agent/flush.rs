//! Where the flush takes its pages from: the memory of the instant, in the order of the queue, with word of every page
//! that is stored to the watcher; then device memory, of which no copies are made when the program writes.
//!
//! Runs in: the flush workers. Fails by: an error of the frozen memory, which fails the image.

use super::kept::TakenMemory;
use super::write_monitor::WriteMonitor;
use holdfast_cuda_kernels::chunk::CHUNK;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{PageError, PageRun, PageSource, SourceCodec, TakeList};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_pager::FlushQueue;
use holdfast_process::FrozenMemory;

/// Pages of a chunk of device memory.
const CHUNK_PAGES: u64 = CHUNK / PAGE_SIZE;

/// Makes zero what of a buffer, whose first byte is at `start`, is in a set.
fn blank(set: &PageSet, start: Addr, buffer: &mut [u8]) {
    let pages = (buffer.len() as u64).div_ceil(PAGE_SIZE);
    for run in set.touching(PageRun { start, pages: PageCount(pages) }) {
        let at = |address: u64| usize::try_from(address.saturating_sub(start.0)).unwrap_or(usize::MAX);
        let (from, to) = (at(run.start.0), at(run.end().0).min(buffer.len()));
        if let Some(part) = buffer.get_mut(from..to) {
            part.fill(0);
        }
    }
}

/// See the head of the file.
pub struct FlushSource<'a> {
    /// What is read.
    pub memory: &'a FrozenMemory,
    /// Device memory that a keeper has.
    pub kept: Option<&'a TakenMemory>,
    /// What is next.
    pub queue: &'a FlushQueue,
    /// And last: device memory, in runs of whole chunks but for the last ones.
    pub devices: TakeList,
    /// Who counts the copies.
    pub monitor: &'a WriteMonitor,
    /// Pages that are zero in the image, whatever they hold.
    pub blank: &'a PageSet,
    /// There are several processes.
    pub several: bool,
}

impl PageSource for FlushSource<'_> {
    fn pages(&self) -> PageCount {
        PageCount(self.queue.pages().0 + self.devices.pages().0)
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        let before = into.len();
        self.queue.take(most, into);
        if into.len() == before {
            // What is cut is not compressed on its device.
            let whole = most.0 - most.0 % CHUNK_PAGES;
            self.devices.take(PageCount(if whole > 0 { whole } else { most.0 }), into);
        }
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        let of_devices = self.kept.map_or(Ok(false), |kept| kept.read(start, buffer))?;
        if !of_devices {
            self.memory.read(start, buffer)?;
            blank(self.blank, start, buffer);
        }
        Ok(true)
    }
    fn release(&self, run: PageRun) {
        if let Some(kept) = self.kept {
            kept.stored(run);
        }
        self.memory.release(run);
        self.monitor.stored(run);
    }
    fn make_way(&self, rest: &mut Vec<PageRun>) -> bool {
        self.queue.make_way(rest)
    }
    fn is_urgent(&self) -> bool {
        self.monitor.is_urgent()
    }
    fn has_several(&self) -> bool {
        self.several
    }
    fn packable(&self, runs: &mut Vec<PageRun>) -> Vec<PageRun> {
        self.kept.map_or_else(Vec::new, |kept| kept.packable(runs))
    }
    fn read_packed(
        &self,
        units: &[PageRun],
        codec: SourceCodec,
        into: &mut Vec<u8>,
    ) -> Result<Vec<usize>, PageError> {
        self.kept.map_or(Ok(Vec::new()), |kept| kept.read_packed(units, codec, into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_the_set_is_zero() {
        let page = |number: u64| Addr(number * PAGE_SIZE);
        let set: PageSet = [(1, 1), (4, 2)]
            .map(|(from, pages)| PageRun { start: page(from), pages: PageCount(pages) })
            .into_iter()
            .collect();
        let mut buffer = vec![7; 5 * PAGE_SIZE as usize];
        blank(&set, page(1), &mut buffer);
        let zero: Vec<bool> =
            buffer.chunks(PAGE_SIZE as usize).map(|page| page.iter().all(|byte| *byte == 0)).collect();
        assert_eq!(zero, [true, false, false, true, true]);
        assert!(buffer[PAGE_SIZE as usize..3 * PAGE_SIZE as usize].iter().all(|byte| *byte == 7));
    }
}
