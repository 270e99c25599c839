//! `export --veloc` and `import --veloc`: files of VELOC's own format come out of a store and go into another one, for
//! all ranks, and programs go on from them; what is missing, cut or made up is refused by name.

use anyhow::{Context, Result, ensure};
use holdfast_tests::own::{build, configure, forget, four_ranks, missing_mpi, pids, shell};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user};
use std::fs;
use std::path::Path;

/// Exports a version of one store, imports it into another; `what`: the set, and the options of the import.
fn moved(bed: &Bed, (set, options): (&str, &[&str])) -> Result<()> {
    let folder = bed.work().join("files");
    let folder = folder.to_str().context("a path")?;
    let store = |name: &str| bed.work().join(name).display().to_string();
    let (first, second) = (store("first"), store("second"));
    bed.say(&["export", "--store", &first, "--veloc", &format!("{set}@30"), folder])?.success()?;
    let import = [&["import", "--store", &second, "--veloc", folder], options].concat();
    bed.say(&import)?.success()?;
    Ok(())
}

/// A program that has come to its end with one store goes on from files in another one, to the same end.
fn goes_on(bed: &Bed, line: &str, what: (&str, &[&str])) -> Result<()> {
    configure(bed, "first", "mode = async\n")?;
    // Imported without lower tiers: that of the program counts.
    let below = bed.work().join("below");
    configure(bed, "second", &format!("mode = async\npersistent = {}\n", below.display()))?;
    let whole = bed.output(shell(bed, &format!("{line} first.cfg")), PATIENCE)?.success()?;
    moved(bed, what).with_context(|| line.to_owned())?;
    let rest = bed.output(shell(bed, &format!("{line} second.cfg")), PATIENCE)?.success()?;
    ensure!(rest.stderr.contains("from 30\n"), "{line}: {}", rest.stderr);
    ensure!(rest.stdout == whole.stdout, "{line}: {} is not {}", rest.stdout, whole.stdout);
    bed.until("the versions are at the lower tier", PATIENCE, || has_manifest(&below))
}

fn has_manifest(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => has_manifest(&entry.path()),
        _ => entry.file_name().to_string_lossy().starts_with("manifest-"),
    })
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

#[test]
fn a_program_goes_on_from_files_of_veloc() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "heat.c", "veloc-client")?;
        let files = bed.work().join("files");
        for (mode, options) in [("memory", &["--single"][..]), ("file", &["--single", "--file-mode"])] {
            goes_on(bed, &format!("./heat {mode} 50"), ("heat-0", options))?;
            ensure!(names(&files)? == ["heat-0-30.dat"], "{:?}", names(&files)?);
            let file = fs::read(files.join("heat-0-30.dat"))?;
            // Three regions, the first of them the step; or a file that begins with it.
            let step = if mode == "memory" { &file[8 + 3 * 12..][..4] } else { &file[..4] };
            ensure!(step == 30_i32.to_le_bytes(), "{mode}: {step:?}");
            ensure!(mode == "file" || file[..8] == 3_u64.to_le_bytes(), "{:?}", &file[..8]);
            forget(bed, &["first", "second", "files", "below"])?;
        }
        Ok(())
    });
}

#[test]
fn ranks_go_on_from_files_of_veloc() {
    if let Some(needed) = missing_mpi("openmpi") {
        return println!("not run: {needed} is missing; scripts/install-deps.sh trees");
    }
    each_user(|bed| {
        build(bed, "mpicc.openmpi -std=gnu11 -DRANKS", "heat.c", "veloc-client")?;
        goes_on(bed, &four_ranks("openmpi", "./heat memory 50"), ("heat", &[]))?;
        let names = names(&bed.work().join("files"))?;
        ensure!(names == ["heat-0-30.dat", "heat-1-30.dat", "heat-2-30.dat", "heat-3-30.dat"], "{names:?}");
        Ok(())
    });
}

