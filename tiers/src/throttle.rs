//! A bound on the bytes that are written in a second, by all workers together.
//!
//! Called by the pipeline before each frame is appended, when the user asked for a rate: the flush then leaves the disk
//! to others (or acts as a slower disk); by what acts as a slow tier in tests. Who writes into the same store at a rate
//! shares it ([`Share`]). Invariant: after a wait all bytes so far fit the rate, but for [`BURST`] bytes that make up
//! for sleeps that took too long.

use crate::link::time_for;
use crate::share::{BURST, Share};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest single sleep: another worker's error ends the wait after it.
const STEP: Duration = Duration::from_millis(5);

/// When the bytes of all threads have had their time.
#[derive(Default)]
pub struct ByteClock {
    busy_until: Mutex<Option<Instant>>,
}

impl ByteClock {
    /// When `bytes` more, that are to move `now`, have had their time at `rate` bytes a second.
    pub fn reserve(&self, now: Instant, bytes: u64, rate: u64) -> Instant {
        let mut busy_until = self.busy_until.lock();
        let earliest = now.checked_sub(time_for(BURST, rate)).unwrap_or(now);
        let from = busy_until.unwrap_or(now).max(earliest);
        let due = from.checked_add(time_for(bytes, rate)).unwrap_or(from);
        *busy_until = Some(due);
        due
    }
}

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Throttle {
    pace: ByteClock,
    /// With whom the rate is shared.
    pub(crate) share: Option<Arc<Share>>,
}

impl Throttle {
    /// Waits until `bytes` more have had their time at `rate` bytes a second, or `stop` is set.
    pub(crate) fn wait(&self, bytes: u64, rate: u64, stop: &AtomicBool) {
        let now = Instant::now();
        let shared = self.share.as_ref().and_then(|share| now.checked_add(share.take(bytes, rate)?));
        let due = shared.unwrap_or_else(|| self.pace.reserve(now, bytes, rate));
        while !stop.load(Ordering::Relaxed)
            && let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        {
            thread::sleep(left.min(STEP));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_their_time_and_no_more_than_a_burst_is_caught_up() {
        let (throttle, go_on) = (Throttle::default(), AtomicBool::new(false));
        let start = Instant::now();
        for _ in 0..10 {
            throttle.wait(1000, 100_000, &go_on);
        }
        assert!(start.elapsed() >= Duration::from_millis(100));
        let stop = AtomicBool::new(true);
        throttle.wait(u64::MAX, 1, &stop);
        let busy = throttle.pace.busy_until.lock().unwrap();
        assert!(busy > Instant::now() + Duration::from_secs(1 << 30));
    }
}
