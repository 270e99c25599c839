//! Programs that use CUDA, with the driver of `tests/driver` (a device is a memfd there): checkpointed through the
//! driver's own API, killed, restarted; what the driver refuses, fails at, or hangs in leaves program and images as
//! they were; so does the death of the process that calls it, and of the agent at each point between lock and unlock.

use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::{kill_all, kill_program};
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, am_root, each_user, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

const JOB: &str = "g";
const REFUSED: i32 = 69;
const INTERNAL: i32 = 70;
const STOPPED: i32 = 75;

/// Where the driver keeps what it says, and is told what is to go wrong.
fn driver_dir(bed: &Bed) -> PathBuf {
    bed.work().join("cuda")
}

/// Makes it, as the user of the bed.
fn make_driver_dir(bed: &Bed) -> Result<()> {
    let mut command = bed.command("mkdir".as_ref());
    command.args(["-p", "cuda"]);
    bed.output(command, PATIENCE)?.success().map(drop)
}

fn with_driver<'a>(bed: &Bed, command: &'a mut Command) -> &'a mut Command {
    command.env("LD_LIBRARY_PATH", bed.kit().driver()).env("FAKE_CUDA_DIR", driver_dir(bed))
}

/// `holdfast ARGUMENTS…` to its end, with the driver.
fn say(bed: &Bed, arguments: &[&str]) -> Result<Ended> {
    let mut command = bed.holdfast(arguments);
    with_driver(bed, &mut command);
    bed.output(command, PATIENCE)
}

/// A job of `on_device ROUNDS KIND`, which has begun.
fn start(
    bed: &Bed,
    options: &[&str],
    rounds: u32,
    kind: &str,
    variables: &[(&str, &str)],
) -> Result<(Child, i32)> {
    let program = bed.kit().program("on_device").to_string_lossy().into_owned();
    start_words(bed, options, &[&program, &rounds.to_string(), kind], variables)
}

fn start_words(
    bed: &Bed,
    options: &[&str],
    words: &[&str],
    variables: &[(&str, &str)],
) -> Result<(Child, i32)> {
    make_driver_dir(bed)?;
    let mut command = bed.staying_command(JOB, options, words)?;
    let mut front = with_driver(bed, &mut command).envs(variables.iter().copied()).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    lines(bed, 2)?;
    Ok((front, pid))
}

fn restart(bed: &Bed) -> Result<(Child, i32)> {
    let mut command = bed.restart_command(JOB, &[])?;
    let mut front = with_driver(bed, &mut command).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    Ok((front, pid))
}

/// Waits for so many more lines of the program.
fn lines(bed: &Bed, more: usize) -> Result<()> {
    let count = || bed.text("out").lines().count();
    let before = count();
    bed.until("more lines", PATIENCE, || count() >= before + more || bed.text("out").contains("FAIL"))
}

/// Whether a program has made so many rounds at least, each once, and found all as it was.
fn is_whole(out: &str, rounds: usize) -> bool {
    let made = out.lines().count().saturating_sub(1);
    let lines = (0..made).map(|round| format!("{:05} cuda round {round}\n", round + 1));
    made >= rounds && out == lines.chain(["PASS\n".to_owned()]).collect::<String>()
}

