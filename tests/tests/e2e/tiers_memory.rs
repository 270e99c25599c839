//! Images that land in memory: they survive the program and its agent, move to the store by themselves, and what finds
//! no room in memory goes there at once.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, each_user, shell_code, wait};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
const JOB: &str = "j";

fn right_output() -> String {
    let lines: String = (0..30).map(|n| format!("{:05} plain round {n}\n", n + 1)).collect();
    lines + "PASS\n"
}

fn start(bed: &Bed, tier: &str, fault: Option<&str>) -> Result<(Child, i32)> {
    let program = App::program("plain", &["30", "10"]);
    let mut command = bed.staying_command(JOB, &["--tier", tier], &program.words())?;
    if let Some(fault) = fault {
        command.env("HOLDFAST_FAULT", fault);
    }
    let mut front = command.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("the first line", LIMIT, || !bed.text("out").is_empty())?;
    Ok((front, pid))
}

fn listed(bed: &Bed) -> Result<Value> {
    let rows: Value = serde_json::from_str(&bed.say(&["list", JOB, "--json"])?.success()?.stdout)?;
    Ok(rows[0].clone())
}

/// Waits until the images are at these places.
fn until_places(bed: &Bed, places: &[&[&str]]) -> Result<()> {
    let mut last = Value::Null;
    let waited = bed.until("the images at their places", LIMIT, || {
        last = listed(bed).unwrap_or_default();
        let images = last["images"].as_array().cloned().unwrap_or_default();
        images.len() == places.len()
            && images.iter().zip(places).all(|(image, places)| image["tiers"] == json!(places))
    });
    waited.with_context(|| last.to_string())
}

fn memory(bed: &Bed) -> Result<PathBuf> {
    Ok(fs::read_link(bed.job(JOB).join("memory"))?)
}

fn kill_all(bed: &Bed, front: &mut Child, pid: i32) -> Result<()> {
    if let Some(agent) = bed.agent_pid(JOB)? {
        processes::signal(agent, "KILL");
    }
    kill_program(pid, front)?;
    bed.until("the end of all", LIMIT, || processes::of(bed.dir()).is_empty())
}

/// To the right end; then the job goes, and its memory.
fn restarts_and_goes(bed: &Bed) -> Result<()> {
    bed.may_end()?;
    let mut front = bed.restart_command(JOB, &[])?.spawn()?;
    let code = shell_code(wait(&mut front, LIMIT)?);
    ensure!(code == 0, "status {code}: {}", bed.text("restart.err"));
    ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
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
        let (mut front, pid) = start(bed, "memory,keep=1", None)?;
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
        kill_all(bed, &mut front, pid)?;
        // What a host that is started anew has of it.
        fs::remove_dir_all(&memory)?;
        until_places(bed, &[&["local"], &["local"]])?;
        restarts_and_goes(bed)
    });
}

#[test]
fn what_was_committed_to_memory_survives_a_kill_right_then() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "memory", Some("manifest-renamed"))?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        // The agent dies before it can answer.
        bed.say(&["checkpoint", JOB])?;
        bed.until("the death of the agent", LIMIT, || {
            processes::state(agent).is_none_or(|state| state == 'Z')
        })?;
        kill_program(pid, &mut front)?;
        ensure!(bed.images(JOB).is_empty(), "the store has nothing yet");
        until_places(bed, &[&["memory"]])?;
        restarts_and_goes(bed)
    });
}

#[test]
fn what_finds_no_room_in_memory_goes_to_the_store_at_once() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "memory,max=4K", None)?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("a line", LIMIT, || bed.text("err").contains("image 1 went past tier memory"))?;
        ensure!(bed.text("err").matches("went past tier memory").count() == 1, "{}", bed.text("err"));
        until_places(bed, &[&["local"], &["local"]])?;
        kill_all(bed, &mut front, pid)?;
        // Nothing is needed of memory.
        fs::remove_dir_all(memory(bed)?)?;
        bed.say(&["verify", JOB])?.success()?;
        restarts_and_goes(bed)
    });
}

#[test]
fn sync_brings_to_the_store_what_a_dead_agent_left_in_memory() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, "memory", Some("cascade-segment"))?;
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        bed.say(&["checkpoint", JOB])?;
        bed.until("the death of the agent", LIMIT, || {
            processes::state(agent).is_none_or(|state| state == 'Z')
        })?;
        kill_program(pid, &mut front)?;
        until_places(bed, &[&["memory"]])?;
        bed.say(&["sync", JOB])?.success()?;
        fs::remove_dir_all(memory(bed)?)?;
        until_places(bed, &[&["local"]])?;
        bed.say(&["verify", JOB])?.success()?;
        restarts_and_goes(bed)
    });
}
