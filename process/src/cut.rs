//! One cut: stop, record, freeze, let go; the exact order of ptrace.md, E.
//!
//! Called by the tracer thread. What must hold: whatever fails, every thread goes on with its own registers and mask,
//! and with its interrupted call repaired; then the error is reported.

use crate::capture::files::FileReader;
use crate::capture::identity::Identities;
use crate::capture::maps::{self, Flags, Mapped};
use crate::capture::state::{self, FactCache, ProcessFacts, ThreadFacts};
use crate::describe;
use crate::error::TraceError;
use crate::guard::GuardOptions;
use crate::hold::{self, HeldProgram};
use crate::inject::batch::Host;
use crate::memory::{FrozenMemory, SavedPages};
use crate::ours;
use crate::slots::Slots;
use crate::snapshot::{self, Plan, Planner, Scene, Snapshot};
use crate::stop::{self, Stragglers};
use crate::threads::{self, Continuing, Samples, Thread};
use crate::tracer::{Command, Current, Parked};
use crate::track::Tracking;
use crossbeam_channel::Sender;
use holdfast_image::PageCount;
use holdfast_image::control::SharedPage;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::pages::{Inherited, PageRun};
use holdfast_image::record::{FileTable, InjectArea, LayoutRecord, Limit, PosixTimer, ProcessRecord};
use holdfast_image::set::PageSet;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::procmem::{self, ForcedMemory};
use holdfast_sys::{clone, fault, ptrace};
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Bytes that the buffer for pages copied inside the stop has ready.
const READY_LEN: usize = 16 << 20;

/// The program of a job.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its pid as the agent sees it.
    pub pid: i32,
    /// Where libholdfast reserved room.
    pub area: InjectArea,
    /// Which of its pages were written.
    pub tracking: Arc<Tracking>,
}

/// How the memory of the instant is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// What costs less for the pages that are dirty: copy or fork.
    Auto,
    /// Dirty pages are copied inside the stop.
    Copy,
    /// A frozen copy: the program runs on while it is written.
    Fork,
    /// Large memory is made read-only and copied page by page when the program writes to it; what cannot be done so is
    /// copied inside the stop. Where the engine does not suit: fork.
    Slots,
    /// The program stands still until its image is written (for comparison, and where a clone is refused).
    Sync,
}

/// How to cut.
#[derive(Clone, Debug)]
pub struct CutOptions {
    /// See [`Engine`].
    pub engine: Engine,
    /// Decides between copy and fork, and what the frozen copy goes without.
    pub planner: Planner,
    /// For engine `slots`.
    pub guard: GuardOptions,
    /// Keep the program stopped afterwards: it is to be ended once the image is committed.
    pub hold: bool,
    /// Keep the program held ([`Cut::parked`]) if a frozen copy has more pages than this: it would exceed a small bound
    /// on copies before anybody can look.
    pub park_above: Option<PageCount>,
    /// Store the content of mapped files too.
    pub self_contained: bool,
    /// Folders of the store: private mappings of files below are memory that a lazy restart mapped.
    pub own_files: Vec<PathBuf>,
    /// Longest time from the first interrupt to the last thread's stop.
    pub deadline: Duration,
    /// Store just these ranges.
    pub only: Option<Vec<PageRun>>,
    /// Flush these ranges first.
    pub first: Vec<PageRun>,
    /// Descriptors above 2 that the program was started with: number, device, inode. Pipes and sockets among them
    /// lead outside and are taken from `holdfast restart` again.
    pub inherited: Vec<(i32, u64, u64)>,
}

impl Default for CutOptions {
    fn default() -> CutOptions {
        CutOptions {
            engine: Engine::Fork,
            planner: |_, _, _| Plan::default(),
            guard: GuardOptions::default(),
            hold: false,
            park_above: None,
            self_contained: false,
            own_files: Vec::new(),
            deadline: Duration::from_millis(50),
            only: None,
            first: Vec::new(),
            inherited: Vec::new(),
        }
    }
}

