//! Many ranks put objects faster than the store takes them, and all of it is killed at once, with the server: what
//! `holdfast_put` has taken is there if the host stays, and what `holdfast_wait` or `holdfast_finished` have called
//! safe is there though it does not.
//!
//! Long form: eight ranks by 2 MB every 10 ms for a minute, five times.

use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::own::{build, pids, shell};
use holdfast_tests::processes;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::alone;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a load is.
struct Load {
    ranks: usize,
    bytes: usize,
    period_ms: u32,
    /// Versions that are kept; `None`: all.
    keep: Option<u32>,
    /// It is killed at some moment before this.
    most: Duration,
}

/// The versions that each rank was told something of.
fn told(bed: &Bed, ranks: usize, what: &str) -> Vec<Vec<u64>> {
    let number = |line: &str| line.strip_prefix(what)?.trim().parse().ok();
    (0..ranks).map(|rank| bed.text(&format!("log.{rank}")).lines().filter_map(number).collect()).collect()
}

/// The newest version of which all ranks were told.
fn by_all(told: &[Vec<u64>]) -> u64 {
    told.iter().map(|of| of.last().copied().unwrap_or(0)).min().unwrap_or(0)
}

/// Where the server of the bed's store has its buffers.
fn buffers(bed: &Bed) -> Result<PathBuf> {
    let id = fs::read_to_string(bed.store().join("objects/id"))?;
    let entries = |folder: &Path| fs::read_dir(folder).map(|list| list.flatten().map(|entry| entry.path()));
    let named = |path: &Path, begin: &str| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin))
    };
    let users = entries(Path::new("/dev/shm"))?.filter(|path| named(path, "holdfast-objects-"));
    let mut folders = users.filter_map(|user| entries(&user).ok()).flatten();
    folders.find(|path| named(path, &id)).context("the folder of buffers")
}

fn killed(bed: &Bed, load: &Load, host_stays: bool, random: &mut Random) -> Result<()> {
    let keep = load.keep.map_or(String::new(), |keep| format!(";keep={keep}"));
    let program = format!("./load 'store={}{keep}' {} {} log", bed.store().display(), load.ranks, load.bytes);
    let mut command = shell(bed, &format!("{program} put {}", load.period_ms));
    command.stderr(bed.create("err")?);
    let mut child = command.spawn()?;
    bed.until("something is safe on all ranks", PATIENCE, || by_all(&told(bed, load.ranks, "safe")) > 0)?;
    std::thread::sleep(random.time(Duration::ZERO, load.most));
    processes::kill(&processes::of(bed.dir()));
    wait(&mut child, PATIENCE)?;
    // The shell says who was killed, a rank what failed.
    ensure!(!bed.text("err").contains("rank"), "{}", bed.text("err"));
    let (put, safe) = (told(bed, load.ranks, "put"), told(bed, load.ranks, "safe"));
    let (mut least, last) = (by_all(&safe), by_all(&put));
    if host_stays {
        least = last;
    } else {
        fs::remove_dir_all(buffers(bed)?)?;
    }
    // Of all versions that were called safe, those that the set keeps.
    let mut named: Vec<u64> = safe.into_iter().flatten().filter(|version| *version <= least).collect();
    named.sort_unstable();
    named.dedup();
    let named = if load.keep.is_some() { Vec::new() } else { named };
    let named: Vec<String> = named.iter().map(u64::to_string).collect();
    let ended = bed.output(shell(bed, &format!("{program} check {}", named.join(" "))), PATIENCE)?;
    let newest: Vec<Option<u64>> =
        ended.stdout.lines().map(|line| line.split_once(' ')?.1.parse().ok()).collect();
    let is_good = |newest: &Option<u64>| newest.is_some_and(|newest| newest >= least);
    ensure!(
        newest.len() == load.ranks && newest.iter().all(is_good),
        "all were told of version {least}, host stays: {host_stays}: {}{}",
        ended.stdout,
        ended.stderr
    );
    let all_same = newest.windows(2).all(|two| two[0] == two[1]);
    ensure!(all_same, "ranks get different versions: {newest:?}");
    processes::kill(&pids(bed, "serve"));
    Ok(())
}

fn storm(load: &Load, times: u32) {
    let _alone = alone();
    each_user(|bed| {
        let mut random = Random::new();
        build(bed, "cc -std=gnu11", "load.c", "holdfast-client")?;
        for time in 0..times {
            killed(bed, load, time % 2 == 0, &mut random).with_context(|| format!("time {time}"))?;
            fs::remove_dir_all(bed.store())?;
            (0..load.ranks).try_for_each(|rank| fs::remove_file(bed.work().join(format!("log.{rank}"))))?;
        }
        Ok(())
    });
}

#[test]
fn what_was_called_safe_is_there_though_all_are_killed() {
    let most = Duration::from_millis(300);
    storm(&Load { ranks: 8, bytes: 64 << 10, period_ms: 5, keep: None, most }, if full() { 20 } else { 2 });
}

#[test]
fn a_load_of_large_objects_is_killed() {
    let (times, most) = if full() { (5, 60) } else { (1, 1) };
    let most = Duration::from_secs(most);
    storm(&Load { ranks: 8, bytes: 2 << 20, period_ms: 10, keep: Some(3), most }, times);
}
