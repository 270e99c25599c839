//! What is easily missed of a CUDA program, on the stand-in driver: work by functions that the table does not have, or
//! of libraries that pass every wrapper; a process that another program has checkpointed, or that could not be
//! restored; memory that is mapped where the driver has left a place.

use anyhow::{Context, Result, ensure};
use holdfast_tests::cuda_job::{CudaJob, Variables, say};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user, wait};
use std::fs;

const JOB: &str = "p";
const REFUSED: i32 = 69;
const INTERNAL: i32 = 70;
/// The driver leaves its addresses.
const DROPS: &str = "STAND_IN_RANGES=drop";

/// As each user, with each owner of device memory.
fn each_owner(test: impl Fn(&Bed, &str) -> Result<()>) {
    for owner in ["library", "keeper", "driver"] {
        each_user(|bed| test(bed, owner).with_context(|| format!("owner {owner}")));
    }
}

/// Waits for a file of `cuda_past`, and makes a checkpoint.
fn phase(bed: &Bed, job: &CudaJob<'_>, number: u32) -> Result<()> {
    let made = bed.work().join(format!("at.{number}"));
    bed.until("the next phase", PATIENCE, || made.exists() || bed.text("out").contains("FAIL"))?;
    ensure!(made.exists(), "{}", bed.text("out"));
    job.checkpoint()
}

/// The only work between two images is of a kind that is easily missed; the second is restarted.
fn is_in_the_image(bed: &Bed, kind: &str, options: &[&str], owner: &str) -> Result<()> {
    let program = bed.kit().program("cuda_past").to_string_lossy().into_owned();
    let words = ["/usr/bin/env", "STAND_IN_FAULT=", &program, kind, "at"];
    let mut job = CudaJob::begin_with(bed, JOB, options, &words, &[("HOLDFAST_CUDA_DATA", owner)])?;
    phase(bed, &job, 1)?;
    bed.create("at.2")?;
    phase(bed, &job, 3)?;
    job.kill()?;
    bed.create("at.4")?;
    job.revive(&[])?;
    job.ends_well()
}

#[test]
fn work_of_a_function_that_the_table_does_not_have() {
    each_owner(|bed, owner| is_in_the_image(bed, "unknown", &[], owner));
}

#[test]
fn the_same_by_its_address_from_the_driver() {
    each_owner(|bed, owner| is_in_the_image(bed, "given", &[], owner));
}

#[test]
fn work_of_a_library_that_is_bound_deeply() {
    each_owner(|bed, owner| is_in_the_image(bed, "deep", &["--malloc", "system"], owner));
}

/// Not for ever, because one capture was not ended as it should.
#[test]
fn a_capture_that_ended_in_an_error_is_over() {
    each_owner(|bed, owner| is_in_the_image(bed, "unjoined", &[], owner));
}

/// As long as it is so: `check` and a checkpoint say these words, and there is no image.
fn is_refused(bed: &Bed, job: &CudaJob<'_>, words: &str) -> Result<()> {
    for _ in 0..2 {
        job.fails(REFUSED, &[words])?;
        let checked = say(bed, &["check", JOB], &[])?;
        ensure!(checked.code() == REFUSED && checked.stdout.contains(words), "{}", checked.stdout);
    }
    Ok(())
}

/// With a keeper the driver refuses it to anything else: the process has memory of another one.
#[test]
fn a_process_that_something_else_has_checkpointed() {
    each_owner(|bed, owner| {
        if owner == "keeper" {
            return Ok(());
        }
        let job = CudaJob::start(bed, JOB, "saxpy", &[("HOLDFAST_CUDA_DATA", owner)])?;
        job.checkpoint()?;
        let pid = job.pid().to_string();
        let mut other = bed.command(&bed.kit().program("cuda_other"));
        other.arg(&pid).env("LD_LIBRARY_PATH", bed.kit().stand_in()?);
        let mut other = other.stdout(fs::File::create(bed.work().join("other"))?).spawn()?;
        bed.until("the other checkpoint", PATIENCE, || bed.text("other").contains("has it"))?;
        is_refused(bed, &job, "its CUDA is CHECKPOINTED already")?;
        bed.create("go")?;
        ensure!(wait(&mut other, PATIENCE)?.success(), "{}", bed.text("other"));
        job.checkpoint()?;
        job.lines(1)?;
        job.ends_well()
    });
}

