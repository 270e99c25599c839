//! What users meet every day: notes come before the program's output, sizes are those of du, nothing half is left under
//! a name, files that were moved are told in few lines, a store that is full has no half job.

use crate::plain_job::{self, JOB, as_user, fails};
use anyhow::{Context, Result, ensure};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, STAY, each_user, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A job with one image, whose program was killed.
fn killed_job(bed: &Bed, options: &[&str]) -> Result<()> {
    let (mut front, pid) = plain_job::start(bed, options)?;
    bed.say(&["checkpoint", JOB])?.success()?;
    kill_program(pid, &mut front)
}

#[test]
fn notes_come_before_the_output_and_say_where_that_goes() {
    each_user(|bed| {
        killed_job(bed, &[])?;
        bed.may_end()?;
        let second = bed.create("second")?;
        let mut restart = bed.restart_command(JOB, &[])?;
        let mut front = restart.stdout(second.try_clone()?).stderr(second).spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let text = bed.text("second");
        ensure!(code == 0 && text.starts_with("holdfast: job j goes on from image 1, "), "{code}: {text}");
        let work = bed.work();
        let work = work.display();
        let line = |stream: &str, file: &str| {
            format!(
                "holdfast: the program's {stream} goes to {work}/second from now on; until the checkpoint it went to \
                 {work}/{file}\n"
            )
        };
        let said = [line("stdout", "out"), line("stderr", "err")];
        ensure!(said.iter().all(|line| text.contains(line)), "{text}");
        let last_note = text.rfind("holdfast: ").context("a note")?;
        let output = text.find("plain round").context("output")?;
        ensure!(last_note < output && text.ends_with("PASS\n"), "{text}");
        // The same again where it went before: nothing is to be said.
        bed.say(&["prune", JOB, "--all"])?.success()?;
        killed_job(bed, &[])?;
        bed.may_end()?;
        plain_job::restarts(bed, JOB, &["--stdio", "keep"])?;
        ensure!(!bed.text("restart.err").contains("from now on"), "{}", bed.text("restart.err"));
        bed.check_clean(JOB)
    });
}

#[test]
fn a_size_is_what_du_says() {
    as_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &["--keep", "1"])?;
        for _ in 0..3 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        kill_program(pid, &mut front)?;
        plain_job::none_is_left(bed)?;
        let row: Value = plain_job::listed(bed)?;
        let mut du = bed.command(Path::new("/usr/bin/du"));
        du.arg("-sB1").arg(bed.job(JOB));
        let du = bed.output(du, PATIENCE)?.success()?.stdout;
        let du: u64 = du.split('\t').next().context("a number")?.parse()?;
        ensure!(row["disk_bytes"] == du, "{row}: {du}");
        Ok(())
    });
}

#[test]
fn an_export_that_is_killed_leaves_nothing_under_its_name() {
    as_user(|bed| {
        killed_job(bed, &[])?;
        let left = || {
            let names = fs::read_dir(bed.work()).into_iter().flatten().flatten();
            let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
            names.filter(|name| name.contains("sim.img")).collect::<Vec<_>>()
        };
        // By SIGXFSZ, after 8 KiB.
        let mut shell = bed.command(Path::new("/bin/sh"));
        shell
            .args(["-c", "ulimit -f 16; exec env --default-signal=XFSZ \"$@\"", "sh"])
            .arg(bed.kit().holdfast());
        let ended = bed.output(
            {
                shell.args(["export", JOB, "sim.img"]);
                shell
            },
            PATIENCE,
        )?;
        ensure!(shell_code(ended.status) == 153, "{}: {}", shell_code(ended.status), ended.stderr);
        let names = left();
        ensure!(
            names.len() == 1 && names[0].starts_with(".sim.img.") && names[0].ends_with(".part"),
            "{names:?}"
        );
        fs::remove_file(bed.work().join(&names[0]))?;
        bed.say(&["export", JOB, "sim.img"])?.success()?;
        ensure!(left() == ["sim.img"], "{:?}", left());
        fails(&bed.say(&["export", JOB, "sim.img"])?, 73, "sim.img is there already")?;
        bed.say(&["import", "sim.img", "--name", "copy"])?.success().map(drop)
    });
}

/// A copy of the test program, in the bed.
fn own_program(bed: &Bed) -> Result<Vec<String>> {
    let mut words: Vec<String> = plain_job::program().words().iter().map(ToString::to_string).collect();
    let copy = bed.work().join("prog");
    fs::copy(&words[0], &copy)?;
    words[0] = copy.to_str().context("a path")?.to_owned();
    Ok(words)
}

