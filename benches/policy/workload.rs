//! What the program does that the paper on prefetching measures with: 384 checkpoints of 128 MB or of growing sizes,
//! then restores of all of them in some order, with hints or without. Also at a part of these sizes
//! (`benches/hierarchy`).

use crate::simulator::Op;
use holdfast_tiers::policy::SegmentId;

pub const COUNT: u64 = 384;
pub const MB: u64 = 1_000_000;
/// The caches.
pub const DEVICE: u64 = 32 * 128 * MB;
pub const HOST: u64 = 256 * 128 * MB;
/// Between two checkpoints, and between two restores.
pub const INTERVAL_NS: u64 = 10_000_000;
/// Between the seeds of two processes.
const APART: u64 = 1000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Uniform, or 0.25 to 1.75 times that, growing, each up to a fifth less or more: 49 GB; divided by `part`.
pub fn sizes(grow: bool, part: u64) -> Vec<u64> {
    sizes_of(grow, part, 0)
}

/// Those of one of several processes: growing ones differ.
pub fn sizes_of(grow: bool, part: u64, process: u64) -> Vec<u64> {
    let mut random = Random(3 + APART * process);
    let grown = |index: u64, random: &mut Random| {
        let mean = 32 * MB + 192 * MB * index / COUNT;
        mean * (80 + random.below(41)) / 100
    };
    (0..COUNT).map(|index| if grow { grown(index, &mut random) } else { 128 * MB } / part).collect()
}

pub fn order(name: &str) -> Vec<SegmentId> {
    order_of(name, 0)
}

/// That of one of several processes: irregular ones differ.
pub fn order_of(name: &str, process: u64) -> Vec<SegmentId> {
    let mut order: Vec<SegmentId> = (0..COUNT).map(SegmentId).collect();
    match name {
        "reverse" => order.reverse(),
        "irregular" => {
            let mut random = Random(7 + APART * process);
            for index in (1..order.len()).rev() {
                order.swap(index, random.below(index as u64 + 1) as usize);
            }
        }
        _ => {}
    }
    order
}

pub fn program(sizes: &[u64], order: &[SegmentId], hints: &str, wait: bool) -> Vec<Op> {
    program_every(INTERVAL_NS, sizes, order, hints, wait)
}

/// With other intervals.
pub fn program_every(
    interval_ns: u64,
    sizes: &[u64],
    order: &[SegmentId],
    hints: &str,
    wait: bool,
) -> Vec<Op> {
    let mut ops = Vec::new();
    if hints == "all" {
        ops.extend(order.iter().map(|&id| Op::Hint(id)));
    }
    for (index, &bytes) in sizes.iter().enumerate() {
        ops.extend([Op::Compute(interval_ns), Op::Write(SegmentId(index as u64), bytes)]);
    }
    if wait {
        ops.push(Op::WaitFlushed);
    }
    ops.push(Op::StartPrefetch);
    for (index, &id) in order.iter().enumerate() {
        // The next one is known while this one is computed with.
        ops.push(Op::Restore(id));
        if hints == "one" {
            ops.extend(order.get(index + 1).map(|&next| Op::Hint(next)));
        }
        ops.push(Op::Compute(interval_ns));
    }
    ops
}
