//! The way of a wrapper through the gate: a call is inside from [`enter`] to [`leave`].
//!
//! Runs in: wrappers, any thread of the program. Which calls are within other calls, and which are the hooks' own, is
//! decided here; the protocol is in `gate.rs`. Fails by: nothing.

use crate::platform::stack_pointer;
use crate::{area, gate, thread};
use holdfast_abi::CudaThread;

/// What [`enter`] has done.
#[derive(Clone, Copy)]
pub enum Call {
    /// Nothing: a call within a call, or one of the hooks' own.
    Within,
    /// Marked this entry.
    Counted(&'static CudaThread),
    /// Counted the call with those of other threads.
    Uncounted,
}

/// Waits while the gate is closed; from then on the thread is inside. Not inlined: there are five hundred wrappers, and
/// pages of code that no program touches are not free either.
#[inline(never)]
pub fn enter(row: u64, work: u64) -> Call {
    let stack = stack_pointer();
    match thread::entry() {
        Some(entry) if !gate::is_within(entry, stack) => {
            gate::arrive(area::area(), entry, row, work, stack);
            Call::Counted(entry)
        }
        _ => enter_slowly(row, work, stack),
    }
}

/// The first call of a thread, a call within a call, the hooks' own, and threads for which there is no entry.
#[cold]
fn enter_slowly(row: u64, work: u64, stack: u64) -> Call {
    if thread::passes() {
        return Call::Within;
    }
    match thread::claim() {
        Some(entry) if gate::is_within(entry, stack) => {
            // The outer call has passed the gate; work counts all the same.
            gate::count(entry, work);
            Call::Within
        }
        Some(entry) => {
            gate::arrive(area::area(), entry, row, work, stack);
            Call::Counted(entry)
        }
        None => {
            gate::arrive_uncounted(area::area(), work);
            Call::Uncounted
        }
    }
}

/// The thread is outside again.
#[inline(always)]
pub fn leave(call: Call) {
    match call {
        Call::Counted(entry) => gate::leave(entry),
        Call::Within => {}
        Call::Uncounted => gate::leave_uncounted(area::area()),
    }
}
