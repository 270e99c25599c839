//! A folder of one test, the user that it runs as, and the certainty that nothing is left behind.
//!
//! A [`Bed`] has `work/` (directory of the programs) and `store/` (images), both of the user. Every command gets a time
//! limit; when the bed's own limit passes, or when it is dropped, all that still runs from it is killed.

use crate::artifacts::{Kit, kit};
use crate::full;
use crate::own_ids;
pub use crate::own_ids::am_root;
use crate::processes;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// The uid and gid of the ordinary user.
const ORDINARY: u32 = 1000;

/// How long a test waits for what must happen before it gives up: no statement about speed, for a disk that others
/// write to may let a fsync wait for a minute.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// No test may take longer than this, unless it says so.
const TEST_LIMIT: Duration = Duration::from_secs(600);

/// Names the file before which a program does not end (`programs/common.h`), and its name in `work/`.
pub const STAY: &str = "HOLDFAST_TEST_STAY";
const MAY_END: &str = "may-end";

/// Who runs Holdfast and the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// uid 0 with all capabilities that the test itself has.
    Root,
    /// uid 1000 without capabilities.
    Ordinary,
}

/// Runs a test as each user that there can be, in a bed of its own.
///
/// # Panics
/// If it fails.
pub fn each_user(test: impl Fn(&Bed) -> Result<()>) {
    for user in [User::Root, User::Ordinary] {
        as_user(user, &test);
    }
}

#[allow(clippy::panic)]
fn as_user(user: User, test: impl Fn(&Bed) -> Result<()>) {
    let Some(bed) = Bed::new(user) else { return };
    if let Err(error) = test(&bed) {
        panic!("as {user:?}: {error:#}");
    }
}

/// As both users in the long form, in the short form as the one whose turn it is: for a test that has others beside it
/// which show the same of the other user.
pub fn each_user_in_turn(turn: User, test: impl Fn(&Bed) -> Result<()>) {
    if full() || !am_root() {
        return each_user(test);
    }
    as_user(turn, &test);
}

/// The same where only root can make what the test needs, for the jobs of both users.
pub fn each_user_by_root(test: impl Fn(&Bed) -> Result<()>) {
    if !am_root() {
        return println!("not run: these tests need root");
    }
    each_user(test);
}

/// Of one of them.
pub fn as_user_by_root(user: User, test: impl Fn(&Bed) -> Result<()>) {
    if !am_root() {
        return println!("not run: these tests need root");
    }
    as_user(user, test);
}

/// Result of a command that ended.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ended {
    /// The exit status as a shell shows it: 128 + n for signal n.
    pub fn code(&self) -> i32 {
        shell_code(self.status)
    }
    /// An error unless the command succeeded.
    pub fn success(self) -> Result<Ended> {
        ensure!(self.status.success(), "status {}\n{}{}", self.code(), self.stdout, self.stderr);
        Ok(self)
    }
}

/// The exit status as a shell shows it: 128 + n for signal n.
pub fn shell_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// See the head of this file.
pub struct Bed {
    dir: PathBuf,
    user: User,
    kit: &'static Kit,
    over: Arc<AtomicBool>,
    limit: Duration,
}

impl Bed {
    /// A bed on disk. As nobody but root can become another user, tests that are not started by root have only the
    /// ordinary user: then a bed for root is `None`, and that is printed.
    pub fn new(user: User) -> Option<Bed> {
        Bed::under(&std::env::temp_dir(), user, TEST_LIMIT)
    }

    /// The same for a test that may take so long.
    pub fn lasting(user: User, limit: Duration) -> Option<Bed> {
        Bed::under(&std::env::temp_dir(), user, limit)
    }

    /// A bed in memory (`/dev/shm`), for what must not wait for a disk.
    pub fn in_memory(user: User) -> Option<Bed> {
        Bed::under(Path::new("/dev/shm"), user, TEST_LIMIT)
    }

