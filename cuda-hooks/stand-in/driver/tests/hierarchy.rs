//! The tiers' policy, and what it is compared with, obeyed by real threads with real bytes: a cache in memory of the
//! device, one in pinned memory of the host, a file. The program of the paper on prefetching (VELOC, HPDC 2023), with
//! 96 of its 384 segments and of 15 KB, in virtual time: right or wrong on a machine of any speed. In the long form
//! (HOLDFAST_TEST_FULL) with all of them. `make bench-device` takes real time.
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
#[path = "../../../../benches/policy/simulator.rs"]
mod simulator;
#[allow(dead_code)] // other intervals
#[path = "../../../../benches/policy/workload.rs"]
mod workload;

use holdfast_tiers::policy::{Hierarchy, SegmentId, TierLimits, Ties};
use policies::{ALL, Cell, misplaced};
use simulator::{Links, Op, Process, simulate_all};

fn as_simulated(words: &str) {
    let is_full = std::env::var_os("HOLDFAST_TEST_FULL").is_some();
    let cell = Cell::new(words, 8192, if is_full { workload::COUNT } else { 96 }, false);
    let (mut foretold, mut found) = (Vec::new(), Vec::new());
    for policy in ALL {
        let simulated = cell.simulated(policy);
        let real = machine::run(&cell.setup, memory::file(), cell.engine(policy), &cell.program);
        println!(
            "{words}, {}: {} ns simulated, {} ns by threads; slowest tier read {} and {} times",
            policy.name(),
            simulated.blocked_ns(),
            real.blocked_ns(),
            simulated.slowest_reads,
            real.slowest_reads
        );
        foretold.push(simulated.blocked_ns());
        found.push(real.blocked_ns());
    }
    assert_eq!(misplaced(&foretold, &found, 3), [[""; 2]; 0], "{words}: {foretold:?} and {found:?}");
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

/// The simulator itself: two of three processes share a link, and one of them begins when the other has half.
#[test]
fn links_are_shared_evenly() {
    let limits = [TierLimits { capacity: None, contiguous: false, rate: 1 }];
    let mut engines = [0; 3].map(|_| Hierarchy::new(&limits, Ties::default()));
    let write = Op::Write(SegmentId(1), 1000);
    let programs =
        [vec![write, Op::Barrier], vec![Op::Compute(500), write, Op::Barrier], vec![write, Op::Barrier]];
    let processes = engines.iter_mut().zip(&programs).map(|(engine, program)| Process { engine, program });
    let rate = vec![1_000_000_000];
    let links = Links { down: rate.clone(), up: rate, shared_by: vec![2], one_rate: vec![false] };
    let outcomes = simulate_all(processes.collect(), &links, false);
    // 500 alone, 1000 for the other half; then 500 for the half that the second still has.
    assert_eq!(outcomes.iter().map(|outcome| outcome.writes_ns).collect::<Vec<_>>(), [1500, 1500, 1000]);
}
