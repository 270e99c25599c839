//! The policy of the tiers in virtual time: prints tables, asserts nothing but that programs end. `make bench-policy`.

#![allow(clippy::panic)] // what cannot happen ends the run

mod figures;
mod rivals;
mod schedules;
mod simulator;
mod tiers;
mod workload;

fn main() {
    tiers::print();
    figures::print();
    schedules::print();
}
