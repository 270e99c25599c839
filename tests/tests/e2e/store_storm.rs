//! Many commands at once on one store: imports, prunes, verifications, exports, listings, and a job that is
//! checkpointed, killed and restarted among them. No job is lost, nothing good is called damaged, nobody panics.
//!
//! By number of commands, not by time: `HOLDFAST_STORM=N` has N of each thread (about a minute in the long form).

use super::plain_job::{JOB, command, ends_right, kill_all, none_is_left, started};
use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::processes;
use holdfast_tests::random::Random;
use holdfast_tests::sandbox::{Bed, User, each_user_in_turn, shell_code};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

/// Threads that give commands.
const THREADS: u64 = 4;
/// Names that are imported.
const COPIES: u64 = 3;

fn rounds() -> u64 {
    let asked = std::env::var("HOLDFAST_STORM").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if full() { 400 } else { 25 })
}

/// What a command says, and how it ended.
fn say(bed: &Bed, words: &[&str]) -> Result<(i32, String)> {
    let mut command = bed.holdfast(words);
    let ended = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    let text = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let (code, told) = (shell_code(ended.status), text.concat());
    ensure!(code < 126, "{words:?}: status {code}: {told}");
    ensure!(!told.contains("panicked") && !told.contains("defect of holdfast"), "{words:?}: {told}");
    Ok((code, told))
}

/// One command, and which exit codes are right whatever all the others do.
fn one(bed: &Bed, random: &mut Random, number: u64) -> Result<()> {
    let (copy, file) = (format!("copy{}", random.below(COPIES)), format!("out{number}"));
    let image = format!("{copy}@1");
    let _ = std::fs::remove_file(bed.work().join(&file));
    // Of the copies: none is running, and none is ever damaged. 69: somebody else is at it.
    let copies: [(&[&str], &[i32]); 7] = [
        (&["import", "sim.img", "--name", &copy], &[0, 69]),
        (&["prune", &copy, "--keep", "1"], &[0, 66, 69]),
        (&["prune", &image, "--anyway"], &[0, 66, 69]),
        (&["verify", &copy], &[0, 66]),
        (&["export", &copy, &file], &[0, 66]),
        (&["show", &copy], &[0, 66]),
        (&["list", &copy], &[0, 66]),
    ];
    // Of the job: its agent may be killed at any time. 66: there is none to make a checkpoint; what else an agent does
    // is done without it then.
    let job: [(&[&str], &[i32]); 7] = [
        (&["checkpoint", JOB], &[0, 66, 69, 70]),
        (&["prune", JOB, "--keep", "2"], &[0, 69, 70]),
        (&["sync", JOB], &[0, 64, 69, 70, 73]),
        (&["verify", JOB], &[0]),
        (&["list"], &[0]),
        (&["list", JOB, "--json"], &[0]),
        (&["show", JOB], &[0]),
    ];
    let all: Vec<_> = copies.into_iter().chain(job).collect();
    let at = usize::try_from(random.below(all.len() as u64)).unwrap_or(0);
    let (words, codes) = all[at];
    let (code, told) = say(bed, words)?;
    ensure!(codes.contains(&code), "{words:?}: status {code}: {told}");
    Ok(())
}

/// Has the job die and start again until the others are done.
fn lives(bed: &Bed, options: &[&str], over: &AtomicBool) -> Result<()> {
    let (mut front, mut pid) = started(bed, JOB, &mut command(bed, JOB, options)?)?;
    let mut random = Random::new();
    while !over.load(Ordering::Relaxed) {
        say(bed, &["checkpoint", JOB])?;
        if random.below(2) == 0 {
            kill_all_of(bed, pid)?;
            front.wait()?;
            let mut restart = bed.restart_command(JOB, &[])?;
            front = restart.env(holdfast_tests::sandbox::STAY, bed.stay_file()).spawn()?;
            pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
        }
    }
    kill_all(bed, JOB, &mut front, pid)
}

/// The program and its agent; the others' commands live on.
fn kill_all_of(bed: &Bed, pid: i32) -> Result<()> {
    let is_agent = |pid: &i32| processes::command_line(*pid).contains(" __agent ");
    for agent in processes::of(bed.dir()).into_iter().filter(is_agent) {
        processes::signal(agent, "KILL");
    }
    processes::signal(pid, "KILL");
    bed.until("the end of the program", holdfast_tests::sandbox::PATIENCE, || !processes::runs(pid))
}

fn storm(bed: &Bed, options: &[&str]) -> Result<()> {
    let (mut front, pid) = started(bed, "first", &mut command(bed, "first", &[])?)?;
    bed.say(&["checkpoint", "first"])?.success()?;
    kill_all(bed, "first", &mut front, pid)?;
    bed.say(&["export", "first", "sim.img"])?.success()?;
    let over = AtomicBool::new(false);
    let (mut front, pid) = started(bed, JOB, &mut command(bed, JOB, options)?)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_all(bed, JOB, &mut front, pid)?;
    let seed = Random::new().number();
    let results: Vec<Result<()>> = scope(|scope| {
        let job = scope.spawn(|| lives(bed, options, &over));
        let give = |thread: u64| {
            let mut random = Random::of(seed.wrapping_add(thread));
            (0..rounds()).try_for_each(|_| one(bed, &mut random, thread))
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || give(thread))).collect();
        let mut results: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().ok()).collect();
        over.store(true, Ordering::Relaxed);
        results.extend(job.join().ok());
        results
    });
    ensure!(results.len() as u64 == THREADS + 1, "a thread panicked");
    results.into_iter().collect::<Result<Vec<()>>>().with_context(|| format!("seed {seed}"))?;
    none_is_left(bed)?;
    // What was there at the beginning is there, and goes on.
    bed.say(&["verify", "first"])?.success()?;
    bed.say(&["verify", JOB])?.success()?;
    for copy in 0..COPIES {
        let name = format!("copy{copy}");
        let (code, told) = say(bed, &["import", "sim.img", "--name", &name])?;
        ensure!(code == 0 || code == 69, "{name}: {code} {told}");
        bed.say(&["verify", &name])?.success()?;
    }
    bed.may_end()?;
    ends_right(bed, &mut bed.restart_command(JOB, &[])?)?;
    bed.say(&["prune", JOB, "--all"])?.success().map(drop)
}

#[test]
fn many_commands_at_once_lose_no_job() {
    each_user_in_turn(User::Ordinary, |bed| storm(bed, &[]));
}

#[test]
fn many_commands_at_once_lose_no_job_with_memory_and_a_tier() {
    each_user_in_turn(User::Root, |bed| {
        let tier = format!("dir={}/pfs", bed.work().display());
        storm(bed, &["--tier", "memory,keep=2", "--tier", &tier])
    });
}
