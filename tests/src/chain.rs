//! Start, checkpoint, kill -9, restart, again and again; the joined output must equal the undisturbed one.

use crate::apps::{App, Results, reference};
use crate::bed::{Bed, User, shell_code, wait};
use crate::processes;
use crate::random::Random;
use anyhow::{Context, Result, bail, ensure};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How a chain is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Checkpoint-kill-restart rounds.
    pub rounds: u32,
    /// Options of `holdfast run`.
    pub options: &'static [&'static str],
    /// How memory comes back.
    pub memory: Memory,
}

/// How memory comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// As Holdfast chooses.
    Default,
    /// `--eager`.
    Eager,
    /// `--lazy`.
    Lazy,
    /// One or the other, by chance.
    Mixed,
}

impl Plan {
    /// A chain of `rounds` with default options.
    pub fn of(rounds: u32) -> Plan {
        Plan { rounds, options: &[], memory: Memory::Mixed }
    }
}

/// Rounds of C programs and python: 10 in the long form, as the specification wants.
pub fn many() -> u32 {
    if crate::full() { 10 } else { 3 }
}

/// Rounds of the other programs.
pub fn few() -> u32 {
    if crate::full() { 3 } else { 2 }
}

/// Runs the whole chain for one program and one user.
///
/// # Panics
/// If the output or the exit status is not that of an undisturbed run, or anything is left behind.
#[allow(clippy::panic)]
pub fn chain(app: &App, user: User, plan: Plan) {
    let Some(bed) = Bed::new(user) else { return };
    if let Err(error) = run_chain(&bed, app, plan) {
        panic!("{} as {user:?}: {error:#}", app.name);
    }
}

const JOB: &str = "x";

fn run_chain(bed: &Bed, app: &App, plan: Plan) -> Result<()> {
    let reference = reference(app)?;
    let mut random = Random::new();
    app.prepare(bed)?;
    let mut command = bed.run_command(JOB, plan.options, &app.words())?;
    let mut front = command.stdin(app.input(bed)?).spawn()?;
    let share = reference.took.mul_f64(0.7) / plan.rounds;
    let mut done = 0;
    while done < plan.rounds {
        let Some(pid) = bed.wait_live(JOB, &mut front)? else { break };
        sleep(random.time(share / 5, share));
        if !checkpoint(bed, &mut front)? {
            break;
        }
        sleep(random.time(Duration::ZERO, share / 4));
        kill_program(pid, &mut front)?;
        front = restart(bed, plan.memory, &mut random)?;
        done += 1;
    }
    let limit = Duration::from_secs(60) + reference.took * 6;
    let code = shell_code(wait(&mut front, limit).context("the end of the program")?);
    println!("{done} rounds, exit status {code}");
    ensure!(
        done * 2 >= plan.rounds,
        "ended after {done} of {} rounds, status {code}: {}",
        plan.rounds,
        said(bed)
    );
    Results::read(app, bed, code)?.check(&reference.results).with_context(|| said(bed))?;
    bed.check_clean(JOB)
}

fn said(bed: &Bed) -> String {
    let out = bed.text("out");
    let last = out.lines().last().unwrap_or_default();
    format!("after {}{}last line: {last}", bed.text("err"), bed.text("restart.err"))
}

/// One committed image. `false`: the program had ended already.
fn checkpoint(bed: &Bed, front: &mut Child) -> Result<bool> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let ended = bed.say(&["checkpoint", JOB, "--wait"])?;
        if ended.status.success() {
            return Ok(true);
        }
        if front.try_wait()?.is_some() {
            return Ok(false);
        }
        // The deadline of a stop may pass on a busy machine, and a program that was just started may not have loaded the
        // library yet: the answer is to ask again.
        ensure!(
            (ended.stderr.contains("again") || ended.stderr.contains("(yet)")) && Instant::now() < end,
            "checkpoint: status {}: {}",
            ended.code(),
            ended.stderr
        );
        sleep(Duration::from_millis(20));
    }
}

/// `kill -9`, and the end of the `holdfast` in front of it with the status that this gives.
pub fn kill_program(pid: i32, front: &mut Child) -> Result<()> {
    processes::signal(pid, "KILL");
    let code = shell_code(wait(front, Duration::from_secs(20)).context("the end of holdfast after kill -9")?);
    // 0 and other statuses: the program was quicker and ended by itself; the image is from before
    if code != 137 && processes::state(pid).is_some_and(|state| state != 'Z') {
        bail!("holdfast ended with status {code}, but the program {pid} lives");
    }
    Ok(())
}

fn restart(bed: &Bed, memory: Memory, random: &mut Random) -> Result<Child> {
    let options: &[&str] = match memory {
        Memory::Default => &[],
        Memory::Eager => &["--eager"],
        Memory::Lazy => &["--lazy"],
        Memory::Mixed => [&["--eager"][..], &["--lazy"], &[]][random.below(3) as usize],
    };
    bed.restart_command(JOB, options)?.spawn().context("starting holdfast restart")
}
