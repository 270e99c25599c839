//! The recipes of docs/recipes.md, as far as they run without what they are for: `examples/recipes`. Slurm's is run
//! under Slurm itself by `make slurm`.

use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, PATIENCE, User, am_root, shell_code, wait};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

fn recipe(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/recipes").join(name)
}

fn text(name: &str) -> Result<String> {
    fs::read_to_string(recipe(name)).with_context(|| name.to_owned())
}

/// Stands for the user's program: a line and a line, until it may end, with 3.
const SIM: &str = "#!/usr/bin/python3
import os, time
number = 0
while not os.path.exists('over'):
    print(f'line {number}', flush=True)
    number += 1
    time.sleep(0.02)
print('done', number, flush=True)
raise SystemExit(3)
";

fn executable(bed: &Bed, name: &str, text: &str) -> Result<()> {
    use std::io::Write;
    let mut file = bed.create(name)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// The program's output goes to the end of `work/out`, what else is said to that of `work/err`.
fn spawn(bed: &Bed, command: &mut Command) -> Result<Child> {
    let append = |name: &str| -> Result<File> {
        if !bed.work().join(name).exists() {
            bed.create(name)?;
        }
        Ok(File::options().append(true).open(bed.work().join(name))?)
    };
    let binaries = bed.kit().holdfast().parent().map(Path::to_owned).context("a folder")?;
    let path = format!("{}:{}:/usr/bin:/bin", bed.work().display(), binaries.display());
    command.env("PATH", path).stdout(append("out")?).stderr(append("err")?);
    Ok(command.spawn()?)
}

/// Each line of the program is there once, in order.
fn is_complete(bed: &Bed) -> Result<()> {
    let out = bed.text("out");
    let count = out.lines().count() - 1;
    let expected = (0..count).map(|number| format!("line {number}\n")).collect::<String>();
    ensure!(out == format!("{expected}done {count}\n"), "{out}");
    Ok(())
}

fn process_with(bed: &Bed, word: &str) -> Option<i32> {
    processes::of(bed.dir()).into_iter().find(|pid| processes::command_line(*pid).starts_with(word))
}

#[test]
fn the_slurm_script_is_the_one_of_the_readme() -> Result<()> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md"))?;
    ensure!(readme.contains(&format!("```\n{}```\n", text("slurm.sh")?)), "they differ");
    Ok(())
}

/// Ended by its `timeout`, the script hands itself in again, and goes on there.
#[test]
fn the_pbs_script_hands_itself_in_and_goes_on() -> Result<()> {
    let bed = &Bed::new(User::Ordinary).context("a bed")?;
    executable(bed, "sim", SIM)?;
    executable(bed, "pbs.sh", &text("pbs.sh")?)?;
    // Stands for PBS: writes down what it is told.
    executable(bed, "qsub", "#!/bin/sh\necho \"$@\" >handed-in\n")?;
    let batch = |variables: &[(&str, &str)]| {
        let mut command = bed.command(Path::new("/bin/bash"));
        command.arg("./pbs.sh").env("PBS_O_WORKDIR", bed.work()).env("LIMIT", "1h");
        command.envs(variables.iter().copied());
        spawn(bed, &mut command)
    };
    let mut first = batch(&[("PBS_JOBID", "17[3].host"), ("PBS_ARRAY_INDEX", "3")])?;
    bed.until("a line", PATIENCE, || bed.text("out").contains("line 2"))?;
    bed.until("the job", PATIENCE, || bed.pid("sim-17_3").is_ok_and(|pid| pid.is_some()))?;
    let timer = process_with(bed, "timeout ").context("a timeout")?;
    processes::signal(timer, "TERM");
    let code = shell_code(wait(&mut first, PATIENCE)?);
    ensure!(code == 75, "status {code}: {}", bed.text("err"));
    ensure!(
        bed.text("handed-in").trim_end() == "-v JOB=sim-17_3,INDEX=3 pbs.sh",
        "{}",
        bed.text("handed-in")
    );
    let mut second = batch(&[("PBS_JOBID", "18.host"), ("JOB", "sim-17_3"), ("INDEX", "3")])?;
    bed.until("a job that goes on", PATIENCE, || bed.text("err").contains("goes on from image 1"))?;
    bed.create("over")?;
    let code = shell_code(wait(&mut second, PATIENCE)?);
    ensure!(code == 3, "status {code}: {}", bed.text("err"));
    is_complete(bed)
}

