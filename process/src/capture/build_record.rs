//! After the stop: what a cut has read becomes a record of all processes and a list of pages.
//!
//! Called by `cut`, on the tracer thread, while the program runs on. What must hold: if anything is in doubt (a mapping
//! changed between the look before the stop and the stop) there is no image.

use crate::capture::capture_job::{self, Captured, CapturedProcess};
use crate::capture::contents::Taken;
use crate::capture::files::inotify::{self, Watching};
use crate::capture::made_namespaces::{self, Made};
use crate::capture::maps::{Flags, Mapped};
use crate::capture::pid_namespaces::{self, PidNamespaces};
use crate::capture::{credentials, map_flags, mlock, regions, state};
use crate::error::CutError;
use crate::freeze::engine::{self, CutMemory};
use crate::freeze::frozen_memory::{FrozenMemory, Living, OwnMemory, StoreFiles};
use crate::freeze::retained::Retained;
use crate::freeze::tracer_queue::TracerQueue;
use crate::gang;
use crate::host_addresses;
use crate::job::prepare::Before;
use crate::job::target::Target;
use crate::job::tracer_state::{Kept, TracerState};
use crate::mapped_files::MappedFiles;
use crate::options::CutOptions;
use crate::refuse;
use crate::stop::process_errors;
use crate::stop::resume::StoppedProgram;
use crate::stop::stages::Seen;
use crate::stop::syscall_restart::ERESTARTSYS;
use crate::track::tracking;
use holdfast_image::attributes::GuardRegion;
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::confinement::Confinement;
use holdfast_image::host_addresses::HostAddresses;
use holdfast_image::kinds::UsedEngine;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{Inherited, StoreMapping};
use holdfast_image::record::{
    AltStack, Description, FileContent, FileIdentity, FileTable, HostRecord, Object, ProcessRecord, Region,
    SignalRecord, SocketState, ThreadRecord,
};
use holdfast_image::refusal::Refusal;
use holdfast_image::{Addr, address_space, fork_plan, spare_numbers};
use holdfast_sys::{ids, procfs};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::sync::Arc;

/// What [`after`] yields.
pub struct Described {
    /// Everything but the pages, of all processes.
    pub record: ProcessRecord,
    /// Reads the pages.
    pub memory: FrozenMemory,
    /// What is kept until they are stored, by space.
    pub retained: Vec<(u32, Retained)>,
    /// Which pages.
    pub sets: Sets,
}

/// Pages of all processes, at their global addresses ([`holdfast_image::address_space`]).
#[derive(Default)]
pub struct Sets {
    /// Engine that was used: where they differ, that of most concern to the programs.
    pub engine: UsedEngine,
    /// As in [`CutMemory`].
    pub dirty: PageSet,
    /// As in [`CutMemory`].
    pub frozen: PageSet,
    /// As in [`CutMemory`].
    pub present: PageSet,
    /// What the image takes from elsewhere.
    pub inherited: Inherited,
}

impl Sets {
    fn add(&mut self, space: u32, cut_memory: CutMemory, options: &CutOptions) {
        let inherited = cut_memory.inherited(options);
        let unchanged = inherited.unchanged.into_iter().map(|run| address_space::global_run(space, run));
        self.inherited.unchanged.extend(unchanged);
        let mapped = inherited.mapped.into_iter();
        self.inherited.mapped.extend(
            mapped.map(|mapping| StoreMapping {
                run: address_space::global_run(space, mapping.run),
                ..mapping
            }),
        );
        self.dirty.append(address_space::global_set(space, cut_memory.dirty));
        self.frozen.append(address_space::global_set(space, cut_memory.frozen));
        self.present.append(address_space::global_set(space, cut_memory.present));
        if self.engine != UsedEngine::Fork {
            self.engine = cut_memory.engine;
        }
    }

    /// Adds what is in files, in its space.
    fn add_files(&mut self, contents: Taken, members: &mut Vec<(u32, OwnMemory)>) {
        let Taken { saved, dirty, unchanged, .. } = contents;
        let dirty = address_space::global_set(address_space::FILES, dirty);
        let unchanged = address_space::global_set(address_space::FILES, unchanged);
        self.dirty = self.dirty.union(&dirty);
        self.present = self.present.union(&dirty).union(&unchanged);
        self.inherited.unchanged.extend(unchanged.into_runs());
        let memory = OwnMemory { saved, files: StoreFiles::default(), living: None, guard: None };
        members.push((address_space::FILES, memory));
    }

