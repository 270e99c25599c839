//! The Python examples print what they print undisturbed when they are killed and restarted: numpy with the module; in
//! the long form PyTorch on the CPU, and a Jupyter notebook with `%checkpoint` in a cell.

use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::PYTHON;
use holdfast_tests::full;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, PATIENCE, each_user, wait};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Stays when the example has come to its end: the kill never comes too late.
const STAYING: &str = "import os, runpy, sys, time; sys.argv = sys.argv[1:]; sys.path.insert(0, '.'); \
    runpy.run_path(sys.argv[0], run_name='__main__'); [time.sleep(0.01) for _ in iter(lambda: \
    os.path.exists('may-end'), True)]";

fn checkout(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// What an example needs, in `work/`.
fn prepare(bed: &Bed, example: &str) -> Result<()> {
    let name = Path::new(example).file_name().context("a name")?;
    fs::copy(checkout(example), bed.work().join(name)).context(example.to_owned())?;
    let module = bed.work().join("holdfast");
    fs::create_dir(&module)?;
    for file in ["__init__.py", "jupyter.py"] {
        fs::copy(checkout("python/holdfast").join(file), module.join(file))?;
    }
    Ok(())
}

/// `own`: the example takes its images itself; else one is taken when it has printed something.
fn killed_and_restarted(bed: &Bed, python: &str, words: &[&str], own: bool) -> Result<String> {
    let around = |mut command: Command| {
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONPATH", bed.work());
        command.env("OMP_NUM_THREADS", "2");
        command
    };
    let mut plain = bed.command(Path::new(python));
    plain.args(words);
    let right = bed.output(around(plain), PATIENCE)?.success()?.stdout;
    let mut line = vec![python, "-c", STAYING];
    line.extend(words);
    let mut front = around(bed.run_command("j", &[], &line)?).spawn()?;
    let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
    if !own {
        bed.until("two lines", PATIENCE, || bed.text("out").lines().count() > 1)?;
        bed.say(&["checkpoint", "j"])?.success()?;
    }
    bed.until("an image", PATIENCE, || !bed.images("j").is_empty())?;
    kill_program(pid, &mut front)?;
    bed.may_end()?;
    let mut front = bed.restart_command("j", &[])?.spawn()?;
    ensure!(wait(&mut front, PATIENCE)?.success(), "{}{}", bed.text("restart.err"), bed.text("err"));
    bed.check_clean("j")?;
    Ok(right)
}

#[test]
fn numpy_takes_its_own_checkpoints() {
    each_user(|bed| {
        prepare(bed, "examples/python/heat.py")?;
        let right = killed_and_restarted(bed, PYTHON, &["heat.py", "1500", "64"], true)?;
        ensure!(bed.text("out") == right && right.lines().count() == 15, "{}\n{right}", bed.text("out"));
        // Where the restart's own standard error leads.
        ensure!(
            bed.text("restart.err").lines().any(|line| line == "restarted"),
            "{}",
            bed.text("restart.err")
        );
        Ok(())
    });
}

#[test]
fn pytorch_trains_on_the_cpu() {
    if !full() || !Path::new("/usr/lib/python3/dist-packages/torch").exists() {
        return println!("not run: it takes HOLDFAST_TEST_FULL=1 and python3-torch");
    }
    each_user(|bed| {
        prepare(bed, "examples/cuda/train.py")?;
        let right = killed_and_restarted(bed, PYTHON, &["train.py", "150"], false)?;
        ensure!(bed.text("out") == right && right.lines().count() == 15, "{}\n{right}", bed.text("out"));
        Ok(())
    });
}

/// The cell that takes the image says another thing after a restart.
#[test]
fn a_notebook_goes_on_from_its_checkpoint() {
    let Some(python) = jupyter() else { return };
    each_user(|bed| {
        prepare(bed, "examples/python/notebook.py")?;
        let right = killed_and_restarted(bed, &python, &["notebook.py"], true)?;
        let rest = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        let (out, first) = (bed.text("out"), bed.text("out").lines().next().unwrap_or_default().to_owned());
        ensure!(right.starts_with("'no image") && rest(&right).len() == 21, "{right}");
        ensure!(first == "'restarted'" && rest(&out) == rest(&right), "{out}\n{right}");
        Ok(())
    });
}

/// A Python with nbclient and ipykernel, in a folder that outlives the tests.
fn jupyter() -> Option<String> {
    let python = Path::new("/var/cache/holdfast-tests/jupyter/bin/python3");
    if !full() {
        println!("not run: HOLDFAST_TEST_FULL=1");
        return None;
    }
    let works = |mut command: Command| command.status().is_ok_and(|status| status.success());
    if !python.exists() {
        let mut venv = Command::new(PYTHON);
        venv.args(["-m", "venv", "/var/cache/holdfast-tests/jupyter"]);
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "nbclient", "ipykernel"]);
        if !works(venv) || !works(pip) {
            println!("not run: nbclient and ipykernel cannot be installed here");
            return None;
        }
    }
    Some(python.to_string_lossy().into_owned())
}
