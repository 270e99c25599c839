//! Damaged and foreign images: never a panic, never a wrong restart; an error that names the file, and `--fallback`
//! takes the older image. Also: the C API, and `doctor`.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, shell_code, wait};
use std::fs;
use std::path::{Path, PathBuf};

const JOB: &str = "j";

/// A job with two images whose program has been killed; one bed for many damages.
fn two_images(bed: &Bed, app: &App) -> Result<()> {
    let mut front = bed.staying_command(JOB, &[], &app.words())?.spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    for lines in [5, 10] {
        bed.until("lines", PATIENCE, || bed.text("out").lines().count() >= lines)?;
        bed.say(&["checkpoint", JOB])?.success()?;
    }
    kill_program(pid, &mut front)?;
    bed.may_end()
}

fn app() -> App {
    App::program("plain", &["30", "10"])
}

fn right_output() -> String {
    let lines: String = (0..30).map(|n| format!("{:05} plain round {n}\n", n + 1)).collect();
    lines + "PASS\n"
}

/// The files of the newest image.
fn files_of_newest(bed: &Bed) -> Result<Vec<PathBuf>> {
    files_of(bed, *bed.images(JOB).last().context("an image")?)
}

fn files_of(bed: &Bed, epoch: u64) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(bed.job(JOB))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.contains(&format!("-{epoch:06}")) {
            files.push(path);
        }
    }
    files.sort();
    ensure!(files.len() >= 2, "manifest and segment expected: {files:?}");
    Ok(files)
}

/// A restart from a damaged image: an orderly error that names the file, or (if the damage is in bytes that nobody
/// needs) the right result. Returns whether it was refused.
fn restart_damaged(bed: &Bed, file: &Path) -> Result<bool> {
    let ended =
        bed.output(bed.holdfast(&["restart", "--stdio=keep", &format!("{JOB}@2"), "--eager"]), PATIENCE)?;
    check_orderly(&ended)?;
    if ended.status.success() {
        ensure!(bed.text("out") == right_output(), "restarted with a wrong result: {}", bed.text("out"));
        return Ok(false);
    }
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(ended.code() == 65, "status {}: {}", ended.code(), ended.stderr);
    ensure!(ended.stderr.contains(&name), "{name} is not named: {}", ended.stderr);
    Ok(true)
}

fn check_orderly(ended: &Ended) -> Result<()> {
    ensure!(!ended.stderr.contains("panicked"), "a panic: {}", ended.stderr);
    ensure!(![134, 139, 101].contains(&ended.code()), "status {}: {}", ended.code(), ended.stderr);
    Ok(())
}

/// One random bit in one random file of the image: `verify` must find it, unless it is in bytes that mean nothing (gaps
/// between frames), from which a restart comes to the right result.
fn one_flip(bed: &Bed, files: &[PathBuf], random: &mut Random) -> Result<()> {
    let sizes: Vec<u64> = files.iter().map(|f| fs::metadata(f).map(|m| m.len())).collect::<Result<_, _>>()?;
    // half of the flips go into the small file, which has most of the structure
    let at = if random.below(2) == 0 { 0 } else { random.below(files.len() as u64) as usize };
    let (offset, bit) = (random.below(sizes[at]) as usize, random.below(8));
    let good = fs::read(&files[at])?;
    let mut bad = good.clone();
    bad[offset] ^= 1 << bit;
    fs::write(&files[at], &bad)?;
    let what = || format!("bit {bit} of byte {offset} of {}", files[at].display());
    let result = (|| {
        let found = bed.say(&["verify", &format!("{JOB}@2")])?;
        check_orderly(&found)?;
        let refused = restart_damaged(bed, &files[at])?;
        ensure!(!found.status.success() || !refused, "verify finds nothing, restart does");
        check_orderly(&bed.say(&["list"])?)?;
        if bit == 0 {
            check_orderly(&bed.say(&["report", JOB, "-o", "-"])?)?;
        }
        check_orderly(&bed.say(&["show", &format!("{JOB}@2")])?)
    })();
    fs::write(&files[at], &good)?;
    result.with_context(what)
}

