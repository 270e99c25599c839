//! The pages of one instant, handed to the store.
//!
//! [`FrozenMemory`] reads from the frozen copy (or, held, from the stopped program), from buffers filled inside the
//! stop (engine copy, and what a clone does not freeze: shared memory and ranges that the program keeps out of its
//! children), from segment files that the program has mapped, and from memory that the running program is kept from
//! changing (engine slots). Dropping it ends the copy, lets the held program run on, or lifts the guard.
//!
//! Runs in: the agent's flush workers (read, release) and its owner (drop).

use crate::freeze::guard::Guard;
use crate::freeze::tracer_queue::TracerQueue;
use crate::mapped_files::MappedFiles;
use crate::thread_pool;
use holdfast_image::pages::{PageRun, StoreMapping};
use holdfast_image::{Addr, PAGE_SIZE, address_space};
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Buffers larger than this are not kept for the next stop, bytes.
const KEPT_LEN: usize = 256 << 20;

/// From so many pages on several threads copy: the program is stopped and leaves them its processors.
const MUCH: u64 = 1024;
/// Shares of each: one thread may be slower than the others.
const SHARES: usize = 4;

/// Buffers whose memory the kernel has given already: filling fresh memory inside a stop would cost a fault per page.
/// One for memory and one for files, the larger one last.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const SPARES: usize = 2;

fn spare() -> MutexGuard<'static, Vec<Vec<u8>>> {
    SPARE.lock()
}

/// Pages copied inside the stop.
#[derive(Debug, Default)]
pub struct SavedPages {
    /// Runs and where their bytes begin in `bytes`.
    pieces: Vec<(PageRun, usize)>,
    bytes: Vec<u8>,
    used: usize,
}

impl SavedPages {
    /// Makes a spare buffer ready. Before the stop.
    pub fn warm(len: usize) {
        let mut spare = spare();
        match spare.last_mut() {
            Some(last) if last.len() < len => last.resize(len, 1),
            Some(_) => {}
            // Not zeros: they would be promised by the kernel, and brought at the first write.
            None => spare.push(vec![1; len]),
        }
    }
    /// Empty, with the largest spare buffer.
    pub fn new() -> SavedPages {
        let bytes = spare().pop().unwrap_or_default();
        SavedPages { bytes, pieces: Vec::new(), used: 0 }
    }
    /// Empty, with the smallest spare buffer that has so much room, if there is one.
    pub fn with_capacity(len: usize) -> SavedPages {
        let mut spare = spare();
        let fitting = spare.iter().position(|spare| spare.len() >= len);
        let bytes = fitting.map(|at| spare.remove(at)).unwrap_or_default();
        SavedPages { bytes, pieces: Vec::new(), used: 0 }
    }
    /// Makes room for `len` bytes more at once.
    pub fn reserve(&mut self, len: u64) {
        let end = self.used.saturating_add(usize::try_from(len).unwrap_or(0));
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
    }
    /// The same before the stop: with memory that the kernel has given.
    pub fn prepare(&mut self, len: u64) {
        let end = self.used.saturating_add(usize::try_from(len).unwrap_or(0));
        if self.bytes.len() < end {
            // Not zeros: see `warm`.
            self.bytes.resize(end, 1);
        }
    }
    /// Adds a run, whose bytes `fill` brings.
    ///
    /// # Errors
    /// Those of `fill`; nothing is added then.
    pub fn add(&mut self, run: PageRun, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> io::Result<()> {
        let len = usize::try_from(run.pages.bytes()).unwrap_or(usize::MAX);
        let end = self.used.checked_add(len).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_multiple_of(1 << 20), 0);
        }
        fill(&mut self.bytes[self.used..end])?;
        self.pieces.push((run, self.used));
        self.used = end;
        Ok(())
    }
    /// Adds many runs. `fill` brings the bytes of some of them, one after the other; it is called from several threads
    /// if there is much to do.
    ///
    /// # Errors
    /// Those of `fill`; nothing is added then.
    pub fn add_all(
        &mut self,
        runs: &[PageRun],
        fill: impl Fn(&[PageRun], &mut [u8]) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let pages: u64 = runs.iter().map(|run| run.pages.0).sum();
        self.reserve(pages.saturating_mul(PAGE_SIZE));
        let len = |runs: &[PageRun]| -> usize {
            usize::try_from(runs.iter().map(|run| run.pages.bytes()).sum::<u64>()).unwrap_or(usize::MAX)
        };
        let end = self.used + len(runs);
        let workers = if pages < MUCH { 1 } else { thread_pool::workers() };
        let share = if workers > 1 { runs.len().div_ceil(workers * SHARES) } else { runs.len() };
        let mut rest = &mut self.bytes[self.used..end];
        let mut shares = Vec::new();
        for share in runs.chunks(share.max(1)) {
            let (own, later) = rest.split_at_mut(len(share));
            shares.push((share, Mutex::new(own)));
            rest = later;
        }
        thread_pool::map(&shares, workers, |(share, own)| fill(share, &mut own.lock()))
            .into_iter()
            .collect::<io::Result<()>>()?;
        for run in runs {
            self.pieces.push((*run, self.used));
            self.used += len(std::slice::from_ref(run));
        }
        Ok(())
    }
    /// Forgets what was added inside `place`.
    pub fn remove(&mut self, place: PageRun) {
        self.pieces.retain(|(run, _)| run.end() <= place.start || run.start >= place.end());
    }
    /// Number of pieces so far.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }
    /// The runs that were added first.
    pub fn first(&self, pieces: usize) -> impl Iterator<Item = PageRun> {
        self.pieces.iter().take(pieces).map(|(run, _)| *run)
    }
    /// Must be called before the first [`SavedPages::part`].
    pub fn sort(&mut self) {
        self.pieces.sort_unstable_by_key(|(run, _)| *run);
    }
    /// The bytes from `start` on to the end of their run; or how many bytes are before the next run.
    fn part(&self, start: Addr) -> Result<&[u8], u64> {
        let index = self.pieces.partition_point(|(run, _)| run.end() <= start);
        let Some((run, at)) = self.pieces.get(index) else { return Err(u64::MAX) };
        if start < run.start {
            return Err(run.start.0 - start.0);
        }
        let skipped = usize::try_from(start.0 - run.start.0).unwrap_or(usize::MAX);
        let end = at + usize::try_from(run.pages.bytes()).unwrap_or(0);
        self.bytes.get(at.saturating_add(skipped)..end).ok_or(u64::MAX)
    }
}

