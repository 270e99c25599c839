//! Does the driver checkpoint a process that has had memory of a keeper's? Asked of the driver itself, with three
//! processes for the purpose: one makes memory, one has it, releases it, is checkpointed and has it again, and one
//! calls the driver's checkpoint, as an agent's does.
//!
//! Used by `holdfast doctor`, and by an agent where the user leaves the choice of the owner to it
//! (HOLDFAST_CUDA_DATA=auto); [`run`] is what the first two do (`holdfast __probe`). What must hold: every answer has a
//! deadline; a process that answers ends by itself: one that was restored and is killed has hung a host
//! (NVIDIA/cuda-checkpoint#53). Fails by: words.

use super::messages::Answer;
use crate::args::CudaArgs;
use crate::cuda::client::{Caller, launch};
use crate::cuda::{caller, messages};
use crate::exit::Failure;
use crate::helper::null;
use holdfast_sys::cuda_memory::{self, Device, DeviceError};
use holdfast_sys::{attributes, fd, poll, ptrace, scm, spawn};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Where the loader finds it, as programs do.
const LIBRARY: &str = "libcuda.so.1";
/// How long one answer may take: a driver takes seconds to be initialised.
const DEADLINE: Duration = Duration::from_secs(60);
/// The driver's lock of a process that does nothing.
const LOCK_MS: u32 = 10_000;
/// How long a process that has nothing more to do is waited for.
const REAP: Duration = Duration::from_secs(2);
/// Physical memory comes in units of so many bytes on every discrete GPU of today.
const BYTES: u64 = 2 << 20;
/// What is written to it.
const MARK: u8 = 0x5a;

/// What the first two are asked.
#[derive(Serialize, Deserialize)]
enum Question {
    /// Make memory full of zeros: a descriptor of it comes with the answer.
    Make,
    /// Have the memory of the descriptor that comes along: it is full of `finds`; fill it with `leaves`; release it.
    Have { finds: u8, leaves: u8 },
}

/// Whether it does.
///
/// # Errors
/// It does not, or cannot be asked.
pub fn ask() -> Result<(), String> {
    let library = Path::new(LIBRARY);
    let caller = Caller::start(library, null().map_err(|failure| failure.message)?)?;
    if !caller.facts.can_checkpoint {
        return Err("the driver has no checkpoint API".into());
    }
    with(caller, &mut Helper::start(library)?, &mut Helper::start(library)?)
}

fn with(mut caller: Caller, maker: &mut Helper, other: &mut Helper) -> Result<(), String> {
    use messages::Question::{Checkpoint, Lock, Restore, Unlock};
    let memory = maker.ask(&Question::Make, None)?.ok_or("no descriptor of device memory came")?;
    other.ask(&Question::Have { finds: 0, leaves: MARK }, Some(memory.as_fd()))?;
    let pid = other.pid;
    let steps = [
        ("cuCheckpointProcessLock", Lock { pid, timeout_ms: LOCK_MS }),
        ("cuCheckpointProcessCheckpoint", Checkpoint { pid }),
        ("cuCheckpointProcessRestore", Restore { pid, onto: Vec::new() }),
        ("cuCheckpointProcessUnlock", Unlock { pid }),
    ];
    for (function, question) in steps {
        // What is left locked, the caller undoes when its socket is closed.
        caller
            .ask(question, DEADLINE)
            .map_err(|cause| format!("{function} of a process that has had memory of another's: {cause}"))?;
    }
    other.ask(&Question::Have { finds: MARK, leaves: 0 }, Some(memory.as_fd()))?;
    Ok(())
}

/// One of the two.
struct Helper {
    pid: i32,
    socket: Option<OwnedFd>,
}

impl Helper {
    fn start(library: &Path) -> Result<Helper, String> {
        let started = null().and_then(|null| launch("__probe", library, null));
        let (pid, socket) = started.map_err(|failure| failure.message)?;
        Ok(Helper { pid, socket: Some(socket) })
    }

