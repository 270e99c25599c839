//! The CUDA programs of `tests/programs/cuda` on the stand-in driver: chained checkpoint, kill -9, restart rounds at
//! random moments, and the joined output must be that of an undisturbed run. Kernels are executed, streams have delays,
//! and no memory of a device can be touched by the host: what was not drained, or not restored, is seen. `make test`
//! runs a sample of them.

use holdfast_tests::apps::App;
use holdfast_tests::artifacts::kit;
use holdfast_tests::full;
use holdfast_tests::restart_chain::{Plan, chain_in_turn, many};
use holdfast_tests::sandbox::User;

/// Of 30 ms each.
const ROUNDS: &str = "40";

fn run(name: &str, turn: User, user: User, short: bool) {
    if !short && !full() {
        return println!("not run: not in the sample (HOLDFAST_TEST_FULL=1: all)");
    }
    let driver = kit().stand_in().expect("the stand-in driver");
    let path = format!("LD_LIBRARY_PATH={}", driver.display());
    let program = kit().cuda_program(name).to_string_lossy().into_owned();
    let app = App::real(&format!("cuda {name}"), &["env", &path, &program, ROUNDS]);
    chain_in_turn(&app, user, turn, Plan { images: 2, ..Plan::of(many()) });
}

macro_rules! programs {
    ($($name:ident: $turn:ident $short:literal;)*) => {
        mod root {
            use super::*;
            $(#[test] fn $name() { run(stringify!($name), User::$turn, User::Root, $short); })*
        }
        mod ordinary {
            use super::*;
            $(#[test] fn $name() { run(stringify!($name), User::$turn, User::Ordinary, $short); })*
        }
    };
}

// Who runs it in the short form, and whether it is in the sample.
programs! {
    saxpy: Ordinary false;
    pointers: Root true;
    atomics: Ordinary false;
    structs: Root false;
    globals: Ordinary false;
    streams: Ordinary true;
    pinned: Root false;
    graph: Ordinary true;
    threads: Root false;
    vmm: Ordinary false;
}
