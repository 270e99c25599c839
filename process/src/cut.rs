//! One cut: stop, record, freeze, let go; the exact order of ptrace.md, E. All processes of a job together.
//!
//! Called by the tracer thread. What must hold: whatever fails, every thread goes on with its own registers and mask,
//! and with its interrupted call repaired; then the error is reported. What one process looks like inside the stop is
//! the business of [`inside`].

use crate::capture::build_record;
use crate::capture::capture_job;
use crate::capture::contents::Contents;
use crate::capture::hardlinks;
use crate::capture::identity::Identities;
use crate::capture::maps::{self, Flags};
use crate::capture::state::FactCache;
use crate::error::TraceError;
use crate::freeze::engine::{Plan, Planner};
use crate::freeze::frozen_memory::{FrozenMemory, SavedPages};
use crate::freeze::guard::GuardOptions;
use crate::job::adopt::{self, Adopted};
use crate::job::names::Names;
use crate::job::process_age;
use crate::job::stopped_group::StoppedGroup;
use crate::rebuild::Common;
use crate::refuse;
use crate::stop::continuation::Slots;
use crate::stop::interrupt::{self, Stragglers, Whom};
use crate::stop::resume::{self, HeldProgram};
use crate::stop::task_files::TaskFiles;
use crate::stop::threads::{self, Continuing, Samples};
use crate::thread_pool;
use crate::tracer::{Command, Current, Parked};
use crate::track::tracking::Tracking;
use crossbeam_channel::Sender;
use holdfast_image::PageCount;
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{Inherited, PageRun};
use holdfast_image::processor::CpuLevel;
use holdfast_image::record::{InjectArea, ProcessRecord};
use holdfast_image::refusal::Refusal;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::clone;
use holdfast_sys::procfs::{self, Status};
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Bytes that the buffer for pages copied inside the stop has ready, at least and at most, and for how much of a program: fresh memory
/// takes ten times as long to fill (43 MB: 95 ms instead of 8, on a virtual machine).
const READY_LEN: (usize, usize) = (2 << 20, 256 << 20);
const READY_SHARE: u64 = 64;
/// A process that is older does not end at once, mostly.
const YOUNG: Duration = Duration::from_secs(2);

/// A process of a job.
#[derive(Clone, Debug)]
pub struct Target {
    /// Its pid as the agent sees it.
    pub pid: i32,
    /// Number of its address space; no other process of the job has it.
    pub space: u32,
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
    /// What the program was told to keep to.
    pub baseline: Option<CpuLevel>,
    /// Socket of the agent: the environment of all processes of the job names it.
    pub socket: PathBuf,
    /// Mappings of the program change all the time: their flags are looked at inside the stop.
    pub changing: bool,
    /// Folders of the store, and [`Common::shown`]: private mappings of files there are memory that a restart mapped.
    pub own_files: Vec<PathBuf>,
    /// What the restart before has put where all processes map it.
    pub common: Option<Arc<Common>>,
    /// Longest time from the first interrupt to the last thread's stop.
    pub deadline: Duration,
    /// Store just these ranges.
    pub only: Option<Vec<PageRun>>,
    /// Flush these ranges first.
    pub first: Vec<PageRun>,
    /// Descriptors above 2 that the program was started with: number, device, inode. Pipes and sockets among them
    /// lead outside and are taken from `holdfast restart` again.
    pub inherited: Vec<(i32, u64, u64)>,
    /// TCP connections to peers outside are lost at a restart, instead of refused.
    pub lose_connections: bool,
    /// What is in files that the programs write is part of the image.
    pub contents: Option<Arc<Contents>>,
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
            baseline: None,
            socket: PathBuf::new(),
            changing: false,
            own_files: Vec::new(),
            common: None,
            deadline: Duration::from_millis(50),
            only: None,
            first: Vec::new(),
            inherited: Vec::new(),
            lose_connections: false,
            contents: None,
        }
    }
}

