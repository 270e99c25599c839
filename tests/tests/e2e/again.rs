//! Restarts again: in the same moment as `kill -9` of everything (what is dying is waited for; what lives is named),
//! and with other settings from then on.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::full;
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user, shell_code, wait};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixListener;
use std::process::Child;
use std::time::Duration;

const JOB: &str = "j";

/// Starts the program and takes an image of it.
fn start(bed: &Bed, mebibytes: u32) -> Result<Child> {
    let app = App::program("served", &[&mebibytes.to_string()]);
    let mut front = bed.staying_command(JOB, &[], &app.words())?.spawn()?;
    bed.wait_live(JOB, &mut front)?.with_context(|| format!("it ended at once: {}", bed.text("err")))?;
    bed.until("sockets, locks and memory", PATIENCE, || bed.text("out").contains("served"))?;
    bed.say(&["checkpoint", JOB])?.success()?;
    Ok(front)
}

/// `kill -9` for the program, its agent and the `holdfast` in front of it.
fn kill_everything(bed: &Bed) {
    processes::kill(&processes::of(bed.dir()));
    let _ = fs::remove_file(bed.work().join("alive"));
}

fn again(bed: &Bed, mebibytes: u32, times: u32) -> Result<()> {
    let mut front = start(bed, mebibytes)?;
    for turn in 1..=times {
        kill_everything(bed);
        let mut next = bed.restart_command(JOB, &[])?.spawn()?;
        wait(&mut front, PATIENCE)?;
        let mut ended = None;
        bed.until("the program", PATIENCE, || {
            ended = next.try_wait().ok().flatten();
            ended.is_some() || bed.work().join("alive").exists()
        })?;
        ensure!(ended.is_none(), "restart {turn} ended with {ended:?}: {}", bed.text("restart.err"));
        front = next;
    }
    bed.may_end()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(code == 0 && bed.text("out") == "00001 served\nPASS\n", "status {code}: {}", bed.text("out"));
    bed.check_clean(JOB)
}

/// The long form: 1.5 GB, a hundred times.
#[test]
fn a_restart_at_once_after_a_kill() {
    if full() {
        for user in [User::Root, User::Ordinary] {
            if let Some(bed) = Bed::lasting(user, Duration::from_secs(3600)) {
                again(&bed, 1500, 50).unwrap_or_else(|error| panic!("as {user:?}: {error:#}"));
            }
        }
    }
    each_user(|bed| again(bed, 48, 3));
}

/// A living program that has what is needed is not waited for, but named, where this user can see whose it is.
#[test]
fn a_name_that_another_program_has() {
    each_user(|bed| {
        let mut front = start(bed, 1)?;
        kill_everything(bed);
        wait(&mut front, PATIENCE)?;
        let path = bed.work().join("stream.socket");
        fs::remove_file(&path)?;
        let _listener = UnixListener::bind(&path)?;
        let owner = fs::metadata(bed.work())?;
        chown(&path, Some(owner.uid()), Some(owner.gid()))?;
        let ended = bed.say(&["restart", "--stdio=keep", JOB])?;
        // Mostly this process; a child that another test is just making has the socket, too, until it executes.
        let named = ended.stderr.contains("stream.socket: another program uses this name")
            && (bed.user() == User::Ordinary || ended.stderr.contains("process "));
        ensure!(ended.code() == 69 && named, "status {}: {}", ended.code(), ended.stderr);
        fs::remove_file(&path)?;
        bed.check_clean(JOB)
    });
}

/// `stop` ends a job with an image; what `restart` is given holds from then on, and for the restart after that.
#[test]
fn other_settings_from_a_restart_on() {
    each_user(|bed| {
        let program = ["/bin/sh", "-c", "i=0; while :; do i=$((i + 1)); echo $i; sleep 0.05; done"];
        let mut front = bed.run_command(JOB, &[], &program)?.spawn()?;
        bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("a line", PATIENCE, || !bed.text("out").is_empty())?;
        let said = bed.say(&["stop", JOB])?.success()?.stdout;
        ensure!(said.starts_with("image 1 of job j: stop time "), "{said}");
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 75, "status {code} after stop: {}", bed.text("err"));
        let settings = ["--every", "1s", "--keep", "2", "--on", "TERM=checkpoint-stop"];
        for (options, newest) in [(&settings[..], 3), (&[], 6)] {
            let mut front = bed.restart_command(JOB, options)?.spawn()?;
            bed.wait_live(JOB, &mut front)?.context("a pid")?;
            bed.until("images by themselves", PATIENCE, || {
                bed.images(JOB).last().is_some_and(|n| *n >= newest)
            })?;
            processes::signal(front.id().cast_signed(), "TERM");
            let code = shell_code(wait(&mut front, PATIENCE)?);
            ensure!(code == 75, "status {code} after TERM: {}", bed.text("err"));
            // And the one that memory is mapped from. The front does not wait until the agent has deleted the others.
            bed.until("two images are kept", PATIENCE, || bed.images(JOB).len() <= 3)?;
        }
        let lines: Vec<String> = bed.text("out").lines().map(str::to_owned).collect();
        let wanted: Vec<String> = (1..=lines.len()).map(|n| n.to_string()).collect();
        ensure!(lines == wanted, "{lines:?}");
        let log = bed.say(&["logs", "-f", JOB])?.success()?.stdout;
        ensure!(log == bed.text(&format!("{}", bed.job(JOB).join("agent.log").display())), "{log}");
        let status = bed.say(&["status", JOB])?.success()?.stdout;
        ensure!(status.starts_with("job j: checkpointed, ") && status.contains("\nIMAGE "), "{status}");
        Ok(())
    });
}
