//! SEM_UNDO: what the kernel would undo at the end of this process, which it does not tell. The agent refuses a
//! checkpoint while there is something: a restart could not give it back, and a lock would be released twice.
//!
//! Runs in: the host program, any thread that calls `semop` or `semtimedop`. Used by [`crate::ipc`].
//! Invariants: while a call that may change an adjustment is under way, `undo_calls` is not 0; between calls the
//! table has the sum of each semaphore's adjustments (the kernel's `semadj`) of this process. Threads share them
//! (CLONE_SYSVSEM), a forked child has none ([`forked`]). By the kernel's ids: a restart begins with an empty table.
//! Fails by: a refusal too many: a signal handler that jumps out of such a call leaves it counted; what another
//! process clears by SETVAL or SETALL stays in the table. Not seen: what was done before the last exec, and calls
//! past the C library.
//!
//! # Safety
//! The operations of a call are read where the caller says that they are, as the kernel does.
#![allow(unsafe_code)]

use crate::shared;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
use holdfast_abi::SharedPage;

/// struct sembuf (include/uapi/linux/sem.h).
#[repr(C)]
#[derive(Clone, Copy)]
struct Operation {
    number: u16,
    change: i16,
    flags: i16,
}

/// SEM_UNDO (include/uapi/linux/sem.h).
const UNDO: i16 = 0x1000;
/// Most operations that a kernel takes at once by default (SEMOPM); more are not looked at.
const MOST: usize = 500;
/// Bits of an entry above the adjustment: the set, and the semaphore in it.
const WHICH: u64 = !0xffff;

/// A call that may change adjustments.
pub struct Call {
    operations: *const Operation,
    count: usize,
}

impl Call {
    /// Takes note of a call, if it asks for SEM_UNDO.
    ///
    /// # Safety
    /// As for `semop(2)`: there are `count` operations at `operations`.
    pub unsafe fn begin(operations: usize, count: usize) -> Option<Call> {
        const USER_END: usize = 1 << 47;
        // What the kernel refuses anyway is not looked at.
        if !(4096..USER_END).contains(&operations) || !(1..=MOST).contains(&count) {
            return None;
        }
        let call = Call { operations: ptr::with_exposed_provenance(operations), count };
        // SAFETY: the caller's promise.
        let wanted = (0..count).any(|index| unsafe { call.operation(index) }.flags & UNDO != 0);
        if !wanted {
            return None;
        }
        shared::word(SharedPage::UNDO_CALLS).fetch_add(1, SeqCst);
        Some(call)
    }

    /// # Safety
    /// `index` is below their number.
    unsafe fn operation(&self, index: usize) -> Operation {
        // SAFETY: the promise of [`Call::begin`].
        unsafe { self.operations.add(index).read_unaligned() }
    }

    /// It has returned; `set`: the kernel's id of the set that it has changed, if it succeeded.
    pub fn end(self, set: Option<i32>) {
        if let Some(set) = set {
            for index in 0..self.count {
                // SAFETY: below their number.
                let Operation { number, change, flags } = unsafe { self.operation(index) };
                if flags & UNDO != 0 && change != 0 {
                    adjust(set, number, change.wrapping_neg());
                }
            }
        }
        shared::word(SharedPage::UNDO_CALLS).fetch_sub(1, SeqCst);
    }
}

fn entries() -> impl Iterator<Item = &'static AtomicU64> {
    (0..SharedPage::UNDO_MAX).map(|index| shared::word(SharedPage::UNDO_TABLE + index * 8))
}

/// Changes the adjustment of a semaphore.
fn adjust(set: i32, number: u16, by: i16) {
    let which = u64::from(set as u32) << 32 | u64::from(number) << 16;
    let of_it = |entry: u64| entry != 0 && entry & WHICH == which;
    let changed = |entry: u64| {
        let sum = (entry as u16 as i16).wrapping_add(by);
        // 0 is a free entry.
        if sum == 0 { 0 } else { which | u64::from(sum as u16) }
    };
    let known = |entry: &'static AtomicU64| {
        entry.try_update(SeqCst, SeqCst, |entry| of_it(entry).then(|| changed(entry))).is_ok()
    };
    let free = |entry: &'static AtomicU64| entry.compare_exchange(0, changed(which), SeqCst, SeqCst).is_ok();
    // Two threads may enter the same one: the agent takes the sum.
    if !entries().any(known) && !entries().any(free) {
        shared::word(SharedPage::UNDO_LOST).store(1, SeqCst);
    }
}

/// The adjustments of a set are gone, or (`number`) those of one of its semaphores: by SETVAL, SETALL, IPC_RMID.
pub fn cleared(set: i32, number: Option<u16>) {
    let lowest = if number.is_some() { 16 } else { 32 };
    let which = u64::from(set as u32) << 32 | u64::from(number.unwrap_or(0)) << 16;
    for entry in entries() {
        let _ = entry.try_update(SeqCst, SeqCst, |entry| (entry >> lowest == which >> lowest).then_some(0));
    }
}

/// In a child made by fork(2), which has no adjustments.
pub fn forked() {
    [SharedPage::UNDO_CALLS, SharedPage::UNDO_LOST]
        .map(shared::word)
        .into_iter()
        .chain(entries())
        .for_each(shared::clear);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjustments_are_summed_by_semaphore_and_end_with_what_they_were_for() {
        let table = || entries().map(|entry| entry.load(SeqCst)).filter(|entry| *entry != 0).count();
        let calls = || shared::word(SharedPage::UNDO_CALLS).load(SeqCst);
        let undone = |change| Operation { number: 3, change, flags: UNDO };
        let plain = Operation { number: 4, change: 1, flags: 0 };
        let begin = |operations: &[Operation]| {
            // SAFETY: they are there.
            unsafe { Call::begin(operations.as_ptr().expose_provenance(), operations.len()) }
        };
        assert!(begin(&[plain]).is_none() && calls() == 0);
        let take = [plain, undone(-1)];
        let call = begin(&take).unwrap();
        assert_eq!((table(), calls()), (0, 1));
        call.end(Some(7));
        assert_eq!((table(), calls()), (1, 0));
        assert_eq!(shared::word(SharedPage::UNDO_TABLE).load(SeqCst), 7 << 32 | 3 << 16 | 1);
        begin(&take).unwrap().end(None);
        assert_eq!((table(), calls()), (1, 0), "it failed");
        begin(&[undone(1)]).unwrap().end(Some(7));
        assert_eq!(table(), 0, "given back");
        for (set, number) in [(0, 1), (0, 2), (5, 1), (i32::MAX, u16::MAX)] {
            adjust(set, number, -3);
        }
        cleared(0, Some(1));
        assert_eq!(table(), 3);
        cleared(0, None);
        cleared(i32::MAX, None);
        assert_eq!(table(), 1);
        (0..=SharedPage::UNDO_MAX as i32).for_each(|set| adjust(100 + set, 0, 1));
        assert_eq!(shared::word(SharedPage::UNDO_LOST).load(SeqCst), 1);
        forked();
        assert_eq!((table(), shared::word(SharedPage::UNDO_LOST).load(SeqCst)), (0, 0));
    }
}
