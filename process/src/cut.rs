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
use crate::freeze;
use crate::inject::batch::Host;
use crate::inject::stub;
use crate::memory::{FrozenMemory, SavedPages};
use crate::slots::Slots;
use crate::stop::{self, StopFailure, Stopped, Stragglers};
use crate::threads::{self, Continuing, Repairer, Samples, Thread};
use crate::tracer::{Command, Current};
use crossbeam_channel::Sender;
use holdfast_image::control::SharedPage;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{FileTable, InjectArea, LayoutRecord, Limit, PosixTimer, ProcessRecord};
use holdfast_sys::procfs::{self, Status};
use holdfast_sys::procmem::{self, ForcedMemory};
use holdfast_sys::ptrace;
use holdfast_sys::{clone, fault};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The program of a job.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its pid as the agent sees it.
    pub pid: i32,
    /// Where libholdfast reserved room.
    pub area: InjectArea,
}

/// How the memory of the instant is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// A frozen copy: the program runs on while it is written.
    Fork,
    /// The program stands still until its image is written (for comparison, and where a clone is refused).
    Sync,
}

/// How to cut.
#[derive(Clone, Debug)]
pub struct CutOptions {
    /// See [`Engine`].
    pub engine: Engine,
    /// Keep the program stopped afterwards: it is to be ended once the image is committed.
    pub hold: bool,
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
            hold: false,
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
    /// The pages.
    pub memory: FrozenMemory,
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
            TraceError::Io(_) | TraceError::Stuck { .. } => CutError::Failed { what },
        }
    }
}
impl From<io::Error> for CutError {
    fn from(error: io::Error) -> CutError {
        CutError::Failed { what: error.to_string() }
    }
}

/// What the tracer keeps from cut to cut.
#[derive(Debug, Default)]
pub struct Kept {
    program: Option<(i32, InjectArea)>,
    slots: Option<Slots>,
    continuing: Continuing,
    facts: FactCache,
    /// Identities of mapped files.
    pub identities: Identities,
}

