//! What users install, and what they try first: a folder made by `scripts/install.sh` works wherever it is moved, with
//! man pages, completions and pkg-config file; in the long form the packages, too, and the wheel; the Python module;
//! `make demo` ends with an error when its restart fails.

use crate::plain_job::{program, right_output};
use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::restart_chain::kill_program;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, STAY, User, each_user, wait};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Job of the installed Holdfast.
const JOB: &str = "installed";

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts").join(name)
}

/// Installed, moved as a whole, and found by a symbolic link: its prefix, and the link.
fn install(bed: &Bed) -> Result<(PathBuf, PathBuf)> {
    let (first, prefix, link) = (bed.dir().join("first"), bed.dir().join("moved"), bed.dir().join("hf"));
    let mut command = Command::new(script("install.sh"));
    command.arg(bed.kit().bin()).arg(&first).stdin(Stdio::null());
    bed.output(command, PATIENCE)?.success()?;
    fs::rename(&first, &prefix)?;
    symlink(prefix.join("bin/holdfast"), &link)?;
    Ok((prefix, link))
}

#[test]
fn an_installed_folder_works_wherever_it_is_moved() {
    each_user(|bed| {
        let (prefix, holdfast) = install(bed)?;
        works(bed, &prefix, &holdfast)?;
        completes_names_of_jobs(bed, &prefix)?;
        bed.check_clean(JOB)
    });
}

/// A checkpoint, `kill -9` and a restart by what lies below `prefix`.
fn works(bed: &Bed, prefix: &Path, holdfast: &Path) -> Result<()> {
    let say = |arguments: &[&str]| {
        let mut command = bed.command(holdfast);
        command.args(arguments);
        bed.output(command, PATIENCE)
    };
    let doctor = say(&["doctor"])?;
    let library = prefix.join("lib/holdfast/libholdfast.so");
    ensure!(doctor.stdout.contains(&library.display().to_string()), "{}", doctor.stdout);

    let _ = fs::remove_file(bed.stay_file());
    let mut run = bed.command(holdfast);
    run.args(["run", "--name", JOB, "--"]).args(program().words()).env(STAY, bed.stay_file());
    let mut front = run.stdout(bed.create("out")?).stderr(bed.create("err")?).spawn()?;
    let pid = bed.wait_live(JOB, &mut front)?.context("a pid")?;
    bed.until("the first line", PATIENCE, || !bed.text("out").is_empty())?;
    say(&["checkpoint", JOB])?.success()?;
    kill_program(pid, &mut front)?;
    bed.may_end()?;
    let mut restart = bed.command(holdfast);
    let mut front = restart.args(["restart", JOB]).stderr(bed.create("restart.err")?).spawn()?;
    ensure!(wait(&mut front, PATIENCE)?.success(), "{}", bed.text("restart.err"));
    ensure!(bed.text("out") == right_output(), "{}", bed.text("out"));
    Ok(())
}

/// What each kind of package puts below a prefix of its own. Building tools of packages takes minutes, once.
#[test]
fn packages_work_where_they_are_unpacked() {
    if !full() {
        return println!("not run: HOLDFAST_TEST_FULL=1");
    }
    for kind in ["tarball", "deb", "pip"] {
        let Some(bed) = Bed::lasting(User::Ordinary, PACKING) else { return };
        unpacked(&bed, kind).unwrap_or_else(|error| panic!("{kind}: {error:#}"));
    }
}

const PACKING: Duration = Duration::from_secs(3600);

fn unpacked(bed: &Bed, kind: &str) -> Result<()> {
    let to = bed.dir().join(kind);
    fs::create_dir(&to)?;
    let run = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        bed.output(command, PACKING)?.success().with_context(|| words.join(" "))
    };
    let folder = to.to_str().context("a path")?;
    let prefix = if kind == "pip" {
        run(&["/usr/bin/python3", "-m", "venv", folder])?;
        let (pip, source) = (to.join("bin/pip"), script("../python"));
        run(&[pip.to_str().context("a path")?, "install", source.to_str().context("a path")?])?;
        let python = to.join("bin/python");
        let store = bed.store().display().to_string();
        let says = format!(
            "import holdfast, veloc, holdfast.objects as objects; assert not holdfast.loaded(); \
             objects.open('x', store='{store}').close()"
        );
        run(&[python.to_str().context("a path")?, "-c", &says])?;
        to
    } else {
        let packed = run(&[script("package.sh").to_str().context("a path")?, kind])?;
        let made = packed.stdout.lines().last().context("the name of the package")?;
        match kind {
            "deb" => run(&["dpkg-deb", "-x", made, folder])?,
            _ => run(&["tar", "-xzf", made, "-C", folder, "--strip-components=1"])?,
        };
        if kind == "deb" { to.join("usr") } else { to }
    };
    works(bed, &prefix, &prefix.join("bin/holdfast"))
}

