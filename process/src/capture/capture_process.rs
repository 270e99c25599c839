//! One process inside the stop: its calls are repaired, and what the kernel knows of it is read.
//!
//! Called by `cut`, on the tracer thread: [`stand`] for all processes first, then [`relatives`], then [`ask`] and [`look`] for all. What needs
//! no tracing is read by several threads: [`arrive`] before [`stand`], while the tracer thread reads the registers,
//! [`surroundings`] beside [`ask`] and [`look`], and [`scenery`] afterwards.
//! What must hold: after [`stand`] the process may be let go at any time, and its calls go on as if nothing had been.
//! Fails by: [`CutError`]; the caller lets all processes go.

use crate::capture::attributes;
use crate::capture::cwd::{self, Folder};
use crate::capture::hardlinks;
use crate::capture::identity::SharedFiles;
use crate::capture::maps::{self, Flags, Mapped};
use crate::capture::state::{self, Around, ProcessFacts, Question, ThreadFacts};
use crate::cut::{Before, CutError, CutOptions, Kept, Target};
use crate::inject::area;
use crate::inject::live_thread::Host;
use crate::refuse;
use crate::stop::interrupt;
use crate::stop::resume::{self, HeldProgram};
use crate::stop::task_files::{TaskFiles, Told};
use crate::stop::threads::{self, Samples, Thread};
use crate::thread_pool;
use holdfast_image::attributes::MemoryPolicy;
use holdfast_image::bytes::Name;
use holdfast_image::control::SharedPage;
use holdfast_image::record::{InjectArea, LayoutRecord, Limit, PosixTimer, ProcessFlags, ZombieRecord};
use holdfast_sys::procfs::{self, Mapping, Status};
use holdfast_sys::procmem::{self, ForcedMemory};
use holdfast_sys::{children, fault, ptrace};
use std::collections::HashMap;

/// A process that was stopped, and is still the one that is known.
pub struct Arrival {
    live: i32,
    maps: Vec<Mapping>,
    status: Status,
    memory: ForcedMemory,
    tasks: HashMap<i32, Told>,
}

impl Arrival {
    /// Its children.
    pub fn children(&self) -> Vec<i32> {
        self.tasks.values().flat_map(|told| told.children.iter().copied()).collect()
    }
}

/// A process whose calls are repaired.
pub struct Stand {
    live: i32,
    maps: Vec<Mapping>,
    /// Status file.
    pub status: Status,
    /// Its id as it sees it itself.
    inner_pid: i32,
    /// Signals pending for the process.
    pub shared_pending: Vec<[u8; 128]>,
    /// Names of its threads.
    pub comms: HashMap<i32, Name>,
    memory: ForcedMemory,
}

/// What is read of a process.
pub struct Seen {
    /// Any thread of it.
    pub live: i32,
    /// Its id as it sees it itself.
    pub inner_pid: i32,
    /// Its memory.
    pub memory: ForcedMemory,
    /// The thread that runs injected calls.
    pub host: Host,
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
    /// Their flags, where they were looked at inside the stop.
    pub mapping_flags: Option<Flags>,
    /// Their memory policies, if any.
    pub policies: Vec<Option<MemoryPolicy>>,
    /// Status file.
    pub status: Status,
}

/// What can be seen of a stopped process without tracing it, or knowing more of it than its threads.
pub struct Surroundings {
    /// Of its threads.
    pub around: Vec<Around>,
    /// Resource limits.
    pub limits: Vec<Limit>,
    /// Executable.
    pub exe: Vec<u8>,
    /// Current directory.
    pub cwd: Folder,
    /// Number of libholdfast's own connection.
    pub own: Option<i32>,
}

/// What can be seen of a stopped process without tracing it.
pub struct Scenery {
    /// Layout of the address space.
    pub layout: LayoutRecord,
    /// Flags of the process.
    pub flags: ProcessFlags,
    /// Bytes of the vdso.
    pub vdso: Vec<u8>,
    /// Files that are mapped shared.
    pub shared_files: SharedFiles,
}

impl Seen {
    /// The signal by which job control has stopped it.
    pub fn stop_signal(&self) -> Option<i32> {
        self.threads.first().and_then(|thread| thread.stop_signal)
    }
}

