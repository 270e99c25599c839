//! One process inside the stop: what the kernel knows of it is read.
//!
//! Called by `capture_job`, on the tracer thread: [`ask`] and [`look`] for all processes, whose calls are repaired by
//! then. What needs no tracing is read by several threads: [`surroundings`] beside [`ask`] and [`look`], and
//! [`scenery`] afterwards. Fails by: [`CutError`]; the caller resumes all processes.

use crate::capture::cwd::{self};
use crate::capture::identity::{SharedFiles, inode_of};
use crate::capture::made_namespaces::MountTrees;
use crate::capture::maps::{self, Flags, Mapped};
use crate::capture::mounts::{self, Insides, Place, View};
use crate::capture::shared_memory;
use crate::capture::state::{self, ProcessFacts, Question, ThreadFacts};
use crate::capture::{
    aio, attributes, filters, landlock, ldt, made_namespaces, own_folder, protection_keys, root,
};
use crate::error::CutError;
use crate::inject::area;
use crate::inject::live_thread::LiveThread;
use crate::job::stopped_process::StoppedProcess;
use crate::job::target::Target;
use crate::job::tracer_state::Kept;
use crate::namespaces::Namespaces;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::resume::StoppedProgram;
use crate::stop::stages::{Repaired, Scenery, Seen, Surroundings};
use crate::stop::threads::{self, Thread};
use holdfast_abi::SharedPage;
use holdfast_image::aio::AioContext;
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::confinement::FilterRecord;
use holdfast_image::record::{InjectArea, Inside, OwnFolder, PosixTimer, RootFolder};
use holdfast_sys::clock;
use holdfast_sys::procfs;
use holdfast_sys::procmem::{self};
use holdfast_sys::ptrace;
use std::collections::HashMap;

/// A process that is being asked what only it can tell.
pub struct Asked {
    repaired: Repaired,
    mapped: Vec<Mapped>,
    insides: Insides,
    mapping_flags: Option<Flags>,
    filters: Vec<FilterRecord>,
    aio: Vec<AioContext>,
    facts: Vec<ThreadFacts>,
    host: LiveThread,
    question: Question,
}

/// Refuses what cannot be restored, and begins to ask the process what only it can tell: [`look`] must follow, or its
/// end ([`StoppedProgram::resume`]); meanwhile others can be asked.
///
/// # Errors
/// It holds what cannot be restored; a call in it failed.
pub fn ask(
    process: &mut StoppedProcess<()>,
    mut repaired: Repaired,
    options: &CutOptions,
    kept: &mut Kept,
    is_first: bool,
) -> Result<Asked, CutError> {
    let StoppedProcess { target, before, held, .. } = process;
    let mapping_flags = match before.flags_inside {
        true => Some(procfs::vm_flags(target.pid, repaired.live)?),
        false => None,
    };
    let known = mapping_flags.as_ref().unwrap_or(&before.flags);
    let mut maps = std::mem::take(&mut repaired.maps);
    let insides = mounts::translate(held.shown_by().ok_or(CutError::Gone)?, &options.namespaces, &mut maps)
        .map_err(|why| CutError::Refused(vec![refuse::process(target.pid, why)]))?;
    let mapped = maps::classify(maps, known, &options.mapped).map_err(CutError::Refused)?;
    if options.only.is_none() {
        refuse::unless_empty(shared_memory::refuse_large(&mapped))?;
    }
    refuse::unless_empty(shared_memory::refuse_hidden(repaired.live, &target.area, &mapped))?;
    let aio = aio::contexts(repaired.live, &target.area, &mapped)?;
    refuse::unless_empty(refuse::dispatched(&ids(&held.threads)))?;
    let filters =
        filters::settle(target.pid, &mut held.threads, &target.area, &repaired.status, before.is_filtered)?;
    let (facts, host) = ask_threads(target, before.outsider, kept, held, &repaired)?;
    held.host = Some(host.clone());
    // SIGCHLD at its default may have flags all the same: no zombies, no word of stops.
    let always = 1 << (libc::SIGCHLD - 1);
    let handled = repaired.status.mask("SigCgt") | repaired.status.mask("SigIgn") | always;
    let is_init = repaired.inner_pid == 1;
    let question =
        Question::new(&target.area, handled, (is_first || is_init) && before.nested, before.outsider);
    question.ask(&host, &target.area)?;
    held.under_way = Some(target.area);
    Ok(Asked { repaired, mapped, insides, mapping_flags, aio, filters, facts, host, question })
}

