//! What a user is told: the words of messages that were not understood before, and the exit codes beside them.
//! (What is refused by name at a checkpoint is in `refusals.rs` and `check.rs`.)

use crate::plain_job;
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, am_root, each_user, wait};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};

fn says(ended: &Ended, code: i32, line: &str) -> Result<()> {
    let found = ended.stderr.lines().any(|found| found == format!("holdfast: {line}"));
    ensure!(found && ended.code() == code, "status {}, not {code}, {line:?}: {}", ended.code(), ended.stderr);
    Ok(())
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
    plain_job::as_user(|bed| {
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
    plain_job::as_user(|bed| {
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
    plain_job::as_user(|bed| {
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
    plain_job::as_user(|bed| {
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
    plain_job::as_user(|bed| {
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

#[test]
fn a_file_that_is_missing_at_a_restart_is_named() {
    plain_job::as_user(|bed| {
        fs::write(bed.work().join("data"), "1\n2\n3\n")?;
        let program = "data = open('data')\nprint(data.readline(), flush=True)\nimport time\ntime.sleep(600)";
        let mut front =
            bed.run_command("j", &["--save-files=none"], &["/usr/bin/python3", "-c", program])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("a line", PATIENCE, || !bed.text("out").is_empty())?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        fs::remove_file(bed.work().join("data"))?;
        let line = format!(
            "{}: the program has this file, and it is gone; put it back, or give its new path (restart \
             --map OLD=NEW)",
            bed.work().join("data").display()
        );
        says(&bed.say(&["restart", "j"])?, 69, &line)
    });
}

#[test]
fn a_program_that_holdfast_has_not_started_is_told_so() {
    plain_job::as_user(|bed| {
        let mut alone = bed.command(Path::new("/bin/sleep")).arg("600").spawn()?;
        let pid = alone.id().to_string();
        // What makes it another user's executes it.
        let name = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        bed.until("the program", PATIENCE, || name() == "sleep\n")?;
        let check = bed.say(&["check", &pid])?;
        let said =
            check.stdout.contains("libholdfast is not loaded: the program was not started by `holdfast run`");
        ensure!(said && check.code() == 69, "status {}: {}{}", check.code(), check.stdout, check.stderr);
        let none = format!(
            "process {pid} (sleep) was not started by `holdfast run`; a running program cannot be taken over"
        );
        says(&bed.say(&["checkpoint", &pid])?, 66, &none)?;
        alone.kill()?;
        alone.wait().map(drop).map_err(Into::into)
    });
}

/// A log of root's: whoever has started the job has opened it.
#[test]
fn a_log_that_one_may_not_open_is_left_for_the_restart_s_own() {
    if !am_root() {
        return println!("not run: it needs root");
    }
    plain_job::as_user(|bed| {
        let log = bed.dir().join("log");
        let file = fs::File::create(&log)?;
        fs::set_permissions(&log, fs::Permissions::from_mode(0o600))?;
        let _ = fs::remove_file(bed.stay_file());
        let mut run = plain_job::command(bed, "j", &[])?;
        let mut front = run.stdout(file).spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("the first line", PATIENCE, || fs::metadata(&log).is_ok_and(|log| log.len() > 0))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        bed.may_end()?;
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        ensure!(wait(&mut front, PATIENCE)?.success(), "{}", bed.text("restart.err"));
        let said = format!(
            "the program's stdout was {}, which you may not open; this command's stdout is used",
            log.display()
        );
        ensure!(bed.text("restart.err").contains(&said), "{}", bed.text("restart.err"));
        bed.check_clean("j")
    });
}

/// A terminal of 60 columns.
const NARROW: &str = "import fcntl, os, pty, struct, sys, termios\n\
    def run():\n    \
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 60, 0, 0))\n    \
        os.execv(sys.argv[1], sys.argv[1:])\n\
    pid, terminal = pty.fork()\n\
    if pid == 0: run()\n\
    try:\n    \
        while said := os.read(terminal, 4096): sys.stdout.buffer.write(said)\n\
    except OSError: pass";

#[test]
fn a_list_is_as_wide_as_the_terminal_and_whole_in_a_pipe() {
    plain_job::as_user(|bed| {
        let long = "a-word-of-the-command-line ".repeat(6);
        let mut front = bed.run_command("j", &[], &["/bin/sh", "-c", "sleep 600; true", &long])?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        let piped = bed.say(&["list"])?.success()?.stdout;
        ensure!(piped.lines().nth(1).is_some_and(|line| line.ends_with(long.trim_end())), "{piped}");
        let mut terminal = bed.command(Path::new("/usr/bin/python3"));
        terminal.args(["-c", NARROW]).arg(bed.kit().holdfast()).arg("list").env("TERM", "xterm");
        let coloured = bed.output(terminal, PATIENCE)?.success()?.stdout;
        ensure!(coloured.contains("\u{1b}[32mrunning\u{1b}[0m"), "{coloured}");
        let mut terminal = bed.command(Path::new("/usr/bin/python3"));
        terminal.args(["-c", NARROW]).arg(bed.kit().holdfast()).arg("list");
        terminal.env("TERM", "xterm").env("NO_COLOR", "1");
        let narrow = bed.output(terminal, PATIENCE)?.success()?.stdout;
        let lines: Vec<&str> = narrow.lines().map(|line| line.trim_end_matches('\r')).collect();
        let wide = lines.iter().map(|line| line.chars().count()).max();
        ensure!(
            lines.len() == 2 && wide.is_some_and(|wide| wide <= 60) && lines[1].ends_with('…'),
            "{narrow}"
        );
        ensure!(lines[1].contains(&pid.to_string()), "{narrow}");
        kill_program(pid, &mut front)
    });
}

const PAGE: &str = include_str!("../../../docs/messages.md");

/// All text of the sources, where a string that goes on in the next line is one.
fn sources(folder: &Path, text: &mut String) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sources(&entry.path(), text)?;
        } else if entry.path().extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(entry.path())?;
            let lines = source.split("\\\n");
            lines
                .enumerate()
                .for_each(|(n, part)| text.push_str(if n == 0 { part } else { part.trim_start() }));
        }
    }
    Ok(())
}

#[test]
fn every_message_of_the_page_is_one_of_holdfast() {
    let mut text = String::new();
    for part in ["cli/src", "compat/streams/src", "image/src", "process/src", "tiers/src"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(part);
        sources(&folder, &mut text).unwrap_or_else(|error| panic!("{error:#}"));
    }
    let is_name = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase())
    };
    // Capitals that are said as they are.
    let said = ["TCP", "PATH", "LD_PRELOAD", "MPI", "HOLDFAST_LIB", "OLD=NEW", "PR_SET_DUMPABLE"];
    let mut messages = 0;
    for message in PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |")).map(|(m, _)| m)
    {
        messages += 1;
        let mut pieces = vec![String::new()];
        for word in message.split_inclusive(' ') {
            let bare = word.trim();
            if is_name(bare) && !said.contains(&bare) && !bare.starts_with("(PR") {
                pieces.push(String::new());
            } else if let Some(piece) = pieces.last_mut() {
                piece.push_str(word);
            }
        }
        for piece in
            pieces.iter().map(|piece| piece.trim_matches([' ', ';', ','])).filter(|piece| piece.len() > 3)
        {
            assert!(text.contains(piece), "docs/messages.md: {message:?}: no source says {piece:?}");
        }
    }
    assert!(messages > 40, "{messages} messages were found in docs/messages.md");
}
