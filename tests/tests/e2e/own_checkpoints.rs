//! Programs that checkpoint themselves, by holdfast.h and by VELOC's interface: killed at any moment, alone or as ranks
//! of MPI, with their server and without, they go on with the newest version that all ranks have, and come to the
//! result of an undisturbed run.
//!
//! What is not installed is not run, and that is printed: `scripts/install-deps.sh trees` has it all.

use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::own::{build, configure, forget, four_ranks, missing_mpi, pids, shell};
use holdfast_tests::processes;
use holdfast_tests::random::Random;
use holdfast_tests::restart_chain::alone;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, each_user, wait};
use std::time::Duration;

/// Deaths of each program.
fn deaths() -> u32 {
    if full() { 10 } else { 3 }
}

/// Of ranks, in each of two modes.
fn deaths_of_ranks() -> u32 {
    if full() { 25 } else { 3 }
}

/// The result of a program that is killed at random moments, and that of one that is not, in stores of their own; the
/// line has the store's configuration in place of `CONFIGURATION`. Every other time all processes die, its server as
/// well; else all but the server.
fn killed(bed: &Bed, line: &str, deaths: u32, random: &mut Random) -> Result<()> {
    let reference = bed.output(shell(bed, &line.replace("CONFIGURATION", "reference.cfg")), PATIENCE)?;
    let reference = reference.success()?.stdout;
    let line = line.replace("CONFIGURATION", "store.cfg");
    for death in 0..deaths {
        let mut command = shell(bed, &line);
        command.stderr(bed.create("err")?);
        let mut child = command.spawn()?;
        bed.until("the program's beginning", PATIENCE, || bed.text("err").contains("from"))?;
        std::thread::sleep(random.time(Duration::ZERO, Duration::from_millis(600)));
        match death % 2 {
            0 => processes::kill(&pids(bed, "heat")),
            _ => processes::kill(&processes::of(bed.dir())),
        }
        wait(&mut child, PATIENCE)?;
        let said = bed.text("err");
        ensure!(!said.contains("FAIL") && !said.contains("veloc (holdfast)"), "{line}: {said}");
    }
    let last = bed.output(shell(bed, &line), PATIENCE)?.success()?;
    ensure!(last.stdout == reference, "{line}: {} is not {reference}: {}", last.stdout, last.stderr);
    Ok(())
}

fn configured(bed: &Bed, keys: &str) -> Result<()> {
    configure(bed, "reference", "mode = sync\n")?;
    configure(bed, "store", keys)
}

#[test]
fn a_program_of_one_process_goes_on_where_it_was_killed() {
    each_user(|bed| {
        let mut random = Random::new();
        build(bed, "cc -std=gnu11", "heat.c", "veloc-client")?;
        for mode in ["memory", "some", "region", "file"] {
            configured(bed, "mode = async\nmax_versions = 3\n")?;
            killed(bed, &format!("./heat {mode} 220 CONFIGURATION"), deaths(), &mut random).context(mode)?;
            forget(bed, &["reference", "store"])?;
        }
        Ok(())
    });
}

fn killed_ranks(kind: &str) {
    if let Some(needed) = missing_mpi(kind) {
        return println!("not run: {needed} is missing; scripts/install-deps.sh trees");
    }
    let _alone = alone();
    each_user(|bed| {
        let mut random = Random::new();
        build(bed, &format!("mpicc.{kind} -std=gnu11 -DRANKS"), "heat.c", "veloc-client")?;
        for (mode, keys) in [("memory", "mode = async\nmax_versions = 3\n"), ("file", "mode = sync\n")] {
            configured(bed, keys)?;
            let line = four_ranks(kind, &format!("./heat {mode} 120 CONFIGURATION"));
            killed(bed, &line, deaths_of_ranks(), &mut random).context(mode)?;
            forget(bed, &["reference", "store"])?;
        }
        Ok(())
    });
}

#[test]
fn ranks_of_open_mpi_go_on_where_they_were_killed() {
    killed_ranks("openmpi");
}

#[test]
fn ranks_of_mpich_go_on_where_they_were_killed() {
    killed_ranks("mpich");
}

