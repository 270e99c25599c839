//! Starting a caller ([`super::caller`]), and asking it: every answer has a deadline.
//!
//! Used by the agent's end of the driver ([`super::driver`]) and by `holdfast doctor`. How it fails: [`Cause`]. A
//! caller that has missed a deadline may be in the middle of a call: it is of no use any more, and is killed when it is
//! dropped.

use super::messages::{self, Answer, Facts, Question};
use crate::exit::Failure;
use crate::front::launch::{c_string, helper_environment};
use holdfast_process::cuda::Cause;
use holdfast_sys::{fd, poll, ptrace, spawn, spawn::Start};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a driver may take to be loaded and initialised: 2.7 s are usual (docs/cuda.md).
const START: Duration = Duration::from_secs(60);
/// How long a caller that was killed is waited for.
const REAP: Duration = Duration::from_millis(200);

/// A running caller.
#[derive(Debug)]
pub struct Caller {
    /// Its process.
    pub pid: i32,
    /// What it has found.
    pub facts: Facts,
    socket: OwnedFd,
    /// An answer is missing.
    lost: bool,
}

impl Caller {
    /// Starts one for a library. `log`: its standard error.
    ///
    /// # Errors
    /// In words.
    pub fn start(library: &Path, log: OwnedFd) -> Result<Caller, String> {
        let (pid, socket) =
            launch("__cuda", library, log).map_err(|error| format!("starting a caller: {error}"))?;
        let mut caller = Caller { pid, facts: Facts::default(), socket, lost: true };
        let answer = caller.wait(START).map_err(|cause| format!("{}: cuInit: {cause}", library.display()))?;
        match answer {
            Answer::Ready(facts) => {
                caller.lost = false;
                caller.facts = facts;
                Ok(caller)
            }
            Answer::Unusable { why } => Err(why),
            other => Err(format!("unexpected first answer of the caller: {other:?}")),
        }
    }

    /// Asks; a value, where the function has one.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn ask(&mut self, question: Question, deadline: Duration) -> Result<i32, Cause> {
        if self.lost {
            return Err(Cause::CallerEnded);
        }
        self.lost = true;
        messages::send(self.socket.as_fd(), &question).map_err(|_| Cause::CallerEnded)?;
        let answer = self.wait(deadline)?;
        self.lost = false;
        match answer {
            Answer::Done { value } => Ok(value),
            Answer::Failed { code } => Err(Cause::Code(code)),
            Answer::Ready(_) | Answer::Unusable { .. } => {
                self.lost = true;
                Err(Cause::CallerEnded)
            }
        }
    }

    /// Tells; there is no answer.
    pub fn tell(&self, question: Question) {
        let _ = messages::send(self.socket.as_fd(), &question);
    }

    /// Whether it can be asked again.
    pub fn is_usable(&self) -> bool {
        !self.lost
    }

    fn wait(&self, deadline: Duration) -> Result<Answer, Cause> {
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match poll::readable(&[self.socket.as_fd()], Some(left)) {
                Ok(ready) if ready == [true] => break,
                _ if Instant::now() >= end => return Err(Cause::Deadline(deadline)),
                Ok(_) => {}
                Err(error) => return Err(Cause::NoCaller(format!("waiting for the caller: {error}"))),
            }
        }
        messages::receive(self.socket.as_fd()).ok().flatten().ok_or(Cause::CallerEnded)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.lost {
            // It ends by itself when its socket is closed, and its parent may end before it.
            return;
        }
        let _ = ptrace::kill(self.pid, libc::SIGKILL);
        let end = Instant::now() + REAP;
        // In a call of the kernel it may not die at once.
        while spawn::wait(self.pid, false).is_ok_and(|status| status.is_none()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The caller is none of the processes that the driver's job file is about (docs/cuda.md).
fn environment() -> Result<Vec<CString>, Failure> {
    let mut all = helper_environment()?;
    all.retain(|entry| !entry.to_bytes().starts_with(b"CUDA_CHECKPOINT_JOB_FILE="));
    Ok(all)
}

/// Starts `holdfast COMMAND` for a library: its process, and our end of its socket.
///
/// # Errors
/// Of fork or execve.
pub fn launch(command: &str, library: &Path, log: OwnedFd) -> io::Result<(i32, OwnedFd)> {
    let other = |failure: Failure| io::Error::other(failure.message);
    let (ours, theirs) = fd::socketpair(libc::SOCK_SEQPACKET)?;
    let words = ["holdfast", command, "--agent", "3", "--library"].map(OsStr::new);
    let words = words.into_iter().chain([library.as_os_str()]);
    let null: OwnedFd = File::options().read(true).write(true).open("/dev/null")?.into();
    let start = Start {
        path: c_string(std::env::current_exe()?.as_os_str()).map_err(other)?,
        arguments: words.map(c_string).collect::<Result<_, _>>().map_err(other)?,
        environment: environment().map_err(other)?,
        mask: 0,
        ignored: vec![(libc::SIGPIPE, false), (libc::SIGCHLD, false)],
        closed: Vec::new(),
        descriptors: vec![null, log.try_clone()?, log, theirs],
        detached: true,
    };
    let pid = start.spawn()?;
    // Our copy of its end must go, or its death would not close the socket.
    drop(start);
    Ok((pid, ours))
}
