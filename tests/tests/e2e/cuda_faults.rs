//! What goes wrong around a checkpoint of a CUDA program, on the stand-in driver: calls and work that do not come to
//! their end, a driver that fails or hangs, death of program, agent or caller in any moment, host and device of
//! different moments. The program goes on, or its newest image does.

use anyhow::{Context, Result, ensure};
use holdfast_tests::cuda_job::{CudaJob, Variables, say};
use holdfast_tests::random::Random;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user};
use holdfast_tests::{full, processes};
use std::time::{Duration, Instant};

const JOB: &str = "f";
const INTERNAL: i32 = 70;

/// A job of `cuda_objects KIND`.
fn objects<'a>(bed: &'a Bed, kind: &str, variables: Variables<'_>) -> Result<CudaJob<'a>> {
    let path = bed.kit().program("cuda_objects").to_string_lossy().into_owned();
    CudaJob::begin(bed, JOB, &["/usr/bin/env", "STAND_IN_FAULT=", &path, kind], variables)
}

fn says(bed: &Bed, line: &str) -> Result<()> {
    bed.until(line, PATIENCE, || bed.text("out").ends_with(&format!("{line}\n")))
}

/// A checkpoint fails with these words as long as it works; the program is not disturbed, and has an image then.
fn fails_as_long_as_it_works(bed: &Bed, kind: &str, words: &[&str]) -> Result<()> {
    let job = objects(bed, kind, &[("HOLDFAST_CUDA_LOCK", "0.3")])?;
    says(bed, "has it")?;
    job.fails(INTERNAL, words)?;
    bed.create("go")?;
    says(bed, "has it not")?;
    job.checkpoint_at_last()?;
    bed.create("end")?;
    job.ends_well()
}

#[test]
fn a_call_that_does_not_return_is_named_with_its_thread() {
    each_user(|bed| {
        let words = ["(cuda_objects) is in cuStreamSynchronize, which has not returned for 0.3 s", "thread "];
        fails_as_long_as_it_works(bed, "waits", &words)
    });
}

#[test]
fn work_that_does_not_end_is_a_lock_in_vain() {
    each_user(|bed| {
        let words =
            ["cuCheckpointProcessLock: not ready (error 600)", "its work on devices was not done in time"];
        fails_as_long_as_it_works(bed, "works", &words)
    });
}

/// The driver's checkpoint hangs where there is a multicast object (NVIDIA/nccl#2340), and the process answers nothing
/// any more. The hooks refuse before; here they have not seen it. What is left is said, and the newest image is good.
#[test]
fn a_hang_of_the_driver_ends_at_the_deadline_and_leaves_the_newest_image() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    let test = || -> Result<()> {
        let mut job = objects(&bed, "unseen", &[("HOLDFAST_CUDA_DEADLINE", "1")])?;
        says(&bed, "begins")?;
        job.checkpoint_at_last()?;
        bed.create("begin")?;
        says(&bed, "has it")?;
        let images = bed.images(JOB);
        let mut told = String::new();
        // What comes before the checkpoint may be too late on a busy machine.
        bed.until("the hang", PATIENCE, || {
            told = say(&bed, &["checkpoint", JOB], &[])
                .map_or_else(|error| error.to_string(), |ended| ended.stderr);
            told.contains("cuCheckpointProcessCheckpoint: no answer in 1 s")
        })
        .with_context(|| told.clone())?;
        let left = format!(
            "process {} (cuda_objects) cannot use its devices again, and its CUDA calls wait",
            job.pid()
        );
        ensure!(told.contains(&left), "{told}");
        ensure!(bed.images(JOB) == images && bed.agent_pid(JOB)?.is_some(), "{images:?}");
        job.kill()?;
        say(&bed, &["verify", JOB], &[])?.success()?;
        bed.create("go")?;
        job.revive(&[])?;
        says(&bed, "has it not")?;
        job.checkpoint()?;
        bed.create("end")?;
        job.ends_well()
    };
    test().unwrap();
}

