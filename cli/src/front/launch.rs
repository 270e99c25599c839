//! Starting a process of the binary beside ours, and above all the agent of a job, until it is ready.
//!
//! The agent gets nothing of ours but its log, the link and, for a restart, the socket to the process to be rebuilt.

use super::baseline;
use crate::exit::Failure;
use crate::inherited_fds::InheritedFd;
use crate::link::{self, Link, Tell};
use crate::log;
use crate::report;
use holdfast_abi::environment::ENV_KEY;
use holdfast_image::streams::Switch;
use holdfast_sys::{fd, spawn::Start};
use holdfast_tiers::{Job, Store};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A process of the binary that does something for ours.
#[derive(Debug)]
pub struct Helper<'a> {
    /// What it is, in messages.
    pub what: &'static str,
    /// What follows `holdfast` in its command line.
    pub words: Vec<&'a OsStr>,
    /// Its environment.
    pub environment: Vec<CString>,
    /// Its standard output and its standard error; standard input is empty.
    pub log: OwnedFd,
    /// Its descriptors from 4 on: 3 is its end of a socket to us.
    pub descriptors: Vec<OwnedFd>,
    /// Signals that are at their default in it even if they are ignored here, besides SIGPIPE and SIGCHLD.
    pub at_default: &'static [i32],
}

impl Helper<'_> {
    /// Starts it: its process, and our end of the socket. That is closed by its death: we keep no copy of the other.
    ///
    /// # Errors
    /// Of what it needs, or of execve.
    pub fn start(self) -> Result<(i32, OwnedFd), Failure> {
        let what = self.what;
        let (ours, theirs) = fd::socketpair(libc::SOCK_SEQPACKET)
            .map_err(|error| Failure::system(format_args!("socketpair for {what}"), &error))?;
        let again = self.log.try_clone().map_err(|error| Failure::system("duplicating the log", &error))?;
        let words = [OsStr::new("holdfast")].into_iter().chain(self.words);
        let start = Start {
            path: c_string(binary()?.as_os_str())?,
            arguments: words.map(c_string).collect::<Result<_, _>>()?,
            environment: self.environment,
            mask: 0,
            ignored: [libc::SIGPIPE, libc::SIGCHLD]
                .iter()
                .chain(self.at_default)
                .map(|signal| (*signal, false))
                .collect(),
            closed: Vec::new(),
            descriptors: [null()?, self.log, again, theirs].into_iter().chain(self.descriptors).collect(),
            detached: true,
        };
        let pid = start.spawn();
        let pid = pid.map_err(|error| Failure::system(format_args!("starting {what}"), &error))?;
        Ok((pid, ours))
    }
}

/// Our own executable.
///
/// # Errors
/// /proc has it not.
pub(super) fn binary() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::system("finding the binary holdfast", &error))
}

/// `/dev/null`.
///
/// # Errors
/// It cannot be opened.
pub fn null() -> Result<OwnedFd, Failure> {
    let null = File::options().read(true).write(true).open("/dev/null");
    null.map(OwnedFd::from).map_err(|error| Failure::system("opening /dev/null", &error))
}

/// A running agent.
#[derive(Debug)]
pub struct Launched {
    /// Its process.
    pub pid: i32,
    /// To it.
    pub link: Link,
}

/// What an agent is started for.
#[derive(Debug)]
pub enum AgentTask {
    /// A program that the front starts next.
    Start {
        /// It cannot load libholdfast: the front will tell who it is.
        silent: bool,
        /// The entry of the program's environment that has the job's key, if it has one.
        key: Option<CString>,
    },
    /// A program that it restarts.
    Restart(RestartTask),
}

/// What an agent that is to restart a program needs.
#[derive(Debug)]
pub struct RestartTask {
    /// Number of the image.
    pub epoch: u64,
    /// Its end of the socket to the process.
    pub seed: OwnedFd,
    /// Map memory from the image.
    pub lazy: bool,
    /// Have processes map what they have in common.
    pub share: bool,
    /// The first of them has the file of a page server.
    pub served: bool,
    /// Files that were moved.
    pub map: Vec<OsString>,
    /// Files that are used though they are another user's.
    pub accept_replaced: Vec<PathBuf>,
    /// Streams that become the front's.
    pub streams: Vec<Switch>,
}

