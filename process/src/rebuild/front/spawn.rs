//! The front's half of a restart: the new processes are made with their old ids, and each executes its executable,
//! before whose first instruction the agent takes it over.
//!
//! Called by `holdfast restart`, which must be single-threaded. Three ways to the old ids ([`Ids`]), tried in
//! order. The front makes the first process, which makes the others. It gets messages from all of them until
//! the last exec; from then on they belong to the agent, and the front waits for the end of the first.

use super::attempt::{Attempt, Parts};
use super::ids::{Ids, ids_in_use, wanted_ids};
use super::namespace;
use super::{counted, last_pid};
use crate::rebuild::error::{Peer, RebuildError};
use crate::rebuild::handshake::{self, Message};
use crate::rebuild::new_process::front_terminal::FrontTerminal;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::{clone, fault, poll, probe, spawn};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// How the new process is made.
#[derive(Clone, Copy, Debug)]
pub struct SpawnOptions<'a> {
    /// `None`: the first way that works.
    pub ids: Option<Ids>,
    /// Readable when the user wants an end of it: opening a file may take for ever.
    pub interrupt: Option<BorrowedFd<'a>>,
    /// The file of a page server, from which memory is mapped.
    pub served: Option<BorrowedFd<'a>>,
}

/// A new process that will soon be the program.
#[derive(Debug)]
pub struct Spawned {
    /// Its id as the front sees it.
    pub pid: i32,
    /// How it got its ids.
    pub ids: Ids,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
    pidfd: OwnedFd,
    /// The other processes.
    others: Vec<OwnedFd>,
    /// In a namespace: where its helper tells its end.
    status: Option<File>,
    helper: i32,
    ended: Option<ExitStatus>,
}

impl Spawned {
    /// A descriptor that becomes readable when [`Spawned::wait`] will not block.
    pub fn watch(&self) -> BorrowedFd<'_> {
        self.status.as_ref().map_or_else(|| self.pidfd.as_fd(), AsFd::as_fd)
    }

    /// Waits for the program's end; its own exit status.
    ///
    /// # Errors
    /// The helper of the namespace was killed: the status is not known.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            poll::readable(&[self.watch()], None)?;
        }
    }

    /// The program's own exit status, if it has ended.
    ///
    /// # Errors
    /// As [`Spawned::wait`].
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_some() || poll::readable(&[self.watch()], Some(Duration::ZERO))? != [true] {
            return Ok(self.ended);
        }
        self.ended = match &mut self.status {
            None => spawn::wait(self.pid, false)?,
            Some(pipe) => {
                let mut bytes = [0_u8; 4];
                if pipe.read_exact(&mut bytes).is_err() {
                    let helper = spawn::wait(self.helper, true)?;
                    return Err(io::Error::other(format!(
                        "the helper of the program's pid namespace ended ({helper:?}), and the program with it"
                    )));
                }
                // The helper stays while children of the program run; its end matters to no process then.
                let _ = spawn::wait(self.helper, false);
                Some(ExitStatus::from_raw(i32::from_ne_bytes(bytes)))
            }
        };
        Ok(self.ended)
    }

    /// Ends all processes, before they run.
    pub fn kill_all(&self) {
        kill_all(self.others.iter().chain([&self.pidfd]));
    }

    /// Sends the first process of the program a signal.
    ///
    /// # Errors
    /// ESRCH: it has ended.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        spawn::signal_pidfd(&self.pidfd, signal)
    }

    /// The same with a value.
    ///
    /// # Errors
    /// As [`Spawned::signal`].
    pub fn queue(&self, signal: i32, value: u64) -> io::Result<()> {
        spawn::queue_pidfd(&self.pidfd, signal, value)
    }
}

/// Makes the new process, files and all, up to its exec, while the agent waits at the other end of `agent`
/// in [`crate::rebuild::rebuild_job`]. The caller must be the only thread of its process.
///
/// # Errors
/// Names what could not be made; no process is left then.
pub fn spawn(
    record: &ProcessRecord,
    agent: OwnedFd,
    options: &SpawnOptions<'_>,
) -> Result<Spawned, RebuildError> {
    record.check().map_err(RebuildError::Image)?;
    let ways: &[Ids] = match &options.ids {
        Some(one) => std::slice::from_ref(one),
        None => &[Ids::Same, Ids::Namespace, Ids::Counted, Ids::Virtual],
    };
    let mut reasons = Vec::new();
    for &ids in ways {
        let (front, process) = handshake::channel()?;
        let copy = agent.try_clone().map_err(RebuildError::io("duplicating the socket to the agent"))?;
        let served = options.served.map(|served| served.try_clone_to_owned()).transpose();
        let served = served.map_err(RebuildError::io("duplicating the file of the page server"))?;
        let parts = Parts { record, agent: copy, served, terminal: FrontTerminal::look() };
        let attempt = match ids {
            Ids::Same => same(parts, process)?,
            Ids::Namespace => namespace::enter(parts, process)?,
            Ids::Counted => counted(parts, process)?,
            Ids::Virtual => virtual_ids(parts, process)?,
        };
        match attempt {
            Attempt::Refused(why) => reasons.push(why),
            Attempt::Begun { child, status, note } => {
                match listen(&front, ids, (child, status), options.interrupt)? {
                    Ok(mut spawned) => {
                        // Said only where the best was asked for and could not be had.
                        if ids == Ids::Virtual {
                            spawned.notes.extend(reasons);
                        }
                        spawned.notes.extend(note);
                        return Ok(spawned);
                    }
                    Err(why) => reasons.push(why),
                }
            }
        }
    }
    Err(RebuildError::Ids(reasons.join("; ")))
}