/// Whether a stopped process is still the one that is known. `tids`: all its threads. By any thread of ours.
///
/// # Errors
/// It has ended or executed another program.
pub fn arrive(target: &Target, tids: &[i32], files: &TaskFiles) -> Result<Arrival, CutError> {
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
    Ok(Arrival { live, maps, status, memory, tasks })
}

/// Repairs the calls that the stop has interrupted. Its threads were read.
///
/// # Errors
/// The process has ended; a call that cannot be repaired.
pub fn stand(
    target: &Target,
    kept: &mut Kept,
    samples: &Samples,
    held: &mut HeldProgram,
    arrival: Arrival,
) -> Result<Stand, CutError> {
    let pid = target.pid;
    let Arrival { live, maps, status, memory, tasks } = arrival;
    let shared_pending = ptrace::pending_signals(live, true)?;
    fault::point("registers");
    // By this thread: some kernels let nobody but the tracer write where the program may not (fs/proc/base.c, proc_mem_foll_force).
    area::ready_stub(&memory, &target.area)?;
    resume::collect_slots(target, kept, &memory, held)?;
    resume::repair_calls(target, kept, samples, &memory, held, &shared_pending)?;
    let inner_pid = status.innermost("NStgid").unwrap_or(pid);
    let comms = tasks.into_iter().map(|(tid, told)| (tid, told.comm)).collect();
    Ok(Stand { live, maps, status, inner_pid, shared_pending, comms, memory })
}

/// Children that have ended, each with the pid of its parent.
///
/// # Errors
/// There is a child that lives and is not among the processes of the job.
pub fn relatives(targets: &[Target]) -> Result<Vec<(i32, ZombieRecord)>, CutError> {
    let children = |target: &Target| children::children(target.pid).unwrap_or_default();
    relatives_among(targets, thread_pool::map(targets, thread_pool::workers(), children))
}

/// The same as [`relatives`], where the children of each are known.
///
/// # Errors
/// The same.
pub fn relatives_among(
    targets: &[Target],
    children: Vec<Vec<i32>>,
) -> Result<Vec<(i32, ZombieRecord)>, CutError> {
    let (mut zombies, mut strangers) = (Vec::new(), Vec::new());
    for (target, children) in targets.iter().zip(children) {
        for child in children {
            if targets.iter().any(|other| other.pid == child) {
                continue;
            }
            match zombie(child) {
                Some(zombie) => zombies.push((target.pid, zombie)),
                None => strangers.push(refuse::stranger(child)),
            }
        }
    }
    if strangers.is_empty() { Ok(zombies) } else { Err(CutError::Unsettled(strangers)) }
}

/// A process that has ended; `None`: it lives.
fn zombie(pid: i32) -> Option<ZombieRecord> {
    let fields = procfs::stat_fields(pid, pid).ok()?;
    // proc_pid_stat(5): field 3 is the state, field 52 the exit code; these fields begin with the third.
    if fields.first()? != "Z" || procfs::tasks(pid).ok()?.len() > 1 {
        return None;
    }
    let status = Status::read(pid, pid).ok()?;
    Some(ZombieRecord {
        pid: status.innermost("NStgid").unwrap_or(pid),
        pgid: status.innermost("NSpgid").unwrap_or(0),
        sid: status.innermost("NSsid").unwrap_or(0),
        status: fields.get(49)?.parse().ok()?,
        comm: Name::from(std::path::Path::new(&refuse::name_of(pid))),
    })
}

/// The same error, with the name of the process where there are several.
pub fn of(error: CutError, several: bool, pid: i32) -> CutError {
    match error {
        error if !several => error,
        CutError::Refused(refusals) => {
            let comm = refuse::name_of(pid);
            CutError::Refused(refusals.into_iter().map(|refusal| refusal.of(pid, &comm)).collect())
        }
        CutError::Gone => just_ended(pid),
        CutError::Busy { .. } | CutError::Changed { .. } | CutError::Failed { .. }
            if interrupt::has_ended(pid) =>
        {
            just_ended(pid)
        }
        CutError::Busy { what } => CutError::Busy { what: format!("process {pid}: {what}") },
        CutError::Changed { what } => CutError::Changed { what: format!("process {pid}: {what}") },
        CutError::Failed { what } => CutError::Failed { what: format!("process {pid}: {what}") },
        error @ CutError::Unsettled(_) => error,
    }
}

