//! From start to end: exec and daemons are followed, status and signals pass through, triggers, `--stop`, `--resume`,
//! restart from an older image, nothing added to the program, and what the listings say.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::{App, NotHere, Results, reference};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user, shell_code, wait};
use std::fs;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::Duration;

/// The program does not end before [`ended`] waits for that.
fn start(bed: &Bed, options: &[&str], program: &str, arguments: &[&str]) -> Result<(Child, i32)> {
    let _ = fs::remove_file(bed.stay_file());
    let mut front = bed.staying_command("j", options, &App::program(program, arguments).words())?.spawn()?;
    let pid = bed
        .wait_live("j", &mut front)?
        .with_context(|| format!("{program} ended at once: {}", bed.text("err")))?;
    Ok((front, pid))
}

fn ended(bed: &Bed, front: &mut Child) -> Result<ExitStatus> {
    bed.may_end()?;
    wait(front, PATIENCE)
}

fn plain_output(rounds: u32) -> String {
    let lines: String = (0..rounds).map(|n| format!("{:05} plain round {n}\n", n + 1)).collect();
    lines + "PASS\n"
}

#[test]
fn exit_status_and_signals_of_the_program_come_through() {
    each_user(|bed| {
        for (arguments, code) in
            [(["exit", "0"], 0), (["exit", "7"], 7), (["exit", "255"], 255), (["signal", "15"], 143)]
        {
            let command = bed.run_command("j", &[], &App::program("follow", &arguments).words())?;
            let mut child = { command }.spawn()?;
            let found = shell_code(wait(&mut child, PATIENCE)?);
            ensure!(found == code, "{arguments:?}: status {found}: {}", bed.text("err"));
        }
        Ok(())
    });
}

#[test]
fn exit_status_comes_through_after_a_restart_too() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], "follow", &["trap", "500"])?;
        bed.until("a line", PATIENCE, || bed.text("out").contains("round 2"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        bed.wait_live("j", &mut front)?.context("a pid")?;
        let lines = bed.text("out").lines().count();
        bed.until("new lines", PATIENCE, || bed.text("out").lines().count() > lines + 3)?;
        processes::signal(front.id().cast_signed(), "TERM");
        bed.until("SIGTERM at the program", PATIENCE, || bed.text("out").contains("SIGTERM"))?;
        processes::signal(front.id().cast_signed(), "INT");
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 42 && bed.text("out").contains("SIGINT"), "status {code}: {}", bed.text("out"));
        bed.check_clean("j")
    });
}

#[test]
fn signals_pass_through_run() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &[], "follow", &["trap", "500"])?;
        bed.until("a line", PATIENCE, || bed.text("out").contains("round 2"))?;
        for n in 1..=3 {
            processes::signal(front.id().cast_signed(), "TERM");
            bed.until("SIGTERM at the program", PATIENCE, || {
                bed.text("out").matches("SIGTERM").count() == n
            })?;
        }
        processes::signal(front.id().cast_signed(), "INT");
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 42 && bed.text("out").contains("SIGINT"), "status {code}: {}", bed.text("out"));
        bed.check_clean("j")
    });
}

#[test]
fn exec_is_followed() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], "follow", &["exec", "90"])?;
        for stage in 1..=2 {
            bed.until("the next stage", PATIENCE, || {
                bed.text("out").contains(&format!("stage {stage} round 2"))
            })?;
            bed.say(&["checkpoint", "j"])?.success()?;
        }
        kill_program(pid, &mut front)?;
        let mut front = bed.restart_command("j@1", &[])?.spawn()?;
        let code = shell_code(ended(bed, &mut front)?);
        let stages = (0..3)
            .map(|s| (0..30).map(|n| format!("{:05} exec stage {s} round {n}\n", n + 1)).collect::<String>());
        ensure!(
            code == 0 && bed.text("out") == stages.collect::<String>() + "PASS\n",
            "status {code}: {}",
            bed.text("out")
        );
        bed.check_clean("j")
    });
}

