//! One job on two hosts, each with a store of its own, and a tier between them: whose images are where is said, and
//! nobody's are lost. The second host is the first one's job folder, put in its place.

use super::plain_job::{JOB, fails, kill_all, listed, program, restarts, start, until_tier};
use anyhow::{Context, Result, ensure};
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, shell_code, wait};
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
    restarted_at(bed, JOB, options)
}

fn restarted_at(bed: &Bed, image: &str, options: &[&str]) -> Result<(Child, i32)> {
    let mut front = bed.restart_command(image, options)?.spawn()?;
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

/// The other host goes on from image 1, and makes 2 and 3, which the tier gets.
fn the_other_host_goes_on(bed: &Bed) -> Result<()> {
    change_hosts(bed)?;
    let (mut front, pid) = restarted(bed, &[])?;
    for _ in 0..2 {
        bed.say(&["checkpoint", JOB])?.success()?;
    }
    until_tier(bed, "its images on the tier", |tier| tier["versions"] == serde_json::json!([1, 2, 3]))?;
    kill_all(bed, JOB, &mut front, pid)?;
    change_hosts(bed)
}

/// What the job goes on from, as `restart` or `run` says it in this file.
fn goes_on_from(bed: &Bed, file: &str, image: u64, words: &str) -> Result<()> {
    let said = bed.text(file);
    let goes_on = said.contains(&format!("job {JOB} goes on from image {image},"));
    ensure!(goes_on && said.contains(words), "{words}: {said}");
    Ok(())
}

fn resume(bed: &Bed, options: &[&str]) -> Result<Child> {
    let options = [&["--stdio", "keep"], options].concat();
    let mut command = bed.holdfast(&["run", "--name", JOB]);
    command.args(options).arg("--").args(program().words()).stderr(bed.create("resume.err")?);
    Ok(command.spawn()?)
}

#[test]
fn the_newest_image_is_taken_whichever_host_has_made_it() {
    each_user(|bed| {
        on_two_hosts(bed, &[])?;
        the_other_host_goes_on(bed)?;
        let newer = format!("tier {} has image 3, which is newer than image 1 of the store", address(bed));
        let (mut front, pid) = restarted(bed, &[])?;
        goes_on_from(bed, "restart.err", 3, &newer)?;
        kill_all(bed, JOB, &mut front, pid)?;
        // By its number any image is taken.
        fs::remove_file(bed.job(JOB).join("tiers.json"))?;
        let (mut front, pid) = restarted_at(bed, "j@1", &[])?;
        goes_on_from(bed, "restart.err", 1, "")?;
        kill_all(bed, JOB, &mut front, pid)?;
        // No tier need be named: the job has one.
        let mut front = resume(bed, &["--resume"])?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("resume.err"))?;
        goes_on_from(bed, "resume.err", 3, &newer)?;
        kill_all(bed, JOB, &mut front, pid)?;
        // Without the tier the store's is taken, and it is said what may be wrong with that.
        fs::remove_file(bed.job(JOB).join("tiers.json"))?;
        fs::rename(bed.work().join("mount"), bed.work().join("away"))?;
        let (mut front, pid) = restarted(bed, &[])?;
        goes_on_from(
            bed,
            "restart.err",
            1,
            "is not there; mount its file system, or make the folder; it may have",
        )?;
        kill_all(bed, JOB, &mut front, pid)?;
        fs::rename(bed.work().join("away"), bed.work().join("mount"))?;
        bed.may_end()?;
        restarts(bed, JOB, &[])
    });
}