    #[allow(clippy::expect_used)]
    fn under(parent: &Path, user: User, limit: Duration) -> Option<Bed> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if user == User::Root && !am_root() {
            println!("not run: this part needs root");
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("holdfast-test-{}-{number}-bed", own_ids::of_process()));
        let bed = Bed { dir, user, kit: kit(), over: Arc::new(AtomicBool::new(false)), limit };
        bed.make_folders().expect("making the folder of a test");
        bed.watch();
        Some(bed)
    }

    fn make_folders(&self) -> Result<()> {
        for folder in [self.dir.clone(), self.work(), self.store()] {
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
            if self.user == User::Ordinary && am_root() {
                chown(&folder, Some(ORDINARY), Some(ORDINARY))?;
            }
        }
        Ok(fs::set_permissions(self.store(), fs::Permissions::from_mode(0o700))?)
    }

    /// Kills everything when the test takes too long: its own waits then fail.
    fn watch(&self) {
        let (over, dir, end) = (Arc::clone(&self.over), self.dir.clone(), Instant::now() + self.limit);
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if Instant::now() > end {
                    eprintln!("{}: time limit of the test passed, killing its processes", dir.display());
                    return processes::kill_all(&dir);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }

    /// The folder of the test.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
    /// Directory of the programs.
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }
    /// The store.
    pub fn store(&self) -> PathBuf {
        self.dir.join("store")
    }
    /// Folder of a job in the store.
    pub fn job(&self, name: &str) -> PathBuf {
        self.store().join(name)
    }
    /// Who it belongs to.
    pub fn user(&self) -> User {
        self.user
    }
    /// What is executed.
    pub fn kit(&self) -> &'static Kit {
        self.kit
    }

    /// A command as the bed's user in `work/`: no input, output discarded, own process group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = if self.user == User::Ordinary && am_root() {
            let mut command = Command::new("setpriv");
            let id = ORDINARY.to_string();
            command.args([
                "--reuid",
                &id,
                "--regid",
                &id,
                "--clear-groups",
                "--inh-caps=-all",
                "--bounding-set=-all",
            ]);
            command.arg("--").arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.work()).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("HOME", self.work()).env("HOLDFAST_STORE", self.store()).env("LC_ALL", "C.UTF-8");
        for name in [
            STAY,
            "HOLDFAST_FAULT",
            "HOLDFAST_SOCKET",
            "HOLDFAST_CONFIG",
            "LD_PRELOAD",
            "XDG_STATE_HOME",
            "XDG_CONFIG_HOME",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// `holdfast ARGUMENTS…`.
    pub fn holdfast(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.kit.holdfast());
        command.args(arguments);
        command
    }

    /// `holdfast run --name JOB OPTIONS -- PROGRAM…` with output and error of the program in `work/out` and `work/err`.
    pub fn run_command(&self, job: &str, options: &[&str], program: &[&str]) -> Result<Command> {
        let mut command = self.holdfast(&["run", "--name", job]);
        command.args(options).arg("--").args(program);
        command.stdout(self.create("out")?).stderr(self.create("err")?);
        Ok(command)
    }

    /// The same for a program of `tests/programs`, which does not end before [`Bed::may_end`].
    pub fn staying_command(&self, job: &str, options: &[&str], program: &[&str]) -> Result<Command> {
        let mut command = self.run_command(job, options, program)?;
        command.env(STAY, self.stay_file());
        Ok(command)
    }

    /// The value of [`STAY`] for programs of this bed.
    pub fn stay_file(&self) -> PathBuf {
        self.work().join(MAY_END)
    }

    /// The end of a program that was started by [`Bed::staying_command`] need not be awaited any more.
    pub fn may_end(&self) -> Result<()> {
        self.create(MAY_END).map(drop)
    }

    /// `holdfast restart JOB OPTIONS` with what it says itself in `work/restart.err`.
    pub fn restart_command(&self, job: &str, options: &[&str]) -> Result<Command> {
        let mut command = self.holdfast(&["restart", job]);
        command.args(options).stderr(self.create("restart.err")?);
        Ok(command)
    }

    /// An empty file in `work/` that belongs to the user of the bed.
    pub fn create(&self, name: &str) -> Result<File> {
        let path = self.work().join(name);
        let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        if self.user == User::Ordinary && am_root() {
            chown(&path, Some(ORDINARY), Some(ORDINARY))?;
        }
        Ok(file)
    }

    /// Text of a file in `work/`; empty if there is none.
    pub fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.work().join(name)).unwrap_or_default()).into_owned()
    }

    /// Runs a command to its end and keeps what it prints.
    pub fn output(&self, mut command: Command, limit: Duration) -> Result<Ended> {
        let (out, err) = (self.dir.join("stdout"), self.dir.join("stderr"));
        let mut child = command.stdout(File::create(&out)?).stderr(File::create(&err)?).spawn()?;
        let status = wait(&mut child, limit).with_context(|| format!("waiting for {command:?}"))?;
        let text = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Ended { status, stdout: text(&out)?, stderr: text(&err)? })
    }

    /// `holdfast ARGUMENTS…` to its end, [`PATIENCE`] at most.
    pub fn say(&self, arguments: &[&str]) -> Result<Ended> {
        self.output(self.holdfast(arguments), PATIENCE)
    }

    /// The program's pid as `holdfast list` names it, or `None` while the job does not run.
    pub fn pid(&self, job: &str) -> Result<Option<i32>> {
        let ended = self.say(&["list", "--json"])?.success()?;
        let list: Value =
            serde_json::from_str(&ended.stdout).with_context(|| format!("list: {}", ended.stdout))?;
        Ok(find_job(&list, job).and_then(|entry| number(entry.get("pid")?)).map(|pid| pid as i32))
    }

    /// The agent's pid, likewise.
    pub fn agent_pid(&self, job: &str) -> Result<Option<i32>> {
        let ended = self.say(&["list", "--json"])?.success()?;
        let list: Value =
            serde_json::from_str(&ended.stdout).with_context(|| format!("list: {}", ended.stdout))?;
        Ok(find_job(&list, job).and_then(|entry| number(entry.get("agent_pid")?)).map(|pid| pid as i32))
    }

    /// Waits until the job runs; returns the program's pid. `None`: `front` ended before.
    pub fn wait_live(&self, job: &str, front: &mut Child) -> Result<Option<i32>> {
        let (end, mut pause) = (Instant::now() + PATIENCE, Duration::from_millis(5));
        loop {
            // The agent of the life before may not have heard yet that its program has ended.
            if self.job(job).join("agent.sock").exists()
                && let Some(pid) = self.pid(job)?
                && processes::runs(pid)
            {
                return Ok(Some(pid));
            }
            if front.try_wait()?.is_some() {
                return Ok(None);
            }
            ensure!(Instant::now() < end, "job {job} did not come to life; {}", self.text("restart.err"));
            std::thread::sleep(pause);
            // Each look is a process.
            pause = (pause * 3 / 2).min(Duration::from_millis(25));
        }
    }

    /// `holdfast show … --json`.
    pub fn show(&self, image: &str) -> Result<Value> {
        let ended = self.say(&["show", image, "--json"])?.success()?;
        serde_json::from_str(&ended.stdout).with_context(|| format!("show: {}", ended.stdout))
    }

    /// Numbers of the committed images of a job, by the names of their manifests.
    pub fn images(&self, job: &str) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.job(job)) else { return Vec::new() };
        let mut images: Vec<u64> = entries
            .filter_map(|e| e.ok()?.file_name().to_str()?.strip_prefix("manifest-")?.parse().ok())
            .collect();
        images.sort_unstable();
        images
    }

    /// Waits until `predicate` holds.
    pub fn until(&self, what: &str, limit: Duration, mut predicate: impl FnMut() -> bool) -> Result<()> {
        let end = Instant::now() + limit;
        let mut pause = Duration::from_millis(2);
        while !predicate() {
            ensure!(Instant::now() < end, "{what}: not within {limit:?}");
            std::thread::sleep(pause);
            // Each look costs the others of this machine something.
            pause = (pause * 3 / 2).min(Duration::from_millis(10));
        }
        Ok(())
    }

    /// After `holdfast list`, neither processes nor sockets nor temporary files are left of a job that has ended.
    pub fn check_clean(&self, job: &str) -> Result<()> {
        let quiet =
            self.until("end of all processes of the test", PATIENCE, || processes::of(&self.dir).is_empty());
        if quiet.is_err() {
            let left: Vec<_> = processes::of(&self.dir)
                .into_iter()
                .map(|pid| format!("{pid} ({:?}): {}", processes::state(pid), processes::command_line(pid)))
                .collect();
            // None: the last has ended between the two looks.
            ensure!(left.is_empty(), "processes left behind:\n{}", left.join("\n"));
        }
        let entries =
            || fs::read_dir(self.job(job)).map(|d| d.flatten().collect::<Vec<_>>()).unwrap_or_default();
        // A note that somebody was writing when he was killed is removed once it is a minute old
        // (`holdfast_tiers::Job::clean`): it is, from here on.
        for entry in entries().iter().filter(|entry| entry.file_name().as_bytes().starts_with(b".tmp-")) {
            let old = SystemTime::now() - Duration::from_secs(120);
            fs::File::options().write(true).open(entry.path())?.set_modified(old)?;
        }
        self.say(&["list"])?.success()?;
        // An agent that dies has no memory any more, so that it is not seen above, when it still has the job's lock
        // (kernel/exit.c, do_exit: exit_mm, then exit_files).
        let has_socket = || self.job(job).join("agent.sock").exists();
        if has_socket() {
            let _ = self.until("end of the agent", PATIENCE, || {
                !has_socket() || self.say(&["list"]).is_ok() && !has_socket()
            });
        }
        for entry in entries() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let unfinished = name.starts_with(".tmp") || name.starts_with(".part-");
            ensure!(!unfinished && name != "agent.sock", "left behind in the store: {name}");
            if let Some(segment) = name.strip_prefix("segment-") {
                let epoch = segment.split('-').next().unwrap_or_default();
                ensure!(
                    self.job(job).join(format!("manifest-{epoch}")).exists(),
                    "left behind in the store: {name} without a manifest"
                );
            }
        }
        Ok(())
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        processes::kill_all(&self.dir);
        let keep = std::env::var_os("HOLDFAST_TEST_KEEP").is_some();
        if keep {
            println!("kept: {}", self.dir.display());
            return;
        }
        if std::thread::panicking() {
            self.tell();
        }
        let _ = fs::remove_dir_all(&self.dir);
        forget_buffers(&self.dir);
    }
}