fn ends_well(bed: &Bed, front: &mut Child, rounds: usize) -> Result<()> {
    bed.may_end()?;
    let code = shell_code(wait(front, PATIENCE)?);
    let out = bed.text("out");
    ensure!(code == 0 && is_whole(&out, rounds), "status {code}: {out}{}", bed.text("restart.err"));
    bed.check_clean(JOB)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// The newest image says what the driver has done, and is an increment, unless it is the first.
fn shows_cuda(bed: &Bed, process: &Value) -> Result<()> {
    let shown = bed.show(JOB)?;
    let (cuda, stop) = (&process["cuda"], &shown["stop"]);
    ensure!(cuda["state"] == "checkpointed" && cuda["api_version"] == 13000, "{cuda}");
    ensure!(cuda["devices"][0]["uuid"] == "GPU-00112233-4455-6677-8899-aabbccddeeff", "{cuda}");
    ensure!(cuda["library"].to_string().contains("libcuda.so.1"), "{cuda}");
    let parts = ["lock_ns", "checkpoint_ns", "host_ns", "restore_ns", "unlock_ns"];
    let sum: u64 = parts.iter().map(|part| number(&stop["cuda"][part])).sum();
    ensure!(parts.iter().all(|part| number(&stop["cuda"][part]) > 0), "{stop}");
    ensure!(number(&stop["total_ns"]) >= sum, "{stop}");
    let is_first = number(&shown["image"]["epoch"]) == 1;
    ensure!(is_first || shown["image"]["parent"].is_u64(), "{}", shown["image"]);
    // Unchanged pages are found by content: libraries, and most of the heap.
    let stored = number(&shown["flush"]["pages_stored"]);
    ensure!(is_first || stored < number(&shown["epoch"]["pages_tracked"]), "{stored} pages");
    Ok(())
}

#[test]
fn is_checkpointed_killed_and_restarted() {
    each_user(|bed| {
        let (mut front, mut pid) = start(bed, &[], 20, "", &[])?;
        let checked = say(bed, &["check", JOB])?.success()?;
        ensure!(checked.stdout.ends_with("a checkpoint could be taken now\n"), "{}", checked.stdout);
        for restarts in 0..3 {
            for _ in 0..2 {
                say(bed, &["checkpoint", JOB])?.success()?;
                shows_cuda(bed, &bed.show(JOB)?["record"])?;
                lines(bed, 1)?;
            }
            kill_program(pid, &mut front)?;
            (front, pid) = restart(bed).with_context(|| format!("restart {restarts}"))?;
            lines(bed, 1)?;
        }
        let log = say(bed, &["logs", JOB])?.success()?.stdout;
        let is_told = log.contains("CUDA state restored, of processes: 1; by the driver in ")
            && log.contains("libcuda.so.1: for CUDA 13.0; ");
        ensure!(is_told && !log.contains(" { "), "{log}");
        let text = say(bed, &["show", JOB])?.success()?.stdout;
        ensure!(text.contains("checkpointed by the driver for CUDA 13.0, of Memfd GPU-"), "{text}");
        ensure!(text.contains("CUDA checkpoint") && text.contains("CUDA restore"), "{text}");
        ends_well(bed, &mut front, 20)
    });
}

#[test]
fn every_engine_and_both_processes_of_a_job() {
    let engines =
        [("copy", User::Root), ("slots", User::Ordinary), ("sync", User::Ordinary), ("fork", User::Root)];
    for (engine, user) in engines {
        let user = if am_root() { user } else { User::Ordinary };
        let Some(bed) = Bed::new(user) else { continue };
        let test = || -> Result<()> {
            let program = bed.kit().program("on_device").to_string_lossy().into_owned();
            let script = format!("{program} 20 >second & {program} 20; wait");
            let words = ["sh", "-c", &script];
            let (mut front, pid) = start_words(&bed, &["--engine", engine], &words, &[])?;
            bed.until("the second process", PATIENCE, || bed.text("second").lines().count() > 1)?;
            say(&bed, &["checkpoint", JOB])?.success()?;
            let shown = bed.show(JOB)?;
            ensure!(shown["stop"]["cuda"]["processes"] == 2, "{}", shown["stop"]);
            for process in shown["record"]["others"].as_array().context("others")? {
                shows_cuda(&bed, process)?;
            }
            lines(&bed, 1)?;
            kill_all(&bed, pid, &mut front)?;
            let (mut front, _) = restart(&bed)?;
            ends_well(&bed, &mut front, 20)?;
            ensure!(is_whole(&bed.text("second"), 20), "{}", bed.text("second"));
            Ok(())
        };
        if let Err(error) = test() {
            panic!("{engine} as {user:?}: {error:#}");
        }
    }
}

/// Tells the driver what is to go wrong.
fn fail(bed: &Bed, name: &str, how: &str) -> Result<()> {
    Ok(fs::write(driver_dir(bed).join(name), how)?)
}

#[test]
fn what_the_driver_fails_at_is_undone() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], 20, "", &[("HOLDFAST_CUDA_DEADLINE", "2")])?;
        say(bed, &["checkpoint", JOB])?.success()?;
        for (name, how, code, words) in [
            (
                "fault-lock",
                "600 once",
                INTERNAL,
                "cuCheckpointProcessLock: not ready (error 600): its work on devices",
            ),
            ("fault-lock", "801 once", REFUSED, "cuCheckpointProcessLock: not supported (error 801)"),
            ("fault-lock", "die once", INTERNAL, "the process that calls the driver ended"),
            ("after-lock", "die once", INTERNAL, "the process that calls the driver ended"),
            (
                "fault-checkpoint",
                "999 once",
                INTERNAL,
                "cuCheckpointProcessCheckpoint: unknown error (error 999)",
            ),
            (
                "after-checkpoint",
                "999 once",
                INTERNAL,
                "cuCheckpointProcessCheckpoint: unknown error (error 999)",
            ),
            ("fault-checkpoint", "hang once", INTERNAL, "cuCheckpointProcessCheckpoint: no answer in 2 s"),
            ("fault-thread", "1 once", REFUSED, "forked from a process that uses CUDA"),
        ] {
            fail(bed, name, how)?;
            let images = bed.images(JOB);
            let ended = say(bed, &["checkpoint", JOB])?;
            let told = &ended.stderr;
            ensure!(ended.code() == code && told.contains(words), "{name} {how}: {} {told}", ended.code());
            ensure!(told.contains(&format!("process {pid} (on_device)")), "{name} {how}: {told}");
            ensure!(bed.images(JOB) == images, "{name} {how}: an image");
            lines(bed, 1).with_context(|| format!("after {name} {how}"))?;
        }
        for (name, how) in
            [("fault-restore", "2 once"), ("after-restore", "die once"), ("fault-unlock", "die once")]
        {
            fail(bed, name, how)?;
            say(bed, &["checkpoint", JOB])?.success().with_context(|| format!("{name} {how}"))?;
            lines(bed, 1).with_context(|| format!("after {name} {how}"))?;
        }
        ends_well(bed, &mut front, 20)
    });
}

