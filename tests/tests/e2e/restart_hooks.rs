//! What a restart does beside bringing the program back: `--env`, `--exec-on-restart`, `--signal-on-restart`, with
//! `restart` and with `run --resume`, of all processes of a job, lazily and not.

use crate::plain_job::{as_user, fails};
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_job;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::fs;
use std::process::Child;

/// Two processes; for each file `goN` each of them tells what it finds. The parent has a handler, the child has none.
const PROGRAM: &str = "
import ctypes, os, signal, sys, time
c = ctypes.CDLL(None)
c.getenv.restype = ctypes.c_char_p
told = []
child = os.fork()
if child:
    signal.signal(signal.SIGUSR2, lambda *_: told.append('USR2'))
name = 'parent' if child else 'child'
def wait(file):
    while not os.path.exists(file):
        time.sleep(0.01)
open(name + '0', 'w').close()
for n in '12':
    wait('go' + n)
    get = lambda key: (c.getenv(key) or b'-').decode()
    with open(name + n + '~', 'w') as out:
        print(get(b'OLD'), get(b'NEW'), get(b'PATH') != '-', *told, file=out)
    os.system(f'echo $OLD $NEW >> {name}{n}~')
    os.rename(f'{name}{n}~', name + n)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
";

fn start(bed: &Bed) -> Result<Child> {
    let mut command = bed.run_command("j", &[], &["/usr/bin/python3", "-c", PROGRAM])?;
    let mut front = command.env("OLD", "old").spawn()?;
    bed.wait_live("j", &mut front)?.context("a pid")?;
    there(bed, "0")?;
    bed.say(&["checkpoint", "j"])?.success()?;
    Ok(front)
}

fn there(bed: &Bed, number: &str) -> Result<()> {
    let is_there = |name: &str| bed.work().join(format!("{name}{number}")).exists();
    bed.until("both processes' words", PATIENCE, || is_there("parent") && is_there("child"))
}

/// Restarts with OPTIONS, has both tell, takes an image and kills the job.
fn first_restart(bed: &Bed, options: &[&str]) -> Result<()> {
    let mut front = bed.restart_command("j", options)?.spawn()?;
    bed.wait_live("j", &mut front)?.with_context(|| bed.text("restart.err"))?;
    fs::write(bed.work().join("go1"), "")?;
    there(bed, "1")?;
    ensure!(bed.text("parent1") == "new x=y True USR2\nnew x=y\n", "{}", bed.text("parent1"));
    ensure!(bed.text("child1") == "new x=y True\nnew x=y\n", "{}", bed.text("child1"));
    bed.say(&["checkpoint", "j"])?.success()?;
    kill_job(bed, &mut front).map(drop)
}

fn goes_on_with(bed: &Bed, mode: &str) -> Result<()> {
    let mut front = start(bed)?;
    kill_job(bed, &mut front)?;
    let hook = "echo $HOLDFAST_JOB $HOLDFAST_IMAGE >> hook";
    let options = [mode, "--env", "OLD=new", "--env", "NEW=x=y", "--signal-on-restart", "USR2"];
    first_restart(bed, &[&options[..], &["--exec-on-restart", hook]].concat())?;
    ensure!(bed.text("hook") == "j 1\n", "{}", bed.text("hook"));
    // What was given is the program's from now on; the signal and the command were of that restart.
    fs::write(bed.work().join("go2"), "")?;
    bed.say(&["restart", mode, "j", "--env", "OLD=newest"])?.success()?;
    ensure!(bed.text("parent2") == "newest x=y True USR2\nnewest x=y\n", "{}", bed.text("parent2"));
    ensure!(bed.text("hook") == "j 1\n", "{}", bed.text("hook"));
    bed.check_clean("j")
}

#[test]
fn variables_a_signal_and_a_command_before() {
    each_user(|bed| goes_on_with(bed, "--eager"));
}

#[test]
fn the_same_of_a_lazy_restart() {
    as_user(|bed| goes_on_with(bed, "--lazy"));
}

#[test]
fn a_command_that_fails_leaves_the_program_where_it_was() {
    as_user(|bed| {
        let mut front = start(bed)?;
        kill_job(bed, &mut front)?;
        let options = ["--exec-on-restart", "exit 3"];
        fails(&bed.say(&[&["restart", "j"][..], &options].concat())?, 69, "exit status: 3")?;
        ensure!(bed.pid("j")?.is_none(), "something runs");
        // It is ended together with what waits for it.
        let waits = "echo $$ > waits~; mv waits~ waits; exec sleep 1000";
        let mut restart = bed.restart_command("j", &["--exec-on-restart", waits])?.spawn()?;
        bed.until("the command", PATIENCE, || bed.work().join("waits").exists())?;
        let command: i32 = bed.text("waits").trim().parse()?;
        let front = processes::of(bed.dir()).into_iter().find(|pid| {
            processes::command_line(*pid).contains("restart") && processes::children(*pid).contains(&command)
        });
        processes::signal(front.context("the command's parent")?, "TERM");
        ensure!(!wait(&mut restart, PATIENCE)?.success(), "a restart");
        bed.until("its end", PATIENCE, || !processes::runs(command))?;
        ensure!(bed.pid("j")?.is_none(), "something runs");
        for n in ["go1", "go2"] {
            fs::write(bed.work().join(n), "")?;
        }
        // Nothing has a handler for this one: it would end the program.
        let ended = bed.say(&["restart", "j", "--signal-on-restart", "USR1"])?;
        ensure!(ended.code() == 0 && ended.stderr.contains("has a handler for SIGUSR1"), "{}", ended.stderr);
        bed.check_clean("j")
    });
}

#[test]
fn run_resume_takes_the_same_and_run_alone_none_of_it() {
    as_user(|bed| {
        let program =
            ["--", "/bin/sh", "-c", "touch here; while ! test -e go; do sleep 0.01; done; env | grep ^OLD="];
        let asked = ["--env", "OLD=new", "--exec-on-restart", "touch hook"];
        let run = |more: &'static [&'static str]| [&["run", "--name", "j"], more, &asked, &program].concat();
        fails(&bed.say(&run(&[]))?, 64, "--resume")?;
        fails(&bed.say(&["restart", "j", "--env", "LD_PRELOAD=x"])?, 64, "LD_PRELOAD")?;
        let mut front = bed.holdfast(&run(&["--resume"])).stdout(bed.create("out")?).spawn()?;
        bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("the program's start", PATIENCE, || bed.work().join("here").exists())?;
        ensure!(!bed.work().join("hook").exists(), "that was no restart");
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_job(bed, &mut front)?;
        fs::write(bed.work().join("go"), "")?;
        let ended = bed.say(&run(&["--resume", "--stdio", "here"]))?.success()?;
        ensure!(ended.stdout == "OLD=new\n" && bed.work().join("hook").exists(), "{}", ended.stdout);
        bed.check_clean("j")
    });
}