impl Drop for SavedPages {
    fn drop(&mut self) {
        if (1..=KEPT_LEN).contains(&self.bytes.len()) {
            let mut spare = spare();
            spare.push(std::mem::take(&mut self.bytes));
            spare.sort_by_key(Vec::len);
            if spare.len() > SPARES {
                spare.remove(0);
            }
        }
    }
}

/// Where pages are read that were not copied inside the stop.
#[derive(Debug)]
pub(crate) struct Living {
    /// `/proc/PID/mem` of the copy, or the held program: it reads what its owner may not (PROT_NONE), and what is
    /// shared since a fork stays shared. process_vm_readv(2) would give the process pages of its own first (mm/gup.c,
    /// gup_must_unshare: it pins them).
    pub(crate) forced: File,
}

fn killed() -> io::Error {
    io::Error::other(
        "the kernel has killed the frozen copy of the program, because memory is short; the program runs on",
    )
}

impl Living {
    fn read(&self, start: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.forced.read_exact_at(buffer, start).map_err(|error| match error.kind() {
            // Its memory is gone (fs/proc/base.c, mem_rw).
            io::ErrorKind::UnexpectedEof => killed(),
            // It is just being taken from it: what is gone reads as no zeros (mm/oom_kill.c, __oom_reap_task_mm;
            // check_stable_address_space).
            _ if error.raw_os_error() == Some(libc::EIO) => killed(),
            _ => io::Error::other(format!(
                "reading {} bytes at {start:#x} of the frozen copy: {error}",
                buffer.len()
            )),
        })
    }
}

/// Pages of the program that lie in the store.
#[derive(Debug, Default)]
pub(crate) struct StoreFiles {
    mappings: Vec<StoreMapping>,
    files: Arc<MappedFiles>,
}

impl StoreFiles {
    pub(crate) fn new(mappings: Vec<StoreMapping>, files: Arc<MappedFiles>) -> StoreFiles {
        StoreFiles { mappings, files }
    }

