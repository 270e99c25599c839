//! Devices without free memory, on the stand-in driver, which fails there as driver 580.159.04 does: a Checkpoint for
//! good, a Restore for good. So neither is tried: a checkpoint is refused by name, and a restore waits.

use anyhow::{Context, Result, ensure};
use holdfast_tests::cuda_job::{CudaJob, say};
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const JOB: &str = "r";
const REFUSED: i32 = 69;
/// Of the device, as the stand-in has it.
const ALL: u64 = 1 << 30;

/// A device that all processes of a test share.
fn device(bed: &Bed) -> Result<PathBuf> {
    let folder = bed.dir().join("device");
    fs::create_dir(&folder)?;
    // The program's user is another one.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    Ok(folder)
}

/// So much of it is another program's.
fn others_have(folder: &Path, bytes: u64) -> Result<()> {
    // At once: it may be read at any time.
    let new = folder.join("new");
    fs::write(&new, bytes.to_string())?;
    Ok(fs::rename(new, folder.join("others"))?)
}

#[test]
fn a_checkpoint_on_a_full_device_is_refused_before_anything_is_touched() {
    each_user(|bed| {
        let folder = device(bed)?;
        let shared = folder.to_string_lossy().into_owned();
        let variables = [("STAND_IN_DEVICE", shared.as_str()), ("HOLDFAST_CUDA_DATA", "driver")];
        let mut job = CudaJob::start(bed, JOB, "saxpy", &variables)?;
        job.checkpoint()?;
        job.lines(1)?;
        others_have(&folder, ALL - (20 << 20))?;
        let words =
            ["of memory free, and 64.0 MiB are needed for the driver's checkpoint", "end what else uses"];
        let checked = say(bed, &["check", JOB], &variables)?;
        let told = &checked.stdout;
        ensure!(checked.code() == REFUSED && words.iter().all(|word| told.contains(word)), "{told}");
        job.fails(REFUSED, &words)?;
        job.lines(1)?;
        // Nothing has happened to it.
        others_have(&folder, 0)?;
        job.checkpoint()?;
        job.lines(1)?;
        job.kill()?;
        others_have(&folder, ALL - (1 << 20))?;
        let short = ("HOLDFAST_CUDA_ROOM", "0.2");
        let words = ["cannot be restored here: device GPU-", "are needed; end what else uses it"];
        job.restart_fails(REFUSED, &[variables[0], short], &words)?;
        others_have(&folder, 0)?;
        job.restart(&variables)?;
        job.ends_well()
    });
}

/// Another program takes all that the driver's checkpoint has set free.
#[test]
fn a_restore_waits_for_room() {
    each_user(|bed| {
        let folder = device(bed)?;
        let shared = folder.to_string_lossy().into_owned();
        let variables = [
            ("STAND_IN_DEVICE", shared.as_str()),
            ("HOLDFAST_CUDA_DATA", "driver"),
            ("STAND_IN_FAULT", "crowded@1"),
        ];
        let mut job = CudaJob::start(bed, JOB, "saxpy", &variables)?;
        let mut command = bed.holdfast(&["checkpoint", JOB]);
        let mut checkpoint = command.env("LD_LIBRARY_PATH", bed.kit().stand_in()?).spawn()?;
        let waits = || bed.text("err").contains("waits for device memory");
        bed.until("the restore to wait", PATIENCE, waits)?;
        ensure!(fs::read_to_string(folder.join("others"))? != "0", "nobody has taken it");
        others_have(&folder, 0)?;
        ensure!(wait(&mut checkpoint, PATIENCE)?.success(), "{}", bed.text("err"));
        job.lines(1)?;
        job.checkpoint()?;
        job.kill()?;
        job.restart(&variables[..2])?;
        job.ends_well()
    });
}

/// What the driver's checkpoint has set free stays the program's.
#[test]
fn a_keeper_holds_the_room_meanwhile() {
    each_user(|bed| {
        let folder = device(bed)?;
        let shared = folder.to_string_lossy().into_owned();
        let variables = [
            ("STAND_IN_DEVICE", shared.as_str()),
            ("HOLDFAST_CUDA_DATA", "keeper"),
            ("STAND_IN_FAULT", "crowded@1"),
        ];
        let mut job = CudaJob::start(bed, JOB, "globals", &variables)?;
        job.checkpoint()?;
        let taken = fs::read_to_string(folder.join("others")).context("nobody has taken the rest")?;
        ensure!(taken.parse::<u64>()? > 0, "{taken}");
        ensure!(!bed.text("err").contains("waits for device memory"), "{}", bed.text("err"));
        others_have(&folder, 0)?;
        job.lines(1)?;
        job.checkpoint()?;
        job.kill()?;
        job.restart(&variables[..2])?;
        job.ends_well()
    });
}
