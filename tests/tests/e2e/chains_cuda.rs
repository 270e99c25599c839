//! The CUDA programs of `tests/programs/cuda` on the stand-in driver: chained checkpoint, kill -9, restart rounds at
//! random moments; the joined output, checksums of device memory among it, must be that of an undisturbed run.
//!
//! The long form has three increments and ten restarts each, as both users.

use holdfast_tests::apps::App;
use holdfast_tests::artifacts::kit;
use holdfast_tests::full;
use holdfast_tests::restart_chain::{Plan, chain_in_turn};
use holdfast_tests::sandbox::User;

fn run(name: &str, arguments: &[&str], user: User, turn: User) {
    let folder = kit().stand_in().expect("the stand-in driver").to_string_lossy().into_owned();
    let program = kit().cuda_program(name).to_string_lossy().into_owned();
    let steps = if full() { "400" } else { "40" };
    // threads of a launch in an order of their own, and work that has begun late when a checkpoint comes
    let mut words: Vec<String> =
        ["/usr/bin/env", "STAND_IN_SEED=7", "STAND_IN_DELAY=1000"].map(str::to_owned).into();
    words.extend([format!("LD_LIBRARY_PATH={folder}"), program, steps.to_owned()]);
    words.extend(arguments.iter().map(|&word| word.to_owned()));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let plan = if full() { Plan::exactly(10, 3) } else { Plan::of(2) };
    chain_in_turn(&App::real(&format!("cuda {name}"), &words), user, turn, plan);
}

macro_rules! programs {
    ($($name:ident $turn:ident $($argument:literal)*;)*) => {
        mod root {
            use super::*;
            $(#[test] fn $name() { run(stringify!($name), &[$($argument),*], User::Root, User::$turn); })*
        }
        mod ordinary {
            use super::*;
            $(#[test] fn $name() { run(stringify!($name), &[$($argument),*], User::Ordinary, User::$turn); })*
        }
    };
}

programs! {
    saxpy Root;
    pointers Ordinary;
    atomics Root;
    structs Ordinary;
    globals Root;
    streams Ordinary;
    pinned Root;
    graph Ordinary;
    touches Root "2" "3";
    threads Ordinary;
    vmm Root;
}
