//! Images that land in memory: they survive the program and its agent, move to the store by themselves, and what finds
//! no room in memory goes there at once.

use super::plain_job::{
    JOB, checkpoint_kills_the_agent, kill_all, listed, none_is_left, restarts, start, start_with_fault,
    until_listed,
};
use anyhow::{Context, Result, ensure};
use holdfast_tests::own::{build, pids, shell};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
        bed.until("a line", PATIENCE, || bed.text("err").contains("image 1 went to the store instead"))?;
        ensure!(bed.text("err").matches("instead of tier memory").count() == 1, "{}", bed.text("err"));
        until_places(bed, &[&["local"], &["local"]])?;
        kill_all(bed, JOB, &mut front, pid)?;
        // Nothing is needed of memory.
        fs::remove_dir_all(memory(bed)?)?;
        bed.say(&["verify", JOB])?.success()?;
        restarts_and_goes(bed)
    });
}

/// The server that its client starts may take more memory than there is; it writes no faster than the job.
#[test]
fn memory_and_rate_are_shared_with_the_server_of_objects() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--tier", "memory", "--rate", "700M"])?;
        build(bed, "cc -std=gnu11", "versions.c", "holdfast-client")?;
        bed.create("serve")?;
        let serve = bed.work().join("serve");
        fs::write(
            &serve,
            format!("#!/bin/sh\nexec {} \"$@\" --memory 1T\n", bed.kit().holdfast().display()),
        )?;
        fs::set_permissions(&serve, fs::Permissions::from_mode(0o755))?;
        let line = format!("./versions 'store={}' 1 hold end", bed.store().display());
        let mut client = shell(bed, &line).env("HOLDFAST_BIN", &serve).stdout(bed.create("held")?).spawn()?;
        bed.until("a version", PATIENCE, || bed.text("held") == "held\n")?;
        let log = fs::read_to_string(bed.store().join("objects/serve.log"))?;
        ensure!(log.contains("at most 700.0 MiB in a second"), "{log}");
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("a line", PATIENCE, || bed.text("err").contains("image 1 went to the store instead"))?;
        bed.create("end")?;
        ensure!(client.wait()?.success());
        processes::kill(&pids(bed, "serve"));
        kill_all(bed, JOB, &mut front, pid)?;
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

fn flip(path: &Path) -> Result<()> {
    let mut bytes = fs::read(path)?;
    // In every frame: no image may need the first.
    bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
    Ok(fs::write(path, bytes)?)
}

/// The tiers and images that `verify` has found damaged.
fn damaged(bed: &Bed, options: &[&str]) -> Result<Vec<(String, u64)>> {
    let found = bed.say(&[&["verify", JOB, "--json"], options].concat())?;
    let rows: Value = serde_json::from_str(&found.stdout)?;
    let rows = rows["images"].as_array().cloned().unwrap_or_default();
    let bad = rows.iter().filter(|row| row["good"] == false && row["epoch"].is_u64());
    let bad: Vec<(String, u64)> = bad
        .map(|row| (row["tier"].as_str().unwrap_or_default().to_owned(), row["epoch"].as_u64().unwrap_or(0)))
        .collect();
    ensure!(found.code() == if bad.is_empty() { 0 } else { 65 }, "{options:?}: {bad:?} {}", found.code());
    Ok(bad)
}

/// Each of these once said that memory is no tier (rc 64), freed nothing, or left what it freed in the listing.
#[test]
fn what_keeps_a_store_clean_knows_the_memory_above_it() {
    each_user(|bed| {
        let pfs = format!("dir={}/pfs", bed.work().display());
        let (mut front, pid) = start(bed, &["--tier", "memory,keep=1", "--tier", &pfs])?;
        for _ in 0..3 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        bed.say(&["sync", JOB, "--wait"])?.success()?;
        kill_all(bed, JOB, &mut front, pid)?;
        let has_tier = |found: &str, tier: &str| found.contains(&format!(" on {tier}: good"));
        let all = bed.say(&["verify", JOB, "--all-tiers"])?.success()?.stdout;
        ensure!(has_tier(&all, "memory") && has_tier(&all, &pfs) && all.contains("j@3: good"), "{all}");
        for tier in ["local", "memory", &pfs] {
            bed.say(&["verify", JOB, "--tier", tier])?.success()?;
        }
        // Each of the two copies on this host is looked at, and put back from the other.
        let segment = "segment-000003-000";
        for (tier, folder) in [("local", bed.job(JOB)), ("memory", memory(bed)?)] {
            flip(&folder.join(segment))?;
            ensure!(damaged(bed, &[])? == [(tier.to_owned(), 3)], "{tier}: {:?}", damaged(bed, &[])?);
            bed.say(&["verify", JOB, "--repair"])?.success()?;
            ensure!(damaged(bed, &["--all-tiers"])?.is_empty(), "{tier}");
        }
        bed.say(&["export", JOB, "j.img", "--tier", "local"])?.success()?;
        let refused = bed.say(&["prune", JOB, "--tier", "memory", "--keep", "1"])?;
        ensure!(refused.code() == 64 && refused.stderr.contains("--tier local"), "{}", refused.stderr);
        bed.say(&["prune", "j@1", "--tier", "local"])?.success()?;
        let freed = bed.say(&["prune", JOB, "--keep", "1", "--all-tiers", "--json"])?.success()?;
        let freed: Value = serde_json::from_str(&freed.stdout)?;
        ensure!(freed["freed"].as_u64() > Some(0) && bed.images(JOB) == [3], "{freed} {:?}", bed.images(JOB));
        let row = listed(bed)?;
        let tiers = row["tiers"].as_array().cloned().unwrap_or_default();
        ensure!(tiers.len() == 2 && tiers.iter().all(|tier| tier["versions"] == json!([3])), "{row}");
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(!text.contains("not in the store"), "{text}");
        bed.may_end()?;
        restarts(bed, JOB, &[])?;
        none_is_left(bed)?;
        goes(bed)
    });
}
