//! `run --restart-on-failure`: what fails is restarted from its newest image without the user, on spare hosts where
//! some are lost; not more often than was asked for, nor what its user has ended.

use anyhow::{Context, Result, ensure};
use holdfast_tests::hosts::Hosts;
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, each_user_by_root, shell_code, wait};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
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

/// The binary beside its library, under a name that a next one takes.
fn install(bed: &Bed, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for file in [bed.kit().holdfast(), bed.kit().library()] {
        let name = file.file_name().context("a name")?.to_string_lossy().into_owned();
        fs::copy(&file, folder.join(format!("{name}.new")))?;
        fs::rename(folder.join(format!("{name}.new")), folder.join(name))?;
    }
    Ok(())
}

/// As an upgrade does it: the file that this command was started from has no name any more.
#[test]
fn a_binary_that_was_replaced_is_no_end() {
    each_user(|bed| {
        let folder = bed.work().join("installed");
        install(bed, &folder)?;
        let mut command = bed.command(&folder.join("holdfast"));
        command.args(["run", "--name", JOB, "--restart-on-failure", "3", "--", "/bin/sh", "-c", COUNTS]);
        command.env("STAY", bed.stay_file()).stdout(bed.create("out")?).stderr(bed.create("err")?);
        let mut front = command.spawn()?;
        bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
        bed.until("half of it", PATIENCE, || bed.text("out").ends_with("50\n"))?;
        bed.say(&["checkpoint", JOB])?.success()?;
        for (restart, remove) in [(1, false), (2, false), (3, true)] {
            if remove {
                fs::remove_file(folder.join("holdfast"))?;
            } else {
                install(bed, &folder)?;
            }
            let agent = bed.agent_pid(JOB)?.context("an agent")?;
            let lost = if restart == 2 { agent } else { bed.pid(JOB)?.context("a program")? };
            processes::kill(&[lost]);
            restarted(bed, agent, &format!("restart {restart} of 3 from image 1"))?;
        }
        bed.may_end()?;
        let ended = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(ended == 0 && bed.text("out") == lines(), "{ended}: {}", bed.text("err"));
        bed.check_clean(JOB)
    });
}

/// Handles SIGINT, and ends with status 3 when it may.
const HANDLES: &str = r#"
    trap 'echo handled' INT
    while [ ! -e "$STAY" ]; do sleep 0.02; done
    exit 3
"#;

/// What has ended soon after a signal of its user is said to be ended by that, and by which rule.
#[test]
fn an_end_that_is_taken_for_its_users_is_said() {
    each_user(|bed| {
        let begin = || {
            let mut command =
                bed.holdfast(&["run", "--name", JOB, "--restart-on-failure", "1", "--replace", "--"]);
            command.args(["/bin/sh", "-c", HANDLES]).env("STAY", bed.stay_file());
            let mut front = command.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
            bed.wait_live(JOB, &mut front)?.context("a program")?;
            bed.say(&["checkpoint", JOB])?.success()?;
            anyhow::Ok(front)
        };
        let mut front = begin()?;
        processes::signal(front.id().cast_signed(), "INT");
        bed.until("its handler", PATIENCE, || bed.text("out").contains("handled"))?;
        bed.may_end()?;
        let ended = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("err");
        let (how, rule) = ("ended with status 3 at ", " s after SIGINT was passed on to it");
        ensure!(ended == 3 && said.contains(how) && said.contains(rule), "{ended}: {said}");
        ensure!(said.contains("less than 30 s and taken for its cause: not restarted"), "{said}");
        fs::remove_file(bed.stay_file())?;
        let mut front = begin()?;
        processes::signal(front.id().cast_signed(), "TERM");
        let ended = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("err");
        let rule = "which is no failure: not restarted";
        ensure!(
            ended == 143 && said.contains("was killed by SIGTERM") && said.contains(rule),
            "{ended}: {said}"
        );
        // Nothing of it for what has ended well.
        bed.may_end()?;
        let ended =
            bed.say(&["run", "--name", JOB, "--restart-on-failure", "1", "--replace", "--", "true"])?;
        let ended = ended.success()?;
        ensure!(!ended.stderr.contains("restart"), "{}", ended.stderr);
        bed.check_clean(JOB)
    });
}

/// One sentence, which is true.
#[test]
fn a_lost_agent_is_told_with_what_follows() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &["--restart-on-failure", "1"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let mut watch = bed.holdfast(&["watch", JOB]).stdout(bed.create("watch")?).spawn()?;
        bed.until("a line", PATIENCE, || bed.text("watch").contains("newest image 1"))?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        processes::kill(&[agent]);
        restarted(bed, agent, "restart 1 of 1 from image 1")?;
        let follows = || bed.text("watch").contains("restarts after failures: 1");
        bed.until("watch goes on", PATIENCE, follows).with_context(|| bed.text("watch"))?;
        let said = bed.text("err");
        ensure!(said.contains("the program is ended, to be restarted"), "{said}");
        ensure!(!said.contains("runs on"), "{said}");
        bed.may_end()?;
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == 0, "{}", bed.text("err"));
        ensure!(wait(&mut watch, PATIENCE)?.success(), "{}", bed.text("watch"));
        let page = bed.say(&["report", JOB, "--output", "-"])?.success()?.stdout;
        let why = "was ended, for its agent or its gang was lost";
        ensure!(page.contains("Restarts after failures") && page.contains(why), "{page}");
        bed.check_clean(JOB)
    });
}