/// What a cut yields.
#[derive(Debug)]
pub struct Cut {
    /// Everything but the pages.
    pub record: ProcessRecord,
    /// Where the stop time went. Of a held program up to the cut: its stop goes on until the memory is dropped.
    pub breakdown: StopBreakdown,
    /// When the program was interrupted.
    pub begun: Instant,
    /// When the program ran on.
    pub resumed_at: Instant,
    /// Engine that was used: "copy", "fork", "slots" or "sync".
    pub engine: &'static str,
    /// The pages to be read, in no order.
    pub dirty: PageSet,
    /// Those of them that the frozen copy keeps: a write of the program to one that is not released yet costs a copy.
    pub frozen: PageSet,
    /// Present pages of tracked memory.
    pub tracked: PageCount,
    /// What the image takes from its parent and from elsewhere.
    pub inherited: Inherited,
    /// Reads the pages.
    pub memory: FrozenMemory,
    /// The program, if it is still held; see [`CutOptions::park_above`].
    pub parked: Option<Parked>,
}

/// Why there is no cut. The program runs on in every case but `Gone`.
#[derive(Debug, Error)]
pub enum CutError {
    /// It holds something that cannot be brought back.
    #[error("{}", reasons.join("\n"))]
    Refused {
        /// One line per object.
        reasons: Vec<String>,
    },
    /// Not now; try again.
    #[error("{what}")]
    Busy {
        /// What was in the way.
        what: String,
    },
    /// The program ended.
    #[error("the program has ended")]
    Gone,
    /// A call failed.
    #[error("{what}")]
    Failed {
        /// Which, and why.
        what: String,
    },
}

impl From<TraceError> for CutError {
    fn from(error: TraceError) -> CutError {
        let what = error.to_string();
        match error {
            TraceError::UnknownCall { .. } | TraceError::Died { .. } => CutError::Busy { what },
            TraceError::Io(error) => error.into(),
            TraceError::Stuck { .. } => CutError::Failed { what },
        }
    }
}
impl From<io::Error> for CutError {
    fn from(error: io::Error) -> CutError {
        let what = error.to_string();
        match error.raw_os_error() {
            // A thread has ended meanwhile; if it was the program, the next try says so.
            Some(libc::ESRCH) => CutError::Busy { what },
            _ => CutError::Failed { what },
        }
    }
}

/// What the tracer keeps from cut to cut.
#[derive(Debug, Default)]
pub struct Kept {
    program: Option<(i32, InjectArea)>,
    /// Continuation slots in the program.
    pub slots: Option<Slots>,
    /// Calls that earlier stops interrupted.
    pub continuing: Continuing,
    facts: FactCache,
    /// Identities of mapped files.
    pub identities: Identities,
}

impl Kept {
    /// Forgets everything when the program is another one (exec, fork).
    pub fn meet(&mut self, target: &Target) {
        let program = (target.pid, target.area);
        if self.program != Some(program) {
            *self = Kept {
                program: Some(program),
                identities: std::mem::take(&mut self.identities),
                ..Kept::default()
            };
        }
    }
}

/// What is read inside the stop.
pub struct Inside {
    /// All threads.
    pub threads: Vec<Thread>,
    /// What they told of themselves.
    pub facts: Vec<ThreadFacts>,
    /// What one told of the process.
    pub process: ProcessFacts,
    /// POSIX timers.
    pub timers: Vec<PosixTimer>,
    /// Signals pending for the process.
    pub shared_pending: Vec<[u8; 128]>,
    /// Mappings.
    pub mapped: Vec<Mapped>,
    /// Open files.
    pub files: FileTable,
    /// Layout of the address space.
    pub layout: LayoutRecord,
    /// Resource limits.
    pub limits: Vec<Limit>,
    /// Status file.
    pub status: Status,
    /// Executable.
    pub exe: Vec<u8>,
    /// Current directory.
    pub cwd: Vec<u8>,
    /// Mappings of files that are stored whole.
    pub whole: Vec<bool>,
    /// Bytes of the vdso.
    pub vdso: Vec<u8>,
    /// The memory.
    pub snapshot: Snapshot,
}

