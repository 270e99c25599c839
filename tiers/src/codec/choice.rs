//! Which codec makes a frame durable soonest.
//!
//! Packing and sending go on at the same time, of different frames: of a frame only the longer of both counts, its
//! bytes / (ratio * link) + max(0, bytes / speed - slack), where the slack of a processor is the time for which the
//! link is busy with as much. A fast link is never waited for, a slow one always.
//!
//! Pure. A frame stays as it is where packing gains little: only frames that are stored as they are can be mapped by a
//! restart, and packed ones cost it time.

use super::Codec;

/// A codec must make so much less of the time, and of the size, than storing as it is.
pub(super) const GAIN: f64 = 0.95;

/// What a codec made of a sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Trial {
    /// The codec.
    pub codec: Codec,
    /// Its size as a part of what it was.
    pub size: f64,
    /// Nanoseconds of a processor per byte that it was.
    pub cost: f64,
}

impl Trial {
    /// Stored as it is.
    pub const RAW: Trial = Trial { codec: Codec::Raw, size: 1.0, cost: 0.0 };

    /// Whether the link waits for the processors.
    pub fn waits_for_processor(&self, relief: Relief) -> bool {
        self.cost / relief.processors.max(0.1) > self.size * 1e9 / relief.link.max(1.0)
    }

    /// Nanoseconds per byte until it is durable.
    pub fn durable(&self, relief: Relief) -> f64 {
        let link = self.size * 1e9 / relief.link.max(1.0);
        link + (self.cost / relief.processors.max(0.1) - link).max(0.0)
    }
}

/// What packing relieves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Relief {
    /// Bytes per second that go to durable storage.
    pub link: f64,
    /// Processors that pack.
    pub processors: f64,
}

/// The best of the trials.
pub fn best(trials: &[Trial], relief: Relief) -> Trial {
    let raw = Trial::RAW.durable(relief);
    let worth = trials.iter().filter(|trial| trial.size <= GAIN && trial.durable(relief) <= GAIN * raw);
    // Of those that are as good as each other, the one that takes less of the processors, which are the program's.
    let rank = |trial: &Trial| trial.durable(relief) + trial.cost / 64.0;
    worth.copied().min_by(|one, two| rank(one).total_cmp(&rank(two))).unwrap_or(Trial::RAW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MB: f64 = 1e6;

    fn trial(codec: Codec, ratio: f64, speed: f64) -> Trial {
        Trial { codec, size: 1.0 / ratio, cost: 1e9 / (speed * MB) }
    }
    fn relief(link: f64) -> Relief {
        Relief { link: link * MB, processors: 1.0 }
    }

    #[test]
    fn the_slower_the_link_the_smaller_the_frame() {
        // The second row of tiers.md, 7: "wave shell".
        let trials = [trial(Codec::Lz4, 5.3, 1011.0), trial(Codec::Zstd, 10.8, 820.0)];
        assert_eq!(best(&trials, relief(2000.0)).codec, Codec::Raw);
        assert_eq!(best(&trials, relief(500.0)).codec, Codec::Lz4);
        assert_eq!(best(&trials, relief(20.0)).codec, Codec::Zstd);
        // More processors make a fast link the bottleneck.
        assert_eq!(best(&trials, Relief { link: 2000.0 * MB, processors: 4.0 }).codec, Codec::Lz4);
    }

    #[test]
    fn what_gains_little_stays_as_it_is() {
        assert_eq!(best(&[trial(Codec::Zstd, 1.04, 2000.0)], relief(20.0)), Trial::RAW);
        assert_eq!(best(&[], relief(20.0)), Trial::RAW);
        assert_eq!(best(&[trial(Codec::Zstd, 1.06, 2000.0)], relief(20.0)).codec, Codec::Zstd);
    }

    proptest! {
        #[test]
        fn no_codec_is_much_better_than_the_one_that_is_chosen(
            trials in prop::collection::vec((0.01..1.2_f64, 0.01..20.0_f64), 0..6),
            link in 1.0..10_000.0_f64, processors in 1.0..8.0_f64,
        ) {
            let trials: Vec<Trial> = trials
                .into_iter()
                .map(|(size, cost)| Trial { codec: Codec::Lz4, size, cost })
                .collect();
            let relief = Relief { link: link * MB, processors };
            let chosen = best(&trials, relief).durable(relief);
            let least = trials.iter().map(|trial| trial.durable(relief)).fold(f64::INFINITY, f64::min);
            prop_assert!(chosen <= Trial::RAW.durable(relief));
            prop_assert!(chosen <= least * 1.3, "{chosen} instead of {least}");
        }
    }
}