/// The image that was cut is good, and goes where images go; the program cannot go on, and that is said.
#[test]
fn a_program_that_cannot_be_restored_has_an_image() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    let test = || -> Result<()> {
        let tier = format!("dir={}", bed.work().join("pfs").display());
        let (mut front, pid) = start(&bed, &["--tier", &tier], 20, "", &[])?;
        fail(&bed, "fault-restore", "304")?;
        let ended = say(&bed, &["checkpoint", JOB])?;
        let told = &ended.stderr;
        ensure!(ended.code() == INTERNAL && told.contains("image 1 is committed, but process"), "{told}");
        ensure!(told.contains("error 304") && told.contains("restart it"), "{told}");
        let is_there = |id: fs::DirEntry| id.path().join("manifest-000001").exists();
        let ids = || fs::read_dir(bed.work().join("pfs").join(JOB)).into_iter().flatten().flatten();
        bed.until("the image on the tier", PATIENCE, || ids().any(is_there))?;
        kill_program(pid, &mut front)?;
        // A restart that cannot restore either ends the program, and can be tried again.
        let ended = say(&bed, &["restart", "--stdio=keep", JOB])?;
        ensure!(
            ended.code() == REFUSED && ended.stderr.contains("restart again when its devices"),
            "{}",
            ended.stderr
        );
        bed.check_clean(JOB)?;
        // So does one with a driver that is too old: before anything runs.
        let mut command = bed.holdfast(&["restart", "--stdio=keep", JOB]);
        with_driver(&bed, &mut command).env("FAKE_CUDA_VERSION", "12040");
        let ended = bed.output(command, PATIENCE)?;
        let words = "cannot be restored here: its driver, for CUDA 12.4, cannot checkpoint: driver 570";
        ensure!(ended.code() == REFUSED && ended.stderr.contains(words), "{} {}", ended.code(), ended.stderr);
        fs::remove_file(driver_dir(&bed).join("fault-restore"))?;
        say(&bed, &["verify", JOB])?.success()?;
        let (mut front, _) = restart(&bed)?;
        ends_well(&bed, &mut front, 20)
    };
    test().unwrap();
}