/// What a cut yields.
#[derive(Debug)]
pub struct Cut {
    /// Everything but the pages.
    pub record: ProcessRecord,
    /// The processes in it, the program first.
    pub targets: Vec<Target>,
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
    #[error("{}", refuse::lines(.0))]
    Refused(Vec<Refusal>),
    /// Not now; try again.
    #[error("{what}")]
    Busy {
        /// What was in the way.
        what: String,
    },
    /// A mapping changed between the look before the stop and the stop; try again, with [`CutOptions::changing`].
    #[error("{what}")]
    Changed {
        /// Which, and how.
        what: String,
    },
    /// Processes of the job come and go, or have not spoken (yet), or something is under way that no image can hold; try
    /// again in a moment.
    #[error("{}", refuse::lines(.0))]
    Unsettled(Vec<Refusal>),
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

/// What the tracer keeps of one process from cut to cut.
#[derive(Debug, Default)]
pub struct Kept {
    program: Option<(i32, InjectArea)>,
    /// Continuation slots in the program.
    pub slots: Option<Slots>,
    /// Calls that earlier stops interrupted.
    pub continuing: Continuing,
    /// What was asked of its threads.
    pub facts: FactCache,
    /// Identities of mapped files.
    pub identities: Identities,
    /// Files of its threads.
    pub tasks: Arc<TaskFiles>,
    /// Children that go on after a stop, which it has not been told yet, and since when that is known.
    pub going_on: HashMap<i32, Instant>,
}

/// What the tracer keeps from cut to cut, by pid.
#[derive(Debug, Default)]
pub struct KeptAll {
    processes: HashMap<i32, Kept>,
    /// What no other job may take.
    pub names: Names,
}

impl KeptAll {
    /// What is kept of a process; nothing when it is another one by now (exec, fork).
    pub fn of(&mut self, target: &Target) -> &mut Kept {
        let kept = self.processes.entry(target.pid).or_default();
        let program = (target.pid, target.area);
        if kept.program != Some(program) {
            let identities = std::mem::take(&mut kept.identities);
            *kept = Kept { program: Some(program), identities, ..Kept::default() };
        }
        kept
    }