    /// Reads from `start` on, as far as one mapping and the buffer reach; the number of bytes, 0 if none is there;
    /// or how many bytes are before the next mapping.
    fn read(&self, start: u64, buffer: &mut [u8]) -> io::Result<Result<usize, u64>> {
        let index = self.mappings.partition_point(|mapping| mapping.run.end().0 <= start);
        let Some(mapping) = self.mappings.get(index) else { return Ok(Err(u64::MAX)) };
        if start < mapping.run.start.0 {
            return Ok(Err(mapping.run.start.0 - start));
        }
        let here = usize::try_from(mapping.run.end().0 - start).unwrap_or(usize::MAX).min(buffer.len());
        let offset = mapping.offset + (start - mapping.run.start.0);
        self.files.read(mapping.from, offset, &mut buffer[..here])?;
        Ok(Ok(here))
    }
}

/// The memory of one process.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    pub(crate) saved: SavedPages,
    pub(crate) files: StoreFiles,
    /// `None`: everything was copied inside the stop.
    pub(crate) living: Option<Living>,
    /// Memory that the program is kept from changing.
    pub(crate) guard: Option<Arc<Guard>>,
}

impl OwnMemory {
    fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()> {
        let (mut at, mut rest) = (start, buffer);
        while !rest.is_empty() {
            let limit = match self.saved.part(at) {
                Ok(bytes) => {
                    let here = bytes.len().min(rest.len());
                    let (now, later) = rest.split_at_mut(here);
                    now.copy_from_slice(&bytes[..here]);
                    at = Addr(at.0 + here as u64);
                    rest = later;
                    continue;
                }
                Err(gap) => gap,
            };
            let here = usize::try_from(limit).unwrap_or(usize::MAX).min(rest.len());
            let (now, _) = rest.split_at_mut(here);
            let done = match self.files.read(at.0, now)? {
                Ok(done) => done,
                Err(gap) => {
                    let here = usize::try_from(gap).unwrap_or(usize::MAX).min(now.len());
                    if let Some(guard) = &self.guard {
                        guard.read(at, &mut now[..here])?;
                        at = Addr(at.0 + here as u64);
                        rest = rest.split_at_mut(here).1;
                        continue;
                    }
                    let living = self.living.as_ref().ok_or_else(|| {
                        io::Error::other(format!("the page at {at} was not copied inside the stop"))
                    })?;
                    living.read(at.0, &mut now[..here])?;
                    here
                }
            };
            at = Addr(at.0 + done as u64);
            rest = rest.split_at_mut(done).1;
        }
        Ok(())
    }
}

/// See the head of the file. Uses global addresses ([`holdfast_image::address_space`]).
#[derive(Debug)]
pub struct FrozenMemory {
    /// By space.
    pub(crate) members: Vec<(u32, OwnMemory)>,
    pub(crate) held: bool,
    pub(crate) tracer: Arc<dyn TracerQueue>,
    pub(crate) ended: bool,
}

impl FrozenMemory {
    /// With held programs: ends them by SIGKILL instead of letting them run on.
    ///
    /// # Errors
    /// The tracer thread is gone.
    pub fn kill_held(mut self) -> io::Result<()> {
        self.ended = true;
        if self.tracer.end(true) { Ok(()) } else { Err(io::Error::other("the tracer thread is gone")) }
    }
    /// Whether the programs are stopped until this is dropped.
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// With engine `slots`: the memory that is guarded, to be polled during the flush.
    pub fn guard(&self) -> Option<&Arc<Guard>> {
        self.members.first()?.1.guard.as_ref()
    }

    fn of(&self, space: u32) -> Option<&OwnMemory> {
        self.members.iter().find(|(own, _)| *own == space).map(|(_, memory)| memory)
    }

    /// Fills `buffer` with the pages from `start` on.
    ///
    /// # Errors
    /// A copy was killed, or a segment file cannot be read: the checkpoint must fail.
    pub fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()> {
        debug_assert!(buffer.len().is_multiple_of(PAGE_SIZE as usize));
        let (space, own) = address_space::split(start);
        let memory =
            self.of(space).ok_or_else(|| io::Error::other(format!("no process has the page {start}")))?;
        memory.read(own, buffer)
    }

    /// `run` is stored: the copy gives it back, so that later writes of the program to it cost no copy.
    pub fn release(&self, run: PageRun) {
        let (space, own) = address_space::split_run(run);
        let Some(memory) = self.of(space) else { return };
        if let Some(guard) = &memory.guard
            && let Err(error) = guard.release(own)
        {
            tracing::debug!(%error, "releasing guarded pages");
        }
        if memory.living.is_some() && !self.held {
            self.tracer.release(run);
        }
    }
}

impl Drop for FrozenMemory {
    fn drop(&mut self) {
        if !self.ended {
            self.tracer.end(false);
        }
    }
}
