//! What a user is told: the words of messages that were not understood before, and the exit codes beside them.
//! (What is refused by name at a checkpoint is in `refusals.rs` and `check.rs`.)

use crate::plain_job;
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, each_user, wait};
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

fn says(ended: &Ended, code: i32, line: &str) -> Result<()> {
    let found = ended.stderr.lines().any(|found| found == format!("holdfast: {line}"));
    ensure!(found && ended.code() == code, "status {}, not {code}, {line:?}: {}", ended.code(), ended.stderr);
    Ok(())
}

/// Runs an ordinary user's test.
fn as_user(test: impl Fn(&Bed) -> Result<()>) {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    test(&bed).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn a_job_that_runs_is_named_with_its_process() {
    each_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        bed.say(&["checkpoint", plain_job::JOB])?.success()?;
        for command in
            [&["restart", "j"][..], &["prune", "j", "--all"], &["run", "--name", "j", "--", "true"]]
        {
            let ended = bed.say(command)?;
            let said = ended.stderr.contains("job j is running")
                && ended.stderr.contains(&format!("process {pid};"));
            ensure!(said && ended.code() == 69, "{command:?}: status {}: {}", ended.code(), ended.stderr);
        }
        bed.may_end()?;
        ensure!(wait(&mut front, PATIENCE)?.success());
        bed.check_clean(plain_job::JOB)
    });
}

/// The agent is still there, for a tier has yet to get the image.
#[test]
fn a_job_that_has_just_ended_has_no_program() {
    as_user(|bed| {
        let tier = format!("dir={},rate=1K/s", bed.dir().join("work/tier").display());
        let (mut front, pid) = plain_job::start(bed, &["--tier", &tier])?;
        bed.say(&["checkpoint", plain_job::JOB])?.success()?;
        processes::signal(pid, "KILL");
        bed.until("the end of the program", PATIENCE, || !processes::runs(pid))?;
        for command in [["checkpoint", "j"], ["check", "j"]] {
            says(&bed.say(&command)?, 66, "job j has just ended").with_context(|| command.join(" "))?;
        }
        processes::signal(front.id().cast_signed(), "INT");
        wait(&mut front, PATIENCE)?;
        if let Some(agent) = bed.agent_pid(plain_job::JOB)? {
            processes::signal(agent, "KILL");
        }
        Ok(())
    });
}

/// A pipe of whoever has started the job, which the restart is not given.
#[test]
fn a_descriptor_from_outside_the_job_is_closed_after_a_restart() {
    as_user(|bed| {
        let mut run = bed.command(Path::new("/bin/bash"));
        let program = bed.kit().program("plain").display().to_string();
        let start = format!(
            "exec 247<&0 </dev/null; exec {} run --name j -- {program} 30 10",
            bed.kit().holdfast().display()
        );
        run.args(["-c", &start]).stdin(Stdio::piped()).env(holdfast_tests::sandbox::STAY, bed.stay_file());
        let mut front = run.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || !bed.text("out").is_empty())?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        bed.may_end()?;
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        ensure!(wait(&mut front, PATIENCE)?.success(), "{}", bed.text("restart.err"));
        let said = bed.text("restart.err");
        let (from, to) = ("descriptor 247 (pipe:[", "]) came from outside the job and is closed now");
        ensure!(said.contains(from) && said.contains(to), "{said}");
        bed.check_clean("j")
    });
}

/// A restarted program that writes a log, once it has said in which state it found that.
fn restarted(bed: &Bed) -> Result<Child> {
    let mut front = bed.restart_command("j", &[])?.spawn()?;
    bed.wait_live("j", &mut front)?.context("a pid")?;
    bed.until("a log", PATIENCE, || bed.text("log").len() > LINE.len() * 5)?;
    Ok(front)
}

const LINE: &str = "a line of the log\n";

#[test]
fn a_log_that_was_renamed_or_removed_is_created_again() {
    as_user(|bed| {
        let program = "import time\nlog = open('log', 'w', buffering=1)\nwhile 1: log.write('a line of the log\\n'); \
                       time.sleep(0.01)";
        let mut front = bed.run_command("j", &[], &["/usr/bin/python3", "-c", program])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("a log", PATIENCE, || bed.text("log").len() > LINE.len() * 5)?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        let (log, old) = (bed.work().join("log"), bed.work().join("log.1"));
        fs::rename(&log, &old)?;
        let mut front = restarted(bed)?;
        let renamed =
            format!("{} was renamed to {}; created again with its first ", log.display(), old.display());
        ensure!(bed.text("restart.err").contains(&renamed), "{}", bed.text("restart.err"));
        kill_program(bed.pid("j")?.context("a pid")?, &mut front)?;
        fs::remove_file(&log)?;
        fs::remove_file(&old)?;
        let mut front = restarted(bed)?;
        let removed = format!("{} was removed; created again with its first ", log.display());
        ensure!(bed.text("restart.err").contains(&removed), "{}", bed.text("restart.err"));
        kill_program(bed.pid("j")?.context("a pid")?, &mut front)?;
        ensure!(bed.text("log").lines().all(|line| line == LINE.trim_end()), "{}", bed.text("log"));
        Ok(())
    });
}

#[test]
fn doctor_ends_with_an_error_where_nothing_would_work() {
    as_user(|bed| {
        let mut doctor = bed.holdfast(&["doctor"]);
        doctor.env("HOLDFAST_LIB", "/nonexistent/libholdfast.so");
        let ended = bed.output(doctor, PATIENCE)?;
        let said = ended.stdout.contains("MISSING  libholdfast.so") && ended.stderr.is_empty();
        ensure!(said && ended.code() == 69, "status {}: {}{}", ended.code(), ended.stdout, ended.stderr);
        Ok(())
    });
}

/// A ring of io_uring is a descriptor and two mappings.
#[test]
fn a_ring_of_io_uring_is_one_line() {
    as_user(|bed| {
        let words =
            [bed.kit().program("refused").display().to_string(), "io_uring_mapped".into(), "15".into()];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut front = bed.run_command("j", &[], &words)?.spawn()?;
        bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains('\n'))?;
        for command in [["check", "j"], ["checkpoint", "j"]] {
            let ended = bed.say(&command)?;
            let said = format!("{}{}", ended.stdout, ended.stderr);
            let lines = said.lines().filter(|line| line.contains("io_uring is not supported")).count();
            ensure!(ended.code() == 69 && lines == 1, "{}: {lines} lines: {said}", command[0]);
        }
        ensure!(wait(&mut front, PATIENCE)?.success());
        bed.check_clean("j")
    });
}
