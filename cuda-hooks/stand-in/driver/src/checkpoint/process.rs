//! What a process does when it is asked: the state machine of the checkpoint API. Called by `server` alone, one request
//! at a time.
//!
//! | operation | from | to | refuses, fails, hangs |
//! | --- | --- | --- | --- |
//! | Lock | RUNNING | LOCKED | CUDA_ERROR_NOT_READY after its time: the process is RUNNING (cuda.h) |
//! | Checkpoint | LOCKED | CHECKPOINTED | managed memory, IPC, MPS: NOT_SUPPORTED; multicast: hangs; see there |
//! | Restore | CHECKPOINTED | LOCKED | see `restore`; without memory: every further one too, 304 (driver 580.159.04) |
//! | Unlock | LOCKED | RUNNING | |
//!
//! From any other state: CUDA_ERROR_ILLEGAL_STATE (cuda.h; Unlock of a CHECKPOINTED process too: DMTCP, plugin/cuda).

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::job_file::JobFile;
use super::message::{Operation, Request};
use crate::code::{Answer, Code};
use crate::context::CONTEXTS;
use crate::device;
use crate::entrance;
use crate::memory::heap::{self, Kind};
use crate::memory::{physical, space};
use crate::settings::{Fault, settings};
use crate::shared_device;
use crate::system;
use crate::vmm;

/// `CUprocessState`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// As always.
    Running = 0,
    /// Calls wait.
    Locked = 1,
    /// The process has nothing of the device.
    Checkpointed = 2,
}

struct Process {
    state: State,
    /// A restore has found no memory: nothing helps any more.
    broken: bool,
    /// A checkpoint has found the device full: there will be no other.
    given_up: bool,
    id: i32,
    name: String,
    plumbing: Option<(OwnedFd, OwnedFd, OwnedFd)>,
    job_file: Option<JobFile>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    state: State::Running,
    broken: false,
    given_up: false,
    id: 0,
    name: String::new(),
    plumbing: None,
    job_file: None,
});

/// The driver's pipe and eventfd; called by `cuInit`.
pub fn open() -> std::io::Result<()> {
    let mut process = PROCESS.lock();
    process.plumbing = Some(system::plumbing()?);
    process.job_file = JobFile::of_environment()?;
    process.id = system::process_id();
    Ok(())
}

/// Does what is asked for, and says in which state the process is then.
pub fn handle(request: &Request) -> (Answer, State) {
    let mut process = PROCESS.lock();
    let result = match request.operation {
        Operation::State => Ok(()),
        Operation::Lock => step(&mut process, State::Running, State::Locked, |_| lock(request)),
        Operation::Checkpoint => {
            step(&mut process, State::Locked, State::Checkpointed, |process| checkpoint(process, request))
        }
        Operation::Restore if process.broken => Err(Code::OPERATING_SYSTEM),
        Operation::Restore => {
            let restored =
                step(&mut process, State::Checkpointed, State::Locked, |process| restore(process, request));
            // "after a failed Restore (out of memory) every retry gives 304" (NVIDIA/cuda-checkpoint#44), and the state
            // stays what it was (driver 580.159.04)
            process.broken = restored == Err(Code::OUT_OF_MEMORY);
            restored
        }
        Operation::Unlock => step(&mut process, State::Locked, State::Running, |_| unlock(request)),
    };
    (result, process.state)
}

fn step(process: &mut Process, from: State, to: State, act: impl FnOnce(&mut Process) -> Answer) -> Answer {
    if process.state != from {
        return Err(Code::ILLEGAL_STATE);
    }
    act(process)?;
    process.state = to;
    Ok(())
}

fn hang() -> ! {
    loop {
        std::thread::park();
    }
}

/// "Lock: ... already-submitted CUDA work, including stream callbacks, are completed" (NVIDIA/cuda-checkpoint, README).
/// "If timeoutMs is specified and the timeout is reached the process will be left in the RUNNING state" (cuda.h).
fn lock(request: &Request) -> Answer {
    if request.injected.hangs || settings().strikes(Fault::LockHangs) {
        hang();
    }
    entrance::close();
    let timeout = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms.into()));
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    if request.injected.fails || settings().strikes(Fault::LockTimeout) || !drained(deadline) {
        entrance::open();
        return Err(Code::NOT_READY);
    }
    Ok(())
}

