//! A job knows who it is: how its program has ended, which images are of which run, what `run --resume` goes on with.

use crate::plain_job::{self, JOB, as_user, fails};
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, STAY, each_user, shell_code, wait};
use serde_json::Value;
use std::fs;

/// The job, once its state is this one.
fn in_state(bed: &Bed, state: &str) -> Result<Value> {
    plain_job::until_listed(bed, state, |row| row["state"] == state)?;
    plain_job::listed(bed)
}

/// Takes an image and kills the program.
fn image_and_kill(bed: &Bed, front: &mut std::process::Child, pid: i32) -> Result<()> {
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_program(pid, front)
}

#[test]
fn a_job_tells_how_its_program_has_ended() {
    each_user(|bed| {
        for (arguments, state, status, signal) in [
            (["exit", "0"], "done", Some(0), None),
            (["exit", "7"], "failed", Some(7), None),
            (["signal", "15"], "killed", None, Some(15)),
        ] {
            let mut command = bed.run_command(JOB, &[], &App::program("follow", &arguments).words())?;
            wait(&mut command.spawn()?, PATIENCE)?;
            let row = in_state(bed, state)?;
            ensure!((row["status"].as_u64(), row["signal"].as_u64()) == (status, signal), "{row}");
            let (started, ended) = (row["started"].as_str(), row["ended"].as_str());
            ensure!(started.is_some() && ended >= started, "{row}");
            let text = bed.say(&["list"])?.success()?.stdout;
            ensure!(text.contains(state), "{text}");
        }
        // By itself, and by the front's death with it.
        let (mut front, pid) = plain_job::start(bed, &[])?;
        ensure!(in_state(bed, "running")?["ended"].is_null());
        bed.say(&["stop", JOB])?.success()?;
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == 75);
        let row = in_state(bed, "checkpointed")?;
        ensure!(row["ended"].is_string() && row["newest"] == 1, "{row}");
        ensure!(!processes::runs(pid));
        let mut front = bed.restart_command(JOB, &[])?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        ensure!(in_state(bed, "running")?["newest"] == 1);
        front.kill()?;
        front.wait()?;
        processes::signal(pid, "KILL");
        let row = in_state(bed, "lost")?;
        ensure!(row["ended"].is_null() && row["status"].is_null(), "{row}");
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(
            text.starts_with("job j: lost, started from image 1 at ") && text.contains("not seen"),
            "{text}"
        );
        bed.may_end()?;
        plain_job::restarts(bed, JOB, &[])?;
        in_state(bed, "done")?;
        bed.check_clean(JOB)
    });
}

#[test]
fn a_finished_job_is_not_run_again() {
    as_user(|bed| {
        let words = plain_job::program();
        let resume = |bed: &Bed| {
            let mut command = bed.holdfast(&["run", "--name", JOB, "--resume", "--"]);
            command.args(words.words());
            bed.output(command, PATIENCE)
        };
        let (mut front, pid) = plain_job::start(bed, &[])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.may_end()?;
        ensure!(wait(&mut front, PATIENCE)?.success() && !processes::runs(pid));
        in_state(bed, "done")?;
        let again = resume(bed)?;
        fails(&again, 0, "holdfast: job j ended with status 0 at ")?;
        ensure!(again.stdout.is_empty(), "{}", again.stdout);
        ensure!(bed.text("out") == plain_job::right_output(), "{}", bed.text("out"));
        // One that was asked for goes on all the same.
        plain_job::restarts(bed, JOB, &[])?;
        bed.check_clean(JOB)
    });
}

/// A workflow engine starts the same command at once when the program has gone, while its image is being written.
#[test]
fn resume_waits_for_the_image_that_is_being_written() {
    as_user(|bed| {
        let (mut front, pid) = plain_job::start_with_fault(bed, &[], "manifest-temp+3000")?;
        bed.say(&["checkpoint", JOB, "--no-wait"])?.success()?;
        let is_written = || bed.job(JOB).join("segment-000001-000").exists();
        bed.until("a segment of the image", PATIENCE, is_written)?;
        kill_program(pid, &mut front)?;
        ensure!(bed.images(JOB).is_empty(), "the image is there already");
        bed.may_end()?;
        let program = plain_job::program();
        let words =
            [&["run", "--name", JOB, "--resume", "--stdio", "keep", "--"], &program.words()[..]].concat();
        let ended = bed.say(&words)?.success()?;
        ensure!(ended.stderr.contains("goes on from image 1"), "{}", ended.stderr);
        ensure!(bed.text("out") == plain_job::right_output(), "{}", bed.text("out"));
        bed.check_clean(JOB)
    });
}

