//! What cannot be brought back is refused by name, at `run` or at `checkpoint`, and the program is left alone.
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used)]

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::bed::{Bed, User, am_root, shell_code, wait};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const REFUSED: i32 = 69;

/// A checkpoint of `refused KIND` must fail with 69 and say all of `words`; the program then ends as if nothing was.
fn refuse(kind: &str, words: &[&str]) {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        let result = (|| -> Result<()> {
            let app = App::program("refused", &[kind]);
            let mut front = bed.run_command("r", &[], &app.words())?.spawn()?;
            if bed.wait_live("r", &mut front)?.is_none() && shell_code(front.wait()?) == 77 {
                println!("{kind} is not available here");
                return Ok(());
            }
            bed.until("the first line", Duration::from_secs(10), || bed.text("out").contains("round 1"))?;
            let ended = bed.say(&["checkpoint", "r"])?;
            ensure!(ended.code() == REFUSED, "status {}: {}", ended.code(), ended.stderr);
            for word in words {
                ensure!(ended.stderr.contains(word), "{word:?} is not in {:?}", ended.stderr);
            }
            ensure!(bed.images("r").is_empty(), "an image was made");
            let code = shell_code(wait(&mut front, Duration::from_secs(20))?);
            ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", bed.text("out"));
            ensure!(bed.text("out").lines().count() == 16, "lines are missing: {}", bed.text("out"));
            bed.check_clean("r")
        })();
        if let Err(error) = result {
            panic!("{kind} as {user:?}: {error:#}");
        }
    }
}

#[test]
fn tcp_connection() {
    refuse("tcp", &["fd 9", "socket", "127.0.0.1"]);
}

#[test]
fn udp_socket() {
    refuse("udp", &["fd 9", "socket"]);
}

#[test]
fn listening_unix_socket() {
    refuse("unix", &["fd 9", "socket"]);
}

#[test]
fn inotify() {
    refuse("inotify", &["fd 9", "inotify"]);
}

#[test]
fn io_uring() {
    refuse("io_uring", &["fd 9", "io_uring"]);
}

#[test]
fn child_process() {
    refuse("child", &["process"]);
}

#[test]
fn main_thread_has_left() {
    refuse("leaderless", &["main thread"]);
}

/// Runs `holdfast run -- PROGRAM`, which must fail with 69, say `words`, and not start the program.
fn refuse_to_run(bed: &Bed, program: &str, words: &[&str]) -> Result<()> {
    let ended =
        bed.output(bed.holdfast(&["run", "--name", "s", "--", program, "1"]), Duration::from_secs(20))?;
    ensure!(ended.code() == REFUSED, "status {}: {}{}", ended.code(), ended.stdout, ended.stderr);
    ensure!(ended.stdout.is_empty(), "the program has run: {}", ended.stdout);
    ensure!(ended.stderr.contains(program), "the program is not named: {}", ended.stderr);
    for word in words {
        ensure!(ended.stderr.contains(word), "{word:?} is not in {:?}", ended.stderr);
    }
    Ok(())
}

#[test]
fn static_program() {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let program = bed.kit().program("plain-static").to_string_lossy().into_owned();
    refuse_to_run(&bed, &program, &["static"]).expect("refusal");
}

#[test]
fn setuid_program() {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let copy = bed.dir().join("setuid");
    fs::copy(bed.kit().program("plain"), &copy).expect("copy");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("mode");
    refuse_to_run(&bed, &copy.to_string_lossy(), &["set-user-id"]).expect("refusal");
}

#[test]
fn missing_and_unusable_programs() {
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let code = |program: &str| bed.say(&["run", "--", program]).expect("run").code();
    assert_eq!(code("/no/such/program"), 127);
    assert_eq!(code("no-such-program-anywhere"), 127);
    assert_eq!(code("/etc/passwd"), 126);
}

/// A changed library or data file is named, and nothing is started.
#[test]
fn changed_file_at_restart() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let copy = bed.work().join("program");
    fs::copy(bed.kit().program("plain"), &copy)?;
    let mut front = bed.run_command("c", &[], &[&copy.to_string_lossy(), "200", "20"])?.spawn()?;
    let pid = bed.wait_live("c", &mut front)?.context("a pid")?;
    bed.say(&["checkpoint", "c"])?.success()?;
    holdfast_tests::chain::kill_program(pid, &mut front)?;
    fs::remove_file(&copy)?;
    fs::copy(bed.kit().program("follow"), &copy)?;
    let ended = bed.say(&["restart", "c"])?;
    ensure!(ended.code() == REFUSED, "status {}: {}", ended.code(), ended.stderr);
    ensure!(ended.stderr.contains(&*copy.to_string_lossy()), "the file is not named: {}", ended.stderr);
    fs::copy(bed.kit().program("plain"), &copy)?;
    bed.check_clean("c")
}

/// Somebody else's store is not touched.
#[test]
fn store_of_another_user() {
    if !am_root() {
        return println!("not run: this part needs root");
    }
    let bed = Bed::new(User::Ordinary).expect("a bed");
    fs::set_permissions(bed.store(), fs::Permissions::from_mode(0o777)).expect("mode");
    let ended = bed.say(&["list"]).expect("list");
    assert_eq!(ended.code(), 77, "{}", ended.stderr);
    assert!(ended.stderr.contains(&*bed.store().to_string_lossy()), "{}", ended.stderr);
}
