//! Starting a caller ([`super::caller`]), and asking it: every answer has a deadline.
//!
//! Used by the agent's end of the driver ([`super::driver`]) and by `holdfast doctor`. How it fails: [`Cause`]. A
//! caller that has missed a deadline may be in the middle of a call: it is of no use any more, and is killed when it is
//! dropped.

use super::messages::{self, Answer, DeviceRoom, Facts, Question};
use crate::entries::helper_environment;
use crate::exit::Failure;
use crate::helper::Helper;
use holdfast_process::cuda::Cause;
use holdfast_sys::{poll, ptrace, spawn};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

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
        let (pid, socket) = launch("__cuda", library, log).map_err(|failure| failure.message)?;
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
        match self.exchange(&question, deadline)? {
            Answer::Done { value } => Ok(value),
            Answer::Failed { code } => Err(Cause::Code(code)),
            _ => {
                self.lost = true;
                Err(Cause::CallerEnded)
            }
        }
    }

    /// How much memory of each device is free. The inner error: that is not to be had, and why.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn room(&mut self, deadline: Duration) -> Result<Result<Vec<DeviceRoom>, String>, Cause> {
        match self.exchange(&Question::Room, deadline)? {
            Answer::Room { devices } => Ok(Ok(devices)),
            Answer::NoRoom { why } => Ok(Err(why)),
            _ => {
                self.lost = true;
                Err(Cause::CallerEnded)
            }
        }
    }

    fn exchange(&mut self, question: &Question, deadline: Duration) -> Result<Answer, Cause> {
        if self.lost {
            return Err(Cause::CallerEnded);
        }
        self.lost = true;
        messages::send(self.socket.as_fd(), question).map_err(|_| Cause::CallerEnded)?;
        let answer = self.wait(deadline)?;
        self.lost = false;
        Ok(answer)
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
        let ready = poll::readable_within(self.socket.as_fd(), deadline);
        if !ready.map_err(|error| Cause::NoCaller(format!("waiting for the caller: {error}")))? {
            return Err(Cause::Deadline(deadline));
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
        // In a call of the kernel it may not die at once.
        spawn::wait_within(self.pid, REAP);
    }
}

/// Starts `holdfast COMMAND` for a library: its process, and our end of its socket.
///
/// # Errors
/// As [`Helper::start`].
pub fn launch(command: &str, library: &Path, log: OwnedFd) -> Result<(i32, OwnedFd), Failure> {
    let mut words: Vec<&OsStr> = [command, "--agent", "3", "--library"].map(OsStr::new).into();
    words.push(library.as_os_str());
    // It is none of the processes that the driver's job file is about (docs/cuda.md).
    let mut environment = helper_environment()?;
    environment.retain(|entry| !entry.to_bytes().starts_with(b"CUDA_CHECKPOINT_JOB_FILE="));
    let what = "a process that calls the CUDA driver";
    Helper { what, words, environment, log, descriptors: Vec::new(), at_default: &[] }.start()
}
