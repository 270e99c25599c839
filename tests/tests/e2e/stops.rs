//! Twenty stops during one wait of a second: the program sees neither EINTR nor a short count, and its wait ends when it
//! would have ended: at most 20 ms later than the time that it was stopped.
//!
//! One test at a time (a lock): they measure. The store is in memory, so that twenty images fit into a second. A machine
//! that does something else at the wrong moment may delay any program, so a late end is tried again, twice.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::sandbox::{Bed, User, shell_code, wait};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const STOPS: usize = 20;
const WAIT_MS: i64 = 1000;
const TOLERANCE_NS: i64 = 20_000_000;

static ALONE: Mutex<()> = Mutex::new(());

/// Whether the end of the wait is checked: SO_RCVTIMEO is not a parameter of the call, and starts afresh.
#[derive(Clone, Copy, PartialEq)]
enum End {
    InTime,
    Whenever,
}

fn twenty_stops(call: &str, end: End) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for user in [User::Root, User::Ordinary] {
        let mut late = String::new();
        let in_time = (0..3).any(|_| {
            let Some(bed) = Bed::in_memory(user) else { return true };
            match stop_often(&bed, call) {
                Ok((stops, over_ns)) => {
                    println!("{call} as {user:?}: {stops} stops, {:.2} ms over", over_ns as f64 / 1e6);
                    late = format!("ended {:.1} ms later than the time it was stopped", over_ns as f64 / 1e6);
                    end == End::Whenever || over_ns <= TOLERANCE_NS
                }
                Err(error) => panic!("{call} as {user:?}: {error:#}"),
            }
        });
        assert!(in_time, "{call} as {user:?}: three times {late}");
    }
}

/// Returns the number of stops during the wait, and by how much the wait exceeded its time and the time stopped.
fn stop_often(bed: &Bed, call: &str) -> Result<(usize, i64)> {
    let side = bed.work().join("side").to_string_lossy().into_owned();
    let app = App::program("waits", &[call, "1", &WAIT_MS.to_string(), &side]);
    let mut front = bed.run_command("w", &[], &app.words())?.spawn()?;
    bed.wait_live("w", &mut front)?.context("the program ended at once")?;
    bed.until("the first line", Duration::from_secs(10), || bed.text("out").contains("round 0"))?;
    let mut stops = 0;
    let limit = Instant::now() + Duration::from_secs(20);
    while stops < STOPS && bed.text("side").is_empty() && Instant::now() < limit {
        if bed.say(&["checkpoint", "w"])?.status.success() {
            stops += 1;
        }
    }
    let code = shell_code(wait(&mut front, Duration::from_secs(20))?);
    ensure!(code == 0 && bed.text("out").contains("PASS"), "status {code}: {}", bed.text("out"));
    let took: i64 = bed.text("side").trim().parse().context("the side file")?;
    let stopped: u64 = bed.images("w").iter().map(|n| stop_ns(bed, *n)).sum::<Result<u64>>()?;
    ensure!(stops >= STOPS / 2, "only {stops} stops fitted into the wait");
    Ok((stops, took - WAIT_MS * 1_000_000 - stopped as i64))
}

fn stop_ns(bed: &Bed, epoch: u64) -> Result<u64> {
    let shown = bed.show(&format!("w@{epoch}"))?;
    shown
        .pointer("/stop/total_ns")
        .and_then(Value::as_u64)
        .with_context(|| format!("no stop time in {shown}"))
}

macro_rules! calls {
    ($($test:ident: $end:ident;)*) => {
        $(#[test] fn $test() { twenty_stops(stringify!($test), End::$end); })*
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
    let here = include_str!("stops.rs");
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        assert!(here.contains(&format!("    {name}: ")), "no test of {name}");
    }
}

/// Large transfers, stopped as often as it goes: each call still returns the whole length.
#[test]
fn transfers_arrive_whole() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (kind, rounds) in [
        ("write", "5"),
        ("writev", "5"),
        ("send", "5"),
        ("sendmsg", "5"),
        ("waitall", "5"),
        ("getrandom", "12"),
        ("zero", "12"),
    ] {
        let Some(bed) = Bed::in_memory(User::Ordinary) else { return };
        let app = App::program("transfers", &[kind, rounds]);
        let result = (|| -> Result<u32> {
            let mut front = bed.run_command("t", &["--keep", "1"], &app.words())?.spawn()?;
            bed.wait_live("t", &mut front)?.context("the program ended at once")?;
            let mut stops = 0;
            while front.try_wait()?.is_none() {
                stops += u32::from(bed.say(&["checkpoint", "t"])?.status.success());
            }
            let code = shell_code(wait(&mut front, Duration::from_secs(20))?);
            ensure!(code == 0 && bed.text("out").contains("PASS"), "status {code}: {}", bed.text("out"));
            Ok(stops)
        })();
        match result {
            Ok(stops) => assert!(stops >= 3, "{kind}: only {stops} stops"),
            Err(error) => panic!("{kind}: {error:#}"),
        }
    }
}

/// More stops than there is room for interrupted calls (240 of them), each in another transfer: the room is used again.
#[test]
fn transfers_without_end() {
    const MANY: usize = 400;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
