//! The store is kept clean by hand: what is damaged on any tier is found, and put back from another; what is too much
//! goes; an image becomes a file, and a job again; the space of a job has a bound.

use super::plain_job::{self, JOB, none_is_left, restarts, start};
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, each_user, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;

fn tier(bed: &Bed) -> String {
    format!("dir={}/pfs", bed.work().display())
}

/// Kills the program, and waits for its agent.
fn end(bed: &Bed, (mut front, pid): (Child, i32)) -> Result<()> {
    kill_program(pid, &mut front)?;
    bed.may_end()?;
    none_is_left(bed)
}

/// A job whose program was killed after so many images; with a tier, that has them all.
fn job_with_images(bed: &Bed, options: &[&str], count: u64) -> Result<()> {
    let running = start(bed, options)?;
    for _ in 0..count {
        bed.say(&["checkpoint", JOB])?.success()?;
    }
    if !options.is_empty() {
        bed.say(&["sync", JOB, "--wait"])?.success()?;
    }
    end(bed, running)
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
        let here = segment_in(&bed.job(JOB))?;
        let name = here.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // On the tier it may be packed.
        let (there, good) = (on_tier(bed)?.join(&name), fs::read(&here)?);
        flip(&here)?;
        let found = bed.say(&["verify", JOB, "--json"])?;
        let rows: Value = serde_json::from_str(&found.stdout)?;
        let damage = &rows["images"][0]["damage"][0];
        ensure!(found.code() == 65 && rows["images"][0]["tier"] == "local", "{}: {rows}", found.code());
        ensure!(damage["object"].as_str().is_some_and(|object| object.ends_with(&name)), "{rows}");
        ensure!(damage["offset"].is_u64() && found.stderr.contains("--repair"), "{rows}{}", found.stderr);
        bed.say(&["verify", JOB, "--tier", &tier(bed)])?.success()?;
        let mended = bed.say(&["verify", JOB, "--repair"])?.success()?;
        ensure!(mended.stdout.contains("put back"), "{}", mended.stdout);
        ensure!(fs::read(&here)? == good, "the bytes are what they were");
        // The other way, and what is missing.
        fs::remove_file(&there)?;
        let found = bed.say(&["verify", JOB, "--all-tiers"])?;
        ensure!(found.code() == 65 && found.stdout.contains("missing"), "{}", found.stdout);
        bed.say(&["verify", JOB, "--all-tiers", "--repair"])?.success()?;
        ensure!(fs::read(&there)? == good, "the tier has it again");
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
        restarts(bed, JOB, &[])
    });
}

#[test]
fn all_jobs_of_a_store_are_verified_with_one_command() {
    each_user(|bed| {
        let none = bed.say(&["verify"])?.success()?;
        ensure!(none.stdout.is_empty(), "{}", none.stdout);
        job_with_images(bed, &[], 1)?;
        let other = plain_job::started(bed, "k", &mut plain_job::command(bed, "k", &[])?)?;
        bed.say(&["checkpoint", "k"])?.success()?;
        end(bed, other)?;
        let rows = |said: &Ended| -> Result<Vec<(String, bool)>> {
            let told: Value = serde_json::from_str(&said.stdout)?;
            let images = told["images"].as_array().context("images")?;
            let row = |image: &Value| Some((image["job"].as_str()?.to_owned(), image["good"].as_bool()?));
            images.iter().map(|image| row(image).context("a row")).collect()
        };
        let good = |job: &str| (job.to_owned(), true);
        let all = bed.say(&["verify", "--json"])?.success()?;
        ensure!(rows(&all)? == [good(JOB), good("k")], "{}", all.stdout);
        flip(&segment_in(&bed.job(JOB))?)?;
        let all = bed.say(&["verify"])?;
        let told = all.stdout.contains("j@1: damaged") && all.stdout.contains("k@1: good");
        ensure!(all.code() == 65 && told, "{}: {}{}", all.code(), all.stdout, all.stderr);
        ensure!(all.stderr.contains("1 of 2 images are damaged"), "{}", all.stderr);
        // One that cannot be looked at is told, and keeps none of the others from it.
        flip(&segment_in(&bed.job(JOB))?)?;
        let recipe = bed.job(JOB).join("job.json");
        let right = fs::read(&recipe)?;
        fs::write(&recipe, "{")?;
        let all = bed.say(&["verify", "--json"])?;
        ensure!(rows(&all)? == [good("k")], "{}", all.stdout);
        ensure!(all.code() == 65 && all.stderr.contains("job j: "), "{}: {}", all.code(), all.stderr);
        fs::write(&recipe, right)?;
        // What runs is verified, and not repaired.
        let running = plain_job::started(bed, "l", &mut plain_job::command(bed, "l", &[])?)?;
        let all = bed.say(&["verify", "--repair", "--json"])?;
        ensure!(rows(&all)? == [good(JOB), good("k")], "{}", all.stdout);
        ensure!(all.code() == 69 && all.stderr.contains("job l is not repaired"), "{}", all.stderr);
        end(bed, running)
    });
}

