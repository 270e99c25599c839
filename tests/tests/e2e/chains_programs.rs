//! The programs of the suite (`tests/src/suite.rs`; `make test` runs a sample of them), as root and as ordinary user:
//! chained checkpoint, kill -9, restart rounds at random moments; the joined output must be that of an undisturbed
//! run.

use holdfast_tests::apps::App;
use holdfast_tests::full;
use holdfast_tests::restart_chain::{Memory, Plan, chain, chain_in_turn, many};
use holdfast_tests::sandbox::User;
use holdfast_tests::suite::ENTRIES;

holdfast_tests::suite!(holdfast_tests::suite_tests, run);

fn run(name: &str, user: User) {
    let entry = ENTRIES.iter().find(|entry| entry.name == name).expect("a line of the suite");
    match entry.root {
        Some(why) if user == User::Ordinary => println!("not run: {why}"),
        _ if !entry.short && !full() => println!("not run: not in the sample (HOLDFAST_TEST_FULL=1: all)"),
        _ => chain_in_turn(&entry.app(), user, entry.turn(), Plan::of(many())),
    }
}

/// Every page that can be is mapped from the image, at every restart.
mod lazy {
    use super::*;

    fn lazily(program: &str, user: User) {
        let plan = Plan::of(many()).with(&["--compress", "none"], Memory::Lazy);
        chain(&App::program(program, &[]), user, plan);
    }
    #[test]
    fn advice_as_root() {
        lazily("advice", User::Root);
    }
    #[test]
    fn advice_as_ordinary_user() {
        lazily("advice", User::Ordinary);
    }
    #[test]
    fn guards_as_root() {
        lazily("guards", User::Root);
    }
    #[test]
    fn guards_as_ordinary_user() {
        lazily("guards", User::Ordinary);
    }
    #[test]
    fn heap_as_root() {
        lazily("heap", User::Root);
    }
    #[test]
    fn heap_as_ordinary_user() {
        lazily("heap", User::Ordinary);
    }
}

/// What processes have in common is shared again, as the kernel counts it, unless all memory is to be read first.
mod sharing {
    use super::*;

    fn shared(user: User) {
        let plan = Plan::of(many()).with(&[], Memory::Default);
        chain(&App::program("tree_common", &["80", "16", "shared"]), user, plan);
    }
    #[test]
    fn common_as_root() {
        shared(User::Root);
    }
    #[test]
    fn common_as_ordinary_user() {
        shared(User::Ordinary);
    }
}

/// What each engine has its own way with: memory is locked and guarded in a frozen copy, or in memory made read-only,
/// too.
mod engines {
    use super::*;

    fn with(program: &str, user: User, options: &'static [&'static str]) {
        chain(&App::program(program, &[]), user, Plan::of(many()).with(options, Memory::Mixed));
    }
    #[test]
    fn guards_fork() {
        with("guards", User::Root, &["--engine", "fork"]);
    }
    #[test]
    fn guards_slots() {
        with("guards", User::Ordinary, &["--engine", "slots"]);
    }
    #[test]
    fn visitors_slots() {
        with("visitors", User::Ordinary, &["--engine", "slots"]);
    }
    #[test]
    fn guards_sync() {
        with("guards", User::Ordinary, &["--engine", "sync"]);
    }
    #[test]
    fn ranges_fork() {
        with("ranges", User::Ordinary, &["--engine", "fork"]);
    }
}
