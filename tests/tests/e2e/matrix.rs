//! The matrix: each command about images, of a job with each kind of tiers, in each state. What comes out is the right
//! result or the right refusal, and never something that reads an unreachable place as an empty one.
//!
//! The short form has each kind of tiers and each state, but not all pairs; `HOLDFAST_TEST_FULL=1` has all, as each
//! user.

use super::plain_job::{JOB, command, ends_right, kill_all, listed, started};
use anyhow::{Context, Result, ensure};
use holdfast_tests::full;
use holdfast_tests::object_server::{Mood, ObjectServer};
use holdfast_tests::sandbox::{Bed, Ended, PATIENCE, User, each_user_in_turn};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Which tiers the job has, beside the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tiers {
    None,
    Memory,
    Folder,
    Both,
    Object,
}

const TIERS: [Tiers; 5] = [Tiers::None, Tiers::Memory, Tiers::Folder, Tiers::Both, Tiers::Object];

/// How the job is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Running,
    Stopped,
    /// Stopped; the newest image is damaged on this host, in the store and in memory.
    Damaged,
    /// Stopped; the lowest tier cannot be reached: memory is gone with the host, the newest image in a store without
    /// tiers may not be read.
    Unreachable,
}

const STATES: [State; 4] = [State::Running, State::Stopped, State::Damaged, State::Unreachable];

/// A command, and its exit code in each state, for each kind of tiers: none, memory, folder, both, object store.
struct Line {
    words: &'static [&'static str],
    codes: [[i32; 5]; 4],
}

const ALL: [i32; 5] = [0; 5];
/// The image is damaged.
const BAD: [i32; 5] = [65; 5];
/// The job runs, or does not: that is said.
const NOT_SO: [i32; 5] = [69; 5];
/// Only where nothing but the store is asked: it may not be read.
const STORE: [i32; 5] = [77, 0, 0, 0, 0];
/// The tiers below are asked: a folder whose file system is not mounted, a server that is down.
const BELOW: [i32; 5] = [77, 0, 64, 64, 70];

/// In this order: what changes something comes last. `OUT` is a file.
const TABLE: [Line; 14] = [
    Line { words: &["list", JOB], codes: [ALL, ALL, ALL, ALL] },
    Line { words: &["list", JOB, "--json"], codes: [ALL, ALL, ALL, ALL] },
    Line { words: &["show", "j@2"], codes: [ALL, ALL, BAD, STORE] },
    Line { words: &["verify", JOB], codes: [ALL, ALL, BAD, [65, 0, 0, 0, 0]] },
    Line { words: &["verify", JOB, "--tier", "local"], codes: [ALL, ALL, BAD, [65, 0, 0, 0, 0]] },
    Line { words: &["verify", JOB, "--all-tiers"], codes: [ALL, ALL, BAD, [65, 0, 64, 64, 70]] },
    Line { words: &["export", "j@2", "OUT"], codes: [ALL, ALL, BAD, STORE] },
    Line { words: &["import", "OUT", "--name", "copy"], codes: [ALL, ALL, [66; 5], [66, 0, 0, 0, 0]] },
    Line { words: &["checkpoint", JOB], codes: [ALL, [66; 5], [66; 5], [66; 5]] },
    Line {
        words: &["sync", JOB],
        codes: [[64, 0, 0, 0, 0], [64, 0, 0, 0, 0], [64, 0, 0, 0, 0], [64, 0, 73, 73, 73]],
    },
    Line { words: &["prune", "j@1", "--all-tiers", "--dry-run"], codes: [NOT_SO, ALL, ALL, BELOW] },
    Line {
        words: &["prune", JOB, "--keep", "1", "--tier", "local", "--dry-run"],
        codes: [ALL, ALL, ALL, STORE],
    },
    Line { words: &["prune", JOB, "--keep", "1", "--tier", "memory"], codes: [[64; 5]; 4] },
    Line {
        words: &["fetch", "j@2"],
        codes: [
            [64, 64, 69, 69, 69],
            [64, 64, 0, 0, 0],
            // That repairs it.
            [64, 64, 0, 0, 0],
            [64, 64, 64, 64, 70],
        ],
    },
];

/// One job.
struct Cell<'a> {
    bed: &'a Bed,
    server: ObjectServer,
    tiers: Tiers,
    state: State,
}

