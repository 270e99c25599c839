//! The policy with real threads and bytes, beside its simulator: `make bench-hierarchy`.
//!
//! The program of `benches/policy` at 1/64 of its sizes and rates, so that times are those of the paper on prefetching
//! (VELOC, HPDC 2023): 384 segments of 2 MB, 10 ms between them, a cache of 64 MB in the memory tier, one of 512 MB in
//! a local folder, and a folder without a bound, each behind the layer that throttles. The mover obeys the same
//! `Hierarchy::step` as the simulator does. Every restore is compared with what was written.
//! Differences: memory takes no 1 TB/s / 64 = 15.6 GB/s, so that its link has 2 GB/s in both; a flush reads its source
//! at the rate of that tier, which the simulator gives away.
//!
//! Environment: CELLS="WAIT/sequential/all ..." (phases, order, hints); TMPDIR for the two folders (a disk), else /tmp.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)] // what cannot happen ends the run

#[allow(dead_code)] // what tests need besides
#[path = "../../tiers/tests/all/common/memory.rs"]
mod memory;
#[allow(dead_code)] // several processes
#[path = "../policy/simulator.rs"]
mod simulator;
#[path = "../policy/workload.rs"]
mod workload;

use holdfast_lab::{Call, Faults, Faulty, Limits, SystemClock, Throttled};
use holdfast_lab::{MoverTier, SegmentMover};
use holdfast_tiers::policy::{Hierarchy, SegmentId, TierLimits, Ties};
use holdfast_tiers::tier::{FolderTier, LocalTier, MemoryTier, Tier};
use simulator::{Links, Op, Outcome, simulate};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use workload::{DEVICE, HOST, MB, order, program, sizes};

const PART: u64 = 64;
/// Bytes per second, both ways, of the links to the tiers.
const RATES: [u64; 3] = [2_000 * MB, 12_500 * MB / PART, 2_000 * MB / PART];
const FOLDER: &str = "bench";
const USUAL: &str = "WAIT/sequential/all WAIT/irregular/one NO-WAIT/sequential/all NO-WAIT/reverse/all \
                     NO-WAIT/irregular/all NO-WAIT/irregular/none";

fn limits() -> [TierLimits; 3] {
    let capacities = [Some(DEVICE / PART), Some(HOST / PART), None];
    [0, 1, 2].map(|tier| TierLimits { capacity: capacities[tier], contiguous: false, rate: RATES[tier] })
}

/// Folders that are removed at the end.
struct Folders {
    memory: PathBuf,
    disk: PathBuf,
}

impl Folders {
    fn new() -> Folders {
        let own = format!("holdfast-bench-{}", std::process::id());
        let folders =
            Folders { memory: Path::new("/dev/shm").join(&own), disk: std::env::temp_dir().join(own) };
        fs::create_dir(&folders.disk).unwrap();
        folders
    }