#[test]
fn flipped_bits() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let mut random = Random::new();
    two_images(&bed, &app())?;
    let files = files_of_newest(&bed)?;
    for _ in 0..if holdfast_tests::full() { 1000 } else { 100 } {
        one_flip(&bed, &files, &mut random)?;
    }
    let page = bed.say(&["report", JOB, "-o", "-"])?.success()?.stdout;
    ensure!(page.ends_with("</html>\n") && page.contains("image 2\n"), "{page}");
    // undamaged again, it restarts
    bed.say(&["restart", "--stdio=keep", &format!("{JOB}@2")])?.success()?;
    ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
    bed.check_clean(JOB)
}

/// The agent finds it, and ends the new process, before the front has heard of that.
#[test]
fn damage_is_named_by_a_front_that_comes_late() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    two_images(&bed, &app())?;
    // What the second image has from the first is read by the agent alone.
    let files = files_of(&bed, 1)?;
    let segment = files.into_iter().max_by_key(|file| fs::metadata(file).map_or(0, |m| m.len()));
    let segment = segment.context("a segment")?;
    let mut bad = fs::read(&segment)?;
    let quarter = bad.len() / 4;
    bad[quarter..3 * quarter].iter_mut().for_each(|byte| *byte ^= 0x40);
    fs::write(&segment, &bad)?;
    let mut command = bed.holdfast(&["restart", "--stdio=keep", &format!("{JOB}@2"), "--eager"]);
    command.env("HOLDFAST_FAULT", "front-hears+700");
    let ended = bed.output(command, PATIENCE)?;
    let name = segment.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(ended.code() == 65 && ended.stderr.contains(&name), "status {}: {}", ended.code(), ended.stderr);
    let log = fs::read_to_string(bed.job(JOB).join("agent.log"))?;
    ensure!(log.contains(&name), "it was not the agent that found it: {log}");
    bed.check_clean(JOB)
}

#[test]
fn truncated_files() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    two_images(&bed, &app())?;
    for file in files_of_newest(&bed)? {
        let good = fs::read(&file)?;
        let len = good.len();
        for keep in [0, 1, 7, 8, 16, 63, 64, 100, 4095, 4096, len / 3, len / 2, len - 4097.min(len), len - 1]
        {
            if keep >= len {
                continue;
            }
            fs::write(&file, &good[..keep])?;
            let ended = bed.output(
                bed.holdfast(&["restart", "--stdio=keep", &format!("{JOB}@2"), "--eager"]),
                PATIENCE,
            )?;
            check_orderly(&ended)?;
            ensure!(!ended.status.success(), "{} cut to {keep} of {len} bytes: restarted", file.display());
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            ensure!(ended.stderr.contains(&name), "{name} is not named: {}", ended.stderr);
        }
        fs::write(&file, &good)?;
        let aside = bed.dir().join("aside");
        fs::rename(&file, &aside)?;
        let ended = bed.say(&["restart", "--stdio=keep", &format!("{JOB}@2")])?;
        check_orderly(&ended)?;
        ensure!(!ended.status.success(), "restarted without {}", file.display());
        fs::rename(&aside, &file)?;
    }
    bed.say(&["restart", "--stdio=keep", JOB])?.success()?;
    ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
    Ok(())
}

#[test]
fn foreign_files() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    two_images(&bed, &app())?;
    let mut random = Random::new();
    let noise: Vec<u8> = (0..50_000).map(|_| random.number() as u8).collect();
    let first_manifest = fs::read(bed.job(JOB).join("manifest-000001"))?;
    let foreign: [&[u8]; 5] = [b"", b"#!/bin/sh\necho hello\n", &noise, &first_manifest, &[0; 100_000]];
    for file in files_of_newest(&bed)? {
        let good = fs::read(&file)?;
        for content in foreign {
            fs::write(&file, content)?;
            restart_damaged(&bed, &file)
                .with_context(|| format!("{} of {} bytes", file.display(), content.len()))?;
        }
        fs::write(&file, &good)?;
    }
    Ok(())
}

