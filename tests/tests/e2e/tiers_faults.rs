//! Lower tiers that are down, silent, full, refuse, or are only read: the program and its checkpoints take no notice,
//! what is wrong is said by every listing, and nothing is lost when they are well again.

use super::plain_job::{
    JOB, command, ends_right, fails, listed, lose_the_host, none_is_left, right_output, started, until_tier,
};
use anyhow::{Context, Result, ensure};
use holdfast_tests::object_server::{Mood, ObjectServer};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user, shell_code, wait};
use holdfast_tests::{full, processes};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;

const BUCKET: &str = "s3://bucket/images";

/// A command that knows the server.
fn knowing(mut command: Command, server: &ObjectServer) -> Command {
    command.envs(server.environment()).env("HOLDFAST_REMOTE_TIMEOUT", "1");
    command
}

/// `holdfast ARGUMENTS…` with the server known.
fn say(bed: &Bed, server: &ObjectServer, arguments: &[&str]) -> Result<holdfast_tests::sandbox::Ended> {
    bed.output(knowing(bed.holdfast(arguments), server), PATIENCE)
}

/// A running program, and its pid.
fn start(bed: &Bed, server: &ObjectServer, options: &[&str]) -> Result<(Child, i32)> {
    started(bed, JOB, &mut knowing(command(bed, JOB, options)?, server))
}

fn restarts(bed: &Bed, server: &ObjectServer, options: &[&str]) -> Result<()> {
    // It is well by then, and may be slow on a busy machine.
    ends_right(bed, bed.restart_command(JOB, options)?.envs(server.environment()))
}

#[test]
fn a_server_that_is_down_full_silent_or_refuses_harms_nothing() {
    each_user(|bed| {
        let server = ObjectServer::start()?;
        server.set(Mood::Down);
        let (mut front, pid) = start(bed, &server, &["--keep", "1", "--tier", BUCKET])?;
        let moods = [
            (Mood::Down, "not reachable"),
            (Mood::Full, "no space left"),
            (Mood::Silent, "not reachable"),
            (Mood::Refusing, "403 AccessDenied"),
        ];
        for (image, (mood, why)) in (1_u64..).zip(moods) {
            server.set(mood);
            bed.say(&["checkpoint", JOB])?.success()?;
            // It is tried again now, and fails as it does now; nobody is kept waiting.
            let failed = say(bed, &server, &["sync", JOB])?;
            ensure!(failed.code() == 73 && failed.stderr.contains(why), "{mood:?}: {}", failed.stderr);
            let waiting: Vec<u64> = (1..=image).collect();
            until_tier(bed, "what waits", |tier| {
                tier["waiting"] == serde_json::json!(waiting)
                    && tier["error"].as_str().is_some_and(|error| error.contains(why))
            })?;
            ensure!(bed.images(JOB) == waiting, "--keep 1 leaves what waits: {:?}", bed.images(JOB));
            let text = bed.say(&["list", JOB])?.success()?.stdout;
            ensure!(text.contains(&format!(", {image} wait: ")) && text.contains(why), "{text}");
            ensure!(processes::runs(pid), "the program runs on");
        }
        let told = bed.text("err").matches("warning: tier s3://").count();
        ensure!(told == 1, "said once: {}", bed.text("err"));
        watched(bed, "4 images wait for s3://bucket/images (")?;
        server.set(Mood::Well);
        say(bed, &server, &["sync", JOB, "--wait"])?.success()?;
        until_tier(bed, "all images", |tier| {
            tier["versions"] == serde_json::json!([1, 2, 3, 4]) && tier["error"].is_null()
        })?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "the next image", |tier| tier["waiting"] == serde_json::json!([]))?;
        lose_the_host(bed, &mut front, pid)?;
        restarts(bed, &server, &["--tier", BUCKET])
    });
}