/// A file as VELOC writes it, with a region of some pages and one of some bytes.
fn file(rank: u8, version: u8) -> Vec<u8> {
    let large: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8 ^ rank).collect();
    let mut bytes = 2_u64.to_le_bytes().to_vec();
    for (id, len) in [(-1_i32, 1_u64), (7, large.len() as u64)] {
        bytes.extend(id.to_le_bytes());
        bytes.extend(len.to_le_bytes());
    }
    bytes.push(version);
    bytes.extend(large);
    bytes
}

fn write_all(bed: &Bed, folder: &str) -> Result<()> {
    bed.output(shell(bed, &format!("rm -rf {folder} && mkdir {folder}")), PATIENCE)?.success()?;
    for version in [10, 20] {
        for rank in 0..3 {
            let name = format!("{folder}/heat-{rank}-{version}.dat");
            bed.create(&name)?;
            fs::write(bed.work().join(&name), file(rank, version))?;
        }
    }
    Ok(())
}

#[test]
fn what_is_missing_or_damaged_is_named_and_the_rest_is_taken() {
    each_user(|bed| {
        let files = bed.work().join("files");
        let import = |options: &[&str]| bed.say(&[&["import", "--veloc", "files"], options].concat());
        let says = |code: i32, words: &str, options: &[&str]| -> Result<()> {
            let ended = import(options)?;
            ensure!(ended.code() == code && ended.stderr.contains(words), "{words}: {ended:?}");
            Ok(())
        };
        write_all(bed, "files")?;
        // A length that is none.
        let mut hostile = file(2, 10);
        hostile[24..28].fill(0xff);
        fs::write(files.join("heat-2-10.dat"), &hostile)?;
        fs::remove_file(files.join("heat-1-20.dat"))?;
        says(65, "version 20 has no file of rank 1", &[])?;
        says(65, "heat-2-10.dat: region 7 has", &[])?;
        says(65, "wave: version 20", &["--name", "wave"])?;
        ensure!(!bed.store().join("objects/heat").exists(), "nothing was whole");
        write_all(bed, "files")?;
        fs::write(files.join("heat-0-20.dat"), &file(0, 20)[..9000])?;
        says(65, "heat-0-20.dat: region 7 has 10000 bytes", &[])?;
        // Version 10 is there, and not a second time.
        says(69, "the store has version 10 of heat already", &[])?;
        // It is a job like others.
        let shown = bed.say(&["show", "objects/heat/2@1"])?.success()?;
        ensure!(shown.stdout.contains("10 of the set heat, rank 2 of 3"), "{}", shown.stdout);
        bed.say(&["verify", "objects/heat/2"])?.success()?;
        // Out again, the same bytes; never over a file.
        let export = ["export", "--veloc", "heat", "out"];
        bed.say(&export)?.success()?;
        for rank in 0..3 {
            let out = fs::read(bed.work().join(format!("out/heat-{rank}-10.dat")))?;
            ensure!(out == file(rank, 10), "rank {rank}");
        }
        let again = bed.say(&export)?;
        ensure!(again.code() == 73 && again.stderr.contains("is there already"), "{again:?}");
        for (image, words) in [("heat@20", "has not version 20 of heat"), ("wave", "no set of objects wave")]
        {
            let ended = bed.say(&["export", "--veloc", image, "out"])?;
            ensure!(ended.code() == 66 && ended.stderr.contains(words), "{ended:?}");
        }
        // Without one rank no version is whole.
        bed.say(&["prune", "objects/heat/1", "--all", "--anyway"])?.success()?;
        let ended = bed.say(&["export", "--veloc", "heat", "other"])?;
        ensure!(ended.code() == 66 && ended.stderr.contains("2 of 3 ranks"), "{ended:?}");
        ensure!(
            !bed.work().join("other").exists() && pids(bed, "serve").is_empty(),
            "{:?}",
            processes::of(bed.dir())
        );
        Ok(())
    });
}