#[test]
fn what_differs_from_the_job_is_refused_by_resume() {
    as_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        image_and_kill(bed, &mut front, pid)?;
        let program = plain_job::program().words()[0].to_owned();
        let resume = |options: &[&str], words: &[&str], folder: Option<&str>| {
            let mut command = bed.holdfast(&["run", "--name", JOB, "--resume"]);
            command.args(options).arg("--").args(words).stderr(bed.create("resume.err")?);
            folder.map(|folder| command.current_dir(folder));
            bed.output(command, PATIENCE)
        };
        for (words, folder, differs) in [
            (&[&program[..], "31", "10"][..], None, "its arguments are `30 10`, not `31 10`"),
            (&["true", "30", "10"], None, "its program is "),
            (&[&program, "30", "10"], Some("/"), "its folder is "),
        ] {
            let ended = resume(&[], words, folder)?;
            fails(&ended, 69, differs).with_context(|| differs.to_owned())?;
            fails(&ended, 69, "holdfast: job j is not the same: ")?;
        }
        bed.may_end()?;
        // The program's output goes on in its file.
        resume(&["--force", "--stdio", "keep"], &[&program, "31", "10"], None)?.success()?;
        ensure!(bed.text("out") == plain_job::right_output(), "{}", bed.text("out"));
        bed.check_clean(JOB)
    });
}

#[test]
fn a_restart_never_takes_an_image_of_another_run() {
    as_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        image_and_kill(bed, &mut front, pid)?;
        // Started afresh, and lost before its first image.
        let mut command = bed.holdfast(&["run", "--name", JOB, "--"]);
        command.args(plain_job::program().words()).env(STAY, bed.stay_file());
        let mut front = command.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid of the second run")?;
        kill_program(pid, &mut front)?;
        let none =
            "job j has no image of its last run; image 1 is of an earlier one, and `holdfast restart j@1`";
        fails(&bed.say(&["restart", JOB])?, 66, none)?;
        fails(&bed.say(&["restart", "--name", "copy", JOB])?, 66, none)?;
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(text.contains("of an earlier run"), "{text}");
        // One that is named is taken, and what comes then is of its run.
        let mut front = bed.restart_command("j@1", &[])?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        image_and_kill(bed, &mut front, pid)?;
        let row = plain_job::listed(bed)?;
        ensure!(row["newest"] == 2 && row["images"][0]["of_last_run"] == true, "{row}");
        bed.may_end()?;
        plain_job::restarts(bed, JOB, &[])?;
        bed.check_clean(JOB)
    });
}

#[test]
fn a_run_keeps_what_a_crash_has_left_until_it_is_over() {
    each_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &["--keep", "1"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        image_and_kill(bed, &mut front, pid)?;
        ensure!(bed.images(JOB) == [2], "{:?}", bed.images(JOB));
        // With a tier below, too, whose rules are its own.
        let tier = format!("dir={},keep=1", bed.work().join("tier").display());
        let (mut front, pid) = plain_job::start(bed, &["--keep", "1", "--tier", &tier])?;
        let told = bed.text("err");
        let note = "holdfast: job j starts afresh; image 2 of its last run, which was killed by SIGKILL at ";
        ensure!(
            told.starts_with(note) && told.contains(" (`holdfast restart j@2` goes on from there"),
            "{told}"
        );
        for _ in 0..2 {
            bed.say(&["checkpoint", JOB])?.success()?;
            bed.say(&["sync", JOB, "--wait"])?.success()?;
        }
        let below = |row: &Value| row["tiers"][0]["versions"] == serde_json::json!([2, 4]);
        plain_job::until_listed(bed, "both on the tier", below)?;
        bed.until("the own ones counted", PATIENCE, || bed.images(JOB) == [2, 4])?;
        kill_program(pid, &mut front)?;
        // One that made no image leaves what was there.
        for _ in 0..2 {
            let (mut front, pid) = plain_job::start(bed, &["--keep", "1"])?;
            let told = bed.text("err");
            ensure!(
                told.contains("images up to 4 of its last run") || told.contains("image 4 of its"),
                "{told}"
            );
            kill_program(pid, &mut front)?;
        }
        let (mut front, _) = plain_job::start(bed, &["--keep", "1"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("one of each run", PATIENCE, || bed.images(JOB) == [2, 4, 5])?;
        // At its end it needs them no more.
        bed.may_end()?;
        ensure!(wait(&mut front, PATIENCE)?.success());
        bed.until("the end of the run", PATIENCE, || bed.images(JOB) == [5])?;
        bed.check_clean(JOB)
    });
}

/// `prune JOB` is by the rules that the job itself has.
#[test]
fn prune_without_rules_goes_by_those_of_the_job() {
    as_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        image_and_kill(bed, &mut front, pid)?;
        let (mut front, pid) = plain_job::start(bed, &[])?;
        for _ in 0..3 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        bed.say(&["prune", JOB])?.success()?;
        ensure!(bed.images(JOB) == [1, 2, 3, 4], "without any rule all stay: {:?}", bed.images(JOB));
        let file = bed.job(JOB).join("job.json");
        let mut recipe: Value = serde_json::from_slice(&fs::read(&file)?)?;
        recipe["settings"]["keep"] = 2.into();
        fs::write(&file, recipe.to_string())?;
        bed.say(&["prune", JOB])?.success()?;
        ensure!(bed.images(JOB) == [1, 3, 4], "what the run before has left stays: {:?}", bed.images(JOB));
        kill_program(pid, &mut front)?;
        recipe["settings"]["keep"] = Value::Null;
        recipe["settings"]["keep_daily"] = 1.into();
        fs::write(&file, recipe.to_string())?;
        bed.say(&["prune", JOB])?.success()?;
        ensure!(bed.images(JOB) == [1, 4], "the newest of the day: {:?}", bed.images(JOB));
        bed.may_end()?;
        plain_job::restarts(bed, JOB, &[])?;
        bed.until("the end of the agent", PATIENCE, || !bed.job(JOB).join("agent.sock").exists())?;
        bed.say(&["prune", JOB])?.success()?;
        ensure!(bed.images(JOB) == [4], "it has come to its end: {:?}", bed.images(JOB));
        Ok(())
    });
}