    fn sort(&mut self) {
        self.inherited.unchanged.sort_unstable();
        self.inherited.mapped.sort_unstable_by_key(|mapping| mapping.run);
    }
}

/// Everything that needs no stop any more: the copies' own affairs, identities of files. `held`: the programs, if they
/// are to be held until their pages are stored, in the order of the processes.
///
/// # Errors
/// A copy died, or a program changed meanwhile; copies are ended, held programs resumed.
pub fn after(
    mut processes: Vec<CapturedProcess>,
    mut contents: Taken,
    held: Vec<StoppedProgram>,
    options: &CutOptions,
    state: &mut TracerState,
    queue: &Arc<dyn TracerQueue>,
) -> Result<Described, CutError> {
    let mut held = held.into_iter();
    let is_held = held.len() > 0;
    let mut retained = Vec::with_capacity(processes.len());
    for process in &mut processes {
        retained.extend(retain(process, held.next()).map(|retained| (process.target.space, retained)));
    }
    let files = std::mem::take(&mut contents.files);
    let has_files = !files.is_empty();
    match describe_all(processes, &retained, options, state, files) {
        Ok((record, mut members, mut sets)) => {
            if has_files {
                sets.add_files(contents, &mut members);
            }
            sets.sort();
            let memory = FrozenMemory { members, held: is_held, tracer: Arc::clone(queue), ended: false };
            Ok(Described { record, memory, retained, sets })
        }
        Err(error) => {
            retained.into_iter().for_each(|(_, retained)| retained.end(state));
            Err(error)
        }
    }
}

/// Takes what keeps the memory of a process until it is stored out of what was read.
fn retain(process: &mut CapturedProcess, held: Option<StoppedProgram>) -> Option<Retained> {
    let inside = &mut process.inside;
    let guard = inside.cut_memory.guard.take();
    match (inside.cut_memory.copy.take(), held) {
        (Some(copy), _) => {
            let surplus = engine::surplus(&inside.seen.mapped, &inside.cut_memory, &process.target.area);
            Some(Retained::Copy { copy: Box::new(copy), surplus })
        }
        (None, Some(held)) => Some(Retained::Held(Box::new(held))),
        (None, None) => guard.map(|guard| Retained::Guarded {
            guard: Arc::new(guard),
            target: Box::new(process.target.clone()),
        }),
    }
}

type AllDescribed = (ProcessRecord, Vec<(u32, OwnMemory)>, Sets);

