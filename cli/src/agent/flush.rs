//! Where the flush takes its pages from: the memory of the instant, in the order of the queue, with word of every page
//! that is stored to the watcher.
//!
//! Runs in: the flush workers. Fails by: an error of the frozen memory, which fails the image.

use super::kept::TakenMemory;
use super::write_monitor::WriteMonitor;
use holdfast_image::pages::{PageError, PageRun, PageSource};
use holdfast_image::{Addr, PageCount};
use holdfast_pager::FlushQueue;
use holdfast_process::FrozenMemory;

/// See the head of the file.
pub struct FlushSource<'a> {
    /// What is read.
    pub memory: &'a FrozenMemory,
    /// Device memory that a keeper has.
    pub kept: Option<&'a TakenMemory>,
    /// What is next.
    pub queue: &'a FlushQueue,
    /// Who counts the copies.
    pub monitor: &'a WriteMonitor,
    /// There are several processes.
    pub several: bool,
}

impl PageSource for FlushSource<'_> {
    fn pages(&self) -> PageCount {
        self.queue.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.queue.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        let of_devices = self.kept.map_or(Ok(false), |kept| kept.read(start, buffer))?;
        if !of_devices {
            self.memory.read(start, buffer)?;
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
    fn is_urgent(&self) -> bool {
        self.monitor.is_urgent()
    }
    fn has_several(&self) -> bool {
        self.several
    }
}