/// A job of which it cannot be read how it was started is not one that was never started.
#[test]
fn a_job_file_that_cannot_be_read_is_not_replaced() {
    each_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        image_and_kill(bed, &mut front, pid)?;
        let file = bed.job(JOB).join("job.json");
        let good = fs::read(&file)?;
        fs::write(&file, &good[..20])?;
        for options in [&[][..], &["--resume"], &["--replace"]] {
            let command = plain_job::command(bed, JOB, options)?;
            fails(&bed.output(command, PATIENCE)?, 65, "job.json")?;
            ensure!(fs::read(&file)? == good[..20] && bed.images(JOB) == [1], "{options:?}");
        }
        fs::write(&file, good)?;
        bed.may_end()?;
        plain_job::restarts(bed, JOB, &[])
    });
}

#[test]
fn images_of_another_program_are_in_the_way() {
    as_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        image_and_kill(bed, &mut front, pid)?;
        let program = plain_job::program().words()[0].to_owned();
        let other = ["run", "--name", JOB, "--", "/bin/true"];
        fails(&bed.say(&other)?, 69, &format!("job j has image 1 of another program, `{program} 30 10`; "))?;
        ensure!(bed.images(JOB) == [1]);
        // The same program with other arguments is none.
        bed.say(&["run", "--name", JOB, "--", &program, "1", "1"])?.success()?;
        ensure!(bed.images(JOB) == [1]);
        let replaced = bed.say(&["run", "--name", JOB, "--replace", "--", "/bin/true"])?;
        fails(&replaced, 0, "1 images of another program were deleted from job j")?;
        ensure!(bed.images(JOB).is_empty());
        bed.check_clean(JOB)
    });
}

