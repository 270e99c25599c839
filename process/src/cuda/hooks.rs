//! What libholdfast's CUDA hooks have seen in a process, and their gate (`docs/cuda-hooks.md`).
//!
//! Called by the agent: before the driver is asked ([`Hooks::refusals`]), around all that it does ([`Closed`]), and at
//! a restart, whose image was cut with the gate closed ([`Hooks::open`]). Invariants: of the process's memory only the
//! agent's words are written ([`CudaArea`]); a gate that was closed is opened, whatever fails in between, and by the
//! library itself if the agent dies. What is read is another process's, and may be anything: it ends in words of a
//! message, and nothing is computed with it unchecked.
//! Fails by: what is inside ([`Closed::close`]); a process that has ended is no failure.

use crate::refuse;
use crate::stop::interrupt::has_ended;
use holdfast_abi::{CudaArea, CudaKind, CudaThread, SharedPage};
use holdfast_image::record::InjectArea;
use holdfast_image::refusal::Refusal;
use holdfast_sys::procmem;
use std::fmt;
use std::io;
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

/// Most of the library's symbols, and of one of them, that is read: bytes.
const MAX_SYMBOLS: usize = 1 << 16;
const MAX_SYMBOL: usize = 100;
/// Time between two looks at the threads.
const LOOK: Duration = Duration::from_micros(200);

/// The hooks in one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hooks {
    pid: i32,
    area: u64,
}

/// A call of the driver that is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inside {
    /// The process.
    pub pid: i32,
    /// The thread's id when it first called the driver; 0: one of several that are not counted one by one.
    pub thread: u64,
    /// The function, as the driver exports it. Empty: not known.
    pub function: String,
}

impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = refuse::name_of(self.pid);
        match self.thread {
            0 => write!(f, "a thread of process {} ({name}) is in ", self.pid)?,
            thread => write!(f, "thread {thread} of process {} ({name}) is in ", self.pid)?,
        }
        f.write_str(if self.function.is_empty() { "a function of CUDA" } else { &self.function })
    }
}

impl Hooks {
    /// Those of a process; none: libholdfast is not in it, or it has not asked for a function of the driver.
    pub fn of(pid: i32, area: &InjectArea) -> Option<Hooks> {
        if area.shared.0 == 0 {
            return None;
        }
        let found = procmem::read_u64(pid, area.shared.0 + SharedPage::CUDA_AREA as u64).ok()?;
        (found != 0).then_some(Hooks { pid, area: found })
    }

    /// Those of a process whose words are there.
    #[cfg(test)]
    pub(super) fn at(pid: i32, area: u64) -> Hooks {
        Hooks { pid, area }
    }

    /// The process, and where the words are in it.
    pub(super) fn place(&self) -> (i32, u64) {
        (self.pid, self.area)
    }

    fn words<const COUNT: usize>(&self, offset: usize) -> io::Result<[u64; COUNT]> {
        let mut bytes = vec![0; COUNT * 8];
        procmem::read(self.pid, self.area + offset as u64, &mut bytes)?;
        let mut words = [0; COUNT];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(words)
    }

    /// Whether the process has initialised the driver. What cannot be read of one that lives has: its driver is asked.
    pub fn have_begun(&self) -> bool {
        self.words::<1>(CudaArea::INITIALISED).map_or_else(|_| !has_ended(self.pid), |[word]| word != 0)
    }

    /// What forbids a checkpoint now. `shares`: the driver checkpoints memory that several processes have (610 on,
    /// README of NVIDIA's cuda-checkpoint).
    pub fn refusals(&self, shares: bool) -> Vec<Refusal> {
        // What has ended forbids nothing.
        let Ok(counts) = self.words::<{ CudaKind::ROOM }>(CudaArea::COUNTS) else { return Vec::new() };
        let shared = |kind| matches!(kind, CudaKind::IPC | CudaKind::EXPORTED | CudaKind::IMPORTED);
        let blocking = CudaKind::ALL.iter().filter(|(kind, _, blocks)| *blocks && !(shares && shared(*kind)));
        blocking
            .filter_map(|&(kind, word, _)| {
                let count = *counts.get(usize::from(kind))?;
                (count != 0).then(|| refuse::process(self.pid, format!("{count} {word}: {}", why(kind))))
            })
            .collect()
    }

    /// The process, and how many executable graphs it has.
    pub fn graphs(&self) -> (i32, u64) {
        let counts = self.words::<{ CudaKind::ROOM }>(CudaArea::COUNTS).unwrap_or([0; CudaKind::ROOM]);
        (self.pid, counts.get(usize::from(CudaKind::GRAPH)).copied().unwrap_or(0))
    }

