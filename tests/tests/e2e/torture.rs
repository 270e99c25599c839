//! `programs/torture.c`: eight threads that write everywhere, by stores and by system calls, while their mappings
//! come, go and move. Every image of a run is restarted and must have exactly the checksum that the program logged at
//! that epoch.
//!
//! The short form runs each engine once. The long form (`HOLDFAST_TEST_FULL=1`, or `HOLDFAST_TORTURE_RUNS=N` for N
//! runs of each case) takes 200 epochs with every engine and bound; `HOLDFAST_TORTURE_EPOCHS=N` and
//! `HOLDFAST_TORTURE_ONLY='fork 64K'` narrow it down. A case that fails names its seed and its options.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::full;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::{kill_all, kill_program};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, shell_code, wait};
use std::collections::BTreeMap;
use std::fs;
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

const JOB: &str = "t";
const RUN_LIMIT: Duration = Duration::from_secs(600);
const RESTART_LIMIT: Duration = PATIENCE;

/// One run.
#[derive(Clone, Debug)]
struct Case {
    engine: &'static str,
    cow: &'static str,
    user: User,
    seed: u64,
    epochs: u64,
    more: Vec<&'static str>,
}

impl Case {
    fn of(engine: &'static str, cow: &'static str, user: User, seed: u64) -> Case {
        let more = if engine == "slots" { vec!["--slots"] } else { Vec::new() };
        Case { engine, cow, user, seed: seed % 1_000_000, epochs: 8, more }
    }

    fn options(&self) -> [&'static str; 4] {
        ["--engine", self.engine, "--cow", self.cow]
    }

    fn program(&self, more: &[&str]) -> App {
        let (epochs, seed) = (self.epochs.to_string(), self.seed.to_string());
        let mut arguments = vec!["--epochs", &epochs, "--seed", &seed];
        arguments.extend(&self.more);
        arguments.extend(more);
        App::program("torture", &arguments)
    }

    fn bed(&self) -> Option<Bed> {
        Bed::lasting(self.user, Duration::from_secs(240 + 4 * self.epochs))
    }
}

/// `epoch N SUM` of the log: sums by epoch.
fn logged(bed: &Bed) -> Result<BTreeMap<u64, String>> {
    let line = |text: &str| {
        let mut words = text.split(' ');
        ensure!(words.next() == Some("epoch"), "{text:?} in the log");
        let epoch = words.next().context("an epoch")?.parse()?;
        Ok((epoch, words.next().context("a sum")?.to_owned()))
    };
    bed.text("torture.log").lines().map(line).collect()
}

/// `verified WHAT SUM RESTARTS`, the newest one.
fn verified(bed: &Bed) -> Result<(String, String, u64)> {
    let out = bed.text("out");
    let last = out.lines().rfind(|line| line.starts_with("verified")).context("nothing verified")?;
    let words: Vec<&str> = last.split(' ').collect();
    let [_, what, sum, restarts] = words[..] else { anyhow::bail!("{last:?}") };
    Ok((what.to_owned(), sum.to_owned(), restarts.parse()?))
}

fn said(bed: &Bed) -> String {
    let out = bed.text("out");
    let lines: Vec<&str> = out.lines().rev().take(12).collect();
    format!("{} / {}{}", lines.join(" < "), bed.text("err"), bed.text("restart.err"))
}

/// Failures of checkpoints in the agent's log that say more than that the machine was busy.
fn no_strange_failures(bed: &Bed) -> Result<()> {
    let log = String::from_utf8_lossy(&fs::read(bed.job(JOB).join("agent.log"))?).into_owned();
    let known = ["again", "the program has ended", "has just ended"];
    let strange =
        |line: &&str| line.contains("checkpoint failed") && !known.iter().any(|reason| line.contains(reason));
    match log.lines().find(strange) {
        Some(line) => anyhow::bail!("{line}"),
        None => Ok(()),
    }
}

