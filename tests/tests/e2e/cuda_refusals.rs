//! What no CUDA driver checkpoints is refused by name, by `check` too, before the driver is asked: with a multicast
//! object its checkpoint hangs. The program runs on, and can be checkpointed when it has let go of it.

use anyhow::{Context, Result, ensure};
use holdfast_tests::cuda_job::CudaJob;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, each_user, shell_code, wait};
use std::process::Command;

const JOB: &str = "o";
const REFUSED: i32 = 69;

/// `holdfast ARGUMENTS…` with the stand-in driver.
fn say(bed: &Bed, arguments: &[&str]) -> Result<Ended> {
    let mut command = bed.holdfast(arguments);
    command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?);
    bed.output(command, PATIENCE)
}

fn is_refused_until_it_is_gone(bed: &Bed, kind: &str, words: &str) -> Result<()> {
    let program = bed.kit().program("cuda_objects").to_string_lossy().into_owned();
    let mut command = bed.run_command(JOB, &[], &[&program, kind])?;
    let mut front = command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?).spawn()?;
    bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("the object", PATIENCE, || bed.text("out").contains("has it\n"))?;
    let checked = say(bed, &["check", JOB])?;
    ensure!(checked.code() == REFUSED && checked.stdout.contains(words), "{}", checked.stdout);
    let failed = say(bed, &["checkpoint", JOB])?;
    ensure!(failed.code() == REFUSED && failed.stderr.contains(words), "{}", failed.stderr);
    ensure!(bed.images(JOB).is_empty(), "{:?}", bed.images(JOB));
    bed.create("go")?;
    bed.until("its end", PATIENCE, || bed.text("out").contains("has it not\n"))?;
    say(bed, &["checkpoint", JOB])?.success()?;
    bed.create("end")?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    ensure!(
        code == 0 && bed.text("out") == "has it\nhas it not\nPASS\n",
        "status {code}: {}",
        bed.text("out")
    );
    bed.check_clean(JOB)
}

#[test]
fn managed_memory() {
    each_user(|bed| is_refused_until_it_is_gone(bed, "managed", "no driver checkpoints managed memory"));
}

#[test]
fn an_open_capture() {
    each_user(|bed| is_refused_until_it_is_gone(bed, "capture", "1 open stream captures: "));
}

#[test]
fn multicast() {
    each_user(|bed| is_refused_until_it_is_gone(bed, "multicast", "1 multicast objects: "));
}

/// Where a device is a part of one, which the environment tells, the driver is not asked.
#[test]
fn a_part_of_a_device() {
    each_user(|bed| {
        let variables = [("CUDA_VISIBLE_DEVICES", "MIG-c7384736-a75d-5afc-978f-d2f1294409fd")];
        let job = CudaJob::start(bed, JOB, "saxpy", &variables)?;
        let words = ["it runs on a MIG instance (CUDA_VISIBLE_DEVICES=MIG-", "give it a whole device"];
        job.fails(REFUSED, &words)?;
        let checked = say(bed, &["check", JOB])?;
        ensure!(checked.code() == REFUSED && checked.stdout.contains(words[0]), "{}", checked.stdout);
        job.lines(1)?;
        job.ends_well()
    });
}

/// A library with nothing in it, whose name is one that says what a program does.
fn library(bed: &Bed, name: &str) -> Result<String> {
    let path = bed.work().join(name).to_string_lossy().into_owned();
    let made = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o", &path]).status()?;
    ensure!(made.success(), "{name} was not made");
    Ok(path)
}

/// A program with such a library: whether it is refused with these words, by `check` too. It runs on.
fn is_refused(bed: &Bed, name: &str, program: &str, variables: &[(&str, &str)], words: &str) -> Result<()> {
    let library = library(bed, name)?;
    let mut all = vec![("LD_PRELOAD", library.as_str())];
    all.extend(variables);
    let job = CudaJob::start(bed, JOB, program, &all)?;
    if words.is_empty() {
        job.checkpoint()?;
    } else {
        job.fails(REFUSED, &[words])?;
        let checked = say(bed, &["check", JOB])?;
        ensure!(checked.code() == REFUSED && checked.stdout.contains(words), "{}", checked.stdout);
    }
    job.lines(1)?;
    job.ends_well()
}

/// With NCCL and others the first replay after a restore hangs; a program that has NCCL for itself is like any other.
#[test]
fn graphs_that_nccl_may_be_a_part_of() {
    let words = "it has 1 executable graphs, and NCCL with several devices";
    for (program, size, words) in [("graph", "2", words), ("graph", "1", ""), ("saxpy", "2", "")] {
        each_user(|bed| is_refused(bed, "libnccl.so.2", program, &[("WORLD_SIZE", size)], words));
    }
}

/// cuFile without nvidia-fs: what a disk writes to a device no call shows.
#[test]
fn disks_that_write_to_devices() {
    let words = "it uses GPUDirect Storage (cuFile with CUFILE_USE_PCIP2PDMA)";
    for (compatible, words) in [("false", words), ("true", "")] {
        let variables = [("CUFILE_USE_PCIP2PDMA", "true"), ("CUFILE_FORCE_COMPAT_MODE", compatible)];
        each_user(|bed| is_refused(bed, "libcufile.so.0", "saxpy", &variables, words));
    }
}
