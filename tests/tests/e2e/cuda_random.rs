//! Random faults of the driver's Lock, Checkpoint, Restore and Unlock, on the stand-in: which function, with which
//! code, at which call, once or from then on. Whatever comes of a checkpoint, no image is without its device half, what
//! is said of the program is true, and the newest image goes on (200 faults in the long form).

use anyhow::{Context, Result, ensure};
use holdfast_tests::cuda_job::{CudaJob, say};
use holdfast_tests::full;
use holdfast_tests::random::Random;
use holdfast_tests::sandbox::{Bed, User, am_root};

const JOB: &str = "x";
/// Faults of each test: there are four.
const SHORT: u64 = 1;
const LONG: u64 = 50;

/// Functions, as STAND_IN_FAIL names them.
const FUNCTIONS: [&str; 4] = [
    "cuCheckpointProcessRestore",
    "cuCheckpointProcessLock",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessUnlock",
];
/// What they fail with (CUresult).
const CODES: [u32; 10] = [1, 2, 3, 46, 304, 401, 600, 800, 909, 999];
/// What the stand-in does as a driver does it, with its consequences (STAND_IN_FAULT).
const KINDS: [&str; 4] = ["restore", "checkpoint", "lock-timeout", "unlock"];
const PROGRAMS: [&str; 4] = ["saxpy", "pointers", "globals", "atomics"];
/// What is said where a program cannot go on.
const STUCK: [&str; 4] =
    ["cannot use its devices again", "stays locked", "its CUDA calls fail", "CHECKPOINTED already"];

/// A variable, and its value.
fn fault(random: &mut Random) -> (&'static str, String) {
    let call = 1 + random.below(4);
    let when = match random.below(4) {
        0 => format!("@{call}+"),
        1 => format!("@{call}-{}", call + 1 + random.below(4)),
        _ => format!("@{call}"),
    };
    if random.below(3) == 0 {
        return ("STAND_IN_FAULT", format!("{}{when}", KINDS[random.below(4) as usize]));
    }
    let (function, code) = (FUNCTIONS[random.below(4) as usize], CODES[random.below(10) as usize]);
    ("STAND_IN_FAIL", format!("{function}:{code}{when}"))
}

/// No image is of a program without its device half.
fn all_are_whole(bed: &Bed) -> Result<()> {
    for image in bed.images(JOB) {
        let shown = bed.show(&format!("{JOB}@{image}"))?;
        ensure!(shown["record"]["cuda"]["state"] == "checkpointed", "image {image} has no device half");
    }
    Ok(())
}

/// A fault, some checkpoints, the end, a restart of what there is.
fn one_fault(bed: &Bed, owner: &str, random: &mut Random) -> Result<()> {
    let (variable, value) = fault(random);
    let program = PROGRAMS[random.below(4) as usize];
    println!("{program}: {variable}={value}");
    let variables = [("HOLDFAST_CUDA_DATA", owner), (variable, value.as_str())];
    let mut job = CudaJob::start(bed, JOB, program, &variables)?;
    let mut stuck = false;
    for _ in 0..2 + random.below(3) {
        let ended = say(bed, &["checkpoint", JOB], &[])?;
        all_are_whole(bed).with_context(|| ended.stderr.clone())?;
        stuck |= STUCK.iter().any(|words| ended.stderr.contains(words));
        ensure!(ended.code() != 0 || !stuck, "the program is stuck, and a checkpoint of it succeeds");
        if !stuck {
            job.lines(1).with_context(|| format!("not said to be stuck: {}", ended.stderr))?;
        }
    }
    job.kill()?;
    if bed.images(JOB).is_empty() {
        return Ok(());
    }
    say(bed, &["verify", JOB], &[])?.success()?;
    let owner = [("HOLDFAST_CUDA_DATA", owner)];
    job.restart(&owner)?;
    job.checkpoint()?;
    all_are_whole(bed)?;
    job.lines(1)?;
    job.ends_well()
}

fn faults(owner: &str, user: User) {
    let user = if am_root() { user } else { User::Ordinary };
    let mut random = Random::new();
    for number in 0..if full() { LONG } else { SHORT } {
        let Some(bed) = Bed::new(user) else { return };
        if let Err(error) = one_fault(&bed, owner, &mut random) {
            panic!("fault {number}, {owner}: {error:#}\n{}", bed.text("err"));
        }
    }
}

#[test]
fn of_a_program_whose_memory_is_the_drivers() {
    faults("driver", User::Ordinary);
}

#[test]
fn of_a_program_whose_memory_is_the_drivers_as_root() {
    faults("driver", User::Root);
}

#[test]
fn of_a_program_whose_memory_is_the_librarys() {
    faults("library", User::Root);
}

#[test]
fn of_a_program_whose_memory_is_a_keepers() {
    faults("keeper", User::Ordinary);
}
