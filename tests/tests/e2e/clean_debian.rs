//! What is installed in a Debian as it comes, by each of the three packages, does what the README says: its first steps
//! word for word as uid 1000, manual pages that open, shells that complete names of jobs.
//!
//! Run by `make chroot`, part of `make test-full`: HOLDFAST_TEST_CHROOT is a folder in which the Debian is kept (root,
//! a mirror and mmdebstrap are needed, once). Each test has a copy of its own. `tests/chroot/` has the scripts.

use anyhow::{Context, Result, ensure};
use holdfast_tests::sandbox::{Bed, Ended, User};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A first copy of Debian comes over a network, tools of packages are compiled.
const LIMIT: Duration = Duration::from_secs(3600);

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A fresh Debian.
struct Fresh {
    bed: Bed,
    root: PathBuf,
}

impl Fresh {
    /// `None`: it was not asked for.
    fn make() -> Result<Option<Fresh>> {
        let Some(kept) = std::env::var_os("HOLDFAST_TEST_CHROOT") else {
            println!("not run: `make chroot` runs it");
            return Ok(None);
        };
        let Some(bed) = Bed::lasting(User::Root, LIMIT) else { return Ok(None) };
        let fresh = Fresh { root: bed.dir().join("debian"), bed };
        let base = Path::new(&kept).join("bookworm");
        fresh.outside(&checkout().join("tests/chroot/base"), &[&base.to_string_lossy()])?;
        fresh.outside(
            Path::new("/bin/cp"),
            &["--archive", &base.to_string_lossy(), &fresh.root.to_string_lossy()],
        )?;
        for file in ["README.md", "tests/chroot/first_steps.py"] {
            fresh.bring(&checkout().join(file))?;
        }
        Ok(Some(fresh))
    }

    fn outside(&self, program: &Path, arguments: &[&str]) -> Result<Ended> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        self.bed.output(command, LIMIT)?.success().with_context(|| format!("{}", program.display()))
    }

    /// Into /srv, readable for all.
    fn bring(&self, file: &Path) -> Result<()> {
        let name = file.file_name().context("a name")?;
        fs::copy(file, self.root.join("srv").join(name)).with_context(|| file.display().to_string()).map(drop)
    }

    /// A command of the shell in there.
    fn inside(&self, user: &str, command: &str) -> Result<Ended> {
        let enter = checkout().join("tests/chroot/enter");
        self.outside(&enter, &[&self.root.to_string_lossy(), user, "/bin/sh", "-ec", command])
    }

    /// What `scripts/package.sh` makes, in /srv; its name.
    fn packed(&self, kind: &str) -> Result<String> {
        let ended = self.outside(&checkout().join("scripts/package.sh"), &[kind])?;
        let made = Path::new(ended.stdout.lines().last().context("the name of the package")?);
        self.bring(made)?;
        Ok(made.file_name().context("a name")?.to_string_lossy().into_owned())
    }

    /// See `first_steps.py`. `path`: where `holdfast` is, first in PATH.
    fn first_steps(&self, path: &str, completions: &str) -> Result<()> {
        let steps = format!("python3 /srv/first_steps.py /srv/README.md {completions}");
        let ended = self.inside("user", &format!("export PATH={path}:$PATH; {steps}"))?;
        print!("{}", ended.stdout);
        ensure!(ended.stdout.ends_with("PASS\n"), "{}{}", ended.stdout, ended.stderr);
        Ok(())
    }
}

fn in_a_fresh_debian(test: impl Fn(&Fresh) -> Result<()>) {
    let tried = Fresh::make().and_then(|fresh| fresh.map_or(Ok(()), |fresh| test(&fresh)));
    tried.unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn installed_by_deb() {
    in_a_fresh_debian(|fresh| {
        let package = fresh.packed("deb")?;
        fresh.inside("root", &format!("dpkg --install /srv/{package}"))?;
        let maintainer =
            fresh.inside("root", "dpkg-query --show --showformat='${Maintainer}' holdfast")?.stdout;
        ensure!(maintainer.contains(" <") && !maintainer.contains("localhost"), "{maintainer}");
        fresh.first_steps("/usr/bin", "installed")?;
        fresh.inside("root", "dpkg --purge holdfast && ! command -v holdfast").map(drop)
    });
}

#[test]
fn installed_by_tarball() {
    in_a_fresh_debian(|fresh| {
        let package = fresh.packed("tarball")?;
        fresh.inside("user", &format!("tar -xzf /srv/{package}"))?;
        fresh.first_steps(&format!("$PWD/{}/bin", package.trim_end_matches(".tar.gz")), "asked")
    });
}

#[test]
fn installed_by_pip() {
    in_a_fresh_debian(|fresh| {
        let package = fresh.packed("wheel")?;
        let install = format!("python3 -m venv venv; venv/bin/pip install --no-index /srv/{package}");
        fresh.inside("user", &install)?;
        fresh.inside("user", "venv/bin/python -c 'import holdfast; assert not holdfast.loaded()'")?;
        fresh.first_steps("$PWD/venv/bin", "asked")
    });
}