#[test]
fn a_tier_that_is_named_counts_though_the_store_has_an_image() {
    each_user(|bed| {
        on_two_hosts(bed, &[])?;
        the_other_host_goes_on(bed)?;
        // The job does not know of its tiers.
        let file = bed.job(JOB).join("job.json");
        let mut recipe: serde_json::Value = serde_json::from_slice(&fs::read(&file)?)?;
        recipe["settings"]["tiers"] = serde_json::json!([]);
        fs::write(&file, recipe.to_string())?;
        fs::remove_file(bed.job(JOB).join("tiers.json"))?;
        let (mut front, pid) = restarted(bed, &[])?;
        goes_on_from(bed, "restart.err", 1, "")?;
        kill_all(bed, JOB, &mut front, pid)?;
        let (mut front, pid) = restarted(bed, &["--tier", &address(bed)])?;
        goes_on_from(bed, "restart.err", 3, "is newer than image 1")?;
        kill_all(bed, JOB, &mut front, pid)?;
        // A copy is one of the newest, too.
        bed.may_end()?;
        let mut front =
            bed.holdfast(&["restart", "--name", "copy", JOB]).stderr(bed.create("copy.err")?).spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(
            code == 0 && bed.text("copy.err").contains("goes on from image 3,"),
            "{}",
            bed.text("copy.err")
        );
        Ok(())
    });
}

#[test]
fn what_a_silent_tier_may_have_is_not_taken_for_nothing() {
    each_user(|bed| {
        on_two_hosts(bed, &[])?;
        let (one, other) = (address(bed), format!("dir={}/second/pfs", bed.work().display()));
        by_the_user(bed, "/bin/mkdir", &[&bed.work().join("second")])?;
        the_other_host_goes_on(bed)?;
        change_hosts(bed)?;
        bed.say(&["sync", JOB, "--tier", &one, "--tier", &other])?.success()?;
        // A host that has nothing of the job; one of the two tiers answers.
        fs::remove_dir_all(bed.job(JOB))?;
        fs::rename(bed.work().join("second"), bed.work().join("away"))?;
        let tiers = ["--tier", &one, "--tier", &other];
        let mut front = resume(bed, &[&["--resume"], &tiers[..]].concat())?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("resume.err");
        let names = said.contains(&other) && said.contains("with --resume=reachable it goes on from image 3");
        ensure!(code == 64 && names && said.contains("nothing was started"), "{code}: {said}");
        let mut front = resume(bed, &[&["--resume=reachable"], &tiers[..]].concat())?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("resume.err"))?;
        goes_on_from(bed, "resume.err", 3, &format!("tier {other}"))?;
        // By its agent.
        let warning = format!("warning: tier {other}");
        bed.until("a warning", PATIENCE, || bed.text("resume.err").contains(&warning))?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "image 4", |tier| tier["versions"] == serde_json::json!([1, 2, 3, 4]))?;
        kill_all(bed, JOB, &mut front, pid)?;
        // The store has an image now, and knows of no newer one anywhere: what a tier is silent about is only said.
        let mut front = resume(bed, &[&["--resume"], &tiers[..]].concat())?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("resume.err"))?;
        goes_on_from(bed, "resume.err", 4, &other)?;
        kill_all(bed, JOB, &mut front, pid)?;
        // But one that is known to have had a newer one holds it up.
        fs::remove_file(bed.job(JOB).join("manifest-000004"))?;
        let mut front = resume(bed, &["--resume", "--tier", &other])?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let (said, words) = (bed.text("resume.err"), format!("tier {one}, which job j had, had image 4"));
        ensure!(code == 64 && said.contains(&words), "{code}: {said}");
        fs::rename(bed.work().join("mount"), bed.work().join("gone"))?;
        let mut front = resume(bed, &[&["--resume"], &tiers[..]].concat())?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("resume.err");
        ensure!(code == 64 && said.contains("it had image 4 when it was seen last"), "{code}: {said}");
        Ok(())
    });
}

