//! Starting the agent of a job, until it is ready.
//!
//! The agent gets nothing of ours but its log, the link and, for a restart, the socket to the process to be rebuilt.

use crate::entries::helper_environment;
use crate::exit::Failure;
use crate::front_link::{self, Link, Tell};
use crate::helper::Helper;
use crate::inherited_fds::InheritedFd;
use crate::{log, report};
use holdfast_image::streams::Switch;
use holdfast_process::rebuild::RebuildError;
use holdfast_process::rebuild::addresses::Pair;
use holdfast_sys::poll;
use holdfast_tiers::{Job, Store};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A running agent.
#[derive(Debug)]
pub struct Launched {
    /// Its process.
    pub pid: i32,
    /// To it.
    pub link: Link,
    /// Where sockets of the image are made that get other addresses.
    pub sockets: Vec<Pair>,
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
    /// The image of the gang that it is a part of.
    pub gang_image: Option<u64>,
    /// Start the other members, by ssh.
    pub start_members: bool,
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
    /// Addresses that are others.
    pub map_host: Vec<Pair>,
    /// Files that are used though they are another user's.
    pub accept_replaced: Vec<PathBuf>,
    /// Entries of its environment from now on.
    pub env: Vec<CString>,
    /// A signal that it gets.
    pub signal: Option<i32>,
    /// Streams that become the front's.
    pub streams: Vec<Switch>,
}

/// What ends the waiting for an agent that waits for others.
pub struct Interrupt<'a> {
    /// Readable when it is to be looked.
    pub fd: BorrowedFd<'a>,
    /// Whether it is over.
    pub is_over: &'a dyn Fn() -> bool,
}

/// Starts the agent and waits for `Tell::Ready`.
///
/// # Errors
/// What the agent says, or that it cannot be started.
pub fn launch(
    store: &Store,
    job: &Job,
    inherited_fds: &[InheritedFd],
    task: AgentTask,
    interrupt: Option<&Interrupt<'_>>,
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
    let (epoch, gang, map, accepted, env, signal, streams): (_, Option<String>, _, _, _, _, Vec<String>);
    let hosts: Vec<String>;
    match task {
        AgentTask::Start { silent, key } => {
            words.extend(silent.then_some(OsStr::new("--silent")));
            environment.extend(key);
        }
        AgentTask::Restart(task) => {
            (epoch, map, accepted) = (task.epoch.to_string(), task.map, task.accept_replaced);
            (env, signal) = (task.env, task.signal.map(|signal| signal.to_string()));
            streams = task.streams.iter().map(Switch::to_string).collect();
            words.extend(["--restart", &epoch, "--seed", "4"].map(OsStr::new));
            gang = task.gang_image.map(|image| image.to_string());
            if let Some(image) = &gang {
                words.extend(["--gang-image", image].map(OsStr::new));
            }
            for switch in &streams {
                words.extend(["--stream", switch].map(OsStr::new));
            }
            for pair in &map {
                words.extend(["--map".as_ref(), pair.as_os_str()]);
            }
            hosts = task.map_host.iter().map(|(old, new)| format!("{old}={new}")).collect();
            for pair in &hosts {
                words.extend(["--map-host", pair].map(OsStr::new));
            }
            for path in &accepted {
                words.extend(["--accept-replaced".as_ref(), path.as_os_str()]);
            }
            for entry in &env {
                words.extend(["--env".as_ref(), OsStr::from_bytes(entry.as_bytes())]);
            }
            if let Some(signal) = &signal {
                words.extend(["--signal", signal].map(OsStr::new));
            }
            let flags = [
                (task.lazy, "--lazy"),
                (task.share, "--share"),
                (task.served, "--served"),
                (task.start_members, "--start-members"),
            ];
            words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| OsStr::new(flag)));
            descriptors.push(task.seed);
        }
    }
    let at_default = &[libc::SIGTERM];
    let agent = Helper { what: "the agent", words, environment, log, descriptors, at_default };
    let (pid, ours) = agent.start()?;
    let link = Link::from(ours);
    let mut sockets = Vec::new();
    loop {
        return match wait_for(&link, interrupt) {
            Ok(None) => Err(Failure::from(&RebuildError::Interrupted)),
            Ok(Some(Tell::Sockets { moved })) => {
                sockets.extend(moved);
                continue;
            }
            Ok(Some(Tell::Ready)) => Ok(Launched { pid, link, sockets }),
            Ok(Some(Tell::Failed { exit, message, kind })) => Err(Failure { exit, message, kind }),
            Ok(_) | Err(_) => Err(front_link::lost(&log::path(job))),
        };
    }
}

/// What it says; `None`: interrupted.
fn wait_for(link: &Link, interrupt: Option<&Interrupt<'_>>) -> io::Result<Option<Tell>> {
    loop {
        if let Some(interrupt) = interrupt {
            poll::readable(&[link.as_fd(), interrupt.fd], None)?;
            if (interrupt.is_over)() {
                return Ok(None);
            }
        }
        match link.next(interrupt.is_none())? {
            // A tier may fail before the agent is ready: no reason not to start.
            Some(Tell::Warning { text }) => report::warn(&text),
            Some(tell) => return Ok(Some(tell)),
            None => {}
        }
    }
}
