//! Device memory that libholdfast owns, on the stand-in driver: it is brought to the program's memory around the
//! driver's checkpoint, by chunks that have changed, and back; what was damaged meanwhile is given to no kernel; an
//! agent that ends in between leaves a program with right results.

use anyhow::{Context, Result, ensure};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, am_root, each_user, shell_code, wait};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

const JOB: &str = "d";
const REFUSED: i32 = 69;
const INTERNAL: i32 = 70;
/// Of a chunk.
const CHUNK: u64 = 64 << 10;
/// The program writes so many chunks in a step.
const WRITTEN: u64 = 3;
/// A length that the copy of small programs has (`cuda-hooks/src/service/host.rs`).
const COPY: u64 = 1 << 30;

fn with_driver<'a>(bed: &Bed, command: &'a mut Command) -> Result<&'a mut Command> {
    Ok(command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?))
}

fn say(bed: &Bed, arguments: &[&str]) -> Result<Ended> {
    let mut command = bed.holdfast(arguments);
    with_driver(bed, &mut command)?;
    bed.output(command, PATIENCE)
}

/// A job of `touches STEPS`, which has begun.
fn start(bed: &Bed, steps: &str, variables: &[(&str, &str)]) -> Result<(Child, i32)> {
    let program = bed.kit().cuda_program("touches").to_string_lossy().into_owned();
    let mut command = bed.run_command(JOB, &[], &[&program, steps, "2", &WRITTEN.to_string()])?;
    let mut front = with_driver(bed, &mut command)?.envs(variables.iter().copied()).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("err"))?;
    steps_more(bed, 1)?;
    Ok((front, pid))
}

fn steps_made(bed: &Bed) -> usize {
    bed.text("out").lines().count()
}

fn steps_more(bed: &Bed, more: usize) -> Result<()> {
    let before = steps_made(bed);
    bed.until("more steps", PATIENCE, || {
        steps_made(bed) >= before + more
            || bed.text("out").contains("FAIL")
            || bed.text("out").contains("PASS")
    })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn ends_well(bed: &Bed, front: &mut Child) -> Result<()> {
    let code = shell_code(wait(front, PATIENCE)?);
    let out = bed.text("out");
    ensure!(code == 0 && out.ends_with("PASS\n"), "status {code}: {out}{}", bed.text("err"));
    bed.check_clean(JOB)
}

/// Takes a checkpoint; what it says of the stop.
fn checkpoint(bed: &Bed) -> Result<Value> {
    say(bed, &["checkpoint", JOB])?.success()?;
    Ok(bed.show(JOB)?["stop"]["cuda"].clone())
}

#[test]
fn only_chunks_that_kernels_wrote_are_copied() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "60", &[])?;
        let told = say(bed, &["check", JOB])?.success()?.stdout;
        ensure!(told.contains("stop time about ") && told.contains("as on an H200"), "{told}");
        // Counted before it is asked for: how many steps were made until the cut is not known.
        let mut before = steps_made(bed);
        let first = checkpoint(bed)?;
        let all = number(&first["data_bytes"]);
        ensure!(all >= 2 << 20 && number(&first["dirty_bytes"]) >= 2 << 20, "{first}");
        ensure!(number(&first["dirty_bytes"]) + number(&first["zero_bytes"]) <= all, "{first}");
        ensure!(number(&first["leave_ns"]) > 0 && number(&first["return_ns"]) > 0, "{first}");
        for _ in 0..3 {
            steps_more(bed, 1)?;
            let asked = steps_made(bed);
            let next = checkpoint(bed)?;
            // The step that is under way was begun before or after either of them.
            let most = (steps_made(bed) - before) as u64 + 2;
            let dirty = number(&next["dirty_bytes"]);
            ensure!(dirty > 0 && dirty <= most * WRITTEN * CHUNK, "{most} steps: {next}");
            before = asked;
        }
        let text = say(bed, &["show", JOB])?.success()?.stdout;
        for words in
            ["device memory away", "device memory back", "drain ", "hash ", "gather ", "control ", "host "]
        {
            ensure!(text.contains(words), "{words}: {text}");
        }
        let told = say(bed, &["check", JOB])?.success()?.stdout;
        ensure!(told.contains("MiB, kept by libholdfast: changes"), "{told}");
        kill_program(pid, &mut front)?;
        let mut command = bed.restart_command(JOB, &[])?;
        let mut front = with_driver(bed, &mut command)?.spawn()?;
        ends_well(bed, &mut front)
    });
}

#[test]
fn the_driver_has_it_where_the_user_says_so() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "30", &[("HOLDFAST_CUDA_DATA", "driver")])?;
        let stop = checkpoint(bed)?;
        ensure!(number(&stop["data_bytes"]) == 0 && number(&stop["leave_ns"]) == 0, "{stop}");
        kill_program(pid, &mut front)?;
        let mut command = bed.restart_command(JOB, &[])?;
        let mut front = with_driver(bed, &mut command)?.spawn()?;
        ends_well(bed, &mut front)
    });
}

