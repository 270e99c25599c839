//! A CUDA program on another device, with the driver's job file, after restores that fail, on the stand-in driver.

use anyhow::ensure;
use holdfast_tests::cuda_job::{CudaJob, say};
use holdfast_tests::sandbox::each_user;
use std::fs;

const JOB: &str = "r";
const REFUSED: i32 = 69;

/// Devices of other machines.
const SECOND: (&str, &str) = ("STAND_IN_UUID", "22222222-2222-2222-2222-222222222222");
const THIRD: (&str, &str) = ("STAND_IN_UUID", "33333333-3333-3333-3333-333333333333");

#[test]
fn another_device_of_the_model_stands_for_the_one_of_the_image() {
    each_user(|bed| {
        let mut job = CudaJob::start(bed, JOB, "saxpy", &[])?;
        for (device, other) in [(SECOND, THIRD), (THIRD, SECOND)] {
            job.checkpoint()?;
            job.kill()?;
            // What the user says is obeyed, or refused before anything runs.
            let there = bed.show(JOB)?["record"]["cuda"]["devices"][0]["uuid"].to_string().replace('"', "");
            let wrong = format!("{there}=GPU-{}", other.1);
            let words = ["cannot be restored here: ", "is not a device of this machine"];
            job.restart_fails(REFUSED, &[device, ("HOLDFAST_CUDA_DEVICES", &wrong)], &words)?;
            let said = format!("{there}=GPU-{}", device.1);
            let said = if device == SECOND { "" } else { &said };
            job.restart(&[device, ("HOLDFAST_CUDA_DEVICES", said)])?;
            let note = format!("restored onto other devices: GPU-{} in place of {there}", device.1);
            ensure!(bed.text("restart.err").contains(&note), "{}", bed.text("restart.err"));
            // From then on that is its device.
            job.checkpoint()?;
            job.lines(1)?;
        }
        job.kill()?;
        job.restart(&[THIRD])?;
        ensure!(!bed.text("restart.err").contains("other devices"), "{}", bed.text("restart.err"));
        job.ends_well()
    });
}

/// The stand-in for CUDA 13.1 has one: a restore needs it as it was after the last checkpoint of all processes.
#[test]
fn the_job_file_of_the_driver_is_part_of_the_image() {
    each_user(|bed| {
        let path = bed.work().join("job-file");
        let text = path.to_string_lossy().into_owned();
        let variables = [("STAND_IN_VERSION", "13010"), ("CUDA_CHECKPOINT_JOB_FILE", text.as_str())];
        let mut job = CudaJob::start(bed, JOB, "streams", &variables)?;
        for _ in 0..2 {
            job.checkpoint()?;
            job.lines(1)?;
            job.kill()?;
            ensure!(fs::read(&path)?.is_empty(), "the driver has taken its line away again");
            fs::remove_file(&path)?;
            job.restart(&variables)?;
            job.checkpoint()?;
            job.kill()?;
            fs::write(&path, "of another time\n")?;
            job.restart(&variables)?;
        }
        // Not one that belongs to processes that live.
        let record = &bed.show(JOB)?["record"]["cuda"]["job_file"];
        ensure!(
            record["path"] == *text && record["content"].as_str().is_some_and(|it| it.len() == 34),
            "{record}"
        );
        job.ends_well()
    });
}

/// Not only when the image is there: until then it would stand still without a word.
#[test]
fn a_program_that_stays_stopped_is_told_of_at_once() {
    each_user(|bed| {
        let faults = [("STAND_IN_FAULT", "restore@1"), ("HOLDFAST_CUDA_DATA", "driver")];
        let mut job = CudaJob::start(bed, JOB, "saxpy", &faults)?;
        let ended = say(bed, &["checkpoint", JOB], &[])?;
        ensure!(ended.stderr.contains("image 1 is committed, but "), "{}", ended.stderr);
        // The front has said it, too, with what is to be done.
        let words =
            ["(saxpy) cannot use its devices again", "restart the newest image", "its image is being stored"];
        let told = bed.text("err");
        ensure!(words.iter().all(|word| told.contains(word)), "{told}");
        job.kill()?;
        job.restart(&[])?;
        job.ends_well()
    });
}

/// Restored processes that failed are ended, and nothing of the image is used up.
#[test]
fn a_restore_that_fails_can_be_tried_again() {
    each_user(|bed| {
        let mut job = CudaJob::start(bed, JOB, "pointers", &[])?;
        job.checkpoint()?;
        job.kill()?;
        let none = ("STAND_IN_FAULT", "");
        for fault in ["restore", "unlock"] {
            let words = ["restart again when its devices are free"];
            job.restart_fails(REFUSED, &[("STAND_IN_FAULT", fault)], &words)?;
        }
        // A device with too little memory.
        job.restart_fails(REFUSED, &[("STAND_IN_MEMORY", "64K")], &["out of memory"])?;
        say(bed, &["verify", JOB], &[])?.success()?;
        job.restart(&[none])?;
        job.checkpoint()?;
        job.ends_well()
    });
}
