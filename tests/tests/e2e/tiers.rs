//! Images on several tiers: they move down by themselves, the store is lost, the program goes on from a lower tier;
//! what is wrong with a tier is said, and harms nothing; what a killed agent left, `holdfast sync` finishes.

use super::plain_job::{
    JOB, checkpoint_kills_the_agent, kill_all, listed, lose_the_host, none_is_left, program, restarts,
    right_output, start, start_with_fault, until_tier,
};
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, each_user, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The address of a tier in the bed, with rules.
fn tier(bed: &Bed, rules: &str) -> String {
    format!("dir={}/pfs{rules}", bed.work().display())
}

fn has(tier: &Value, images: &[u64]) -> bool {
    tier["versions"] == serde_json::json!(images) && tier["waiting"] == serde_json::json!([])
}

/// No process is left, and nothing half-made. (`check_clean` asks for a manifest for each segment: some are inherited.)
pub fn all_has_ended(bed: &Bed) -> Result<()> {
    none_is_left(bed)?;
    bed.say(&["list"])?.success()?;
    let names =
        fs::read_dir(bed.job(JOB))?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names = names.collect::<Result<Vec<String>>>()?;
    ensure!(!names.iter().any(|name| name.starts_with('.') || name == "agent.sock"), "{names:?}");
    Ok(())
}

#[test]
fn the_store_is_lost_and_the_program_goes_on_from_a_lower_tier() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--tier", &tier(bed, ",keep=2")])?;
        for _ in 0..3 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        until_tier(bed, "images 2 and 3 on the tier", |tier| has(tier, &[2, 3]))?;
        let images = listed(bed)?["images"].clone();
        let places = serde_json::json!(["local", tier(bed, "")]);
        ensure!(
            images[0]["tiers"] == serde_json::json!(["local"]) && images[2]["tiers"] == places,
            "{images}"
        );
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(text.contains("2 images, newest 3") && text.contains("TIERS"), "{text}");
        ensure!(bed.show("j@3")?["tiers"] == places);
        lose_the_host(bed, &mut front, pid)?;
        let text = bed.say(&["list", "--tier", &tier(bed, ""), JOB])?.success()?.stdout;
        ensure!(text.contains("2 3") && text.contains("plain"), "{text}");
        ensure!(bed.say(&["restart", JOB])?.code() == 66, "nothing names the tier");
        let missing = bed.say(&["restart", "j@1", "--tier", &tier(bed, "")])?;
        ensure!(missing.code() == 66 && missing.stderr.contains("no tier has image 1"), "{}", missing.stderr);
        restarts(bed, JOB, &["--tier", &tier(bed, "")])?;
        ensure!(bed.text("restart.err").contains("segments were read from"), "{}", bed.text("restart.err"));
        // The job knows its tiers again, and a second loss needs no word of them but a configuration.
        fs::remove_dir_all(bed.job(JOB))?;
        let config = format!("[tiers.pfs]\naddress = \"{}\"\n", tier(bed, ""));
        fs::write(bed.store().join("config.toml"), config)?;
        bed.say(&["fetch", "j@2"])?.success()?;
        bed.say(&["verify", "j@2"])?.success()?;
        let manifest = bed.job(JOB).join("manifest-000002");
        fs::write(&manifest, &fs::read(&manifest)?[..100])?;
        ensure!(bed.say(&["verify", "j@2"])?.code() == 65, "it is damaged");
        bed.say(&["fetch", "j@2"])?.success()?;
        bed.say(&["verify", "j@2"])?.success()?;
        all_has_ended(bed)
    });
}