#[test]
fn what_the_driver_fails_at_leaves_the_program_and_its_images() {
    each_user(|bed| {
        // The occasions of one caller: the second lock, the third checkpoint, an unlock of each kind of end.
        let faults = [("STAND_IN_FAULT", "lock-timeout@2,checkpoint@2,unlock@3,unlock@5")];
        let mut job = CudaJob::start(bed, JOB, "atomics", &faults)?;
        job.checkpoint()?;
        job.fails(INTERNAL, &["cuCheckpointProcessLock: not ready (error 600)"])?;
        job.lines(1)?;
        job.fails(INTERNAL, &["cuCheckpointProcessCheckpoint: ", "(error 304)"])?;
        job.lines(1)?;
        for _ in 0..2 {
            job.checkpoint()?;
            job.lines(1)?;
        }
        job.kill()?;
        job.restart(&[])?;
        job.ends_well()
    });
}

/// The programs compare device memory with what the host has of the same moment: an image of two moments does not go
/// unseen by the tests that restart them.
fn notices_a_mixture(bed: &Bed, program: &str) -> Result<()> {
    let path = bed.kit().cuda_program(program).to_string_lossy().into_owned();
    // The second restore finds the host of its own checkpoint, and the device of the first.
    // It ends when it has noticed; `threads` makes no more steps than these.
    let words = ["/usr/bin/env", "STAND_IN_FAULT=stale-restore@2", &path, "1000"];
    let mut job = CudaJob::begin(bed, JOB, &words, &[("HOLDFAST_CUDA_DATA", "driver")])?;
    job.lines(2)?;
    job.checkpoint()?;
    job.lines(2)?;
    let agent = bed.agent_pid(JOB)?.context("an agent")?;
    job.checkpoint()?;
    bed.until("what the program says", PATIENCE, || bed.text("out").contains("FAIL"))
        .with_context(|| format!("{program} has not noticed; {}", bed.text("out")))?;
    bed.until("the end of the job", PATIENCE, || !processes::runs(agent))?;
    job.kill()
}

/// Not `pinned`, which writes all that it has on the device anew in each step.
#[test]
fn host_and_device_of_different_moments_are_noticed() {
    let short = ["saxpy", "pointers", "globals", "graph"];
    let all =
        ["saxpy", "pointers", "atomics", "structs", "globals", "streams", "graph", "touches", "threads"];
    for (number, program) in if full() { &all[..] } else { &short[..] }.iter().enumerate() {
        let user =
            if number % 2 == 0 || !holdfast_tests::sandbox::am_root() { User::Ordinary } else { User::Root };
        let Some(bed) = Bed::new(user) else { continue };
        if let Err(error) = notices_a_mixture(&bed, program) {
            panic!("{program}: {error:#}");
        }
    }
}

/// The process that calls the driver for the job's agent.
fn caller(bed: &Bed) -> Option<i32> {
    processes::of(bed.dir()).into_iter().find(|&pid| processes::command_line(pid).contains(" __cuda "))
}

/// One death at a random moment of a checkpoint that takes about as long as `usual`.
fn one_death(bed: &Bed, job: &mut CudaJob<'_>, random: &mut Random, usual: Duration) -> Result<()> {
    let mut command = bed.holdfast(&["checkpoint", JOB]);
    let mut checkpoint = command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?).spawn()?;
    std::thread::sleep(usual.mul_f64(random.below(1200) as f64 / 1000.0));
    let who = random.below(3);
    match who {
        0 => job.kill()?,
        1 => processes::kill(&[bed.agent_pid(JOB)?.context("an agent")?]),
        _ => processes::kill(&caller(bed).into_iter().collect::<Vec<_>>()),
    }
    // Whatever it says: it may have come to its end before.
    holdfast_tests::sandbox::wait(&mut checkpoint, PATIENCE)?;
    if who != 0 {
        job.lines(2).with_context(|| {
            format!("the program after the death of {}", ["", "the agent", "the caller"][who as usize])
        })?;
    }
    if who == 1 {
        job.kill()?;
    }
    if who < 2 {
        say(bed, &["verify", JOB], &[])?.success()?;
        job.restart(&[])?;
    }
    Ok(())
}

#[test]
fn death_in_any_moment() {
    let deaths = if full() { 100 } else { 4 };
    each_user(|bed| {
        let mut random = Random::new();
        let mut job = CudaJob::start(bed, JOB, "streams", &[])?;
        let begun = Instant::now();
        job.checkpoint()?;
        let usual = begun.elapsed();
        for death in 0..deaths {
            one_death(bed, &mut job, &mut random, usual).with_context(|| format!("death {death}"))?;
        }
        job.checkpoint()?;
        job.ends_well()
    });
}
