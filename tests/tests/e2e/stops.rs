//! Many stops during one wait: the program sees neither EINTR nor a short count nor an early end, and its wait ends
//! though it is stopped again and again: the time that has passed does not begin afresh. The store is in memory, for
//! many images.
//!
//! The long form measures, too: the wait ends at most 20 ms later than the time that it was stopped. It runs one test
//! at a time (a lock). A machine that does something else at the wrong moment may delay any program, so it tries
//! again, twice.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::full;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// So many stops are enough to show it; on a slow machine the wait is longer until they fit into it.
const LEAST_STOPS: usize = 10;
const WAITS_MS: [i64; 3] = [1000, 4000, 16_000];
const TOLERANCE_NS: i64 = 20_000_000;

static ALONE: Mutex<()> = Mutex::new(());

/// Whether the wait ends in its time: SO_RCVTIMEO is not a parameter of the call, and starts afresh.
#[derive(Clone, Copy, PartialEq)]
enum End {
    InTime,
    Whenever,
}

/// In the short form the calls are made as one of the two users, in turns.
fn many_stops(call: &str, end: End, place: usize) {
    let _alone = full().then(|| ALONE.lock().unwrap_or_else(PoisonError::into_inner));
    let turn = if place.is_multiple_of(2) && am_root() { User::Root } else { User::Ordinary };
    for user in [User::Root, User::Ordinary].into_iter().filter(|user| *user == turn || full()) {
        let mut late = 0;
        let in_time = (0..3).any(|_| {
            let Some(bed) = Bed::in_memory(user) else { return true };
            match stop_often(&bed, call, end) {
                Ok((stops, over_ns)) => {
                    println!("{call} as {user:?}: {stops} stops, {:.2} ms over", over_ns as f64 / 1e6);
                    late = over_ns;
                    !full() || end == End::Whenever || over_ns <= TOLERANCE_NS
                }
                Err(error) => panic!("{call} as {user:?}: {error:#}"),
            }
        });
        assert!(in_time, "{call} as {user:?}: three times later than it was stopped, at last by {late} ns");
    }
}

/// Returns the number of stops during the wait, and by how much the wait exceeded its time and the time stopped.
fn stop_often(bed: &Bed, call: &str, end: End) -> Result<(usize, i64)> {
    let mut stops = 0;
    for (name, wait_ms) in ["w1", "w2", "w3"].into_iter().zip(WAITS_MS) {
        let took;
        (stops, took) = stop_in_one_wait(bed, name, call, wait_ms, end)?;
        if stops >= LEAST_STOPS {
            let stopped: u64 =
                bed.images(name).iter().map(|n| stop_ns(bed, name, *n)).sum::<Result<u64>>()?;
            return Ok((stops, took - wait_ms * 1_000_000 - stopped as i64));
        }
    }
    anyhow::bail!("only {stops} stops fit into the longest wait")
}

/// Returns the number of stops in one run of the program, and how long its wait took.
fn stop_in_one_wait(bed: &Bed, job: &str, call: &str, wait_ms: i64, end: End) -> Result<(usize, i64)> {
    let file = format!("side-{job}");
    let side = bed.work().join(&file).to_string_lossy().into_owned();
    let app = App::program("waits", &[call, "1", &wait_ms.to_string(), &side]);
    let mut front = bed.run_command(job, &[], &app.words())?.spawn()?;
    bed.wait_live(job, &mut front)?;
    let mut stops = 0;
    let limit = Instant::now() + PATIENCE;
    while bed.text(&file).is_empty() && (end == End::InTime || stops < 2 * LEAST_STOPS) {
        ensure!(Instant::now() < limit, "it still waits after {stops} stops");
        if bed.say(&["checkpoint", job])?.status.success() {
            stops += 1;
        }
        if front.try_wait()?.is_some() {
            break;
        }
    }
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0 && bed.text("out").contains("PASS"), "status {code}: {}", bed.text("out"));
    Ok((stops, bed.text(&file).trim().parse().context("the side file")?))
}

fn stop_ns(bed: &Bed, job: &str, epoch: u64) -> Result<u64> {
    let shown = bed.show(&format!("{job}@{epoch}"))?;
    shown
        .pointer("/stop/total_ns")
        .and_then(Value::as_u64)
        .with_context(|| format!("no stop time in {shown}"))
}

