//! Start, checkpoint, kill -9, restart, again and again; the joined output must equal the undisturbed one.

use crate::apps::{App, NotHere, Reference, Results, reference};
use crate::full;
use crate::processes;
use crate::random::Random;
use crate::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use anyhow::{Context, Result, bail, ensure};
use std::process::{Child, ExitStatus};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How a chain is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Checkpoint-kill-restart rounds; without any the program just runs to its end.
    pub rounds: u32,
    /// Images per round, taken while the program goes on; the last one is restarted.
    pub images: u32,
    /// Rounds that must be complete before the program ends.
    pub least: u32,
    /// The program sleeps this many times longer than it does by itself (`common.h`): when it ended too soon.
    pub slowness: u32,
    /// Images come so many times sooner than an undisturbed run suggests.
    pub haste: u32,
    /// Options of `holdfast run`.
    pub options: &'static [&'static str],
    /// How memory comes back.
    pub memory: Memory,
    /// Restarts take this kernel for another one than that of the image.
    pub other_kernel: bool,
    /// In the environment of `holdfast run` and `holdfast restart`.
    pub variables: &'static [(&'static str, &'static str)],
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
    /// A chain of `rounds` with default options. A short program may end before all of them are done.
    pub fn of(rounds: u32) -> Plan {
        Plan {
            rounds,
            images: 1,
            least: rounds.div_ceil(2),
            slowness: 1,
            haste: 1,
            options: &[],
            memory: Memory::Mixed,
            other_kernel: false,
            variables: &[],
        }
    }

    /// The same under another kernel each time.
    pub fn under_other_kernels(self) -> Plan {
        Plan { other_kernel: true, ..self }
    }

    /// The same with other options.
    pub fn with(self, options: &'static [&'static str], memory: Memory) -> Plan {
        Plan { options, memory, ..self }
    }

    /// So many rounds, all of them, with so many images in each.
    pub fn exactly(rounds: u32, images: u32) -> Plan {
        Plan { images, least: rounds, ..Plan::of(rounds) }
    }

    /// For another try with a program that was over too soon: a machine that is that busy has time for fewer rounds.
    pub fn sooner(self) -> Plan {
        let least = if self.least < self.rounds { self.least.div_ceil(2) } else { self.least };
        Plan { slowness: self.slowness * 5, haste: self.haste * 3, least, ..self }
    }
}

/// The program was over before all rounds: nothing is wrong with it, but nothing is shown either. The undisturbed run
/// that its time was taken from may have had less of the machine. Or it had gone on, before it was killed, to where
/// its image cannot be restarted any more ([`App::renames`]). Or its image is for this kernel only, and says so.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TooSoon(String);

/// Rounds of C programs and python: 10 in the long form, as the specification wants.
pub fn many() -> u32 {
    if crate::full() { 10 } else { 3 }
}

/// Rounds of the other programs.
pub fn few() -> u32 {
    if crate::full() { 3 } else { 2 }
}

/// How many turns a program takes that takes so many in the long form: a quarter of them in the short form.
pub fn turns(long: u32) -> String {
    (if full() { long } else { long / 4 }).to_string()
}

/// Whose turn a program is in the short form: the last letter of its name tells.
pub fn turn_of(name: &str) -> User {
    if name.bytes().last().is_some_and(|last| last % 2 == 1) { User::Ordinary } else { User::Root }
}

/// The chain for one of the two users: both in the long form (`make test-full`, `make support`), in the short form
/// the one whose turn it is.
pub fn chain_in_turn(app: &App, user: User, turn: User, plan: Plan) {
    if user == turn || full() || !am_root() {
        return chain(app, user, plan);
    }
    println!("not run: it is run as {turn:?} (HOLDFAST_TEST_FULL=1: as both)");
}

