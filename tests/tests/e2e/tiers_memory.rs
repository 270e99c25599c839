//! Images that land in memory: they survive the program and its agent, move to the store by themselves, and what finds
//! no room in memory goes there at once.

use super::plain_job::{
    JOB, checkpoint_kills_the_agent, kill_all, restarts, start, start_with_fault, until_listed,
};
use anyhow::{Context, Result, ensure};
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user};
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Waits until the images are at these places.
fn until_places(bed: &Bed, places: &[&[&str]]) -> Result<()> {
    until_listed(bed, "the images at their places", |row| {
        let images = row["images"].as_array().cloned().unwrap_or_default();
        images.len() == places.len()
            && images.iter().zip(places).all(|(image, places)| image["tiers"] == json!(places))
    })
}

fn memory(bed: &Bed) -> Result<PathBuf> {
    Ok(fs::read_link(bed.job(JOB).join("memory"))?)
}

/// To the right end; then the job goes, and its memory.
fn restarts_and_goes(bed: &Bed) -> Result<()> {
    bed.may_end()?;
    restarts(bed, JOB, &[])?;
    bed.check_clean(JOB)?;
    goes(bed)
}

fn goes(bed: &Bed) -> Result<()> {
    let memory = memory(bed)?;
    bed.say(&["prune", JOB, "--all"])?.success()?;
    ensure!(!memory.exists(), "the memory of a job goes with its images");
    Ok(())
}

#[test]
fn images_land_in_memory_and_the_store_has_them_when_the_host_goes() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--tier", "memory,keep=1"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_places(bed, &[&["local"], &["memory", "local"]])?;
        let memory = memory(bed)?;
        let (folder, above) = (fs::metadata(&memory)?, fs::metadata(memory.parent().context("a folder")?)?);
        ensure!(folder.mode() & 0o777 == 0o700 && above.mode() & 0o777 == 0o700, "0700");
        ensure!(memory.starts_with("/dev/shm") && memory.join("manifest-000002").exists(), "{memory:?}");
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(text.contains("memory, local") && text.contains("tier local: 2 images, newest 2"), "{text}");
        ensure!(bed.show("j@2")?["tiers"] == json!(["memory", "local"]));
        bed.say(&["verify", JOB])?.success()?;
        kill_all(bed, JOB, &mut front, pid)?;
        // What a host that is started anew has of it.
        fs::remove_dir_all(&memory)?;
        until_places(bed, &[&["local"], &["local"]])?;
        restarts_and_goes(bed)
    });
}

#[test]
fn what_was_committed_to_memory_survives_a_kill_right_then() {
    each_user(|bed| {
        let (mut front, pid) = start_with_fault(bed, &["--tier", "memory"], "manifest-renamed")?;
        checkpoint_kills_the_agent(bed)?;
        kill_program(pid, &mut front)?;
        ensure!(bed.images(JOB).is_empty(), "the store has nothing yet");
        until_places(bed, &[&["memory"]])?;
        restarts_and_goes(bed)
    });
}

#[test]
fn what_finds_no_room_in_memory_goes_to_the_store_at_once() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--tier", "memory,max=4K"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("a line", PATIENCE, || bed.text("err").contains("image 1 went past tier memory"))?;
        ensure!(bed.text("err").matches("went past tier memory").count() == 1, "{}", bed.text("err"));
        until_places(bed, &[&["local"], &["local"]])?;
        kill_all(bed, JOB, &mut front, pid)?;
        // Nothing is needed of memory.
        fs::remove_dir_all(memory(bed)?)?;
        bed.say(&["verify", JOB])?.success()?;
        restarts_and_goes(bed)
    });
}

#[test]
fn sync_brings_to_the_store_what_a_dead_agent_left_in_memory() {
    each_user(|bed| {
        let (mut front, pid) = start_with_fault(bed, &["--tier", "memory"], "cascade-segment")?;
        checkpoint_kills_the_agent(bed)?;
        kill_program(pid, &mut front)?;
        until_places(bed, &[&["memory"]])?;
        bed.say(&["sync", JOB])?.success()?;
        fs::remove_dir_all(memory(bed)?)?;
        until_places(bed, &[&["local"]])?;
        bed.say(&["verify", JOB])?.success()?;
        restarts_and_goes(bed)
    });
}