/// `dir=MOUNT/pfs` where nothing is mounted at MOUNT: the folder could be made, and is not there.
#[test]
fn a_folder_that_is_not_there_is_no_tier_without_images() {
    each_user(|bed| {
        on_two_hosts(bed, &[])?;
        let (mount, away) = (bed.work().join("mount"), bed.work().join("away"));
        fs::rename(&mount, &away)?;
        by_the_user(bed, "/bin/mkdir", &[&mount])?;
        let nothing_was_made = || {
            let mut there = fs::read_dir(&mount)?;
            ensure!(there.next().is_none(), "a folder was made in the mount point");
            Ok(())
        };
        let had = "the folder is not there, and had image 1 of the job";
        // An agent makes none in the place of it.
        let (mut front, pid) = restarted(bed, &[])?;
        goes_on_from(bed, "restart.err", 1, had)?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "an error", |tier| {
            tier["error"].as_str().is_some_and(|error| error.contains(had))
                && tier["waiting"] == serde_json::json!([2])
        })?;
        kill_all(bed, JOB, &mut front, pid)?;
        fails(&bed.say(&["sync", JOB])?, 73, had)?;
        fails(&bed.say(&["verify", "--all-tiers", JOB])?, 64, had)?;
        for image in 1..=2 {
            let file = format!("manifest-{image:06}");
            fs::rename(bed.job(JOB).join(&file), bed.work().join(&file))?;
        }
        fails(&bed.say(&["restart", JOB])?, 64, had)?;
        fails(&bed.say(&["fetch", JOB])?, 64, had)?;
        nothing_was_made()?;
        // Where nothing is known of it, nothing starts either.
        fs::rename(bed.job(JOB), bed.work().join("kept"))?;
        let tier = address(bed);
        let mut front = resume(bed, &["--resume", "--tier", &tier])?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        let said = bed.text("resume.err");
        ensure!(code == 64 && said.contains("make it if the job is new"), "{code}: {said}");
        fails(&bed.say(&["list", "--tier", &tier])?, 64, "the folder is not there")?;
        nothing_was_made()?;
        fs::rename(bed.work().join("kept"), bed.job(JOB))?;
        for image in 1..=2 {
            let file = format!("manifest-{image:06}");
            fs::rename(bed.work().join(&file), bed.job(JOB).join(&file))?;
        }
        fs::remove_dir(&mount)?;
        fs::rename(&away, &mount)?;
        bed.say(&["sync", JOB])?.success()?;
        until_tier(bed, "both images", |tier| tier["versions"] == serde_json::json!([1, 2]))?;
        // One that goes while the agent copies is not made anew either.
        let (mut front, pid) = restarted(bed, &[])?;
        until_tier(bed, "a look at it", |tier| tier["error"].is_null())?;
        fs::rename(&mount, &away)?;
        by_the_user(bed, "/bin/mkdir", &[&mount])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "an error", |tier| {
            tier["error"].as_str().is_some_and(|e| e.contains("had image 2"))
        })?;
        kill_all(bed, JOB, &mut front, pid)?;
        nothing_was_made()
    });
}

#[test]
fn a_host_that_has_nothing_of_a_job_knows_from_the_tier_that_it_has_ended() {
    each_user(|bed| {
        on_two_hosts(bed, &[])?;
        bed.may_end()?;
        restarts(bed, JOB, &[])?;
        bed.until("the end of the agent", PATIENCE, || !bed.job(JOB).join("agent.sock").exists())?;
        fs::remove_dir_all(bed.job(JOB))?;
        let out = bed.text("out");
        let tier = address(bed);
        for options in [&["--resume", "--tier", &tier][..], &["--resume"]] {
            let code = shell_code(wait(&mut resume(bed, options)?, PATIENCE)?);
            let said = bed.text("resume.err");
            let words = "job j has ended with status 0 after image 1, as tier ";
            ensure!(code == 0 && said.contains(words), "{code}: {said}");
        }
        ensure!(bed.text("out") == out, "it did not run");
        // Who asks for it has it run again, and it is not over until it has ended.
        fs::remove_file(bed.stay_file())?;
        let (mut front, pid) = restarted(bed, &[])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        until_tier(bed, "image 2", |tier| tier["versions"] == serde_json::json!([1, 2]))?;
        kill_all(bed, JOB, &mut front, pid)?;
        let mut front = resume(bed, &["--resume"])?;
        let pid = bed.wait_live(JOB, &mut front)?.with_context(|| bed.text("resume.err"))?;
        kill_all(bed, JOB, &mut front, pid)
    });
}