fn describe_all(
    mut processes: Vec<CapturedProcess>,
    retained: &[(u32, Retained)],
    options: &CutOptions,
    state: &mut TracerState,
    contents: Vec<FileContent>,
) -> Result<AllDescribed, CutError> {
    find_watched(&mut processes)?;
    end_connects(&mut processes);
    // Of all processes: their regions refer to it.
    let mut once = FileTable::default();
    if let Some(first) = processes.first_mut() {
        let files = &mut first.inside.files;
        once.nameless = std::mem::take(&mut files.nameless);
        once.segments = std::mem::take(&mut files.segments);
        once.segment_contents = std::mem::take(&mut files.segment_contents);
        once.ipc = std::mem::take(&mut files.ipc);
    }
    let several = processes.len() > 1;
    let Some((program, nested)) = processes.first().map(|first| (first.target.pid, first.before.nested))
    else {
        return Err(CutError::Gone);
    };
    let made: Vec<&[Made]> = processes.iter().map(|one| &one.inside.seen.namespaces[..]).collect();
    let refused = |why| CutError::Refused(vec![refuse::process(program, why)]);
    let mut list = made_namespaces::list(&made).map_err(refused)?;
    let inodes: Vec<PidNamespaces> = processes.iter().map(|one| one.inside.seen.pid_namespaces).collect();
    let mut places = list.places.iter();
    let (mut records, mut members, mut sets) = (Vec::new(), Vec::new(), Sets::default());
    for process in processes {
        let (pid, space) = (process.target.pid, process.target.space);
        let own = retained.iter().find(|(other, _)| *other == space).map(|(_, retained)| retained);
        let (mut record, memory, cut_memory) = describe(process, own, options, state, &once)
            .map_err(|error| process_errors::named(error, several, pid))?;
        record.namespaces = places.next().cloned().unwrap_or_default();
        list.settle(record.cwd_within.as_mut()).map_err(refused)?;
        // The parent by its id here; it gets the one that the processes know below.
        records.push((pid, record));
        members.push((space, memory));
        sets.add(space, cut_memory, options);
    }
    let mut all: Vec<&mut ProcessRecord> = records.iter_mut().map(|(_, record)| record).collect();
    let named = pid_namespaces::settle(&mut all, &inodes);
    let pids: HashMap<i32, i32> = records.iter().map(|(pid, record)| (record.pid, *pid)).collect();
    let refuse_process = |(pid, why): (i32, String)| {
        CutError::Refused(vec![refuse::process(pids.get(&pid).copied().unwrap_or(pid), why)])
    };
    let inits = named.map_err(refuse_process)?;
    list.settle_shown(&inits).map_err(refused)?;
    let all: Vec<&ProcessRecord> = records.iter().map(|(_, record)| record).collect();
    made_namespaces::check_maps(&all, &list.records).map_err(refuse_process)?;
    refuse::unless_empty(told_of_an_end(&records))?;
    let mut record = with_others(records).ok_or(CutError::Gone)?;
    // Where it lives as we do, it is ours to tell: one that was given since the stop does as well.
    if !nested {
        record.last_id = ids::last();
    }
    record.host.addresses = HostAddresses {
        network: gang::network_of(&program.to_string()),
        own: host_addresses::of_process(&program.to_string()),
        moved: options.addresses.to_vec(),
    };
    for description in &mut record.files.descriptions {
        list.settle(description.within.as_mut()).map_err(refused)?;
        if let Some(network) = description.object.network_mut() {
            *network = list.place(*network).map_err(refused)?;
        }
    }
    record.made_namespaces = list.records;
    (record.files.nameless, record.files.segments, record.files.ipc) =
        (once.nameless, once.segments, once.ipc);
    record.files.segment_contents = once.segment_contents;
    record.files.contents = contents;
    record.check().map_err(|what| CutError::Failed {
        what: format!("the record of the program is not sound: {what}"),
    })?;
    if let Err(why) = fork_plan::plan(&record) {
        return Err(CutError::Refused(vec![refuse::process(program, why)]));
    }
    refuse::unless_empty(refuse::open_numbers(program, &spare_numbers::of(&record)))?;
    Ok((record, members, sets))
}

/// Children that would be sent a signal when the main thread of their parent ends again, by the restart
/// (kernel/exit.c, forget_original_parent): they are the main thread's then, of
/// whichever thread they were.
fn told_of_an_end(records: &[(i32, ProcessRecord)]) -> Vec<Refusal> {
    let has_no_main = |record: &ProcessRecord| record.threads.iter().any(|thread| thread.ended.is_some());
    let parents: Vec<i32> =
        records.iter().filter(|(_, record)| has_no_main(record)).map(|(pid, _)| *pid).collect();
    let is_told = |record: &ProcessRecord| {
        parents.contains(&record.ppid)
            && record.threads.iter().any(|thread| thread.attributes.parent_death_signal != 0)
    };
    records.iter().filter(|(_, record)| is_told(record)).map(|(pid, _)| refuse::parent_death(*pid)).collect()
}

/// A connect(2) that the stop has interrupted goes on here. In the image its connection is there, or made by the
/// restart, and made again the call would fail with EISCONN (net/ipv4/af_inet.c, __inet_stream_connect): there it has
/// succeeded.
fn end_connects(processes: &mut [CapturedProcess]) {
    let is_connected = |description: &Description| match &description.object {
        Object::Socket(socket) => {
            let state = &socket.state;
            matches!(
                state,
                SocketState::Connected { .. } | SocketState::Member { .. } | SocketState::Pending { .. }
            )
        }
        _ => false,
    };
    // The first has what is open in all.
    let Some(first) = processes.first() else { return };
    let connected: Vec<bool> = first.inside.files.descriptions.iter().map(is_connected).collect();
    for Captured { seen, files, .. } in processes.iter_mut().map(|one| &mut one.inside) {
        for regs in seen.threads.iter_mut().map(|thread| &mut thread.stored) {
            let interrupted = (libc::SYS_connect.cast_unsigned(), ERESTARTSYS.cast_unsigned());
            if (regs.orig_rax, regs.rax) != interrupted {
                continue;
            }
            let own =
                files.descriptors.iter().find(|own| u64::try_from(own.fd).is_ok_and(|fd| fd == regs.rdi));
            if own.is_some_and(|own| connected.get(own.description as usize) == Some(&true)) {
                (regs.orig_rax, regs.rax) = (u64::MAX, 0);
            }
        }
    }
}

