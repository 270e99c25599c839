//! The CUDA programs of `tests/programs/cuda`, and `device_memory`, on the stand-in driver: chained checkpoint, kill
//! -9, restart rounds at random moments; the joined output, checksums of device memory among it, must be that of an
//! undisturbed run.
//!
//! `make test` has half of them, each as one user; the long form all, as both, with three increments and ten restarts.

use holdfast_tests::apps::App;
use holdfast_tests::artifacts::kit;
use holdfast_tests::full;
use holdfast_tests::restart_chain::{Plan, chain_in_turn};
use holdfast_tests::sandbox::User;

/// Its device memory is the driver's affair; that of all others is libholdfast's.
const BY_DRIVER: &str = "graph";

/// Whether the word `long` is there.
fn is_long(words: &[&str]) -> bool {
    !words.is_empty()
}

/// Device memory is a keeper's.
pub const KEEPER: &[(&str, &str)] = &[("HOLDFAST_CUDA_DATA", "keeper")];

fn run(name: &str, arguments: &[&str], long: bool, users: (User, User)) {
    run_with(name, arguments, long, users, &[]);
}

fn run_with(
    name: &str,
    arguments: &[&str],
    long: bool,
    (user, turn): (User, User),
    variables: &'static [(&'static str, &'static str)],
) {
    if long && !full() {
        return println!("not run: only in the long form (HOLDFAST_TEST_FULL=1)");
    }
    let app = app(name, arguments, variables);
    let plan = Plan { variables, ..if full() { Plan::exactly(10, 3) } else { Plan::of(2) } };
    chain_in_turn(&app, user, turn, plan);
}

/// One of the programs, on the stand-in driver.
pub fn app(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> App {
    let folder = kit().stand_in().expect("the stand-in driver").to_string_lossy().into_owned();
    let program = if name == "device_memory" { kit().program(name) } else { kit().cuda_program(name) };
    let program = program.to_string_lossy().into_owned();
    // many calls in each step of `device_memory`
    let steps = match (full(), name) {
        (true, "device_memory") => "100",
        (true, _) => "400",
        (false, "device_memory") => "10",
        (false, _) => "40",
    };
    // threads of a launch in an order of their own, and work that has begun late when a checkpoint comes
    let mut words: Vec<String> =
        ["/usr/bin/env", "STAND_IN_SEED=7", "STAND_IN_DELAY=1000"].map(str::to_owned).into();
    let by_driver = name == BY_DRIVER && variables.is_empty();
    words.extend(by_driver.then(|| "HOLDFAST_CUDA_DATA=driver".to_owned()));
    words.extend([format!("LD_LIBRARY_PATH={folder}"), program, steps.to_owned()]);
    words.extend(arguments.iter().map(|&word| word.to_owned()));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    App::real(&format!("cuda {name}"), &words)
}

macro_rules! programs {
    ($($name:ident $turn:ident $($long:ident)? $($argument:literal)*;)*) => {
        $(fn $name(user: User) {
            let (arguments, long) = (&[$($argument),*], &[$(stringify!($long))?]);
            run(stringify!($name), arguments, is_long(long), (user, User::$turn));
        })*
        mod root {
            use super::*;
            $(#[test] fn $name() { super::$name(User::Root); })*
        }
        mod ordinary {
            use super::*;
            $(#[test] fn $name() { super::$name(User::Ordinary); })*
        }
    };
}

programs! {
    saxpy Root long;
    pointers Ordinary;
    atomics Root long;
    structs Ordinary long;
    globals Root;
    streams Ordinary;
    pinned Root;
    graph Ordinary;
    touches Root long "2" "3";
    threads Ordinary long;
    vmm Root;
    device_memory Ordinary;
}

/// The same with a keeper: its memory is imported, cached on the device, and filled at each restart.
mod keeper {
    use super::*;

    macro_rules! kept {
        ($($name:ident $turn:ident $($long:ident)?;)*) => {
            mod root {
                use super::*;
                $(#[test] fn $name() {
                    let long = is_long(&[$(stringify!($long))?]);
                    run_with(stringify!($name), &[], long, (User::Root, User::$turn), KEEPER);
                })*
            }
            mod ordinary {
                use super::*;
                $(#[test] fn $name() {
                    let long = is_long(&[$(stringify!($long))?]);
                    run_with(stringify!($name), &[], long, (User::Ordinary, User::$turn), KEEPER);
                })*
            }
        };
    }

    kept! {
        saxpy Root;
        pointers Ordinary;
        atomics Root long;
        structs Ordinary long;
        pinned Root long;
        graph Ordinary long;
        device_memory Root long;
    }
}