#[test]
fn an_image_becomes_a_file_and_a_job_again() {
    each_user(|bed| {
        job_with_images(bed, &[], 2)?;
        let file = bed.work().join("sim.img");
        let file = file.to_str().context("a path")?;
        bed.say(&["export", JOB, file])?.success()?;
        let mode = fs::metadata(file)?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "mode {mode:o}");
        let again = bed.say(&["export", JOB, file])?;
        ensure!(again.code() == 73 && again.stderr.contains("there already"), "{}", again.stderr);
        ensure!(bed.say(&["export", "j@9", file])?.code() == 66, "there is no such image");
        let taken = bed.say(&["import", file])?;
        ensure!(taken.code() == 69 && taken.stderr.contains("--name"), "{}", taken.stderr);
        // Damaged: nothing of it becomes a job.
        let good = fs::read(file)?;
        let bad = bed.work().join("bad.img");
        let bad = bad.to_str().context("a path")?;
        for (at, what) in [(good.len() / 2, "checksum"), (3, "Holdfast")] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            fs::write(bad, bytes)?;
            fs::set_permissions(bad, fs::Permissions::from_mode(0o644))?;
            let refused = bed.say(&["import", bad, "--name", "bad"])?;
            ensure!(refused.code() == 65 && refused.stderr.contains("at byte"), "{what}: {}", refused.stderr);
            ensure!(!bed.job("bad").exists(), "a job is left");
        }
        bed.say(&["import", file, "--name", "copy"])?.success()?;
        bed.say(&["verify", "copy"])?.success()?;
        bed.say(&["prune", JOB, "--all"])?.success()?;
        bed.say(&["import", file])?.success()?;
        restarts(bed, JOB, &[])?;
        ensure!(bed.images("copy") == [2], "{:?}", bed.images("copy"));
        Ok(())
    });
}

/// Each of them believed that the job was its own, and the one that was refused deleted what the other had imported.
#[test]
fn of_two_imports_of_one_name_at_once_one_is_the_job() {
    each_user(|bed| {
        job_with_images(bed, &[], 1)?;
        bed.say(&["export", JOB, "sim.img"])?.success()?;
        for round in 0..12 {
            let name = format!("copy{round}");
            let start = || bed.holdfast(&["import", "sim.img", "--name", &name]).spawn();
            let mut both = [start()?, start()?];
            let codes = both.each_mut().map(|child| wait(child, PATIENCE).map(shell_code));
            let [one, other] = codes;
            let mut codes = [one?, other?];
            codes.sort_unstable();
            ensure!(codes == [0, 69], "{round}: {codes:?}");
            bed.say(&["verify", &name])?.success()?;
        }
        // A damaged one leaves the job that is there as it is, and nothing where there was none.
        let mut bytes = fs::read(bed.work().join("sim.img"))?;
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(bed.work().join("sim.img"), bytes)?;
        ensure!(bed.say(&["import", "sim.img", "--name", "copy0"])?.code() == 69, "it has an image");
        bed.say(&["verify", "copy0"])?.success()?;
        ensure!(bed.say(&["import", "sim.img", "--name", "none"])?.code() == 65, "it is damaged");
        ensure!(!bed.job("none").exists(), "a job is left");
        Ok(())
    });
}