#[test]
fn a_program_in_the_image_may_have_been_rebuilt() {
    each_user(|bed| {
        for (option, may) in [("--self-contained", true), ("--keep=1", false)] {
            let words = own_program(bed)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let _ = fs::remove_file(bed.stay_file());
            let mut command = bed.staying_command(JOB, &[option], &words)?;
            let (mut front, pid) = plain_job::started(bed, JOB, &mut command)?;
            bed.say(&["checkpoint", JOB])?.success()?;
            kill_program(pid, &mut front)?;
            fs::remove_file(words[0])?;
            fs::copy("/bin/true", words[0])?;
            bed.may_end()?;
            if may {
                plain_job::restarts(bed, JOB, &["--stdio", "keep"])?;
            } else {
                fails(
                    &bed.say(&["restart", JOB])?,
                    69,
                    "prog: the program maps this file, and it was rebuilt since",
                )?;
            }
            bed.say(&["prune", JOB, "--all"])?.success()?;
            fs::remove_file(words[0])?;
        }
        Ok(())
    });
}

#[test]
fn the_same_library_in_another_place_is_used() {
    each_user(|bed| {
        let library = |folder: &str| bed.work().join(folder).join("libholdfast.so");
        fs::create_dir(bed.work().join("old"))?;
        fs::copy(bed.kit().library(), library("old"))?;
        let _ = fs::remove_file(bed.stay_file());
        let mut command = bed.staying_command(JOB, &[], &plain_job::program().words())?;
        let (mut front, pid) = plain_job::started(bed, JOB, command.env("HOLDFAST_LIB", library("old")))?;
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_program(pid, &mut front)?;
        fs::rename(bed.work().join("old"), bed.work().join("new"))?;
        bed.may_end()?;
        let mut restart = bed.restart_command(JOB, &["--stdio", "keep"])?;
        plain_job::ends_right(bed, restart.env("HOLDFAST_LIB", library("new")))?;
        let said = format!("{} is used, for {} is gone", library("new").display(), library("old").display());
        ensure!(bed.text("restart.err").contains(&said), "{}", bed.text("restart.err"));
        bed.check_clean(JOB)
    });
}

#[test]
fn files_that_are_gone_are_told_by_folder() {
    as_user(|bed| {
        let data = bed.work().join("data");
        fs::create_dir(&data)?;
        for name in ["a", "b", "c"] {
            fs::write(data.join(name), name)?;
        }
        let line = ["/bin/sh", "-c", "exec 3<data/a 4<data/b 5<data/c; exec sleep 600"];
        let mut front = bed.run_command(JOB, &["--save-files=none"], &line)?.spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.until("sleep", PATIENCE, || {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("sleep"))
        })?;
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_program(pid, &mut front)?;
        fs::remove_file(data.join("a"))?;
        fs::remove_file(data.join("b"))?;
        let words =
            format!("{}: files of the program are gone from here (a, b); put them back", data.display());
        fails(&bed.say(&["restart", JOB])?, 69, &words)?;
        fs::remove_dir_all(&data)?;
        let words =
            format!("{}: this folder is gone, and the program has files in it (a, b, c)", data.display());
        let ended = bed.say(&["restart", JOB])?;
        fails(&ended, 69, &words)?;
        ensure!(ended.stderr.matches("gone").count() == 1, "{}", ended.stderr);
        Ok(())
    });
}

#[test]
fn a_full_store_has_no_half_job() {
    each_user(|bed| {
        // Its messages go through a pipe: files cannot grow.
        let script = "set -o pipefail; (trap '' XFSZ; ulimit -f 0; exec \"$@\") 2>&1 | cat >&2";
        let mut shell = bed.command(Path::new("/bin/bash"));
        shell.args(["-c", script, "bash"]).arg(bed.kit().holdfast());
        shell.args(["run", "--name", "full", "--", "/bin/true"]);
        fails(&bed.output(shell, PATIENCE)?, 73, "holdfast: the store is full: cannot create job full (")?;
        ensure!(!bed.job("full").exists());
        Ok(())
    });
}

#[test]
fn words_that_are_nearly_right() {
    as_user(|bed| {
        bed.say(&["run", "--name", "count", "--", "/bin/true"])?.success()?;
        let words =
            format!("holdfast: no job \"cuont\" in {}; did you mean \"count\"?", bed.store().display());
        fails(&bed.say(&["restart", "cuont"])?, 66, &words)?;
        fails(&bed.say(&["list", "zzz"])?, 66, "`holdfast list` shows its jobs")?;
        fails(&bed.say(&["checkpoint", "1073741"])?, 66, "there is no such process")?;
        let line = "python3 count.py";
        fails(
            &bed.say(&["run", "--", line])?,
            127,
            "python3 count.py: no such program in PATH; quote the program",
        )?;
        fails(&bed.say(&["run", "--", "no-such-program"])?, 127, "no such program in PATH; give its path")?;
        fails(&bed.say(&["run", "--", "./nothere"])?, 127, "or the one from this folder, which is /")?;
        std::os::unix::fs::symlink("/bin/true", bed.work().join("only-here"))?;
        fails(&bed.say(&["run", "--", "only-here"])?, 127, "the one of this folder is ./only-here")?;
        fails(&bed.say(&["run", "--max-space", "20", "--", "true"])?, 64, "20 has no unit")?;
        fails(&bed.say(&["prune", "count", "--keep-last", "0"])?, 64, "0 is not in 1..")?;
        bed.say(&["run", "--name", "zero", "--keep", "0", "--", "/bin/true"])?.success().map(drop)
    });
}

