//! The CUDA programs of `tests/programs/cuda` on the stand-in driver, without Holdfast, and with libholdfast alone,
//! which owns their device memory: right, and the same in every order in which the stand-in lets streams and threads
//! run.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user};

/// Each with the arguments of a short run.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("saxpy", &["4"]),
    ("pointers", &["4"]),
    ("atomics", &["4"]),
    ("structs", &["4"]),
    ("globals", &["4"]),
    ("streams", &["4"]),
    ("pinned", &["4"]),
    ("graph", &["4"]),
    ("touches", &["4", "2", "3"]),
    ("threads", &["4"]),
    ("vmm", &["5"]),
];

/// Who has the memory of cuMemAlloc.
#[derive(Clone, Copy)]
enum Memory {
    /// The driver: there is no libholdfast.
    Drivers,
    /// libholdfast.
    Ours,
}

/// Has libholdfast own the memory, without an agent.
fn own_memory(bed: &Bed, command: &mut Command) {
    command.env("LD_PRELOAD", bed.kit().library()).env("HOLDFAST_CUDA_DATA", "library");
    command.env("HOLDFAST_NO_AGENT", "1");
}

fn output(bed: &Bed, (name, arguments): (&str, &[&str]), seed: &str, memory: Memory) -> Result<String> {
    let mut command = bed.command(&bed.kit().cuda_program(name));
    command.args(arguments).env("LD_LIBRARY_PATH", bed.kit().stand_in()?).env("STAND_IN_SEED", seed);
    if let Memory::Ours = memory {
        own_memory(bed, &mut command);
    }
    let ended = bed.output(command, PATIENCE)?.success().with_context(|| name.to_owned())?;
    ensure!(ended.stdout.ends_with("PASS\n"), "{name}: {}", ended.stdout);
    Ok(ended.stdout)
}

/// Each user has an order of its own.
#[test]
fn every_order_gives_the_same() {
    let seen: Mutex<HashMap<&str, String>> = Mutex::default();
    each_user(|bed| {
        let seed = if bed.user() == User::Root { "1" } else { "2" };
        for (name, arguments) in PROGRAMS {
            for memory in [Memory::Drivers, Memory::Ours] {
                let found = output(bed, (name, arguments), seed, memory)?;
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                let first = seen.entry(name).or_insert_with(|| found.clone());
                ensure!(found == *first, "{name}: two runs differ:\n{first}\n{found}");
            }
        }
        Ok(())
    });
}

/// What is said of memory, its end with its context, calls within a capture, threads that allocate and free at random;
/// also where the device's memory is used up first, and where some of its allocations fail once.
#[test]
fn memory_is_the_same_whoever_serves_it() {
    each_user(|bed| {
        let run = |memory: Memory, settings: &[(&str, &str)], arguments: &[&str]| -> Result<String> {
            let mut command = bed.command(&bed.kit().program("device_memory"));
            command.args(arguments).env("LD_LIBRARY_PATH", bed.kit().stand_in()?);
            command.env("STAND_IN_SEED", "5").envs(settings.iter().copied());
            if let Memory::Ours = memory {
                own_memory(bed, &mut command);
            }
            let ended = bed.output(command, PATIENCE)?.success()?;
            ensure!(ended.stdout.ends_with("PASS\n"), "{settings:?}: {}", ended.stdout);
            Ok(ended.stdout)
        };
        let small = [("STAND_IN_MEMORY", "64M")];
        let faults =
            [("STAND_IN_FAULT", "out-of-memory@3,out-of-memory@9,out-of-memory@27,out-of-memory@81")];
        let wanted = run(Memory::Drivers, &[], &["3"])?;
        ensure!(run(Memory::Ours, &[], &["3"])? == wanted, "{wanted}");
        // The driver's own calls would fail: ours come to it.
        ensure!(run(Memory::Ours, &faults, &["3"])? == wanted, "{wanted}");
        let wanted = run(Memory::Drivers, &small, &["1", "full"])?;
        ensure!(run(Memory::Ours, &small, &["1", "full"])? == wanted, "{wanted}");
        Ok(())
    });
}

/// One that the list lacks would not be tested.
#[test]
fn every_program_is_in_the_list() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/cuda");
    let stems = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<String> = stems
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .map(|path| path.with_extension("").file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    let mut listed: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
    found.sort();
    listed.sort_unstable();
    assert_eq!(found, listed);
}
