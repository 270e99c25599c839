//! Helpers of the service thread: threads that copy memory while it waits for devices.
//!
//! Runs in: the service thread, which makes them when there is much to copy and sees them end before its command is
//! done. They are threads of the kernel alone, unknown to the C library: what makes one of the library's waits for
//! locks that a thread of the program may hold while it waits at the closed gate. Invariants: a helper copies memory
//! and makes system calls, nothing else: no thread-local word, no driver, no allocation; signals are blocked, as in the
//! thread that makes it. When [`Crew::end`] returns, none is there, and their stacks are given back.
//! Fails by: fewer helpers, or none.
//!
//! # Safety
//! A stack is a part of a reservation of this module's, used by one helper, until the kernel has said that it has
//! ended.
#![allow(unsafe_code)]

use crate::platform;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Acquire;

/// Most of them.
const MOST: usize = 8;
/// Bytes of a stack.
const STACK: usize = 64 << 10;
/// Between two looks whether one has ended.
const LOOK_NS: i64 = 20_000;

/// The kernel's ids of helpers; it clears the word of one that has ended.
static IDS: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

/// How many are worth making, of so many: no more than processors that are left.
pub fn useful(wanted: u64) -> usize {
    let processors = platform::processors().saturating_sub(1).min(MOST);
    (wanted as usize).min(processors)
}

/// See the head of the file.
pub struct Crew {
    stacks: usize,
    count: usize,
}

impl Crew {
    /// So many, if the kernel gives them. Each runs `body`.
    pub fn of(wanted: usize, body: extern "C" fn()) -> Crew {
        let mut made = Crew { stacks: 0, count: 0 };
        if wanted == 0 {
            return made;
        }
        made.stacks = platform::reserve(MOST * STACK).expose_provenance();
        if made.stacks == 0 {
            return made;
        }
        for (number, id) in IDS.iter().enumerate().take(wanted) {
            let top = made.stacks + (number + 1) * STACK;
            // SAFETY: a part of the reservation that is this helper's alone; for what it runs the caller answers.
            if !unsafe { platform::thread(top, id, body) } {
                break;
            }
            made.count = number + 1;
        }
        made
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Waits until all have ended: they have been told.
    pub fn end(&self) {
        for id in IDS.iter().take(self.count) {
            while id.load(Acquire) != 0 {
                platform::nap(LOOK_NS);
            }
        }
        if self.stacks != 0 {
            // SAFETY: the reservation; who had parts of it has ended.
            unsafe { platform::unmap(self.stacks, MOST * STACK) };
        }
    }
}