impl Cell<'_> {
    fn far(&self) -> PathBuf {
        self.bed.work().join("far")
    }

    /// What is exported.
    fn out(&self) -> PathBuf {
        self.bed.work().join("image")
    }

    /// Options of `run`.
    fn options(&self) -> Vec<String> {
        let folder = format!("dir={}", self.far().join("pfs").display());
        let named: &[&str] = match self.tiers {
            Tiers::None => &[],
            Tiers::Memory => &["memory"],
            Tiers::Folder => &[&folder],
            Tiers::Both => &["memory", &folder],
            Tiers::Object => &["s3://bucket/images"],
        };
        named.iter().flat_map(|tier| ["--tier".to_owned(), (*tier).to_owned()]).collect()
    }

    fn knowing(&self, mut command: Command) -> Command {
        command.envs(self.server.environment()).env("HOLDFAST_REMOTE_TIMEOUT", "2");
        command
    }

    fn say(&self, words: &[&str]) -> Result<Ended> {
        self.bed.output(self.knowing(self.bed.holdfast(words)), PATIENCE)
    }

    /// Two images, which are wherever they are to be.
    fn start(&self) -> Result<(Child, i32)> {
        let options = self.options();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let run = command(self.bed, JOB, &options)?;
        let running = started(self.bed, JOB, &mut self.knowing(run))?;
        for _ in 0..2 {
            self.say(&["checkpoint", JOB])?.success()?;
        }
        if self.tiers != Tiers::None {
            self.say(&["sync", JOB, "--wait"])?.success()?;
        }
        Ok(running)
    }

    /// The newest image's own segment, wherever this host has it.
    fn segments(&self) -> Vec<PathBuf> {
        let folders = [self.bed.job(JOB), self.bed.job(JOB).join("memory")];
        let segments = folders.map(|folder| folder.join("segment-000002-000"));
        segments.into_iter().filter(|segment| segment.exists()).collect()
    }

    fn flip(&self) -> Result<()> {
        for segment in self.segments() {
            let mut bytes = fs::read(&segment)?;
            // In every frame: no image may need the first.
            bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
            fs::write(segment, bytes)?;
        }
        Ok(())
    }

    fn manifest(&self) -> PathBuf {
        self.bed.job(JOB).join("manifest-000002")
    }

    fn enter_state(&self) -> Result<()> {
        match (self.state, self.tiers) {
            (State::Damaged, _) => self.flip()?,
            (State::Unreachable, Tiers::None) => mode(&self.manifest(), 0)?,
            (State::Unreachable, Tiers::Memory) => {
                fs::remove_dir_all(fs::read_link(self.bed.job(JOB).join("memory"))?)?;
            }
            (State::Unreachable, Tiers::Object) => self.server.set(Mood::Down),
            (State::Unreachable, _) => fs::rename(self.far(), self.bed.work().join("away"))?,
            _ => {}
        }
        Ok(())
    }

    fn leave_state(&self) -> Result<()> {
        match (self.state, self.tiers) {
            // Where a tier had it, `fetch` has repaired it.
            (State::Damaged, Tiers::None | Tiers::Memory) => self.flip()?,
            (State::Unreachable, Tiers::None) => mode(&self.manifest(), 0o600)?,
            (State::Unreachable, Tiers::Folder | Tiers::Both) => {
                fs::rename(self.bed.work().join("away"), self.far())?;
            }
            _ => self.server.set(Mood::Well),
        }
        Ok(())
    }

    fn run(&self) -> Result<()> {
        let _ = fs::remove_file(self.out());
        fs::create_dir_all(self.far())?;
        own(self.bed, &self.far())?;
        let (mut front, pid) = self.start()?;
        if self.state != State::Running {
            kill_all(self.bed, JOB, &mut front, pid)?;
        }
        self.enter_state()?;
        let wrong: Vec<String> =
            TABLE.iter().filter_map(|line| self.line(line).transpose()).collect::<Result<_>>()?;
        self.leave_state()?;
        if self.state == State::Running {
            let refused = self.say(&["restart", JOB])?;
            ensure!(refused.code() == 69, "restart of a job that runs: {}", refused.code());
            kill_all(self.bed, JOB, &mut front, pid)?;
        }
        let images = listed(self.bed)?["images"].clone();
        ensure!(images.as_array().is_some_and(|all| all.len() >= 2), "{images}");
        ensure!(images[1]["epoch"] == json!(2) && images[1]["broken"].is_null(), "{images}");
        self.bed.may_end()?;
        let mut restart = self.bed.restart_command(JOB, &[])?;
        ends_right(self.bed, restart.envs(self.server.environment()))?;
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        self.say(&["prune", JOB, "--all", "--all-tiers", "--saved"])?.success()?;
        self.say(&["prune", "copy", "--all"]).map(drop)
    }

    /// What is wrong with one, if something is.
    fn line(&self, line: &Line) -> Result<Option<String>> {
        let place = |state: State| STATES.iter().position(|other| *other == state).unwrap_or(0);
        let kind = TIERS.iter().position(|other| *other == self.tiers).unwrap_or(0);
        let expected = line.codes[place(self.state)][kind];
        let out = self.out().display().to_string();
        let words: Vec<&str> =
            line.words.iter().map(|word| if *word == "OUT" { &*out } else { word }).collect();
        let ended = self.say(&words)?;
        let told = format!("{}{}", ended.stdout, ended.stderr);
        let is_right = ended.code() == expected
            && !told.contains("panicked")
            && !told.contains("defect of holdfast")
            && (expected == 0 || !ended.stderr.trim().is_empty());
        Ok((!is_right).then(|| format!("{words:?}: status {} instead of {expected}: {told}", ended.code())))
    }
}

fn mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

/// What the test makes is the user's.
fn own(bed: &Bed, path: &Path) -> Result<()> {
    use std::os::unix::fs::{MetadataExt, chown};
    let owner = fs::metadata(bed.work())?;
    Ok(chown(path, Some(owner.uid()), Some(owner.gid()))?)
}

fn cells(turn: User, wanted: impl Fn(Tiers, State) -> bool) {
    each_user_in_turn(turn, |bed| {
        for tiers in TIERS {
            for state in STATES.into_iter().filter(|state| full() || wanted(tiers, *state)) {
                // Root may read everything.
                if bed.user() == User::Root && (tiers, state) == (Tiers::None, State::Unreachable) {
                    continue;
                }
                let cell = Cell { bed, server: ObjectServer::start()?, tiers, state };
                cell.run().with_context(|| format!("tiers {tiers:?}, {state:?}"))?;
            }
        }
        Ok(())
    });
}

/// Those in which something was wrong before, and one of each other kind.
#[test]
fn every_command_does_what_it_should_with_tiers() {
    cells(User::Ordinary, |tiers, state| match tiers {
        Tiers::None => state == State::Unreachable,
        Tiers::Memory => matches!(state, State::Stopped | State::Running),
        Tiers::Folder => false,
        Tiers::Both => state == State::Damaged,
        Tiers::Object => state == State::Unreachable,
    });
}
