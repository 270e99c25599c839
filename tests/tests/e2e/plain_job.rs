//! A job of the small program `plain`, which does not end before it may, and what happens to it: it is started, killed
//! with its agent or its whole host, restarted to the right end. For the tests of the store and its tiers.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command};

pub const JOB: &str = "j";

/// Runs an ordinary user's test.
pub fn as_user(test: impl Fn(&Bed) -> Result<()>) {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    test(&bed).unwrap_or_else(|error| panic!("{error:#}"));
}

/// The command has ended so, and says that.
pub fn fails(ended: &Ended, code: i32, words: &str) -> Result<()> {
    let right = ended.code() == code && ended.stderr.contains(words);
    ensure!(right, "status {}, not {code}, {words:?}: {}", ended.code(), ended.stderr);
    Ok(())
}

pub fn program() -> App {
    App::program("plain", &["30", "10"])
}

pub fn right_output() -> String {
    let lines: String = (0..30).map(|n| format!("{:05} plain round {n}\n", n + 1)).collect();
    lines + "PASS\n"
}

/// `holdfast run` of a program that stays.
pub fn command(bed: &Bed, job: &str, options: &[&str]) -> Result<Command> {
    // Of a job before.
    let _ = fs::remove_file(bed.stay_file());
    bed.staying_command(job, options, &program().words())
}

/// The program of such a command once it runs; its pid.
pub fn started(bed: &Bed, job: &str, command: &mut Command) -> Result<(Child, i32)> {
    let mut front = command.spawn()?;
    let pid = bed.wait_live(job, &mut front)?.context("a pid")?;
    bed.until("the first line", PATIENCE, || !bed.text("out").is_empty())?;
    Ok((front, pid))
}

/// A running program; its pid.
pub fn start(bed: &Bed, options: &[&str]) -> Result<(Child, i32)> {
    started(bed, JOB, &mut command(bed, JOB, options)?)
}

/// A running program whose agent dies at a fault point; its pid.
pub fn start_with_fault(bed: &Bed, options: &[&str], fault: &str) -> Result<(Child, i32)> {
    started(bed, JOB, command(bed, JOB, options)?.env("HOLDFAST_FAULT", fault))
}

/// Takes an image; the agent dies at its fault point.
pub fn checkpoint_kills_the_agent(bed: &Bed) -> Result<()> {
    let agent = bed.agent_pid(JOB)?.context("an agent")?;
    // It may die before it can answer.
    bed.say(&["checkpoint", JOB])?;
    bed.until("the death of the agent", PATIENCE, || processes::state(agent).is_none_or(|state| state == 'Z'))
}

/// Agent and program are killed.
pub fn kill_all(bed: &Bed, job: &str, front: &mut Child, pid: i32) -> Result<()> {
    let agent = bed.agent_pid(job)?;
    agent.iter().for_each(|&agent| processes::signal(agent, "KILL"));
    kill_program(pid, front)?;
    // What it has open, the job's lock, is closed after its memory has gone, by which it is known.
    bed.until("the agent's end", PATIENCE, || !agent.is_some_and(processes::runs))?;
    none_is_left(bed)
}

pub fn none_is_left(bed: &Bed) -> Result<()> {
    bed.until("the end of all", PATIENCE, || processes::of(bed.dir()).is_empty())
}

/// Agent and program are killed, the job's folder goes; the program may end when it is restarted.
pub fn lose_the_host(bed: &Bed, front: &mut Child, pid: i32) -> Result<()> {
    kill_all(bed, JOB, front, pid)?;
    fs::remove_dir_all(bed.job(JOB))?;
    bed.may_end()
}

/// A restart, to the right end.
pub fn restarts(bed: &Bed, image: &str, options: &[&str]) -> Result<()> {
    ends_right(bed, &mut bed.restart_command(image, options)?)
}

/// The same by a command of `holdfast restart`.
pub fn ends_right(bed: &Bed, restart: &mut Command) -> Result<()> {
    let mut front = restart.spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0, "status {code}: {}", bed.text("restart.err"));
    ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
    Ok(())
}

/// The job's row of `holdfast list --json`.
pub fn listed(bed: &Bed) -> Result<Value> {
    let rows: Value = serde_json::from_str(&bed.say(&["list", JOB, "--json"])?.success()?.stdout)?;
    Ok(rows["jobs"][0].clone())
}

/// Waits until what is listed of the job is so.
pub fn until_listed(bed: &Bed, what: &str, enough: impl Fn(&Value) -> bool) -> Result<()> {
    let mut last = Value::Null;
    let waited = bed.until(what, PATIENCE, || {
        last = listed(bed).unwrap_or_default();
        enough(&last)
    });
    waited.with_context(|| last.to_string())
}

/// Waits until what is listed of the first tier is so.
pub fn until_tier(bed: &Bed, what: &str, enough: impl Fn(&Value) -> bool) -> Result<()> {
    until_listed(bed, what, |row| enough(&row["tiers"][0]))
}