#[test]
fn jobs_without_a_name_are_called_after_their_script_and_leave_nothing() {
    each_user(|bed| {
        fs::write(bed.work().join("train.sh"), "kill -0 $PPID; exit $1\n")?;
        let left = || {
            let jobs = fs::read_dir(bed.store()).into_iter().flatten().flatten();
            jobs.map(|job| job.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        bed.say(&["run", "--", "bash", "train.sh", "0"])?.success()?;
        bed.until("nothing left", PATIENCE, || left().is_empty()).with_context(|| format!("{:?}", left()))?;
        // What failed stays, with its log.
        ensure!(bed.say(&["run", "--", "bash", "train.sh", "3"])?.code() == 3);
        ensure!(left() == ["train-1"], "{:?}", left());
        let listed: Value = serde_json::from_str(&bed.say(&["list", "train-1", "--json"])?.stdout)?;
        ensure!(listed["jobs"][0]["command"][1] == "train.sh", "{listed}");
        // Its agent was killed: the next listing does what it would have done.
        let mut run = bed.holdfast(&["run", "--", "sleep", "0.3"]);
        let mut front = run.spawn()?;
        bed.wait_live("sleep-1", &mut front)?;
        if let Some(agent) = bed.agent_pid("sleep-1")? {
            processes::signal(agent, "KILL");
        }
        wait(&mut front, PATIENCE)?;
        bed.until("what the agent left", PATIENCE, || {
            bed.say(&["list"]).is_ok() && !left().contains(&"sleep-1".to_owned())
        })
    });
}

/// Lines that the command of `--exec-after` has written.
fn told(bed: &Bed) -> Vec<String> {
    bed.text("told").lines().map(str::to_owned).collect()
}

#[test]
fn a_running_job_is_changed_and_its_images_are_told() {
    each_user(|bed| {
        let hook = "echo $HOLDFAST_JOB $HOLDFAST_IMAGE $HOLDFAST_STATE >>told; test -e $HOLDFAST_IMAGE_PATH && echo is";
        let (mut front, pid) = plain_job::start(bed, &["--exec-after", hook])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("the first line", PATIENCE, || told(bed) == ["j 1 running"])?;
        let log = || bed.say(&["logs", JOB]).map(|ended| ended.stdout).unwrap_or_default();
        bed.until("what it prints", PATIENCE, || log().lines().any(|line| line == "is"))?;
        let unchanged = bed.say(&["set", JOB])?.success()?.stdout;
        ensure!(unchanged.starts_with("job j: images on request, then `echo"), "{unchanged}");
        // Without a program that waits: the agent takes images from now on.
        let changed = bed.say(&["set", JOB, "--every", "1s", "--keep", "2"])?.success()?.stdout;
        ensure!(changed.starts_with("job j: an image every 1s, the newest 2 are kept"), "{changed}");
        bed.until("images by themselves", PATIENCE, || bed.images(JOB).last() >= Some(&3))?;
        bed.say(&["set", JOB, "--every", "0", "--exec-after", "", "--on", "USR1=checkpoint-stop"])?
            .success()?;
        bed.until("old images go", PATIENCE, || bed.images(JOB).len() <= 2)?;
        processes::signal(front.id().cast_signed(), "USR1");
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 75 && !processes::runs(pid), "status {code}: {}", bed.text("err"));
        // They are the job's, and can be changed while it does not run.
        let lines = told(bed);
        let recipe: Value = serde_json::from_slice(&fs::read(bed.job(JOB).join("job.json"))?)?;
        ensure!(recipe["settings"]["keep"] == 2 && recipe["settings"]["every_s"].is_null(), "{recipe}");
        in_state(bed, "checkpointed")?;
        bed.until("the end of the agent", PATIENCE, || processes::of(bed.dir()).is_empty())?;
        bed.say(&["-q", "set", JOB, "--on", "none", "--keep", "0"])?.success()?;
        let plain = bed.say(&["set", JOB])?.success()?.stdout;
        ensure!(plain == "job j: images on request\n", "{plain}");
        for wrong in [&["--every", "soon"][..], &["--signal", "KILL"], &["--keep", "few"], &["--on", "TERM"]]
        {
            let ended = bed.output(
                {
                    let mut set = bed.holdfast(&["set", JOB]);
                    set.args(wrong);
                    set
                },
                PATIENCE,
            )?;
            ensure!(ended.code() == 64, "{wrong:?}: {}", ended.code());
        }
        bed.may_end()?;
        plain_job::restarts(bed, JOB, &[])?;
        ensure!(told(bed) == lines, "{:?}", told(bed));
        plain_job::none_is_left(bed)
    });
}

#[test]
fn quiet_and_verbose() {
    as_user(|bed| {
        let words = plain_job::program();
        let mut command = bed.holdfast(&["run", "-v", "--name", JOB, "--"]);
        command.args(words.words()).env(STAY, bed.stay_file());
        command.stdout(bed.create("out")?).stderr(bed.create("err")?);
        let mut front = command.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || !bed.text("out").is_empty())?;
        ensure!(
            bed.text("err").starts_with(&format!("holdfast: job j runs as process {pid}, its agent is "))
        );
        let quiet = bed.say(&["-q", "checkpoint", JOB])?.success()?;
        ensure!(quiet.stdout.is_empty() && quiet.stderr.is_empty(), "{}{}", quiet.stdout, quiet.stderr);
        bed.until("the image", PATIENCE, || bed.text("err").contains("holdfast: image 1: stop time "))?;
        kill_program(pid, &mut front)?;
        let failed = bed.say(&["-q", "checkpoint", JOB])?;
        ensure!(failed.code() == 66 && !failed.stderr.is_empty(), "{}: {}", failed.code(), failed.stderr);
        ensure!(bed.say(&["-q", "-v", "list"])?.code() == 64);
        bed.may_end()?;
        plain_job::restarts(bed, JOB, &["-q"])?;
        ensure!(bed.text("restart.err").is_empty(), "{}", bed.text("restart.err"));
        bed.check_clean(JOB)
    });
}
