//! How fast the program writes, and how late the watcher is: what it takes to keep the bound on copies between two
//! looks at it. Pure; owned by the watcher, passed on from one checkpoint to the next.
//!
//! The kernel makes a copy in [`COPY_US`] at least, so that a bound could be kept by looking ahead at that speed. Few
//! programs write so fast: once it is known how fast this one does, twice that is expected of it. The watcher itself
//! may have to wait for a processor, and holding the program takes a moment: both are expected to happen again.
//! Invariant: nothing here depends on the clock; times come in.

use holdfast_pager::budget::COPY_US;
use std::time::Duration;

/// Lateness beyond this is an accident that is not expected again: a program that was held for fear of it would be
/// held through the whole flush.
const LATEST: Duration = Duration::from_millis(4);
/// Shorter times say nothing about a rate.
const LEAST: Duration = Duration::from_micros(500);

/// See the head of the file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WriteRate {
    /// How much later than planned the watcher looks.
    late: Duration,
    /// How long it takes to hold the program.
    park: Duration,
    /// Most first writes in a microsecond, of all threads together; not known before the first looks.
    rate: Option<f64>,
}

impl Default for WriteRate {
    fn default() -> WriteRate {
        WriteRate { late: Duration::from_micros(500), park: Duration::from_micros(500), rate: None }
    }
}

/// The mean of what was, the newest counting one eighth.
fn mean(old: Duration, new: Duration) -> Duration {
    (old * 7 + new.min(LATEST)) / 8
}

impl WriteRate {
    /// The watcher looked so much later than planned.
    pub fn was_late(&mut self, by: Duration) {
        self.late = mean(self.late, by);
    }
    /// Holding the program took so long.
    pub fn parked_in(&mut self, took: Duration) {
        self.park = mean(self.park, took);
    }
    /// So many pages were written for the first time within this time, in which the program ran. False: too short a
    /// time to say anything, to be asked again with more.
    pub fn saw(&mut self, pages: u64, within: Duration) -> bool {
        if within < LEAST {
            return false;
        }
        let now = pages as f64 / within.as_secs_f64() / 1e6;
        self.rate = Some(self.rate.map_or(now, |rate| now.max(rate)));
        true
    }
    /// The epoch is over: a program that has become slower is trusted more.
    #[must_use]
    pub fn next_epoch(self) -> WriteRate {
        WriteRate { rate: self.rate.map(|rate| rate / 2.0), ..self }
    }
    /// Part of the greatest possible speed that is expected of so many threads.
    fn share(&self, writers: u32) -> f64 {
        let most = f64::from(writers.max(1)) / COPY_US as f64;
        self.rate.map_or(1.0, |rate| (2.0 * rate / most).clamp(0.01, 1.0))
    }
    /// What [`holdfast_pager::Budget::judge`] is to look ahead if the next look is planned after `gap`: microseconds at
    /// the greatest possible speed.
    pub fn ahead_us(&self, gap: Duration, writers: u32) -> u64 {
        ((gap + self.late + self.park).as_secs_f64() * 1e6 * self.share(writers)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_unknown_program_is_expected_to_write_as_fast_as_the_kernel_copies() {
        let write_rate = WriteRate::default();
        assert_eq!(write_rate.ahead_us(MS, 1), 2000);
        assert_eq!(write_rate.ahead_us(MS, 8), 2000);
    }

    #[test]
    fn a_slow_program_is_trusted_as_far_as_twice_its_speed() {
        let mut write_rate = WriteRate::default();
        assert!(write_rate.saw(50, MS) && write_rate.saw(1, MS));
        assert!(!write_rate.saw(1_000_000, MS / 4));
        assert_eq!(write_rate.ahead_us(MS, 1), 400);
        assert_eq!(write_rate.next_epoch().ahead_us(MS, 1), 200);
        // Never more than is possible, never nothing.
        write_rate.saw(1_000_000, MS);
        assert_eq!(write_rate.ahead_us(MS, 1), 2000);
        let mut idle = WriteRate::default();
        idle.saw(0, MS);
        assert_eq!(idle.ahead_us(9 * MS, 1), 100);
    }

    #[test]
    fn lateness_is_a_mean_without_accidents() {
        let mut write_rate = WriteRate::default();
        for _ in 0..100 {
            write_rate.was_late(Duration::from_secs(1));
            write_rate.parked_in(2 * MS);
        }
        let ahead = write_rate.ahead_us(MS, 1);
        assert!((6_900..=7_000).contains(&ahead), "{ahead}");
        for _ in 0..100 {
            write_rate.was_late(Duration::ZERO);
        }
        assert!(write_rate.ahead_us(MS, 1) < 3_100);
    }
}
