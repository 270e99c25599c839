//! What is known of an ensemble of runs before one of them begins: sizes, intervals, and how fast the codec is.
//!
//! Measured in the first run, kept in the store, read by [`super::schedule()`]; [`Profile::drifted`] says when it no
//! longer fits and has to be measured anew. The policy neither reads nor writes it: it is data.
//! Invariant: nothing here is trusted; a profile without a sample or a curve gives a plan for nothing.

use super::rates::{part, transfer_ns};

/// One segment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sample {
    /// Time of the application since the segment before, in nanoseconds, without what it waited.
    pub interval_ns: u64,
    /// Its size.
    pub bytes: u64,
    /// Its size when compressed.
    pub compressed: u64,
}

/// How long the codec takes: measured, by size.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CodecCurve {
    /// Bytes at a time and nanoseconds for them, ascending by bytes.
    pub curve: Vec<(u64, u64)>,
    /// Buffer that it needs beside its input, per thousand bytes of that.
    pub temporary_per_mille: u64,
}

impl CodecCurve {
    /// Nanoseconds for so many bytes: between two measured sizes along the straight line, beyond the last with its
    /// speed, below the first as long as for the first.
    pub fn ns(&self, bytes: u64) -> u64 {
        let after = self.curve.partition_point(|&(size, _)| size < bytes);
        match (after.checked_sub(1).and_then(|before| self.curve.get(before)), self.curve.get(after)) {
            (None, None) => u64::MAX,
            (None, Some(&(_, ns))) => ns,
            (Some(&(size, ns)), None) => part(bytes, ns, size),
            (Some(&(size0, ns0)), Some(&(size1, ns1))) => {
                ns0.saturating_add(part(bytes - size0, ns1.saturating_sub(ns0), size1 - size0))
            }
        }
    }

    /// Bytes of buffer beside so many of input.
    pub fn temporary(&self, bytes: u64) -> u64 {
        part(bytes, self.temporary_per_mille, 1000)
    }
}

/// What the first run of an ensemble has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Profile {
    /// The segments of the run.
    pub samples: Vec<Sample>,
    /// The codec.
    pub codec: CodecCurve,
    /// Bytes per second of the link that the segments go over.
    pub rate: u64,
}

/// Drift is judged from so many segments on.
const ENOUGH: usize = 4;
/// One part in this many is drift.
const DRIFT_PART: u64 = 10;

impl Profile {
    /// Whether a run that has shown so much differs by more than a tenth, in bytes, in bytes after compression, or in
    /// time: in all of it so far, so that what is late once and early once is no drift.
    pub fn drifted(&self, seen: &[Sample]) -> bool {
        if seen.len() > self.samples.len() {
            return true;
        }
        if seen.len() < ENOUGH {
            return false;
        }
        let expected = &self.samples[..seen.len()];
        let far = |value: fn(&Sample) -> u64| {
            let sum = |samples: &[Sample]| samples.iter().map(|s| u128::from(value(s))).sum::<u128>();
            let (is, was) = (sum(seen), sum(expected));
            is.abs_diff(was) * u128::from(DRIFT_PART) > was
        };
        far(|s| s.interval_ns) || far(|s| s.bytes) || far(|s| s.compressed)
    }

    /// Time in which the link takes so many bytes.
    pub fn link_ns(&self, bytes: u64) -> u64 {
        transfer_ns(bytes, self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        Profile {
            samples: vec![Sample { interval_ns: 1000, bytes: 100, compressed: 50 }; 10],
            codec: CodecCurve { curve: vec![(10, 100), (110, 200)], temporary_per_mille: 500 },
            rate: 1_000_000_000,
        }
    }

    #[test]
    fn the_curve_is_met_between_before_and_after() {
        let codec = profile().codec;
        assert_eq!([1, 10, 60, 110, 220].map(|bytes| codec.ns(bytes)), [100, 100, 150, 200, 400]);
        assert_eq!(CodecCurve::default().ns(1), u64::MAX, "without a curve nothing is worth it");
        assert_eq!(codec.temporary(11), 5);
    }

    #[test]
    fn more_than_a_tenth_is_drift() {
        let profile = profile();
        let seen = |interval_ns, bytes, count| vec![Sample { interval_ns, bytes, compressed: 50 }; count];
        assert!(!profile.drifted(&seen(1100, 90, 10)));
        assert!(profile.drifted(&seen(1101, 100, 10)));
        assert!(profile.drifted(&seen(1000, 89, 4)));
        assert!(!profile.drifted(&seen(1000, 10, 3)), "too early to say");
        assert!(profile.drifted(&seen(1000, 100, 11)), "more segments than there were");
        let mut jitter = seen(1000, 100, 10);
        (jitter[2].interval_ns, jitter[3].interval_ns) = (1900, 100);
        assert!(!profile.drifted(&jitter));
    }

    #[test]
    fn a_profile_is_kept_as_json() -> Result<(), serde_json::Error> {
        let text = serde_json::to_string(&profile())?;
        assert_eq!(serde_json::from_str::<Profile>(&text)?, profile());
        Ok(())
    }
}
