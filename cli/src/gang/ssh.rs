//! The real ssh, by which the leader of an open gang starts a member on another host.
//!
//! Started by the leader's agent, outside of the job: no image has it. `HOLDFAST_SSH` names another program that is
//! called in the same way. What it says goes into a file beside the agent's log. What must hold: nothing secret is on a
//! command line; what a shell there reads is quoted. Fails by: what it has said last, when it has ended, or the time is
//! over.

use crate::entries::set_helper_environment;
use crate::exit::{Exit, Failure};
use crate::helper::named_binary;
use crate::settings::GangPlace;
use holdfast_sys::{attributes, spawn};
use holdfast_tiers::{Job, Store};
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const ENV_SSH: &str = "HOLDFAST_SSH";
/// How often it is looked at until its member is there.
const LOOK: Duration = Duration::from_millis(20);
/// How long a host may take to answer whether it is there.
const REACHED: Duration = Duration::from_secs(20);
/// So much of what it has said is told.
const TAIL: u64 = 2048;
/// How long a member may wait for its leader, which is there.
const WAIT: &str = "60s";

/// What a member is started for.
#[derive(Clone, Copy, Debug)]
pub enum Task<'a> {
    /// It is added to a gang that runs, by this start of it.
    Add(u64),
    /// It goes on from an image.
    Restart(&'a Again<'a>),
}

/// How members are restarted.
#[derive(Clone, Copy, Debug)]
pub struct Again<'a> {
    /// The number of the gang's image.
    pub image: u64,
    /// How many members there are.
    pub members: u32,
    /// A failure is followed by a restart.
    pub supervised: bool,
    /// What `holdfast restart` was told for all members, as its options.
    pub options: &'a [OsString],
}

/// One that runs.
#[derive(Debug)]
pub struct Ssh {
    child: Mutex<Child>,
    is_there: AtomicBool,
}

impl Ssh {
    /// Its member is there: its time is not measured any more.
    pub fn is_there(&self) {
        self.is_there.store(true, Ordering::Release);
    }

    /// It is not wanted any more.
    pub fn end(&self) {
        if !self.is_there.load(Ordering::Acquire) {
            let _ = self.child.lock().kill();
        }
    }
}

/// What runs words on a host. What the user says comes first: the first value counts (ssh_config(5)). A password could
/// not be typed, and no terminal stops it.
fn command(options: &[String], host: &str, words: &OsStr) -> Result<Command, Failure> {
    let program = std::env::var_os(ENV_SSH).filter(|name| !name.is_empty()).unwrap_or_else(|| "ssh".into());
    let mut command = Command::new(program);
    command.args(options).args(["-o", "BatchMode=yes"]).arg(host).arg(words).stdin(Stdio::null());
    set_helper_environment(&mut command)?;
    spawn::in_own_session(&mut command);
    Ok(command)
}

/// Starts a member on a host. `ended` is told in words how it has ended.
///
/// # Errors
/// It cannot be started.
pub fn start(
    (store, place): (&Store, &GangPlace),
    (member, host, options): (u32, &str, &[String]),
    task: Task<'_>,
    ended: impl FnOnce(String) + Send + 'static,
) -> Result<Arc<Ssh>, Failure> {
    let job = store.job(&place.job_of(0))?;
    let words = words(store, place, member, task)?;
    let mut command = command(options, host, &words)?;
    let program = command.get_program().to_owned();
    let log = log(&job, member);
    let failed = |what: &Path, error: io::Error| {
        Failure::new(
            Exit::Internal,
            format!("starting member {member} on {host}: {}: {error}", what.display()),
        )
    };
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&log);
    let file = file.map_err(|error| failed(&log, error))?;
    let again = file.try_clone().map_err(|error| failed(&log, error))?;
    command.stdout(again).stderr(file);
    let child = command.spawn().map_err(|error| failed(Path::new(&program), error))?;
    tracing::info!(
        "member {member} of gang {} is started on {host}: {}",
        place.name,
        words.to_string_lossy()
    );
    let ssh = Arc::new(Ssh { child: Mutex::new(child), is_there: AtomicBool::new(false) });
    let (of_thread, limit) = (Arc::clone(&ssh), Duration::from_secs(place.wait_s));
    let (host, program) = (host.to_owned(), program.to_string_lossy().into_owned());
    thread::Builder::new()
        .name("gang-ssh".into())
        .spawn(move || {
            let why = match wait(&of_thread, limit) {
                Some(status) => format!("{program} {host} has ended ({status})"),
                None => format!("it did not come within {} s (--gang-wait)", limit.as_secs()),
            };
            let said = said(&log);
            said.lines().for_each(|line| tracing::info!("{program} {host}: {line}"));
            let colon = if said.is_empty() { "" } else { ": " };
            ended(format!("member {member} on {host}: {why}{colon}{said}"));
        })
        .map_err(|error| Failure::system("starting a thread", &error))?;
    Ok(ssh)
}