/// Facts looked up before the stop.
pub struct Before {
    /// Flags of mappings.
    pub flags: Flags,
    samples: Samples,
    replaced: HashSet<(Vec<u8>, u64)>,
    pidfd: std::os::fd::OwnedFd,
}

/// What [`make`] yields.
pub struct Made {
    /// For whoever asked.
    pub cut: Cut,
    /// For the tracer: what is kept until the pages are stored.
    pub current: Option<Current>,
    /// For the tracer: the program, held until [`Cut::parked`] is dropped.
    pub parked: Option<HeldProgram>,
}

/// Makes a cut.
///
/// # Errors
/// See [`CutError`].
pub fn make(
    target: &Target,
    options: &CutOptions,
    kept: &mut Kept,
    stragglers: &mut Stragglers,
    commands: &Sender<Command>,
) -> Result<Made, CutError> {
    kept.meet(target);
    let pid = target.pid;
    let before = prepare(target, kept)?;
    let (stopped, begun) = match stop::stop(pid, options.deadline, stragglers) {
        Ok(stopped) => stopped,
        Err(failure) => {
            return Err(hold::let_go_again(failure, target, kept, &before.samples, stragglers));
        }
    };
    let mut breakdown = StopBreakdown {
        stop_ns: elapsed_ns(begun),
        threads: stopped.threads.len() as u64,
        ..Default::default()
    };
    let mut held = HeldProgram { pid, stopped, threads: Vec::new(), host: None };
    let result = inside(target, options, kept, &before, &mut held, &mut breakdown);
    let hold = options.hold || options.engine == Engine::Sync;
    let inside = match result {
        Ok(inside) => inside,
        Err(error) => {
            held.resume(stragglers);
            return Err(error);
        }
    };
    let park = options
        .park_above
        .is_some_and(|most| inside.snapshot.copy.is_some() && inside.snapshot.frozen.pages() > most);
    let (mut held, mut parked) = (Some(held), None);
    if park {
        parked = held.take();
    } else if !hold && let Some(held) = held.take() {
        let resuming = Instant::now();
        held.resume(stragglers);
        breakdown.resume_ns = elapsed_ns(resuming);
    }
    breakdown.total_ns = elapsed_ns(begun);
    let resumed_at = Instant::now();
    let described = match describe::after(target, options, kept, &before, inside, held, commands, stragglers)
    {
        Ok(described) => described,
        Err(error) => {
            if let Some(parked) = parked {
                parked.resume(stragglers);
            }
            return Err(error);
        }
    };
    let describe::Described { record, memory, current, snapshot, inherited } = described;
    let Snapshot { engine, dirty, frozen, present, .. } = snapshot;
    let of_store: u64 = inherited.mapped.iter().map(|mapping| mapping.run.pages.0).sum();
    let tracked = PageCount(present.pages().0 + of_store);
    let handle = parked.is_some().then(|| Parked::new(commands));
    let cut = Cut {
        record,
        breakdown,
        begun,
        resumed_at,
        engine,
        dirty,
        frozen,
        tracked,
        inherited,
        memory,
        parked: handle,
    };
    Ok(Made { cut, current, parked })
}

