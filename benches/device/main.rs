//! Policies obeyed by real threads with real bytes on a CUDA device, beside the simulator: `make bench-device`.
//!
//! The program of `benches/policy` at 1/64 of its sizes and rates, so that times are those of the paper on prefetching
//! (VELOC, HPDC 2023): 384 segments of 2 MB in the device's memory, 10 ms between them, a cache of 64 MB there, one of
//! 512 MB pinned on the host, and a file. Each link has a thread and a stream for each direction, and takes the time
//! that its rate has for a copy; the bytes are moved meanwhile, by the CUDA driver. Every restore is compared with what
//! was written. What the order of the policies is to be, the simulator says; the test of the same in virtual time is
//! `cuda-hooks/stand-in/driver/tests/hierarchy.rs`.
//!
//! Environment: CELLS="WAIT/sequential/all ..." (phases, order, hints); TMPDIR for the file (a disk); the driver is the
//! stand-in, or CONFORMANCE_LIBCUDA=/usr/lib/x86_64-linux-gnu/libcuda.so.1.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // what cannot happen ends the run

mod clock;
#[path = "../../cuda-hooks/stand-in/driver/tests/conformance/driver.rs"]
mod driver;
mod machine;
mod memory;
mod policies;
#[path = "../policy/rivals.rs"]
mod rivals;
#[allow(dead_code)] // several processes
#[path = "../policy/simulator.rs"]
mod simulator;
#[allow(dead_code)] // other intervals
#[path = "../policy/workload.rs"]
mod workload;

use policies::{ALL, Cell, misplaced};

const USUAL: &str = "WAIT/irregular/all NO-WAIT/reverse/one";

fn main() {
    let cells = std::env::var("CELLS").unwrap_or_else(|_| USUAL.to_owned());
    println!("Seconds blocked in writes and restores; in brackets copies that read the slowest tier.\n");
    println!(
        "| phases, order, hints | policy | simulator | real | real / simulator | in writes | in restores |"
    );
    println!("{}|", "| --- ".repeat(7));
    for words in cells.split_whitespace() {
        let cell = Cell::new(words, 64, workload::COUNT, true);
        let (mut foretold, mut found) = (Vec::new(), Vec::new());
        for policy in ALL {
            let simulated = cell.simulated(policy);
            let real = machine::run(&cell.setup, memory::file(), cell.engine(policy), &cell.program);
            let seconds = |ns: u64| ns as f64 / 1e9;
            println!(
                "| {words} | {} | {:.2} ({}) | {:.2} ({}) | {:.3} | {:.2} | {:.2} |",
                policy.name(),
                seconds(simulated.blocked_ns()),
                simulated.slowest_reads,
                seconds(real.blocked_ns()),
                real.slowest_reads,
                real.blocked_ns() as f64 / simulated.blocked_ns() as f64,
                seconds(real.writes_ns),
                seconds(real.restores_ns),
            );
            foretold.push(simulated.blocked_ns());
            found.push(real.blocked_ns());
        }
        println!(
            "Pairs that differ by more than 5 % in the simulator and are the other way round: {:?}\n",
            misplaced(&foretold, &found, 5)
        );
    }
}