#[test]
fn a_daemon_is_followed_into_its_child() {
    each_user(|bed| {
        let mut front = bed
            .run_command("j", &[], &App::program("follow", &["daemon", "daemon.out", "60"]).words())?
            .spawn()?;
        bed.until("lines of the daemon", PATIENCE, || bed.text("daemon.out").contains("round 3"))?;
        let pid = bed.pid("j")?.context("the daemon's pid is not listed")?;
        ensure!(
            processes::command_line(pid).contains("daemon.out"),
            "{pid} is {:?}",
            processes::command_line(pid)
        );
        bed.say(&["checkpoint", "j"])?.success()?;
        processes::signal(pid, "KILL");
        ended(bed, &mut front)?;
        bed.until("the end of the daemon", PATIENCE, || processes::state(pid).is_none_or(|s| s == 'Z'))?;
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        ended(bed, &mut front)?;
        bed.until("the end", PATIENCE, || bed.text("daemon.out").contains("PASS"))?;
        let lines: String = (0..60).map(|n| format!("{:05} daemon round {n}\n", n + 1)).collect();
        ensure!(bed.text("daemon.out") == lines + "PASS\n", "{}", bed.text("daemon.out"));
        bed.check_clean("j")
    });
}

#[test]
fn two_checkpoints_and_restart_from_the_older() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], "plain", &["120", "20"])?;
        bed.until("lines", PATIENCE, || bed.text("out").contains("round 10"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        let at_first = bed.text("out");
        bed.until("more lines", PATIENCE, || bed.text("out").contains("round 40"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        ensure!(bed.images("j") == [1, 2], "images {:?}", bed.images("j"));
        kill_program(pid, &mut front)?;
        let mut front = bed.restart_command("j@1", &[])?.spawn()?;
        bed.wait_live("j", &mut front)?.context("a pid")?;
        ensure!(
            bed.text("out").len() < at_first.len() + 600,
            "the output was not put back to the older image"
        );
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 0 && bed.text("out") == plain_output(120), "status {code}: {}", bed.text("out"));
        ensure!(
            bed.text("restart.err").contains("out"),
            "the file put back is not named: {}",
            bed.text("restart.err")
        );
        let saved = std::fs::read_dir(bed.job("j").join("saved")).is_ok_and(|mut d| d.next().is_some());
        ensure!(saved, "what was cut off is not in the store");
        bed.check_clean("j")
    });
}

#[test]
fn the_same_image_restarts_twice() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], "plain", &["60", "20"])?;
        bed.until("lines", PATIENCE, || bed.text("out").contains("round 10"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        for options in [&["--eager"][..], &["--lazy"], &[]] {
            let mut front = bed.restart_command("j@1", options)?.spawn()?;
            let code = shell_code(ended(bed, &mut front)?);
            ensure!(
                code == 0 && bed.text("out") == plain_output(60),
                "{options:?}: status {code}: {}",
                bed.text("out")
            );
        }
        bed.check_clean("j")
    });
}

#[test]
fn checkpoint_and_stop_then_resume() {
    each_user(|bed| {
        let program = App::program("plain", &["80", "20"]);
        let options = ["--resume", "--on", "TERM=checkpoint-stop"];
        let (mut front, _) = start(bed, &options, "plain", &["80", "20"])?;
        bed.until("lines", PATIENCE, || bed.text("out").contains("round 15"))?;
        processes::signal(front.id().cast_signed(), "TERM");
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 75, "status {code}: {}", bed.text("err"));
        ensure!(bed.images("j").len() == 1, "images {:?}", bed.images("j"));
        let lines = bed.text("out").lines().count();
        ensure!((16..79).contains(&lines), "{lines} lines");
        // the batch system starts the same command again
        let mut again = bed.holdfast(&["run", "--name", "j"]);
        let mut front = again.args(options).arg("--").args(program.words()).spawn()?;
        bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("more lines", PATIENCE, || bed.text("out").lines().count() > lines + 3)?;
        processes::signal(front.id().cast_signed(), "TERM");
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 75, "second status {code}");
        let mut front = again.spawn()?;
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 0 && bed.text("out") == plain_output(80), "status {code}: {}", bed.text("out"));
        bed.check_clean("j")
    });
}