/// Reads everything but open files and memory, and what needs no tracing.
///
/// # Errors
/// A call in it failed.
pub fn look(
    process: &mut StoppedProcess<()>,
    asked: Asked,
    options: &CutOptions,
    kept: &mut Kept,
    trees: &mut MountTrees,
) -> Result<Seen, CutError> {
    let StoppedProcess { target, before, held, .. } = process;
    let (pid, area) = (target.pid, &target.area);
    let Asked { repaired, mapped, insides, mapping_flags, aio, filters, mut facts, host, question } = asked;
    let Repaired { live, status, inner_pid, mut shared_pending, memory, .. } = repaired;
    let mut tries = 0;
    let (mut process, timers) = loop {
        let process = answer(&question, &host, held, &mut facts, kept, area)?;
        let inner =
            |tid| held.threads.iter().find(|thread| thread.tid == tid).map_or(tid, |thread| thread.inner);
        let timers = state::ask_timers(pid, &host, area, inner)?;
        // Timers run on in a stopped process: one that expired in between would be lost, being neither armed nor
        // pending.
        if !has_expired(held, &mut shared_pending, &timers)? {
            break (process, timers);
        }
        tries += 1;
        if tries > 5 {
            return Err(CutError::Busy { what: "its timers expire all the time".into() });
        }
        question.ask(&host, area)?;
        held.under_way = Some(*area);
    };
    let with_keys = held.threads.iter().zip(&facts).filter(|(_, facts)| facts.has_keys);
    refuse::unless_empty(refuse::keys(pid, process.has_keys, with_keys.map(|(thread, _)| thread.inner)))?;
    let confined = held.threads.iter().zip(&facts).map(|(thread, facts)| (thread, facts.is_confined));
    let asked = (before.outsider, options.namespaces.depth());
    let domain = landlock::found(pid, area, asked, confined).map_err(CutError::Refused)?;
    if !domain.is_empty() && options.namespaces.other_mounts(pid).is_some() {
        let why = "in a mount namespace of its own, which is not supported";
        return Err(CutError::Refused(vec![refuse::landlock(pid, why)]));
    }
    let ldt = if process.has_ldt { ldt::ask(&host, area)? } else { Blob::default() };
    let flags = mapping_flags.as_ref().unwrap_or(&before.flags);
    process.attributes.protection_keys = protection_keys::ask((&host, area), &mapped, flags, &held.threads)?;
    let policies = attributes::memory_policies(&host, area, &mapped)?;
    let threads = held.threads.clone();
    let (namespaces, pid_namespaces) = made_namespaces::ask(
        (pid, held.shown_by().ok_or(CutError::Gone)?),
        (&host, area, threads.len()),
        &options.namespaces,
        trees,
    )?;
    Ok(Seen {
        namespaces,
        pid_namespaces,
        job_pid: status.at_depth("NStgid", options.namespaces.depth()).unwrap_or(inner_pid),
        job_depth: options.namespaces.depth(),
        live,
        inner_pid,
        host,
        facts,
        threads,
        timers,
        shared_pending,
        policies,
        process,
        filters,
        domain,
        ldt,
        aio,
        status,
        mapped,
        insides,
        memory,
        mapping_flags,
    })
}

/// The ids of its threads, as we see them and as it does.
pub fn ids(threads: &[Thread]) -> Vec<(i32, i32)> {
    threads.iter().map(|thread| (thread.tid, thread.inner)).collect()
}