    /// Forgets all other processes.
    fn only(&mut self, targets: &[Target]) {
        self.processes.retain(|pid, _| targets.iter().any(|target| target.pid == *pid));
    }
}

/// Facts looked up before the stop.
pub struct Before {
    /// Flags of mappings.
    pub flags: Flags,
    /// Who sleeps in a timed call.
    pub samples: Samples,
    /// The flags of mappings are to be looked at inside the stop: its mappings change all the time, or it is one of several
    /// that has just been made, as those are that soon end and cannot be looked at afterwards.
    pub flags_inside: bool,
    /// Where its vdso is.
    vdso: Range<u64>,
    /// See [`Status::is_nested`].
    pub nested: bool,
    /// Mapped files in whose place there is another by now.
    pub replaced: HashSet<(Vec<u8>, u64)>,
    /// The process.
    pub pidfd: std::os::fd::OwnedFd,
}

impl Before {
    /// What is to be stopped.
    pub fn whom(&self, pid: i32) -> Whom {
        Whom { pid, vdso: self.vdso.clone() }
    }
}

/// What [`make`] yields.
pub struct Made {
    /// For whoever asked.
    pub cut: Cut,
    /// For the tracer: what is kept until the pages are stored, by space.
    pub current: Vec<(u32, Current)>,
    /// For the tracer: the programs, held until [`Cut::parked`] is dropped.
    pub parked: Vec<HeldProgram>,
}

/// Who is of the job; kept by the agent.
pub trait Roster: Send + Sync {
    /// The processes that the job has now, the program first; none: it has ended.
    fn targets(&self) -> Vec<Target>;
    /// One that could not speak for itself is of the job from now on.
    fn adopted(&self, adopted: Adopted);
}

/// Makes a cut of all processes that the agent knows.
///
/// # Errors
/// See [`CutError`].
pub fn make(
    roster: &dyn Roster,
    options: &CutOptions,
    kept: &mut KeptAll,
    stragglers: &mut Stragglers,
    commands: &Sender<Command>,
) -> Result<Made, CutError> {
    let (known, orphans) = adopt::all(roster, options, kept, stragglers)?;
    kept.only(&known);
    let mut breakdown = StopBreakdown::default();
    let mut group = StoppedGroup::stop((known, orphans), options, kept, stragglers, &mut breakdown)?;
    let begun = group.begun;
    let (inside, contents) = match group
        .complete(roster, options, kept, stragglers)
        .and_then(|zombies| capture_job::read(&mut group, &zombies, options, kept, &mut breakdown))
    {
        Ok(inside) => inside,
        Err(error) => {
            resume::resume_all(group.held, stragglers);
            return Err(error);
        }
    };
    let StoppedGroup { targets, befores, held: all, .. } = group;
    breakdown.threads = inside.iter().map(|one| one.seen.threads.len() as u64).sum();
    let frozen: u64 = inside.iter().map(|one| one.snapshot.frozen.pages().0).sum();
    let copies = inside.iter().any(|one| one.snapshot.copy.is_some());
    let park = options.park_above.is_some_and(|most| copies && PageCount(frozen) > most);
    let hold = options.hold || options.engine == Engine::Sync;
    let (mut held, mut parked) = (Vec::new(), Vec::new());
    if park {
        parked = all;
    } else if hold {
        held = all;
    } else {
        let resuming = Instant::now();
        resume::resume_all(all, stragglers);
        breakdown.resume_ns = elapsed_ns(resuming);
    }
    breakdown.total_ns = elapsed_ns(begun);
    let resumed_at = Instant::now();
    let described = match build_record::after(
        &targets,
        options,
        kept,
        &befores,
        (inside, contents),
        held,
        commands,
        stragglers,
    ) {
        Ok(described) => described,
        Err(error) => {
            resume::resume_all(parked, stragglers);
            return Err(error);
        }
    };
    let build_record::Described { record, memory, current, sets } = described;
    kept.names.hold(&record.files.ipc);
    let build_record::Sets { engine, dirty, frozen, present, inherited } = sets;
    let of_store: u64 = inherited.mapped.iter().map(|mapping| mapping.run.pages.0).sum();
    let tracked = PageCount(present.pages().0 + of_store);
    let handle = (!parked.is_empty()).then(|| Parked::new(commands));
    let cut = Cut {
        record,
        targets,
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
pub fn prepare(
    target: &Target,
    several: bool,
    options: &CutOptions,
    kept: &mut Kept,
) -> Result<Before, CutError> {
    let pid = target.pid;
    let status = Status::read(pid, pid).map_err(|_| CutError::Gone)?;
    let tids = procfs::tasks(pid).map_err(|_| CutError::Gone)?;
    if status.has_ended() && tids.len() <= 1 {
        return Err(CutError::Gone);
    }
    // Opens the files of those that are new: inside the stop it takes longer, tens of milliseconds where the table of descriptors grows
    // (fs/file.c, expand_fdtable, waits for all processors).
    kept.tasks.look(pid, &tids);
    let mut refusals: Vec<Refusal> = refuse::area(pid, &target.area).into_iter().collect();
    refusals.extend(refuse::seccomp(pid, &status));
    if let Some(tracer) = refuse::tracer(&status) {
        if refuse::is_own_thread(tracer) {
            return Err(CutError::Busy {
                what: format!("it is still being let go from the stop before {}", interrupt::doing(pid, pid)),
            });
        }
        refusals.push(refuse::traced(pid, tracer));
    }
    refusals.extend(refuse::closed(pid));
    refuse::unless_empty(refusals)?;
    let (flags, mut maps) = procfs::by_any_thread(pid, |tid| {
        let flags = procfs::vm_flags(pid, tid).ok().filter(|flags| !flags.is_empty())?;
        Some((flags, procfs::maps(pid, tid).ok()?))
    })
    .map_err(|_| CutError::Gone)?;
    // What it finds is known inside the stop then.
    hardlinks::name_mappings(&mut maps);
    let replaced = maps::replaced(&maps, &mut kept.identities);
    let vdso =
        maps.iter().find(|mapping| mapping.name == b"[vdso]").map_or(0..0, |vdso| vdso.start..vdso.end);
    let pidfd = clone::pidfd_open(pid).map_err(|_| CutError::Gone)?;
    let share = usize::try_from(target.tracking.pages().bytes() / READY_SHARE).unwrap_or(usize::MAX);
    SavedPages::warm(share.clamp(READY_LEN.0, READY_LEN.1));
    thread_pool::ready();
    let flags_inside = options.changing || several && process_age::of(pid).is_none_or(|age| age < YOUNG);
    Ok(Before {
        flags,
        samples: threads::sample(pid),
        flags_inside,
        vdso,
        nested: status.is_nested(),
        replaced,
        pidfd,
    })
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
