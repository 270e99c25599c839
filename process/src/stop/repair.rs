//! The first two steps inside a stop, for each process: is it still the one that is known, and its calls are repaired.
//!
//! Called by `job::stopped_group`: [`inspect`] by any thread, [`repair`] by the tracer thread.
//! What must hold: after [`repair`] the process may be resumed at any time, and its calls go on as if nothing had been.
//! Fails by: [`CutError`]; the caller resumes all processes.

use crate::capture::hardlinks;
use crate::error::CutError;
use crate::inject::area;
use crate::job::target::Target;
use crate::job::tracer_state::Kept;
use crate::refuse;
use crate::stop::resume::{self, StoppedProgram};
use crate::stop::stages::{Inspected, Repaired};
use crate::stop::task_files::TaskFiles;
use crate::stop::threads::Samples;
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::{fault, ptrace};

/// Whether a stopped process is still the one that is known. `tids`: all its threads. By any thread of ours.
///
/// # Errors
/// It has ended or executed another program.
pub fn inspect(target: &Target, tids: &[i32], files: &TaskFiles) -> Result<Inspected, CutError> {
    let (pid, area) = (target.pid, &target.area);
    let &live = tids.first().ok_or(CutError::Gone)?;
    let mut maps = procfs::maps(pid, live)?;
    hardlinks::name_mappings(&mut maps);
    if !area::is_ours(live, area, maps.iter()) {
        return Err(CutError::Unsettled(vec![refuse::process(pid, area::NOT_OURS)]));
    }
    let status = Status::read(pid, live)?;
    let memory = ForcedMemory::open(pid, live)?;
    let tasks = files.look(pid, tids);
    if let Some(tid) = tids.iter().find(|tid| !tasks.contains_key(tid)) {
        return Err(CutError::Busy {
            what: format!("thread {tid} has ended, or its files in /proc cannot be read"),
        });
    }
    Ok(Inspected { live, maps, status, memory, tasks })
}

/// Repairs the calls that the stop has interrupted. Its threads were read.
///
/// # Errors
/// The process has ended; a call that cannot be repaired.
pub fn repair(
    target: &Target,
    kept: &mut Kept,
    samples: &Samples,
    held: &mut StoppedProgram,
    inspected: Inspected,
) -> Result<Repaired, CutError> {
    let pid = target.pid;
    let children = inspected.children();
    let Inspected { live, maps, status, memory, tasks } = inspected;
    let shared_pending = ptrace::pending_signals(live, true)?;
    fault::point("registers");
    // By this thread: some kernels let only the tracer write where the program may not (fs/proc/base.c,
    // proc_mem_foll_force).
    area::ready_stub(&memory, &target.area)?;
    resume::collect_slots(target, kept, &memory, held)?;
    resume::repair_calls(target, kept, samples, &memory, held, &shared_pending)?;
    let inner_pid = status.innermost("NStgid").unwrap_or(pid);
    let comms = tasks.into_iter().map(|(tid, told)| (tid, told.comm)).collect();
    Ok(Repaired { live, maps, children, status, inner_pid, shared_pending, comms, memory })
}
