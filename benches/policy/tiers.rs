//! 384 checkpoints of 128 MB (or of sizes that grow, as in reverse time migration), a device cache of 4 GB, a host
//! cache of 32 GB, 10 ms between them: the setting of the paper on prefetching (VELOC, HPDC 2023), one process with
//! its share of the links.

use crate::rivals::{Kind, Rival};
use crate::simulator::{Engine, Links, Outcome, simulate};
use crate::workload::{DEVICE, HOST, MB, order, program, sizes};
use holdfast_tiers::policy::{Hierarchy, TierLimits, Ties};

/// 1 TB/s on the device; 25 GB/s of a pair of devices; 16 GB/s of eight.
const RATES: [u64; 3] = [1_000_000 * MB, 12_500 * MB, 2_000 * MB];

struct Cell {
    name: String,
    hints: &'static str,
    /// Holdfast; with contiguous caches, by kind of ties; the others as in [`KINDS`]; Belady, the better of both.
    outcomes: Vec<Outcome>,
}

pub const KINDS: [Kind; 4] = [Kind::Lru, Kind::Fifo, Kind::Uvm, Kind::Adios];

fn cell(grow: bool, order_name: &str, hints: &'static str, wait: bool) -> Cell {
    let (sizes, order) = (sizes(grow, 1), order(order_name));
    let links = Links::own(&RATES);
    let ops = program(&sizes, &order, hints, wait);
    let run = |engine: &mut dyn Engine| simulate(engine, &links, &ops, true);
    let limits = [Some(DEVICE), Some(HOST), None].into_iter().zip(RATES);
    let limits: Vec<_> =
        limits.map(|(capacity, rate)| TierLimits { capacity, contiguous: false, rate }).collect();
    let contiguous: Vec<_> = limits.iter().map(|tier| TierLimits { contiguous: true, ..*tier }).collect();
    let mut outcomes = vec![run(&mut Hierarchy::new(&limits, Ties::default()))];
    let ties = [Ties::Sum, Ties::Mean, Ties::Nearest];
    outcomes.extend(ties.map(|ties| run(&mut Hierarchy::new(&contiguous, ties))));
    outcomes.extend(KINDS.map(|kind| run(&mut Rival::new(kind, DEVICE, HOST, &order))));
    let belady =
        [false, true].map(|greedy| run(&mut Rival::new(Kind::Belady { greedy }, DEVICE, HOST, &order)));
    outcomes.extend(belady.into_iter().min_by_key(|outcome| outcome.blocked_ns()));
    let name = format!(
        "{} | {} | {order_name} | {hints}",
        if grow { "growing" } else { "uniform" },
        if wait { "WAIT" } else { "NO-WAIT" }
    );
    Cell { name, hints, outcomes }
}

/// Prints the tables.
pub fn print() {
    let mut cells = Vec::new();
    for grow in [false, true] {
        for wait in [true, false] {
            for order in ["sequential", "reverse", "irregular"] {
                cells.extend(["none", "one", "all"].map(|hints| cell(grow, order, hints, wait)));
            }
        }
    }
    let rivals = "LRU | FIFO | UVM-like | ADIOS-like | Belady";
    let head = format!(
        "| sizes | phases | order | hints | Holdfast | window, sum | window, mean | window, nearest | {rivals} |"
    );
    println!("### Seconds blocked in writes and restores (copies that read the slowest tier)\n\n{head}");
    println!("{}|", "| --- ".repeat(13));
    for cell in &cells {
        let value = |o: &Outcome| format!("{:.2} ({})", o.blocked_ns() as f64 / 1e9, o.slowest_reads);
        println!("| {} | {} |", cell.name, cell.outcomes.iter().map(value).collect::<Vec<_>>().join(" | "));
    }
    verdict(&cells);
}

fn verdict(cells: &[Cell]) {
    println!();
    let blocked = |cell: &Cell, index: usize| cell.outcomes[index].blocked_ns();
    let worse: Vec<_> = cells
        .iter()
        .filter(|cell| (4..7).any(|rival| blocked(cell, 0) > blocked(cell, rival)))
        .map(|cell| cell.name.clone())
        .collect();
    println!("Cells worse than LRU, FIFO or UVM-like: {} of {} {worse:?}", worse.len(), cells.len());
    println!("\n### All hints: blocked time over that of Belady\n");
    println!("| sizes | phases | order | hints | Holdfast | window, sum | window, mean | window, nearest |");
    println!("{}|", "| --- ".repeat(8));
    for cell in cells.iter().filter(|cell| cell.hints == "all") {
        let part = |index: usize| format!("{:.3}", blocked(cell, index) as f64 / blocked(cell, 8) as f64);
        println!("| {} | {} |", cell.name, [0, 1, 2, 3].map(part).join(" | "));
    }
}