/// The program does not notice, and what was put before is there after it.
#[test]
fn a_server_that_is_killed_costs_nothing() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "heat.c", "veloc-client")?;
        configured(bed, "mode = async\nmax_versions = 3\n")?;
        let line = "./heat memory 1000 CONFIGURATION";
        let reference = bed.output(shell(bed, &line.replace("CONFIGURATION", "reference.cfg")), PATIENCE)?;
        let mut command = shell(bed, &line.replace("CONFIGURATION", "store.cfg"));
        command.stdout(bed.create("out")?).stderr(bed.create("err")?);
        let mut child = command.spawn()?;
        let server = format!("{}", bed.work().join("store").display());
        let puts = || bed.text("err").lines().filter(|line| line.starts_with("put")).count();
        for _ in 0..deaths() {
            let before = puts();
            bed.until("two more versions", PATIENCE, || puts() >= before + 2)?;
            processes::kill(&pids(bed, &format!("serve --store {server}")));
        }
        let status = wait(&mut child, PATIENCE)?;
        ensure!(status.success(), "{status}: {}", bed.text("err"));
        ensure!(bed.text("out") == reference.success()?.stdout, "{}", bed.text("out"));
        // It starts at its last version, and does the rest again.
        let again =
            bed.output(shell(bed, &line.replace("CONFIGURATION", "store.cfg")), PATIENCE)?.success()?;
        ensure!(again.stderr.contains("from 990") && again.stdout == bed.text("out"), "{}", again.stderr);
        Ok(())
    });
}

/// Versions come back in another order than they were put, of memory for some of them alone: by hints that are right,
/// and by a hundred thousand that are not, with a server whose own memory is bounded.
#[test]
fn an_adjoint_pass_gets_every_bit_back() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "adjoint.c", "veloc-client")?;
        let versions = if full() { 384 } else { 40 };
        for (order, hints) in [("reverse", "all"), ("+irregular", "all"), ("sequential", "wrong")] {
            configure(bed, "store", "mode = async\n")?;
            let store = bed.work().join("store").display().to_string();
            let mut server = bed.holdfast(&["serve", "--store", &store, "--memory", "4M"]).spawn()?;
            bed.until("the server", PATIENCE, || bed.work().join("store/objects/serve.sock").exists())?;
            let line = format!("./adjoint {order} {hints} {versions} 262144 1000 store.cfg");
            let ended = bed.output(shell(bed, &line), PATIENCE)?;
            ensure!(ended.stdout.starts_with("PASS"), "{line}: {}{}", ended.stdout, ended.stderr);
            let most = most_memory(i32::try_from(server.id())?).context("the server's memory")?;
            ensure!(most < 200 << 20, "{line}: the server had {most} bytes");
            forget(bed, &["store"])?;
            wait(&mut server, PATIENCE)?;
        }
        Ok(())
    });
}

/// The most memory that a process has had, bytes.
fn most_memory(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[test]
fn what_holdfast_h_promises_of_objects() {
    each_user(|bed| {
        build(bed, "cc -std=gnu11", "objects.c", "holdfast-client")?;
        let options = format!("store={};keep=20", bed.store().display());
        let ended = bed.output(shell(bed, &format!("./objects '{options}'")), PATIENCE)?;
        ensure!(ended.stdout == "PASS\n", "{}{}", ended.stdout, ended.stderr);
        ended.success()?;
        Ok(())
    });
}

/// A user who has none sees what is missing.
#[test]
fn without_the_binary_the_error_says_what_to_do() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    let check = || -> Result<()> {
        build(&bed, "cc -std=gnu11", "objects.c", "holdfast-client")?;
        let mut command = shell(&bed, "./objects store=nowhere");
        command.env("HOLDFAST_BIN", "/does/not/exist");
        let ended = bed.output(command, PATIENCE)?;
        ensure!(ended.code() == 1 && ended.stdout.contains("HOLDFAST_BIN"), "{}", ended.stdout);
        Ok(())
    };
    check().unwrap_or_else(|error| panic!("{error:#}"));
}