fn kill_all<'a>(processes: impl IntoIterator<Item = &'a OwnedFd>) {
    for process in processes {
        let _ = spawn::signal_pidfd(process, libc::SIGKILL);
    }
}

/// Waits for a message, or for an interrupt.
fn is_interrupted(front: &OwnedFd, interrupt: Option<BorrowedFd<'_>>) -> bool {
    let Some(interrupt) = interrupt else { return false };
    poll::readable(&[interrupt, front.as_fd()], None).is_ok_and(|ready| ready[0])
}

/// Receives messages of the new processes until the last exec. Inner error: this way is not open here. After an
/// error no process is left.
fn listen(
    front: &OwnedFd,
    ids: Ids,
    (child, status): (i32, Option<OwnedFd>),
    interrupt: Option<BorrowedFd<'_>>,
) -> Result<Result<Spawned, String>, RebuildError> {
    let (mut pid, mut processes, mut ready) = (0, Vec::new(), false);
    let (mut notes, mut failure) = (Vec::new(), None);
    fault::point("front-hears");
    loop {
        if failure.is_none() && is_interrupted(front, interrupt) {
            failure = Some(Err(RebuildError::Interrupted));
            kill_all(&processes);
        }
        match handshake::receive(front) {
            Message::Spawned { pid: told, process: Some(process) } => {
                if processes.is_empty() {
                    pid = told;
                }
                processes.push(process);
            }
            Message::Spawned { process: None, .. } => {
                let what = "opening the new process".to_owned();
                let source = io::Error::from_raw_os_error(libc::EMFILE);
                failure.get_or_insert(Err(RebuildError::Io { what, source }));
            }
            Message::Note(note) => notes.push(note),
            Message::Ready => ready = true,
            Message::Refused(why) => drop(failure.get_or_insert(Ok(why))),
            Message::Failed(why) => drop(failure.get_or_insert(Err(RebuildError::Reported(why)))),
            Message::Hindered(why) => drop(failure.get_or_insert(Err(RebuildError::Refused(why)))),
            Message::InUse(why) => drop(failure.get_or_insert(Err(RebuildError::InUse(why)))),
            Message::AgentLeft => drop(failure.get_or_insert(Err(RebuildError::PeerGone(Peer::Agent)))),
            Message::End => break,
        }
        if failure.is_some() {
            // Those that are still to tell that they exist are ended when they do.
            kill_all(&processes);
        }
    }
    let how = |ended: Option<ExitStatus>| ended.map_or_else(|| "unknown".into(), |status| status.to_string());
    if let Some(failure) = failure {
        let _ = spawn::wait(child, true);
        return failure.map(Err);
    }
    if processes.is_empty() || !ready {
        return Err(RebuildError::Ended { how: how(spawn::wait(child, true).ok().flatten()) });
    }
    let pidfd = processes.remove(0);
    let status = status.map(File::from);
    Ok(Ok(Spawned { pid, ids, notes, pidfd, others: processes, status, helper: child, ended: None }))
}

fn same(parts: Parts<'_>, process: OwnedFd) -> Result<Attempt, RebuildError> {
    // Before a zombie is waited for in vain.
    if !probe::can_choose_pid() {
        let why = format!("id {} cannot be chosen: CAP_CHECKPOINT_RESTORE is missing", parts.record.pid);
        return Ok(Attempt::Refused(why));
    }
    if let Some(why) = ids_in_use(&wanted_ids(parts.record)?) {
        return Ok(Attempt::Refused(why));
    }
    last_pid::among_others(parts.record);
    match clone::fork_with(0, parts.record.pid) {
        Ok(0) => parts.become_new_process(process, Ids::Same, false),
        Ok(child) => Ok(Attempt::Begun { child, status: None, note: None }),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EEXIST | libc::EINVAL)) => {
            Ok(Attempt::Refused(format!("id {} cannot be chosen: {error}", parts.record.pid)))
        }
        Err(source) => Err(RebuildError::Io { what: "making the new process".into(), source }),
    }
}

fn counted(parts: Parts<'_>, process: OwnedFd) -> Result<Attempt, RebuildError> {
    if let Some(why) = counted::why_not(parts.record) {
        return Ok(Attempt::Refused(why));
    }
    match clone::fork_when_due(0, parts.record.pid) {
        Ok(0) => parts.become_new_process(process, Ids::Counted, false),
        Ok(child) => Ok(Attempt::Begun { child, status: None, note: None }),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            Ok(Attempt::Refused(format!("id {} was given to another process meanwhile", parts.record.pid)))
        }
        Err(source) => Err(RebuildError::Io { what: "making the new process".into(), source }),
    }
}

fn virtual_ids(parts: Parts<'_>, process: OwnedFd) -> Result<Attempt, RebuildError> {
    let record = parts.record;
    if !record.others.is_empty() || !record.zombies.is_empty() {
        return Ok(Attempt::Refused(
            "several processes know each other by ids that only the kernel can give them: allow user \
             namespaces to this \
             user, or give holdfast CAP_CHECKPOINT_RESTORE (setcap cap_checkpoint_restore+ep)"
                .into(),
        ));
    }
    if parts.record.inject.shared.0 == 0 {
        return Ok(Attempt::Refused("libholdfast in the program cannot show it other ids".into()));
    }
    match clone::fork_with(0, 0) {
        Ok(0) => parts.become_new_process(process, Ids::Virtual, false),
        Ok(child) => Ok(Attempt::Begun { child, status: None, note: None }),
        Err(source) => Err(RebuildError::Io { what: "making the new process".into(), source }),
    }
}
