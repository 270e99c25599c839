//! A job that makes processes without end: the agent then hears their registrations in batches.
//!
//! Used by the loop. To wake up twice for each program that a script runs costs the script a tenth of its time where
//! processors are short, and most of them have ended before anything could be done with what they say. What must
//! hold: the first registrations are heard at once, for they may be of a daemon whose parent ends.

use std::time::{Duration, Instant};

/// So many registrations in a time of [`WINDOW`] are a rush.
const MANY: u32 = 24;
const WINDOW: Duration = Duration::from_millis(100);
/// Between two batches.
const PAUSE: Duration = Duration::from_millis(2);

/// See the head of the file.
#[derive(Debug, Default)]
pub struct Rush {
    since: Option<Instant>,
    count: u32,
    is_on: bool,
}

impl Rush {
    /// One has registered.
    pub fn registered(&mut self, now: Instant) {
        self.turn(now);
        self.count += 1;
        self.is_on |= self.count >= MANY;
    }

    /// How long to hear nothing now.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        self.turn(now);
        self.is_on.then_some(PAUSE)
    }

    /// A new time begins when one is over: it is a rush as long as each has had that many.
    fn turn(&mut self, now: Instant) {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= WINDOW) {
            self.is_on &= self.count >= MANY;
            (self.since, self.count) = (Some(now), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rush_begins_with_many_and_ends_a_while_after_them() {
        let (mut rush, begun) = (Rush::default(), Instant::now());
        let at = |ms: u64| begun + Duration::from_millis(ms);
        for ms in 0..1000 {
            rush.registered(at(ms * 10));
            assert_eq!(rush.pause(at(ms * 10)), None, "ten in a tenth of a second");
        }
        for ms in 0..200 {
            rush.registered(at(10_000 + ms));
        }
        assert_eq!(rush.pause(at(10_200)), Some(PAUSE));
        assert_eq!(rush.pause(at(10_301)), None);
        rush.registered(at(10_302));
        assert_eq!(rush.pause(at(10_302)), None);
    }
}
