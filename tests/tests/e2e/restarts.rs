//! `run --restart-on-failure`: what fails is restarted from its newest image without the user, on spare hosts where
//! some are lost; not more often than was asked for, nor what its user has ended.

use anyhow::{Context, Result, ensure};
use holdfast_tests::hosts::Hosts;
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, each_user_by_root, shell_code, wait};
use std::process::{Child, Command};

const JOB: &str = "j";
/// Counts, and stops half way until it may end.
const COUNTS: &str = r#"
    i=0
    while [ $i -lt 100 ]; do
        i=$((i + 1)); echo $i
        while [ $i = 50 ] && [ ! -e "$STAY" ]; do sleep 0.02; done
    done
"#;

fn lines() -> String {
    (1..=100).map(|line| format!("{line}\n")).collect()
}

fn counting(bed: &Bed, options: &[&str]) -> Command {
    let mut command = bed.holdfast(&["run", "--name", JOB]);
    command.args(options).args(["--", "/bin/sh", "-c", COUNTS]).env("STAY", bed.stay_file());
    command
}

fn start(bed: &Bed, options: &[&str]) -> Result<(Child, i32)> {
    let mut command = counting(bed, options);
    let mut front = command.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a program")?;
    bed.until("half of it", PATIENCE, || bed.text("out").ends_with("50\n"))?;
    Ok((front, pid))
}

/// The job, when it has another agent than this.
fn restarted(bed: &Bed, agent: i32, log: &str) -> Result<i32> {
    let is_new = || {
        let found = bed.agent_pid(JOB).ok().flatten();
        found.is_some_and(|found| found != agent) && bed.pid(JOB).ok().flatten().is_some()
    };
    bed.until("a restart", PATIENCE, is_new).with_context(|| bed.text("err"))?;
    let said = std::fs::read_to_string(bed.job(JOB).join("agent.log"))?;
    ensure!(said.contains(log), "{log}: {said}");
    bed.pid(JOB)?.context("a program")
}

#[test]
fn a_program_or_an_agent_that_is_killed_is_no_end() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--restart-on-failure", "2"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        processes::kill(&[pid]);
        restarted(bed, agent, "was killed by SIGKILL")?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        processes::kill(&[agent]);
        restarted(bed, agent, "restart 2 of 2 from image 2")?;
        let list = bed.say(&["list", "--json"])?.success()?.stdout;
        let list: serde_json::Value = serde_json::from_str(&list)?;
        ensure!(list["jobs"][0]["restarts"] == 2, "{list}");
        bed.may_end()?;
        let ended = wait(&mut front, PATIENCE)?;
        ensure!(
            ended.success() && bed.text("out") == lines(),
            "{ended}: {}\n{}",
            bed.text("out"),
            bed.text("err")
        );
        bed.check_clean(JOB)
    });
}

#[test]
fn there_are_no_more_restarts_than_were_asked_for() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--restart-on-failure", "1"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        processes::kill(&[pid]);
        let pid = restarted(bed, agent, "restart 1 of 1 from image 1")?;
        processes::kill(&[pid]);
        let ended = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("err");
        ensure!(ended == 137 && said.contains("it was restarted 1 times"), "{ended}: {said}");
        // Without an image there is nothing to go on from; what the user ends has ended.
        for (signal, code, words) in [("KILL", 137, "no image of this run"), ("TERM", 143, "")] {
            let (mut front, pid) = start(bed, &["--restart-on-failure", "1"])?;
            if signal == "TERM" {
                bed.say(&["checkpoint", JOB])?.success()?;
                processes::signal(front.id().cast_signed(), signal);
            } else {
                processes::signal(pid, signal);
            }
            let ended = shell_code(wait(&mut front, PATIENCE)?);
            let said = bed.text("err");
            ensure!(ended == code && said.contains(words), "{signal}: {ended}: {said}");
            ensure!(!said.contains("restart 1 of"), "{said}");
        }
        let ended = bed.say(&["run", "--restart-on-failure", "1", "--", "true"])?;
        ensure!(ended.code() == 64 && ended.stderr.contains("needs --name"), "{}", ended.stderr);
        bed.check_clean(JOB)
    });
}

/// What is ended before a restart is what that command has started: a copy of the job has the same environment.
#[test]
fn a_copy_that_runs_beside_it_is_not_ended() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--restart-on-failure", "1"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let mut copy = bed.holdfast(&["restart", JOB, "--name", "copy"]);
        let mut copy = copy.stdout(bed.create("copy.out")?).stderr(bed.create("copy.err")?).spawn()?;
        let its = bed.wait_live("copy", &mut copy)?.with_context(|| bed.text("copy.err"))?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        processes::kill(&[pid]);
        restarted(bed, agent, "restart 1 of 1 from image 1")?;
        ensure!(bed.pid("copy")? == Some(its), "{}", bed.text("copy.err"));
        processes::kill(&[its]);
        ensure!(shell_code(wait(&mut copy, PATIENCE)?) == 137, "{}", bed.text("copy.err"));
        bed.may_end()?;
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == 0, "{}", bed.text("err"));
        Ok(())
    });
}

/// A host with all that runs there is gone: a spare one takes its place.
#[test]
fn a_spare_host_takes_the_place_of_one_that_is_lost() {
    each_user_by_root(|bed| {
        let hosts = Hosts::with_ssh_of(bed, "3")?;
        let script = r#"
            i=0
            while [ $i -lt 100 ]; do
                i=$((i + 1)); echo $i
                while [ $i = 50 ] && [ ! -e "$STAY" ]; do sleep 0.02; done
            done | "$H" rsh h1 'while read -r line; do echo "$line"; done; exit 3'
        "#;
        let options = ["--gang", "ssh", "--restart-on-failure", "1", "--spare", "h2"];
        let mut command = bed.holdfast(&["run", "--name", "g"]);
        command.args(options).args(["--", "/bin/sh", "-c", script]);
        command.env("H", bed.kit().holdfast()).env("STAY", bed.stay_file());
        let mut command = hosts.on(0, &command, &bed.work());
        let mut front = command.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
        let said = || {
            let log = |name| std::fs::read_to_string(bed.job("g.0").join(name)).unwrap_or_default();
            format!("{}\n{}\n{}\n{}", bed.text("out"), bed.text("err"), log("agent.log"), log("member-1.log"))
        };
        bed.until("half of it", PATIENCE, || bed.text("out").ends_with("50\n")).with_context(said)?;
        let checkpoint =
            || bed.output(hosts.on(0, &bed.holdfast(&["checkpoint", "g"]), &bed.work()), PATIENCE);
        checkpoint()?.success().with_context(said)?;
        hosts.lose(1)?;
        let image = bed.store().join(".gangs/g/gang-000002");
        let has_image = || checkpoint().is_ok_and(|ended| ended.code() == 0) || image.exists();
        bed.until("the next image", PATIENCE, has_image).with_context(said)?;
        let image = std::fs::read_to_string(image)?;
        ensure!(image.contains("\"host\": \"h2\""), "{image}");
        bed.may_end()?;
        let ended = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(ended == 3 && bed.text("out") == lines(), "{ended}: {}", said());
        Ok(())
    });
}