/// SIGSTOP or SIGCONT that comes while the program stands for a checkpoint already: the image has its effect.
#[test]
fn a_signal_of_job_control_inside_the_stop() {
    const STOPPED: [char; 2] = ['T', 't'];
    each_user(|bed| {
        for (job, name) in [("s", "STOP"), ("c", "CONT")] {
            let app = App::program("plain", &["3000", "10"]);
            let mut command = bed.run_command(job, &[], &app.words())?;
            let mut front = command.env("HOLDFAST_FAULT", "stopped:1+600").spawn()?;
            let pid = bed.wait_live(job, &mut front)?.context("a pid")?;
            let is_in =
                |pid: i32, states: &[char]| processes::state(pid).is_some_and(|s| states.contains(&s));
            if name == "CONT" {
                processes::signal(pid, "STOP");
                bed.until("the stop", PATIENCE, || is_in(pid, &STOPPED[..1]))?;
            }
            let mut asking = bed.holdfast(&["checkpoint", job]).spawn()?;
            bed.until("the stop of the checkpoint", PATIENCE, || is_in(pid, &STOPPED[1..]))?;
            processes::signal(pid, name);
            ensure!(wait(&mut asking, PATIENCE)?.success(), "{name}: {}", bed.text("err"));
            let right = |pid: i32| is_in(pid, &STOPPED) == (name == "STOP");
            bed.until("the effect of the signal", PATIENCE, || right(pid))?;
            kill_program(pid, &mut front)?;
            let mut front = bed.restart_command(job, &[])?.spawn()?;
            let pid = bed.wait_live(job, &mut front)?.context("a pid after the restart")?;
            sleep(Duration::from_millis(100));
            ensure!(
                right(pid),
                "after the restart it is in state {:?}, in spite of SIG{name}",
                processes::state(pid)
            );
            processes::signal(pid, "CONT");
            let lines = bed.text("out").len();
            bed.until("new lines", PATIENCE, || bed.text("out").len() > lines)?;
            kill_program(pid, &mut front)?;
        }
        Ok(())
    });
}

#[test]
fn checkpoint_with_stop_ends_the_program() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], "plain", &["80", "20"])?;
        bed.until("lines", PATIENCE, || bed.text("out").contains("round 15"))?;
        bed.say(&["checkpoint", "--stop", "j"])?.success()?;
        ended(bed, &mut front)?;
        ensure!(processes::state(pid).is_none_or(|s| s == 'Z'), "the program lives");
        let at_stop = bed.text("out");
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 0 && bed.text("out") == plain_output(80), "status {code}: {}", bed.text("out"));
        // held from the cut to its end: nothing was written that had to be cut off
        ensure!(bed.text("out").starts_with(&at_stop), "output after the cut");
        ensure!(!bed.text("restart.err").contains("put back"), "{}", bed.text("restart.err"));
        bed.check_clean("j")
    });
}

#[test]
fn triggers_by_interval_and_by_signal() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &["--every", "1s", "--keep", "2"], "plain", &["180", "20"])?;
        ended(bed, &mut front)?;
        ensure!(bed.text("out") == plain_output(180), "{}", bed.text("out"));
        let images = bed.images("j");
        ensure!(
            images.len() <= 2 && images.last().is_some_and(|&n| n >= 2),
            "by interval: images {images:?}"
        );
        Ok(())
    });
    // The program computes and does not sleep: a signal of its own may end a sleep, handled by whomever.
    each_user(|bed| {
        let program = App::program("stencil", &["300", "30000", "1000"]);
        let mut front = bed.run_command("j", &["--signal", "USR1"], &program.words())?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        for (n, target) in [front.id().cast_signed(), pid].into_iter().enumerate() {
            processes::signal(target, "USR1");
            bed.until("an image after the signal", PATIENCE, || bed.images("j").len() == n + 1)?;
        }
        let code = shell_code(ended(bed, &mut front)?);
        let expected = reference(&program)?;
        Results::read(&program, bed, code)?.check(&expected.results)?;
        bed.check_clean("j")
    });
}

#[test]
fn jobs_are_named_by_pid_too() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], "plain", &["60", "20"])?;
        bed.say(&["checkpoint", &pid.to_string()])?.success()?;
        ensure!(bed.images("j") == [1], "images {:?}", bed.images("j"));
        let listed = bed.say(&["list"])?.success()?.stdout;
        ensure!(listed.contains('j') && listed.contains(&pid.to_string()), "{listed}");
        let shown = bed.say(&["show", "j"])?.success()?.stdout;
        ensure!(shown.contains("stop"), "{shown}");
        ended(bed, &mut front)?;
        bed.say(&["verify", "j"])?.success()?;
        bed.until("the end of the agent", PATIENCE, || !bed.job("j").join("agent.sock").exists())?;
        ensure!(bed.say(&["checkpoint", "j"])?.code() == 66, "a job that does not run");
        ensure!(bed.say(&["restart", "nobody"])?.code() == 66, "a job that does not exist");
        bed.say(&["prune", "j", "--all"])?.success()?;
        ensure!(!bed.job("j").exists(), "the job is still there");
        Ok(())
    });
}

