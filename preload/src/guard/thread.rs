//! What each thread keeps for engine `slots`: which buffers its calls under way write to, and a SIGSEGV that waits.
//!
//! Runs in: the host program, any thread, also in signal handlers; in a [`thread_block`]. Invariants: the layout is
//! [`GuardThread`]. The agent reads it in a stop: an entry is written before the depth that covers it. Entries of calls
//! that were left by a jump are found out by their stack pointer.
//!
//! # Safety
//! The block belongs to the calling thread; signal handlers of the same thread leave entries below theirs alone.
#![allow(unsafe_code)]

use crate::thread_block::thread_block;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU64, compiler_fence};
use holdfast_abi::GuardThread;

/// The block of a thread.
#[repr(transparent)]
pub struct Thread(GuardThread);

thread_block!("holdfast_guard_thread", align 6, of Thread);

impl Thread {
    /// A SIGSEGV that was sent to the thread waits for the program to unblock it.
    pub fn pending(&self) -> &AtomicU64 {
        &self.0.pending
    }

    /// Room for the mask of a call that takes one.
    pub fn mask(&self) -> &[AtomicU64] {
        &self.0.mask
    }

    /// Notes a buffer of the call that is about to be made with this stack pointer.
    pub fn push(&self, kind: u64, address: usize, len: usize, stack: usize) {
        let mut depth = (self.0.depth.load(Relaxed) as usize).min(GuardThread::MAX_ENTRIES);
        // What lies below the present stack pointer was left by longjmp or by the end of a cancelled call.
        while depth > 0
            && self.0.entries.get(depth - 1).is_none_or(|entry| entry.stack.load(Relaxed) <= stack as u64)
        {
            depth -= 1;
        }
        // A full list loses the newest: the agent then looks at the registers of the call only.
        if let Some(entry) = self.0.entries.get(depth) {
            entry.kind.store(kind, Relaxed);
            entry.address.store(address as u64, Relaxed);
            entry.len.store(len as u64, Relaxed);
            entry.stack.store(stack as u64, Relaxed);
            compiler_fence(Release);
            self.0.depth.store(depth as u64 + 1, Relaxed);
        }
    }

    /// Forgets what [`Thread::push`] noted with this stack pointer.
    pub fn pop(&self, stack: usize) {
        let depth = (self.0.depth.load(Relaxed) as usize).min(GuardThread::MAX_ENTRIES);
        if let Some(top) = depth.checked_sub(1)
            && self.0.entries.get(top).is_some_and(|entry| entry.stack.load(Relaxed) == stack as u64)
        {
            self.0.depth.store(top as u64, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_nest_and_those_that_were_left_are_forgotten() {
        let thread = own();
        let depth = || thread.0.depth.load(Relaxed);
        thread.push(GuardThread::BYTES, 1, 2, 1000);
        thread.push(GuardThread::VECTORS, 3, 4, 900);
        assert_eq!(depth(), 2);
        thread.pop(900);
        thread.push(GuardThread::BYTES, 5, 6, 800);
        thread.push(GuardThread::BYTES, 7, 8, 950); // 800 was jumped out of
        assert_eq!(depth(), 2);
        assert_eq!(thread.0.entries[1].address.load(Relaxed), 7);
        thread.pop(123);
        assert_eq!(depth(), 2, "not this one");
        thread.pop(950);
        thread.pop(1000);
        assert_eq!(depth(), 0);
        let other = std::thread::spawn(|| core::ptr::from_ref(own()).addr()).join().unwrap();
        assert_ne!(other, core::ptr::from_ref(thread).addr());
    }
}