/// One of several processes has ended.
pub fn just_ended(pid: i32) -> CutError {
    CutError::Unsettled(vec![refuse::process(pid, "it has just ended")])
}

/// A process that is being asked what only it can tell.
pub struct Asked {
    stand: Stand,
    mapped: Vec<Mapped>,
    mapping_flags: Option<Flags>,
    facts: Vec<ThreadFacts>,
    host: Host,
    question: Question,
}

impl Asked {
    /// Waits until the calls in it have ended, whatever they say.
    pub fn give_up(&self, target: &Target) {
        if let Err(error) = self.host.finish(&target.area, 0, &mut |_| Ok(())) {
            tracing::debug!(pid = target.pid, %error, "calls that nobody needs any more");
        }
    }
}

/// Refuses what cannot be brought back, and begins to ask the process what only it can tell: [`look`] or [`Asked::give_up`] must
/// follow, and meanwhile others can be asked.
///
/// # Errors
/// It holds what cannot be brought back; a call in it failed.
pub fn ask(
    target: &Target,
    options: &CutOptions,
    kept: &mut Kept,
    before: &Before,
    held: &mut HeldProgram,
    mut stand: Stand,
    is_first: bool,
) -> Result<Asked, CutError> {
    let mapping_flags = match before.flags_inside {
        true => Some(procfs::vm_flags(target.pid, stand.live)?),
        false => None,
    };
    let known = mapping_flags.as_ref().unwrap_or(&before.flags);
    let maps = std::mem::take(&mut stand.maps);
    let mapped = maps::classify(maps, known, &options.own_files).map_err(CutError::Refused)?;
    if options.only.is_none() {
        refuse::unless_empty(maps::refuse_large(&mapped))?;
    }
    if !held.threads.iter().any(|thread| thread.inner == stand.inner_pid) {
        return Err(CutError::Refused(vec![refuse::main_thread_ended(stand.inner_pid)]));
    }
    refuse::unless_empty(refuse::dispatched(&ids(&held.threads)))?;
    let (facts, host) = ask_threads(target, kept, held, &stand.status, &stand.shared_pending)?;
    held.host = Some(host.clone());
    // SIGCHLD at its default may have flags all the same: no zombies, no word of stops.
    let always = 1 << (libc::SIGCHLD - 1);
    let handled = stand.status.mask("SigCgt") | stand.status.mask("SigIgn") | always;
    let question = Question::new(&target.area, handled, is_first && before.nested);
    question.ask(&host, &target.area)?;
    Ok(Asked { stand, mapped, mapping_flags, facts, host, question })
}

/// Reads everything but open files and memory, and what needs no tracing.
///
/// # Errors
/// A call in it failed.
pub fn look(
    target: &Target,
    kept: &mut Kept,
    held: &mut HeldProgram,
    asked: Asked,
) -> Result<Seen, CutError> {
    let (pid, area) = (target.pid, &target.area);
    let Asked { stand, mapped, mapping_flags, mut facts, host, question } = asked;
    let Stand { live, status, inner_pid, mut shared_pending, memory, .. } = stand;
    let mut tries = 0;
    let (process, timers) = loop {
        let process = answer(&question, &host, held, &mut facts, kept, area)?;
        let inner =
            |tid| held.threads.iter().find(|thread| thread.tid == tid).map_or(tid, |thread| thread.inner);
        let timers = state::ask_timers(pid, &host, area, inner)?;
        // Timers run on in a stopped process: one that expired in between would be lost, being neither armed nor pending.
        if !has_expired(held, &mut shared_pending, &timers)? {
            break (process, timers);
        }
        tries += 1;
        if tries > 5 {
            return Err(CutError::Busy { what: "its timers expire all the time".into() });
        }
        question.ask(&host, area)?;
    };
    let with_keys = held.threads.iter().zip(&facts).filter(|(_, facts)| facts.has_keys);
    refuse::unless_empty(refuse::keys(pid, process.has_keys, with_keys.map(|(thread, _)| thread.inner)))?;
    let policies = attributes::memory_policies(&host, area, &mapped)?;
    let threads = held.threads.clone();
    Ok(Seen {
        live,
        inner_pid,
        host,
        facts,
        threads,
        timers,
        shared_pending,
        policies,
        process,
        status,
        mapped,
        memory,
        mapping_flags,
    })
}

