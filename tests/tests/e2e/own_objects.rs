//! Versions that programs have put themselves, and the commands for images; what is damaged in the store or on a lower
//! tier, of one rank or of all: restored is a whole version with its bytes, on all ranks the same, or nothing, with a
//! reason.

use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::own::{build, pids, shell};
use holdfast_tests::processes;
use holdfast_tests::restart_chain::kill_all;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::fs;
use std::path::{Path, PathBuf};

const RANKS: usize = 2;
const LAST: usize = 3;

/// A store with versions 1 to [`LAST`] of all ranks, and a lower tier that has them, too.
fn begun(bed: &Bed) -> Result<()> {
    build(bed, "cc -std=gnu11", "versions.c", "holdfast-client")?;
    bed.output(shell(bed, &format!("{} put {LAST}", program(bed))), PATIENCE)?.success()?;
    end(bed);
    for rank in 0..RANKS {
        bed.say(&["sync", &job(rank), "--wait"])?.success()?;
    }
    Ok(())
}

fn program(bed: &Bed) -> String {
    format!("./versions 'store={};tier=dir={}' {RANKS}", bed.store().display(), lower(bed).display())
}

fn lower(bed: &Bed) -> PathBuf {
    bed.work().join("lower")
}

fn job(rank: usize) -> String {
    format!("objects/set/{rank}")
}

/// The server ends, and with it what it has in memory.
fn end(bed: &Bed) {
    processes::kill(&pids(bed, "serve"));
}

/// What each rank says that it restores.
fn restored(bed: &Bed) -> Result<Vec<String>> {
    let ended = bed.output(shell(bed, &format!("{} check", program(bed))), PATIENCE)?;
    end(bed);
    ensure!(ended.code() == 0, "{}{}", ended.stdout, ended.stderr);
    let mut lines: Vec<String> = ended.stdout.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    ensure!(lines.len() == RANKS, "{lines:?}");
    Ok(lines.into_iter().map(|line| line.split_once(' ').map_or("", |(_, said)| said).to_owned()).collect())
}

/// On the stand-in driver.
#[test]
fn an_object_may_be_in_device_memory() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "device.c", "holdfast-client -ldl")?;
        let driver = bed.kit().stand_in()?.to_owned();
        let libraries = format!("{}:{}", driver.display(), bed.kit().bin().display());
        let run = |what: &str| {
            let line = format!("./device 'store={}' {what}", bed.store().display());
            let mut command = shell(bed, &line);
            command.env("LD_LIBRARY_PATH", &libraries);
            bed.output(command, PATIENCE)
        };
        ensure!(run("put")?.stdout == "right\n", "put");
        end(bed);
        ensure!(run("again")?.stdout == "right\n", "restored from the store");
        let said = run("none")?.stdout;
        ensure!(said.contains("has not loaded the CUDA driver (libcuda.so.1)"), "{said}");
        end(bed);
        Ok(())
    });
}

#[test]
fn commands_for_images_work_on_objects() {
    each_user(|bed| {
        begun(bed)?;
        let newest = vec![LAST.to_string(); RANKS];
        ensure!(restored(bed)? == newest);
        for rank in 0..RANKS {
            bed.say(&["verify", &job(rank)])?.success()?;
            let copy = bed.work().join(format!("copy{rank}"));
            bed.say(&["export", &job(rank), &copy.to_string_lossy()])?.success()?;
        }
        // Versions go from the store, and one comes back from the tier.
        for rank in 0..RANKS {
            bed.say(&["prune", &job(rank), "--keep", "1", "--tier", "local"])?.success()?;
            ensure!(bed.images(&job(rank)) == [LAST as u64]);
            bed.say(&["fetch", &format!("{}@1", job(rank))])?.success()?;
            ensure!(bed.images(&job(rank)) == [1, LAST as u64]);
        }
        ensure!(restored(bed)? == newest, "the newest one stays");
        // The store is lost.
        fs::remove_dir_all(bed.store())?;
        for rank in 0..RANKS {
            let file = bed.work().join(format!("copy{rank}"));
            let said = bed.say(&["import", &file.to_string_lossy()])?.success()?.stderr;
            ensure!(said.contains(&format!("of rank {rank} was imported into set")), "{said}");
        }
        ensure!(restored(bed)? == newest, "what was imported is whole");
        fs::remove_dir_all(bed.store())?;
        let tier = format!("dir={}", lower(bed).display());
        for rank in 0..RANKS {
            bed.say(&["fetch", "--tier", &tier, &job(rank)])?.success()?;
        }
        ensure!(restored(bed)? == newest, "what was fetched is whole");
        Ok(())
    });
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Missing,
    Truncated,
    Flipped,
    Zero,
}

/// Damages a file; half of its bytes are cut off, every hundredth one is changed, or all are zero.
fn damage(path: &Path, how: Damage) -> Result<()> {
    let mut bytes = fs::read(path)?;
    match how {
        Damage::Missing => return Ok(fs::remove_file(path)?),
        Damage::Truncated => bytes.truncate(bytes.len() / 2),
        Damage::Flipped => bytes.iter_mut().step_by(100).for_each(|byte| *byte ^= 0x10),
        Damage::Zero => bytes.fill(0),
    }
    Ok(fs::write(path, bytes)?)
}

/// The newest file of this kind of each rank in a place.
fn newest_files(place: &Path, kind: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![place.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut own = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() {
                folders.push(path);
            } else if name.starts_with(kind) {
                own.push(path);
            }
        }
        files.extend(own.into_iter().max());
    }
    files.sort_unstable();
    ensure!(files.len() == RANKS, "{kind} in {}: {files:?}", place.display());
    Ok(files)
}