/// The device was full when the driver was to restore it: no image without its CUDA state may be the newest.
fn a_failed_restore(bed: &Bed, variables: Variables<'_>) -> Result<()> {
    let mut job = CudaJob::start(bed, JOB, "saxpy", variables)?;
    job.checkpoint()?;
    job.lines(1)?;
    let ended = say(bed, &["checkpoint", JOB], &[])?;
    let words = ["image 2 is committed, but ", "cuCheckpointProcessRestore: out of memory", "restart it"];
    for word in words {
        ensure!(ended.code() == INTERNAL && ended.stderr.contains(word), "{word}: {}", ended.stderr);
    }
    is_refused(bed, &job, "its CUDA is CHECKPOINTED already")?;
    job.kill()?;
    say(bed, &["verify", JOB], &[])?.success()?;
    job.restart(&[])?;
    job.checkpoint().context("after the restart")?;
    job.ends_well()
}

#[test]
fn a_process_that_could_not_be_restored_has_no_images_any_more() {
    each_owner(|bed, owner| {
        a_failed_restore(bed, &[("STAND_IN_FAULT", "restore@2"), ("HOLDFAST_CUDA_DATA", owner)])
    });
}

/// A driver that leaves its addresses while the process is CHECKPOINTED, and takes them back whatever is there: what
/// the program maps meanwhile, and while it is restarted, lies elsewhere.
fn nothing_is_replaced(bed: &Bed, ranges: &str, owner: &str) -> Result<()> {
    let program = bed.kit().program("cuda_holes").to_string_lossy().into_owned();
    let words = ["/usr/bin/env", "STAND_IN_FAULT=", ranges, &program, "10"];
    let mut job = CudaJob::begin(bed, JOB, &words, &[("HOLDFAST_CUDA_DATA", owner)])?;
    job.lines(2)?;
    for _ in 0..8 {
        job.checkpoint()?;
        job.lines(1)?;
    }
    job.kill()?;
    job.restart(&[])?;
    job.lines(1)?;
    job.checkpoint().context("after the restart")?;
    job.lines(1)?;
    job.kill()?;
    job.restart(&[])?;
    job.ends_well()
}

#[test]
fn memory_that_is_mapped_meanwhile_is_not_replaced_where_libholdfast_has_the_rest() {
    each_user(|bed| nothing_is_replaced(bed, DROPS, "library"));
}

#[test]
fn the_same_where_a_keeper_has_it() {
    each_user(|bed| nothing_is_replaced(bed, DROPS, "keeper"));
}

#[test]
fn the_same_where_the_driver_has_it() {
    each_user(|bed| nothing_is_replaced(bed, DROPS, "driver"));
}

/// Where the driver keeps its addresses nothing is in the way: the places of a keeper's memory are free.
#[test]
fn memory_that_is_mapped_where_a_keepers_was_is_no_obstacle() {
    each_user(|bed| nothing_is_replaced(bed, "STAND_IN_RANGES=keep", "keeper"));
}

/// As in Apptainer: root's files, the driver's library among them, are of a user outside.
#[test]
fn a_driver_of_a_user_outside_of_the_namespace() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    let inside = |words: &[&str]| {
        let mut command = bed.command("unshare".as_ref());
        // What runs beside it, outside, is none of its business.
        command.args(["--user", "--map-current-user", "--pid", "--fork", "--mount-proc"]).args(words);
        bed.output(command, PATIENCE)
    };
    if !inside(&["true"]).is_ok_and(|ended| ended.code() == 0) {
        println!("SKIPPED: no user namespaces for ordinary users here");
        return;
    }
    let test = || -> Result<()> {
        let holdfast = bed.kit().holdfast().display().to_string();
        let saxpy = bed.kit().cuda_program("saxpy").display().to_string();
        let drivers = bed.kit().stand_in()?.display().to_string();
        let script = format!(
            "export LD_LIBRARY_PATH={drivers} HOLDFAST_STORE=$PWD/own\n\
             {holdfast} run --name {JOB} -- {saxpy} 60 >out & \n\
             until grep -q 'saxpy 2' out; do sleep 0.05; done\n\
             {holdfast} checkpoint --stop {JOB} || exit 3\n\
             wait\n\
             exec {holdfast} restart --stdio keep {JOB}"
        );
        let ended = inside(&["sh", "-c", &script])?.success()?;
        let out = bed.text("out");
        ensure!(out.ends_with("PASS\n") && out.lines().count() == 61, "{out}{}", ended.stderr);
        Ok(())
    };
    test().unwrap();
}