/// The paths of what the programs watch (inotify(7)).
fn find_watched(processes: &mut [CapturedProcess]) -> Result<(), CutError> {
    let watching = |one: &CapturedProcess| Watching {
        pid: one.inside.seen.live,
        cwd: one.inside.surroundings.cwd.path.as_path().to_owned(),
        shared: one.target.area.shared.0,
    };
    let pids: Vec<i32> = processes.iter().map(|one| one.target.pid).collect();
    let watching: Vec<Watching> = processes.iter().map(watching).collect();
    let mut tables: Vec<&mut FileTable> = processes.iter_mut().map(|one| &mut one.inside.files).collect();
    let refusals = inotify::find_paths(&mut tables, &watching);
    if refusals.is_empty() {
        return Ok(());
    }
    Err(capture_job::refused(&pids, refusals))
}

/// One record of all: the first with all others, each after its parent. Given with the ids that the agent sees.
fn with_others(records: Vec<(i32, ProcessRecord)>) -> Option<ProcessRecord> {
    let known: HashMap<i32, i32> = records.iter().map(|(pid, record)| (*pid, record.pid)).collect();
    let mut rest = records.into_iter().map(|(_, record)| record);
    let mut first = rest.next()?;
    let child = |mut record: ProcessRecord| {
        record.ppid = known.get(&record.ppid).copied().unwrap_or(NO_PARENT);
        record.host.vdso = Blob::default();
        record
    };
    let mut waiting: Vec<ProcessRecord> = rest.map(child).collect();
    let mut done = BTreeSet::from([NO_PARENT, first.pid]);
    // The descriptors of the others refer to the descriptions by their place among the processes, so locks do too.
    let places: Vec<i32> =
        std::iter::once(first.pid).chain(waiting.iter().map(|record| record.pid)).collect();
    while !waiting.is_empty() {
        let (ready, later): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|record| done.contains(&record.ppid));
        if ready.is_empty() {
            return None; // a circle: not what a kernel has
        }
        done.extend(ready.iter().map(|record| record.pid));
        first.others.extend(ready);
        waiting = later;
    }
    let now: HashMap<i32, u32> = first.processes().map(|process| process.pid).zip(0..).collect();
    for lock in first.files.descriptions.iter_mut().flat_map(|description| &mut description.locks) {
        let holder = places.get(lock.process as usize).and_then(|pid| now.get(pid));
        lock.process = holder.copied().unwrap_or(lock.process);
    }
    Some(first)
}

/// Parent of those whose parent is not of the job: process 1.
const NO_PARENT: i32 = 1;

fn describe(
    process: CapturedProcess,
    retained: Option<&Retained>,
    options: &CutOptions,
    state: &mut TracerState,
    once: &FileTable,
) -> Result<(ProcessRecord, OwnMemory, CutMemory), CutError> {
    let CapturedProcess { target, before, mut inside } = process;
    if let Some(Retained::Copy { copy, .. }) = retained {
        copy.detach_from_program()?;
        check_copy(copy.pid, &inside.cut_memory)?;
    }
    let seen = &inside.seen;
    let missing = inside.scenery.shared_files.missing(&seen.mapped);
    if options.only.is_none() && !missing.is_empty() {
        return Err(CutError::Unsettled(missing));
    }
    let flags = flags(&target, &before, seen, retained)?;
    let kept = state.of(&target);
    let files = regions::Files {
        shared: &inside.scenery.shared_files,
        identities: &mut kept.identities,
        pid: target.pid,
        self_contained: options.self_contained,
        once,
        insides: &seen.insides,
    };
    let (regions, mapped_files, whole) = regions::regions(&seen.mapped, &flags, &seen.policies, files);
    let replaced = |(_, (now, then)): &(&Mapped, (&bool, &bool))| **now && !**then;
    let mut wholes = seen.mapped.iter().zip(whole.iter().zip(&inside.whole));
    if options.only.is_none()
        && let Some((mapped, _)) = wholes.find(replaced)
    {
        let what = format!("{} was replaced meanwhile", String::from_utf8_lossy(&mapped.mapping.name));
        return Err(CutError::Busy { what });
    }
    let mut cut_memory = std::mem::take(&mut inside.cut_memory);
    let shared: PageSet = cut_memory.saved.first(cut_memory.shared).collect();
    cut_memory.dirty = cut_memory.dirty.union(&shared);
    cut_memory.saved.sort();
    let memory = memory(&target, &mut cut_memory, retained, &options.mapped)?;
    let guards = cut_memory.guards.runs().iter();
    let guards = guards.map(|run| GuardRegion { start: run.start, end: run.end() }).collect();
    let mut record = ProcessRecord { guards, ..record(&target, kept, inside, regions, mapped_files)? };
    record.host.baseline = options.baseline;
    record.host.key = Blob(options.key.clone());
    record.cuda = options.cuda.get(&target.pid).cloned();
    Ok((record, memory, cut_memory))
}

