//! Packs frame by frame, by the codec that a sample has shown to be the best for the region that the frame lies in.
//!
//! A sample is 64 KiB of a frame of 1 MiB, in four pieces; it goes through the codecs. Their cost is that in time
//! of this thread alone: what else runs on the machine is no reason to choose otherwise. The choice is remembered
//! for a region of 16 MiB, by all workers, and made anew when a frame becomes more than a tenth larger or smaller
//! than the sample promised, once in a while where no frame can tell, and when the link has become another.

use super::choice::{GAIN, Relief, Trial, best};
use super::{Codec, Coder, Compression, SourceChoices};
use holdfast_image::{Addr, PAGE_SIZE};
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::HashMap;

/// Bytes of a region.
const REGION: u64 = 16 << 20;
/// Frames after which a choice is made anew, and before which it is not.
const SAMPLED_AFTER: u32 = 16;
const SAMPLED_BEFORE: u32 = 4;
/// A sample: so many pieces of so many bytes.
const PIECES: usize = 4;
const PIECE: usize = 4 * PAGE_SIZE as usize;
/// A frame that becomes larger or smaller than was promised by more than this part of it is of other data; where it is
/// small, by this part of the second number.
const DRIFT: f64 = 0.1;
const SMALL: f64 = 0.2;
/// Links that differ by a greater factor are not the same.
const OTHER_LINK: f64 = 1.5;

/// What is remembered of a region.
#[derive(Clone, Copy, Debug)]
struct Choice {
    trial: Trial,
    link: f64,
    frames: u32,
}

/// The choices of all regions, shared by all workers.
#[derive(Default, Debug)]
pub struct Choices {
    regions: Mutex<HashMap<u64, Choice>>,
    /// For what the source packs.
    pub(crate) of_source: SourceChoices,
}

/// See the head of the file.
pub struct Packer {
    compression: Compression,
    coder: Coder,
    sample: Vec<u8>,
}

thread_local! {
    /// What codecs need, from one image to the next: to make it anew costs as much as to pack a small one.
    static SPARE: Cell<Coder> = Cell::default();
}

impl Drop for Packer {
    fn drop(&mut self) {
        // A thread that ends keeps none.
        let _ = SPARE.try_with(|spare| spare.set(std::mem::take(&mut self.coder)));
    }
}

fn thread_ns() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    now.map_or(0.0, |now| now.tv_sec() as f64 * 1e9 + now.tv_nsec() as f64)
}

impl Packer {
    /// Of one worker.
    pub fn new(compression: Compression) -> Packer {
        let coder = SPARE.try_with(Cell::take).unwrap_or_default();
        Packer { compression, coder, sample: Vec::new() }
    }

    /// The data of a frame whose first page is at `first`, and how they are stored.
    pub fn pack<'a>(
        &'a mut self,
        choices: &Choices,
        first: Addr,
        raw: &'a [u8],
        relief: Relief,
    ) -> (Codec, &'a [u8]) {
        let region = first.0 / REGION;
        let trial = match self.compression {
            Compression::By(codec) => Trial { codec, ..Trial::RAW },
            Compression::Auto => self.choose(choices, region, raw, relief),
        };
        if trial.codec == Codec::Raw {
            return (Codec::Raw, raw);
        }
        let begun = thread_ns();
        let packed = self.coder.encode(trial.codec, raw);
        let part = |of: f64| of / raw.len().max(1) as f64;
        let (size, cost) = (packed.map_or(1.0, |data| part(data.len() as f64)), part(thread_ns() - begun));
        choices.note(region, Trial { codec: trial.codec, size, cost }, relief);
        packed.filter(|_| size <= GAIN).map_or((Codec::Raw, raw), |data| (trial.codec, data))
    }

    fn choose(&mut self, choices: &Choices, region: u64, raw: &[u8], relief: Relief) -> Trial {
        if let Some(trial) = choices.get(region, relief.link) {
            return trial;
        }
        let trial = best(&self.trials(raw, relief), relief);
        choices.regions.lock().insert(region, Choice { trial, link: relief.link, frames: 0 });
        trial
    }

    /// What all codecs make of a sample.
    fn trials(&mut self, raw: &[u8], relief: Relief) -> Vec<Trial> {
        self.sample.clear();
        let distance = if raw.len() > PIECES * PIECE { raw.len() / PIECES } else { PIECE };
        for from in (0..raw.len()).step_by(distance).take(PIECES) {
            self.sample.extend_from_slice(&raw[from..raw.len().min(from + PIECE)]);
        }
        let len = self.sample.len().max(1) as f64;
        let mut trials: Vec<Trial> = Vec::new();
        for codec in Codec::ALL.into_iter().filter(|codec| *codec != Codec::Raw) {
            // Where LZ4 keeps up with the link no longer, the slower one need not be tried.
            if codec == Codec::Zstd && trials.last().is_some_and(|lz4| lz4.waits_for_processor(relief)) {
                continue;
            }
            let begun = thread_ns();
            let size = self.coder.encode(codec, &self.sample).map_or(1.0, |data| data.len() as f64 / len);
            trials.push(Trial { codec, size, cost: (thread_ns() - begun).max(0.0) / len });
        }
        trials
    }
}

