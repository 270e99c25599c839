//! Images on three Garage nodes, one of which is killed while an image goes there, and another while a restart reads
//! it.
//!
//! Run by `make garage`, part of `make test-full`: HOLDFAST_TEST_GARAGE=1 says that the server may be built, which
//! takes a while, once (`tests/garage/cluster.py`). Each test has a cluster of its own. That Garage conforms to what
//! every tier keeps is a unit test of tiers, `the_server_of_the_environment_conforms`.

use super::plain_job::{JOB, listed, lose_the_host, started, until_tier};
use super::tiers::all_has_ended;
use anyhow::{Context, Result, ensure};
use holdfast_tests::apps::App;
use holdfast_tests::processes;
use holdfast_tests::sandbox::{Bed, User, shell_code, wait};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
/// Size of the program's memory, which no codec makes shorter, and how much of an image is under way at least when a
/// node is killed.
const MIB: u64 = 48;
const UNDER_WAY: u64 = 4 << 20;

/// Three nodes on 127.0.0.1 to 127.0.0.3, which end with it.
struct Cluster {
    folder: PathBuf,
    /// What `holdfast --tier s3://…` needs, with the endpoint of node 1.
    env: Vec<(String, String)>,
}

impl Cluster {
    /// `None`: it was not asked for.
    fn start(test: &str) -> Result<Option<Cluster>> {
        if std::env::var_os("HOLDFAST_TEST_GARAGE").is_none() {
            println!("not run: `make garage` runs it");
            return Ok(None);
        }
        let folder = std::env::temp_dir().join(format!("holdfast-garage-{}-{test}", std::process::id()));
        let mut cluster = Cluster { folder, env: Vec::new() };
        let said = cluster.does(&["up"])?;
        let variables = said.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
        cluster.env = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Some(cluster))
    }

    /// `cluster.py WHAT FOLDER …`
    fn does(&self, words: &[&str]) -> Result<String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("garage/cluster.py");
        let mut command = Command::new("/usr/bin/python3");
        command.arg(script).arg(words[0]).arg(&self.folder).args(&words[1..]);
        let output = command.stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "cluster.py {words:?}: {}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    fn kill(&self, node: u32) -> Result<()> {
        self.does(&["kill", &node.to_string()]).map(drop)
    }

    /// Starts a node again; all know each other when this returns.
    fn start_node(&self, node: u32) -> Result<()> {
        self.does(&["start", &node.to_string()]).map(drop)
    }

    /// Names the cluster to a command, by the address of a node.
    fn name_to(&self, command: &mut Command, node: u32) {
        for (name, value) in &self.env {
            command.env(name, value.replace("//127.0.0.1:", &format!("//127.0.0.{node}:")));
        }
    }

    /// Bytes that a node keeps of objects.
    fn bytes_of(&self, node: u32) -> u64 {
        bytes_in(&self.folder.join(format!("node-{node}/data")))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.does(&["down"]);
    }
}

/// Of all files below a folder; those that vanish meanwhile do not count.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

fn program() -> App {
    App::program("toucher", &[&MIB.to_string(), "60", "10", "4"])
}

fn tier(bed: &Bed) -> String {
    format!("s3://holdfast/{:?}", bed.user()).to_lowercase()
}

/// What the program prints when nobody disturbs it.
fn right_output(bed: &Bed) -> Result<String> {
    let program = program();
    let words = program.words();
    let mut command = bed.command(Path::new(words[0]));
    command.args(&words[1..]);
    Ok(bed.output(command, LIMIT)?.success()?.stdout)
}

/// A running program whose images go to the cluster by node 1, each copy with a pause in the middle; its pid.
fn start(bed: &Bed, cluster: &Cluster) -> Result<(Child, i32)> {
    let mut command = bed.staying_command(JOB, &["--tier", &tier(bed)], &program().words())?;
    cluster.name_to(&mut command, 1);
    command.env("HOLDFAST_FAULT", "cascade-piece:16+60000");
    started(bed, JOB, &mut command)
}

/// Restarts from the tier by a node, and kills another as soon as there is an agent, which reads the image. Ends with
/// the right output.
fn restart(bed: &Bed, cluster: &Cluster, by: u32, killed: u32, right: &str) -> Result<()> {
    let mut command = bed.restart_command(JOB, &["--tier", &tier(bed)])?;
    cluster.name_to(&mut command, by);
    let mut front = command.spawn()?;
    bed.until("the agent", LIMIT, || bed.agent_pid(JOB).is_ok_and(|agent| agent.is_some()))?;
    cluster.kill(killed)?;
    let code = shell_code(wait(&mut front, LIMIT)?);
    ensure!(code == 0, "status {code}: {}", bed.text("restart.err"));
    ensure!(bed.text("out") == right, "{}", bed.text("out"));
    all_has_ended(bed)
}

/// Both users in turn, each with a cluster of its own.
fn each_user(name: &str, test: impl Fn(&Bed, &Cluster) -> Result<()>) {
    for user in [User::Root, User::Ordinary] {
        let Some(cluster) = Cluster::start(&format!("{name}-{user:?}")).unwrap() else { return };
        let Some(bed) = Bed::lasting(user, Duration::from_secs(1200)) else { continue };
        test(&bed, &cluster).with_context(|| format!("as {user:?}")).unwrap();
    }
}

#[test]
fn one_of_three_nodes_is_killed_during_the_flush_and_one_during_the_restart() {
    each_user("one", |bed, cluster| {
        let right = right_output(bed)?;
        let (mut front, pid) = start(bed, cluster)?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("a part of the image at node 3", LIMIT, || cluster.bytes_of(3) >= UNDER_WAY)?;
        cluster.kill(3)?;
        ensure!(listed(bed)?["tiers"][0]["versions"] == serde_json::json!([]), "killed after the flush");
        until_tier(bed, "the image", |tier| tier["versions"] == serde_json::json!([1]))?;
        ensure!(listed(bed)?["tiers"][0]["error"].is_null() && processes::runs(pid));
        lose_the_host(bed, &mut front, pid)?;
        // The others have what node 3 has not; it may be node 2 that is missing then.
        cluster.start_node(3)?;
        restart(bed, cluster, 1, 2, &right)
    });
}

#[test]
fn the_node_that_is_asked_is_killed_and_another_is_asked() {
    each_user("asked", |bed, cluster| {
        let right = right_output(bed)?;
        let (mut front, pid) = start(bed, cluster)?;
        bed.say(&["checkpoint", JOB])?.success()?;
        bed.until("a part of the image at node 1", LIMIT, || cluster.bytes_of(1) >= UNDER_WAY)?;
        cluster.kill(1)?;
        until_tier(bed, "an error", |tier| tier["error"].is_string())?;
        ensure!(processes::runs(pid), "the program runs on");
        // With the agent gone, `sync` may ask whichever node it likes.
        let agent = bed.agent_pid(JOB)?.context("an agent")?;
        processes::signal(agent, "KILL");
        bed.until("the end of the agent", LIMIT, || {
            processes::state(agent).is_none_or(|state| state == 'Z')
        })?;
        let mut sync = bed.holdfast(&["sync", JOB]);
        cluster.name_to(&mut sync, 2);
        bed.output(sync, LIMIT)?.success()?;
        until_tier(bed, "the image", |tier| tier["versions"] == serde_json::json!([1]))?;
        lose_the_host(bed, &mut front, pid)?;
        cluster.start_node(1)?;
        restart(bed, cluster, 2, 3, &right)
    });
}
