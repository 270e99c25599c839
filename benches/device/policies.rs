//! The policies that are compared, in the setting of the paper on prefetching at a part of its sizes and rates.
//! Used by the measurement beside this, and by the test of the stand-in driver.

use crate::machine::Setup;
use crate::rivals::{Kind, Rival};
use crate::simulator::{Engine, Links, Op, Outcome, simulate};
use crate::workload::{COUNT, DEVICE, HOST, MB, order, program, sizes};
use holdfast_tiers::policy::{Hierarchy, SegmentId, TierLimits, Ties};

/// A policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    Holdfast,
    Rival(Kind),
}

/// All of them; Belady as it moves least.
pub const ALL: [Policy; 6] = [
    Policy::Holdfast,
    Policy::Rival(Kind::Lru),
    Policy::Rival(Kind::Fifo),
    Policy::Rival(Kind::Uvm),
    Policy::Rival(Kind::Adios),
    Policy::Rival(Kind::Belady { greedy: false }),
];

impl Policy {
    pub fn name(self) -> &'static str {
        match self {
            Policy::Holdfast => "Holdfast",
            Policy::Rival(Kind::Lru) => "LRU",
            Policy::Rival(Kind::Fifo) => "FIFO",
            Policy::Rival(Kind::Uvm) => "UVM-like",
            Policy::Rival(Kind::Adios) => "ADIOS-like",
            Policy::Rival(Kind::Belady { .. }) => "Belady",
        }
    }
}

/// A program of the paper, and where it runs.
pub struct Cell {
    pub setup: Setup,
    pub program: Vec<Op>,
    order: Vec<SegmentId>,
}

impl Cell {
    /// `words`: phases, order, hints, as `WAIT/irregular/all`. Bytes and rates are divided by `part`; the device's
    /// link has 128 GB/s by that, which memory takes. Of the segments there are `count`, and as much less cache.
    pub fn new(words: &str, part: u64, count: u64, is_real: bool) -> Cell {
        let words: Vec<&str> = words.split('/').collect();
        let &[phases, order_name, hints] = &words[..] else { panic!("{words:?}: PHASES/ORDER/HINTS") };
        let mut sizes: Vec<u64> = sizes(false, part).iter().map(|bytes| bytes / 8 * 8).collect();
        sizes.truncate(count as usize);
        let order: Vec<SegmentId> = order(order_name).into_iter().filter(|id| id.0 < count).collect();
        let program = program(&sizes, &order, hints, phases == "WAIT");
        let slots = [DEVICE, HOST].map(|bytes| (bytes / (128 * MB) * count / COUNT) as usize);
        let setup = Setup {
            bytes: sizes[0] as usize,
            slots: [slots[0], slots[1], count as usize],
            rates: [128_000 * MB / part, 12_500 * MB / part, 2_000 * MB / part],
            is_real,
        };
        Cell { setup, program, order }
    }

    pub fn engine(&self, policy: Policy) -> Box<dyn Engine + Send> {
        let Setup { bytes, slots, rates, .. } = &self.setup;
        let room = |tier: usize| (bytes * slots[tier]) as u64;
        match policy {
            Policy::Rival(kind) => Box::new(Rival::new(kind, room(0), room(1), &self.order)),
            Policy::Holdfast => {
                let limits = [Some(room(0)), Some(room(1)), None].into_iter().zip(rates);
                let limits = limits.map(|(capacity, &rate)| TierLimits { capacity, contiguous: false, rate });
                Box::new(Hierarchy::new(&limits.collect::<Vec<_>>(), Ties::default()))
            }
        }
    }

    pub fn simulated(&self, policy: Policy) -> Outcome {
        let links = Links::own(&self.setup.rates);
        simulate(self.engine(policy).as_mut(), &links, &self.program, true)
    }
}

/// The pairs of policies that one of two lists of times orders otherwise than the other; those whose times in the
/// first differ by no more than `percent` are not counted.
pub fn misplaced(first: &[u64], second: &[u64], percent: u64) -> Vec<[&'static str; 2]> {
    let mut pairs = Vec::new();
    for (faster, slower) in (0..first.len()).flat_map(|one| (0..first.len()).map(move |two| (one, two))) {
        if first[faster] * (100 + percent) < first[slower] * 100 && second[faster] >= second[slower] {
            pairs.push([ALL[faster], ALL[slower]].map(Policy::name));
        }
    }
    pairs
}