/// systemd's own reader of units, where there is one.
#[test]
fn the_unit_of_systemd_is_one() -> Result<()> {
    if !Path::new("/usr/bin/systemd-analyze").exists() {
        println!("SKIPPED: no systemd-analyze");
        return Ok(());
    }
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    let unit = text("sim.service")?;
    let here = unit.replace("/usr/bin/holdfast", &bed.kit().holdfast().to_string_lossy());
    let path = bed.dir().join("sim.service");
    fs::write(&path, here)?;
    let said = Command::new("systemd-analyze").arg("verify").arg(&path).output()?;
    let errors = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.success() && !errors.contains("sim.service"), "{errors}");
    ensure!(unit.contains("SuccessExitStatus=75"), "{unit}");
    Ok(())
}

/// What Kubernetes and Docker start is process 1 of a pid namespace: TERM, an image, and on in another namespace.
#[test]
fn the_command_of_a_container_is_its_process_1() -> Result<()> {
    let read = "import json, sys, yaml
spec = yaml.safe_load(sys.stdin)['spec']
rule = spec['podFailurePolicy']['rules'][0]
assert rule['action'] == 'Ignore' and rule['onExitCodes']['values'] == [75]
pod = spec['template']['spec']
assert pod['restartPolicy'] == 'Never' and pod['terminationGracePeriodSeconds'] >= 60
container = pod['containers'][0]
assert container['securityContext']['seccompProfile']['type'] == 'RuntimeDefault'
print(json.dumps(container['command']))";
    let mut reader = Command::new("/usr/bin/python3");
    let said = reader.args(["-c", read]).stdin(File::open(recipe("kubernetes.yaml"))?).output()?;
    let errors = String::from_utf8_lossy(&said.stderr);
    if !am_root() || errors.contains("No module named 'yaml'") {
        println!("SKIPPED: needs root, and Python's yaml");
        return Ok(());
    }
    ensure!(said.status.success(), "{errors}");
    let command: Vec<String> = serde_json::from_slice(&said.stdout)?;
    let docker = text("Dockerfile")?;
    let entry = docker.lines().find_map(|line| line.strip_prefix("ENTRYPOINT ")).context("an entry point")?;
    let entry: Vec<String> = serde_json::from_str(entry)?;
    ensure!(entry[..6] == command[..6], "{entry:?}");
    let bed = &Bed::new(User::Root).context("a bed")?;
    executable(bed, "sim", SIM)?;
    let life = || {
        let mut own = bed.command(Path::new("/usr/bin/unshare"));
        own.args(["--pid", "--fork", "--mount-proc"]).args(&command);
        spawn(bed, &mut own)
    };
    let mut first = life()?;
    bed.until("a line", PATIENCE, || bed.text("out").contains("line 2"))?;
    let process_1 = process_with(bed, "holdfast run").context("process 1")?;
    processes::signal(process_1, "TERM");
    let code = shell_code(wait(&mut first, PATIENCE)?);
    ensure!(code == 75, "status {code}: {}", bed.text("err"));
    let mut second = life()?;
    bed.until("a job that goes on", PATIENCE, || bed.text("err").contains("goes on from image 1"))?;
    bed.create("over")?;
    let code = shell_code(wait(&mut second, PATIENCE)?);
    ensure!(code == 3, "status {code}: {}", bed.text("err"));
    is_complete(bed)
}

/// From the image that it has taken itself, in the middle, its output is that of a run without Holdfast.
#[test]
fn training_goes_on_where_it_was() -> Result<()> {
    let bed = Bed::new(User::Ordinary).context("a bed")?;
    executable(&bed, "train.py", &text("train.py")?)?;
    let words = ["/usr/bin/python3", "train.py", "60"];
    let mut plain = bed.command(Path::new(words[0]));
    plain.args(&words[1..]);
    let expected = bed.output(plain, PATIENCE)?.success()?.stdout;
    ensure!(expected.lines().count() == 60, "{expected}");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python/holdfast/__init__.py");
    executable(&bed, "holdfast.py", &fs::read_to_string(module)?)?;
    let mut front = bed.run_command("train", &[], &words)?.spawn()?;
    bed.until("an image", PATIENCE, || bed.images("train") == [1])?;
    if let Some(pid) = bed.pid("train")? {
        processes::signal(pid, "KILL");
    }
    wait(&mut front, PATIENCE)?;
    let mut front = bed.restart_command("train", &["--eager"])?.spawn()?;
    let code = shell_code(wait(&mut front, PATIENCE)?);
    let (out, said) = (bed.text("out"), bed.text("restart.err"));
    ensure!(
        code == 0 && out == expected && said.contains("goes on from image 1"),
        "status {code}: {said}: {out}"
    );
    Ok(())
}
