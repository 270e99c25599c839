//! The pages of one instant, handed to the store.
//!
//! [`FrozenMemory`] reads from the frozen copy (or, held, from the stopped program), and from buffers for what a clone
//! does not freeze: shared memory and ranges that the program keeps out of its children. Dropping it ends the copy,
//! or lets the held program run on.
//!
//! Runs in: the agent's flush workers (read, release) and whoever owns it (drop).

use crate::tracer::Command;
use crossbeam_channel::Sender;
use holdfast_image::pages::{PageRun, PageSource, TakeList};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_sys::procmem;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Pages copied inside the stop.
#[derive(Debug, Default)]
pub struct SavedPages {
    pieces: Vec<(PageRun, Vec<u8>)>,
}

impl SavedPages {
    /// Adds a piece; `bytes` are whole pages.
    pub fn add(&mut self, run: PageRun, bytes: Vec<u8>) {
        self.pieces.push((run, bytes));
    }
    /// All runs.
    pub fn runs(&self) -> impl Iterator<Item = PageRun> {
        self.pieces.iter().map(|(run, _)| *run)
    }
    /// Must be called before the first [`SavedPages::read`].
    pub fn sort(&mut self) {
        self.pieces.sort_unstable_by_key(|(run, _)| *run);
    }
    /// Fills `buffer` if the pages from `start` on are here.
    fn read(&self, start: Addr, buffer: &mut [u8]) -> bool {
        let index = self.pieces.partition_point(|(run, _)| run.start <= start);
        let Some((run, bytes)) = index.checked_sub(1).map(|i| &self.pieces[i]) else { return false };
        let offset = usize::try_from(start.0 - run.start.0).unwrap_or(usize::MAX);
        match offset.checked_add(buffer.len()).and_then(|end| bytes.get(offset..end)) {
            Some(part) => {
                buffer.copy_from_slice(part);
                true
            }
            None => false,
        }
    }
}

/// See the head of the file.
#[derive(Debug)]
pub struct FrozenMemory {
    pub(crate) runs: TakeList,
    pub(crate) saved: SavedPages,
    /// Whose memory is read: the copy, or the held program.
    pub(crate) pid: i32,
    /// `/proc/PID/mem`, which reads what its owner may not (PROT_NONE).
    pub(crate) forced: File,
    pub(crate) held: bool,
    pub(crate) tracer: Sender<Command>,
    pub(crate) ended: bool,
}

impl FrozenMemory {
    /// With a held program: ends it by SIGKILL instead of letting it run on.
    ///
    /// # Errors
    /// The tracer thread is gone.
    pub fn kill_held(mut self) -> io::Result<()> {
        self.ended = true;
        self.tracer
            .send(Command::End { kill: true })
            .map_err(|_| io::Error::other("the tracer thread is gone"))
    }
    /// Whether the program stands still until this is dropped.
    pub fn is_held(&self) -> bool {
        self.held
    }
}

impl PageSource for FrozenMemory {
    fn pages(&self) -> PageCount {
        self.runs.pages()
    }

    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.runs.take(most, into);
    }

    fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<bool> {
        debug_assert!(buffer.len().is_multiple_of(PAGE_SIZE as usize));
        if self.saved.read(start, buffer) {
            return Ok(true);
        }
        match procmem::read(self.pid, start.0, buffer) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                Err(io::Error::other("the frozen copy of the program was killed"))
            }
            // Not readable for the program itself, or partly so.
            Err(_) => self.forced.read_exact_at(buffer, start.0).map(|()| true).map_err(|error| {
                io::Error::other(format!(
                    "reading {} bytes at {start} of the frozen copy: {error}",
                    buffer.len()
                ))
            }),
        }
    }

    fn release(&self, run: PageRun) {
        if !self.held {
            let _ = self.tracer.send(Command::Release(run));
        }
    }
}

impl Drop for FrozenMemory {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.tracer.send(Command::End { kill: false });
        }
    }
}
