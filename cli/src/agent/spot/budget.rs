//! How long it takes until what the program has now is where the end of this machine does not reach it.
//!
//! Used by the watch of `--on-spot`, which takes an image ahead while there is no notice, and decides at the notice
//! what goes first. Pure: the tiers' speeds are what the copies before have shown, the image's size is what
//! `holdfast check` says. Invariant: nothing here is a promise; what was not measured yet is taken from a middling
//! network.

use holdfast_image::Epoch;
use holdfast_tiers::stack::{Activity, TierState};
use std::time::Duration;

/// Believed of a tier to which nothing was copied yet, bytes per second: a network of 1 Gbit/s.
const UNKNOWN: u64 = 100 << 20;

/// What is to be done until an image is on a tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Need {
    /// The tier, as listings call it.
    pub tier: String,
    /// Bytes of the next image.
    pub image: u64,
    /// Bytes of images that are there and have not come so far.
    pub waiting: u64,
    /// Bytes per second.
    pub speed: u64,
}

impl Need {
    /// Until those that wait are there.
    pub fn of_waiting(&self) -> Duration {
        self.time(self.waiting)
    }

    /// Until the next one is there, too.
    pub fn of_all(&self) -> Duration {
        self.time(self.waiting.saturating_add(self.image))
    }

    /// Whether those that wait are to go first: there is time for them, and not for all.
    pub fn is_for_those_that_wait(&self, left: Duration) -> bool {
        self.waiting > 0 && self.of_waiting() < left && self.of_all() > left
    }

    fn time(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.speed.max(1) as f64).unwrap_or(Duration::MAX)
    }
}

/// Whether a tier is below the store, and takes images.
pub fn is_below(tier: &TierState) -> bool {
    !tier.spec.is_store() && tier.read_only.is_none()
}

/// What the tier needs that will have the next image first; none: there is none of them ([`is_below`]).
///
/// `image`: bytes of the next one. `size`: bytes that an image has added.
pub fn nearest(below: &[TierState], image: u64, size: &dyn Fn(Epoch) -> u64) -> Option<Need> {
    let need = |tier: &TierState| {
        let waiting = tier.waiting.iter().fold(0_u64, |sum, &epoch| {
            sum.saturating_add(match tier.activity {
                Activity::Copying { epoch: now, done, total } if now == epoch => total.saturating_sub(done),
                _ => size(Epoch(epoch)),
            })
        });
        let speed = tier.speed.unwrap_or(UNKNOWN).min(tier.spec.rate.unwrap_or(u64::MAX));
        Need { tier: tier.spec.name(), image, waiting, speed }
    };
    below.iter().map(need).min_by_key(Need::of_all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_bytes_by_speed_and_never_overflows() {
        let need = |image, waiting, speed| Need { tier: "s3://b".into(), image, waiting, speed };
        let some = need(30 << 20, 10 << 20, 10 << 20);
        assert_eq!((some.of_waiting().as_secs(), some.of_all().as_secs()), (1, 4));
        let first = |left| some.is_for_those_that_wait(Duration::from_secs(left));
        assert_eq!([1, 2, 3, 4].map(first), [false, true, true, false], "too late for all, or time for all");
        assert!(!need(30 << 20, 0, 10 << 20).is_for_those_that_wait(Duration::from_secs(2)), "none waits");
        let all = need(u64::MAX, u64::MAX, 0);
        assert!(all.of_all() > Duration::from_secs(1 << 60));
    }
}
