//! What each thread keeps for engine `slots`: which buffers its calls under way write to, and a SIGSEGV that waits.
//!
//! Runs in: the host program, any thread, also in signal handlers. Thread-local storage by hand, of the initial-exec
//! model (a crate without the standard library has none): one instruction away, no allocation, zero in a new thread
//! (ELF Handling For Thread-Local Storage, 4.4.6). The loader gives every preloaded library its place in it.
//! Invariants: the layout is [`GuardThread`]. The agent reads it in a stop: an entry is written before the depth that
//! covers it. Entries of calls that were left by a jump are found out by their stack pointer.
//!
//! # Safety
//! The block belongs to the calling thread; signal handlers of the same thread leave entries below theirs alone.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU64, compiler_fence};
use holdfast_abi::GuardThread;

// As the section below is aligned.
const _: () = assert!(align_of::<GuardThread>() == 1 << 6);

global_asm!(
    ".pushsection .tbss.holdfast_guard_thread,\"awT\",@nobits",
    ".p2align 6",
    ".hidden holdfast_guard_thread",
    ".globl holdfast_guard_thread",
    ".type holdfast_guard_thread,@object",
    ".size holdfast_guard_thread, {len}",
    "holdfast_guard_thread: .zero {len}",
    ".popsection",
    len = const GuardThread::LEN,
);

/// The block of a thread.
#[repr(transparent)]
pub struct Thread(GuardThread);

/// Where the block lies, relative to the fs base.
pub fn offset() -> i64 {
    let offset: i64;
    // SAFETY: loads one word of the library's own table of addresses.
    unsafe {
        asm!(
            "mov {}, qword ptr [rip + holdfast_guard_thread@GOTTPOFF]",
            out(reg) offset,
            options(pure, readonly, nostack)
        );
    }
    offset
}

/// The block of the calling thread.
#[inline(always)]
pub fn own() -> &'static Thread {
    let place: usize;
    // SAFETY: the word at the fs base is its own address (System V ABI, AMD64 supplement, thread-local storage).
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + holdfast_guard_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) place, options(pure, readonly, nostack)
        );
    }
    // SAFETY: aligned bytes of this thread, zero at its start, which are atomics throughout. They live as long as
    // the thread; nothing keeps the reference longer.
    unsafe { &*core::ptr::with_exposed_provenance::<Thread>(place) }
}

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
