//! The figures of the paper on prefetching (VELOC, HPDC 2023) with the device's cache: write and restore throughput by
//! order, hints, size of that cache, interval and number of processes, and how far prefetching is ahead; beside them
//! what the paper says that it is faster than managed memory.
//!
//! Throughput is bytes / time for which the program waits in writes, or in restores; GB are 10^9 bytes, and all is per
//! process. Links are shared: one to the host by a pair of devices, NVMe by eight, and its reads and writes share its
//! rate. Each process has sizes and an irregular order of its own. Rates are those that the paper gives for its
//! machine, assumed here; RATES="DEVICE LINK NVME" (GB/s, whole links) has others, for instance measured ones
//! (`tests/gpu/run`).

use crate::rivals::{Kind, Rival};
use crate::simulator::{Engine, Links, Op, Outcome, Process, simulate_all};
use crate::tiers::KINDS;
use crate::workload::{DEVICE, HOST, INTERVAL_NS, MB, order_of, program_every, sizes_of};
use holdfast_tiers::policy::{Hierarchy, SegmentId, TierLimits, Ties};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const GB: u64 = 1000 * MB;
/// 1 TB/s on the device, 25 GB/s of a pair of devices, 16 GB/s of eight.
const RATES: [f64; 3] = [1000.0, 25.0, 16.0];
const SHARED_BY: [usize; 3] = [1, 2, 8];
/// Reads and writes of NVMe share its rate.
const ONE_RATE: [bool; 3] = [false, false, true];
const HINTS: [&str; 3] = ["none", "one", "all"];

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
    /// The same with contiguous caches, and of equal windows that of the greatest sum of distances, as in the paper.
    Window,
    Rival(Kind),
}

impl Setting {
    /// The load of the paper's figures 7 to 9.
    fn usual(rates: [u64; 3]) -> Setting {
        Setting {
            rates,
            device: DEVICE,
            interval_ns: INTERVAL_NS,
            order: "irregular",
            hints: "all",
            wait: false,
            grow: true,
            processes: 8,
            coupled: false,
        }
    }

    fn engine(&self, policy: Policy, order: &[SegmentId]) -> Box<dyn Engine> {
        // A first guess: what is a process' share when all copy at once.
        let rate = |tier: usize| self.rates[tier] / SHARED_BY[tier].min(self.processes) as u64;
        let capacities = [Some(self.device), Some(HOST), None];
        let limits = |contiguous| {
            [0, 1, 2].map(|tier| TierLimits { capacity: capacities[tier], contiguous, rate: rate(tier) })
        };
        match policy {
            Policy::Holdfast => Box::new(Hierarchy::new(&limits(false), Ties::default())),
            Policy::Window => Box::new(Hierarchy::new(&limits(true), Ties::Sum)),
            Policy::Rival(kind) => Box::new(Rival::new(kind, self.device, HOST, order)),
        }
    }

    fn program(&self, process: usize) -> (u64, Vec<SegmentId>, Vec<Op>) {
        let process = process as u64;
        let (sizes, order) = (sizes_of(self.grow, 1, process), order_of(self.order, process));
        let mut ops = program_every(self.interval_ns, &sizes, &order, self.hints, self.wait);
        if self.coupled {
            ops = ops.into_iter().flat_map(after_all).collect();
        }
        (sizes.iter().sum(), order, ops)
    }

    fn run(&self, policy: Policy) -> Figures {
        let links = Links {
            down: self.rates.to_vec(),
            up: self.rates.to_vec(),
            shared_by: SHARED_BY.to_vec(),
            one_rate: ONE_RATE.to_vec(),
        };
        let programs: Vec<_> = (0..self.processes).map(|process| self.program(process)).collect();
        let mut engines: Vec<_> = programs.iter().map(|(_, order, _)| self.engine(policy, order)).collect();
        let processes = engines.iter_mut().zip(&programs);
        let processes =
            processes.map(|(engine, (_, _, ops))| Process { engine: engine.as_mut(), program: ops });
        let outcomes = simulate_all(processes.collect(), &links, true);
        Figures::of(&outcomes, programs.iter().map(|(bytes, ..)| bytes).sum())
    }
}

fn after_all(op: Op) -> Vec<Op> {
    if matches!(op, Op::Write(..) | Op::Restore(_)) { vec![Op::Barrier, op] } else { vec![op] }
}

/// Bytes per nanosecond: GB/s; of the mean process.
struct Figures {
    write: f64,
    restore: f64,
    /// Bytes of the mean process that went to NVMe, and copies that read it.
    flushed: u64,
    read: u64,
    /// Mean of the prefetch distances of each sixth of the restores.
    distances: Vec<f64>,
}

