//! The gate: who is inside the driver, and how it is kept empty.
//!
//! Runs in: wrappers, any thread of the program. The agent closes and opens it from outside, by writing
//! [`CudaArea::closed`] and reading the table of threads; [`close`], [`drain`] and [`open`] are the same from within.
//! The protocol, of which all interleavings are in `model.rs`: a thread marks its entry, and only then looks whether
//! the gate is closed; who closes it marks the gate, and only then looks at the entries. So either the thread sees that
//! it is closed, takes its mark back and waits, or it is seen. Each thread marks a cache line of its own.
//! Invariants: a call within a call passes (it is counted by the outer one, which has passed). Whether it is one, the
//! stack pointer says: an entry that a jump or the end of a cancelled call has left marked is below the present stack
//! pointer. Nothing is held while a thread waits (`wait.rs`): signal handlers may run, and jump.
//! Fails by: [`Busy`] from [`drain`], after which the gate is open again.

use super::layout::{CudaArea, CudaThread};
use super::{platform, wait};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// Time between two looks at the threads, nanoseconds.
const LOOK_NS: i64 = 50_000;

/// Something is inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy {
    /// The function, a row of the table; `None`: of a thread that has no entry.
    pub row: Option<u64>,
    /// The kernel's id of the thread; 0: not known.
    pub thread: u64,
}

/// Marks the entry of a thread that is not inside, once the gate is open. `work`: 1 if the call gives the device work.
#[inline(always)]
pub fn arrive(area: &CudaArea, entry: &CudaThread, row: u64, work: u64, stack: u64) {
    count(entry, work);
    entry.stack.store(stack, Relaxed);
    entry.inside.swap(row + 1, SeqCst);
    // Again: a signal handler may have called the driver between the two.
    entry.stack.store(stack, Relaxed);
    platform::order_of_seqcst();
    if area.closed.load(SeqCst) != 0 {
        wait_outside(area, entry, row, stack);
    }
}

/// Counts work. Before it is given: a count that has not moved means that nothing was.
#[inline(always)]
pub fn count(entry: &CudaThread, work: u64) {
    if work != 0 {
        entry.work.store(entry.work.load(Relaxed).wrapping_add(work), Relaxed);
    }
}

/// Takes the mark back, waits, marks again, until the gate is open.
#[cold]
fn wait_outside(area: &CudaArea, entry: &CudaThread, row: u64, stack: u64) {
    loop {
        entry.inside.store(0, Release);
        wait::until_open(area);
        entry.stack.store(stack, Relaxed);
        entry.inside.swap(row + 1, SeqCst);
        entry.stack.store(stack, Relaxed);
        platform::order_of_seqcst();
        if area.closed.load(SeqCst) == 0 {
            return;
        }
    }
}

/// The outermost call is over.
#[inline(always)]
pub fn leave(entry: &CudaThread) {
    entry.inside.store(0, Release);
}

/// Whether a call with that stack pointer is within the one that has marked the entry.
#[inline(always)]
pub fn is_within(entry: &CudaThread, stack: u64) -> bool {
    entry.inside.load(Relaxed) != 0 && stack < entry.stack.load(Relaxed)
}

/// [`arrive`] for a thread without an entry.
#[cold]
pub fn arrive_uncounted(area: &CudaArea, work: u64) {
    area.uncounted_work.fetch_add(work, Relaxed);
    loop {
        area.uncounted_inside.fetch_add(1, SeqCst);
        platform::order_of_seqcst();
        if area.closed.load(SeqCst) == 0 {
            return;
        }
        area.uncounted_inside.fetch_sub(1, Release);
        wait::until_open(area);
    }
}

/// [`leave`] for a thread without an entry.
#[cold]
pub fn leave_uncounted(area: &CudaArea) {
    area.uncounted_inside.fetch_sub(1, Release);
}

/// The entry of the thread at `owner` (its fs base): the one that a thread at the same place has left, or a new one.
pub fn claim<'a>(
    area: &CudaArea,
    table: &'a [CudaThread],
    owner: u64,
    thread: u64,
) -> Option<&'a CudaThread> {
    let used = area.thread_count.load(SeqCst) as usize;
    let left = table.iter().take(used).find(|entry| entry.owner.load(Relaxed) == owner);
    let entry = match left {
        Some(entry) => entry,
        None => {
            let next = |count: u64| (count < table.len() as u64).then_some(count + 1);
            let mut count = area.thread_count.load(SeqCst);
            loop {
                let more = next(count)?;
                match area.thread_count.compare_exchange(count, more, SeqCst, SeqCst) {
                    Ok(_) => break,
                    Err(other) => count = other,
                }
            }
            table.get(count as usize)?
        }
    };
    entry.inside.store(0, Relaxed);
    entry.id.store(thread, Relaxed);
    entry.owner.store(owner, Release);
    Some(entry)
}

/// Closes the gate; false if it is closed.
pub fn close(area: &CudaArea) -> bool {
    area.closed.compare_exchange(0, CudaArea::BY_LIBRARY, SeqCst, Relaxed).is_ok()
}

/// Opens it.
pub fn open(area: &CudaArea) {
    area.closed.store(0, Release);
    platform::wake(&area.closed);
}

/// The first that is inside, if any.
pub fn inside(area: &CudaArea, table: &[CudaThread]) -> Option<Busy> {
    platform::order_of_seqcst();
    let used = area.thread_count.load(SeqCst) as usize;
    for entry in table.iter().take(used) {
        if let Some(row) = entry.inside.load(SeqCst).checked_sub(1) {
            return Some(Busy { row: Some(row), thread: entry.id.load(Relaxed) });
        }
    }
    (area.uncounted_inside.load(SeqCst) != 0).then_some(Busy { row: None, thread: 0 })
}

/// With the gate closed, waits until nothing is inside. After `limit_ms` it is opened again, and what is inside named.
pub fn drain(area: &CudaArea, table: &[CudaThread], limit_ms: i64) -> Result<(), Busy> {
    let start = platform::monotonic_ms();
    while let Some(busy) = inside(area, table) {
        if platform::monotonic_ms().wrapping_sub(start) > limit_ms {
            open(area);
            return Err(busy);
        }
        platform::nap(LOOK_NS);
    }
    Ok(())
}