/// The hosts that ssh does not reach with these options: asked all at once.
///
/// # Errors
/// It cannot be started.
pub fn unreached(hosts: &[(&str, &[String])]) -> Result<Vec<String>, Failure> {
    let limit = ["-o", "ConnectTimeout=10"].map(str::to_owned);
    let mut asked = Vec::new();
    for (host, options) in hosts {
        let options = [*options, &limit].concat();
        let mut command = command(&options, host, OsStr::new("true"))?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let program = command.get_program().to_owned();
        let failed = |error| Failure::system(program.display(), &error);
        asked.push((host, command.spawn().map_err(failed)?));
    }
    let (begun, mut gone) = (Instant::now(), Vec::new());
    for (host, mut child) in asked {
        let is_there = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status.success(),
                Ok(None) if begun.elapsed() < REACHED => thread::sleep(LOOK),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break false;
                }
            }
        };
        if !is_there {
            gone.push((*host).to_owned());
        }
    }
    Ok(gone)
}

/// Where what it says goes.
pub fn log(job: &Job, member: u32) -> PathBuf {
    job.dir().join(format!("member-{member}.log"))
}

/// Waits for its end; `None`: its member has not come in time.
fn wait(ssh: &Ssh, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    while !ssh.is_there.load(Ordering::Acquire) {
        let mut child = ssh.child.lock();
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if begun.elapsed() >= limit {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        drop(child);
        thread::sleep(LOOK);
    }
    // Not while it is locked.
    let pid = i32::try_from(ssh.child.lock().id()).unwrap_or(0);
    let _ = attributes::wait_for_end(pid);
    ssh.child.lock().wait().ok()
}

/// What it has said last.
fn said(log: &Path) -> String {
    let read = || {
        let mut file = File::open(log)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
        let mut text = Vec::new();
        file.take(TAIL).read_to_end(&mut text)?;
        io::Result::Ok(String::from_utf8_lossy(&text).trim().to_owned())
    };
    read().unwrap_or_default()
}

/// What a shell on the other host is given.
fn words(store: &Store, place: &GangPlace, member: u32, task: Task<'_>) -> Result<OsString, Failure> {
    let binary = named_binary()?;
    let root =
        std::path::absolute(store.root()).map_err(|error| Failure::system("the store's path", &error))?;
    let gang = &place.name;
    let mut words: Vec<OsString> = Vec::new();
    if let Some(library) = std::env::var_os("HOLDFAST_LIB") {
        let mut entry = OsString::from("HOLDFAST_LIB=");
        entry.push(library);
        words.extend(["env".into(), entry]);
    }
    words.extend([binary.as_os_str().to_owned(), "--store".into(), root.into_os_string()]);
    let texts: Vec<String> = match task {
        Task::Add(start) => {
            let (of, start) = (format!("{member}/open"), start.to_string());
            let words =
                ["run", "--name", gang, "--gang", &of, "--gang-start", &start, "--gang-wait", WAIT, "--"];
            words.map(str::to_owned).into()
        }
        Task::Restart(again) => {
            let (name, of) = (format!("{gang}@{}", again.image), format!("{member}/{}", again.members));
            let words = ["restart", &name, "--gang", &of, "--gang-wait", WAIT];
            words.into_iter().chain(again.supervised.then_some("--supervised")).map(str::to_owned).collect()
        }
    };
    words.extend(texts.into_iter().map(OsString::from));
    match task {
        Task::Add(_) => words.extend([binary.into_os_string(), "__rsh-server".into()]),
        Task::Restart(again) => words.extend_from_slice(again.options),
    }
    let quoted: Vec<Vec<u8>> = words.iter().map(|word| quoted(word.as_bytes())).collect();
    Ok(OsString::from_vec(quoted.join(&b' ')))
}

/// A word as shells read it back.
fn quoted(word: &[u8]) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(byte);
    if !word.is_empty() && word.iter().all(is_plain) {
        return word.to_vec();
    }
    let mut text = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            byte => text.push(*byte),
        }
    }
    text.push(b'\'');
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shells_read_words_back_as_they_are() {
        for word in ["plain/1.2-x", "", "a b", "it's", "$HOME `x` \\ \"", "*", "~", "a;b&c|d", "#", "ü"] {
            let text = OsString::from_vec(quoted(word.as_bytes()));
            let mut line = OsString::from("printf %s ");
            line.push(&text);
            let said = Command::new("/bin/sh").arg("-c").arg(&line).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), word, "{line:?}");
        }
    }
}
