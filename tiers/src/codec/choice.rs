//! Which codec makes a frame durable soonest.
//!
//! Several threads pack and send at the same time, different frames: of a frame only the longest counts of what the
//! link needs for it (bytes / (ratio * link)), what the processors need (bytes / speed), and what the threads need,
//! each of which packs a frame and then sends it. A single thread has the link wait while it packs: it needs both.
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
        let packed = self.cost / relief.processors.max(0.1);
        link.max(packed).max((self.cost + link) / relief.threads.max(1.0))
    }
}

/// What packing relieves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Relief {
    /// Bytes per second that go to durable storage.
    pub link: f64,
    /// Processors that pack.
    pub processors: f64,
    /// Threads that pack a frame, send it, and go on with the next one.
    pub threads: f64,
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
        Relief { link: link * MB, processors: 1.0, threads: 2.0 }
    }

    #[test]
    fn the_slower_the_link_the_smaller_the_frame() {
        // The second row of tiers.md, 7: "wave shell".
        let trials = [trial(Codec::Lz4, 5.3, 1011.0), trial(Codec::Zstd, 10.8, 820.0)];
        assert_eq!(best(&trials, relief(2000.0)).codec, Codec::Raw);
        assert_eq!(best(&trials, relief(500.0)).codec, Codec::Lz4);
        assert_eq!(best(&trials, relief(20.0)).codec, Codec::Zstd);
        // More processors make a fast link the bottleneck.
        assert_eq!(
            best(&trials, Relief { link: 2000.0 * MB, processors: 4.0, threads: 4.0 }).codec,
            Codec::Lz4
        );
    }

    #[test]
    fn a_single_thread_packs_only_what_spares_the_link_more_time_than_it_takes() {
        let alone = |link: f64| Relief { threads: 1.0, ..relief(link) };
        // What the server of objects met: a link of 1.3 GB/s, a version that packs to a third at 1.1 GB/s.
        let trials = [trial(Codec::ShuffleLz4, 3.0, 1100.0)];
        assert_eq!(best(&trials, alone(1300.0)), Trial::RAW);
        assert_eq!(best(&trials, alone(500.0)).codec, Codec::ShuffleLz4);
        assert_eq!(best(&trials, relief(1000.0)).codec, Codec::ShuffleLz4);
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
            link in 1.0..10_000.0_f64, processors in 1.0..8.0_f64, threads in 1.0..10.0_f64,
        ) {
            let trials: Vec<Trial> = trials
                .into_iter()
                .map(|(size, cost)| Trial { codec: Codec::Lz4, size, cost })
                .collect();
            let relief = Relief { link: link * MB, processors, threads };
            let chosen = best(&trials, relief).durable(relief);
            let least = trials.iter().map(|trial| trial.durable(relief)).fold(f64::INFINITY, f64::min);
            prop_assert!(chosen <= Trial::RAW.durable(relief));
            prop_assert!(chosen <= least * 1.3, "{chosen} instead of {least}");
        }
    }
}
