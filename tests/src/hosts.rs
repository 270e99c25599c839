//! Hosts of a test: network namespaces of this machine (`tests/hosts`), and an ssh between them. Root makes them.

use crate::sandbox::{Bed, PATIENCE};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hosts").join(name)
}

/// Hosts, which go with the test.
pub struct Hosts {
    /// Of all: host K is NAME-K, or hK for [`Hosts::with_ssh`].
    pub name: String,
    sshd: Option<Child>,
}

impl Hosts {
    /// Two of them.
    ///
    /// # Errors
    /// As [`Hosts::of`].
    pub fn up() -> Result<Hosts> {
        Hosts::of("2")
    }

    /// So many.
    ///
    /// # Errors
    /// The kernel makes no network namespaces.
    pub fn of(count: &str) -> Result<Hosts> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("hft{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let up = Command::new(script("up")).args([&name, count]).status()?;
        let made = Hosts { name, sshd: None };
        ensure!(up.success(), "tests/hosts/up has failed");
        Ok(made)
    }

    /// Makes them, with an ssh for the user of the bed: `work/ssh`.
    ///
    /// # Errors
    /// As [`Hosts::up`]; the server does not begin.
    pub fn with_ssh(bed: &Bed) -> Result<Hosts> {
        Hosts::with_ssh_of(bed, "2")
    }

    /// The same of so many.
    ///
    /// # Errors
    /// As [`Hosts::with_ssh`].
    pub fn with_ssh_of(bed: &Bed, count: &str) -> Result<Hosts> {
        let mut hosts = Hosts::of(count)?;
        fs::copy(script("ssh"), bed.work().join("ssh")).context("copying ssh")?;
        let mut sshd = Command::new(script("sshd"));
        sshd.args([Path::new(&hosts.name), &hosts.socket()]).stdin(Stdio::null());
        hosts.sshd = Some(sshd.spawn().context("sshd")?);
        bed.until("an ssh server", PATIENCE, || hosts.socket().exists())?;
        Ok(hosts)
    }

    /// Not in the bed's folder: what has to do with that is killed with it.
    fn socket(&self) -> PathBuf {
        std::env::temp_dir().join(format!("{}.sshd", self.name))
    }

    /// A command of the test's own on one of them.
    pub fn at(&self, host: usize, words: &[&str]) -> Command {
        let mut command = Command::new(script("at"));
        command.args([&self.name, &host.to_string()]).args(words);
        command
    }

    /// A command of the bed on one of them, with the way to the others.
    pub fn on(&self, host: usize, command: &Command, folder: &Path) -> Command {
        let mut there = self.at(host, &[]);
        there.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        if self.sshd.is_some() {
            there.env("HOLDFAST_SSH", folder.join("ssh")).env("HOLDFAST_TEST_SSHD", self.socket());
        }
        there.current_dir(folder);
        there
    }

    /// A host is gone, with all that runs there.
    ///
    /// # Errors
    /// ip(8) cannot.
    pub fn lose(&self, host: usize) -> Result<()> {
        let namespace = format!("{}-{host}", self.name);
        let script = "ip netns pids $0 | xargs -r kill -9; ip netns del $0";
        let status = Command::new("sh").args(["-c", script, &namespace]).status()?;
        ensure!(status.success(), "host {host} is still there");
        Ok(())
    }

    /// Cuts or joins the link of the second host.
    ///
    /// # Errors
    /// ip(8) cannot.
    pub fn link(&self, state: &str) -> Result<()> {
        let namespace = format!("{}-net", self.name);
        let status = Command::new("ip").args(["-n", &namespace, "link", "set", "to1", state]).status()?;
        ensure!(status.success(), "the link of a host cannot be set {state}");
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(sshd) = &mut self.sshd {
            let _ = sshd.kill();
            let _ = sshd.wait();
            let _ = fs::remove_file(self.socket());
        }
        let _ = Command::new(script("down")).arg(&self.name).status();
    }
}