/// Runs the whole chain for one program and one user; once more, sooner, if the program was over too soon.
///
/// # Panics
/// If the output or the exit status is not that of an undisturbed run, or anything is left behind.
#[allow(clippy::panic)]
pub fn chain(app: &App, user: User, plan: Plan) {
    let Some(bed) = Bed::lasting(user, LIMIT) else { return };
    match run_chain(&bed, app, plan, &mut Random::new()) {
        Ok(()) => println!("{} rounds at least", plan.least),
        Err(error) if error.is::<NotHere>() => println!("not run: {error}"),
        Err(error) if error.is::<TooSoon>() && plan.haste < 9 => {
            drop(bed);
            chain(app, user, plan.sooner());
        }
        Err(error) => panic!("{} as {user:?}: {error:#}", app.name),
    }
}

/// For what uses things that another one of its kind would take: one of them at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const JOB: &str = "x";
/// Of a whole chain; its turn, where it must be alone, and the undisturbed run are in it, which take minutes on a
/// slow machine.
const LIMIT: Duration = Duration::from_secs(900);
/// Status of a restart that is refused, and of one that cannot make something again.
const REFUSED: i32 = 69;
const NOT_MADE: i32 = 70;

/// The same in a bed that the caller has made, at moments that `random` chooses.
///
/// # Errors
/// What is wrong.
pub fn run_chain(bed: &Bed, app: &App, plan: Plan, random: &mut Random) -> Result<()> {
    let _alone = app.alone.then(alone);
    let reference = reference(app)?;
    app.prepare(bed)?;
    let options = [plan.options, app.options].concat();
    let mut command = bed.run_command(JOB, &options, &app.words())?;
    command.envs(plan.variables.iter().copied()).env("HOLDFAST_TEST_SLOWLY", plan.slowness.to_string());
    let mut front = command.stdin(app.input(bed)?).spawn()?;
    // What is left of the program's time, but for its last third: so all rounds come before its end.
    let mut left = reference.took.mul_f64(0.7) / plan.haste;
    let (mut done, mut over) = (0, false);
    while done < plan.rounds {
        if bed.wait_live(JOB, &mut front)?.is_none() {
            break;
        }
        // A slow program has rather more time than is counted here: then the images only come sooner.
        let share = left / (plan.rounds - done);
        let alive = Instant::now();
        if !images(bed, &mut front, plan.images, share, random)? {
            break;
        }
        left = left.saturating_sub(alive.elapsed());
        sleep(random.time(Duration::ZERO, share / 4));
        if kill_job(bed, &mut front)?.success() {
            break; // it was over before: some programs tidy up then what their images need
        }
        over = has_said_all(bed, app, &reference);
        app.empty(bed)?;
        front = restart(bed, plan, random)?;
        done += 1;
    }
    let limit = PATIENCE + reference.took * (5 + plan.slowness);
    let code = shell_code(wait(&mut front, limit).context("the end of the program")?);
    let restart = bed.text("restart.err");
    if [REFUSED, NOT_MADE].contains(&code) && restart.contains("No such file") && (app.renames || over) {
        bail!(TooSoon(restart));
    }
    // A stop lets threads get out of the vdso, but not for ever.
    if plan.other_kernel && code == REFUSED && restart.contains("was just reading the clock") {
        bail!(TooSoon(restart));
    }
    Results::read(app, bed, code)?.check(&reference.results).with_context(|| said(bed))?;
    bed.check_clean(JOB)?;
    if done < plan.least {
        bail!(TooSoon(format!("ended after {done} of {} rounds: {}", plan.rounds, said(bed))));
    }
    Ok(())
}

/// Whether all that it leaves was there when it was killed: it may have been tidying up.
fn has_said_all(bed: &Bed, app: &App, reference: &Reference) -> bool {
    Results::read(app, bed, reference.results.code).is_ok_and(|found| found.check(&reference.results).is_ok())
}