impl Choices {
    /// What is to be done by now with a frame of the region; `None`: a sample is to be taken.
    fn get(&self, region: u64, link: f64) -> Option<Trial> {
        let mut choices = self.regions.lock();
        let choice = choices.get_mut(&region)?;
        choice.frames += 1;
        let same = choice.link <= link * OTHER_LINK && link <= choice.link * OTHER_LINK;
        // A frame that is stored as it is does not tell what it would have become.
        let known = choice.trial.codec != Codec::Raw || choice.frames < SAMPLED_AFTER;
        (same && known).then_some(choice.trial)
    }
    /// What became of a frame of the region.
    fn note(&self, region: u64, frame: Trial, relief: Relief) {
        let mut choices = self.regions.lock();
        let Some(choice) = choices.get_mut(&region).filter(|choice| choice.trial.codec == frame.codec) else {
            return;
        };
        if choice.frames < SAMPLED_BEFORE {
            // A sample is short of what repeats from afar, and lies in the processor's caches: what the first frames
            // become is what is promised.
            choice.trial = best(&[frame], relief);
        } else if (frame.size - choice.trial.size).abs() > DRIFT * choice.trial.size.max(SMALL) {
            choices.remove(&region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::noise;
    use super::*;

    const SLOW: Relief = Relief { link: 1e6, processors: 2.0, threads: 2.0 };

    #[test]
    fn noise_is_left_and_text_is_packed_again_after_noise() {
        let (mut packer, choices) = (Packer::new(Compression::Auto), Choices::default());
        let (noise, text) = (noise(1 << 20), b"all work and no play ".repeat(1 << 15));
        for _ in 0..10 {
            assert_eq!(packer.pack(&choices, Addr(0), &noise, SLOW).0, Codec::Raw);
        }
        let packed = (0..20).map(|_| packer.pack(&choices, Addr(0), &text, SLOW).0);
        assert!(packed.filter(|codec| *codec != Codec::Raw).count() > 10);
        let (codec, data) = packer.pack(&choices, Addr(0), &text, SLOW);
        assert!(codec != Codec::Raw && data.len() < text.len() / 10);
        // And noise after text.
        for _ in 0..10 {
            packer.pack(&choices, Addr(0), &noise, SLOW);
        }
        assert_eq!(choices.get(0, SLOW.link).map(|trial| trial.codec), Some(Codec::Raw));
        // What is chosen for one region is not chosen for the next.
        assert_eq!(choices.get(1, SLOW.link), None);
        // Nor for another link.
        assert_eq!(choices.get(0, SLOW.link * 2.0), None);
    }

    #[test]
    fn who_names_a_codec_gets_it() {
        let text = b"all work and no play ".repeat(1 << 10);
        for codec in Codec::ALL {
            let compression: Compression = codec.name().parse().unwrap_or_default();
            assert_eq!(compression, Compression::By(codec));
            assert_eq!(compression.to_string(), codec.name());
            let mut packer = Packer::new(compression);
            assert_eq!(packer.pack(&Choices::default(), Addr(0), &text, SLOW).0, codec);
            let noise = noise(1 << 16);
            let (left, data) = packer.pack(&Choices::default(), Addr(0), &noise, SLOW);
            assert_eq!((left, data), (Codec::Raw, &noise[..]));
        }
        assert_eq!("auto".parse(), Ok(Compression::Auto));
        assert!("brotli".parse::<Compression>().is_err());
    }

    #[test]
    fn a_short_frame_is_its_own_sample() {
        let mut packer = Packer::new(Compression::Auto);
        for len in [0, 1, 4096, 3 * PIECE + 1, 5 * PIECE] {
            let trials = packer.trials(&vec![7; len], SLOW);
            assert!((3..=4).contains(&trials.len()));
            assert!(packer.sample.len() == len.min(PIECES * PIECE), "{len}");
        }
    }
}
