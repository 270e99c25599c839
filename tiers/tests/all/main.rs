//! The integration tests of the store, one binary: each binary of its own would link object_store and its tree once
//! more, seconds of a build from nothing. The tests that run a part of themselves in a process of its own name it by
//! its path (`commit::child`).
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

mod commit;
mod crash_points;
mod damage;
mod golden;
mod hygiene;
mod increments;
mod memory;
mod memory_first;
mod memory_processes;
mod planner;
mod prepacked;
mod redundancy;
mod roundtrip;
mod served;
mod several_tiers;
mod stack;
mod stack_faults;
mod tier_folder;
mod tiers;
mod twins;
mod two_hosts;
mod unpacked;
mod waited;