/// Looks at what needs no stop, and refuses early.
fn prepare(target: &Target, kept: &mut Kept) -> Result<Before, CutError> {
    let pid = target.pid;
    let status = Status::read(pid, pid).map_err(|_| CutError::Gone)?;
    let tids = procfs::tasks(pid).map_err(|_| CutError::Gone)?;
    if status.get("State").is_some_and(|state| state.starts_with(['Z', 'X'])) && tids.len() <= 1 {
        return Err(CutError::Gone);
    }
    let mut reasons = Vec::new();
    if !target.area.is_valid() {
        reasons.push(format!("process {pid}: its libholdfast told no usable room for the agent"));
    }
    if status.number("Seccomp").is_some_and(|mode| mode != 0) {
        reasons.push(format!("process {pid}: it runs under a seccomp filter, which is not supported yet"));
    }
    let leader_only = |status: &Status| status.number("TracerPid").filter(|&tracer| tracer != 0);
    if let Some(tracer) = leader_only(&status) {
        if stop::is_own_thread(tracer) {
            return Err(CutError::Busy {
                what: "a thread is still being let go from the stop before".into(),
            });
        }
        reasons.push(format!("process {pid}: traced by process {tracer} (a debugger?)"));
    }
    refuse_children(pid, &mut reasons);
    if !reasons.is_empty() {
        return Err(CutError::Refused { reasons });
    }
    let (flags, maps) = procfs::by_any_thread(pid, |tid| {
        let flags = procfs::vm_flags(pid, tid).ok().filter(|flags| !flags.is_empty())?;
        Some((flags, procfs::maps(pid, tid).ok()?))
    })
    .map_err(|_| CutError::Gone)?;
    let replaced = maps::replaced(&maps, &mut kept.identities);
    let pidfd = clone::pidfd_open(pid).map_err(|_| CutError::Gone)?;
    SavedPages::warm(READY_LEN);
    Ok(Before { flags, samples: threads::sample(pid), replaced, pidfd })
}

fn refuse_children(pid: i32, reasons: &mut Vec<String>) {
    for child in procfs::children(pid).unwrap_or_default() {
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        reasons.push(format!("process {child} ({}): child processes are not supported yet", name.trim()));
    }
}

/// Everything between stop and resume. On error the caller resumes.
fn inside(
    target: &Target,
    options: &CutOptions,
    kept: &mut Kept,
    before: &Before,
    held: &mut HeldProgram,
    breakdown: &mut StopBreakdown,
) -> Result<Inside, CutError> {
    let (pid, area) = (target.pid, &target.area);
    let mut clock = Instant::now();
    let mut lap = |slot: &mut u64| {
        *slot += elapsed_ns(clock);
        clock = Instant::now();
    };
    let live = held.living().ok_or(CutError::Gone)?;
    let mapped = maps::classify(procfs::maps(pid, live)?, &before.flags, &options.own_files)
        .map_err(|reasons| CutError::Refused { reasons })?;
    breakdown.regions = mapped.len() as u64;
    if !ours::is_ours(live, area, mapped.iter().map(|m| &m.mapping)) {
        let what = "the program has executed another program, whose libholdfast has not spoken yet".into();
        return Err(CutError::Busy { what });
    }
    lap(&mut breakdown.maps_ns);

    let status = Status::read(pid, live)?;
    let mut reasons = Vec::new();
    refuse_children(pid, &mut reasons);
    if !reasons.is_empty() {
        return Err(CutError::Refused { reasons });
    }
    held.threads = hold::read_threads(pid, &held.stopped, &status)?;
    let leader = status.innermost("NStgid").unwrap_or(pid);
    if !held.threads.iter().any(|thread| thread.inner == leader) {
        let reasons =
            vec![format!("thread {leader}: the main thread has ended while others run; not supported yet")];
        return Err(CutError::Refused { reasons });
    }
    let shared_pending = ptrace::pending_signals(live, true)?;
    fault::point("registers");
    lap(&mut breakdown.threads_ns);

    let memory = ForcedMemory::open(pid, live)?;
    ours::ready_stub(&memory, area)?;
    hold::collect_slots(target, kept, &memory, held)?;
    hold::repair_calls(target, kept, &before.samples, &memory, held, &shared_pending)?;
    let (facts, host) = ask_threads(target, kept, held, &status, &shared_pending)?;
    held.host = Some(host.clone());
    let handled = status.mask("SigCgt") | status.mask("SigIgn");
    let process = state::ask_process(&host, area, handled)?;
    let inner = |tid| held.threads.iter().find(|thread| thread.tid == tid).map_or(tid, |thread| thread.inner);
    let timers = state::ask_timers(pid, &host, area, inner)?;
    lap(&mut breakdown.inject_ns);

    let own = ours::own_descriptor(live, area)?;
    let files = FileReader::new((pid, leader), live, &before.pidfd, own, &options.inherited)?
        .table()
        .map_err(|reasons| CutError::Refused { reasons })?;
    let layout = state::layout(pid, live, process.brk)?;
    let limits = state::limits(pid);
    let exe = procfs::link(&format!("/proc/{pid}/exe"))?;
    let cwd = procfs::link(&format!("/proc/{pid}/cwd"))?;
    if cwd.ends_with(b" (deleted)") {
        let reasons = vec![format!("current directory {}: it was deleted", String::from_utf8_lossy(&cwd))];
        return Err(CutError::Refused { reasons });
    }
    let vdso = ours::read_vdso(live, mapped.iter().map(|m| &m.mapping))?;
    lap(&mut breakdown.files_ns);

    let whole = maps::stored_whole(&mapped, options.self_contained, &before.replaced);
    let scene = Scene {
        target,
        options,
        live,
        memory: &memory,
        host: &host,
        mapped: &mapped,
        whole: &whole,
        flags_known: maps::all_known(&mapped, &before.flags),
        threads: &held.threads,
        facts: &facts,
        process: &process,
    };
    let snapshot = snapshot::take(&scene, breakdown)?;
    let threads = held.threads.clone();
    Ok(Inside {
        threads,
        facts,
        process,
        timers,
        shared_pending,
        mapped,
        files,
        layout,
        limits,
        status,
        exe,
        cwd,
        whole,
        vdso,
        snapshot,
    })
}