#[test]
fn prune_plans_over_the_tiers_and_never_takes_the_last_image() {
    each_user(|bed| {
        job_with_images(bed, &["--tier", &tier(bed)], 3)?;
        let plan =
            bed.say(&["prune", JOB, "--keep", "1", "--all-tiers", "--dry-run", "--json"])?.success()?;
        let plan: Value = serde_json::from_str(&plan.stdout)?;
        ensure!(plan["removals"].as_array().is_some_and(|lines| lines.len() == 4), "{plan}");
        ensure!(plan["removals"][0]["frees"].as_u64().is_some_and(|bytes| bytes > 0), "{plan}");
        ensure!(bed.images(JOB) == [1, 2, 3], "a dry run");
        bed.say(&["prune", "j@1", "j@2", "--all-tiers"])?.success()?;
        ensure!(bed.images(JOB) == [3], "{:?}", bed.images(JOB));
        bed.say(&["verify", JOB, "--all-tiers"])?.success()?;
        ensure!(bed.say(&["prune", "j@1"])?.code() == 66, "it is gone");
        let last = bed.say(&["prune", "j@3", "--all-tiers"])?;
        ensure!(
            last.code() == 69 && last.stderr.contains("no other image can be restarted"),
            "{}",
            last.stderr
        );
        bed.say(&["prune", "j@3", "--tier", &tier(bed)])?.success()?;
        let waits = bed.say(&["prune", "j@3"])?;
        ensure!(waits.code() == 69 && waits.stderr.contains("yet to get"), "{}", waits.stderr);
        restarts(bed, JOB, &[])
    });
}

/// The number that `prune` says.
fn freed(ended: &Ended) -> Result<u64> {
    let said: Value = serde_json::from_str(&ended.stdout)?;
    said["freed"].as_u64().with_context(|| said.to_string())
}

/// Bytes of all files of the store.
fn all_bytes(bed: &Bed) -> Result<u64> {
    let mut sum = 0;
    for job in fs::read_dir(bed.store())? {
        for entry in fs::read_dir(job?.path())? {
            let entry = entry?;
            let about = entry.metadata()?;
            // The lock has the id of its last holder.
            sum += if about.is_file() && entry.file_name() != "lock" { about.len() } else { 0 };
        }
    }
    Ok(sum)
}

#[test]
fn a_dry_run_says_what_becomes_free() {
    each_user(|bed| {
        job_with_images(bed, &[], 3)?;
        let make = |folder: &str, file: &str, bytes: u32| {
            let mut shell = bed.command(Path::new("/bin/sh"));
            let place = bed.job(JOB).join(folder);
            let line = format!("mkdir -p {0} && head -c {bytes} /dev/zero >{0}/{file}", place.display());
            bed.output(
                {
                    shell.args(["-c", &line]);
                    shell
                },
                PATIENCE,
            )?
            .success()
        };
        make("saved", "1-000-log.tail", 700)?;
        make("saved", "renamed-1-2", 70)?;
        let listed = plain_job::listed(bed)?;
        ensure!(listed["saved"] == serde_json::json!({ "files": 2, "bytes": 770 }), "{listed}");
        let text = bed.say(&["list", JOB])?.success()?.stdout;
        ensure!(text.contains("saved/: 2 files, 770 B that restarts cut off"), "{text}");
        // What crashes leave.
        make("", ".part-segment-000009-000", 5000)?;
        make("", "segment-000007-000", 3000)?;
        for options in [&["--saved", "--older-than", "1d"][..], &["--saved"], &["--keep-last", "1"]] {
            let words = [&["prune", JOB, "--json"], options].concat();
            let said = freed(&bed.say(&[&words[..], &["--dry-run"]].concat())?.success()?)?;
            let before = all_bytes(bed)? + saved(bed)?;
            let really = freed(&bed.say(&words)?.success()?)?;
            let gone = before - all_bytes(bed)? - saved(bed)?;
            ensure!((said, really) == (gone, gone), "{options:?}: {said}, {really}, {gone}");
        }
        ensure!(bed.images(JOB) == [3] && saved(bed)? == 70, "{:?}", bed.images(JOB));
        // Parts of files stay, and the job's folder with them, unless they are not wanted.
        let kept = bed.say(&["prune", JOB, "--all"])?.success()?;
        ensure!(
            kept.stdout.contains("saved: parts of your files") && bed.images(JOB).is_empty(),
            "{}",
            kept.stdout
        );
        let said = freed(&bed.say(&["prune", JOB, "--all", "--saved", "--dry-run", "--json"])?.success()?)?;
        let really = freed(&bed.say(&["prune", JOB, "--all", "--saved", "--json"])?.success()?)?;
        ensure!(said == really && said > 70 && !bed.job(JOB).exists(), "{said}, {really}");
        Ok(())
    });
}

