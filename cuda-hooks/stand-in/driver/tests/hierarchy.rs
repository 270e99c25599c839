//! The tiers' policy, and what it is compared with, obeyed by real threads with real bytes: a cache in memory of the
//! device, one in pinned memory of the host, a file. 384 segments, as the paper on prefetching has them (VELOC, HPDC
//! 2023), of 15 KB, in virtual time: right or wrong on a machine of any speed. `make bench-device` takes real time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "../../../../benches/device/clock.rs"]
mod clock;
#[path = "conformance/driver.rs"]
mod driver;
#[path = "../../../../benches/device/machine.rs"]
mod machine;
#[path = "../../../../benches/device/memory.rs"]
mod memory;
#[path = "../../../../benches/device/policies.rs"]
mod policies;
#[path = "../../../../benches/policy/rivals.rs"]
mod rivals;
#[allow(dead_code)] // several processes
#[path = "../../../../benches/policy/simulator.rs"]
mod simulator;
#[allow(dead_code)] // other intervals
#[path = "../../../../benches/policy/workload.rs"]
mod workload;

use policies::{ALL, Cell, misplaced};

fn as_simulated(words: &str) {
    let cell = Cell::new(words, 8192, false);
    let (mut foretold, mut found) = (Vec::new(), Vec::new());
    for policy in ALL {
        let simulated = cell.simulated(policy);
        let real = machine::run(&cell.setup, memory::file(), cell.engine(policy), &cell.program);
        println!(
            "{words}, {policy:?}: {} ns simulated, {} ns by threads; slowest tier read {} and {} times",
            simulated.blocked_ns(),
            real.blocked_ns(),
            simulated.slowest_reads,
            real.slowest_reads
        );
        foretold.push(simulated.blocked_ns());
        found.push(real.blocked_ns());
    }
    assert_eq!(misplaced(&foretold, &found, 3), [], "{words}: {foretold:?} and {found:?}");
    for (foretold, found) in foretold.iter().zip(&found) {
        assert!(foretold.abs_diff(*found) * 50 <= *foretold, "{words}: {foretold} and {found} ns");
    }
}

isolated! {
    the_order_of_policies_is_that_of_the_simulator_after_a_flush ["STAND_IN_DELAY" = "0"] {
        as_simulated("WAIT/irregular/all");
    }
}

isolated! {
    the_order_of_policies_is_that_of_the_simulator_during_a_flush ["STAND_IN_DELAY" = "0"] {
        as_simulated("NO-WAIT/reverse/one");
    }
}