    /// The tiers, and how the reads of the slowest are counted.
    fn open(&self) -> (Vec<MoverTier>, Faults) {
        let memory = MemoryTier::open(&self.memory, 4 * DEVICE / PART).unwrap();
        memory.prepare(FOLDER, DEVICE / PART).unwrap();
        let local = LocalTier::open(&self.disk.join("local")).unwrap();
        let folder = FolderTier::open(&self.disk.join("folder"), "folder".into()).unwrap();
        let reads = Faults::none();
        let tiers: [Box<dyn Tier>; 3] =
            [Box::new(memory), Box::new(local), Box::new(Faulty::new(Box::new(folder), reads.clone()))];
        let throttled = tiers.into_iter().zip(RATES).zip(limits()).map(|((tier, rate), limits)| {
            let slow = Limits { write: Some(rate), read: Some(rate), delay: Duration::ZERO };
            MoverTier { tier: Arc::new(Throttled::new(tier, slow, Arc::new(SystemClock))), limits }
        });
        (throttled.collect(), reads)
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for folder in [&self.memory, &self.disk] {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// The program with real bytes.
struct Run {
    mover: SegmentMover,
    noise: Vec<u8>,
    sizes: Vec<u64>,
    /// What is written next, or was restored last.
    buffer: Vec<u8>,
    /// When it last went on.
    resumed: Instant,
    writes: Duration,
    restores: Duration,
}

impl Run {
    /// Whether the buffer is what this segment has, which is put into it before.
    fn content(&self, segment: SegmentId) -> (&[u8], u64) {
        let from = (segment.0 as usize * 4096) % (1 << 20);
        (&self.noise[from..from + self.sizes[segment.0 as usize] as usize - 8], segment.0)
    }

    fn make(&mut self, segment: SegmentId) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let (noise, number) = self.content(segment);
        buffer.extend_from_slice(noise);
        buffer.extend_from_slice(&number.to_le_bytes());
        self.buffer = buffer;
    }

    fn check(&self, segment: SegmentId) {
        let (noise, number) = self.content(segment);
        let (bytes, tail) = self.buffer.split_at(noise.len());
        assert!(bytes == noise && tail == number.to_le_bytes(), "{segment:?} has other bytes");
    }

    fn obey(&mut self, op: Op, next: Option<&Op>) {
        match op {
            Op::Compute(ns) => {
                if let Some(Op::Write(segment, _)) = next {
                    self.make(*segment);
                }
                let until = self.resumed + Duration::from_nanos(ns);
                thread::sleep(until.saturating_duration_since(Instant::now()));
                self.resumed = Instant::now();
            }
            Op::Write(segment, _) => {
                let start = Instant::now();
                self.mover.write(segment, &self.buffer, true).unwrap();
                self.resumed = Instant::now();
                self.writes += self.resumed - start;
            }
            Op::Restore(segment) => {
                self.buffer.resize(self.sizes[segment.0 as usize] as usize, 0);
                let start = Instant::now();
                self.mover.restore(segment, &mut self.buffer).unwrap();
                self.resumed = Instant::now();
                self.restores += self.resumed - start;
                self.check(segment);
            }
            Op::Hint(segment) => self.mover.hint(segment).unwrap(),
            Op::StartPrefetch => self.mover.start_prefetch().unwrap(),
            // There is no other process.
            Op::Barrier => {}
            Op::WaitFlushed => {
                assert!(self.mover.wait_flushed(Duration::from_secs(300)), "{:?}", self.mover.trouble(2));
                self.resumed = Instant::now();
            }
        }
    }
}

/// Time blocked in writes and in restores, and copies that read the slowest tier.
fn real(ops: &[Op], sizes: &[u64]) -> (Duration, Duration, u64) {
    let folders = Folders::new();
    let (tiers, reads) = folders.open();
    let mover = SegmentMover::start(tiers, FOLDER, Ties::default()).unwrap();
    let most = *sizes.iter().max().unwrap() as usize;
    let mut run = Run {
        mover,
        noise: memory::bytes((1 << 20) + most.next_multiple_of(8), 1),
        sizes: sizes.to_vec(),
        buffer: Vec::with_capacity(most),
        resumed: Instant::now(),
        writes: Duration::ZERO,
        restores: Duration::ZERO,
    };
    for (index, &op) in ops.iter().enumerate() {
        run.obey(op, ops.get(index + 1));
    }
    let slowest = reads.log().iter().filter(|operation| operation.call == Call::Open).count() as u64;
    run.mover.stop();
    (run.writes, run.restores, slowest)
}

fn simulated(ops: &[Op]) -> Outcome {
    simulate(&mut Hierarchy::new(&limits(), Ties::default()), &Links::own(&RATES), ops, true)
}

fn main() {
    let cells = std::env::var("CELLS").unwrap_or_else(|_| USUAL.to_owned());
    println!("Seconds blocked in writes and restores; in brackets copies that read the slowest tier.\n");
    println!("| phases | order | hints | simulator | real | real / simulator | in writes | in restores |");
    println!("{}|", "| --- ".repeat(8));
    for cell in cells.split_whitespace() {
        let words: Vec<&str> = cell.split('/').collect();
        let &[phases, order_name, hints] = &words[..] else { panic!("{cell}: PHASES/ORDER/HINTS") };
        let sizes = sizes(false, PART);
        let ops = program(&sizes, &order(order_name), hints, phases == "WAIT");
        let foretold = simulated(&ops);
        let (writes, restores, slowest) = real(&ops, &sizes);
        let (foretold_s, real_s) = (foretold.blocked_ns() as f64 / 1e9, (writes + restores).as_secs_f64());
        println!(
            "| {phases} | {order_name} | {hints} | {foretold_s:.2} ({}) | {real_s:.2} ({slowest}) | {:.3} | {:.2} | \
             {:.2} |",
            foretold.slowest_reads,
            real_s / foretold_s,
            writes.as_secs_f64(),
            restores.as_secs_f64(),
        );
    }
}
