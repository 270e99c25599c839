//! `holdfast check` says beforehand what a checkpoint would be refused for, in the same words, and leaves the program
//! alone.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, Results, reference};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, am_root, shell_code, wait};
use holdfast_tests::segments::Outside;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::time::Duration;

const NOT_FOUND: i32 = 66;
const REFUSED: i32 = 69;
const PERMISSION: i32 = 77;

/// As both users, where there are both.
fn as_both(test: impl Fn(&Bed) -> Result<()>) {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        if let Err(error) = test(&bed) {
            panic!("as {user:?}: {error:#}");
        }
    }
}

/// The job's program once it has printed its first line; `None`: what it holds is not available here.
fn start(bed: &Bed, job: &str, app: &App) -> Result<Option<(Child, i32)>> {
    let mut front = bed.run_command(job, &[], &app.words())?.spawn()?;
    let pid = bed.wait_live(job, &mut front)?;
    if pid.is_some() {
        bed.until("the first line", PATIENCE, || bed.text("out").contains('\n'))?;
    }
    // It may have been seen before it ends for that.
    match pid.filter(|_| !bed.text("out").starts_with("not here")) {
        Some(pid) => Ok(Some((front, pid))),
        None => {
            ensure!(shell_code(wait(&mut front, PATIENCE)?) == 77, "it has ended: {}", bed.text("out"));
            Ok(None)
        }
    }
}

/// The verdict, which is the last line.
fn verdict(ended: &Ended) -> &str {
    ended.stdout.lines().last().unwrap_or_default()
}

fn json(ended: &Ended) -> Result<Value> {
    serde_json::from_str(&ended.stdout).with_context(|| format!("{}{}", ended.stdout, ended.stderr))
}

fn good(bed: &Bed, job: &str) -> Result<()> {
    let ended = bed.say(&["check", job])?;
    ensure!(ended.code() == 0, "status {}: {}{}", ended.code(), ended.stdout, ended.stderr);
    let size = ended.stdout.starts_with("the first image: ") || ended.stdout.starts_with("the next image: ");
    ensure!(size && ended.stdout.lines().count() == 2, "more than size and verdict: {}", ended.stdout);
    ensure!(verdict(&ended).ends_with("a checkpoint could be taken now"), "{}", ended.stdout);
    Ok(())
}

