//! The new processes are met, seized and let execute.

use super::options::RebuildOptions;
use super::remote_calls::ended;
use crate::error::TraceError;
use crate::rebuild::error::{Peer, RebuildError};
use crate::rebuild::handshake::{self, GO, ReadyMessage};
use crate::rebuild::job::Job;
use crate::rebuild::members;
use holdfast_sys::ptrace::{self, Wait};
use holdfast_sys::scm::{self, Received};
use holdfast_sys::{fault, fd, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// A new process that waits to be taken over.
#[derive(Clone, Copy, Debug)]
pub struct ReadyProcess {
    /// Its id as the agent sees it.
    pub pid: i32,
    /// What it says of itself.
    pub ready: ReadyMessage,
}

/// Waits until the new processes have all their files; by their places in the job. `connections`: to other members of a
/// gang, which the first process asks for.
pub fn receive_all(
    front: &OwnedFd,
    job: &Job<'_>,
    options: &RebuildOptions,
    connections: &members::Made,
) -> Result<Vec<ReadyProcess>, RebuildError> {
    scm::expect(front.as_fd()).map_err(RebuildError::io("waiting for the new processes"))?;
    if job.record.others.is_empty() {
        return Ok(vec![receive_one(front, options, connections)?]);
    }
    let wanted: Vec<i32> = job.members().map(|member| member.own.pid).collect();
    let mut met: BTreeMap<i32, ReadyProcess> = BTreeMap::new();
    while met.len() < wanted.len() {
        let ready_process = receive_one(front, options, connections)?;
        let id = ready_process.ready.job_pid;
        if !wanted.contains(&id) {
            return Err(RebuildError::Ids(format!("a new process has the id {id}, which no process had")));
        }
        met.insert(id, ready_process);
    }
    Ok(wanted.iter().filter_map(|id| met.remove(id)).collect())
}

/// Waits for one; its id as seen here, and what it says of itself.
fn receive_one(
    front: &OwnedFd,
    options: &RebuildOptions,
    connections: &members::Made,
) -> Result<ReadyProcess, RebuildError> {
    let io = || RebuildError::io("waiting for the new process");
    let mut buffer = [0_u8; 64];
    let Received { len, pid, .. } = loop {
        // One of them may wait for ever, at a fifo or for a server of files.
        let wakes: Vec<_> =
            [Some(front), options.interrupt.as_deref()].into_iter().flatten().map(AsFd::as_fd).collect();
        let ready = poll::readable(&wakes, None).map_err(io())?;
        options.go_on()?;
        if ready.first() == Some(&true) {
            match scm::receive(front.as_fd(), &mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                // Each way to the old ids that is tried asks anew.
                Ok(received) if buffer[..received.len] == *handshake::MEMBERS => {
                    handshake::give_members(front, connections)?;
                }
                other => break other.map_err(io())?,
            }
        }
    };
    if len == 0 {
        return Err(RebuildError::PeerGone(Peer::Front));
    }
    let ready = ReadyMessage::from_bytes(&buffer[..len]).ok_or_else(|| {
        RebuildError::Image("holdfast restart and the agent are of different versions".into())
    })?;
    if pid <= 0 {
        return Err(RebuildError::Ids("the new process has no id in the agent's pid namespace".into()));
    }
    Ok(ReadyProcess { pid, ready })
}

/// Seizes the processes and waits until each has executed its executable.
pub fn seize_all(ready_processes: &[ReadyProcess], front: &OwnedFd) -> Result<(), RebuildError> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_EXITKILL;
    for ready_process in ready_processes {
        ptrace::seize(ready_process.pid, options).map_err(TraceError::from)?;
    }
    fault::point("seed-born");
    // Each takes one, whichever.
    for _ in ready_processes {
        fd::send(front.as_fd(), GO, libc::MSG_NOSIGNAL)
            .map_err(RebuildError::io("telling the new processes to go on"))?;
    }
    ready_processes.iter().try_for_each(|ready_process| wait_for_exec(ready_process.pid))
}

fn wait_for_exec(pid: i32) -> Result<(), RebuildError> {
    loop {
        match ptrace::wait(pid, true).map_err(TraceError::from)? {
            Wait::Event(libc::PTRACE_EVENT_EXEC) => return Ok(()),
            Wait::Exited(status) => return Err(ended(status)),
            _ => ptrace::cont(pid, 0).map_err(TraceError::from)?,
        }
    }
}
