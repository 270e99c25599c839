//! Programs that checkpoint themselves: how a bed builds and runs them. Used by the tests of objects and of VELOC's
//! interface.

use crate::processes;
use crate::sandbox::{Bed, PATIENCE};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A line of shell in the bed's folder.
pub fn shell(bed: &Bed, line: &str) -> Command {
    let mut command = bed.command(Path::new("/bin/sh"));
    command
        .args(["-ec", line])
        .env("LD_LIBRARY_PATH", bed.kit().bin())
        .env("HOLDFAST_BIN", bed.kit().holdfast());
    command
}

/// Compiles a program of `tests/apps` as users do: into `work/`, under its name without the ending.
///
/// # Errors
/// The compiler says no.
pub fn build(bed: &Bed, compiler: &str, source: &str, library: &str) -> Result<()> {
    let (include, bin) = (bed.kit().include(), bed.kit().bin());
    let name = Path::new(source).file_stem().and_then(|name| name.to_str()).context("a source")?;
    let line = format!(
        "{compiler} -O2 -Wall -Wextra -Werror -I{} -o {name} {} -L{} -l{library}",
        include.display(),
        bed.kit().app(source).display(),
        bin.display()
    );
    bed.output(shell(bed, &line), PATIENCE)?.success()?;
    Ok(())
}

/// VELOC's configuration `NAME.cfg` with a store `NAME` in the bed's folder, and these keys.
///
/// # Errors
/// It cannot be written.
pub fn configure(bed: &Bed, name: &str, keys: &str) -> Result<()> {
    let path = bed.work().join(format!("{name}.cfg"));
    let store = bed.work().join(name);
    bed.create(&format!("{name}.cfg"))?;
    Ok(fs::write(path, format!("scratch = {}\n{keys}", store.display()))?)
}

/// Processes of the bed whose command line has this.
pub fn pids(bed: &Bed, what: &str) -> Vec<i32> {
    let has = |pid: &i32| processes::command_line(*pid).contains(what);
    processes::of(bed.dir()).into_iter().filter(has).collect()
}

/// Kills the servers of the bed, and removes these stores: another program begins.
///
/// # Errors
/// A store cannot be removed.
pub fn forget(bed: &Bed, stores: &[&str]) -> Result<()> {
    processes::kill(&pids(bed, "serve"));
    for store in stores {
        fs::remove_dir_all(bed.work().join(store)).with_context(|| (*store).to_owned())?;
    }
    Ok(())
}

/// What an MPI needs that this machine has not; `kind` is openmpi or mpich.
pub fn missing_mpi(kind: &str) -> Option<String> {
    let header = match kind {
        "openmpi" => "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h",
        _ => "/usr/include/x86_64-linux-gnu/mpich/mpi.h",
    };
    let needed = [format!("/usr/bin/mpirun.{kind}"), header.to_owned()];
    needed.into_iter().find(|needed| !Path::new(needed).exists())
}

/// The line that starts four ranks.
pub fn four_ranks(kind: &str, program: &str) -> String {
    let options = if kind == "openmpi" { "--allow-run-as-root --oversubscribe" } else { "" };
    format!("TMPDIR=$PWD mpirun.{kind} {options} -np 4 {program}")
}
