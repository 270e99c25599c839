//! Which allocations are large: only those, and protected memory, are ever guarded by engine `slots`. Stacks,
//! thread-local storage, small blocks and the data of libraries never are.
//!
//! Runs in: the host program, in `malloc` and its family, with jemalloc serving.
//! Invariants: an entry is in force while its length is not 0; it belongs to the thread that changed its start from 0
//! until the length is stored. Without the engine nothing is noted.
//! Fails by: a full table: what is not noted is copied at the stop.

use super::fault;
use super::layout;
use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use holdfast_abi::{GuardArea, LargeAllocation};

/// Notes a new block.
#[inline(always)]
pub fn note(block: *mut c_void, size: usize) -> *mut c_void {
    if size >= GuardArea::LARGE_LEN && !block.is_null() {
        add(block as usize, size);
    }
    block
}

#[cold]
fn add(start: usize, len: usize) {
    let Some(area) = layout::current() else { return };
    for index in 0..GuardArea::LARGE_MAX {
        let at = GuardArea::LARGE_TABLE + index * GuardArea::LARGE_ENTRY;
        if area.word(at + LargeAllocation::START).load(Relaxed) == 0
            && area
                .word(at + LargeAllocation::START)
                .compare_exchange(0, start as u64, AcqRel, Relaxed)
                .is_ok()
        {
            area.word(GuardArea::LARGE_COUNT).fetch_max(index as u64 + 1, AcqRel);
            area.word(at + LargeAllocation::LEN).store(len as u64, Release);
            return;
        }
    }
}

/// Whether blocks are noted at all.
#[inline(always)]
pub fn is_on() -> bool {
    layout::current().is_some()
}

/// A block of that usable size is about to be freed or moved. What comes to lie there may be small, and the target of
/// any system call: guarded pages are opened.
pub fn forget(block: *mut c_void, usable: usize) {
    let Some(area) = layout::current() else { return };
    if usable < GuardArea::LARGE_LEN || block.is_null() {
        return;
    }
    let count = (area.word(GuardArea::LARGE_COUNT).load(Acquire) as usize).min(GuardArea::LARGE_MAX);
    for index in 0..count {
        let at = GuardArea::LARGE_TABLE + index * GuardArea::LARGE_ENTRY;
        if area.word(at + LargeAllocation::START).load(Relaxed) == block as u64 {
            area.word(at + LargeAllocation::LEN).store(0, Release);
            area.word(at + LargeAllocation::START).store(0, Release);
            break;
        }
    }
    fault::open_range(block as usize, usable);
}