/// The ids of its threads, as we see them and as it does.
pub fn ids(threads: &[Thread]) -> Vec<(i32, i32)> {
    threads.iter().map(|thread| (thread.tid, thread.inner)).collect()
}

/// Reads what needs no tracing and stays as it is while calls are injected. By any thread of ours. `ids`: of its threads; `comms`: their
/// names.
///
/// # Errors
/// It holds what cannot be brought back; it has ended.
pub fn surroundings(
    target: &Target,
    ids: &[(i32, i32)],
    comms: &HashMap<i32, Name>,
) -> Result<Surroundings, CutError> {
    refuse::unless_empty(refuse::unshared(ids))?;
    let pid = target.pid;
    let &(live, _) = ids.first().ok_or(CutError::Gone)?;
    let comm = |tid| comms.get(&tid).cloned().unwrap_or_default();
    Ok(Surroundings {
        own: area::own_descriptor(live, &target.area)?,
        around: ids.iter().map(|&(tid, _)| state::around(comm(tid), tid)).collect(),
        limits: state::limits(pid),
        exe: procfs::link(&format!("/proc/{pid}/exe"))?,
        cwd: cwd::current(pid)?,
    })
}

/// Reads the rest of what needs no tracing. By any thread of ours.
///
/// # Errors
/// It has ended.
pub fn scenery(target: &Target, seen: &Seen) -> Result<Scenery, CutError> {
    let (pid, live) = (target.pid, seen.live);
    Ok(Scenery {
        layout: state::layout(pid, live, seen.process.brk)?,
        flags: state::flags(pid, &seen.status),
        shared_files: SharedFiles::of(&seen.mapped),
        vdso: area::read_vdso(live, seen.mapped.iter().map(|mapped| &mapped.mapping))?,
    })
}

/// Whether signals have come since they were read; they are read anew.
fn has_expired(
    held: &mut HeldProgram,
    shared: &mut Vec<[u8; 128]>,
    timers: &[PosixTimer],
) -> Result<bool, CutError> {
    let live = held.living().ok_or(CutError::Gone)?;
    let now = ptrace::pending_signals(live, true)?;
    let mut changed = now != *shared;
    *shared = now;
    if timers.iter().any(|timer| timer.notify == libc::SIGEV_THREAD_ID) {
        for thread in &mut held.threads {
            let now = ptrace::pending_signals(thread.tid, false)?;
            changed |= now != thread.pending;
            thread.pending = now;
        }
    }
    Ok(changed)
}

/// What the host has told of the process, and anew of itself.
fn answer(
    question: &Question,
    host: &Host,
    held: &HeldProgram,
    facts: &mut [ThreadFacts],
    kept: &mut Kept,
    area: &InjectArea,
) -> Result<ProcessFacts, CutError> {
    let own = held.threads.iter().zip(facts).find(|(thread, _)| thread.tid == host.tid);
    let (thread, own) = own.ok_or(CutError::Gone)?;
    let (process, told) = question.answer(host, thread, area)?;
    kept.facts.keep(thread, &told);
    *own = told;
    Ok(process)
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
    let generation = match target.area.shared.0 {
        // Without libholdfast nobody counts.
        0 => None,
        shared => Some(procmem::read_u64(held.threads[0].tid, shared + SharedPage::FACT_GENERATION as u64)?),
    };
    kept.facts.renew(generation);
    let mut facts = Vec::with_capacity(held.threads.len());
    for thread in &held.threads {
        facts.push(match kept.facts.get(thread) {
            Some(fact) => fact,
            None => {
                let host = thread.host(target.pid, inner_pid, caught, shared);
                held.host = Some(host.clone());
                let fact = kept.facts.ask(&host, &target.area, thread)?;
                held.host = None;
                fact
            }
        });
    }
    let chosen = threads::host_of(&held.threads, target.pid, inner_pid, caught, shared);
    Ok((facts, chosen.ok_or(CutError::Gone)?))
}