/// Calls that are inside may still submit work, and wait for it: until there are none, and nothing is left to be run.
fn drained(deadline: Option<Instant>) -> bool {
    loop {
        let contexts = CONTEXTS.all();
        if entrance::inside() == 0 && contexts.iter().all(|context| context.is_idle()) {
            return true;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn checkpoint(process: &mut Process, request: &Request) -> Answer {
    if vmm::has_multicast() || request.injected.hangs || settings().strikes(Fault::CheckpointHangs) {
        hang();
    }
    // not supported by 570 and 580: UVM, IPC, MPS (CRIU, plugins/cuda/README; IPC from 610: NVIDIA/cuda-checkpoint#56)
    if heap::any(|kind| kind == Kind::Managed) || vmm::is_shared() || settings().mps {
        return Err(Code::NOT_SUPPORTED);
    }
    // what the result of a failed checkpoint is called, no source says
    if request.injected.fails || settings().strikes(Fault::Checkpoint) {
        return Err(Code::OPERATING_SYSTEM);
    }
    // Driver 580.159.04, with less than 2 MiB free: 2 (out of memory), from then on 999 (unknown), with room again too;
    // that the process stays LOCKED is not verified.
    if process.given_up {
        return Err(Code::UNKNOWN);
    }
    if physical::information()?.0 < physical::GRANULARITY {
        process.given_up = true;
        return Err(Code::OUT_OF_MEMORY);
    }
    process.name = own_name();
    process.job_file.as_mut().map_or(Ok(()), JobFile::add)?;
    let keep = settings().keep_ranges;
    physical::detach(keep)?;
    system::take_a_lock();
    if !keep {
        space::drop_reserved();
    }
    system::trim_heap();
    Ok(())
}

/// The process has to be the one that was checkpointed: same id, same name, the driver's pipes as they were (DMTCP,
/// plugin/cuda); what lies at its addresses is replaced; the device has to be the same or named by a pair, "it must
/// contain every checkpointed GPU" (cuda.h), with enough memory. Which results the real driver gives for each is not
/// verified, but for the lack of memory, and 304 for what the system refuses.
fn restore(process: &mut Process, request: &Request) -> Answer {
    if request.injected.hangs || settings().strikes(Fault::RestoreHangs) {
        hang();
    }
    if request.injected.fails || settings().strikes(Fault::Restore) {
        return Err(Code::OUT_OF_MEMORY);
    }
    let uuid = target(request)?;
    let whole = process.plumbing.as_ref().is_some_and(|(from, to, event)| {
        system::connected(from, to, system::random()) && system::connected(event, event, 1)
    });
    if process.id != system::process_id() || process.name != own_name() || !whole {
        return Err(Code::OPERATING_SYSTEM);
    }
    let kept = settings().keep_ranges;
    if physical::used()? + shared_device::others() > request.memory {
        return Err(Code::OUT_OF_MEMORY);
    }
    if !kept {
        space::take_reserved()?;
    }
    process.job_file.as_mut().map_or(Ok(()), JobFile::take)?;
    physical::attach(request.memory)?;
    device::set_uuid(uuid);
    Ok(())
}

/// The device to restore onto: that of the machine where the request comes from.
fn target(request: &Request) -> Answer<[u8; 16]> {
    let old = device::uuid();
    if request.pairs.is_empty() {
        return if request.uuid == old { Ok(old) } else { Err(Code::INVALID_DEVICE) };
    }
    let new = request.pairs.iter().find(|pair| pair.0 == old).ok_or(Code::INVALID_VALUE)?.1;
    if new == request.uuid { Ok(new) } else { Err(Code::INVALID_DEVICE) }
}

fn unlock(request: &Request) -> Answer {
    if request.injected.fails || settings().strikes(Fault::Unlock) {
        return Err(Code::OPERATING_SYSTEM);
    }
    entrance::open();
    Ok(())
}

/// The name of the process, that of its first thread.
fn own_name() -> String {
    let path = format!("/proc/self/task/{}/comm", system::ids().0);
    std::fs::read_to_string(path).or_else(|_| std::fs::read_to_string("/proc/self/comm")).unwrap_or_default()
}