/// Pipes and sockets with data in flight: nothing of that is taken out, however often they are looked at.
fn look_often(program: &str) {
    let app = App::program(program, &[]);
    let undisturbed = reference(&app).expect("the undisturbed run");
    as_both(|bed| {
        let (mut front, pid) = start(bed, "g", &app)?.context("a program")?;
        for _ in 0..20 {
            if !processes::runs(pid) {
                break;
            }
            match good(bed, "g") {
                Err(error) if processes::runs(pid) => return Err(error),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = shell_code(wait(&mut front, PATIENCE)?);
        Results::read(&app, bed, code)?.check(&undisturbed.results)?;
        bed.check_clean("g")
    });
}

#[test]
fn pipes_and_socket_pairs_go_on_undisturbed() {
    look_often("plumbing");
}

#[test]
fn sockets_go_on_undisturbed() {
    look_often("sockets");
}

#[test]
fn datagrams_go_on_undisturbed() {
    look_often("datagrams");
}

#[test]
fn messages_go_on_undisturbed() {
    look_often("messages");
}

#[test]
fn memory_without_a_name_goes_on_undisturbed() {
    look_often("memfds");
}

#[test]
fn segments_go_on_undisturbed() {
    look_often("segments");
}

#[test]
fn segments_of_several_processes_go_on_undisturbed() {
    look_often("tree_segments");
}

#[test]
fn named_pipes_go_on_undisturbed() {
    look_often("fifos");
}

/// Before a checkpoint and after it, on a line and in JSON, alone and in doctor's report.
#[test]
fn a_job_is_found_by_name_and_by_pid() {
    as_both(|bed| {
        let (mut front, pid) =
            start(bed, "p", &App::program("plain", &["600", "50"]))?.context("a program")?;
        good(bed, "p")?;
        good(bed, &pid.to_string())?;
        bed.say(&["checkpoint", "p"])?.success()?;
        good(bed, "p")?;
        let value = json(&bed.say(&["check", "--json", "p"])?.success()?)?;
        ensure!(value["checkpointable"] == true && value["job"] == "p" && value["pid"] == pid, "{value}");
        ensure!(value["findings"].as_array().is_some_and(Vec::is_empty), "{value}");
        let doctor = bed.say(&["doctor", "--job", "p"])?.success()?;
        ensure!(verdict(&doctor).ends_with("a checkpoint could be taken now"), "{}", doctor.stdout);
        let doctor = json(&bed.say(&["doctor", "--json", "--job", "p"])?.success()?)?;
        let same = ["job", "pid", "comm", "checkpointable", "findings", "left_out"];
        let same = same.iter().all(|&field| doctor["program"][field] == value[field]);
        ensure!(same && doctor["host"].is_array(), "{doctor}");
        processes::signal(pid, "TERM");
        wait(&mut front, PATIENCE)?;
        let socket = bed.job("p").join("agent.sock");
        bed.until("the agent's end", PATIENCE, || !socket.exists())?;
        // The job is there, but runs no more.
        let ended = bed.say(&["check", "p"])?;
        ensure!(ended.code() == NOT_FOUND, "status {}: {}", ended.code(), ended.stderr);
        bed.check_clean("p")
    });
}

/// What `holdfast checkpoint` is refused for is what `holdfast check` has found: line by line.
fn agree(kind: &str, subject: &str, number: Option<(&str, i64)>) {
    agree_with(&[kind, "25"], subject, number);
}

/// The same with all its arguments.
fn agree_with(arguments: &[&str], subject: &str, number: Option<(&str, i64)>) {
    let kind = arguments[0];
    let app = App::program("refused", arguments);
    as_both(|bed| {
        let Some((mut front, pid)) = start(bed, "r", &app)? else {
            println!("{kind} is not available here");
            return Ok(());
        };
        let checked = bed.say(&["check", "r"])?;
        let value = json(&bed.say(&["check", "r", "--json"])?)?;
        let refused = bed.say(&["checkpoint", "r"])?;
        ensure!(checked.code() == REFUSED, "status {}: {}", checked.code(), checked.stdout);
        ensure!(refused.code() == REFUSED, "status {}: {}", refused.code(), refused.stderr);
        ensure!(checked.stderr.is_empty(), "{}", checked.stderr);
        let reasons: Vec<&str> =
            refused.stderr.lines().filter_map(|line| line.strip_prefix("holdfast: ")).collect();
        let findings: Vec<&str> = checked.stdout.lines().take(reasons.len()).collect();
        ensure!(checked.stdout.lines().count() == reasons.len() + 1, "{}{}", checked.stdout, refused.stderr);
        for (finding, reason) in findings.iter().zip(&reasons) {
            ensure!(finding.ends_with(reason), "check: {finding:?}, checkpoint: {reason:?}");
            ensure!(finding.starts_with("process "), "the process is not named: {finding:?}");
        }
        ensure!(verdict(&checked).contains("would be refused"), "{}", checked.stdout);
        let one = &value["findings"][0];
        ensure!(value["checkpointable"] == false && one["subject"]["kind"] == subject, "{value}");
        ensure!(number.is_none_or(|(key, number)| one["subject"][key] == number), "{value}");
        ensure!(one["pid"] == pid || kind == "stranger", "{value}");
        // It goes on as if nothing had been.
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", bed.text("out"));
        let rounds: usize = arguments[1].parse()?;
        ensure!(bed.text("out").lines().count() == rounds + 1, "lines are missing: {}", bed.text("out"));
        bed.check_clean("r")
    });
}

#[test]
fn tcp_connection_to_the_outside() {
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port().to_string();
    agree_with(&["tcp", "25", &port], "descriptor", Some(("fd", 9)));
}

/// With `--outside close` it is no obstacle.
#[test]
fn tcp_connection_that_may_be_lost() {
    as_both(|bed| {
        let outside = TcpListener::bind("127.0.0.1:0")?;
        let port = outside.local_addr()?.port().to_string();
        let app = App::program("refused", &["tcp", "25", &port]);
        let mut front = bed.run_command("l", &["--outside", "close"], &app.words())?.spawn()?;
        bed.wait_live("l", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains('\n'))?;
        good(bed, "l")?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "status {code}: {}", bed.text("out"));
        bed.check_clean("l")
    });
}

#[test]
fn unix_connection_to_the_outside() {
    let folder = Bed::new(User::Ordinary).expect("a bed");
    let path = folder.dir().join("outside");
    let _outside = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    agree_with(&["unix", "25", &path.to_string_lossy()], "descriptor", Some(("fd", 9)));
}

#[test]
fn packet_socket() {
    agree("packet", "descriptor", Some(("fd", 9)));
}

#[test]
fn inotify_with_unread_events() {
    // The agent waits a few seconds for them to be read.
    agree_with(&["inotify", "70"], "descriptor", Some(("fd", 9)));
}

#[test]
fn io_uring() {
    agree("io_uring", "descriptor", Some(("fd", 9)));
}

#[test]
fn child_without_libholdfast() {
    // The agent waits a few seconds for it to speak.
    agree_with(&["stranger", "70"], "process", None);
}

#[test]
fn segment_that_is_attached_outside() {
    let outside = Outside::start(1).unwrap();
    agree_with(&["segment", "70", outside.key()], "mapping", None);
}

#[test]
fn shared_mapping_of_a_kernel_object() {
    agree("mapping", "mapping", None);
}

#[test]
fn terminal_with_unread_output() {
    agree_with(&["pty", "70"], "descriptor", Some(("fd", 9)));
}

#[test]
fn memfd_with_too_much_content() {
    agree("memfd", "descriptor", Some(("fd", 9)));
}

#[test]
fn shared_file_too_large_for_a_stop() {
    agree("large", "mapping", None);
}

#[test]
fn guard_in_shared_memory() {
    agree("guard", "mapping", None);
}

/// What the agent itself has in the program for a moment, and the frozen copy, are no findings.
#[test]
fn a_checkpoint_under_way_is_not_in_the_way() {
    as_both(|bed| {
        let app = App::program("ticker", &["48", "4", "120"]);
        let words = app.words();
        let mut front = bed.run_command("f", &["--engine", "fork", "--rate", "24M"], &words)?.spawn()?;
        let pid = bed.wait_live("f", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains("ready"))?;
        for _ in 0..3 {
            let mut checkpoint = bed.holdfast(&["checkpoint", "f"]).spawn()?;
            while checkpoint.try_wait()?.is_none() {
                good(bed, "f")?;
                std::thread::sleep(Duration::from_millis(2));
            }
            ensure!(wait(&mut checkpoint, Duration::ZERO)?.success(), "the checkpoint failed");
        }
        processes::signal(pid, "TERM");
        wait(&mut front, PATIENCE)?;
        bed.check_clean("f")
    });
}

/// A child of a job's program is part of the job: asked for by its id, the job answers.
#[test]
fn a_child_belongs_to_the_job() {
    as_both(|bed| {
        let app = App::real("sh", &["/bin/sh", "-c", "echo; sleep 20 | sleep 20; true"]);
        let (mut front, pid) = start(bed, "c", &app)?.context("a program")?;
        let children = || processes::children(pid);
        bed.until("two children", PATIENCE, || children().len() == 2)?;
        let child = children()[0];
        bed.until("their hello", PATIENCE, || good(bed, "c").is_ok())?;
        let of_child = json(&bed.say(&["check", &child.to_string(), "--json"])?)?;
        ensure!(of_child["job"] == "c" && of_child["pid"] == pid, "{of_child}");
        ensure!(of_child["findings"].as_array().is_some_and(Vec::is_empty), "{of_child}");
        children().into_iter().for_each(|child| processes::signal(child, "TERM"));
        wait(&mut front, PATIENCE)?;
        bed.check_clean("c")
    });
}

/// A pipe that the program was started with leads outside and is no obstacle: the agent knows.
/// A child whose libraries take half a second before libholdfast's turn comes.
#[test]
fn a_child_that_has_not_registered_yet_is_awaited() {
    const SLOW: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void slow(void)
{
    if (getenv("SLOW") == NULL) return;
    close(open("begun", O_CREAT | O_WRONLY, 0600));
    usleep(500000);
}
"#;
    let script = "echo ready; for i in 1 2 3; do SLOW=1 LD_PRELOAD=\"$LD_PRELOAD:$PWD/slow.so\" \
                  sh -c 'unset SLOW; until [ -e go ]; do sleep 0.1; done'; done";
    let app = App::real("slow", &["/bin/bash", "-c", script]).prepared("gcc -shared -fPIC -o slow.so slow.c");
    as_both(|bed| {
        fs::write(bed.work().join("slow.c"), SLOW)?;
        app.prepare(bed)?;
        let (mut front, _) = start(bed, "w", &app)?.context("a program")?;
        bed.until("the child", PATIENCE, || bed.work().join("begun").exists())?;
        good(bed, "w")?;
        bed.create("go")?;
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == 0, "{}", bed.text("out"));
        Ok(())
    });
}

