//! Device memory that an image need not have: caches, workspaces. Its content stays while the program runs on, and is
//! zero after a restart.
//!
//! Called by: `memory.rs`, for the C API, for allocations whose size `--cuda-skip` names, and for whatever ends an
//! allocation; the service thread ([`chunks`]). Invariants: the table changes inside the gate alone, under the lock of
//! the tables: an agent that has closed the gate reads what the image is going to have, and the service thread after a
//! restart finds the same. What is freed is not in it: new memory at its place is saved.
//! Fails by: what does not fit is saved.

use crate::platform;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use holdfast_abi::CudaData;
use holdfast_cuda_kernels::chunk::CHUNK;

const _: () = assert!(CHUNK == CudaData::DISCARD_UNIT);

/// First address and bytes of each; no bytes: the entry is free.
static TABLE: [[AtomicU64; 2]; CudaData::MAX_DISCARDS] =
    [const { [const { AtomicU64::new(0) }; 2] }; CudaData::MAX_DISCARDS];

/// The entries in force.
fn entries() -> impl Iterator<Item = (&'static [AtomicU64; 2], u64, u64)> {
    let read = |entry: &'static [AtomicU64; 2]| {
        let [start, bytes] = platform::loaded([&entry[0], &entry[1]]);
        (entry, start, bytes)
    };
    TABLE.iter().map(read).filter(|(_, _, bytes)| *bytes != 0)
}

/// An entry in whole chunks: first address and bytes; none: 0. The agent counts them in the same way
/// (`process/src/cuda/discarded.rs`).
pub fn chunks(index: usize) -> (u64, u64) {
    let Some([start, bytes]) = TABLE.get(index).map(|[start, bytes]| platform::loaded([start, bytes])) else {
        return (0, 0);
    };
    let (from, to) = (start.next_multiple_of(CHUNK), start.saturating_add(bytes) / CHUNK * CHUNK);
    (from, to.saturating_sub(from))
}

/// Where the table is.
pub fn address() -> u64 {
    ptr::from_ref(&TABLE).addr() as u64
}

/// Enters a range; false: there is no room. The lock is held.
pub fn add(start: u64, bytes: u64) -> bool {
    let free = TABLE.iter().find(|entry| entry[1].load(Relaxed) == 0);
    let Some([at, len]) = free else { return false };
    at.store(start, Relaxed);
    len.store(bytes, Relaxed);
    true
}

/// A range is saved from now on: what is left of those that it cuts stays. The lock is held.
pub fn keep(start: u64, bytes: u64) {
    let end = start.saturating_add(bytes);
    for (entry, from, len) in entries() {
        let to = from.saturating_add(len);
        if from >= end || to <= start {
            continue;
        }
        entry[1].store(0, Relaxed);
        if from < start {
            entry[0].store(from, Relaxed);
            entry[1].store(start - from, Relaxed);
        }
        if to > end {
            // Without room for both parts the second one is saved.
            add(end, to - end);
        }
    }
}

/// In a child made by fork.
pub fn forget() {
    TABLE.iter().for_each(|entry| entry[1].store(0, Relaxed));
}