#[test]
fn a_doctor_who_finds_something_says_so_by_its_status() {
    as_user(|bed| {
        let mut alone = bed.command(Path::new("/bin/sleep")).arg("600").spawn()?;
        let doctor = bed.say(&["doctor", "--job", &alone.id().to_string()])?;
        let said = doctor.stdout.contains("libholdfast is not loaded")
            && doctor.stdout.contains("free space in the store");
        ensure!(said && doctor.code() == 69, "status {}: {}", doctor.code(), doctor.stdout);
        alone.kill()?;
        alone.wait()?;
        bed.say(&["doctor"])?.success()?;
        let (mut front, pid) = plain_job::started(
            bed,
            JOB,
            bed.run_command(JOB, &[], &plain_job::program().words())?.env(STAY, bed.stay_file()),
        )?;
        bed.say(&["doctor", "--job", JOB])?.success()?;
        kill_program(pid, &mut front)
    });
}

#[test]
fn jobs_are_killed_and_removed_by_name() {
    each_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        fails(&bed.say(&["rm", JOB])?, 69, "job j is running")?;
        let said = bed.say(&["kill", "--signal", "KILL", JOB])?.success()?.stdout;
        ensure!(said == format!("job j: SIGKILL was sent to its program, process {pid}\n"), "{said}");
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == 137);
        plain_job::none_is_left(bed)?;
        fails(&bed.say(&["kill", JOB])?, 66, "job j is not running")?;
        fails(&bed.say(&["kill", "--signal", "NONE", JOB])?, 64, "is not a signal")?;
        bed.say(&["rm", JOB, "--dry-run"])?.success()?;
        ensure!(bed.images(JOB) == [1]);
        bed.say(&["rm", JOB])?.success()?;
        ensure!(!bed.job(JOB).exists());
        Ok(())
    });
}

#[test]
fn of_a_day_the_newest_image_stays() {
    as_user(|bed| {
        let (mut front, pid) = plain_job::start(bed, &[])?;
        for _ in 0..4 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        kill_program(pid, &mut front)?;
        plain_job::none_is_left(bed)?;
        bed.say(&["prune", JOB, "--keep-daily", "7", "--keep-last", "2"])?.success()?;
        // The test may run over midnight.
        ensure!(bed.images(JOB).ends_with(&[3, 4]) && bed.images(JOB).len() <= 3, "{:?}", bed.images(JOB));
        bed.say(&["prune", JOB, "--keep-daily", "1"])?.success()?;
        ensure!(bed.images(JOB) == [4], "{:?}", bed.images(JOB));
        // The same by itself, while the job runs; with tiers, too.
        let pfs = format!("dir={}/pfs", bed.work().display());
        for options in [&["--keep-daily", "7"][..], &["--keep-daily", "7", "--tier", &pfs]] {
            bed.say(&["prune", JOB, "--all"])?.success()?;
            let (mut front, pid) = plain_job::start(bed, options)?;
            let take = |count: u64| -> Result<()> {
                for _ in 0..count {
                    bed.say(&["checkpoint", JOB])?.success()?;
                    // What the tier has yet to get stays until the image after it.
                    bed.say(&["sync", JOB, "--wait"])?;
                }
                Ok(())
            };
            take(4)?;
            bed.until("images of days", PATIENCE, || {
                bed.images(JOB).len() <= 2 && bed.images(JOB).ends_with(&[4])
            })?;
            bed.say(&["set", JOB, "--keep-daily", "0"])?.success()?;
            take(2)?;
            ensure!(bed.images(JOB).ends_with(&[4, 5, 6]), "{:?}", bed.images(JOB));
            kill_program(pid, &mut front)?;
            plain_job::none_is_left(bed)?;
        }
        Ok(())
    });
}

#[test]
fn what_is_lost_is_restarted_with_one_command() {
    each_user(|bed| {
        let lose = |name: &str| -> Result<()> {
            let mut command = plain_job::command(bed, name, &[])?;
            let (mut front, pid) = plain_job::started(bed, name, &mut command)?;
            bed.say(&["checkpoint", name])?.success()?;
            front.kill()?;
            front.wait()?;
            plain_job::kill_all(bed, name, &mut front, pid)
        };
        lose("lost")?;
        killed_job(bed, &[])?;
        bed.may_end()?;
        let mut all = bed.holdfast(&["restart", "--all-lost"]);
        let ended = bed.output(
            {
                all.env(STAY, bed.stay_file());
                all
            },
            PATIENCE,
        )?;
        ensure!(
            ended.code() == 0 && ended.stderr.contains("job lost goes on from image 1"),
            "{}",
            ended.stderr
        );
        ensure!(
            !ended.stderr.contains("job j goes on"),
            "it was killed, and that was seen: {}",
            ended.stderr
        );
        fails(&bed.say(&["restart", "--all-lost"])?, 0, "no job is lost")?;
        fails(&bed.say(&["restart"])?, 64, "JOB")?;
        fails(&bed.say(&["restart", "--all-lost", JOB])?, 64, "cannot be used")
    });
}
