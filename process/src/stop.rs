//! Stopping all threads of a process, and letting them go.
//!
//! Called by the tracer thread only. What must hold afterwards, whatever fails: every thread that was seized is either
//! detached or in the list of stragglers, which the tracer thread detaches as soon as they stop (a thread inside vfork
//! or a long uninterruptible call cannot be detached before; ptrace.md, D).

use crate::inject::batch::pause;
use holdfast_sys::ptrace::{self, Wait};
use holdfast_sys::{fault, procfs};
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD;
/// Longest wait for a thread that has no processor.
const STARVED: Duration = Duration::from_millis(500);

/// A thread in an event stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// In a group stop (job control).
    pub group_stopped: bool,
}

/// All threads of a process, stopped.
#[derive(Debug, Default)]
pub struct Stopped {
    /// By thread id.
    pub threads: BTreeMap<i32, Held>,
}

/// Threads that could not be stopped in time: seized, interrupted, to be detached when they stop.
#[derive(Debug, Default)]
pub struct Stragglers(Vec<i32>);

impl Stragglers {
    /// Detaches those that have stopped meanwhile. Called by the tracer thread whenever it is idle.
    pub fn tend(&mut self) {
        self.0.retain(|&tid| match ptrace::wait(tid, false) {
            Ok(Wait::Nothing) => true,
            Ok(Wait::Signal(signal)) => ptrace::detach(tid, signal).is_err(),
            Ok(Wait::Exited(_)) | Err(_) => false,
            Ok(_) => ptrace::detach(tid, 0).is_err(),
        });
    }
    /// Adds threads that were killed while they stood still: a tracer must take note of their end, or the program's
    /// parent never hears of its end (ptrace(2), "Death under ptrace").
    pub fn add(&mut self, tids: Vec<i32>) {
        for &tid in &tids {
            let _ = ptrace::interrupt(tid); // one that still runs (an injected call that never came back)
        }
        self.0.extend(tids);
        self.tend();
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Why a stop did not come about.
#[derive(Debug)]
pub enum StopFailure {
    /// The process is gone.
    Gone,
    /// Somebody else traces it, or it is not ours.
    Refused(String),
    /// The deadline passed.
    Late {
        /// What was waited for.
        what: String,
        /// Threads that did stop: their calls must be repaired before they are let go.
        partly: Stopped,
    },
}

/// Seizes and interrupts every thread until the task list is stable. `begun` is set at the first interrupt: from then
/// on the program stands still.
///
/// # Errors
/// After an error nothing is stopped but what [`StopFailure::Late`] names: the rest was let go, or is in `stragglers`.
pub fn stop(
    pid: i32,
    limit: Duration,
    stragglers: &mut Stragglers,
) -> Result<(Stopped, Instant), StopFailure> {
    let mut seized: BTreeMap<i32, Option<Held>> = BTreeMap::new();
    let mut begun: Option<Instant> = None;
    let result = stop_all(pid, limit, &mut seized, &mut begun);
    let threads: BTreeMap<i32, Held> =
        seized.iter().filter_map(|(&tid, held)| Some((tid, (*held)?))).collect();
    match result {
        Ok(()) if threads.is_empty() => Err(StopFailure::Gone),
        Ok(()) => Ok((Stopped { threads }, begun.unwrap_or_else(Instant::now))),
        Err(failure) => {
            let late = seized.iter().filter(|(_, held)| held.is_none()).map(|(&tid, _)| tid);
            for tid in late {
                let _ = ptrace::interrupt(tid);
                stragglers.0.push(tid);
            }
            stragglers.tend();
            match failure {
                StopFailure::Late { what, .. } => {
                    Err(StopFailure::Late { what, partly: Stopped { threads } })
                }
                failure => {
                    stragglers.0.extend(Stopped { threads }.let_go(&[]));
                    Err(failure)
                }
            }
        }
    }
}

fn stop_all(
    pid: i32,
    limit: Duration,
    seized: &mut BTreeMap<i32, Option<Held>>,
    begun: &mut Option<Instant>,
) -> Result<(), StopFailure> {
    // Seizing does not stop: do it for all before the first interrupt.
    let mut fresh = seize_new(pid, seized)?;
    fault::point("seized");
    loop {
        let start = *begun.get_or_insert_with(Instant::now);
        for &tid in &fresh {
            let _ = ptrace::interrupt(tid); // gone threads are noticed by the wait
        }
        fault::point("interrupted");
        for &tid in &fresh {
            match wait_stopped(pid, tid, start, limit) {
                Ok(Some(held)) => {
                    seized.insert(tid, Some(held));
                }
                Ok(None) => {
                    seized.remove(&tid);
                }
                Err(()) => {
                    let what = describe(pid, tid, limit);
                    return Err(StopFailure::Late { what, partly: Stopped::default() });
                }
            }
        }
        // A thread that was running may have made new ones before it stopped.
        fresh = seize_new(pid, seized)?;
        if fresh.is_empty() {
            fault::point("stopped");
            return Ok(());
        }
    }
}

/// Seizes all threads that are not yet; returns them.
fn seize_new(pid: i32, seized: &mut BTreeMap<i32, Option<Held>>) -> Result<Vec<i32>, StopFailure> {
    let mut fresh = Vec::new();
    let tasks = procfs::tasks(pid).map_err(|_| StopFailure::Gone)?;
    for tid in tasks {
        if seized.contains_key(&tid) {
            continue;
        }
        match ptrace::seize(tid, OPTIONS) {
            Ok(()) => {
                seized.insert(tid, None);
                fresh.push(tid);
            }
            // Exiting threads, and a zombie leader, cannot be seized: normal.
            Err(error) if is_ending(pid, tid) => {
                tracing::debug!(tid, %error, "thread is ending");
            }
            Err(error) => return Err(refused(pid, tid, &error)),
        }
    }
    Ok(fresh)
}

fn is_ending(pid: i32, tid: i32) -> bool {
    procfs::Status::read(pid, tid)
        .map(|status| status.get("State").is_none_or(|state| state.starts_with(['Z', 'X'])))
        .unwrap_or(true)
}

/// Whether a tracer, as `TracerPid` tells it (a thread), is one of this process.
pub fn is_own_thread(tracer: i64) -> bool {
    std::fs::exists(format!("/proc/self/task/{tracer}")).unwrap_or(false)
}

fn refused(pid: i32, tid: i32, error: &io::Error) -> StopFailure {
    let tracer =
        procfs::Status::read(pid, tid).ok().and_then(|status| status.number("TracerPid")).unwrap_or(0);
    if is_own_thread(tracer) {
        let what = format!("thread {tid} is still being let go from the stop before");
        return StopFailure::Late { what, partly: Stopped::default() };
    }
    if tracer != 0 {
        return StopFailure::Refused(format!(
            "thread {tid} is traced by process {tracer} (a debugger?): end that first"
        ));
    }
    StopFailure::Refused(format!(
        "thread {tid} cannot be traced: {error}. `holdfast doctor` says what this system allows"
    ))
}

/// Waits until one thread stands in an event stop. `Ok(None)`: it ended. `Err(())`: too late.
///
/// A thread that is ready to run and has no processor gets more time: what keeps it from stopping keeps it from running
/// too.
fn wait_stopped(pid: i32, tid: i32, start: Instant, limit: Duration) -> Result<Option<Held>, ()> {
    let mut limit = limit;
    loop {
        match ptrace::wait(tid, false) {
            Ok(Wait::Nothing) if start.elapsed() > limit => {
                let state = procfs::stat_fields(pid, tid).ok().and_then(|fields| fields.into_iter().next());
                if state.is_none_or(|state| state != "R") || start.elapsed() > STARVED {
                    return Err(());
                }
                limit = start.elapsed() + Duration::from_millis(2);
            }
            Ok(Wait::Nothing) => pause(start),
            Ok(Wait::Interrupted) => return Ok(Some(Held { group_stopped: false })),
            Ok(Wait::GroupStop(_)) => return Ok(Some(Held { group_stopped: true })),
            // A signal came first: let it be delivered; the event stop follows (ptrace.md, D).
            Ok(Wait::Signal(signal)) => {
                let _ = ptrace::cont(tid, signal);
            }
            Ok(Wait::Syscall | Wait::Event(_)) => {
                let _ = ptrace::cont(tid, 0);
            }
            Ok(Wait::Exited(_)) | Err(_) => return Ok(None),
        }
    }
}

/// Names a thread that did not stop, and what it is doing.
fn describe(pid: i32, tid: i32, limit: Duration) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default();
    format!("thread {tid} ({}) did not stop within {} ms (in {call})", name.trim(), limit.as_millis())
}

impl Stopped {
    /// Lets all threads go: sleepers first, those in user code last, because each woken one may take the agent's
    /// processor (ptrace.md, A.1). `computing`: threads to go last. Returns those that were killed meanwhile, for
    /// [`Stragglers::add`].
    pub fn let_go(&self, computing: &[i32]) -> Vec<i32> {
        let mut killed = Vec::new();
        for &tid in self.threads.keys().filter(|tid| !computing.contains(tid)).chain(computing) {
            if let Err(error) = ptrace::detach(tid, 0) {
                tracing::debug!(tid, %error, "detach");
                killed.push(tid);
            }
        }
        killed
    }
}