macro_rules! calls {
    ($($test:ident: $end:ident;)*) => {
        /// In this order they take turns.
        const CALLS: &[&str] = &[$(stringify!($test)),*];
        $(#[test] fn $test() {
            let place = CALLS.iter().position(|call| *call == stringify!($test));
            many_stops(stringify!($test), End::$end, place.unwrap());
        })*
    };
}

calls! {
    nanosleep: InTime;
    clock_nanosleep: InTime;
    clock_nanosleep_abs: InTime;
    poll: InTime;
    ppoll: InTime;
    select: InTime;
    pselect: InTime;
    epoll_wait: InTime;
    epoll_pwait: InTime;
    epoll_pwait2: InTime;
    futex_timed: InTime;
    futex_bitset: InTime;
    sem_timedwait: InTime;
    cond_timedwait: InTime;
    sigtimedwait: InTime;
    semtimedop: InTime;
    recv_timeout: Whenever;
    timerfd: InTime;
    pipe_read: InTime;
    poll_endless: InTime;
    epoll_endless: InTime;
    socket_recv: InTime;
    eventfd: InTime;
    futex: InTime;
    sigwaitinfo: InTime;
    sigsuspend: InTime;
    pause: InTime;
    flock: InTime;
    msgrcv: InTime;
}

/// Every call above is one that the program knows, and none is forgotten here.
#[test]
fn all_calls_of_the_program_are_tested() {
    let list = std::process::Command::new(holdfast_tests::artifacts::kit().program("waits"))
        .arg("list")
        .output()
        .expect("list");
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(CALLS.contains(&name), "no test of {name}");
    }
}

/// Large transfers, stopped as often as it goes: each call still returns the whole length.
#[test]
fn transfers_arrive_whole() {
    for (kind, rounds) in [
        ("write", 5),
        ("writev", 5),
        ("send", 5),
        ("sendmsg", 5),
        ("waitall", 5),
        ("getrandom", 12),
        ("zero", 12),
    ] {
        // On a slow machine it takes longer transfers for as many stops.
        let mut stops = 0;
        for times in [1, 4, 16] {
            if stops < 3 {
                stops = stopped_transfers(kind, rounds * times)
                    .unwrap_or_else(|error| panic!("{kind}: {error:#}"));
            }
        }
        assert!(stops >= 3, "{kind}: only {stops} stops");
    }
}

/// How many stops come into so many transfers.
fn stopped_transfers(kind: &str, rounds: u32) -> Result<u32> {
    let bed = Bed::in_memory(User::Ordinary).context("a bed")?;
    let app = App::program("transfers", &[kind, &rounds.to_string()]);
    let mut front = bed.run_command("t", &["--keep", "1"], &app.words())?.spawn()?;
    bed.wait_live("t", &mut front)?;
    let mut stops = 0;
    while front.try_wait()?.is_none() {
        stops += u32::from(bed.say(&["checkpoint", "t"])?.status.success());
    }
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0 && bed.text("out").contains("PASS"), "status {code}: {}", bed.text("out"));
    Ok(stops)
}

/// More stops than there is room for interrupted calls (240 of them), each in another transfer: the room is used again.
#[test]
fn transfers_without_end() {
    const MANY: usize = 300;
    let Some(bed) = Bed::in_memory(User::Ordinary) else { return };
    let result = (|| -> Result<()> {
        let app = App::program("transfers", &["flood", "1000000"]);
        let mut front = bed.run_command("t", &["--keep", "1"], &app.words())?.spawn()?;
        bed.wait_live("t", &mut front)?.context("the program ended at once")?;
        let mut stops = 0;
        while stops < MANY && !bed.text("out").contains("FAIL") {
            ensure!(front.try_wait()?.is_none(), "it ended");
            stops += usize::from(bed.say(&["checkpoint", "t", "--wait"])?.status.success());
        }
        ensure!(front.try_wait()?.is_none() && !bed.text("out").contains("FAIL"), "it ended");
        Ok(())
    })();
    if let Err(error) = result {
        panic!("{error:#}: {}", bed.text("out").lines().rev().take(4).collect::<Vec<_>>().join(" < "));
    }
}