#[test]
fn sync_and_fetch_take_and_say_the_same() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &[])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        let (one, other) = (tier(bed, ""), format!("dir={}", bed.work().join("other").display()));
        let running = bed.say(&["sync", JOB, "--tier", &one])?;
        ensure!(running.code() == 69 && running.stderr.contains("runs without tier"), "{}", running.stderr);
        kill_all(bed, JOB, &mut front, pid)?;
        for command in ["sync", "fetch"] {
            let none = bed.say(&[command, JOB])?;
            let said = none.stderr.contains("job j has no tiers; name one with --tier");
            ensure!(none.code() == 64 && said, "{command}: {}: {}", none.code(), none.stderr);
            let unknown = bed.say(&[command, "jj"])?;
            ensure!(unknown.code() == 66 && unknown.stderr.contains("did you mean"), "{}", unknown.stderr);
        }
        // It has them from now on, and each may be named alone.
        bed.say(&["sync", JOB, "--tier", &one, "--tier", &other])?.success()?;
        fs::remove_dir_all(bed.work().join("other").join(JOB))?;
        let alone = bed.say(&["sync", JOB, "--tier", &other, "--json"])?.success()?;
        let told: serde_json::Value = serde_json::from_str(&alone.stdout)?;
        let rows = serde_json::json!([
            { "tier": other, "newest": 1, "waiting": 0, "error": null, "read_only": null }
        ]);
        ensure!(told["kind"] == "sync" && told["tiers"] == rows, "{told}");
        let listed = listed(bed)?["tiers"].clone();
        ensure!(listed.as_array().is_some_and(|all| all.len() == 2), "the other is still known: {listed}");
        // A tier that is not there is told by both in the same way, and waited for.
        fs::rename(bed.work().join("other"), bed.work().join("away"))?;
        fs::write(bed.work().join("other"), "")?;
        fs::remove_dir_all(bed.work().join("pfs"))?;
        for (command, code) in [("sync", 73), ("fetch", 64)] {
            let failed = bed.say(&[command, JOB, "--tier", &other, "--json"])?;
            let told: serde_json::Value = serde_json::from_str(&failed.stdout)?;
            ensure!(failed.code() == code && told["kind"] == command, "{command} {}: {told}", failed.code());
            ensure!(told["tiers"][0]["error"].is_string(), "{told}");
        }
        let mut waiting = bed.holdfast(&["fetch", JOB, "--tier", &other, "--wait"]);
        let mut waiting =
            waiting.stderr(bed.create("fetch.err")?).stdout(bed.create("fetch.out")?).spawn()?;
        bed.until("a word of the tier", PATIENCE, || bed.text("fetch.err").contains("tier dir="))?;
        fs::remove_file(bed.work().join("other"))?;
        fs::rename(bed.work().join("away"), bed.work().join("other"))?;
        ensure!(wait(&mut waiting, PATIENCE)?.success(), "{}", bed.text("fetch.err"));
        ensure!(
            bed.text("fetch.out").contains("image 1 of job j was fetched from"),
            "{}",
            bed.text("fetch.out")
        );
        bed.may_end()?;
        restarts(bed, JOB, &[])
    });
}

/// What is damaged does not go down and is said, however long one waits; once it is repaired it goes.
#[test]
fn an_image_that_was_damaged_goes_down_when_it_is_repaired() {
    each_user(|bed| {
        let folder = bed.work().join("later/pfs");
        let address = format!("dir={}", folder.display());
        let (mut front, pid) = start(bed, &["--tier", &address])?;
        for image in 1..=2 {
            bed.say(&["checkpoint", JOB])?.success()?;
            until_tier(bed, "a tier that is not there", |tier| {
                tier["error"].as_str().is_some_and(|error| error.contains("the folder above it is not there"))
                    && tier["waiting"].as_array().is_some_and(|all| all.len() == image)
            })?;
        }
        let manifest = bed.job(JOB).join("manifest-000001");
        let segment = bed.job(JOB).join("segment-000002-000");
        let (first, second) = (fs::read(&manifest)?, fs::read(&segment)?);
        fs::write(&manifest, &first[..100])?;
        let mut bytes = second.clone();
        bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
        fs::write(&segment, bytes)?;
        let above = folder.parent().context("a folder")?;
        bed.output(
            {
                let mut make = bed.command(std::path::Path::new("/bin/mkdir"));
                make.arg(above);
                make
            },
            PATIENCE,
        )?
        .success()?;
        for _ in 0..2 {
            let said = bed.say(&["sync", JOB, "--wait"])?;
            ensure!(said.code() == 73 && said.stderr.contains("stays where it is"), "{}", said.stderr);
        }
        until_tier(bed, "neither", |tier| tier["versions"] == serde_json::json!([]))?;
        // Nobody has to be started anew for it.
        fs::write(&manifest, first)?;
        fs::write(&segment, second)?;
        bed.say(&["sync", JOB])?.success()?;
        until_tier(bed, "both images on the tier", |tier| has(tier, &[1, 2]) && tier["error"].is_null())?;
        kill_all(bed, JOB, &mut front, pid)?;
        bed.may_end()?;
        restarts(bed, JOB, &[])?;
        all_has_ended(bed)
    });
}