/// At 10 kB/s, then at 1 MB/s: nobody waits for it, and what is under way is seen.
#[test]
fn a_server_that_is_slow_keeps_nobody_waiting() {
    each_user(|bed| {
        let server = ObjectServer::start()?;
        server.set(Mood::Slow(10_000));
        let options = ["--compress", "none", "--keep", "1", "--tier", BUCKET];
        let mut run = knowing(command(bed, JOB, &options)?, &server);
        let (mut front, pid) = started(bed, JOB, run.env("HOLDFAST_REMOTE_TIMEOUT", "60"))?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "the copy that is under way", |tier| tier["copying"]["total"].as_u64() > Some(0))?;
        watched(bed, "copying image 1 to s3://bucket/images")?;
        for image in 2..=3 {
            bed.say(&["checkpoint", JOB])?.success()?;
            ensure!(bed.images(JOB).contains(&image), "{:?}", bed.images(JOB));
        }
        ensure!(bed.images(JOB).contains(&1), "--keep 1 leaves what is under way: {:?}", bed.images(JOB));
        server.set(Mood::Slow(1_000_000));
        until_tier(bed, "all images", |tier| tier["versions"] == serde_json::json!([1, 2, 3]))?;
        server.set(Mood::Well);
        lose_the_host(bed, &mut front, pid)?;
        restarts(bed, &server, &["--tier", BUCKET])
    });
}

/// Ten minutes of the real clock, with an image each minute; then all images get there by themselves.
#[test]
fn ten_minutes_without_the_server() {
    if !full() {
        return println!("not run: HOLDFAST_TEST_FULL=1");
    }
    each_user(|bed| {
        let server = ObjectServer::start()?;
        server.set(Mood::Down);
        let (mut front, pid) = start(bed, &server, &["--keep", "1", "--tier", BUCKET])?;
        let all: Vec<u64> = (1..=10).collect();
        for image in &all {
            bed.say(&["checkpoint", JOB])?.success()?;
            until_tier(bed, "what waits", |tier| {
                tier["waiting"] == serde_json::json!(all[..usize::try_from(*image).unwrap_or(0)])
                    && tier["error"].is_string()
            })?;
            sleep(Duration::from_secs(60));
        }
        ensure!(processes::runs(pid) && bed.images(JOB) == all, "{:?}", bed.images(JOB));
        server.set(Mood::Well);
        // It is tried again within five minutes and a quarter.
        let arrived = || listed(bed).is_ok_and(|row| row["tiers"][0]["versions"] == serde_json::json!(all));
        bed.until("all images", Duration::from_secs(420), arrived)?;
        lose_the_host(bed, &mut front, pid)?;
        restarts(bed, &server, &["--tier", BUCKET])
    });
}

/// Waits until `holdfast watch` says something.
fn watched(bed: &Bed, what: &str) -> Result<()> {
    let mut watch = bed.holdfast(&["watch", JOB]).stdout(bed.create("watch")?).spawn()?;
    let said = bed.until("a line of watch", PATIENCE, || bed.text("watch").contains(what));
    watch.kill()?;
    watch.wait()?;
    said.with_context(|| bed.text("watch"))
}

#[test]
fn a_program_that_ends_waits_for_no_tier_and_sync_does_the_rest() {
    each_user(|bed| {
        let server = ObjectServer::start()?;
        server.set(Mood::Refusing);
        let (mut front, _) = start(bed, &server, &["--tier", BUCKET])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        // That much is written down: the front reads it when the program ends.
        until_tier(bed, "an image that waits, and why", |tier| {
            tier["error"].is_string() && tier["waiting"] == serde_json::json!([1])
        })?;
        bed.may_end()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out") == right_output(), "status {code}: {}", bed.text("out"));
        let said = bed.text("err");
        ensure!(said.contains("image 1 of job j is not on tier s3://bucket/images yet"), "{said}");
        ensure!(said.contains("403") && said.contains("`holdfast sync j`"), "{said}");
        none_is_left(bed)?;
        server.set(Mood::Well);
        say(bed, &server, &["sync", JOB])?.success()?;
        // An image of little memory is three objects, in an order in which the last makes it one; and the run is over.
        let puts = server.puts();
        let files: Vec<&str> = puts.iter().filter_map(|key| key.rsplit('/').next()).collect();
        let image: Vec<&str> = files.iter().filter(|file| !file.starts_with(".holdfast")).copied().collect();
        let names = ["segment-000001-000", "job-000001", "manifest-000001", "end-000001"];
        ensure!(image == names, "{puts:?}");
        bed.check_clean(JOB)
    });
}

