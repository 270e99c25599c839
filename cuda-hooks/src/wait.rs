//! How a thread waits at the closed gate, and what happens when the agent that has closed it is gone.
//!
//! Runs in: wrappers, any thread of the program. Invariants: a gate that the agent has closed opens by itself when the
//! agent is gone; where device memory is away the service thread opens it (`service/`). Nothing is held meanwhile; no
//! cancellation point.
//!
//! # Safety
//! The words of owned memory are where the area says, in this library.
#![allow(unsafe_code)]

use crate::platform;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use holdfast_abi::{CudaArea, CudaData};

/// Longest sleep, nanoseconds: the agent opens the gate from outside, which wakes no thread.
const WAIT_NS: i64 = 1_000_000;
/// An agent that gave no sign for so long is looked after, milliseconds.
const SILENCE_MS: i64 = 1000;

/// Waits until the gate is open.
pub fn until_open(area: &CudaArea) {
    area.waiting.fetch_add(1, Relaxed);
    let mut beat = area.heartbeat.load(Relaxed);
    let mut since = platform::monotonic_ms();
    loop {
        let closed = area.closed.load(Acquire);
        if closed == 0 {
            break;
        }
        platform::wait(&area.closed, closed, WAIT_NS);
        let (now, beats) = (platform::monotonic_ms(), area.heartbeat.load(Relaxed));
        if beats != beat {
            (beat, since) = (beats, now);
        } else if closed == CudaArea::BY_AGENT && now.wrapping_sub(since) > SILENCE_MS {
            if !platform::agent_is_there()
                && !is_busy(area)
                && area.closed.compare_exchange(closed, 0, AcqRel, Relaxed).is_ok()
            {
                area.abandoned.fetch_add(1, Relaxed);
                platform::wake(&area.closed);
            }
            since = now;
        }
    }
    area.waiting.fetch_sub(1, Relaxed);
}

/// Whether the service thread has something to do for an agent that is gone: then the gate is the thread's to open. An
/// agent that is gone asks for nothing more.
fn is_busy(area: &CudaArea) -> bool {
    let address = area.data.load(Acquire) as usize;
    // SAFETY: as the head of the file says.
    let data = (address != 0).then(|| unsafe { &*with_exposed_provenance::<CudaData>(address) });
    data.is_some_and(|data| {
        data.asked.load(SeqCst) != data.done.load(SeqCst) || data.state.load(SeqCst) != CudaData::RESIDENT
    })
}
