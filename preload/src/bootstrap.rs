//! Memory for the first allocations of a process, before it is known who serves them.
//!
//! Runs in: the loader, before the C library is set up, and while `malloc.rs` decides. A few blocks at most.
//! Invariants: blocks are 16-byte aligned or better, zeroed, and never given out twice; freeing one does nothing. Every
//! block is preceded by its size, so that it can be moved by realloc later, whatever serves then.
//! Fails by: null when the room is used up.
//!
//! # Safety
//! One static array, given out in disjoint pieces by an atomic cursor.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes in all; untouched ones cost nothing.
const ROOM: usize = 256 * 1024;
/// Bytes before each block: its size.
const HEADER: usize = 16;

#[repr(C, align(4096))]
struct Room(UnsafeCell<[u8; ROOM]>);
// SAFETY: the bytes are only handed out, in disjoint pieces; their users synchronise themselves.
unsafe impl Sync for Room {}

static SPACE: Room = Room(UnsafeCell::new([0; ROOM]));
static USED: AtomicUsize = AtomicUsize::new(0);

fn base() -> usize {
    SPACE.0.get().addr()
}

/// Whether `block` came from here.
#[inline(always)]
pub fn owns(block: *const u8) -> bool {
    block.addr().wrapping_sub(base()) < ROOM
}

/// A zeroed block; `align` is a power of two. Null when there is no room.
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    let align = align.max(HEADER);
    let taken = USED.try_update(Relaxed, Relaxed, |used| {
        let start = place(used, align)?;
        start.checked_add(size).filter(|end| *end <= ROOM)
    });
    let Some(start) = taken.ok().and_then(|used| place(used, align)) else { return ptr::null_mut() };
    let space: *mut u8 = SPACE.0.get().cast();
    // SAFETY: start - HEADER and start + size lie within the array (checked above); the cursor gives them to us alone;
    // start - HEADER is a multiple of 16.
    unsafe {
        space.add(start - HEADER).cast::<usize>().write(size);
        space.add(start)
    }
}

/// Offset of the first block behind `used` with that alignment; room for the header is before it.
fn place(used: usize, align: usize) -> Option<usize> {
    let lowest = base().checked_add(used)?.checked_add(HEADER)?;
    lowest.checked_next_multiple_of(align)?.checked_sub(base())
}

/// Size of a block from here, as asked for.
///
/// # Safety
/// `block` must come from [`allocate`].
pub unsafe fn size_of(block: *const u8) -> usize {
    // SAFETY: `allocate` wrote the size there.
    unsafe { block.sub(HEADER).cast::<usize>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_end_with_the_room() {
        let mut end = 0;
        for (size, align) in [(1, 1), (0, 16), (100, 64), (4096, 4096), (24, 8)] {
            let block = allocate(size, align);
            assert!(!block.is_null() && owns(block));
            assert!(block.addr().is_multiple_of(align.max(16)));
            assert!(block.addr() >= end + HEADER || end == 0, "overlaps the one before");
            end = block.addr() + size;
            // SAFETY: just allocated.
            assert_eq!(unsafe { size_of(block) }, size);
        }
        assert!(allocate(ROOM, 16).is_null());
        assert!(allocate(usize::MAX, 16).is_null());
        assert!(allocate(16, 1 << 63).is_null());
        assert!(!owns(ptr::null()));
    }
}