impl Kept {
    /// Forgets everything when the program is another one (exec, fork).
    fn meet(&mut self, target: &Target) {
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

/// A stopped program.
#[derive(Debug)]
pub struct HeldProgram {
    pid: i32,
    stopped: Stopped,
    threads: Vec<Thread>,
    /// The thread that calls were injected into: mask and registers must be put back.
    host: Option<Host>,
}

impl HeldProgram {
    /// Puts every thread back and lets it go.
    pub fn resume(self, stragglers: &mut Stragglers) {
        if let Some(host) = &self.host
            && let Err(error) = host.put_back()
        {
            tracing::debug!(tid = host.tid, %error, "putting a thread back");
        }
        fault::point("resume");
        let computing: Vec<i32> =
            self.threads.iter().filter(|thread| !thread.in_call()).map(|thread| thread.tid).collect();
        stragglers.add(self.stopped.let_go(&computing));
        fault::point("resumed");
    }

    /// Any of its threads.
    pub fn living(&self) -> Option<i32> {
        self.stopped.threads.keys().next().copied()
    }

    /// Ends the program.
    pub fn kill(self, stragglers: &mut Stragglers) {
        let _ = ptrace::kill(self.pid, libc::SIGKILL);
        stragglers.add(self.stopped.let_go(&[]));
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
    /// Pages that a clone does not freeze.
    pub saved: SavedPages,
    /// Bytes of the vdso.
    pub vdso: Vec<u8>,
    /// The frozen copy, unless the program is held.
    pub copy: Option<freeze::Copy>,
}

/// Facts looked up before the stop.
struct Before {
    flags: Flags,
    samples: Samples,
    pidfd: std::os::fd::OwnedFd,
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
) -> Result<(Cut, Current), CutError> {
    kept.meet(target);
    let pid = target.pid;
    let before = prepare(target)?;
    let (stopped, begun) =
        stop::stop(pid, options.deadline, stragglers).map_err(|failure| match failure {
            StopFailure::Gone => CutError::Gone,
            StopFailure::Refused(reason) => CutError::Refused { reasons: vec![reason] },
            StopFailure::Late(what) => CutError::Busy { what },
        })?;
    let mut breakdown =
        StopBreakdown { stop_ns: ns(begun), threads: stopped.threads.len() as u64, ..Default::default() };
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
    let mut held = Some(held);
    if !hold && let Some(held) = held.take() {
        let resuming = Instant::now();
        held.resume(stragglers);
        breakdown.resume_ns = ns(resuming);
    }
    breakdown.total_ns = ns(begun);
    let resumed_at = Instant::now();
    match describe::after(target, options, kept, inside, held, commands, stragglers) {
        Ok((record, memory, current)) => Ok((Cut { record, breakdown, begun, resumed_at, memory }, current)),
        Err(error) => Err(error),
    }
}

fn ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Looks at what needs no stop, and refuses early.
fn prepare(target: &Target) -> Result<Before, CutError> {
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
        if u32::try_from(tracer) == Ok(std::process::id()) {
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
    // A zombie leader has no memory of its own to look at: ask through any living thread.
    let flags = tids
        .iter()
        .find_map(|&tid| maps::flags_of(pid, tid).ok().filter(|flags| !flags.is_empty()))
        .ok_or(CutError::Gone)?;
    let pidfd = clone::pidfd_open(pid).map_err(|_| CutError::Gone)?;
    Ok(Before { flags, samples: threads::sample(pid), pidfd })
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
        *slot += ns(clock);
        clock = Instant::now();
    };
    let live = held.living().ok_or(CutError::Gone)?;
    let mapped = maps::classify(procfs::maps(pid, live)?, &before.flags, &options.own_files)
        .map_err(|reasons| CutError::Refused { reasons })?;
    breakdown.regions = mapped.len() as u64;
    if !is_ours(live, area, &mapped) {
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
    held.threads = read_threads(pid, &held.stopped, &status)?;
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
    ready_stub(&memory, area)?;
    repair_calls(target, kept, before, &memory, held, &shared_pending)?;
    let (facts, host) = ask_threads(target, kept, held, &status, &shared_pending)?;
    held.host = Some(host.clone());
    let handled = status.mask("SigCgt") | status.mask("SigIgn");
    let process = state::ask_process(&host, area, handled)?;
    let inner = |tid| held.threads.iter().find(|thread| thread.tid == tid).map_or(tid, |thread| thread.inner);
    let timers = state::ask_timers(pid, &host, area, inner)?;
    lap(&mut breakdown.inject_ns);

    let own = own_descriptor(live, area)?;
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
    lap(&mut breakdown.files_ns);

    let pagemap = File::open(format!("/proc/{pid}/task/{live}/pagemap"))?;
    let saved = maps::save_special(live, &pagemap, &mapped)?;
    let vdso = read_vdso(live, &mapped)?;
    lap(&mut breakdown.copy_ns);

    let hold = options.hold || options.engine == Engine::Sync;
    let copy = if hold { None } else { Some(freeze::freeze(&host, area)?) };
    lap(&mut breakdown.clone_ns);
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
        saved,
        vdso,
        copy,
    })
}

fn read_threads(pid: i32, stopped: &Stopped, status: &Status) -> Result<Vec<Thread>, TraceError> {
    let nested = status.get("NSpid").is_some_and(|ids| ids.split_whitespace().count() > 1);
    let mut all = Vec::with_capacity(stopped.threads.len());
    let mut buffer = vec![0_u8; threads::XSTATE_ROOM];
    for (&tid, held) in &stopped.threads {
        let inner = if nested { Status::read(pid, tid)?.innermost("NSpid").unwrap_or(tid) } else { tid };
        let mut thread = threads::read(tid, inner, held.group_stopped, &mut buffer)?;
        thread.leave_rseq()?;
        all.push(thread);
    }
    Ok(all)
}

/// Whether the area is still the one that the library told: an exec leaves the address without meaning, and what lies
/// there now must not be written to.
fn is_ours(tid: i32, area: &InjectArea, mapped: &[Mapped]) -> bool {
    const READ_EXECUTE: u32 = 5;
    const READ_WRITE: u32 = 3;
    // A lazy restart may have made several mappings of a range.
    let lies_in = |start: u64, len: u64, prot: u32| {
        let fits = |m: &&Mapped| !m.mapping.shared && m.mapping.prot == prot;
        let reach = mapped.iter().filter(fits).fold(start, |reach, mapped| {
            if mapped.mapping.start <= reach { reach.max(mapped.mapping.end) } else { reach }
        });
        reach >= start + len
    };
    let mut magic = [0_u8; 8];
    let named = area.shared.0 == 0
        || procmem::read(tid, area.shared.0 + SharedPage::MAGIC as u64, &mut magic).is_ok()
            && &magic == b"HOLDFAST";
    named
        && lies_in(area.code.0, area.code_len, READ_EXECUTE)
        && lies_in(area.scratch.0, area.scratch_len, READ_WRITE)
}

/// Puts the stub into the program's code range, unless it is there already.
fn ready_stub(memory: &ForcedMemory, area: &InjectArea) -> io::Result<()> {
    let code = stub::code();
    let mut there = vec![0_u8; code.len()];
    memory.read(area.code.0, &mut there)?;
    if there != code {
        memory.write(area.code.0, code)?;
    }
    Ok(())
}

fn repair_calls(
    target: &Target,
    kept: &mut Kept,
    before: &Before,
    memory: &ForcedMemory,
    held: &mut HeldProgram,
    shared_pending: &[[u8; 128]],
) -> Result<(), CutError> {
    let slots = match &mut kept.slots {
        Some(slots) => slots,
        None => kept.slots.insert(Slots::load(memory, &target.area)?),
    };
    let places: Vec<(i32, u64, u64)> =
        held.threads.iter().map(|t| (t.inner, t.regs.rip, t.regs.rsp)).collect();
    slots.collect(&target.area, &places);
    let mut repairer = Repairer {
        pid: target.pid,
        area: &target.area,
        memory,
        slots,
        samples: &before.samples,
        continuing: &mut kept.continuing,
        shared_pending: threads::pending_mask(shared_pending),
    };
    // A failure for one thread must not keep the others from being repaired.
    let mut failure = Ok(());
    for thread in &mut held.threads {
        if let Err(error) = repairer.repair(thread) {
            failure = Err(error);
        }
        // At once: from here on the agent may die, and the thread goes on as if nothing had been.
        if let Some(regs) = &thread.repaired
            && let Err(error) = ptrace::set_registers(thread.tid, regs)
        {
            failure = Err(error.into());
        }
    }
    failure.map_err(CutError::from)
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
    let mut word = [0_u8; 8];
    if target.area.shared.0 != 0 {
        let at = target.area.shared.0 + SharedPage::ALTSTACK_GENERATION as u64;
        procmem::read(held.threads[0].tid, at, &mut word)?;
    }
    kept.facts.renew(u64::from_le_bytes(word));
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

/// Number of the library's own connection, if it is waiting for us.
fn own_descriptor(tid: i32, area: &InjectArea) -> Result<Option<i32>, CutError> {
    /// The library is opening or closing descriptors of its own at this instant.
    const CHANGING: u64 = u64::MAX;
    if area.shared.0 == 0 {
        return Ok(None);
    }
    let mut word = [0_u8; 8];
    procmem::read(tid, area.shared.0 + SharedPage::WALKERS as u64, &mut word)?;
    if u64::from_le_bytes(word) != 0 {
        return Err(CutError::Busy { what: "libholdfast is looking at the program's mappings".into() });
    }
    procmem::read(tid, area.shared.0 + SharedPage::OWN_FD as u64, &mut word)?;
    match u64::from_le_bytes(word) {
        CHANGING => Err(CutError::Busy { what: "libholdfast is connecting to the agent".into() }),
        number => {
            Ok(i32::try_from(number).ok().and_then(|number| number.checked_sub(1)).filter(|&fd| fd >= 0))
        }
    }
}

fn read_vdso(tid: i32, mapped: &[Mapped]) -> Result<Vec<u8>, TraceError> {
    let Some(vdso) = mapped.iter().find(|m| m.mapping.name == b"[vdso]") else { return Ok(Vec::new()) };
    let mut bytes = vec![0_u8; usize::try_from(vdso.mapping.end - vdso.mapping.start).unwrap_or(0)];
    procmem::read(tid, vdso.mapping.start, &mut bytes)?;
    Ok(bytes)
}
