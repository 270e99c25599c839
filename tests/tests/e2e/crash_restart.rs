//! Death of the agent in a restart, at every fault point: the restart fails or the program runs, the image restarts
//! next time, nothing is left behind.

use crate::crash::{JOB, all_points, goes_on_without_the_agent, must};
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, Results, reference};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use std::fs;

fn restart_points() -> impl Iterator<Item = String> {
    all_points().into_iter().filter(|point| point.starts_with("seed-"))
}

/// The agent of a restart dies at each of its points: the restart fails, the image restarts next time. When the program
/// runs already it goes on, and its front returns how it has ended.
#[test]
fn agent_dies_at_each_point_of_a_restart() {
    for (n, point) in restart_points().enumerate() {
        let user = if n % 2 == 0 || !am_root() { User::Ordinary } else { User::Root };
        must(&point, agent_dies_in_restart(user, &point, &App::program("pingpong", &["2000"])));
    }
}

/// The same of what a restart takes its last steps for: filters that are suspended meanwhile (of root alone), domains
/// of Landlock, folders of threads and of two processes.
#[test]
fn agent_dies_where_a_restart_confines_what_it_has_made() {
    let last = ["seed-folders", "seed-filtered", "seed-restricted", "seed-resuming", "seed-resumed"];
    assert!(last.iter().all(|last| restart_points().any(|point| point == *last)), "a point has another name");
    let programs = [
        (User::Root, "filters", "narrow"),
        (User::Root, "filters", "threads"),
        (User::Ordinary, "domains", "own"),
        (User::Ordinary, "unshared", "shared"),
    ];
    for (user, name, kind) in programs {
        if user == User::Root && !am_root() {
            continue;
        }
        for point in last {
            must(
                &format!("{name} {kind}, {point}"),
                agent_dies_in_restart(user, point, &App::program(name, &[kind, "60"])),
            );
        }
    }
}

fn agent_dies_in_restart(user: User, point: &str, app: &App) -> Result<()> {
    let Some(bed) = Bed::new(user) else { return Ok(()) };
    let mut front = bed.staying_command(JOB, &[], &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("a line", PATIENCE, || bed.text("out").lines().count() > 1)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_program(pid, &mut front)?;
    bed.may_end()?;
    let mut front = bed.restart_command(JOB, &[])?.env("HOLDFAST_FAULT", point).spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    // From here on the program runs: it goes on without its agent.
    let runs = ["seed-resuming", "seed-resumed"].contains(&point);
    ensure!(code == 0 || !runs, "status {code}: {}", bed.text("restart.err"));
    if runs {
        bed.check_clean(JOB)?;
        return Results::read(app, &bed, code)?.check(&reference(app)?.results);
    }
    if code != 0 {
        ensure!(!bed.text("restart.err").is_empty(), "status {code} without a word");
        bed.check_clean(JOB)?;
    }
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    goes_on_without_the_agent(&bed, app, &mut front)
}

/// What an agent has to say of its job: its lock is open to its own user. `None`: it has none yet.
fn locked_by(bed: &Bed) -> Option<i32> {
    fs::read_to_string(bed.job(JOB).join("lock")).ok()?.trim().parse().ok()
}

/// Told to end while it makes processes anew: the restart fails in those words, and the next one is whole.
#[test]
fn an_agent_that_is_told_to_end_gives_a_restart_up() -> Result<()> {
    let app = App::program("pingpong", &["2000"]);
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let mut front = bed.staying_command(JOB, &[], &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("a line", PATIENCE, || bed.text("out").lines().count() > 1)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    let before = locked_by(&bed).context("the lock names an agent")?;
    kill_program(pid, &mut front)?;
    bed.may_end()?;
    let socket = bed.job(JOB).join("agent.sock");
    bed.until("the end of the agent", PATIENCE, || !socket.exists())?;
    let mut front = bed.restart_command(JOB, &[])?.env("HOLDFAST_FAULT", "seed-born+5000").spawn()?;
    bed.until("the next agent", PATIENCE, || socket.exists() && locked_by(&bed) != Some(before))?;
    processes::signal(locked_by(&bed).context("the lock names an agent")?, "TERM");
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let said = bed.text("restart.err");
    ensure!(code == 143 && said.contains("SIGTERM came before"), "status {code}: {said}");
    bed.check_clean(JOB)?;
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    goes_on_without_the_agent(&bed, &app, &mut front)
}
