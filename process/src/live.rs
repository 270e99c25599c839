//! Pages of the running program, read before the stop (pre-copy).
//!
//! Nothing is torn by it: the tracker was armed before, so a page that is written while or after it is read here is
//! reported as written at the cut, and stored again. What cannot be read (it was unmapped meanwhile) is left out.

use holdfast_image::pages::{PageRun, PageSource, TakeList};
use holdfast_image::set::PageSet;
use holdfast_image::{Addr, PageCount};
use holdfast_sys::procmem;
use std::io;

/// See the head of the file. Used by the agent's pre-copy.
#[derive(Debug)]
pub struct LivePages {
    pid: i32,
    runs: TakeList,
}

impl LivePages {
    /// These pages of a process.
    pub fn new(pid: i32, pages: PageSet) -> LivePages {
        LivePages { pid, runs: TakeList::new(pages.into_runs()) }
    }
}

impl PageSource for LivePages {
    fn pages(&self) -> PageCount {
        self.runs.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.runs.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<bool> {
        Ok(procmem::read(self.pid, start.0, buffer).is_ok())
    }
    fn release(&self, _: PageRun) {}
}