    /// Bytes that the program has asked for on devices, of libholdfast or of the driver.
    pub(super) fn device_bytes(&self) -> u64 {
        let bytes = self.words::<{ CudaKind::ROOM }>(CudaArea::BYTES).unwrap_or([0; CudaKind::ROOM]);
        let kinds = [CudaKind::DEVICE, CudaKind::POOLED, CudaKind::PHYSICAL, CudaKind::ARRAY];
        kinds
            .iter()
            .filter_map(|kind| bytes.get(usize::from(*kind)))
            .fold(0, |sum, more| sum.saturating_add(*more))
    }

    /// Closes the gate, or opens it.
    fn set(&self, closed: u32) -> io::Result<()> {
        // With the heartbeat: one word of 8 bytes, which the kernel copies at once.
        let word = u64::from(closed);
        procmem::write(self.pid, self.area + CudaArea::CLOSED as u64, &word.to_le_bytes())
    }

    /// Opens the gate. What waits there goes on within a millisecond.
    pub fn open(&self) {
        // A process that has ended needs none.
        let _ = self.set(0);
    }

    /// The first call that is under way.
    ///
    /// # Errors
    /// The process has ended.
    fn inside(&self) -> io::Result<Option<Inside>> {
        let [threads, count] = self.words::<2>(CudaArea::THREADS)?;
        let [uncounted] = self.words::<1>(CudaArea::UNCOUNTED_INSIDE)?;
        let count = usize::try_from(count).unwrap_or(0).min(CudaArea::MAX_THREADS);
        let mut bytes = vec![0; count * CudaArea::THREAD_ENTRY];
        if threads != 0 {
            procmem::read(self.pid, threads, &mut bytes)?;
        }
        let word = |entry: &[u8], offset: usize| {
            entry.get(offset..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_le_bytes(*word))
        };
        for entry in bytes.chunks_exact(CudaArea::THREAD_ENTRY) {
            let row = word(entry, CudaThread::INSIDE);
            if row != 0 {
                let function = self.symbol(row - 1);
                return Ok(Some(Inside { pid: self.pid, thread: word(entry, CudaThread::ID), function }));
            }
        }
        Ok((uncounted != 0).then_some(Inside { pid: self.pid, thread: 0, function: String::new() }))
    }

    /// The symbol of a row of the library's table of functions; empty: not known.
    pub(super) fn symbol(&self, row: u64) -> String {
        let Ok([start, len]) = self.words::<2>(CudaArea::SYMBOLS) else { return String::new() };
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0).min(MAX_SYMBOLS)];
        if start == 0 || procmem::read(self.pid, start, &mut bytes).is_err() {
            return String::new();
        }
        let row = usize::try_from(row).unwrap_or(usize::MAX);
        let text = bytes.split(|&byte| byte == 0).nth(row).unwrap_or_default();
        let is_name =
            text.len() <= MAX_SYMBOL && text.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        if is_name { String::from_utf8_lossy(text).into_owned() } else { String::new() }
    }
}

/// What to do about an object that forbids a checkpoint.
fn why(kind: u8) -> &'static str {
    match kind {
        CudaKind::CAPTURE => "a checkpoint in the middle of a capture would end it; try again",
        CudaKind::MULTICAST => "the driver's checkpoint hangs where there is one (NCCL: NCCL_NVLS_ENABLE=0)",
        CudaKind::PEER => {
            "the driver does not checkpoint mappings between devices (NCCL: NCCL_P2P_DISABLE=1)"
        }
        CudaKind::MANAGED | CudaKind::MANAGED_VARIABLE => "no driver checkpoints managed memory",
        CudaKind::IPC | CudaKind::EXPORTED | CudaKind::IMPORTED => {
            "memory that several processes have is not checkpointed"
        }
        _ => "the driver does not checkpoint it",
    }
}

/// Gates that are closed, with nothing inside. Dropped: open.
#[derive(Debug)]
pub struct Closed(Vec<Hooks>);

impl Closed {
    /// Closes the gates of these processes, and waits until nothing is inside any of them, for `limit` at most.
    ///
    /// # Errors
    /// What is inside then; all gates are open again.
    pub fn close(hooks: Vec<Hooks>, limit: Duration) -> Result<Closed, Inside> {
        let start = Instant::now();
        let closed = Closed(hooks);
        for one in &closed.0 {
            // A process that has ended calls nothing.
            let _ = one.set(CudaArea::BY_AGENT);
        }
        // The gates are marked before the threads are looked at (cuda-hooks/src/gate.rs).
        fence(Ordering::SeqCst);
        for one in &closed.0 {
            while let Ok(Some(inside)) = one.inside() {
                if start.elapsed() > limit {
                    return Err(inside);
                }
                thread::sleep(LOOK);
            }
        }
        Ok(closed)
    }