/// Restarts one image and waits for the program, which checks itself and ends.
fn restart(bed: &Bed, image: u64, random: &mut Random) -> Result<(String, String)> {
    let options: &[&str] = [&["--eager"][..], &["--lazy"], &[]][random.below(3) as usize];
    let what = format!("restart {JOB}@{image} {}", options.join(" "));
    let mut front = bed.restart_command(&format!("{JOB}@{image}"), options)?.spawn()?;
    let code = shell_code(wait(&mut front, RESTART_LIMIT).with_context(|| format!("{what}: {}", said(bed)))?);
    ensure!(code == 0, "{what}: status {code}: {}", said(bed));
    let (epoch, sum, restarts) = verified(bed).with_context(|| what.clone())?;
    ensure!(restarts > 0, "{what}: the program does not know that it was restarted");
    Ok((epoch, sum))
}

/// A whole run, then every image of it, the newest first: each restart cuts the files back to what they were.
fn every_image(case: &Case, random: &mut Random) -> Result<()> {
    let Some(bed) = case.bed() else { return Ok(()) };
    let mut front = bed.run_command(JOB, &case.options(), &case.program(&[]).words())?.spawn()?;
    let code = shell_code(wait(&mut front, RUN_LIMIT).with_context(|| said(&bed))?);
    no_strange_failures(&bed)?;
    ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", said(&bed));
    // the last image may still be on its way to the store
    bed.check_clean(JOB)?;
    let (sums, images) = (logged(&bed)?, bed.images(JOB));
    ensure!(
        sums.len() as u64 == case.epochs && images.len() == sums.len(),
        "{} epochs, {images:?}",
        sums.len()
    );
    for (image, (epoch, sum)) in images.iter().zip(&sums).rev() {
        let (found, found_sum) = restart(&bed, *image, random)?;
        ensure!(
            found == epoch.to_string() && found_sum == *sum,
            "image {image}: epoch {found} with sum {found_sum}, not epoch {epoch} with {sum}"
        );
    }
    bed.check_clean(JOB)
}

/// Checkpoints from outside at any moment; every image must restart to a program that finds all as it left it.
fn freely(case: &Case, images: usize, random: &mut Random) -> Result<()> {
    let Some(bed) = case.bed() else { return Ok(()) };
    // no image may hold a ring
    let program = case.program(&["--free", "--without", "ring"]);
    let mut front = bed.run_command(JOB, &case.options(), &program.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("the first line", PATIENCE, || bed.text("out").contains("round"))?;
    let (mut attempts, mut last) = (0, String::new());
    while bed.images(JOB).len() < images {
        sleep(random.time(Duration::from_millis(5), Duration::from_millis(250)));
        let ended = bed.say(&["checkpoint", JOB, "--wait"])?;
        attempts += 1;
        // a child of fork(2) may be there at that moment
        let passing = ["again", "process "].iter().any(|word| ended.stderr.contains(word));
        ensure!(ended.status.success() || passing, "checkpoint: {} / {}", ended.stderr, said(&bed));
        if !ended.status.success() {
            last = ended.stderr;
        }
        ensure!(
            attempts < 30 * images && front.try_wait()?.is_none(),
            "{attempts} attempts, {:?}, {last}: {}",
            bed.images(JOB),
            said(&bed)
        );
    }
    kill_program(pid, &mut front)?;
    for image in bed.images(JOB).into_iter().rev() {
        restart(&bed, image, random)?;
    }
    bed.check_clean(JOB)
}

/// Killed and restarted every few epochs; the increments go on from the image restarted from.
fn in_lives(case: &Case, lives: u32, random: &mut Random) -> Result<()> {
    let Some(bed) = case.bed() else { return Ok(()) };
    let program = case.program(&["--go-on"]);
    let mut front = bed.run_command(JOB, &case.options(), &program.words())?.spawn()?;
    for life in 0..lives {
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| format!("life {life}: {}", said(&bed)))?;
        let newest = bed.images(JOB).last().copied().unwrap_or(0);
        bed.until("three images", PATIENCE, || {
            bed.images(JOB).last().is_some_and(|image| *image >= newest + 3) || !alive(&mut front)
        })
        .with_context(|| said(&bed))?;
        ensure!(alive(&mut front), "life {life} ended: {}", said(&bed));
        sleep(random.time(Duration::ZERO, Duration::from_millis(60)));
        kill_all(&bed, pid, &mut front)?;
        no_strange_failures(&bed)?;
        let options: &[&str] = [&["--eager"][..], &["--lazy"], &[]][random.below(3) as usize];
        front = bed.restart_command(JOB, options)?.spawn()?;
    }
    drop(bed.create("enough")?);
    let code = shell_code(wait(&mut front, RUN_LIMIT).with_context(|| said(&bed))?);
    ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", said(&bed));
    no_strange_failures(&bed)?;
    bed.check_clean(JOB)
}

