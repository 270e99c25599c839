//! Engine `slots`: AI-Ckpt's copy-on-write by page, with a hard bound (docs/slots.md).
//!
//! At the cut the agent makes large blocks of memory read-only and resumes the program; the first write to a page
//! comes here, where the page is copied into one of a fixed number of slots, or waited for until it is stored.
//! On only with `HOLDFAST_ENGINE=slots` in the environment when the library is loaded; else there is no handler, no
//! table, and the exports of [`hooks`] are one jump longer than without the library.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`layout`] | the tables that the agent and the program share by reading and writing the program's memory |
//! | [`table`], [`platform`] | the protocol: claim, copy, open, wait; what it needs of the machine |
//! | [`fault`], [`signals`] | the handler of SIGSEGV, and SIGSEGV as the program sees it |
//! | [`hooks`], [`thread`] | calls that write to buffers; which are under way |
//! | [`memory`], [`large`] | calls that change mappings; which allocations are large |

pub mod fault;
pub mod hooks;
pub mod large;
pub mod layout;
pub mod memory;
mod platform;
pub mod signals;
pub mod table;
pub mod thread;

#[cfg(all(test, loom))]
mod model;

use crate::{host, shared, sys};
use core::sync::atomic::Ordering::{Acquire, Release};
use holdfast_abi::environment::{ENGINE_SLOTS, ENV_ENGINE};
use holdfast_abi::{GuardArea, SharedPage};

/// See [`ending`].
const PATIENCE_MS: i64 = 1000;
/// Time between two looks of a program that ends, nanoseconds.
const NAP_NS: i64 = 1_000_000;

/// Gets ready, if the program was started with this engine. Called by the constructor, with one thread.
pub fn start() {
    if !host::variable_is(ENV_ENGINE, ENGINE_SLOTS) || layout::current().is_some() {
        return;
    }
    let Some(area) = layout::reserve() else { return };
    hooks::activate();
    if !fault::install() {
        return;
    }
    area.word(GuardArea::HANDLER).store(fault::address() as u64, Release);
    area.word(GuardArea::THREAD).store(thread::offset() as u64, Release);
    // Last: from here on the agent may guard memory.
    shared::word(SharedPage::GUARD_AREA).store(area.address(), Release);
}

/// The program ends: waits until the flush that needs its memory is over. An agent that has given no sign of life for
/// [`PATIENCE_MS`] is dead, or has given the image up. A program that ends by a signal or by `_exit` does not wait.
pub fn ending() {
    let Some(area) = layout::current() else { return };
    let mut pulse = table::Pulse::new(area);
    while area.word(GuardArea::ARMED).load(Acquire) != 0 && pulse.silent_ms() < PATIENCE_MS {
        sys::nap(NAP_NS);
    }
}

/// In a child made by fork: its memory is not flushed.
pub fn forked() {
    if let Some(area) = layout::current() {
        table::forked(area);
    }
}