/// Reads what needs no tracing and stays as it is while calls are injected. By any thread of ours. `ids`: of its
/// threads, and before them what the process knows itself by; `comms`: their names; `job`: see [`root::of`].
///
/// # Errors
/// It holds what cannot be restored; it has ended.
pub fn surroundings(
    target: &Target,
    (inner, ids): (i32, &[(i32, i32)]),
    comms: &HashMap<i32, Name>,
    job: &Namespaces,
) -> Result<Surroundings, CutError> {
    refuse::unless_empty(refuse::unshared(ids))?;
    let pid = target.pid;
    let &(live, _) = ids.first().ok_or(CutError::Gone)?;
    let comm = |tid| comms.get(&tid).cloned().unwrap_or_default();
    let has_main = ids.iter().any(|(tid, _)| *tid == pid);
    let by = if has_main { pid } else { live };
    let mut cwd = cwd::current(by, [pid, inner])?;
    refuse::unless_empty(cwd.foreign.map(|other| refuse::folder_of_another(pid, other)))?;
    let refused = |why: String| CutError::Refused(vec![refuse::process(pid, why)]);
    let root = root::of(by, job).map_err(refused)?;
    let (mut exe, mut exe_inside, mut cwd_within) = (procfs::link(&format!("/proc/{by}/exe"))?, None, None);
    if let Some(view) = View::of(by, job).map_err(refused)? {
        cwd_within = cwd.follow(by, &view).map_err(refused)?;
        if let Some((path, place)) = view.follow(&format!("/proc/{by}/exe")).map_err(refused)? {
            let (now, only) = match place {
                Place::Outside(outside) => (outside, false),
                Place::Only => ([format!("/proc/{by}/root").as_bytes(), &path].concat(), true),
            };
            exe = now;
            exe_inside = Some(Inside { path: Name(path), only });
        }
    }
    // One that has its own is refused in what a restart enters by a call that allows no other user of it (setns(2)).
    let is_moved = || root.is_some() || !Namespaces::of(by, by).differing(job).is_empty();
    let folders = own_folder::of_threads(ids, &is_moved).map_err(CutError::Refused)?;
    let mut folders: HashMap<i32, OwnFolder> = folders.into_iter().collect();
    let shares_folder = own_folder::is_shared_with_parent(live);
    refuse::unless_empty((shares_folder && is_moved()).then(|| refuse::shared_folder(pid)))?;
    Ok(Surroundings {
        shares_folder,
        cwd_within,
        exe_inside,
        root: root.map(|(path, here)| RootFolder { path, inode: Some(inode_of(&here)) }),
        own: area::own_descriptor(live, &target.area)?,
        around: ids.iter().map(|&(tid, _)| state::around(comm(tid), tid, folders.remove(&tid))).collect(),
        limits: state::limits(pid),
        exe,
        cwd,
    })
}

/// Reads the rest of what needs no tracing. By any thread of ours.
///
/// # Errors
/// It has ended.
pub fn scenery(seen: &Seen) -> Result<Scenery, CutError> {
    let live = seen.live;
    Ok(Scenery {
        layout: state::layout(live, seen.process.brk)?,
        flags: state::flags(live, &seen.status),
        shared_files: SharedFiles::of(&seen.mapped),
        realtime_ns: clock::realtime_ns(),
        vdso: area::read_vdso(live, seen.mapped.iter().map(|mapped| &mapped.mapping))?,
    })
}

/// Whether signals have come since they were read; they are read anew.
fn has_expired(
    held: &mut StoppedProgram,
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
    host: &LiveThread,
    held: &mut StoppedProgram,
    facts: &mut [ThreadFacts],
    kept: &mut Kept,
    area: &InjectArea,
) -> Result<ProcessFacts, CutError> {
    // Waited for below.
    let under_way = held.under_way.take();
    let own = held.threads.iter().zip(facts).find(|(thread, _)| thread.tid == host.thread.tid);
    let Some((thread, own)) = own else {
        held.under_way = under_way;
        return Err(CutError::Gone);
    };
    let (process, told) = question.answer(host, thread, area)?;
    kept.facts.keep(thread, &told);
    *own = told;
    Ok(process)
}

/// Asks new threads for what only they know; returns that of all, and the thread for further calls.
fn ask_threads(
    target: &Target,
    outsider: Option<i32>,
    kept: &mut Kept,
    held: &mut StoppedProgram,
    Repaired { status, shared_pending, .. }: &Repaired,
) -> Result<(Vec<ThreadFacts>, LiveThread), CutError> {
    let inner_pid = status.innermost("NStgid").unwrap_or(target.pid);
    let caught = status.mask("SigCgt");
    let shared = threads::pending_mask(shared_pending);
    let generation = match target.area.shared.0 {
        // Without libholdfast nothing counts.
        0 => None,
        shared => Some(procmem::read_u64(held.threads[0].tid, shared + SharedPage::FACT_GENERATION as u64)?),
    };
    kept.facts.renew(generation, outsider);
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