#[test]
fn what_the_program_was_started_with_is_accepted() {
    as_both(|bed| {
        let program = bed.kit().program("plain");
        let mut command = bed.command("/bin/sh".as_ref());
        command.args(["-c", r#"sleep 60 | "$1" run --name h -- "$2" 600 50 7<&0 </dev/null"#, "sh"]);
        command.arg(bed.kit().holdfast()).arg(&program).stdout(bed.create("out")?);
        let mut shell = command.spawn()?;
        let pid = bed.wait_live("h", &mut shell)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains('\n'))?;
        let target = std::fs::read_link(format!("/proc/{pid}/fd/7"))?;
        ensure!(target.to_string_lossy().starts_with("pipe:"), "fd 7 is {}", target.display());
        good(bed, "h")?;
        processes::kill_all(bed.dir());
        wait(&mut shell, PATIENCE).map(drop)
    });
}

/// A program outside Holdfast: that is what is wrong with it first of all, and everything else is found too.
#[test]
fn a_program_that_was_not_started_under_holdfast() {
    as_both(|bed| {
        let mut command = bed.command(&bed.kit().program("refused"));
        let mut program = command.args(["inotify", "10"]).stdout(bed.create("out")?).spawn()?;
        bed.until("the first line", PATIENCE, || bed.text("out").contains('\n'))?;
        let checked = bed.say(&["check", &program.id().to_string()])?;
        ensure!(checked.code() == REFUSED, "status {}: {}", checked.code(), checked.stderr);
        ensure!(checked.stdout.contains("libholdfast is not loaded"), "{}", checked.stdout);
        ensure!(checked.stdout.contains("(refused): fd 9 (anon_inode:inotify): "), "{}", checked.stdout);
        let code = shell_code(wait(&mut program, PATIENCE)?);
        ensure!(code == 0 && bed.text("out").lines().count() == 11, "status {code}: {}", bed.text("out"));
        bed.check_clean("none")
    });
}

#[test]
fn what_is_not_there_is_named() {
    as_both(|bed| {
        for unknown in ["nobody", "2147483647", "0"] {
            for arguments in [&["check", unknown][..], &["doctor", "--job", unknown]] {
                let ended = bed.say(arguments)?;
                ensure!(ended.code() == NOT_FOUND, "{unknown}: {}: {}", ended.code(), ended.stderr);
                ensure!(ended.stderr.contains(unknown), "{unknown} is not named: {}", ended.stderr);
                ensure!(ended.stderr.contains("holdfast list"), "no remedy: {}", ended.stderr);
            }
        }
        Ok(())
    });
}

#[test]
fn a_process_of_another_user_is_not_looked_at() {
    if !am_root() {
        return println!("not run: this part needs root");
    }
    let bed = Bed::new(User::Ordinary).expect("a bed");
    let mut sleeper = std::process::Command::new("sleep").arg("30").stdin(Stdio::null()).spawn().unwrap();
    let ended = bed.say(&["check", &sleeper.id().to_string()]).expect("check");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(ended.code(), PERMISSION, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("belongs to user 0"), "{}", ended.stderr);
}