impl Figures {
    fn of(outcomes: &[Outcome], bytes: u64) -> Figures {
        let rate = |ns: fn(&Outcome) -> u64| {
            let sum: u64 = outcomes.iter().map(ns).sum();
            bytes as f64 / sum.max(1) as f64
        };
        let distances = &outcomes[0].distances;
        let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len() as f64;
        let distances = distances.chunks(distances.len().div_ceil(6)).map(mean).collect();
        Figures {
            write: rate(|outcome| outcome.writes_ns),
            restore: rate(|outcome| outcome.restores_ns),
            flushed: mean_of(outcomes, |outcome| outcome.flushed),
            read: mean_of(outcomes, |outcome| outcome.slowest_reads),
            distances,
        }
    }

    fn text(&self) -> String {
        format!("{} / {}", short(self.write), short(self.restore))
    }
}

fn mean_of(outcomes: &[Outcome], value: fn(&Outcome) -> u64) -> u64 {
    outcomes.iter().map(value).sum::<u64>() / outcomes.len() as u64
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

const POLICIES: &str =
    "Holdfast | window, sum | LRU | FIFO | UVM-like | ADIOS-like | Belady | over UVM-like | the paper's";

/// A row: its name, its setting, and what the paper says of writes and restores there, over managed memory.
struct Row {
    name: String,
    setting: Setting,
    paper: &'static str,
}

/// What is printed of a row; and where UVM-like is faster there than Holdfast, in writes or restores, what each of them
/// has had NVMe do.
struct Printed {
    cells: String,
    slower: Option<String>,
}

/// All policies in one setting; Belady the better of both.
fn compare(setting: &Setting) -> Printed {
    let own = setting.run(Policy::Holdfast);
    let mut cells = vec![own.text(), setting.run(Policy::Window).text()];
    let rivals = KINDS.map(|kind| setting.run(Policy::Rival(kind)));
    cells.extend(rivals.iter().map(Figures::text));
    let belady = [false, true].map(|greedy| setting.run(Policy::Rival(Kind::Belady { greedy })));
    let better = belady.iter().max_by(|one, two| one.restore.total_cmp(&two.restore));
    cells.extend(better.map(Figures::text));
    let [.., uvm, _] = &rivals;
    let over = (own.write / uvm.write, own.restore / uvm.restore);
    cells.push(format!("{} / {}", short(over.0), short(over.1)));
    let nvme = |figures: &Figures| {
        format!("{} GB to NVMe, {} reads of it", short(figures.flushed as f64 / GB as f64), figures.read)
    };
    let slower =
        (over.0 < 1.0 || over.1 < 1.0).then(|| format!("Holdfast {}; UVM-like {}", nvme(&own), nvme(uvm)));
    Printed { cells: cells.join(" | "), slower }
}

/// The same of all, by as many threads as there are processors.
fn each<T: Sync, R: Send>(of: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(it) = of.get(index) else { return };
                    let result = act(it);
                    done.lock().unwrap_or_else(|error| panic!("{error}")).insert(index, result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(|error| panic!("{error}")).into_values().collect()
}

/// Prints a table; names of the rows in which UVM-like is faster.
fn table(title: &str, columns: &str, rows: &[Row]) -> Vec<String> {
    heading(title, &format!("{columns} | {POLICIES}"));
    let printed = each(rows, |row| compare(&row.setting));
    for (row, printed) in rows.iter().zip(&printed) {
        println!("| {} | {} | {} |", row.name, printed.cells, row.paper);
    }
    let figure = title.split('(').next_back().unwrap_or_default().trim_end_matches(')');
    let slower = rows.iter().zip(&printed).filter_map(|(row, printed)| Some((row, printed.slower.as_ref()?)));
    slower.map(|(row, why)| format!("* {figure}: {}: {why}", row.name.replace(" | ", ", "))).collect()
}

fn by_order(usual: &Setting) -> Vec<String> {
    let mut rows = Vec::new();
    for (grow, wait, paper) in [
        (false, true, "2 to 74"),
        (true, true, "1.6 to 52"),
        (false, false, "1.8 to 3.6"),
        (true, false, "2.9 to 22.8"),
    ] {
        for order in ["sequential", "reverse", "irregular"] {
            for hints in HINTS {
                let sizes = if grow { "growing" } else { "uniform" };
                let name = format!("{sizes} | {} | {order} | {hints}", phases(wait));
                let paper = if (grow, wait, order) == (true, false, "irregular") {
                    "2.9 to 22.8; with all 3.7 / 38"
                } else {
                    paper
                };
                rows.push(Row { name, setting: Setting { order, hints, grow, wait, ..*usual }, paper });
            }
        }
    }
    table("Write / restore throughput, GB/s (figures 5 and 6)", "sizes | phases | order | hints", &rows)
}

fn phases(wait: bool) -> &'static str {
    if wait { "WAIT" } else { "NO-WAIT" }
}

fn by_hints(usual: &Setting) {
    heading(
        "Restore throughput, GB/s, and mean prefetch distance by sixth of the restores (figure 7)",
        "sizes | phases | order | hints | restore | 1 | 2 | 3 | 4 | 5 | 6 | the paper's",
    );
    let mut settings = Vec::new();
    for (grow, wait, order) in [(true, false, "irregular"), (false, true, "sequential")] {
        settings.extend(HINTS.map(|hints| Setting { grow, wait, order, hints, ..*usual }));
    }
    let figures = each(&settings, |setting| setting.run(Policy::Holdfast));
    for (setting, figures) in settings.iter().zip(figures) {
        let Setting { grow, wait, order, hints, .. } = *setting;
        let sizes = if grow { "growing" } else { "uniform" };
        let distances: Vec<_> = figures.distances.iter().map(|mean| format!("{mean:.1}")).collect();
        let paper = match hints {
            "one" => "6.3 GB/s",
            "all" => "distance 4 at most",
            _ => "-",
        };
        let (restore, phases) = (short(figures.restore), phases(wait));
        println!(
            "| {sizes} | {phases} | {order} | {hints} | {restore} | {} | {paper} |",
            distances.join(" | ")
        );
    }
}

fn by_interval(usual: &Setting) -> Vec<String> {
    let mut rows = Vec::new();
    for hints in HINTS {
        for ms in [5, 10, 15, 20, 25, 30, 60] {
            let setting = Setting { hints, interval_ns: ms * 1_000_000, ..*usual };
            let paper = if ms == 30 { "restores as fast as the device" } else { "-" };
            rows.push(Row { name: format!("{hints} | {ms}"), setting, paper });
        }
    }
    table("Write / restore throughput, GB/s, by interval (figure 8a)", "hints | ms", &rows)
}

fn by_cache(usual: &Setting) -> Vec<String> {
    let mut rows = Vec::new();
    for hints in HINTS {
        for size in [1, 2, 4, 8, 16, 32] {
            let setting = Setting { hints, device: size * GB, ..*usual };
            rows.push(Row { name: format!("{hints} | {size}"), setting, paper: "2.6 at most" });
        }
    }
    table("Write / restore throughput, GB/s, by size of the device's cache (figure 8b)", "hints | GB", &rows)
}

fn by_processes(usual: &Setting) -> Vec<String> {
    let mut rows = Vec::new();
    for hints in HINTS {
        for coupled in [false, true] {
            for processes in [1, 2, 4, 8, 16, 32] {
                let setting = Setting { hints, coupled, processes, ..*usual };
                let name = format!("{hints} | {} | {processes}", if coupled { "yes" } else { "no" });
                rows.push(Row { name, setting, paper: "as many as there are: the same" });
            }
        }
    }
    table(
        "Write / restore throughput of a process, GB/s, by their number (figure 9)",
        "hints | coupled | processes",
        &rows,
    )
}

/// Prints the tables.
pub fn print() {
    let given = std::env::var("RATES").unwrap_or_default();
    let mut rates = RATES;
    for (rate, word) in rates.iter_mut().zip(given.split_whitespace()) {
        *rate = word.parse().unwrap_or_else(|_| panic!("RATES={given}: three numbers, GB/s"));
    }
    let [device, link, nvme] = rates;
    println!(
        "\n## With the device's cache: {device} GB/s in it, {link} to the host, {nvme} to and from NVMe"
    );
    println!(
        "\nEight processes, caches of 4 and 32 GB each; growing sizes, NO-WAIT, an irregular order, every"
    );
    println!("10 ms and all hints where nothing else is said.");
    let usual = Setting::usual(rates.map(|rate| (rate * GB as f64) as u64));
    let mut slower = by_order(&usual);
    by_hints(&usual);
    slower.extend(by_interval(&usual));
    slower.extend(by_cache(&usual));
    slower.extend(by_processes(&usual));
    println!("\nRows in which UVM-like is faster, in writes or in restores: {}\n", slower.len());
    slower.iter().for_each(|row| println!("{row}"));
}