/// Each member has such a command; the agent of one is lost.
#[test]
fn members_with_a_command_each_come_back_together() {
    each_user(|bed| {
        let mut fronts = Vec::new();
        for member in 0..2 {
            let (place, log) = (format!("{member}/2"), format!("err{member}"));
            let mut command =
                bed.holdfast(&["run", "--name", "g", "--gang", &place, "--restart-on-failure", "1"]);
            command.args(["--gang-listen", "127.0.0.1:0", "--", "/bin/sh", "-c", COUNTS]);
            command.env("STAY", bed.stay_file());
            command.stdout(bed.create(&format!("out{member}"))?).stderr(bed.create(&log)?);
            fronts.push(command.spawn()?);
        }
        let said = || {
            let log = |job: &str| fs::read_to_string(bed.job(job).join("agent.log")).unwrap_or_default();
            format!("{}\n--\n{}\n--\n{}\n--\n{}", bed.text("err0"), bed.text("err1"), log("g.0"), log("g.1"))
        };
        let is_half = || (0..2).all(|member| bed.text(&format!("out{member}")).ends_with("50\n"));
        bed.until("half of it", PATIENCE, is_half).with_context(said)?;
        bed.say(&["checkpoint", "g"])?.success()?;
        let agents = || anyhow::Ok([bed.agent_pid("g.0")?, bed.agent_pid("g.1")?]);
        let before = agents()?;
        processes::kill(&[before[1].context("an agent")?]);
        let are_new = || {
            agents().is_ok_and(|now| now.iter().zip(before).all(|(now, old)| now.is_some() && *now != old))
                && ["g.0", "g.1"].iter().all(|job| bed.pid(job).is_ok_and(|pid| pid.is_some()))
        };
        bed.until("both again", PATIENCE, are_new).with_context(said)?;
        // They are a gang.
        bed.say(&["checkpoint", "g"])?.success().with_context(said)?;
        bed.may_end()?;
        for (member, front) in fronts.iter_mut().enumerate() {
            let ended = shell_code(wait(front, PATIENCE)?);
            let (out, err) = (bed.text(&format!("out{member}")), bed.text(&format!("err{member}")));
            ensure!(ended == 0 && out == lines(), "member {member}: {ended}: {out}\n{}", said());
            ensure!(err.contains("restart 1 of 1 from image 1"), "member {member}: {err}");
        }
        bed.check_clean("g.0")
    });
}

/// What the launcher gives to ssh is what reaches the host when the gang is restarted, too.
#[test]
fn options_for_ssh_are_kept_for_restarts() {
    each_user_by_root(|bed| {
        let hosts = Hosts::with_ssh(bed)?;
        let ssh = bed.work().join("ssh");
        fs::rename(&ssh, bed.work().join("real-ssh"))?;
        let script =
            "#!/bin/sh\ncase \"$*\" in '-p 77 '*) exec \"${0%/*}/real-ssh\" \"$@\" ;; esac\nexit 255\n";
        fs::write(&ssh, script)?;
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755))?;
        let remote = r#""$H" rsh -p 77 h1 'while [ ! -e "'"$STAY"'" ]; do sleep 0.02; done; echo done'"#;
        let mut command = bed.holdfast(&["run", "--name", "g", "--gang", "ssh", "--restart-on-failure", "1"]);
        command.args(["--", "/bin/sh", "-c", &format!("echo begun; {remote}")]);
        command.env("H", bed.kit().holdfast()).env("STAY", bed.stay_file());
        let mut command = hosts.on(0, &command, &bed.work());
        let mut front = command.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
        let said = || {
            let log = |name| fs::read_to_string(bed.job("g.0").join(name)).unwrap_or_default();
            format!("{}\n{}\n{}\n{}", bed.text("out"), bed.text("err"), log("agent.log"), log("member-1.log"))
        };
        bed.until("the member", PATIENCE, || bed.pid("g.1").is_ok_and(|pid| pid.is_some()))
            .with_context(said)?;
        let checkpoint =
            || bed.output(hosts.on(0, &bed.holdfast(&["checkpoint", "g"]), &bed.work()), PATIENCE);
        let has_both =
            || checkpoint().is_ok_and(|ended| ended.code() == 0 && ended.stdout.contains("2 members"));
        bed.until("an image of both", PATIENCE, has_both).with_context(said)?;
        let agent = bed.agent_pid("g.0")?.context("an agent")?;
        processes::kill(&[agent]);
        let is_new = || bed.agent_pid("g.0").is_ok_and(|now| now.is_some_and(|now| now != agent));
        bed.until("a restart", PATIENCE, is_new).with_context(said)?;
        bed.may_end()?;
        let ended = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(ended == 0 && bed.text("out") == "begun\ndone\n", "{ended}: {}", said());
        Ok(())
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
