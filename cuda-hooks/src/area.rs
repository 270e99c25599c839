//! The memory that the agent reads: the hooks' words, the tables of threads and of objects.
//!
//! Runs in: the host program. The words are static; the tables are reserved when the driver is found, once, and never
//! unmapped. Invariants: a program that does not ask for the driver touches none of it. A child made by fork has
//! nothing of it: CUDA does not work there (CUDA C++ Programming Guide, 3.2: a context of the parent cannot be used in
//! a child), and what the parent has made is not the child's.
//! Fails by: no tables where the kernel has no memory; then calls are counted together, and objects not at all.
//!
//! # Safety
//! The tables are reservations of their full length, of plain atomics, zero at first.
#![allow(unsafe_code)]

use crate::{platform, table, thread};
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use holdfast_abi::{CudaArea, CudaKind, CudaObject, CudaThread};

static AREA: CudaArea = CudaArea::new();
/// 0: the table of objects is free; else it is in use.
static LOCK: AtomicU32 = AtomicU32::new(0);

/// The words.
#[inline(always)]
pub fn area() -> &'static CudaArea {
    &AREA
}

/// Its address.
pub fn address() -> u64 {
    ptr::from_ref(&AREA).addr() as u64
}

/// Reserves the tables, if that has not happened yet, and tells the agent.
pub fn prepare() {
    reserve(&AREA.threads, CudaArea::MAX_THREADS * size_of::<CudaThread>());
    reserve(&AREA.objects, CudaArea::MAX_OBJECTS * size_of::<CudaObject>());
    let (symbols, len) = table::symbols();
    AREA.symbols.store(symbols, Relaxed);
    AREA.symbols_len.store(len, Relaxed);
    platform::announce(address());
}

fn reserve(place: &AtomicU64, len: usize) {
    if place.load(Acquire) == 0 {
        let start = platform::reserve(len);
        let mine = start.expose_provenance() as u64;
        // A thread that was faster: what was reserved in vain is addresses, and no memory.
        let _ = place.compare_exchange(0, mine, AcqRel, Relaxed);
    }
}

/// The table of threads.
pub fn threads() -> Option<&'static [CudaThread]> {
    let start = AREA.threads.load(Acquire) as usize;
    // SAFETY: a reservation of this length, as the head of the file says.
    (start != 0).then(|| unsafe {
        core::slice::from_raw_parts(ptr::with_exposed_provenance(start), CudaArea::MAX_THREADS)
    })
}

/// The table of objects, and its lock.
pub fn objects() -> Option<(&'static [CudaObject; CudaArea::MAX_OBJECTS], &'static AtomicU32)> {
    let start = AREA.objects.load(Acquire) as usize;
    // SAFETY: as above.
    (start != 0).then(|| unsafe { (&*ptr::with_exposed_provenance(start), &LOCK) })
}

/// Objects of a kind, and their bytes.
pub fn count(kind: u8) -> (&'static AtomicU64, &'static AtomicU64) {
    let index = usize::from(kind) % CudaKind::ROOM;
    (&AREA.counts[index], &AREA.bytes[index])
}

/// Calls may give devices work past the gate from now on: of a function without a wrapper, of a library that finds the
/// driver by itself.
pub fn past_the_gate() {
    AREA.unhooked.fetch_add(1, Relaxed);
}

/// Calls so far that gave devices work, all threads together; `None`: there may be others, which no wrapper has
/// counted. Stays as it is while the gate is closed and drained.
pub fn work() -> Option<u64> {
    // What is in the undocumented tables need not be in the table of functions.
    if AREA.unhooked.load(Relaxed) != 0 || AREA.export_tables.load(Relaxed) != 0 {
        return None;
    }
    let used = AREA.thread_count.load(Acquire) as usize;
    let entries = threads().unwrap_or_default().iter().take(used);
    let sum = entries.fold(0_u64, |sum, entry| sum.wrapping_add(entry.work.load(Relaxed)));
    Some(sum.wrapping_add(AREA.uncounted_work.load(Relaxed)))
}

/// In a child made by fork, in its only thread: nothing of the parent's is left. The addresses of the driver's
/// functions stay right.
pub fn forked() {
    thread::forget();
    for (place, len) in [
        (&AREA.threads, CudaArea::MAX_THREADS * size_of::<CudaThread>()),
        (&AREA.objects, CudaArea::MAX_OBJECTS * size_of::<CudaObject>()),
    ] {
        let start = place.load(Relaxed) as usize;
        if start != 0 {
            // SAFETY: a reservation of this length. A call of the parent's that is under way in this thread takes its
            // mark back later, which changes nothing.
            unsafe { platform::clear(start, len) };
        }
    }
    let words = [
        &AREA.thread_count,
        &AREA.initialised,
        &AREA.waiting,
        &AREA.abandoned,
        &AREA.uncounted_inside,
        &AREA.uncounted_work,
        &AREA.lost,
        &AREA.export_tables,
        &AREA.data,
    ];
    for word in words.into_iter().chain(&AREA.counts).chain(&AREA.bytes) {
        if word.load(Relaxed) != 0 {
            word.store(0, Relaxed);
        }
    }
    LOCK.store(0, Relaxed);
    AREA.closed.store(0, Release);
}