/// Listing cleans up behind dead agents; it must not get in the way of a job that is just starting.
/// An agent whose job was removed under it leaves alone the one that has its place.
#[test]
fn a_job_removed_under_its_agent() {
    each_user(|bed| {
        let (mut first, pid) = start(bed, &[], "plain", &["3000", "20"])?;
        bed.until("a line", PATIENCE, || bed.text("out").contains("round 2"))?;
        fs::remove_dir_all(bed.store().join("j"))?;
        let (mut second, other) = start(bed, &[], "plain", &["3000", "20"])?;
        kill_program(pid, &mut first)?;
        sleep(Duration::from_millis(300)); // more than its agent needs to end
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(other, &mut second)
    });
}

#[test]
fn listing_does_not_disturb_a_start() {
    each_user(|bed| {
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = bed.holdfast(&["list"]).status();
                    }
                });
            }
            let result = (0..15).try_for_each(|_| {
                // With a word of the library in `err`: should a process not register, this says why.
                let mut command =
                    bed.run_command("j", &[], &App::program("plain", &["1000", "20"]).words())?;
                let mut front = command.env("HOLDFAST_DEBUG", "1").spawn()?;
                let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("err"))?;
                bed.say(&["checkpoint", "j"])?.success()?;
                kill_program(pid, &mut front)?;
                let mut front = bed.restart_command("j", &[])?.spawn()?;
                let pid = bed.wait_live("j", &mut front)?.with_context(|| bed.text("restart.err"))?;
                kill_program(pid, &mut front)
            });
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            result
        })
    });
}

/// The program has the threads and descriptors that it has without Holdfast, and prints nothing else.
#[test]
fn nothing_is_added_to_the_program() {
    each_user(|bed| {
        let fds = bed.kit().program("follow");
        let mut plain = bed.command(&fds);
        plain.arg("fds");
        let plain = bed.output(plain, PATIENCE)?.success()?;
        let under = bed.holdfast(&["run", "--name", "j", "--", &fds.to_string_lossy(), "fds"]);
        let under = bed.output(under, PATIENCE)?.success()?;
        ensure!(plain.stdout == under.stdout, "without: {}under Holdfast: {}", plain.stdout, under.stdout);
        ensure!(under.stderr.is_empty(), "extra output: {}", under.stderr);
        Ok(())
    });
}