/// Asks new threads for what only they know; returns that of all, and the thread for further calls.
fn ask_threads(
    target: &Target,
    kept: &mut Kept,
    held: &mut HeldProgram,
    status: &Status,
    shared_pending: &[[u8; 128]],
) -> Result<(Vec<ThreadFacts>, Host), CutError> {
    let inner_pid = status.innermost("NStgid").unwrap_or(target.pid);
    let caught = status.mask("SigCgt");
    let shared = threads::pending_mask(shared_pending);
    let no_marker = |tid: i32| CutError::Refused {
        reasons: vec![format!(
            "thread {tid}: the program handles SIGURG, SIGWINCH and SIGCHLD all at once; no signal is left for the agent"
        )],
    };
    let generation = match target.area.shared.0 {
        0 => 0,
        shared => procmem::read_u64(held.threads[0].tid, shared + SharedPage::ALTSTACK_GENERATION as u64)?,
    };
    kept.facts.renew(generation);
    let mut facts = Vec::with_capacity(held.threads.len());
    let mut chosen = None;
    for thread in &held.threads {
        let known = kept.facts.get(thread);
        let host = if known.is_none() || chosen.is_none() {
            thread.host(target.pid, inner_pid, caught, shared)
        } else {
            None
        };
        let fact = match known {
            Some(fact) => fact,
            None => {
                let host = host.as_ref().ok_or_else(|| no_marker(thread.tid))?;
                held.host = Some(host.clone());
                let fact = kept.facts.ask(host, &target.area, thread)?;
                held.host = None;
                fact
            }
        };
        facts.push(fact);
        chosen = chosen.or(host);
    }
    let first = held.threads.first().map_or(0, |thread| thread.tid);
    Ok((facts, chosen.ok_or_else(|| no_marker(first))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_no_reason_to_give_up() {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        assert!(matches!(CutError::from(gone()), CutError::Busy { .. }));
        assert!(matches!(CutError::from(TraceError::Io(gone())), CutError::Busy { .. }));
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert!(matches!(CutError::from(full), CutError::Failed { .. }));
    }
}
