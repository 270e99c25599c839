//! Whether it is worth its time to pack what one thread stores, by what both ways have cost before.
//!
//! Used by the server of objects for each rank (`cli/src/serve/ranks.rs`). What a version costs is the time until it is
//! durable and the processors' time on top: they are the program's, and a server that packs because one is idle now
//! takes it from what the program would do with it. Sizes and speeds of codecs and links do not foretell that: what a
//! version costs besides its bytes (files, syncs) is most of a small one.
//! Invariants: both ways are tried first; the way that costs more is tried again so seldom that the trials add a
//! thirtieth at most; of equal ways the one that does not pack is taken.

/// A trial of the other way may cost this part of what is stored between two of them.
const TRIALS: f64 = 1.0 / 32.0;
/// Least and most versions between two trials.
const BETWEEN: (u32, u32) = (32, 4096);
/// Less says nothing about either way, bytes.
const LEAST: u64 = 64 << 10;

/// What one way has cost, nanoseconds per byte: a quarter of the last, three of what was before; after a trial a half,
/// for what was before is long ago.
#[derive(Clone, Copy, Debug, Default)]
struct Cost(Option<f64>);

impl Cost {
    fn note(&mut self, cost: f64, weight: f64) {
        self.0 = Some(self.0.map_or(cost, |before| before + (cost - before) * weight));
    }
}

/// See the head of the file.
#[derive(Clone, Debug, Default)]
pub struct WorthPacking {
    raw: Cost,
    packed: Cost,
    /// Versions since both ways were known, or since the last trial.
    since: u32,
}

impl WorthPacking {
    /// Whether the next version is to be packed.
    pub fn packs(&self) -> bool {
        let (Some(raw), Some(packed)) = (self.raw.0, self.packed.0) else {
            return self.packed.0.is_none();
        };
        let is_best = packed < raw;
        let (less, more) = (packed.min(raw).max(f64::MIN_POSITIVE), packed.max(raw));
        let between = (more / less / TRIALS).clamp(f64::from(BETWEEN.0), f64::from(BETWEEN.1));
        is_best != (f64::from(self.since) >= between)
    }

    /// A version of so many bytes that changed took so long to become durable, and so much of a processor.
    pub fn stored(&mut self, packed: bool, bytes: u64, took_ns: u64, processor_ns: u64) {
        if bytes < LEAST {
            return;
        }
        let is_other = packed == self.packs_less();
        self.since = if is_other { 0 } else { self.since.saturating_add(1) };
        let cost = (took_ns as f64 + processor_ns as f64) / bytes as f64;
        let weight = if is_other { 0.5 } else { 0.25 };
        if packed { self.packed.note(cost, weight) } else { self.raw.note(cost, weight) }
    }

    /// Whether the way that costs more is the one that packs.
    fn packs_less(&self) -> bool {
        !matches!((self.raw.0, self.packed.0), (Some(raw), Some(packed)) if packed < raw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 2 << 20;

    /// Stores so many versions, each at what the two ways take: (time, processor), in microseconds. How many of them
    /// were packed, and what all of them took together.
    fn run(worth: &mut WorthPacking, count: u32, raw: (u64, u64), packed: (u64, u64)) -> (u32, u64) {
        let (mut packs, mut all) = (0, 0);
        for _ in 0..count {
            let way = worth.packs();
            let (took, processor) = if way { packed } else { raw };
            worth.stored(way, BYTES, took * 1000, processor * 1000);
            packs += u32::from(way);
            all += took + processor;
        }
        (packs, all)
    }

    #[test]
    fn both_ways_are_tried_and_the_cheaper_one_is_taken() {
        // Eight ranks by 2 MB every 10 ms: packing takes longer, though bytes and speed of the link say otherwise.
        let mut worth = WorthPacking::default();
        assert!(worth.packs());
        let (packed, _) = run(&mut worth, 1000, (4500, 2600), (6000, 6100));
        assert!((2..40).contains(&packed), "{packed}");
        // A store of 20 MiB/s.
        let mut worth = WorthPacking::default();
        let (packed, all) = run(&mut worth, 1000, (100_000, 2600), (10_000, 6000));
        assert!((990..1000).contains(&packed), "{packed}");
        assert!(all < 1000 * 16_000 * 21 / 20, "trials cost too much: {all}");
    }

    #[test]
    fn a_processor_counts_as_much_as_the_link() {
        // Sooner by a tenth, for three times the processor.
        let (packed, _) = run(&mut WorthPacking::default(), 100, (4500, 2000), (4000, 6000));
        assert!(packed < 10, "{packed}");
        // Equal: as it is.
        let (packed, _) = run(&mut WorthPacking::default(), 100, (4000, 4000), (4000, 4000));
        assert!(packed < 10, "{packed}");
    }

    #[test]
    fn a_link_that_becomes_slow_is_noticed() {
        let mut worth = WorthPacking::default();
        run(&mut worth, 200, (4500, 2600), (6000, 6100));
        run(&mut worth, 100, (100_000, 2600), (10_000, 6000));
        let (packed, _) = run(&mut worth, 100, (100_000, 2600), (10_000, 6000));
        assert!(packed > 95, "{packed}");
        // And one that is fast again.
        run(&mut worth, 600, (4500, 2600), (6000, 6100));
        let (packed, _) = run(&mut worth, 100, (4500, 2600), (6000, 6100));
        assert!(packed < 10, "{packed}");
    }

    #[test]
    fn little_data_teaches_nothing() {
        let mut worth = WorthPacking::default();
        worth.stored(true, LEAST - 1, 1, 1);
        assert!(worth.packs());
        worth.stored(true, LEAST, 1, 1);
        assert!(!worth.packs());
    }
}
