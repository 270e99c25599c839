//! How fast the program writes, and how late the watcher is: what it takes to keep the bound on copies between two
//! looks at it. Pure; owned by the watcher, passed on from one checkpoint to the next.
//!
//! The kernel makes a copy in [`COPY_US`] at least, so that a bound could be kept by looking ahead at that speed. Few
//! programs write so fast: once it is known how fast this one does, twice that is expected of it. Some are faster:
//! where memory that was given back is used again, one page fault may give the program a huge page, which the image
//! still needs as 512 of before. The watcher itself
//! may have to wait for a processor, and holding the program takes a moment: both are expected to happen again.
//! Invariant: nothing here depends on the clock; times come in.

use holdfast_image::PageCount;
use holdfast_pager::budget::COPY_US;
use std::time::Duration;

/// Lateness beyond this is an accident that is not expected again: a program that was held for fear of it would be
/// held through the whole flush.
const LATEST: Duration = Duration::from_millis(4);
/// After so many flushes that have kept the bound the program is trusted again.
const REMEMBERED: u32 = 32;
/// Pages of a huge page.
pub const HUGE: f64 = 512.0;
/// Fewer pages say nothing about the pages of a page fault.
pub const TELLING: u64 = 64;
/// More than so many times the speed at which the kernel copies single pages is expected of no program.
const FASTEST: f64 = 32.0;
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
    /// The same of this epoch alone.
    now: Option<f64>,
    /// Most pages of one page fault; at least one.
    per_fault: f64,
    /// For how many flushes it is remembered that one had more copies than it may.
    overran: u32,
}

impl Default for WriteRate {
    fn default() -> WriteRate {
        let half = Duration::from_micros(500);
        WriteRate { late: half, park: half, rate: None, now: None, per_fault: 1.0, overran: 0 }
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
        let most = |old: Option<f64>| Some(old.map_or(now, |old| now.max(old)));
        (self.rate, self.now) = (most(self.rate), most(self.now));
        true
    }
    /// So many pages were written for the first time by so many page faults at most.
    pub fn faulted(&mut self, pages: u64, faults: u64) {
        // What was written while it was looked is no sign.
        if pages > faults.saturating_add(TELLING) {
            self.per_fault = self.per_fault.max(pages as f64 / faults.max(1) as f64).min(HUGE);
        }
    }
    /// Pages that so many page faults may stand for.
    pub fn pages_of(&self, faults: u64) -> u64 {
        (faults as f64 * self.per_fault) as u64
    }
    /// A flush had more copies than it may, before the program was held.
    pub fn overran(&mut self) {
        self.overran = REMEMBERED;
    }
    /// Whether the program may write more than `limit` before the watcher has looked at it and held it: it is not to be
    /// resumed first.
    pub fn outruns(&self, limit: PageCount) -> bool {
        let first = (self.late + self.park).as_secs_f64() * 1e6;
        self.overran > 0 || self.rate.is_some_and(|rate| 2.0 * rate * first > limit.0 as f64)
    }
    /// The epoch is over: a program that has become slower is trusted more, not one that was held all the time.
    #[must_use]
    pub fn next_epoch(self) -> WriteRate {
        let rate = match self.now {
            Some(_) => self.rate.map(|rate| rate / 2.0),
            None => self.rate,
        };
        WriteRate { rate, now: None, overran: self.overran.saturating_sub(1), ..self }
    }
    /// Part of the greatest possible speed that is expected of so many threads.
    fn share(&self, writers: u32) -> f64 {
        if self.overran > 0 {
            return FASTEST;
        }
        let most = f64::from(writers.max(1)) / COPY_US as f64;
        self.rate.map_or(1.0, |rate| (2.0 * rate / most).clamp(0.01, FASTEST))
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
        assert_eq!(write_rate.ahead_us(MS, 1), 64_000);
        let mut idle = WriteRate::default();
        idle.saw(0, MS);
        assert_eq!(idle.ahead_us(9 * MS, 1), 100);
    }

    #[test]
    fn a_program_that_gets_huge_pages_is_expected_to_get_more() {
        let mut write_rate = WriteRate::default();
        assert_eq!((write_rate.pages_of(3), write_rate.outruns(PageCount(1))), (3, false));
        write_rate.faulted(60, 3);
        assert_eq!(write_rate.pages_of(3), 3, "written meanwhile");
        write_rate.faulted(1500, 3);
        write_rate.faulted(5000, 5000);
        assert_eq!(write_rate.pages_of(3), 1500);
        write_rate.saw(2000, MS);
        assert!(write_rate.outruns(PageCount(1000)) && !write_rate.outruns(PageCount(10_000)));
        // Held all the time: nothing says that it is slower now.
        let next = write_rate.next_epoch();
        assert!(next.outruns(PageCount(1000)) && next.next_epoch().outruns(PageCount(1000)));
        let mut over = WriteRate::default();
        over.overran();
        assert_eq!(over.ahead_us(MS, 1), 64_000, "held until what is left fits");
        let mut kept = 0;
        while over.outruns(PageCount(u64::MAX)) {
            over = over.next_epoch();
            kept += 1;
        }
        assert_eq!(kept, REMEMBERED);
        let mut slower = next;
        slower.saw(1, MS);
        assert!(!slower.next_epoch().next_epoch().next_epoch().outruns(PageCount(4000)));
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
