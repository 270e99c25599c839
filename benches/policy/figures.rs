//! The figures of the paper on prefetching (VELOC, HPDC 2023) with the device's cache: write and restore throughput by
//! order, size of that cache, interval and number of processes, and how far prefetching is ahead.
//!
//! Throughput is bytes / time for which the program waits in writes, or in restores; GB are 10^9 bytes, and all is per
//! process. Links are shared: one to the host by a pair of devices, NVMe by eight. Rates are those that the paper
//! gives for its machine, assumed here; RATES="DEVICE LINK NVME" (GB/s, whole links) has others, for instance measured
//! ones (`tests/gpu/run`).

use crate::rivals::{Kind, Rival};
use crate::simulator::{Engine, Links, Op, Outcome, Process, simulate_all};
use crate::tiers::KINDS;
use crate::workload::{DEVICE, HOST, INTERVAL_NS, MB, order, program_every, sizes};
use holdfast_tiers::policy::{Hierarchy, SegmentId, TierLimits, Ties};

const GB: u64 = 1000 * MB;
/// 1 TB/s on the device, 25 GB/s of a pair of devices, 16 GB/s of eight.
const RATES: [f64; 3] = [1000.0, 25.0, 16.0];
const SHARED_BY: [usize; 3] = [1, 2, 8];

#[derive(Clone, Copy)]
struct Setting {
    rates: [u64; 3],
    device: u64,
    interval_ns: u64,
    order: &'static str,
    hints: &'static str,
    wait: bool,
    grow: bool,
    processes: usize,
    /// All wait for each other before each write and restore.
    coupled: bool,
}

#[derive(Clone, Copy)]
enum Policy {
    Holdfast,
    Rival(Kind),
}

impl Setting {
    fn usual(rates: [u64; 3]) -> Setting {
        Setting {
            rates,
            device: DEVICE,
            interval_ns: INTERVAL_NS,
            order: "sequential",
            hints: "all",
            wait: true,
            grow: false,
            processes: 8,
            coupled: false,
        }
    }

    fn engine(&self, policy: Policy, order: &[SegmentId]) -> Box<dyn Engine> {
        // A first guess: what is a process' share when all copy at once.
        let rate = |tier: usize| self.rates[tier] / SHARED_BY[tier].min(self.processes) as u64;
        let capacities = [Some(self.device), Some(HOST), None];
        let limits = [0, 1, 2].map(|tier| TierLimits {
            capacity: capacities[tier],
            contiguous: false,
            rate: rate(tier),
        });
        match policy {
            Policy::Holdfast => Box::new(Hierarchy::new(&limits, Ties::default())),
            Policy::Rival(kind) => Box::new(Rival::new(kind, self.device, HOST, order)),
        }
    }

    fn run(&self, policy: Policy) -> Figures {
        let (sizes, order) = (sizes(self.grow, 1), order(self.order));
        let mut ops = program_every(self.interval_ns, &sizes, &order, self.hints, self.wait);
        if self.coupled {
            ops = ops.into_iter().flat_map(after_all).collect();
        }
        let links =
            Links { down: self.rates.to_vec(), up: self.rates.to_vec(), shared_by: SHARED_BY.to_vec() };
        let mut engines: Vec<_> = (0..self.processes).map(|_| self.engine(policy, &order)).collect();
        let processes = engines.iter_mut().map(|engine| Process { engine: engine.as_mut(), program: &ops });
        let outcomes = simulate_all(processes.collect(), &links, true);
        Figures::of(&outcomes, sizes.iter().sum())
    }
}

fn after_all(op: Op) -> Vec<Op> {
    if matches!(op, Op::Write(..) | Op::Restore(_)) { vec![Op::Barrier, op] } else { vec![op] }
}

/// Bytes per nanosecond: GB/s; of the mean process.
struct Figures {
    write: f64,
    restore: f64,
    /// Mean of the prefetch distances of each sixth of the restores.
    distances: Vec<f64>,
}

impl Figures {
    fn of(outcomes: &[Outcome], bytes: u64) -> Figures {
        let rate = |ns: fn(&Outcome) -> u64| {
            let sum: u64 = outcomes.iter().map(ns).sum();
            bytes as f64 * outcomes.len() as f64 / sum.max(1) as f64
        };
        let distances = &outcomes[0].distances;
        let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len() as f64;
        let distances = distances.chunks(distances.len().div_ceil(6)).map(mean).collect();
        Figures {
            write: rate(|outcome| outcome.writes_ns),
            restore: rate(|outcome| outcome.restores_ns),
            distances,
        }
    }

    fn text(&self) -> String {
        format!("{} / {}", short(self.write), short(self.restore))
    }
}