/// What is restored with this damage is the newest version, or, where the store alone is asked which ones there are, an
/// older one; or there is an error on a rank that is damaged.
fn tried(bed: &Bed, how: Damage, kind: &str, ranks: usize, in_store: bool) -> Result<()> {
    let place = if in_store { bed.store() } else { lower(bed) };
    for path in newest_files(&place, kind)?.iter().take(ranks) {
        damage(path, how)?;
    }
    let said = restored(bed)?;
    let versions: Vec<Option<usize>> = said.iter().map(|said| said.parse().ok()).collect();
    let whole: Vec<usize> = versions.iter().flatten().copied().collect();
    ensure!(whole.iter().all(|version| *version == whole[0]), "not one version: {said:?}");
    if !in_store || kind == "segment" {
        ensure!(whole == vec![LAST; RANKS], "the other place has it: {said:?}");
    }
    let reasons = said.iter().filter(|said| said.parse::<usize>().is_err());
    for reason in reasons {
        let words = reason.strip_prefix("error ").with_context(|| format!("no reason: {said:?}"))?;
        ensure!(words.len() > 10, "{words}");
    }
    Ok(())
}

#[test]
fn what_is_damaged_is_read_from_elsewhere_or_refused_and_never_wrong() {
    each_user(|bed| {
        begun(bed)?;
        let line = format!(
            "mkdir pristine; cp -a {} pristine/store; cp -a {} pristine/lower",
            bed.store().display(),
            lower(bed).display()
        );
        bed.output(shell(bed, &line), PATIENCE)?.success()?;
        let mut number = 0;
        for how in [Damage::Missing, Damage::Truncated, Damage::Flipped, Damage::Zero] {
            for (ranks, in_store) in [(1, true), (RANKS, true), (1, false), (RANKS, false)] {
                for kind in ["segment", "manifest"] {
                    number += 1;
                    // The short form takes every third case: all of each kind are among them.
                    if !full() && number % 3 != 0 {
                        continue;
                    }
                    let line = format!(
                        "rm -rf {0} {1}; cp -a pristine/store {0}; cp -a pristine/lower {1}",
                        bed.store().display(),
                        lower(bed).display()
                    );
                    bed.output(shell(bed, &line), PATIENCE)?.success()?;
                    tried(bed, how, kind, ranks, in_store).with_context(|| {
                        format!("{how:?} {kind} of {ranks} ranks, in the store: {in_store}")
                    })?;
                }
            }
        }
        Ok(())
    });
}

/// Under `holdfast run`: two ranks with an open set are killed and restarted from an image, twice, and go on putting.
/// Their server was started by them, and dies with them, or is there before and after; it is not in the image.
#[test]
fn an_open_set_goes_on_after_a_restart() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "load.c", "holdfast-client")?;
        for lives in [false, true] {
            let objects = bed.work().join(format!("objects{lives}"));
            let mut server = bed.holdfast(&["serve", "--store", &objects.to_string_lossy()]);
            let server = if lives { Some(server.spawn()?) } else { None };
            if lives {
                bed.until("the server", PATIENCE, || objects.join("objects/serve.sock").exists())?;
            }
            let (job, log) = (format!("job{lives}"), format!("log{lives}"));
            let options = format!("store={}", objects.display());
            let mut command = bed.run_command(&job, &[], &load(&options, &log, &["put", "20"]))?;
            command.env("LD_LIBRARY_PATH", bed.kit().bin()).env("HOLDFAST_BIN", bed.kit().holdfast());
            let mut front = command.spawn()?;
            for restart in 1..=2 {
                more(bed, &log)?;
                bed.say(&["check", &job])?.success()?;
                bed.say(&["checkpoint", &job])?.success()?;
                // What is put now is undone.
                more(bed, &log)?;
                let pid = bed.pid(&job)?.context("the program")?;
                kill_all(bed, pid, &mut front)?;
                if !lives {
                    processes::kill(&processes::of(bed.dir()));
                }
                front = bed.restart_command(&job, &[])?.spawn()?;
                more(bed, &log).with_context(|| format!("restart {restart}: {}", bed.text("restart.err")))?;
            }
            let last = (0..RANKS).map(|rank| put(bed, &log, rank).last().copied().unwrap_or(0)).min();
            processes::kill(&processes::of(bed.dir()));
            wait(&mut front, PATIENCE)?;
            server.map(|mut server| wait(&mut server, PATIENCE)).transpose()?;
            let words = load(&options, "log", &["check"]).join(" ");
            let found = bed.output(shell(bed, &words), PATIENCE)?.success()?.stdout;
            let newest: Vec<u64> =
                found.lines().filter_map(|line| line.split_once(' ')?.1.parse().ok()).collect();
            ensure!(
                newest.len() == RANKS && newest[0] == newest[1] && Some(newest[0]) >= last,
                "{found}{last:?}"
            );
        }
        Ok(())
    });
}

fn load<'a>(options: &'a str, log: &'a str, what: &[&'a str]) -> Vec<&'a str> {
    [&["./load", options, "2", "65536", log], what].concat()
}

/// The versions that a rank has put, as it says.
fn put(bed: &Bed, log: &str, rank: usize) -> Vec<u64> {
    let text = bed.text(&format!("{log}.{rank}"));
    text.lines().filter_map(|line| line.strip_prefix("put ")?.parse().ok()).collect()
}

/// Waits until all ranks have put another version.
fn more(bed: &Bed, log: &str) -> Result<()> {
    for rank in 0..RANKS {
        let before = put(bed, log, rank).len();
        bed.until("more versions", PATIENCE, || put(bed, log, rank).len() > before)?;
    }
    Ok(())
}