/// Where the pages of a process are read.
fn memory(
    target: &Target,
    cut_memory: &mut CutMemory,
    retained: Option<&Retained>,
    files: &Arc<MappedFiles>,
) -> Result<OwnMemory, CutError> {
    let pid = match retained {
        Some(Retained::Copy { copy, .. }) => Some(copy.pid),
        Some(Retained::Held(held)) => Some(held.living().unwrap_or(target.pid)),
        Some(Retained::Guarded { .. }) | None => None,
    };
    let living = match pid {
        Some(pid) => Some(Living { forced: File::open(format!("/proc/{pid}/mem"))? }),
        None => None,
    };
    Ok(OwnMemory {
        saved: std::mem::take(&mut cut_memory.saved),
        files: StoreFiles::new(cut_memory.files.clone(), Arc::clone(files)),
        living,
        guard: match retained {
            Some(Retained::Guarded { guard, .. }) => Some(Arc::clone(guard)),
            _ => None,
        },
    })
}

/// The flags that all mappings had at the stop.
fn flags(
    target: &Target,
    before: &Before,
    seen: &Seen,
    retained: Option<&Retained>,
) -> Result<Flags, CutError> {
    if let Some(flags) = &seen.mapping_flags {
        return Ok(flags.clone());
    }
    let of_process = |pid: i32| {
        procfs::by_any_thread(pid, |tid| procfs::vm_flags(pid, tid).ok().filter(|flags| !flags.is_empty()))
    };
    let copy = match retained {
        Some(Retained::Copy { copy, .. }) => Some(of_process(copy.pid)?),
        Some(Retained::Held(_)) => Some(of_process(target.pid)?),
        Some(Retained::Guarded { .. }) | None => None,
    };
    let lock_future = seen.process.attributes.lock_future;
    let changed = |what| CutError::Changed { what };
    let mut settled =
        map_flags::settle_flags(&seen.mapped, &before.flags, copy.as_ref(), lock_future, || {
            of_process(target.pid)
        })
        .map_err(changed)?;
    let locked = seen.status.number("VmLck") > Some(0) || mlock::any(&before.flags);
    if locked && matches!(retained, Some(Retained::Copy { .. })) {
        mlock::settle(&seen.mapped, &before.flags, &of_process(target.pid)?, &mut settled)
            .map_err(changed)?;
    }
    Ok(settled)
}

/// The copy has all pages that are to be read from it. Otherwise the program changed a flag of a mapping between the
/// look before the stop and the stop, and the clone left it out or wiped it.
fn check_copy(pid: i32, cut_memory: &CutMemory) -> Result<(), CutError> {
    let expected = cut_memory.frozen.difference(&cut_memory.of_files);
    match expected.difference(&tracking::existing(pid, &expected)?).runs().first() {
        Some(run) => {
            let start = run.start;
            let what = format!("memory at {start} was taken out of clones (MADV_DONTFORK, MADV_WIPEONFORK)");
            Err(CutError::Changed { what })
        }
        None => Ok(()),
    }
}

