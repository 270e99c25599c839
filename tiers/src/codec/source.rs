//! Which codec a source is to use that packs by itself, on a device: that which makes a batch durable soonest, as the
//! last batches have shown.
//!
//! Asked by the workers of the pipeline before each batch, and told after it. There is no sample: the first batches go
//! by each codec in turn. A device's time is its own, so that a batch costs what it took by the clock, once, whatever
//! the number of processors. Invariants: what was chosen is tried anew after a while, and so is what was not.

use super::choice::{Relief, Trial, best};
use super::{Codec, Compression};
use holdfast_image::pages::SourceCodec;
use parking_lot::Mutex;

/// Batches after which all is tried anew.
const ANEW: u32 = 64;

#[derive(Default, Debug)]
struct Known {
    trials: Vec<Trial>,
    asked: u32,
}

/// See the head of the file. Shared by all workers.
#[derive(Default, Debug)]
pub struct SourceChoices(Mutex<Known>);

impl SourceChoices {
    /// The codec of the next batch; `None`: it is to be read as it is.
    pub fn choose(&self, compression: Compression, relief: Relief) -> Option<SourceCodec> {
        match compression {
            Compression::By(codec) => source_codec(codec),
            Compression::Auto => self.soonest(relief),
        }
    }

    fn soonest(&self, relief: Relief) -> Option<SourceCodec> {
        let mut known = self.0.lock();
        known.asked += 1;
        if known.asked > ANEW {
            *known = Known::default();
        }
        let untried = [Codec::Lz4, Codec::Zstd]
            .into_iter()
            .find(|codec| known.trials.iter().all(|trial| trial.codec != *codec));
        let relief = Relief { processors: 1.0, ..relief };
        // Where LZ4 keeps up with the link no longer, the slower one need not be tried.
        let is_worth_it = |codec: &Codec| {
            *codec == Codec::Lz4 || !known.trials.iter().any(|lz4| lz4.waits_for_processor(relief))
        };
        let codec = untried.filter(is_worth_it).unwrap_or_else(|| best(&known.trials, relief).codec);
        drop(known);
        source_codec(codec)
    }

    /// What a batch became.
    pub fn note(&self, batch: Trial) {
        let mut known = self.0.lock();
        known.trials.retain(|trial| trial.codec != batch.codec);
        known.trials.push(batch);
    }
}

/// What devices have; a shuffle they do not.
fn source_codec(codec: Codec) -> Option<SourceCodec> {
    match codec {
        Codec::Lz4 => Some(SourceCodec::Lz4),
        Codec::Zstd => Some(SourceCodec::Zstd),
        Codec::Raw | Codec::ShuffleLz4 | Codec::ShuffleZstd => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Relief = Relief { link: 1e8, processors: 2.0, threads: 2.0 };
    const FAST: Relief = Relief { link: 1e11, processors: 2.0, threads: 2.0 };

    fn trial(codec: Codec, size: f64, cost: f64) -> Trial {
        Trial { codec, size, cost }
    }

    #[test]
    fn each_is_tried_and_the_soonest_is_chosen_until_it_is_tried_anew() {
        let choices = SourceChoices::default();
        let chosen = |relief| choices.choose(Compression::Auto, relief);
        assert_eq!(chosen(SLOW), Some(SourceCodec::Lz4));
        choices.note(trial(Codec::Lz4, 0.5, 0.05));
        assert_eq!(chosen(SLOW), Some(SourceCodec::Zstd));
        choices.note(trial(Codec::Zstd, 0.3, 0.2));
        assert_eq!((chosen(SLOW), chosen(FAST)), (Some(SourceCodec::Zstd), None));
        assert_eq!((0..ANEW).filter(|_| chosen(FAST).is_some()).count(), 4, "{choices:?}");
    }

    #[test]
    fn what_a_device_cannot_do_is_read() {
        let choices = SourceChoices::default();
        for (codec, expected) in [
            (Codec::Lz4, Some(SourceCodec::Lz4)),
            (Codec::Zstd, Some(SourceCodec::Zstd)),
            (Codec::Raw, None),
            (Codec::ShuffleZstd, None),
        ] {
            assert_eq!(choices.choose(Compression::By(codec), FAST), expected);
        }
        // LZ4 that does not keep up: Zstandard is not tried.
        choices.note(trial(Codec::Lz4, 0.5, 100.0));
        assert_eq!(choices.choose(Compression::Auto, FAST), None);
    }
}
