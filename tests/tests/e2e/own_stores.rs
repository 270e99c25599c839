//! Gangs whose hosts have stores of their own: on one machine, with a store and (as root) a host name for each member.
//! For the tests of `gang_stores` and `gang_protect`.

use super::json::agrees;
use super::plain_job::{none_is_left, program, right_output};
use anyhow::{Context, Result, ensure};
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, STAY, User, am_root, shell_code, wait};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub const GANG: &str = "sim";

/// The members of a gang of the small program `plain`, each on a host of its own.
pub struct Fleet<'a> {
    pub bed: &'a Bed,
    pub members: usize,
    /// Which host a member is on.
    pub on: Vec<usize>,
}

impl Fleet<'_> {
    pub fn new(bed: &Bed, members: usize) -> Result<Fleet<'_>> {
        let fleet = Fleet { bed, members, on: (0..members).collect() };
        (0..members).try_for_each(|host| fleet.make_store(host))?;
        Ok(fleet)
    }

    /// The store of a host.
    pub fn store(&self, host: usize) -> PathBuf {
        self.bed.dir().join(format!("store{host}"))
    }

    /// Another host of this name, which has nothing.
    pub fn remake(&self, host: usize) -> Result<()> {
        self.make_store(host)
    }

    fn make_store(&self, host: usize) -> Result<()> {
        let store = self.store(host);
        fs::create_dir(&store)?;
        if self.bed.user() == User::Ordinary && am_root() {
            chown(&store, Some(1000), Some(1000))?;
        }
        Ok(())
    }

    /// The host has lost all that it had.
    pub fn wipe(&self, host: usize) -> Result<()> {
        fs::remove_dir_all(self.store(host))?;
        self.make_store(host)
    }

    /// Folder of a member's job.
    pub fn job(&self, member: usize) -> PathBuf {
        self.store(self.on[member]).join(format!("{GANG}.{member}"))
    }

    /// What the hosts share.
    pub fn folder(&self) -> PathBuf {
        self.bed.work().join("gangs")
    }

    /// `holdfast ARGUMENTS…` on a host.
    pub fn command(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = self.bed.holdfast(arguments);
        command.env("HOLDFAST_STORE", self.store(host));
        if !am_root() {
            return command;
        }
        let mut there = Command::new("unshare");
        there.args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\"", &format!("host{host}")]);
        there.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => there.env(name, value),
                None => there.env_remove(name),
            };
        }
        there.current_dir(self.bed.work());
        there.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        there
    }

    /// The same to its end.
    pub fn say(&self, host: usize, arguments: &[&str]) -> Result<Ended> {
        self.bed.output(self.command(host, arguments), PATIENCE)
    }

    fn place(&self, member: usize) -> String {
        format!("{member}/{}", self.members)
    }

    /// `holdfast run` of a member; its program stays.
    pub fn run(&self, member: usize, options: &[&str]) -> Result<Command> {
        let (bed, folder) = (self.bed, self.folder().display().to_string());
        let place = self.place(member);
        let mut words = vec!["run", "--name", GANG, "--gang", &place, "--gang-folder", &folder];
        words.extend(options);
        let app = program();
        words.push("--");
        words.extend(app.words());
        let mut command = self.command(self.on[member], &words);
        command.env(STAY, bed.stay_file());
        command.stdout(bed.create(&format!("out{member}"))?).stderr(bed.create(&format!("err{member}"))?);
        Ok(command)
    }

    /// `holdfast restart` of a member.
    pub fn restart(&self, member: usize, image: &str, options: &[&str]) -> Result<Command> {
        let place = self.place(member);
        let words = [&["restart", image, "--gang", &place], options].concat();
        let mut command = self.command(self.on[member], &words);
        command.stderr(self.bed.create(&format!("err{member}"))?);
        Ok(command)
    }

    /// All of them, once they run.
    pub fn start(&self, options: &[&str]) -> Result<Vec<Child>> {
        self.start_with_fault(options, usize::MAX, "")
    }

    /// The same; member `faulty` has this in its environment.
    pub fn start_with_fault(&self, options: &[&str], faulty: usize, fault: &str) -> Result<Vec<Child>> {
        let _ = fs::remove_file(self.bed.stay_file());
        let mut fronts = Vec::new();
        for member in 0..self.members {
            let mut command = self.run(member, options)?;
            if member == faulty {
                command.env("HOLDFAST_FAULT", fault);
            }
            fronts.push(command.spawn()?);
        }
        self.live(&mut fronts)?;
        Ok(fronts)
    }

    /// Waits until all run.
    pub fn live(&self, fronts: &mut [Child]) -> Result<()> {
        for (member, front) in fronts.iter_mut().enumerate() {
            let name = format!("{GANG}.{member}");
            let mut runs = false;
            self.bed.until("a running member", PATIENCE, || {
                runs = self.pid(member, &name).is_some();
                runs || !matches!(front.try_wait(), Ok(None))
            })?;
            ensure!(runs, "member {member}: {}", self.said());
            let out = format!("out{member}");
            self.bed.until("the first line", PATIENCE, || !self.bed.text(&out).is_empty())?;
        }
        Ok(())
    }

    fn row(&self, member: usize) -> Option<Value> {
        let name = format!("{GANG}.{member}");
        let text = self.say(self.on[member], &["list", &name, "--json"]).ok()?.stdout;
        let value: Value = serde_json::from_str(&text).ok()?;
        Some(value["jobs"][0].clone())
    }

    fn pid(&self, member: usize, name: &str) -> Option<i32> {
        let is_there = self.store(self.on[member]).join(name).join("agent.sock").exists();
        let pid = if is_there { self.row(member)?["pid"].as_u64()? } else { return None };
        Some(pid as i32).filter(|pid| processes::runs(*pid))
    }

    /// The agent of a member.
    pub fn agent(&self, member: usize) -> Result<i32> {
        let pid = self.row(member).and_then(|row| row["agent_pid"].as_u64());
        Ok(pid.context("an agent")? as i32)
    }

    /// What all members' commands have said.
    pub fn said(&self) -> String {
        let all = (0..self.members).map(|member| self.bed.text(&format!("err{member}")));
        all.collect::<Vec<_>>().join("\n--\n")
    }

    /// Fronts, agents and programs are killed.
    pub fn kill(&self, fronts: &mut [Child]) -> Result<()> {
        processes::kill_all(self.bed.dir());
        for front in fronts {
            front.wait()?;
        }
        none_is_left(self.bed)
    }

    /// All are restarted, and come to their right ends.
    pub fn restart_to_the_end(&self, image: &str, options: &[&str]) -> Result<()> {
        self.bed.may_end()?;
        let mut fronts = Vec::new();
        for member in 0..self.members {
            fronts.push(self.restart(member, image, options)?.spawn()?);
        }
        for (member, front) in fronts.iter_mut().enumerate() {
            let code = shell_code(wait(front, PATIENCE)?);
            ensure!(code == 0, "member {member}: status {code}: {}", self.said());
            let out = self.bed.text(&format!("out{member}"));
            ensure!(out == right_output(), "member {member}: {out}");
        }
        none_is_left(self.bed)
    }

    /// All are restarted, and run: their programs stay.
    pub fn restart_all(&self, image: &str, options: &[&str]) -> Result<Vec<Child>> {
        let _ = fs::remove_file(self.bed.stay_file());
        let mut fronts = Vec::new();
        for member in 0..self.members {
            fronts.push(self.restart(member, image, options)?.spawn()?);
        }
        self.live(&mut fronts)?;
        Ok(fronts)
    }

    /// None is restarted; what all have said.
    pub fn restart_fails(&self, image: &str, options: &[&str]) -> Result<String> {
        let mut fronts = Vec::new();
        for member in 0..self.members {
            fronts.push(self.restart(member, image, options)?.spawn()?);
        }
        for (member, front) in fronts.iter_mut().enumerate() {
            let code = shell_code(wait(front, PATIENCE)?);
            ensure!(code != 0, "member {member} was restarted: {}", self.said());
        }
        none_is_left(self.bed)?;
        Ok(self.said())
    }

    /// Takes an image; by a command on the last host.
    pub fn checkpoint(&self) -> Result<()> {
        let ended = self.say(self.on[self.members - 1], &["checkpoint", GANG])?;
        ended.success().map(drop).with_context(|| self.said())
    }

    /// The images of the gang as a host sees them.
    pub fn images(&self, host: usize) -> Result<Vec<Value>> {
        let text = self.say(host, &["list", GANG, "--json"])?.success()?.stdout;
        Ok(agrees(&text, "gang")?["images"].as_array().cloned().unwrap_or_default())
    }

    /// The number of a member's image in one of the gang.
    pub fn epoch(&self, image: u64, member: usize) -> Result<u64> {
        let all = self.images(self.on[0])?;
        let found = all.iter().find(|one| one["image"] == image).context("the image")?;
        found["members"][member]["epoch"].as_u64().context("a number")
    }
}