/// Somebody who may only read, or who has typed a name wrongly, leaves nothing there.
#[test]
fn to_read_a_tier_writes_nothing_there() {
    each_user(|bed| {
        let server = ObjectServer::start()?;
        let text = say(bed, &server, &["list", "--tier", BUCKET])?.success()?.stdout;
        ensure!(text.contains("no jobs on tier") && server.keys().is_empty(), "{text} {:?}", server.keys());
        let (mut front, pid) = start(bed, &server, &["--tier", BUCKET])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        say(bed, &server, &["sync", JOB, "--wait"])?.success()?;
        let puts = server.puts();
        lose_the_host(bed, &mut front, pid)?;
        for words in [
            &["list", "--tier", BUCKET, JOB][..],
            &["verify", JOB, "--tier", BUCKET],
            &["export", JOB, "j.img", "--tier", BUCKET],
            &["fetch", JOB, "--tier", BUCKET],
        ] {
            say(bed, &server, words)?.success().with_context(|| format!("{words:?}"))?;
        }
        ensure!(server.puts() == puts, "{:?}", server.puts());
        let new = bed.work().join("new");
        let address = format!("dir={}", new.display());
        for words in [&["list", "--tier", &address][..], &["restart", "nothing", "--tier", &address]] {
            fails(&bed.say(words)?, 64, "the folder is not there")?;
        }
        ensure!(!new.exists(), "a folder was made");
        Ok(())
    });
}

#[test]
fn a_tier_that_is_only_read_is_listed_and_restarted_from_and_never_written() {
    each_user(|bed| {
        // Two images in a bucket; then the same is what a web server has.
        let server = ObjectServer::start()?;
        let (mut front, pid) = start(bed, &server, &["--tier", BUCKET])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.say(&["checkpoint", JOB])?.success()?;
        say(bed, &server, &["sync", JOB, "--wait"])?.success()?;
        lose_the_host(bed, &mut front, pid)?;
        fs::remove_file(bed.stay_file())?;
        let web = format!("http://{}/bucket/images", server.host());
        let before = server.keys();
        let text = bed.say(&["list", "--tier", &web, JOB])?.success()?.stdout;
        ensure!(text.contains("1 2") && text.contains("plain"), "{text}");
        let mut restarting = bed.restart_command(JOB, &["--tier", &web])?;
        let mut front = restarting.env("HOLDFAST_TEST_STAY", bed.stay_file()).spawn()?;
        let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "what it has", |tier| {
            tier["versions"] == serde_json::json!([1, 2])
                && tier["read_only"].is_string()
                && tier["waiting"] == serde_json::json!([])
                && tier["error"].is_null()
        })?;
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(text.contains(", read-only: it is a web server"), "{text}");
        bed.say(&["sync", JOB])?.success()?;
        bed.until("a word", PATIENCE, || bed.text("restart.err").contains(" is read-only: "))?;
        let said = bed.text("restart.err").matches(" is read-only: ").count();
        ensure!(said == 1, "{}", bed.text("restart.err"));
        ensure!(server.keys() == before, "nothing was written");
        bed.may_end()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out") == right_output(), "status {code}: {pid} {}", bed.text("out"));
        Ok(())
    });
}

#[test]
fn a_folder_without_write_permission_is_only_read() {
    // Root may write everywhere.
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    read_only_folder(&bed).unwrap();
}

fn read_only_folder(bed: &Bed) -> Result<()> {
    let server = ObjectServer::start()?;
    let folder = bed.work().join("pfs");
    let address = format!("dir={}", folder.display());
    let (mut front, pid) = start(bed, &server, &["--tier", &address])?;
    bed.say(&["checkpoint", JOB])?.success()?;
    say(bed, &server, &["sync", JOB, "--wait"])?.success()?;
    lose_the_host(bed, &mut front, pid)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555))?;
    restarts(bed, &server, &["--tier", &address])?;
    let said = bed.text("restart.err");
    ensure!(said.contains(" is read-only: this user may not write to the folder"), "{said}");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