/// Bytes of what restarts have kept.
fn saved(bed: &Bed) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(bed.job(JOB).join("saved"))? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}

#[test]
fn images_of_a_running_job_and_of_several_are_pruned() {
    each_user(|bed| {
        let running = start(bed, &[])?;
        for _ in 0..4 {
            bed.say(&["checkpoint", JOB])?.success()?;
        }
        let newest = bed.say(&["prune", "j@4"])?;
        ensure!(
            newest.code() == 69 && newest.stderr.contains("it is the newest image of a running job"),
            "{}",
            newest.stderr
        );
        let elsewhere = bed.say(&["prune", JOB, "--keep", "1", "--all-tiers"])?;
        ensure!(elsewhere.code() == 69 && elsewhere.stderr.contains("is running"), "{}", elsewhere.stderr);
        bed.say(&["prune", "j@2"])?.success()?;
        ensure!(bed.images(JOB) == [1, 3, 4], "{:?}", bed.images(JOB));
        // All of them are younger.
        bed.say(&["prune", JOB, "--older-than", "1d"])?.success()?;
        bed.say(&["prune", JOB, "--keep-last", "2"])?.success()?;
        ensure!(bed.images(JOB) == [3, 4], "{:?}", bed.images(JOB));
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.say(&["verify", JOB])?.success()?;
        let file = "k.img";
        end(bed, running)?;
        bed.say(&["export", JOB, file])?.success()?;
        bed.say(&["import", file, "--name", "k"])?.success()?;
        ensure!(bed.say(&["prune", JOB, "k@1"])?.code() == 64, "jobs and images");
        let said = bed.say(&["prune", JOB, "k", "nothing", "--keep-last", "1"])?;
        ensure!(said.code() == 66 && said.stderr.contains("not all jobs were pruned"), "{}", said.stderr);
        ensure!(said.stdout.contains("of job j"), "{}", said.stdout);
        ensure!(bed.images(JOB) == [5] && bed.images("k") == [5], "{:?}", bed.images(JOB));
        restarts(bed, JOB, &[])
    });
}

/// Bytes of all images of the job.
fn space(bed: &Bed) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(bed.job(JOB))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("manifest-") || name.starts_with("segment-") {
            sum += entry.metadata()?.len();
        }
    }
    Ok(sum)
}

#[test]
fn the_space_of_a_job_has_a_bound() {
    each_user(|bed| {
        // Nothing fits: the checkpoint fails by name, and the program goes on.
        let running = start(bed, &["--max-space", "16K"])?;
        let failed = bed.say(&["checkpoint", JOB])?;
        ensure!(failed.code() == 73 && failed.stderr.contains("--max-space 16K"), "{}", failed.stderr);
        ensure!(processes::runs(running.1) && space(bed)? == 0, "{} bytes", space(bed)?);
        end(bed, running)?;
        bed.say(&["prune", JOB, "--all"])?.success()?;
        // Room for one image and a little: old ones go, and the newest good one is always there.
        let running = start(bed, &["--compress", "none"])?;
        bed.say(&["checkpoint", JOB])?.success()?;
        end(bed, running)?;
        let most = space(bed)? + space(bed)? / 2;
        bed.say(&["prune", JOB, "--all"])?.success()?;
        let running =
            start(bed, &["--compress", "none", "--max-space", &format!("{}K", most.div_ceil(1024))])?;
        for _ in 0..6 {
            let taken = bed.say(&["checkpoint", JOB])?;
            ensure!(taken.status.success() || taken.stderr.contains("--max-space"), "{}", taken.stderr);
            let now = space(bed)?;
            ensure!(now <= most && now > 0, "{now} of {most} bytes");
        }
        ensure!(processes::runs(running.1), "the program runs on");
        end(bed, running)?;
        bed.say(&["verify", JOB])?.success()?;
        restarts(bed, JOB, &[])
    });
}
