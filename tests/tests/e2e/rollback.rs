//! `holdfast rollback`: programs that go back in place, again and again, end as if nothing had been; what cannot go
//! back is refused by name and runs on; deaths and damage at every moment leave one time or the other, never both.

use crate::{chains_apps, chains_cuda};
use anyhow::{Context, Result};
use holdfast_tests::apps::{App, NotHere, PYTHON, Results, reference};
use holdfast_tests::cuda_job::Variables;
use holdfast_tests::full;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::{alone, checkpoint, few, many, turn_of};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, shell_code, wait};
use holdfast_tests::suite::ENTRIES;
use std::thread::sleep;
use std::time::Duration;

const JOB: &str = "x";
/// Of all rollbacks of one program.
const LIMIT: Duration = Duration::from_secs(900);
const REFUSED: i32 = 69;
/// There is no program any more.
const NOT_FOUND: i32 = 66;

/// What `make test` tries: every kind of state, in programs that keep their processes, threads and descriptors.
const SAMPLE: &[&str] = &["registers", "mainstack", "signals", "timers", "heap", "files", "tree_memory"];

/// Runs a program, takes images and goes back to them at random moments. Returns how often it went back, and why not.
fn back_and_forth(
    bed: &Bed,
    app: &App,
    (rounds, variables): (u32, Variables<'_>),
    random: &mut Random,
) -> Result<(u32, Vec<String>)> {
    let _alone = app.alone.then(alone);
    let reference = reference(app)?;
    app.prepare(bed)?;
    let mut command = bed.run_command(JOB, app.options, &app.words())?;
    command.envs(variables.iter().copied());
    let mut front = command.stdin(app.input(bed)?).spawn()?;
    let share = reference.took.mul_f64(0.5) / rounds / 2;
    let (mut done, mut refused) = (0, Vec::new());
    for _ in 0..rounds {
        if bed.wait_live(JOB, &mut front)?.is_none() {
            break;
        }
        sleep(random.time(Duration::ZERO, share));
        if !checkpoint(bed, &mut front)? {
            break;
        }
        for _ in 0..1 + random.below(2) {
            sleep(random.time(Duration::ZERO, share));
            let ended = bed.say(&["rollback", JOB])?;
            match ended.code() {
                0 => done += 1,
                REFUSED => refused.extend(ended.stderr.lines().next().map(str::to_owned)),
                NOT_FOUND => break,
                _ if front.try_wait()?.is_some() => break,
                code => anyhow::bail!("rollback: status {code}: {}", ended.stderr),
            }
        }
    }
    let code = shell_code(wait(&mut front, PATIENCE + reference.took * 6).context("the end of the program")?);
    let said = || format!("after {done} rollbacks, refused {refused:?}: {}", bed.text("err"));
    Results::read(app, bed, code)?.check(&reference.results).with_context(said)?;
    bed.check_clean(JOB)?;
    Ok((done, refused))
}

holdfast_tests::suite!(holdfast_tests::suite_tests, run);

fn run(name: &str, user: User) {
    let entry = ENTRIES.iter().find(|entry| entry.name == name).expect("a line of the suite");
    match entry.root {
        Some(why) if user == User::Ordinary => return println!("not run: {why}"),
        _ if !SAMPLE.contains(&name) && !full() => return println!("not run: not in the sample"),
        _ => {}
    }
    let Some(bed) = Bed::lasting(user, LIMIT) else { return };
    match back_and_forth(&bed, &entry.app(), (many(), &[]), &mut Random::new()) {
        Ok((done, refused)) => println!("{name} as {user:?}: {done} rollbacks, refused: {refused:#?}"),
        Err(error) if error.is::<NotHere>() => println!("not run: {error}"),
        Err(error) => panic!("{name} as {user:?}: {error:#}"),
    }
}

/// Real programs; `servers.rs` has redis.
mod real {
    use super::*;

    fn numpy_app() -> App {
        if full() {
            chains_apps::numpy_app()
        } else {
            App::real("numpy", &[PYTHON, "@arrays.py", "60", "12"])
        }
    }

    fn run(name: &str, app: &App, user: User) {
        if user != turn_of(name) && !full() {
            return println!("not run: it is run as the other user (HOLDFAST_TEST_FULL=1: as both)");
        }
        let Some(bed) = Bed::lasting(user, LIMIT) else { return };
        match back_and_forth(&bed, app, (few(), &[]), &mut Random::new()) {
            Ok((done, refused)) => {
                println!("{name} as {user:?}: {done} rollbacks, refused: {refused:#?}");
                // The locks of sqlite's log are others from moment to moment.
                assert!(done > 0 || !refused.is_empty(), "{name} as {user:?} has ended too soon");
            }
            Err(error) => panic!("{name} as {user:?}: {error:#}"),
        }
    }

    macro_rules! apps {
        ($($test:ident: $app:expr;)*) => {
            mod root {
                use super::*;
                $(#[test] fn $test() { run(stringify!($test), &$app, User::Root); })*
            }
            mod ordinary {
                use super::*;
                $(#[test] fn $test() { run(stringify!($test), &$app, User::Ordinary); })*
            }
        };
    }
    apps! {
        python_numpy: numpy_app();
        sqlite: chains_apps::sqlite_app();
        sqlite_wal: chains_apps::ledger("wal");
    }
}

/// Programs that use CUDA, on the stand-in driver: device memory goes back with the rest.
mod cuda {
    use super::*;

    fn run(name: &str, user: User, variables: Variables<'_>) {
        let Some(bed) = Bed::lasting(user, LIMIT) else { return };
        let app = chains_cuda::app(name, &[], variables);
        match back_and_forth(&bed, &app, (many(), variables), &mut Random::new()) {
            Ok((done, refused)) => {
                println!("{name} as {user:?}: {done} rollbacks, refused: {refused:#?}");
                // Those that make and free device memory may be refused at times.
                assert!(done > 0 || name == "device_memory", "{name}: {refused:?}");
            }
            Err(error) => panic!("{name} as {user:?} with {variables:?}: {error:#}"),
        }
    }

    macro_rules! programs {
        ($owner:ident $variables:expr, $short:expr; $($name:ident)*) => {
            mod $owner {
                use super::*;
                $(#[test] fn $name() {
                    if full() || $short.contains(&stringify!($name)) {
                        run(stringify!($name), User::Root, $variables);
                        run(stringify!($name), User::Ordinary, $variables);
                    }
                })*
            }
        };
    }
    programs! {
        library &[], ["pointers", "pinned"];
        saxpy pointers atomics structs globals streams pinned graph threads vmm device_memory
    }
    programs! {
        keeper chains_cuda::KEEPER, ["saxpy", "streams"];
        saxpy pointers atomics structs globals streams pinned graph threads vmm device_memory
    }
}
