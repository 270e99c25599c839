//! Asks a process, which may be the caller's own. Used by `api::checkpoint`.
//!
//! Waits as long as the process lives: one that is stopped, or whose thread hangs, makes the call hang, as the real
//! driver's calls do (NVIDIA/nccl#2340): the caller has to have a deadline of its own.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use super::message::{Injected, Operation, Reply, Request};
use super::process;
use super::server::{self, THREAD};
use crate::code::{Answer, Code};
use crate::settings::{Fault, settings};
use crate::system;
use crate::{device, shared_device};

/// Asks, and gives the state that the process is in then.
pub fn ask(
    process: i32,
    operation: Operation,
    timeout_ms: u32,
    pairs: Vec<([u8; 16], [u8; 16])>,
) -> Answer<u32> {
    // a process that asks itself counts the occasion when it answers
    let injected = if process == system::process_id() { Injected::default() } else { injected(operation) };
    let (process, thread) = restore_thread(process)?;
    let request =
        Request { operation, timeout_ms, injected, uuid: device::uuid(), memory: settings().memory, pairs };
    let reply = exchange(process, thread, &request).map_err(|_| Code::INVALID_VALUE)?;
    if operation == Operation::State
        && reply.state == process::State::Checkpointed as u32
        && settings().strikes(Fault::Crowded)
    {
        shared_device::crowd();
    }
    if reply.code == 0 { Ok(reply.state) } else { Err(Code(reply.code)) }
}

fn injected(operation: Operation) -> Injected {
    let strikes = |fault| settings().strikes(fault);
    let (fails, hangs) = match operation {
        Operation::State => (false, false),
        Operation::Lock => (strikes(Fault::LockTimeout), strikes(Fault::LockHangs)),
        Operation::Checkpoint => (strikes(Fault::Checkpoint), strikes(Fault::CheckpointHangs)),
        Operation::Restore => (strikes(Fault::Restore), strikes(Fault::RestoreHangs)),
        Operation::Unlock => (strikes(Fault::Unlock), false),
    };
    Injected { fails, hangs }
}

/// Process and thread to ask, as the kernel numbers them for the caller. A process that has not initialised the driver
/// has no such thread: CUDA_ERROR_NOT_INITIALIZED (driver 580.159.04; of a child made by fork, too).
pub fn restore_thread(process: i32) -> Answer<(i32, i32)> {
    let own = process == system::process_id();
    let folder = if own { "/proc/self/task".into() } else { format!("/proc/{process}/task") };
    let process = if own { system::ids().0 } else { process };
    let entries = std::fs::read_dir(folder).map_err(|_| Code::INVALID_VALUE)?;
    for entry in entries.flatten() {
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if name.trim_end() == THREAD
            && let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse().ok())
        {
            return Ok((process, thread));
        }
    }
    Err(Code::NOT_INITIALIZED)
}

fn exchange(process: i32, thread: i32, request: &Request) -> io::Result<Reply> {
    let token = system::random();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(server::name_of(token))?)?;
    system::send_token(process, thread, token)?;
    let mut stream = accept(&listener, process)?;
    drop(listener);
    request.send(&mut stream)?;
    let reply = Reply::receive(&mut alive(&mut stream, process))?;
    // the other side has no socket any more when this one has seen its end
    let mut rest = [0; 1];
    let _ = alive(&mut stream, process).read(&mut rest);
    Ok(reply)
}

fn accept(listener: &UnixListener, process: i32) -> io::Result<UnixStream> {
    loop {
        if system::readable(listener.as_raw_fd(), Duration::from_millis(100))? {
            let (stream, _) = listener.accept()?;
            // root may ask processes of all users
            if [0, system::peer_user(&stream)?].contains(&system::user()) {
                return Ok(stream);
            }
        } else {
            must_live(process)?;
        }
    }
}

fn must_live(process: i32) -> io::Result<()> {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let state = status.rsplit_once(") ").map_or("", |(_, rest)| rest);
    if state.starts_with(['Z', 'X']) { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
}

/// A stream that is read until the process at its other end has ended.
struct Alive<'s>(&'s mut UnixStream, i32);

fn alive(stream: &mut UnixStream, process: i32) -> Alive<'_> {
    Alive(stream, process)
}

impl Read for Alive<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while !system::readable(self.0.as_raw_fd(), Duration::from_millis(100))? {
            must_live(self.1)?;
        }
        self.0.read(bytes)
    }
}