/// Three digits.
fn short(value: f64) -> String {
    let digits = if value >= 100.0 { 0 } else { usize::from(value < 10.0) + 1 };
    format!("{value:.digits$}")
}

fn heading(title: &str, columns: &str) {
    println!("\n### {title}\n\n| {columns} |");
    println!("{}|", "| --- ".repeat(columns.split('|').count()));
}

const POLICIES: &str = "Holdfast | LRU | FIFO | UVM-like | ADIOS-like | Belady";

/// All policies in one setting; Belady the better of both.
fn row(setting: &Setting) -> String {
    let mut cells = vec![setting.run(Policy::Holdfast).text()];
    cells.extend(KINDS.map(|kind| setting.run(Policy::Rival(kind)).text()));
    let belady = [false, true].map(|greedy| setting.run(Policy::Rival(Kind::Belady { greedy })));
    let better = belady.iter().max_by(|one, two| one.restore.total_cmp(&two.restore));
    cells.extend(better.map(Figures::text));
    cells.join(" | ")
}

fn by_order(usual: &Setting) {
    heading(
        "Write / restore throughput, GB/s, all hints (the paper's figures 5 and 6)",
        &format!("sizes | phases | order | {POLICIES}"),
    );
    for (grow, wait) in [(false, true), (false, false), (true, true), (true, false)] {
        for order in ["sequential", "reverse", "irregular"] {
            let (sizes, phases) =
                (if grow { "growing" } else { "uniform" }, if wait { "WAIT" } else { "NO-WAIT" });
            let setting = Setting { order, grow, wait, ..*usual };
            println!("| {sizes} | {phases} | {order} | {} |", row(&setting));
        }
    }
}

fn by_hints(usual: &Setting) {
    heading(
        "Restore throughput, GB/s, and mean prefetch distance by sixth of the restores (figure 7)",
        "order | hints | restore | 1 | 2 | 3 | 4 | 5 | 6",
    );
    for order in ["sequential", "irregular"] {
        for hints in ["none", "one", "all"] {
            let figures = Setting { order, hints, ..*usual }.run(Policy::Holdfast);
            let distances: Vec<_> = figures.distances.iter().map(|mean| format!("{mean:.1}")).collect();
            let restore = short(figures.restore);
            println!("| {order} | {hints} | {restore} | {} |", distances.join(" | "));
        }
    }
}

fn by_interval(usual: &Setting) {
    heading("Write / restore throughput, GB/s, by interval (figure 8a)", &format!("order | ms | {POLICIES}"));
    for order in ["reverse", "irregular"] {
        for ms in [5, 10, 15, 20, 25, 30, 60] {
            let setting = Setting { order, interval_ns: ms * 1_000_000, ..*usual };
            println!("| {order} | {ms} | {} |", row(&setting));
        }
    }
}

fn by_cache(usual: &Setting) {
    heading(
        "Write / restore throughput, GB/s, by size of the device's cache (figure 8b)",
        &format!("order | phases | GB | {POLICIES}"),
    );
    for (order, wait) in [("reverse", true), ("irregular", true), ("irregular", false)] {
        for size in [1, 2, 4, 8, 16, 32] {
            let phases = if wait { "WAIT" } else { "NO-WAIT" };
            let setting = Setting { order, wait, device: size * GB, ..*usual };
            println!("| {order} | {phases} | {size} | {} |", row(&setting));
        }
    }
}

fn by_processes(usual: &Setting) {
    heading(
        "Write / restore throughput of a process, GB/s, by their number (figure 9)",
        &format!("processes | coupled | {POLICIES}"),
    );
    for coupled in [false, true] {
        for processes in [1, 2, 4, 8, 16, 32] {
            let setting = Setting { order: "irregular", wait: false, coupled, processes, ..*usual };
            println!("| {processes} | {} | {} |", if coupled { "yes" } else { "no" }, row(&setting));
        }
    }
}

/// Prints the tables.
pub fn print() {
    let given = std::env::var("RATES").unwrap_or_default();
    let mut rates = RATES;
    for (rate, word) in rates.iter_mut().zip(given.split_whitespace()) {
        *rate = word.parse().unwrap_or_else(|_| panic!("RATES={given}: three numbers, GB/s"));
    }
    let [device, link, nvme] = rates;
    println!("\n## With the device's cache: {device} GB/s in it, {link} to the host, {nvme} to NVMe");
    println!(
        "\nEight processes, caches of 4 and 32 GB each, WAIT and every 10 ms where nothing else is said."
    );
    let usual = Setting::usual(rates.map(|rate| (rate * GB as f64) as u64));
    by_order(&usual);
    by_hints(&usual);
    by_interval(&usual);
    by_cache(&usual);
    by_processes(&usual);
}
