//! What each thread keeps: its entry in the table of threads, and whether it works for the hooks themselves.
//!
//! Runs in: the host program, any thread. Thread-local storage of the initial-exec model by hand, as in
//! `preload/src/guard/thread.rs`: one instruction away, no allocation, zero in a new thread.
//!
//! # Safety
//! The block belongs to the calling thread.
#![allow(unsafe_code)]

use crate::{area, gate, platform};
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use holdfast_abi::CudaThread;

global_asm!(
    ".pushsection .tbss.holdfast_cuda_thread,\"awT\",@nobits",
    ".p2align 3",
    ".hidden holdfast_cuda_thread",
    ".globl holdfast_cuda_thread",
    ".type holdfast_cuda_thread,@object",
    ".size holdfast_cuda_thread, {len}",
    "holdfast_cuda_thread: .zero {len}",
    ".popsection",
    len = const size_of::<Thread>(),
);

/// The block of a thread.
#[repr(C)]
struct Thread {
    /// Address of its entry; 0: none yet; [`Thread::UNCOUNTED`]: the table is full.
    entry: AtomicUsize,
    /// Not 0: its calls are the hooks' own, or pass for another reason.
    bypass: AtomicUsize,
}

impl Thread {
    const UNCOUNTED: usize = 1;
}

/// The block of the calling thread.
#[inline(always)]
fn own() -> &'static Thread {
    let place: usize;
    // SAFETY: the word at the fs base is its own address (System V ABI, AMD64 supplement, thread-local storage).
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + holdfast_cuda_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) place, options(pure, readonly, nostack)
        );
    }
    // SAFETY: aligned words of this thread, zero at its start, which are atomics; nothing keeps the reference longer
    // than the thread lives.
    unsafe { &*core::ptr::with_exposed_provenance::<Thread>(place) }
}

/// Where the thread is: unique among those that live.
fn fs_base() -> u64 {
    let base: u64;
    // SAFETY: as in `own`.
    unsafe { asm!("mov {}, qword ptr fs:[0]", out(reg) base, options(pure, readonly, nostack)) };
    base
}

/// The entry of the calling thread, if it has one and is not about the hooks' own work.
#[inline(always)]
pub fn entry() -> Option<&'static CudaThread> {
    let own = own();
    let entry = own.entry.load(Relaxed);
    if entry <= Thread::UNCOUNTED || own.bypass.load(Relaxed) != 0 {
        return None;
    }
    // SAFETY: the address of an entry of the table, which is never unmapped.
    Some(unsafe { &*core::ptr::with_exposed_provenance::<CudaThread>(entry) })
}

/// The entry of the calling thread, claimed if it has none; `None`: the table is full, or there is none.
#[cold]
pub fn claim() -> Option<&'static CudaThread> {
    let own = own();
    if own.entry.load(Relaxed) == 0 {
        // None yet where the driver was not found: the next call looks again.
        let table = area::threads()?;
        let found = gate::claim(area::area(), table, fs_base(), platform::thread_id());
        let entry = found.map_or(Thread::UNCOUNTED, |entry| core::ptr::from_ref(entry).expose_provenance());
        own.entry.store(entry, Relaxed);
    }
    let entry = own.entry.load(Relaxed);
    // SAFETY: as in `entry`.
    (entry > Thread::UNCOUNTED).then(|| unsafe { &*core::ptr::with_exposed_provenance::<CudaThread>(entry) })
}

/// Whether calls of this thread pass untouched.
pub fn passes() -> bool {
    own().bypass.load(Relaxed) != 0
}

/// Runs `work`, which is the hooks' own: calls of this thread pass untouched meanwhile. Nothing is undone if it is left
/// by the end of the thread: there is no landing pad in this crate (`wrappers.rs`).
pub fn bypass<T>(work: impl FnOnce() -> T) -> T {
    let bypass = &own().bypass;
    bypass.store(bypass.load(Relaxed) + 1, Relaxed);
    let result = work();
    bypass.store(bypass.load(Relaxed).saturating_sub(1), Relaxed);
    result
}

/// In the child of a fork: its only thread has no entry.
pub fn forget() {
    own().entry.store(0, Relaxed);
}