fn alive(front: &mut Child) -> bool {
    matches!(front.try_wait(), Ok(None))
}

fn must(case: &Case, result: Result<()>) {
    if let Err(error) = result {
        panic!("{case:?}: {error:#}");
    }
}

fn short(engine: &'static str, cow: &'static str, user: User) {
    let mut random = Random::new();
    let case = Case::of(engine, cow, user, random.number());
    must(&case, every_image(&case, &mut random));
}

#[test]
fn auto() {
    short("auto", "5%", User::Root);
}

#[test]
fn copy() {
    short("copy", "5%", User::Ordinary);
}

#[test]
fn fork_64_kib() {
    short("fork", "64K", User::Root);
}

#[test]
fn fork_5_percent() {
    short("fork", "5%", User::Ordinary);
}

#[test]
fn slots() {
    short("slots", "64K", User::Ordinary);
}

fn short_freely(engine: &'static str, cow: &'static str, user: User) {
    let mut random = Random::new();
    let mut case = Case::of(engine, cow, user, random.number());
    case.epochs = 200;
    must(&case, freely(&case, if full() { 60 } else { 6 }, &mut random));
}

#[test]
fn freely_auto() {
    short_freely("auto", "5%", User::Ordinary);
}

#[test]
fn freely_copy() {
    short_freely("copy", "5%", User::Root);
}

#[test]
fn freely_fork() {
    short_freely("fork", "64K", User::Root);
}

#[test]
fn freely_slots() {
    short_freely("slots", "1%", User::Root);
}

#[test]
fn in_five_lives() {
    for user in [User::Root, User::Ordinary] {
        let mut random = Random::new();
        let mut case = Case::of("auto", "5%", user, random.number());
        case.epochs = 150;
        must(&case, in_lives(&case, 5, &mut random));
    }
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Every engine with every bound, 200 epochs each.
#[test]
fn long_form() {
    let runs = number_of("HOLDFAST_TORTURE_RUNS").or(full().then_some(10));
    let Some(runs) = runs else { return println!("not run: HOLDFAST_TORTURE_RUNS is not set") };
    let epochs = number_of("HOLDFAST_TORTURE_EPOCHS").unwrap_or(200);
    let only = std::env::var("HOLDFAST_TORTURE_ONLY").ok();
    let mut random = Random::new();
    let mut done = 0;
    for run in 0..runs {
        for engine in ["copy", "fork", "auto", "slots"] {
            for cow in ["64K", "1%", "5%", "none"] {
                if only.as_ref().is_some_and(|only| *only != format!("{engine} {cow}")) {
                    continue;
                }
                let user = if run % 2 == 0 { User::Root } else { User::Ordinary };
                let mut case = Case::of(engine, cow, user, random.number());
                case.epochs = epochs;
                must(&case, every_image(&case, &mut random));
                println!("run {run}: {case:?}: every image right");
                done += 1;
            }
        }
    }
    assert!(done > 0, "HOLDFAST_TORTURE_ONLY={only:?} is no case; one is 'fork 64K'");
}