/// Changes bytes of each segment in the store, which `which` names by the file's length.
fn flip(bed: &Bed, which: impl Fn(usize) -> Vec<usize>) -> Result<()> {
    for entry in fs::read_dir(bed.job(JOB))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment")) {
            let mut bytes = fs::read(&path)?;
            which(bytes.len()).into_iter().for_each(|at| bytes[at] ^= 0x20);
            fs::write(&path, bytes)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_damaged_in_the_store_is_read_from_the_tier() {
    each_user(|bed| {
        let (mut front, pid) = start(bed, &["--tier", &tier(bed, "")])?;
        for _ in 0..2 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        until_tier(bed, "both images on the tier", |tier| has(tier, &[1, 2]))?;
        kill_all(bed, JOB, &mut front, pid)?;
        bed.may_end()?;
        // The first frame of each: of one that is mapped, or of one that is copied.
        flip(bed, |_| vec![10])?;
        ensure!(bed.say(&["verify", "j@2"])?.code() == 65, "it is damaged");
        for how in ["--lazy", "--eager"] {
            restarts(bed, JOB, &[how])?;
            let said = bed.text("restart.err");
            ensure!(
                said.contains("do not match their checksum") && said.contains("instead"),
                "{how}: {said}"
            );
            all_has_ended(bed)?;
        }
        // The headers at the end too: the store has not even the table.
        flip(bed, |len| vec![len - 4090])?;
        restarts(bed, JOB, &[])?;
        // And the manifest: only the tier knows the image.
        fs::write(bed.job(JOB).join("manifest-000002"), "")?;
        restarts(bed, JOB, &[])?;
        ensure!(bed.text("restart.err").contains("pfs"), "{}", bed.text("restart.err"));
        // Without the tier the store says what is wrong with it.
        fs::rename(bed.work().join("pfs"), bed.work().join("away"))?;
        let refused = bed.say(&["restart", "j@2"])?;
        ensure!(refused.code() != 0 && refused.stderr.contains("pfs"), "{}", refused.stderr);
        all_has_ended(bed)
    });
}

#[test]
fn a_tier_that_is_not_there_harms_nothing_and_gets_all_when_it_comes() {
    each_user(|bed| {
        let absent = format!("dir={}/mount/pfs", bed.work().display());
        let (mut front, pid) = start(bed, &["--tier", &absent, "--keep", "1"])?;
        for _ in 0..2 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        until_tier(bed, "an error", |tier| tier["error"].is_string())?;
        until_tier(bed, "what waits", |tier| tier["waiting"] == serde_json::json!([1, 2]))?;
        ensure!(bed.images(JOB) == [1, 2], "--keep 1 leaves what the tier is to get: {:?}", bed.images(JOB));
        bed.until("a warning", PATIENCE, || bed.text("err").contains("warning: tier dir="))?;
        let failed = bed.say(&["sync", JOB])?;
        ensure!(failed.code() == 73 && failed.stderr.contains("not there"), "{}", failed.stderr);
        fs::create_dir(bed.work().join("mount"))?;
        if bed.user() == User::Ordinary {
            fs::set_permissions(bed.work().join("mount"), fs::Permissions::from_mode(0o777))?;
        }
        bed.say(&["sync", JOB, "--wait"])?.success()?;
        until_tier(bed, "both images", |tier| has(tier, &[1, 2]) && tier["error"].is_null())?;
        ensure!(processes::runs(pid), "the program runs on");
        bed.may_end()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out") == right_output(), "status {code}: {}", bed.text("out"));
        all_has_ended(bed)?;
        ensure!(bed.images(JOB) == [2], "the tier has it: {:?}", bed.images(JOB));
        Ok(())
    });
}

#[test]
fn what_a_killed_agent_left_is_finished_by_sync() {
    let faults = ["cascade-piece", "cascade-segment", "cascade-recipe", "cascade-manifest"];
    for (n, fault) in faults.into_iter().enumerate() {
        let user = if n % 2 == 0 || !am_root() { User::Ordinary } else { User::Root };
        let Some(bed) = Bed::new(user) else { continue };
        sync_after(&bed, fault).with_context(|| fault.to_owned()).unwrap();
    }
}

fn sync_after(bed: &Bed, fault: &str) -> Result<()> {
    let (mut front, pid) = start_with_fault(bed, &["--tier", &tier(bed, "")], fault)?;
    checkpoint_kills_the_agent(bed)?;
    ensure!(bed.images(JOB) == [1], "the image is committed");
    bed.say(&["sync", JOB])?.success()?;
    until_tier(bed, "the image", |tier| has(tier, &[1]))?;
    ensure!(processes::runs(pid), "the program runs on");
    kill_program(pid, &mut front)?;
    fs::remove_dir_all(bed.job(JOB))?;
    bed.may_end()?;
    // A fetch that is killed leaves no image, and the next one ends it.
    let mut command = bed.holdfast(&["fetch", "--tier", &tier(bed, ""), JOB]);
    command.env("HOLDFAST_FAULT", "fetch-segment");
    ensure!(
        bed.output(command, PATIENCE)?.code() == 137 && bed.images(JOB).is_empty(),
        "a fetch that was killed"
    );
    restarts(bed, JOB, &[])?;
    bed.check_clean(JOB)
}

#[test]
fn checkpoint_and_stop_waits_for_the_tiers() {
    each_user(|bed| {
        let config = format!("[tiers.pfs]\naddress = \"{}\"\nevery = 1\n", tier(bed, ""));
        fs::write(bed.store().join("config.toml"), &config)?;
        let (mut front, _) = start(bed, &[])?;
        bed.say(&["checkpoint", JOB, "--stop"])?.success()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 75, "status {code}: {}", bed.text("err"));
        until_tier(bed, "the image", |tier| has(tier, &[1]))?;
        fs::remove_dir_all(bed.job(JOB))?;
        bed.may_end()?;
        // The same command as before goes on from the tier.
        let mut command = bed.holdfast(&["run", "--name", JOB, "--resume", "--"]);
        command.args(program().words());
        let ended = bed.output(command, PATIENCE)?;
        // Its output is redirected now.
        let all = bed.text("out") + &ended.stdout;
        ensure!(ended.code() == 0 && all == right_output(), "{}{all}", ended.stderr);
        // What is wrong in a configuration is named with its line, before anything is started.
        fs::write(bed.store().join("config.toml"), config.replace("every", "evry"))?;
        let wrong = bed.say(&["run", "--", "true"])?;
        let named = wrong.stderr.contains("config.toml: line 3: ") && wrong.stderr.contains("evry");
        ensure!(wrong.code() == 64 && named, "{}: {}", wrong.code(), wrong.stderr);
        let given = ["run", "--no-tiers", "--compress", "auto", "--max-space", "1G", "--", "true"];
        bed.say(&given)?.success()?;
        bed.check_clean(JOB)
    });
}