    fn ask(&mut self, question: &Question, along: Option<BorrowedFd<'_>>) -> Result<Option<OwnedFd>, String> {
        // Put back when it has answered.
        let socket = self.socket.take().ok_or("a process has not answered")?;
        let text = serde_json::to_vec(question).map_err(|error| error.to_string())?;
        let along: Vec<_> = along.into_iter().collect();
        scm::send_many(socket.as_fd(), &text, &along)
            .map_err(|error| format!("asking a process: {error}"))?;
        let ready = poll::readable_within(socket.as_fd(), DEADLINE);
        if !ready.map_err(|error| format!("waiting for a process: {error}"))? {
            return Err(format!("no answer in {DEADLINE:?}"));
        }
        let mut buffer = vec![0; messages::LONGEST];
        let received = scm::receive_many(socket.as_fd(), &mut buffer).ok();
        let answer = received.and_then(|(len, files)| {
            Some((serde_json::from_slice::<Answer>(buffer.get(..len)?).ok()?, files))
        });
        self.socket = Some(socket);
        match answer {
            Some((Answer::Failed { why }, _)) => Err(why),
            Some((_, mut files)) => Ok(files.pop()),
            None => Err("a process that uses the driver has ended".into()),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if self.socket.take().is_none() {
            let _ = ptrace::kill(self.pid, libc::SIGKILL);
        }
        spawn::wait_within(self.pid, REAP);
    }
}

/// Answers until the other end is closed.
///
/// # Errors
/// It cannot begin.
pub fn run(args: &CudaArgs) -> Result<(), Failure> {
    let agent = fd::inherited(args.agent).map_err(|error| Failure::system("taking over a socket", &error))?;
    attributes::leave_no_core();
    let device = open(&args.library);
    let mut buffer = vec![0; messages::LONGEST];
    while let Ok((len @ 1.., along)) = scm::receive_many(agent.as_fd(), &mut buffer) {
        let Ok(question) = serde_json::from_slice(&buffer[..len]) else { break };
        let done = device.as_ref().map_err(Clone::clone).and_then(|device| act(device, &question, along));
        let (answer, file) = match done {
            Ok(file) => (Answer::Done, file),
            Err(why) => (Answer::Failed { why }, None),
        };
        let text = serde_json::to_vec(&answer).unwrap_or_default();
        let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
        if scm::send_many(agent.as_fd(), &text, &files).is_err() {
            break;
        }
    }
    Ok(())
}

fn open(library: &Path) -> Result<Device, String> {
    if library.is_absolute() {
        caller::trust(library)?;
    }
    cuda_memory::open(library)?.into_iter().next().ok_or_else(|| "the driver has no device".into())
}

fn act(device: &Device, question: &Question, along: Vec<OwnedFd>) -> Result<Option<OwnedFd>, String> {
    let words = |error: DeviceError| error.to_string();
    match *question {
        Question::Make => {
            let handle = device.create(BYTES).map_err(words)?;
            use_it(device, handle, None, 0)?;
            device.export(handle).map(Some).map_err(words)
        }
        Question::Have { finds, leaves } => {
            let memory = along.into_iter().next().ok_or("no memory came along")?;
            let handle = device.import(memory.as_fd()).map_err(words)?;
            let used = use_it(device, handle, Some(finds), leaves);
            device.release(handle).map_err(words)?;
            used.map(|()| None)
        }
    }
}

fn use_it(device: &Device, handle: u64, finds: Option<u8>, leaves: u8) -> Result<(), String> {
    let words = |error: DeviceError| error.to_string();
    let at = device.map(handle, BYTES).map_err(words)?;
    let used = || -> Result<(), String> {
        let mut there = vec![0; BYTES as usize];
        if let Some(byte) = finds {
            device.to_host(at, &mut there).map_err(words)?;
            if there.iter().any(|found| *found != byte) {
                return Err("memory that was had again has another content".into());
            }
        }
        device.set(at, leaves, BYTES).and_then(|()| device.finish()).map_err(words)
    };
    let used = used();
    device.unmap(at, BYTES).map_err(words)?;
    used
}
