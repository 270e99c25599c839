//! How long to wait before a tier that failed is tried again: twice as long each time, up to a bound, with a part left
//! to chance, so that many jobs do not come back to a server in one moment. Pure, but for [`chance`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_64;

/// First and longest wait.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(300);

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Something failed. Returns how long to wait: between three and five quarters of what the number of failures
    /// says, by `chance` (any number).
    pub(crate) fn failed(&mut self, chance: u64) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(20)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let percent = 75 + u32::try_from(chance % 51).unwrap_or(0);
        full * percent / 100
    }

    /// Something succeeded.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// Any number.
pub(crate) fn chance() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    xxh3_64(&[now.as_nanos().to_le_bytes(), u128::from(std::process::id()).to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..40).map(|_| backoff.failed(25).as_millis()).collect();
        assert_eq!(waits[..4], [500, 1000, 2000, 4000]);
        assert!(waits.is_sorted() && waits[39] == LONGEST.as_millis());
        backoff.succeeded();
        assert_eq!(backoff.failed(0), FIRST * 3 / 4);
        assert_eq!(backoff.failed(50), FIRST * 2 * 5 / 4);
    }
}