/// `LD_PRELOAD` alone is enough: the library starts the agent.
#[test]
fn preloaded_without_run() {
    each_user(|bed| {
        let mut command = bed.command(&bed.kit().program("plain"));
        command.args(["100", "20"]).env("LD_PRELOAD", bed.kit().library()).env("HOLDFAST_NAME", "j");
        let mut program = command.stdout(bed.create("out")?).spawn()?;
        let pid = bed.wait_live("j", &mut program)?.context("a pid")?;
        bed.until("lines", PATIENCE, || bed.text("out").contains("round 10"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        processes::signal(pid, "KILL");
        wait(&mut program, PATIENCE)?;
        // the image may lie at a moment before the last lines
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        let code = shell_code(ended(bed, &mut front)?);
        ensure!(code == 0 && bed.text("out") == plain_output(100), "status {code}: {}", bed.text("out"));
        bed.check_clean("j")
    });
}

/// A pipeline: standard input and output lead outside and come from `holdfast restart` afterwards.
#[test]
fn standard_output_may_be_a_pipe() {
    each_user(|bed| {
        let program = App::program("plain", &["60", "20"]);
        let mut command = bed.staying_command("j", &[], &program.words())?;
        let mut front = command.stdout(std::process::Stdio::piped()).spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        sleep(Duration::from_millis(300));
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        bed.may_end()?;
        let before = std::io::read_to_string(front.stdout.take().context("a pipe")?)?;
        let ended = bed.output(bed.holdfast(&["restart", "--stdio=keep", "j"]), PATIENCE)?.success()?;
        let after = ended.stdout;
        ensure!(after.ends_with("PASS\n"), "{after}");
        let first = after.lines().next().context("a line")?;
        let joined: String =
            before.lines().take_while(|line| *line < first).map(|l| format!("{l}\n")).collect();
        ensure!(joined + &after == plain_output(60), "--- before\n{before}--- after\n{after}");
        Ok(())
    });
}

/// What processes share by copy-on-write they share while and after it is read: all are dirty at the first image.
#[test]
fn checkpoints_leave_memory_shared() {
    each_user(|bed| {
        for engine in ["copy", "fork", "auto", "sync"] {
            let (mut front, _) = start(bed, &["--engine", engine], "tree_common", &["60", "32", "shared"])?;
            bed.until("the first lines", PATIENCE, || bed.text("out").contains("round 5"))?;
            bed.say(&["checkpoint", "j"])?.success()?;
            let code = shell_code(ended(bed, &mut front)?);
            ensure!(
                code == 0 && bed.text("out").ends_with("PASS\n"),
                "{engine}: {code}: {}",
                bed.text("out")
            );
        }
        Ok(())
    });
}

/// Its folder has moved between the checkpoint and the restart.
#[test]
fn files_that_have_moved() {
    each_user(|bed| {
        // What is in the image could be made anew where it was.
        let program = App::program("fifos", &["200"]);
        let mut front = bed.run_command("j", &["--save-files=none"], &program.words())?.spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("the first lines", PATIENCE, || bed.text("out").contains("round 2"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        let (old, new) = (bed.work(), bed.dir().join("elsewhere"));
        fs::rename(&old, &new)?;
        let map = format!("{}={}", old.display(), new.display());
        let restart = |arguments: &[&str]| {
            let mut command = bed.holdfast(&["restart", "--stdio=keep"]);
            command.args(arguments).arg("j").current_dir(bed.dir());
            bed.output(command, PATIENCE)
        };
        let refused = restart(&[])?;
        ensure!(
            refused.code() == 69 && refused.stderr.contains("--map"),
            "{}: {}",
            refused.code(),
            refused.stderr
        );
        restart(&["--map", &map])?.success()?;
        let out = fs::read_to_string(new.join("out"))?;
        ensure!(out.ends_with("PASS\n") && out.lines().count() == 201, "{out}");
        ensure!(!old.exists(), "the old folder was made again");
        fs::rename(&new, &old)?;
        bed.check_clean("j")
    });
}

/// The memory is there, in ordinary pages, and the user is told.
#[test]
fn huge_pages_that_the_host_of_the_restart_lacks() {
    each_user(|bed| {
        let app = App::program("explicit", &["private", "60"]);
        let expected = match reference(&app) {
            Err(error) if error.is::<NotHere>() => {
                println!("not run: {error}");
                return Ok(());
            }
            expected => expected?,
        };
        let (mut front, pid) = start(bed, &[], "explicit", &["private", "60"])?;
        bed.until("some lines", PATIENCE, || bed.text("out").contains("round 9"))?;
        bed.say(&["checkpoint", "j"])?.success()?;
        kill_program(pid, &mut front)?;
        let mut front = bed.restart_command("j", &[])?.env("HOLDFAST_FAULT", "no-huge-pages").spawn()?;
        let code = shell_code(ended(bed, &mut front)?);
        Results::read(&app, bed, code)?.check(&expected.results)?;
        let told = bed.text("restart.err");
        ensure!(
            told.contains("16 MiB of explicit huge pages") && told.contains("ordinary pages instead"),
            "{told}"
        );
        bed.check_clean("j")
    });
}

/// Semaphores and queues that are gone at the restart: an ordinary user's get other ids, which the program does not
/// notice.
#[test]
fn semaphores_and_queues_that_are_gone() {
    each_user(|bed| {
        for (kind, option) in [("semaphores", "-s"), ("messages", "-q"), ("waiting", "-q")] {
            let file = bed.work().join("id");
            let app = App::program("ipc", &[kind, "45", &file.to_string_lossy()]);
            let mut front = bed.run_command(kind, &[], &app.words())?.spawn()?;
            let pid = bed.wait_live(kind, &mut front)?.context("a pid")?;
            bed.until("some rounds", PATIENCE, || bed.text("out").contains("round 5"))?;
            bed.say(&["checkpoint", kind])?.success()?;
            kill_program(pid, &mut front)?;
            let id = fs::read_to_string(&file)?.trim().to_owned();
            std::process::Command::new("ipcrm").args([option, &id]).status()?;
            let mut front = bed.restart_command(kind, &[])?.spawn()?;
            let code = shell_code(ended(bed, &mut front)?);
            ensure!(code == 0 && bed.text("out").ends_with("PASS\n"), "{kind}: {code}: {}", bed.text("out"));
            // Root chooses ids.
            let noted = bed.text("restart.err").contains("is shown the old id");
            ensure!(noted == (bed.user() == User::Ordinary), "{kind}: {}", bed.text("restart.err"));
        }
        Ok(())
    });
}
