//! The log tier (`run --tier log=/FOLDER`): the streams of a job have their logs there, with the rules that were given;
//! images do not go there, and a folder that is not in memory is refused. Logs that are full, cut, of another writer.

use super::json::agrees;
use super::nvstream::{line, with_logs};
use anyhow::{Context, Result, ensure};
use holdfast_tests::own::{build, shell};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, as_user_by_root, each_user, wait};
use std::path::Path;

/// As both users, in a bed that is in memory, as the log is.
#[allow(clippy::panic)]
fn in_memory(test: impl Fn(&Bed) -> Result<()>) {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::in_memory(user) else { continue };
        test(&bed).unwrap_or_else(|error| panic!("as {user:?}: {error:#}"));
    }
}

fn of_folder(bed: &Bed, folder: &Path, rest: &str) -> Result<Ended> {
    let words = format!("{} {rest}", bed.kit().holdfast().display());
    let folder = format!("--streams log={}", folder.display());
    bed.output(shell(bed, &words.replace("LOG", &folder)), PATIENCE)
}

#[test]
fn streams_of_a_job_are_in_its_log_tier_with_its_rules() {
    in_memory(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        let folder = bed.work().join("tier");
        let tier = format!("log={},max=1M,full=keep", folder.display());
        let mut command = bed.run_command("j", &["--tier", &tier], &["./stream", "put"])?;
        command.env("LD_LIBRARY_PATH", bed.kit().bin()).env("HOLDFAST_STREAMS", "/nowhere");
        let ended = bed.output(command, PATIENCE)?;
        // A log of 1M that keeps all is full after some versions.
        ensure!(ended.code() == 1 && ended.stdout.contains("it keeps all versions"), "{}", ended.stdout);
        let listed = agrees(&of_folder(bed, &folder, "streams LOG --json")?.success()?.stdout, "streams")?;
        let stream = &listed["streams"][0];
        ensure!(stream["stream"] == "sim/0" && stream["log_bytes"] == 1 << 20, "{listed}");
        ensure!(stream["oldest_version"] == 1 && stream["newest_version"].as_u64() > Some(5), "{listed}");
        let numbers = of_folder(bed, &folder, "cat LOG -f sim step | od -An -v -t d8 -w8")?.success()?.stdout;
        let last = stream["newest_version"].as_u64().context("a number")?;
        let expected: Vec<String> = (1..=last).map(|number| number.to_string()).collect();
        ensure!(numbers.split_whitespace().eq(expected), "each once: {numbers}");
        Ok(())
    });
}

#[test]
fn a_job_goes_on_in_its_log_after_a_restart_and_when_it_is_started_anew() {
    in_memory(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        let folder = bed.work().join("tier");
        let tier = format!("log={},max=1M,wait=60", folder.display());
        let mut command = bed.run_command("j", &["--tier", &tier], &["./stream", "put"])?;
        let mut front = command.env("LD_LIBRARY_PATH", bed.kit().bin()).spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("some versions", PATIENCE, || bed.text("out").lines().count() > 20)?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        let said = bed.text("out").lines().count();
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("more versions", PATIENCE, || bed.text("out").lines().count() > said + 20)?;
        kill_program(pid, &mut front)?;
        bed.say(&["prune", "j", "--all", "--anyway"])?;
        // Without an image --resume starts it afresh: in the log that it had.
        let mut command = bed.run_command("j", &["--tier", &tier], &["./stream", "put", "3"])?;
        bed.output(
            {
                command.env("LD_LIBRARY_PATH", bed.kit().bin());
                command
            },
            PATIENCE,
        )?
        .success()?;
        let check = format!("HOLDFAST_STREAMS={} ./stream check", folder.display());
        let checked = bed.output(shell(bed, &check), PATIENCE)?.success()?.stdout;
        ensure!(checked.starts_with("right ") && !bed.text("out").contains("wrong"), "{checked}");
        Ok(())
    });
}