/// The copy of a program whose content is away: it cannot be written then.
fn copy_of(pid: i32) -> Option<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next()?, words.next()?);
        let (start, end) = range.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let is =
            rights == "r--p" && end - start == COPY && words.nth(2) == Some("0") && words.next().is_none();
        is.then_some(start)
    })
}

/// Changes the first byte of what is away, as soon as it is; false: the checkpoint was over before.
fn damage(pid: i32, checkpoint: &mut Child) -> Result<bool> {
    loop {
        if let Some(start) = copy_of(pid) {
            let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
            let mut byte = [0];
            memory.read_exact_at(&mut byte, start)?;
            memory.write_all_at(&[!byte[0]], start)?;
            return Ok(true);
        }
        if checkpoint.try_wait()?.is_some() {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The driver's part is delayed, so that there is time to do it; a checkpoint in which there was not is followed by
/// another.
#[test]
fn a_byte_that_has_changed_meanwhile_is_given_to_no_kernel() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "2000", &[("HOLDFAST_FAULT", "cuda-data-away+700")])?;
        let ended = loop {
            let mut command = bed.holdfast(&["checkpoint", JOB]);
            let error = bed.create("checkpoint.err")?;
            let mut child = with_driver(bed, &mut command)?.stderr(error).spawn()?;
            let damaged = damage(pid, &mut child)?;
            let code = shell_code(wait(&mut child, PATIENCE)?);
            if damaged {
                break code;
            }
        };
        let told = bed.text("checkpoint.err");
        ensure!(ended == INTERNAL && told.contains("something has overwritten it"), "{ended}: {told}");
        ensure!(
            told.contains(&format!("process {pid} (touches)")) && told.contains("is committed"),
            "{told}"
        );
        let made = steps_made(bed);
        kill_program(pid, &mut front)?;
        ensure!(steps_made(bed) <= made + 1, "its calls of CUDA were answered");
        // The image has the same byte: its digest is not that of what the device gets.
        let failed = say(bed, &["restart", JOB])?;
        ensure!(
            failed.code() == REFUSED && failed.stderr.contains("something has overwritten it"),
            "{}: {}",
            failed.code(),
            failed.stderr
        );
        bed.check_clean(JOB)
    });
}

#[test]
fn an_agent_that_ends_meanwhile_leaves_right_results() {
    // At its second pass: the first checkpoint has left a copy behind. One is passed more often.
    let points = ["cuda-data-away:2", "cuda-locked:2", "cuda-checkpointed:2", "stopped", "cuda-restored:2"];
    for (number, point) in points.iter().enumerate() {
        let user = if number % 2 == 0 || !am_root() { User::Ordinary } else { User::Root };
        let Some(bed) = Bed::new(user) else { continue };
        let test = || -> Result<()> {
            let (mut front, _) = start(&bed, "25", &[("HOLDFAST_FAULT", point)])?;
            if point.ends_with(":2") {
                checkpoint(&bed)?;
                steps_more(&bed, 1)?;
            }
            let ended = say(&bed, &["checkpoint", JOB])?;
            ensure!(ended.code() != 0, "the agent lives");
            ends_well(&bed, &mut front)
        };
        if let Err(error) = test() {
            panic!("{point} as {user:?}: {error:#}");
        }
    }
}

/// Nothing but the margin is left of the host's memory: refused before anything is touched, with need, rest and remedy.
#[test]
fn a_host_without_room_is_told_of_before_anything_is_touched() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "40", &[("HOLDFAST_FAULT", "host-full")])?;
        for _ in 0..2 {
            let ended = say(bed, &["checkpoint", JOB])?;
            let told = &ended.stderr;
            ensure!(ended.code() == REFUSED && bed.images(JOB).is_empty(), "{}: {told}", ended.code());
            for words in [
                &format!("{pid} (touches)"),
                "its device memory needs",
                "MiB of the host's memory",
                "has 0 MiB",
            ] {
                ensure!(told.contains(words), "{words}: {told}");
            }
            ensure!(copy_of(pid).is_none(), "there is a copy");
            steps_more(bed, 1)?;
        }
        ends_well(bed, &mut front)
    });
}

/// The addresses of the program are limited, and the copy finds no place: the limit is named, and raised.
#[test]
fn a_limit_of_addresses_is_named() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "60", &[])?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.split_whitespace().next());
        let size: u64 = size.context("VmSize")?.parse::<u64>()? << 10;
        let limit = |bytes: &str| -> Result<()> {
            let arguments = [format!("--pid={pid}"), format!("--as={bytes}:")];
            let mut command = bed.command(Path::new("/usr/bin/prlimit"));
            command.args(arguments);
            bed.output(command, PATIENCE)?.success().map(drop)
        };
        limit(&(size + (64 << 20)).to_string())?;
        let ended = say(bed, &["checkpoint", JOB])?;
        let told = &ended.stderr;
        ensure!(ended.code() == INTERNAL && bed.images(JOB).is_empty(), "{}: {told}", ended.code());
        ensure!(
            told.contains("Cannot allocate memory") && told.contains("its limit RLIMIT_AS is "),
            "{told}"
        );
        steps_more(bed, 1)?;
        limit("unlimited")?;
        checkpoint(bed)?;
        ends_well(bed, &mut front)
    });
}