/// What servers of objects whose stores were in this folder have left in memory. Each notes its store's path.
fn forget_buffers(dir: &Path) {
    let all = fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.path());
    let users = all.filter(|path| path.to_string_lossy().contains("/holdfast-objects-"));
    for folder in users.filter_map(|user| fs::read_dir(user).ok()).flatten().flatten() {
        let note = fs::read_to_string(folder.path().join("store")).unwrap_or_default();
        let store = note.split_once('\n').map_or("", |(_, path)| path);
        if Path::new(store).starts_with(dir) {
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

impl Bed {
    /// Prints what helps to understand a failure.
    fn tell(&self) {
        for name in ["err", "restart.err"] {
            println!("--- work/{name}\n{}", tail(&self.text(name), 10));
        }
        for entry in fs::read_dir(self.store()).into_iter().flatten().flatten() {
            let log = fs::read(entry.path().join("agent.log")).unwrap_or_default();
            println!(
                "--- {}/agent.log\n{}",
                entry.path().display(),
                tail(&String::from_utf8_lossy(&log), 10)
            );
        }
        println!("--- end of work/out\n{}", tail(&self.text("out"), 5));
    }
}

/// The last lines: CI shows the end of what a run prints, and the cause stands before all this.
fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Waits for a child; past the limit it is killed, and that is an error.
pub fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > end {
            let _ = child.kill();
            let _ = child.wait();
            bail!("did not end within {limit:?}");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// Opens /dev/fuse to all users, as udev's rules do: bare test machines have no udev.
pub fn allow_fuse() {
    if am_root() {
        let _ = fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666));
    }
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().filter(|&n| n > 0)
}

fn find_job<'a>(list: &'a Value, job: &str) -> Option<&'a Value> {
    list.get("jobs")?.as_array()?.iter().find(|entry| entry.get("job").and_then(Value::as_str) == Some(job))
}
