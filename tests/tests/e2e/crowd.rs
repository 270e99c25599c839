//! `programs/tree_crowd.c`: twenty busy processes, checkpointed again and again at random moments; none of them ever
//! sees an error, EINTR, an early end of a wait or a SIGCHLD too many. Then a sample of the images is restarted, and
//! each lives on.
//!
//! `HOLDFAST_CROWD_CHECKPOINTS=N` and `HOLDFAST_CROWD_RESTARTS=N` say how many; the long form
//! (`HOLDFAST_TEST_FULL=1`) takes 1000 checkpoints and restarts 50 of them, the short one 20 and 4.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::full;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::{alone, kill_job};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, shell_code, wait};
use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

const JOB: &str = "crowd";

fn number_of(variable: &str, long: usize, short: usize) -> usize {
    let given = std::env::var(variable).ok().and_then(|text| text.parse().ok());
    given.unwrap_or(if full() { long } else { short })
}

fn said(bed: &Bed) -> String {
    let out = bed.text("out");
    let lines: Vec<&str> = out.lines().rev().take(20).collect();
    let log = fs::read_to_string(bed.store().join(JOB).join("agent.log")).unwrap_or_default();
    let told: Vec<&str> = log
        .lines()
        .filter(|line| !line.contains(" committed: ") && !line.contains(" no pre-copy: "))
        .collect();
    let told = told[told.len().saturating_sub(40)..].join("\n");
    format!("{} / {}{}\n{told}\n", lines.join(" < "), bed.text("err"), bed.text("restart.err"))
}

/// One image; a stop that passed its deadline on a busy machine is asked for again. The number of attempts.
fn checkpoint(bed: &Bed, front: &mut Child) -> Result<usize> {
    let end = Instant::now() + PATIENCE;
    for attempt in 1.. {
        let ended = bed.say(&["checkpoint", JOB, "--wait"])?;
        if ended.status.success() {
            return Ok(attempt);
        }
        ensure!(front.try_wait()?.is_none(), "it has ended: {}", said(bed));
        // One of the short-lived children may come or go at that moment.
        let passing = ["again", "has just ended"].iter().any(|word| ended.stderr.contains(word));
        ensure!(passing && Instant::now() < end, "attempt {attempt}: {}", ended.stderr);
        sleep(Duration::from_millis(10));
    }
    anyhow::bail!("unreachable")
}

/// Asks the program to come to its end, which it does if all its processes are well.
fn end_well(bed: &Bed, front: &mut Child) -> Result<()> {
    drop(bed.create("enough")?);
    let code = shell_code(wait(front, PATIENCE).with_context(|| said(bed))?);
    fs::remove_file(bed.work().join("enough"))?;
    ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", said(bed));
    Ok(())
}

/// The regular files of a folder, into files that may be there already.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// A restart, some rounds, a checkpoint in every other life, and the end.
fn live_again(bed: &Bed, image: u64, random: &mut Random) -> Result<()> {
    let options: &[&str] = [&["--eager"][..], &["--lazy"], &[]][random.below(3) as usize];
    // A life before may have cut them back to the lengths of an earlier image.
    copy_files(&bed.dir().join("all"), &bed.work())?;
    let mut front = bed.restart_command(&format!("{JOB}@{image}"), options)?.spawn()?;
    bed.wait_live(JOB, &mut front)?.with_context(|| said(bed))?;
    let rounds = || bed.text("out").lines().count();
    let before = rounds();
    bed.until("five more rounds", PATIENCE, || {
        rounds() > before + 5 || front.try_wait().is_ok_and(|s| s.is_some())
    })
    .with_context(|| said(bed))?;
    if random.below(2) == 0 {
        checkpoint(bed, &mut front)?;
    }
    end_well(bed, &mut front)
}

fn crowd(user: User) -> Result<()> {
    let (checkpoints, restarts) =
        (number_of("HOLDFAST_CROWD_CHECKPOINTS", 1000, 12), number_of("HOLDFAST_CROWD_RESTARTS", 50, 2));
    let Some(bed) =
        Bed::lasting(user, Duration::from_secs(240 + 2 * checkpoints as u64 + 30 * restarts as u64))
    else {
        return Ok(());
    };
    let mut random = Random::new();
    let app = App::program("tree_crowd", &[]);
    let mut words = app.words();
    // It keeps all processors busy for so long that kernel threads of some virtual machines got none for a minute,
    // among them one that held a lock which every fork needs (kdamond, in __rmap_walk_file). So in the short form the
    // job has one of them, the first.
    let first = first_processor();
    if let Some(first) = first.as_deref().filter(|_| !full()) {
        words.splice(0..0, ["/usr/bin/taskset", "-c", first]);
    }
    let mut front = bed.run_command(JOB, &[], &words)?.spawn()?;
    bed.wait_live(JOB, &mut front)?.with_context(|| said(&bed))?;
    bed.until("the first round", PATIENCE, || bed.text("out").contains("round 0"))?;
    let mut attempts = 0;
    for number in 1..=checkpoints {
        sleep(random.time(Duration::ZERO, Duration::from_millis(60)));
        attempts +=
            checkpoint(&bed, &mut front).with_context(|| format!("checkpoint {number}: {}", said(&bed)))?;
        ensure!(!bed.text("out").contains("FAIL"), "after checkpoint {number}: {}", said(&bed));
    }
    println!("{checkpoints} checkpoints, {attempts} attempts");
    // the program is well after all of them
    let rounds = bed.text("out").lines().count();
    bed.until("more rounds", PATIENCE, || bed.text("out").lines().count() > rounds + 2)
        .with_context(|| said(&bed))?;
    kill_job(&bed, &mut front)?;
    fs::create_dir(bed.dir().join("all"))?;
    copy_files(&bed.work(), &bed.dir().join("all"))?;
    let images = bed.images(JOB);
    ensure!(images.len() == checkpoints, "{} images", images.len());
    for life in 0..restarts {
        let image = images[random.below(images.len() as u64) as usize];
        live_again(&bed, image, &mut random).with_context(|| format!("life {life}, image {image}"))?;
    }
    bed.check_clean(JOB)
}

/// The number of the first processor that this process may use.
fn first_processor() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let first = list.trim().split([',', '-']).next()?;
    Some(first.to_owned())
}

fn must(user: User) {
    let _turn = (!full()).then(alone);
    if let Err(error) = crowd(user) {
        panic!("as {user:?}: {error:#}");
    }
}

#[test]
fn as_root() {
    must(User::Root);
}

#[test]
fn as_ordinary_user() {
    must(User::Ordinary);
}
