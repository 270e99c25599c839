//! The store is kept clean by hand: what is damaged on any tier is found, and put back from another.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, each_user, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
const JOB: &str = "j";

fn right_output() -> String {
    let lines: String = (0..30).map(|n| format!("{:05} plain round {n}\n", n + 1)).collect();
    lines + "PASS\n"
}

fn tier(bed: &Bed) -> String {
    format!("dir={}/pfs", bed.work().display())
}

/// A job whose program was killed after so many images; with a tier, that has them all.
fn job_with_images(bed: &Bed, options: &[&str], count: u64) -> Result<()> {
    let app = App::program("plain", &["30", "10"]);
    let mut front: Child = bed.staying_command(JOB, options, &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("the first line", LIMIT, || !bed.text("out").is_empty())?;
    for _ in 0..count {
        bed.say(&["checkpoint", JOB])?.success()?;
    }
    if !options.is_empty() {
        bed.say(&["sync", JOB, "--wait"])?.success()?;
    }
    kill_program(pid, &mut front)?;
    bed.may_end()?;
    bed.until("the end of the agent", LIMIT, || processes::of(bed.dir()).is_empty())
}

/// Restarts to the right end.
fn restarts(bed: &Bed, image: &str) -> Result<()> {
    let mut front = bed.restart_command(image, &[])?.spawn()?;
    let code = shell_code(wait(&mut front, LIMIT)?);
    ensure!(code == 0, "status {code}: {}", bed.text("restart.err"));
    ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
    Ok(())
}

/// The job's folder on the tier.
fn on_tier(bed: &Bed) -> Result<PathBuf> {
    let jobs = bed.work().join("pfs").join(JOB);
    let mut found = fs::read_dir(&jobs)?;
    Ok(found.next().context("a folder")??.path())
}

/// The longest segment of the first image.
fn segment_in(folder: &Path) -> Result<PathBuf> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let segments = names.into_iter().filter(|path| path.to_string_lossy().contains("segment-000001"));
    segments.max_by_key(|path| fs::metadata(path).map_or(0, |meta| meta.len())).context("a segment")
}

fn flip(path: &Path) -> Result<()> {
    let mut bytes = fs::read(path)?;
    bytes[100] ^= 1;
    Ok(fs::write(path, bytes)?)
}

#[test]
fn what_is_damaged_in_the_store_is_put_back_from_a_tier_and_the_other_way() {
    each_user(|bed| {
        job_with_images(bed, &["--tier", &tier(bed)], 2)?;
        bed.say(&["verify", JOB, "--all-tiers"])?.success()?;
        let (here, there) = (segment_in(&bed.job(JOB))?, segment_in(&on_tier(bed)?)?);
        flip(&here)?;
        let name = here.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = bed.say(&["verify", JOB, "--json"])?;
        let rows: Value = serde_json::from_str(&found.stdout)?;
        let damage = &rows[0]["damage"][0];
        ensure!(found.code() == 65 && rows[0]["tier"] == "local", "{}: {rows}", found.code());
        ensure!(damage["object"].as_str().is_some_and(|object| object.ends_with(&name)), "{rows}");
        ensure!(damage["offset"].is_u64() && found.stderr.contains("--repair"), "{rows}{}", found.stderr);
        bed.say(&["verify", JOB, "--tier", &tier(bed)])?.success()?;
        let mended = bed.say(&["verify", JOB, "--repair"])?.success()?;
        ensure!(mended.stdout.contains("put back"), "{}", mended.stdout);
        ensure!(fs::read(&here)? == fs::read(&there)?, "the bytes are those of the tier");
        // The other way, and what is missing.
        fs::remove_file(&there)?;
        let found = bed.say(&["verify", JOB, "--all-tiers"])?;
        ensure!(found.code() == 65 && found.stdout.contains("missing"), "{}", found.stdout);
        bed.say(&["verify", JOB, "--all-tiers", "--repair"])?.success()?;
        ensure!(fs::read(&here)? == fs::read(&there)?, "the tier has it again");
        // What none has is told, with the images that are lost by it.
        flip(&here)?;
        flip(&there)?;
        let lost = bed.say(&["verify", JOB, "--all-tiers", "--repair", "--json"])?;
        let told: Value = serde_json::from_str(&lost.stdout)?;
        let why = told["repaired"][0]["lost"].as_str().unwrap_or_default();
        ensure!(lost.code() == 65 && why.contains("no tier has it intact"), "{told}");
        ensure!(told["repaired"][0]["images"][0] == 1, "{told}");
        flip(&here)?;
        bed.say(&["verify", JOB, "--all-tiers", "--repair"])?.success()?;
        restarts(bed, JOB)
    });
}
