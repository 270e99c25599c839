//! One job on two hosts, each with a store of its own, and a tier between them: whose images are where is said, and
//! nobody's are lost. The second host is the first one's job folder, put in its place.

use super::plain_job::{JOB, fails, kill_all, listed, restarts, start, until_tier};
use anyhow::{Context, Result, ensure};
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

/// The tier's folder, below a mount point that can go away.
fn address(bed: &Bed) -> String {
    format!("dir={}/mount/pfs", bed.work().display())
}

/// Where the job's folder of another host is.
fn aside(bed: &Bed, host: &str) -> PathBuf {
    bed.work().join(host)
}

fn by_the_user(bed: &Bed, program: &str, arguments: &[&Path]) -> Result<()> {
    let mut command = bed.command(Path::new(program));
    command.args(arguments);
    bed.output(command, PATIENCE)?.success().map(drop)
}

/// The job has a tier with image 1, and two hosts have its folder: in the store, and aside.
fn on_two_hosts(bed: &Bed, options: &[&str]) -> Result<()> {
    by_the_user(bed, "/bin/mkdir", &[&bed.work().join("mount")])?;
    let tier = address(bed);
    let (mut front, pid) = start(bed, &[&["--tier", &tier], options].concat())?;
    bed.say(&["checkpoint", JOB])?.success()?;
    until_tier(bed, "image 1 on the tier", |tier| tier["versions"] == serde_json::json!([1]))?;
    kill_all(bed, JOB, &mut front, pid)?;
    by_the_user(bed, "/bin/cp", &[Path::new("-a"), &bed.job(JOB), &aside(bed, "other")])
}

/// The other host's folder takes the place of this one's.
fn change_hosts(bed: &Bed) -> Result<()> {
    fs::rename(bed.job(JOB), aside(bed, "now"))?;
    fs::rename(aside(bed, "other"), bed.job(JOB))?;
    Ok(fs::rename(aside(bed, "now"), aside(bed, "other"))?)
}

fn restarted(bed: &Bed, options: &[&str]) -> Result<(Child, i32)> {
    let mut front = bed.restart_command(JOB, options)?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("restart.err"))?;
    Ok((front, pid))
}

#[test]
fn two_images_of_one_number_are_told_apart() {
    each_user(|bed| {
        on_two_hosts(bed, &["--keep", "1"])?;
        let (mount, away) = (bed.work().join("mount"), bed.work().join("away"));
        // This host cannot reach the tier while it makes image 2.
        fs::rename(&mount, &away)?;
        let (mut front, pid) = restarted(bed, &[])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        kill_all(bed, JOB, &mut front, pid)?;
        fs::rename(&away, &mount)?;
        change_hosts(bed)?;
        let (mut front, pid) = restarted(bed, &[])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "its image 2 on the tier", |tier| tier["versions"] == serde_json::json!([1, 2]))?;
        kill_all(bed, JOB, &mut front, pid)?;
        let theirs = fs::read(bed.job(JOB).join("manifest-000002"))?;
        change_hosts(bed)?;
        let said = "image 2 there is another one: made by another run on host ";
        fails(&bed.say(&["sync", JOB])?, 73, said)?;
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(text.contains(said), "{text}");
        is_told(bed)?;
        // Nothing of this host goes for it, and nothing comes in its place.
        fails(&bed.say(&["prune", "j@2"])?, 69, "a tier has yet to get it")?;
        fails(&bed.say(&["fetch", "j@2"])?, 69, "no tier gave the image back")?;
        bed.say(&["verify", JOB])?.success()?;
        let (mut front, pid) = restarted(bed, &[])?;
        bed.until("a warning", PATIENCE, || bed.text("restart.err").contains(said))?;
        until_tier(bed, "the other image", |tier| tier["others"][0]["image"] == 2)?;
        let answer = bed.say(&["checkpoint", JOB])?.success()?;
        ensure!(answer.stderr.contains(said), "{}", answer.stderr);
        let answer = bed.say(&["checkpoint", "--json", JOB])?.success()?;
        let answer: serde_json::Value = serde_json::from_str(&answer.stdout)?;
        let tier = serde_json::json!(address(bed));
        ensure!(answer["others"][0]["tier"] == tier && answer["others"][0]["image"] == 2, "{answer}");
        until_tier(bed, "what waits", |tier| tier["waiting"] == serde_json::json!([2, 3, 4]))?;
        ensure!(bed.images(JOB) == [2, 3, 4], "--keep 1 leaves what the tier has not: {:?}", bed.images(JOB));
        kill_all(bed, JOB, &mut front, pid)?;
        let pfs = mount.join("pfs").join(JOB);
        let id = fs::read_dir(&pfs)?.next().context("the job's folder")??.path();
        ensure!(fs::read(id.join("manifest-000002"))? == theirs, "that of the other host is as it was");
        bed.may_end()?;
        restarts(bed, "j@2", &[])?;
        change_hosts(bed)?;
        bed.say(&["verify", "--all-tiers", JOB])?.success().map(drop)
    });
}

fn is_told(bed: &Bed) -> Result<()> {
    let row = listed(bed)?;
    let (tier, image) = (&row["tiers"][0], &row["images"][1]);
    let named = tier["versions"] == serde_json::json!([1])
        && tier["waiting"] == serde_json::json!([2])
        && tier["others"][0]["image"] == 2
        && tier["others"][0]["host"].is_string();
    ensure!(named, "{tier}");
    ensure!(image["epoch"] == 2 && image["tiers"] == serde_json::json!(["local"]), "{image}");
    Ok(())
}
