//! Moments and bits, from a seed that a failing test prints.
//!
//! Not for anything secret: the finaliser of splitmix64 over a counter.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A sequence of numbers that its seed determines.
pub struct Random {
    seed: u64,
    count: u64,
}

impl Random {
    /// The seed is `HOLDFAST_TEST_SEED`, or the clock; it is printed, and libtest shows it when the test fails.
    pub fn new() -> Random {
        let given = std::env::var("HOLDFAST_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let seed = given.unwrap_or_else(clock);
        println!("HOLDFAST_TEST_SEED={seed}");
        Random::of(seed)
    }

    /// The sequence of that seed.
    pub fn of(seed: u64) -> Random {
        Random { seed, count: 0 }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.count += 1;
        let mut n = self.seed.wrapping_add(self.count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// A number below `end` (0 if `end` is 0).
    pub fn below(&mut self, end: u64) -> u64 {
        self.number().checked_rem(end).unwrap_or(0)
    }

    /// A time from `least` up to `most`.
    pub fn time(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_nanos() as u64;
        least + Duration::from_nanos(self.below(span.max(1)))
    }
}

impl Default for Random {
    fn default() -> Random {
        Random::new()
    }
}
