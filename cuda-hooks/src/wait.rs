//! How a thread waits at the closed gate, and what happens when the agent that has closed it is gone.
//!
//! Runs in: wrappers, any thread of the program. Invariants: a gate that the agent has closed opens by itself when the
//! agent is gone. Nothing is held meanwhile; no cancellation point.

use crate::platform;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use holdfast_abi::CudaArea;

/// Longest sleep, nanoseconds: the agent opens the gate from outside, which wakes nobody.
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
            if !platform::agent_is_there() && area.closed.compare_exchange(closed, 0, AcqRel, Relaxed).is_ok()
            {
                area.abandoned.fetch_add(1, Relaxed);
                platform::wake(&area.closed);
            }
            since = now;
        }
    }
    area.waiting.fetch_sub(1, Relaxed);
}