    /// Gates that are closed already.
    pub(super) fn are(hooks: Vec<Hooks>) -> Closed {
        Closed(hooks)
    }

    /// Whose they are.
    pub fn hooks(&self) -> &[Hooks] {
        &self.0
    }

    /// The gate of this process is opened from elsewhere.
    pub(super) fn forget(&mut self, pid: i32) {
        self.0.retain(|hooks| hooks.pid != pid);
    }

    /// They stay closed: the processes are about to end.
    pub(super) fn ending(mut self) {
        self.0.clear();
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.iter().for_each(Hooks::open);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    /// An area in this very process, as libholdfast would have it.
    fn own() -> (&'static CudaArea, &'static CudaThread, Hooks) {
        let area: &CudaArea = Box::leak(Box::new(CudaArea::new()));
        let entry = Box::leak(Box::new(CudaThread::default()));
        area.threads.store(std::ptr::from_ref(entry).addr() as u64, SeqCst);
        area.thread_count.store(1, SeqCst);
        let pid = i32::try_from(std::process::id()).unwrap();
        (area, entry, Hooks { pid, area: std::ptr::from_ref(area).addr() as u64 })
    }

    #[test]
    fn a_gate_is_closed_and_opened_and_what_is_inside_is_named() {
        let (area, entry, hooks) = own();
        let closed = Closed::close(vec![hooks], Duration::ZERO).unwrap();
        assert_eq!(area.closed.load(SeqCst), CudaArea::BY_AGENT);
        drop(closed);
        assert_eq!(area.closed.load(SeqCst), 0);
        entry.inside.store(7, SeqCst);
        entry.id.store(4242, SeqCst);
        let inside = Closed::close(vec![hooks], Duration::ZERO).unwrap_err();
        assert!(inside.to_string().starts_with("thread 4242 of process "), "{inside}");
        assert!(inside.to_string().ends_with(" is in a function of CUDA"), "{inside}");
        // What is no name, and what cannot be read.
        let symbols = b"one\0two\0\0\x1b[31m\0four\0five\0six_ptsz\0more\0";
        area.symbols_len.store(symbols.len() as u64, SeqCst);
        for (start, row, name) in [
            (symbols.as_ptr().addr() as u64, 7, "six_ptsz"),
            (symbols.as_ptr().addr() as u64, 4, ""),
            (symbols.as_ptr().addr() as u64, 99, ""),
            (8, 1, ""),
        ] {
            area.symbols.store(start, SeqCst);
            entry.inside.store(row, SeqCst);
            assert_eq!(Closed::close(vec![hooks], Duration::ZERO).unwrap_err().function, name);
        }
        assert_eq!(area.closed.load(SeqCst), 0, "it is open again");
        entry.inside.store(0, SeqCst);
        area.uncounted_inside.store(1, SeqCst);
        assert_eq!(Closed::close(vec![hooks], Duration::ZERO).unwrap_err().thread, 0);
    }

    #[test]
    fn what_forbids_a_checkpoint_is_named_with_its_count() {
        let (area, _, hooks) = own();
        let of = |kind: u8| &area.counts[usize::from(kind)];
        of(CudaKind::DEVICE).store(9, SeqCst);
        assert!(hooks.refusals(false).is_empty());
        of(CudaKind::MULTICAST).store(2, SeqCst);
        of(CudaKind::IPC).store(1, SeqCst);
        let lines: Vec<String> = hooks.refusals(false).iter().map(|one| one.reason.clone()).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].starts_with("2 multicast objects: "), "{lines:?}");
        assert_eq!(
            hooks.refusals(true).len(),
            1,
            "memory of several processes is no obstacle to newer drivers"
        );
    }

    #[test]
    fn a_process_that_has_ended_forbids_nothing() {
        let gone = Hooks { pid: i32::MAX, area: 4096 };
        assert!(gone.refusals(false).is_empty());
        assert!(Closed::close(vec![gone], Duration::ZERO).is_ok());
    }

    #[test]
    fn a_count_or_an_address_that_cannot_be_is_not_followed() {
        let (area, _, hooks) = own();
        area.thread_count.store(u64::MAX, SeqCst);
        area.threads.store(8, SeqCst);
        assert!(Closed::close(vec![hooks], Duration::ZERO).is_ok());
        assert_eq!(area.closed.load(SeqCst), 0);
    }
}