/// What one function of the driver fails at in libholdfast's own thread: `function:code@occasions`, whether there is an
/// image all the same, what is said, and whether the program's calls wait afterwards until it is tried again.
const FAILS: &[(&str, bool, &[&str])] = &[
    // The tables of the hasher: the processor hashes.
    ("cuMemAlloc:2", true, &[]),
    ("cuModuleLoadData:2", true, &[]),
    ("cuCtxSynchronize:700@1", false, &["its work on devices: cuCtxSynchronize: error 700"]),
    (
        "cuLaunchKernel:2@1",
        false,
        &["copying its device memory to the host", "cuLaunchKernel: out of memory (error 2)"],
    ),
    ("cuMemcpyHtoD:2@1", false, &["copying its device memory to the host: cuMemcpyHtoD of "]),
    ("cuMemcpyDtoH:999@1", false, &["cuMemcpyDtoH", "unknown error (error 999)"]),
    ("cuMemUnmap:1@1", false, &["copying its device memory to the host, block 0: cuMemUnmap of ", " MiB: "]),
    ("cuMemRelease:1@1", false, &["cuMemRelease: invalid value (error 1)"]),
    // On the way back: tried again.
    ("cuMemCreate:2@1-3", true, &[]),
    ("cuMemMap:2@1-2", true, &[]),
    ("cuMemSetAccess:2@1-2", true, &[]),
    ("cuModuleUnload:2@2", true, &[]),
];

#[test]
fn whatever_the_driver_fails_at_is_named_and_the_program_goes_on() {
    for (number, (fails, succeeds, words)) in FAILS.iter().enumerate() {
        let user = if number % 2 == 0 || !am_root() { User::Ordinary } else { User::Root };
        let Some(bed) = Bed::new(user) else { continue };
        let test = || -> Result<()> {
            let failing = [("STAND_IN_FAIL", *fails), ("STAND_IN_FAIL_THREAD", "holdfast-cuda")];
            let (mut front, pid) = start(&bed, "30", &failing)?;
            let ended = say(&bed, &["checkpoint", JOB])?;
            let told = &ended.stderr;
            ensure!((ended.code() == 0) == *succeeds, "status {}: {told}", ended.code());
            words.iter().try_for_each(|words| {
                ensure!(told.contains(words), "{words}: {told}");
                Ok(())
            })?;
            if !succeeds {
                ensure!(
                    ended.code() == INTERNAL && told.contains(&format!("process {pid} (touches)")),
                    "{told}"
                );
                ensure!(bed.images(JOB).is_empty(), "there is an image");
                steps_more(&bed, 1)?;
                checkpoint(&bed)?;
            }
            kill_program(pid, &mut front)?;
            let mut command = bed.restart_command(JOB, &[])?;
            let mut front = with_driver(&bed, &mut command)?.spawn()?;
            ends_well(&bed, &mut front)
        };
        if let Err(error) = test() {
            panic!("{fails} as {user:?}: {error:#}");
        }
    }
}

/// More failures than tries: the image is committed, the program waits, and goes on by itself as soon as the driver has
/// memory again; a restart that fails so leaves the image.
#[test]
fn a_device_that_has_no_room_for_the_way_back_is_waited_for() {
    each_user(|bed| {
        let failing = [("STAND_IN_FAIL", "cuMemCreate:2@1-6"), ("STAND_IN_FAIL_THREAD", "holdfast-cuda")];
        let (mut front, pid) = start(bed, "30", &failing)?;
        let ended = say(bed, &["checkpoint", JOB])?;
        let told = &ended.stderr;
        ensure!(ended.code() == INTERNAL && bed.images(JOB).len() == 1, "{}: {told}", ended.code());
        for words in [
            "copying its device memory back, block 0: cuMemCreate of ",
            " MiB: out of memory (error 2): the device has no free memory",
            "its CUDA calls wait until the memory is back",
            "is committed",
        ] {
            ensure!(told.contains(words), "{words}: {told}");
        }
        // Nobody tells it to: the thread tries again each second.
        steps_more(bed, 2)?;
        kill_program(pid, &mut front)?;
        // The stand-in counts anew, as its count is in the image: the restart fails at the same, each time.
        for _ in 0..2 {
            let failed = say(bed, &["restart", JOB])?;
            ensure!(failed.code() == REFUSED, "{}: {}", failed.code(), failed.stderr);
            ensure!(
                failed.stderr.contains("cuMemCreate of ") && failed.stderr.contains("image is as it was"),
                "{}",
                failed.stderr
            );
        }
        say(bed, &["verify", JOB])?.success()?;
        bed.check_clean(JOB)
    });
}