/// A string for the kernel.
///
/// # Errors
/// It holds a NUL.
pub fn c_string(text: &OsStr) -> Result<CString, Failure> {
    CString::new(text.as_bytes()).map_err(|_| {
        Failure::new(crate::exit::Exit::Usage, format!("{:?} holds a NUL byte", text.to_string_lossy()))
    })
}

/// An entry of an environment.
///
/// # Errors
/// As [`c_string`].
pub fn variable(name: &str, value: &OsStr) -> Result<CString, Failure> {
    let mut entry = OsString::from(name);
    entry.push("=");
    entry.push(value);
    c_string(&entry)
}

/// The environment as it is, in its task.
///
/// # Errors
/// None in practice: variables cannot hold a NUL.
pub fn own_environment() -> Result<Vec<CString>, Failure> {
    std::env::vars_os()
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            c_string(&name)
        })
        .collect()
}

/// Starts the agent and waits for [`Tell::Ready`].
///
/// # Errors
/// What the agent says, or that it cannot be started.
pub fn launch(
    store: &Store,
    job: &Job,
    inherited_fds: &[InheritedFd],
    task: AgentTask,
) -> Result<Launched, Failure> {
    let mut words: Vec<&OsStr> = vec!["--store".as_ref(), store.root().as_os_str(), "__agent".as_ref()];
    // With `=`: an older job may have a name that looks like an option.
    let name = format!("--job={}", job.name());
    words.extend([&name, "--link", "3"].map(OsStr::new));
    let inherited_fds: Vec<String> = inherited_fds.iter().map(InheritedFd::to_string).collect();
    for text in &inherited_fds {
        words.extend(["--inherited", text].map(OsStr::new));
    }
    let log = log::open(job)?;
    let mut descriptors = Vec::new();
    let mut environment = helper_environment()?;
    let (epoch, map, accepted, streams): (_, _, _, Vec<String>);
    match task {
        AgentTask::Start { silent, key } => {
            words.extend(silent.then_some(OsStr::new("--silent")));
            environment.extend(key);
        }
        AgentTask::Restart(task) => {
            (epoch, map, accepted) = (task.epoch.to_string(), task.map, task.accept_replaced);
            streams = task.streams.iter().map(Switch::to_string).collect();
            words.extend(["--restart", &epoch, "--seed", "4"].map(OsStr::new));
            for switch in &streams {
                words.extend(["--stream", switch].map(OsStr::new));
            }
            for pair in &map {
                words.extend(["--map".as_ref(), pair.as_os_str()]);
            }
            for path in &accepted {
                words.extend(["--accept-replaced".as_ref(), path.as_os_str()]);
            }
            let flags = [(task.lazy, "--lazy"), (task.share, "--share"), (task.served, "--served")];
            words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| OsStr::new(flag)));
            descriptors.push(task.seed);
        }
    }
    let at_default = &[libc::SIGTERM];
    let agent = Helper { what: "the agent", words, environment, log, descriptors, at_default };
    let (pid, ours) = agent.start()?;
    let link = Link::from(ours);
    match wait_for(&link) {
        Ok(Tell::Ready) => Ok(Launched { pid, link }),
        Ok(Tell::Failed { exit, message, kind }) => Err(Failure { exit, message, kind }),
        Ok(_) | Err(_) => Err(link::lost(&log::path(job))),
    }
}

/// Ours without LD_PRELOAD: what is meant for the program must not be loaded into the agent, nor into its helpers.
/// And without the key of a job that we are in.
///
/// # Errors
/// As [`own_environment`].
pub fn helper_environment() -> Result<Vec<CString>, Failure> {
    let mut all = own_environment()?;
    all.retain(|entry| !["LD_PRELOAD", ENV_KEY].iter().any(|name| baseline::is_of(entry, name)));
    Ok(all)
}

fn wait_for(link: &Link) -> io::Result<Tell> {
    loop {
        match link.next(true)? {
            // A tier may fail before the agent is ready: no reason not to start.
            Some(Tell::Warning { text }) => report::warn(&text),
            Some(tell) => return Ok(tell),
            None => {}
        }
    }
}