#[test]
fn fallback_takes_the_older_image() -> Result<()> {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        two_images(&bed, &app())?;
        for file in files_of_newest(&bed)? {
            let good = fs::read(&file)?;
            let mut bad = good.clone();
            // In the header, which is in the last block of a segment: what lies elsewhere may be nobody's by now.
            let is_segment =
                file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-"));
            let header = if is_segment { bad.len() - 4096 } else { 0 };
            bad[header + 40] ^= 0x40;
            fs::write(&file, &bad)?;
            let ended = bed.say(&["restart", "--stdio=keep", JOB, "--eager"])?;
            ensure!(!ended.status.success(), "restarted from the damaged image without --fallback");
            let ended = bed.say(&["restart", "--stdio=keep", JOB, "--fallback", "--eager"])?.success()?;
            ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
            ensure!(
                ended.stderr.contains("image 2 is damaged, image 1 is tried"),
                "not said: {}",
                ended.stderr
            );
            fs::write(&file, &good)?;
        }
        bed.check_clean(JOB)?;
    }
    Ok(())
}

/// `holdfast list` does not call an image good whose manifest is broken.
#[test]
fn a_broken_manifest_is_listed_as_broken() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    two_images(&bed, &app())?;
    let before = bed.say(&["list", "--json"])?.success()?.stdout;
    let manifest = bed.job(JOB).join("manifest-000002");
    let good = fs::read(&manifest)?;
    fs::write(&manifest, &good[..good.len() / 2])?;
    let after = bed.say(&["list", "--json"])?.success()?.stdout;
    ensure!(before != after, "the listing is the same: {after}");
    let text = bed.say(&["list"])?.success()?;
    check_orderly(&text)
}

/// `--only-protected`: the image holds the named regions, and the program, started anew, restores itself from them.
#[test]
fn a_program_that_restores_itself() -> Result<()> {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        let program = App::program("capi", &["protected"]);
        let mut front = bed.run_command(JOB, &["--only-protected"], &program.words())?.spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 134, "status {code} of the first life: {}{}", bed.text("out"), bed.text("err"));
        let ended = bed.output(bed.holdfast(&["restart", "--stdio=keep", JOB]), PATIENCE)?.success()?;
        let first = ended.stdout.lines().next().context("a line")?;
        ensure!(
            first.contains("round 10 sum") && !first.contains("sum 0000000000000000"),
            "{}",
            ended.stdout
        );
        ensure!(ended.stdout.ends_with("PASS\n"), "{}", ended.stdout);
        bed.check_clean(JOB)?;
    }
    Ok(())
}

#[test]
fn protected_memory_and_the_c_api() -> Result<()> {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        let api = App::program("capi", &[]);
        // without an agent everything is a no-op that says so
        let mut alone = bed.command(Path::new(&api.argv[0]));
        alone.arg("alone").env("LD_PRELOAD", bed.kit().library()).env("HOLDFAST_NO_AGENT", "1");
        let ended = bed.output(alone, PATIENCE)?.success()?;
        ensure!(ended.stdout.ends_with("PASS\n"), "{}", ended.stdout);
        let mut front = bed.run_command(JOB, &[], &api.words())?.spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(
            code == 0 && bed.text("out").ends_with("PASS\n"),
            "status {code}: {}{}",
            bed.text("out"),
            bed.text("err")
        );
        ensure!(bed.images(JOB) == [1], "images {:?}", bed.images(JOB));
        // the same image again: the program notices that it was restarted
        let mut front = bed.restart_command(JOB, &[])?.spawn()?;
        let code = shell_code(wait(&mut front, PATIENCE)?);
        ensure!(code == 0 && bed.text("out").contains("restarted 1"), "status {code}: {}", bed.text("out"));
        bed.check_clean(JOB)?;
    }
    Ok(())
}

#[test]
fn doctor_says_what_works() -> Result<()> {
    for user in [User::Root, User::Ordinary] {
        let Some(bed) = Bed::new(user) else { continue };
        let text = bed.say(&["doctor"])?.success()?.stdout;
        for word in ["ptrace", "linux", "restart"] {
            ensure!(text.to_lowercase().contains(word), "{word} is not in:\n{text}");
        }
        let json = bed.say(&["doctor", "--json"])?.success()?.stdout;
        serde_json::from_str::<serde_json::Value>(&json).context("doctor --json")?;
    }
    Ok(())
}