/// Images of one round, spread over `share` of the program's time. `false`: the program has ended.
fn images(bed: &Bed, front: &mut Child, count: u32, share: Duration, random: &mut Random) -> Result<bool> {
    for _ in 0..count {
        sleep(random.time(share / count / 5, share / count));
        if !checkpoint(bed, front)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn said(bed: &Bed) -> String {
    let out = bed.text("out");
    let last = out.lines().last().unwrap_or_default();
    format!("after {}{}last line: {last}", bed.text("err"), bed.text("restart.err"))
}

/// One committed image. `false`: the program had ended already.
///
/// # Errors
/// There is none though the program runs.
pub fn checkpoint(bed: &Bed, front: &mut Child) -> Result<bool> {
    let end = Instant::now() + PATIENCE;
    loop {
        let ended = bed.say(&["checkpoint", JOB, "--wait"])?;
        if ended.status.success() {
            return Ok(true);
        }
        let over =
            ["the program has ended", "has just ended"].iter().any(|words| ended.stderr.contains(words));
        if front.try_wait()?.is_some() || over {
            return Ok(false);
        }
        // The agent ends before the front, which then does.
        if ended.stderr.contains("is not running") {
            wait(front, PATIENCE).context("the end of a job that is not running")?;
            return Ok(false);
        }
        // The deadline of a stop may pass on a busy machine, and a program that was just started may not have loaded
        // the library yet: the answer is to ask again.
        ensure!(
            ended.stderr.contains("again") && Instant::now() < end,
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
    let code = shell_code(wait(front, PATIENCE).context("the end of holdfast after kill -9")?);
    // 0 and other statuses: the program was quicker and ended by itself; the image is from before
    if code != 137 && processes::state(pid).is_some_and(|state| state != 'Z') {
        bail!("holdfast ended with status {code}, but the program {pid} lives");
    }
    Ok(())
}

/// The same, and the end of what the program had forked: the old agent takes that for the program until then.
///
/// # Errors
/// Some of it does not end.
pub fn kill_all(bed: &Bed, pid: i32, front: &mut Child) -> Result<()> {
    kill_program(pid, front)?;
    bed.until("the end of what it had forked", PATIENCE, || {
        let left = family(bed);
        processes::kill(&left);
        left.is_empty()
    })
}

/// The processes of the bed that are not Holdfast's own.
fn family(bed: &Bed) -> Vec<i32> {
    let holdfast = bed.kit().holdfast();
    let ours = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == holdfast);
    processes::of(bed.dir()).into_iter().filter(|&pid| !ours(pid)).collect()
}

/// `kill -9` for all processes of the bed that are not Holdfast's own, as a power cut would, and the end of the
/// `holdfast` in front of them, whose status is returned. What one of them may still have done when others were dead
/// already is undone by the restart.
///
/// # Errors
/// Some of it does not end.
pub fn kill_job(bed: &Bed, front: &mut Child) -> Result<ExitStatus> {
    // All at once: one that sees the end of another must not come to write files of a half-done job. No image may be
    // under way: it would be one of a stopped program.
    family(bed).into_iter().for_each(|pid| processes::signal(pid, "STOP"));
    bed.until("the end of the program after kill -9", PATIENCE, || {
        let pids = family(bed);
        processes::kill(&pids);
        pids.is_empty()
    })?;
    wait(front, PATIENCE).context("the end of holdfast after kill -9")
}

fn restart(bed: &Bed, plan: Plan, random: &mut Random) -> Result<Child> {
    let options: &[&str] = match plan.memory {
        Memory::Default => &[],
        Memory::Eager => &["--eager"],
        Memory::Lazy => &["--lazy"],
        Memory::Mixed => [&["--eager"][..], &["--lazy"], &[]][random.below(3) as usize],
    };
    let mut command = bed.restart_command(JOB, options)?;
    command.envs(plan.variables.iter().copied());
    if plan.other_kernel {
        command.env("HOLDFAST_FAULT", "other-vdso");
    }
    command.spawn().context("starting holdfast restart")
}