/// A program that asks for its checkpoint and learns that it was restarted, and one that nobody checkpoints.
#[test]
fn a_python_program_speaks_by_the_module() {
    each_user(|bed| {
        let module = bed.work().join("holdfast");
        fs::create_dir(&module)?;
        fs::copy(script("../python/holdfast/__init__.py"), module.join("__init__.py"))?;
        let python = |mut command: Command| {
            command.env("PYTHONPATH", bed.work()).env("PYTHONDONTWRITEBYTECODE", "1");
            command.env("PATH", format!("{}:/usr/bin:/bin", bed.kit().bin().display()));
            command
        };
        let app = bed.kit().app("spoken.py").display().to_string();
        let mut alone = bed.command(Path::new("/usr/bin/python3"));
        alone.arg(&app);
        let alone = bed.output(python(alone), PATIENCE)?.success()?;
        ensure!(alone.stdout == "nobody takes checkpoints: 0 499500.0\n", "{}", alone.stdout);
        let mut front = python(bed.run_command("j", &[], &["/usr/bin/python3", &app])?).spawn()?;
        let pid = bed.wait_live("j", &mut front)?.context("a pid")?;
        bed.until("the checkpoint", PATIENCE, || bed.text("out").ends_with("taken\n"))?;
        kill_program(pid, &mut front)?;
        let mut front = bed.restart_command("j", &[])?.spawn()?;
        ensure!(wait(&mut front, PATIENCE)?.success(), "{}{}", bed.text("restart.err"), bed.text("err"));
        let wanted = "before\nafter a restart\n1 499500.0 j [1]\nj@1 j True\n66 1\n";
        ensure!(bed.text("out") == wanted, "{}{}", bed.text("out"), bed.text("err"));
        bed.check_clean("j")
    });
}

/// As bash asks when the user presses a key.
fn completes_names_of_jobs(bed: &Bed, prefix: &Path) -> Result<()> {
    let path = format!("{}:/usr/bin:/bin", prefix.join("bin").display());
    for (words, wanted) in [
        ("restart inst", JOB),
        ("checkpoint inst", JOB),
        ("run --resume --name inst", JOB),
        ("ver", "verify"),
    ] {
        let words = format!("holdfast {words}");
        let last = words.split(' ').next_back().unwrap_or_default();
        let ask = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9; \
             _clap_complete_holdfast holdfast {last} x; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            prefix.join("share/bash-completion/completions/holdfast").display()
        );
        let mut bash = bed.command(Path::new("/bin/bash"));
        bash.args(["--norc", "-c", &ask]).env("PATH", &path);
        let ended = bed.output(bash, PATIENCE)?.success()?;
        ensure!(ended.stdout.trim() == wanted, "{words}: {}{}", ended.stdout, ended.stderr);
    }
    Ok(())
}

#[test]
fn an_installed_folder_has_what_belongs_to_it() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    let check = || -> Result<()> {
        let (prefix, _) = install(&bed)?;
        let help = bed.say(&["--help"])?.success()?.stdout;
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let commands = commands.take_while(|line| !line.is_empty());
        let names: Vec<&str> = commands
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .collect();
        ensure!(names.contains(&"run") && names.contains(&"doctor"), "{help}");
        for page in names.iter().map(|name| format!("holdfast-{name}.1")).chain(["holdfast.1".to_owned()]) {
            let text = fs::read_to_string(prefix.join("share/man/man1").join(&page)).context(page.clone())?;
            ensure!(text.contains(".SH SYNOPSIS") && text.contains("holdfast"), "{page}: {text}");
        }
        for file in [
            "include/holdfast.h",
            "include/veloc.h",
            "include/veloc.hpp",
            "include/holdfast_objects.f90",
            "include/veloc/defs.h",
            "lib/libholdfast-client.so",
            "lib/libveloc-client.so",
            "lib/pkgconfig/veloc-client.pc",
            "bin/veloc-backend",
            "share/zsh/site-functions/_holdfast",
            "share/fish/vendor_completions.d/holdfast.fish",
            "share/doc/holdfast/LICENSE",
        ] {
            ensure!(fs::metadata(prefix.join(file)).is_ok_and(|file| file.len() > 0), "{file}");
        }
        let pc = fs::read_to_string(prefix.join("lib/pkgconfig/holdfast.pc"))?;
        ensure!(pc.contains(concat!("Version: ", env!("CARGO_PKG_VERSION"), "\n")), "{pc}");
        // Stripped: the lines for backtraces are most of what is built.
        let size = |path: PathBuf| fs::metadata(path).map(|file| file.len());
        ensure!(size(prefix.join("bin/holdfast"))? < size(bed.kit().holdfast())?);
        Ok(())
    };
    check().unwrap_or_else(|error| panic!("{error:#}"));
}

/// `scripts/demo.sh` with a holdfast whose command fails.
fn demo(bed: &Bed, failing: &str) -> Result<Ended> {
    let bin = bed.dir().join("bin");
    fs::create_dir_all(&bin)?;
    let real = bed.kit().holdfast();
    let text = format!(
        "#!/bin/sh\n[ \"$1\" != {failing} ] || exec {0} {failing} --no-such-option\nexec {0} \"$@\"\n",
        real.display()
    );
    fs::write(bin.join("holdfast"), text)?;
    fs::set_permissions(bin.join("holdfast"), fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(script("demo.sh"));
    command.env("HOLDFAST_BIN", &bin).env("MIB", "4").env("TURNS", "150").stdin(Stdio::null());
    bed.output(command, PATIENCE)
}

#[test]
fn the_demonstration_ends_with_an_error_when_its_restart_fails() {
    let Some(bed) = Bed::new(User::Ordinary) else { return };
    for (failing, said) in [
        ("run", "demo: holdfast run, or the program in it, ended before the checkpoint (status 64)"),
        ("restart", "demo: holdfast restart ended before the program went on (status 64)"),
    ] {
        let ended = demo(&bed, failing).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(ended.code() == 1 && ended.stderr.contains(said), "{}\n{}", ended.stdout, ended.stderr);
    }
}