#[test]
fn an_agent_that_dies_leaves_no_process_locked() {
    for (number, point) in ["cuda-locked", "cuda-checkpointed", "stopped", "cuda-restored"].iter().enumerate()
    {
        let user = if number % 2 == 0 || !am_root() { User::Ordinary } else { User::Root };
        let Some(bed) = Bed::new(user) else { continue };
        let test = || -> Result<()> {
            let (mut front, _) = start(&bed, &[], 20, "", &[("HOLDFAST_FAULT", point)])?;
            let ended = say(&bed, &["checkpoint", JOB])?;
            ensure!(ended.code() != 0, "the agent lives");
            bed.until("a word about the agent", PATIENCE, || {
                bed.text("err").contains("runs on, without checkpoints")
            })?;
            ends_well(&bed, &mut front, 20)
        };
        if let Err(error) = test() {
            panic!("{point} as {user:?}: {error:#}");
        }
    }
}

/// The driver is not asked to restore what is about to end (docs/cuda.md): here it could not.
#[test]
fn is_ended_as_it_was_checkpointed() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &[], 20, "", &[])?;
        fail(bed, "fault-restore", "304")?;
        say(bed, &["checkpoint", "--stop", JOB])?.success()?;
        ensure!(shell_code(wait(&mut front, PATIENCE)?) == STOPPED, "{}", bed.text("err"));
        bed.check_clean(JOB)?;
        fs::remove_file(driver_dir(bed).join("fault-restore"))?;
        let shown = bed.show(JOB)?;
        ensure!(number(&shown["stop"]["cuda"]["restore_ns"]) == 0, "{}", shown["stop"]);
        let (mut front, _) = restart(bed)?;
        ends_well(bed, &mut front, 20)
    });
}

#[test]
fn a_program_that_begins_later_is_noticed() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[], 30, "late", &[])?;
        say(bed, &["checkpoint", JOB])?.success()?;
        ensure!(bed.show(JOB)?["record"]["cuda"].is_null(), "CUDA before it is used");
        bed.create("begin")?;
        let before = bed.text("out").lines().count();
        // The line of a round comes before its work.
        bed.until("the first use", PATIENCE, || bed.text("out").lines().count() > before + 2)?;
        say(bed, &["checkpoint", JOB])?.success()?;
        shows_cuda(bed, &bed.show(JOB)?["record"])?;
        kill_program(pid, &mut front)?;
        let (mut front, _) = restart(bed)?;
        ends_well(bed, &mut front, 30)
    });
}

#[test]
fn a_device_that_the_driver_does_not_give_back_is_refused() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &[], 15, "open", &[])?;
        let ended = say(bed, &["checkpoint", JOB])?;
        let told = &ended.stderr;
        ensure!(ended.code() == REFUSED && told.contains("(/memfd:nvidiactl (deleted))"), "{told}");
        ensure!(told.contains("nvmlShutdown"), "{told}");
        ends_well(bed, &mut front, 15)
    });
}

#[test]
fn an_old_driver_is_named_by_check_and_checkpoint() {
    each_user(|bed| {
        let (mut front, _) = start(bed, &[], 15, "", &[("FAKE_CUDA_VERSION", "12040")])?;
        let words =
            "cannot be checkpointed: its driver, for CUDA 12.4, cannot checkpoint: driver 570 or later";
        let checked = say(bed, &["check", JOB])?;
        ensure!(
            checked.code() == REFUSED && checked.stdout.contains(words),
            "{}{}",
            checked.stdout,
            checked.stderr
        );
        let ended = say(bed, &["checkpoint", JOB])?;
        ensure!(ended.code() == REFUSED && ended.stderr.contains(words), "{}", ended.stderr);
        ends_well(bed, &mut front, 15)
    });
}

#[test]
fn doctor_says_whether_the_driver_can() {
    each_user(|bed| {
        make_driver_dir(bed)?;
        let none = bed.say(&["doctor"])?.stdout;
        ensure!(none.contains("no       CUDA programs: libcuda.so.1: cannot open"), "{none}");
        let found = say(bed, &["doctor"])?.stdout;
        let line = "ok       CUDA programs: driver for CUDA 13.0 with the checkpoint API, Memfd";
        ensure!(found.contains(line), "{found}");
        // The processes that it has started end with it.
        bed.until("their end", PATIENCE, || processes::of(bed.dir()).is_empty())
    });
}
