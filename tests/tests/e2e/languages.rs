//! Programs that checkpoint themselves in other languages than C: by VELOC's interface in C++ and Python, by that of
//! `holdfast.h` in Fortran and Python. Each goes on with its newest version and comes to the result of one that was not
//! disturbed.

use anyhow::{Result, ensure};
use holdfast_tests::artifacts::kit;
use holdfast_tests::own::{build, configure, forget, shell};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::path::Path;

/// Not run where a compiler or an interpreter is missing and cannot be installed: CI installs it
/// (`scripts/install-deps.sh`).
fn is_missing(needed: &str) -> bool {
    let is_missing = !Path::new(needed).exists();
    if is_missing {
        println!("not run: {needed} is missing; scripts/install-deps.sh");
    }
    is_missing
}

/// `line` is a program with its number of steps as STEPS, and its store, or what names that, as STORE. It is run to an
/// early end, killed on its way on, and run to the last one.
fn goes_on(bed: &Bed, line: &str) -> Result<()> {
    let run = |steps: &str, store: &str| shell(bed, &line.replace("STEPS", steps).replace("STORE", store));
    let whole = bed.output(run("60", "reference"), PATIENCE)?.success()?;
    ensure!(whole.stderr.contains("from 0\n"), "{line}: {}", whole.stderr);
    bed.output(run("30", "first"), PATIENCE)?.success()?;
    let mut killed = run("100000", "first");
    let mut child = killed.stderr(bed.create("err")?).spawn()?;
    bed.until("its restart", PATIENCE, || bed.text("err").contains("from 30\n"))?;
    let server = format!("serve --store {}", bed.work().join("first").display());
    processes::kill(&holdfast_tests::own::pids(bed, &server));
    processes::kill(&[i32::try_from(child.id())?]);
    wait(&mut child, PATIENCE)?;
    // How far it came is not known, but that it goes on from there is.
    let on = bed.output(run("30", "first"), PATIENCE)?.success()?;
    ensure!(!on.stderr.contains("from 0\n"), "{line}: {}", on.stderr);
    bed.output(run("30", "second"), PATIENCE)?.success()?;
    let rest = bed.output(run("60", "second"), PATIENCE)?.success()?;
    ensure!(rest.stderr.contains("from 30\n"), "{line}: {}", rest.stderr);
    ensure!(rest.stdout == whole.stdout, "{line}: {} is not {}", rest.stdout, whole.stdout);
    Ok(())
}

fn configured(bed: &Bed) -> Result<()> {
    ["reference", "first", "second"].into_iter().try_for_each(|name| configure(bed, name, "mode = async\n"))
}

#[test]
fn cpp_by_velocs_interface() {
    if is_missing("/usr/bin/g++") {
        return;
    }
    each_user(|bed| {
        build(bed, "g++ -std=c++17", "plate.cpp", "veloc-client")?;
        configured(bed)?;
        goes_on(bed, "exec ./plate STEPS STORE.cfg")
    });
}

#[test]
fn fortran_by_its_module() {
    if is_missing("/usr/bin/gfortran") {
        return;
    }
    each_user(|bed| {
        // The module is compiled by the user's compiler, as the source that is installed.
        let module = kit().include().join("holdfast_objects.f90");
        build(bed, &format!("gfortran -std=f2018 {}", module.display()), "rod.f90", "holdfast-client")?;
        goes_on(bed, &format!("exec ./rod STEPS store={}/STORE", bed.work().display()))
    });
}

#[test]
fn python_by_both_modules() {
    each_user(|bed| {
        let modules = bed.dir().join("python");
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../python"), &modules)?;
        let program = kit().app("wave.py").display().to_string();
        let python = format!(
            "export PYTHONPATH={} PYTHONDONTWRITEBYTECODE=1; exec /usr/bin/python3 {program}",
            modules.display()
        );
        configured(bed)?;
        goes_on(bed, &format!("{python} objects STEPS {}/STORE", bed.work().display()))?;
        forget(bed, &["reference", "first", "second"])?;
        goes_on(bed, &format!("{python} veloc STEPS STORE.cfg"))
    });
}

/// The modules, where every user may read them.
fn copy(from: &Path, to: &Path) -> Result<()> {
    for module in ["holdfast/__init__.py", "holdfast/objects.py", "veloc/__init__.py"] {
        let path = to.join(module);
        std::fs::create_dir_all(path.parent().unwrap_or(to))?;
        std::fs::copy(from.join(module), path)?;
    }
    Ok(())
}