#[test]
fn images_and_folders_on_disk_are_refused_by_name() {
    each_user(|bed| {
        let disk = format!("log={}", bed.work().join("tier").display());
        bed.say(&["run", "--name", "j", "--", "true"])?.success()?;
        for (words, code, says) in [
            (&["run", "--name", "k", "--tier", &disk, "--", "true"][..], 64, "it is not in memory"),
            (
                &["run", "--tier", "log=/dev/shm/x", "--tier", "log=/dev/shm/y", "--", "true"],
                64,
                "one log tier",
            ),
            (
                &["run", "--tier", "log=/dev/shm/x,keep=2", "--", "true"],
                64,
                "images, which do not go into a log",
            ),
            (&["run", "--tier", "log=/dev/shm/x,max=1K", "--", "true"], 64, "a log has 64K to 16T"),
            (&["run", "--tier", "log=x", "--", "true"], 64, "begin with /"),
            (&["run", "--tier", "log=/nosuch/x", "--", "true"], 64, "the folder above it is not there"),
            (&["run", "--tier", "memory=/nosuch/x", "--", "true"], 0, "the folder above it is not there"),
            (&["restart", "--tier", "log=/dev/shm/x", "j"], 64, "no images"),
            (&["sync", "--tier", "log=/dev/shm/x", "j"], 64, "no images"),
            (&["fetch", "--tier", "log=/dev/shm/x", "j"], 64, "no images"),
            (&["list", "--tier", "log=/dev/shm/x"], 64, "no images"),
            (&["verify", "--tier", "log=/dev/shm/x", "j"], 64, "no images"),
        ] {
            let ended = bed.say(words)?;
            ensure!(
                ended.code() == code && ended.stderr.contains(says),
                "{words:?}: {} {}",
                ended.code(),
                ended.stderr
            );
        }
        ensure!(!bed.job("k").exists(), "nothing is left of what was refused");
        Ok(())
    });
}

#[test]
fn a_log_that_was_cut_is_named_and_a_second_writer_is_refused() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        line(bed, "./stream put 5")?;
        let mut first = super::nvstream::producer(bed)?;
        bed.until("the writer", PATIENCE, || {
            line(bed, &format!("{} streams", bed.kit().holdfast().display()))
                .is_ok_and(|said| said.contains("open"))
        })?;
        let mut second = shell(bed, "./stream put");
        with_logs(bed, &mut second);
        let second = bed.output(second, PATIENCE)?;
        ensure!(second.code() == 1 && second.stdout.contains("another process writes"), "{}", second.stdout);
        first.kill()?;
        wait(&mut first, PATIENCE)?;
        line(bed, "truncate -s 500K logs/sim/0")?;
        let mut cat = shell(bed, &format!("{} cat sim step", bed.kit().holdfast().display()));
        with_logs(bed, &mut cat);
        let ended = bed.output(cat, PATIENCE)?;
        ensure!(ended.code() == 65 && ended.stderr.contains("and should have"), "{}", ended.stderr);
        let mut put = shell(bed, "./stream put 7");
        with_logs(bed, &mut put);
        let ended = bed.output(put, PATIENCE)?;
        ensure!(ended.code() == 1 && ended.stdout.contains("and should have"), "{}", ended.stdout);
        Ok(())
    });
}

#[test]
fn a_file_system_that_is_full_fails_the_put_and_no_version_before_it() {
    // Who mounts is root; the writer is not necessarily.
    as_user_by_root(User::Root, |bed| {
        build(bed, "cc -std=gnu11", "stream.c", "nvstream")?;
        for user in ["", "setpriv --reuid 1000 --regid 1000 --clear-groups"] {
            let script = format!(
                "mkdir -p small && mount -t tmpfs -o size=900k,mode=0777 none small && cp stream small && \
                 chmod 755 small/stream && cd small && export HOLDFAST_STREAMS=$PWD/logs HOLDFAST_STREAM_SIZE=4M && \
                 {{ {user} ./stream put; {user} ./stream check; }}"
            );
            let mut command = shell(bed, &format!("exec unshare -m sh -c '{script}'"));
            let ended = bed.output(
                {
                    command.env("LD_LIBRARY_PATH", bed.kit().bin());
                    command
                },
                PATIENCE,
            )?;
            let said = ended.stdout;
            ensure!(said.contains("has no room for the log"), "{said} {}", ended.stderr);
            ensure!(said.lines().last().is_some_and(|last| last.starts_with("right 1 to ")), "{said}");
        }
        Ok(())
    });
}
