//! Each program of the suite (`tests/src/suite.rs`), as root and as ordinary user: chained checkpoint, kill -9, restart rounds at random
//! moments; the joined output must be that of an undisturbed run.
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

use holdfast_tests::apps::App;
use holdfast_tests::bed::{User, am_root};
use holdfast_tests::chain::{Memory, Plan, chain, many};
use holdfast_tests::full;
use holdfast_tests::suite::ENTRIES;

macro_rules! programs {
    ($($group:literal { $($test:ident: $program:literal $($argument:literal)* => $feature:literal
        $(, open $open:literal)? $(, root $root:literal)?;)* })*) => {
        mod root {
            use super::*;
            $($(#[test] $(#[ignore = $open])? fn $test() { run(stringify!($test), User::Root); })*)*
        }
        mod ordinary {
            use super::*;
            $($(#[test] $(#[ignore = $open])? fn $test() { run(stringify!($test), User::Ordinary); })*)*
        }
    };
}
holdfast_tests::suite!(programs);

/// In the short form each program is run as one user, by its place in the list; `make test-full` and `make support` run
/// all of them as both.
fn run(name: &str, user: User) {
    let place = ENTRIES.iter().position(|entry| entry.name == name).expect("a line of the suite");
    let entry = &ENTRIES[place];
    let turn = if place % 2 == 0 || entry.root.is_some() { User::Root } else { User::Ordinary };
    match entry.root {
        Some(why) if user == User::Ordinary => println!("not run: {why}"),
        _ if user != turn && am_root() && !full() => {
            println!("not run: it is run as {turn:?} (HOLDFAST_TEST_FULL=1: as both)")
        }
        _ => chain(&entry.app(), user, Plan::of(many())),
    }
}

/// Every page that can be is mapped from the image, at every restart.
mod lazy {
    use super::*;

    fn lazily(program: &str, user: User) {
        let plan = Plan::of(many()).with(&["--no-compress"], Memory::Lazy);
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

/// What each engine has its own way with: memory is locked and guarded in a frozen copy, or in memory made read-only, too.
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
    fn guards_sync() {
        with("guards", User::Ordinary, &["--engine", "sync"]);
    }
    #[test]
    fn ranges_fork() {
        with("ranges", User::Ordinary, &["--engine", "fork"]);
    }
}