/// A main thread that has ended, beside another one: what a restart makes all threads by, and what ends then.
fn ended_main(pid: i32, (inner, job_tid): (i32, Option<i32>), other: &ThreadRecord) -> ThreadRecord {
    let fields = procfs::stat_fields(pid, pid).unwrap_or_default();
    // Field 52 of proc_pid_stat(5); 0 where it is not ours to know.
    let status = fields.get(52 - 3).and_then(|text| text.parse::<i32>().ok()).unwrap_or(0);
    ThreadRecord {
        tid: inner,
        job_tid,
        comm: Name(procfs::name(pid).into_bytes()),
        registers: vec![0; other.registers.len()],
        signal_mask: u64::MAX,
        pending: Vec::new(),
        alt_stack: AltStack { flags: libc::SS_DISABLE.cast_unsigned(), ..AltStack::default() },
        robust_list: Addr(0),
        robust_list_len: 0,
        clear_tid: Addr(0),
        rseq: None,
        wait: None,
        confinement: Confinement::default(),
        ended: Some(status),
        folder: None,
        ..other.clone()
    }
}

fn record(
    target: &Target,
    kept: &mut Kept,
    inside: Captured,
    regions: Vec<Region>,
    mapped_files: Vec<FileIdentity>,
) -> Result<ProcessRecord, CutError> {
    let Captured { seen, surroundings, scenery, mut files, zombies, stop_told, .. } = inside;
    let pid = target.pid;
    let exe_name = Name(surroundings.exe.clone());
    let exe_path = exe_name.as_path();
    let exe = kept
        .identities
        .of(exe_path, None, (pid, seen.mapped.iter().map(|mapped| &mapped.mapping)))
        .ok_or_else(|| CutError::Refused(vec![refuse::executable(&exe_name.0)]))?;
    let exe = regions::inside(exe, surroundings.exe_inside);
    let (status, inner_pid, stop_signal) = (&seen.status, seen.inner_pid, seen.stop_signal());
    let told = seen.threads.iter().zip(&seen.facts).zip(surroundings.around);
    let mut threads: Vec<_> = told
        .map(|((thread, facts), around)| state::thread_record((thread, seen.job_tid(thread)), facts, around))
        .collect();
    if !threads.iter().any(|thread| thread.tid == inner_pid) {
        threads.push(ended_main(pid, (inner_pid, seen.job_main()), &threads[0]));
    }
    threads.sort_by_key(|thread| (thread.tid != inner_pid, thread.tid));
    files.mapped = mapped_files;
    let blob = |info: &[u8; 128]| Blob(info.to_vec());
    Ok(ProcessRecord {
        pid: seen.job_pid,
        inner: seen.pid_namespaces.own.map(|_| pid_namespaces::ids(status)),
        children_in: None,
        ppid: i32::try_from(status.number("PPid").unwrap_or(0)).unwrap_or(0),
        pgid: status.at_depth("NSpgid", seen.job_depth).unwrap_or(0),
        sid: status.at_depth("NSsid", seen.job_depth).unwrap_or(0),
        exe,
        root: surroundings.root,
        namespaces: Vec::new(),
        made_namespaces: Vec::new(),
        cwd: surroundings.cwd.path,
        cwd_deleted: surroundings.cwd.deleted,
        cwd_inode: surroundings.cwd.inode,
        cwd_within: surroundings.cwd_within,
        shares_folder: surroundings.shares_folder,
        umask: status.get("Umask").and_then(|text| u32::from_str_radix(text, 8).ok()).unwrap_or(0o22),
        limits: surroundings.limits,
        host: HostRecord { realtime_ns: scenery.realtime_ns, ..state::host(seen.live, &scenery.vdso)? },
        layout: scenery.layout,
        regions,
        guards: Vec::new(),
        threads,
        signals: SignalRecord {
            actions: seen.process.actions,
            pending: seen.shared_pending.iter().map(blob).collect(),
            job_stopped: stop_signal.is_some(),
            stop_signal: stop_signal.unwrap_or(0),
            stop_told,
        },
        itimers: seen.process.itimers,
        posix_timers: seen.timers,
        files,
        inject: target.area,
        flags: scenery.flags,
        attributes: seen.process.attributes,
        filters: seen.filters,
        domain: seen.domain,
        ldt: seen.ldt,
        aio: seen.aio,
        rights: credentials::of(status, seen.namespaces.iter().any(Made::is_user)),
        cuda: None,
        space: target.space,
        zombies,
        others: Vec::new(),
        last_id: seen.process.last_id,
    })
}
