//! After the stop: what a cut has read becomes a process record and a list of pages.
//!
//! Called by `cut`, on the tracer thread, while the program runs on. What must hold: if anything is in doubt (a mapping
//! changed between the look before the stop and the stop) there is no image.

use crate::capture::maps::{self, Flags};
use crate::capture::state;
use crate::cut::{Before, CutError, CutOptions, Inside, Kept, Target};
use crate::guard;
use crate::hold::HeldProgram;
use crate::memory::{FrozenMemory, Living, StoreFiles};
use crate::snapshot::Snapshot;
use crate::stop::Stragglers;
use crate::tracer::{Command, Current};
use crate::track;
use crossbeam_channel::Sender;
use holdfast_image::bytes::Name;
use holdfast_image::pages::Inherited;
use holdfast_image::record::{FileIdentity, ProcessRecord, Region, SignalRecord};
use holdfast_image::set::PageSet;
use holdfast_sys::procfs;
use std::fs::File;
use std::sync::Arc;

/// What [`after`] yields.
pub struct Described {
    /// Everything but the pages.
    pub record: ProcessRecord,
    /// Reads the pages.
    pub memory: FrozenMemory,
    /// What is kept until they are stored.
    pub current: Option<Current>,
    /// Which pages; its copy and buffers are in `current` and `memory` now.
    pub snapshot: Snapshot,
    /// What the image takes from elsewhere.
    pub inherited: Inherited,
}

/// Everything that needs no stop any more: the copy's own affairs, identities of files.
///
/// # Errors
/// The copy died, or the program changed meanwhile; the copy is ended, a held program let go.
#[allow(clippy::too_many_arguments)] // the parts of one cut
pub fn after(
    target: &Target,
    options: &CutOptions,
    kept: &mut Kept,
    before: &Before,
    inside: Inside,
    held: Option<HeldProgram>,
    commands: &Sender<Command>,
    stragglers: &mut Stragglers,
) -> Result<Described, CutError> {
    let mut inside = inside;
    let surplus = std::mem::take(&mut inside.snapshot.surplus);
    let current = match (inside.snapshot.copy.take(), held) {
        (Some(copy), _) => Some(Current::Copy { copy: Box::new(copy), surplus }),
        (None, Some(held)) => Some(Current::Held(Box::new(held))),
        (None, None) => inside
            .snapshot
            .guard
            .take()
            .map(|guard| Current::Guarded { guard: Arc::new(guard), target: Box::new(target.clone()) }),
    };
    match describe(target, options, kept, before, inside, current.as_ref(), commands) {
        Ok((record, memory, snapshot, inherited)) => {
            Ok(Described { record, memory, current, snapshot, inherited })
        }
        Err(error) => {
            match current {
                Some(Current::Copy { copy, .. }) => copy.end(),
                Some(Current::Held(held)) => held.resume(stragglers),
                Some(Current::Guarded { guard, target }) => {
                    if let Err(error) = guard::lift(&guard, &target, kept, stragglers) {
                        tracing::warn!(%error, "lifting the guard");
                    }
                }
                None => {}
            }
            Err(error)
        }
    }
}

fn describe(
    target: &Target,
    options: &CutOptions,
    kept: &mut Kept,
    before: &Before,
    mut inside: Inside,
    current: Option<&Current>,
    commands: &Sender<Command>,
) -> Result<(ProcessRecord, FrozenMemory, Snapshot, Inherited), CutError> {
    if let Some(Current::Copy { copy, .. }) = current {
        copy.detach_from_program()?;
        check_copy(copy.pid, &inside.snapshot)?;
    }
    let flags = flags(target, before, &inside, current)?;
    let (regions, mapped_files, whole) =
        maps::regions(&inside.mapped, &flags, &mut kept.identities, options.self_contained);
    if options.only.is_none()
        && let Some((mapped, _)) = inside
            .mapped
            .iter()
            .zip(whole.iter().zip(&inside.whole))
            .find(|(_, (now, then))| **now && !**then)
    {
        let what = format!("{} was replaced meanwhile", String::from_utf8_lossy(&mapped.mapping.name));
        return Err(CutError::Busy { what });
    }
    let mut snapshot = std::mem::take(&mut inside.snapshot);
    let inherited = snapshot.inherited(options);
    let shared: PageSet = snapshot.saved.first(snapshot.shared).collect();
    snapshot.dirty = snapshot.dirty.union(&shared);
    snapshot.saved.sort();
    let pid = match current {
        Some(Current::Copy { copy, .. }) => Some(copy.pid),
        Some(Current::Held(held)) => Some(held.living().unwrap_or(target.pid)),
        Some(Current::Guarded { .. }) | None => None,
    };
    let living = match pid {
        Some(pid) => Some(Living { pid, forced: File::open(format!("/proc/{pid}/mem"))? }),
        None => None,
    };
    let record = record(target, kept, inside, regions, mapped_files)?;
    record.check().map_err(|what| CutError::Failed {
        what: format!("the record of the program is not sound: {what}"),
    })?;
    let memory = FrozenMemory {
        saved: std::mem::take(&mut snapshot.saved),
        files: StoreFiles::new(std::mem::take(&mut snapshot.files)),
        living,
        guard: match current {
            Some(Current::Guarded { guard, .. }) => Some(Arc::clone(guard)),
            _ => None,
        },
        held: matches!(current, Some(Current::Held(_))),
        tracer: commands.clone(),
        ended: false,
    };
    Ok((record, memory, snapshot, inherited))
}

/// The flags that all mappings had at the stop.
fn flags(
    target: &Target,
    before: &Before,
    inside: &Inside,
    current: Option<&Current>,
) -> Result<Flags, CutError> {
    let of_process = |pid: i32| {
        procfs::by_any_thread(pid, |tid| procfs::vm_flags(pid, tid).ok().filter(|flags| !flags.is_empty()))
    };
    let copy = match current {
        Some(Current::Copy { copy, .. }) => Some(of_process(copy.pid)?),
        Some(Current::Held(_)) => Some(of_process(target.pid)?),
        Some(Current::Guarded { .. }) | None => None,
    };
    maps::settle_flags(&inside.mapped, &before.flags, copy.as_ref(), || of_process(target.pid))
        .map_err(|what| CutError::Busy { what })
}

/// The copy has all pages that are to be read from it. Otherwise the program changed a flag of a mapping between the look
/// before the stop and the stop, and the clone left it out or wiped it.
fn check_copy(pid: i32, snapshot: &Snapshot) -> Result<(), CutError> {
    let expected = snapshot.frozen.difference(&snapshot.of_files);
    match expected.difference(&track::existing(pid, &expected)?).runs().first() {
        Some(run) => {
            let start = run.start;
            let what = format!("memory at {start} was taken out of clones (MADV_DONTFORK, MADV_WIPEONFORK)");
            Err(CutError::Busy { what })
        }
        None => Ok(()),
    }
}

fn record(
    target: &Target,
    kept: &mut Kept,
    inside: Inside,
    regions: Vec<Region>,
    mapped_files: Vec<FileIdentity>,
) -> Result<ProcessRecord, CutError> {
    let pid = target.pid;
    let status = &inside.status;
    let exe_name = Name(inside.exe.clone());
    let exe_path = exe_name.as_path();
    let exe = kept.identities.of(exe_path, None).ok_or_else(|| CutError::Refused {
        reasons: vec![format!("executable {}: it was deleted or cannot be read", exe_path.display())],
    })?;
    let inner_pid = status.innermost("NStgid").unwrap_or(pid);
    let mut threads: Vec<_> = inside
        .threads
        .iter()
        .zip(&inside.facts)
        .map(|(thread, facts)| state::thread_record(pid, thread, facts))
        .collect();
    threads.sort_by_key(|thread| (thread.tid != inner_pid, thread.tid));
    let mut files = inside.files;
    files.mapped = mapped_files;
    Ok(ProcessRecord {
        pid: inner_pid,
        ppid: i32::try_from(status.number("PPid").unwrap_or(0)).unwrap_or(0),
        pgid: status.innermost("NSpgid").unwrap_or(0),
        sid: status.innermost("NSsid").unwrap_or(0),
        exe,
        cwd: Name(inside.cwd),
        umask: status.get("Umask").and_then(|text| u32::from_str_radix(text, 8).ok()).unwrap_or(0o22),
        limits: inside.limits,
        host: state::host(pid, &inside.vdso)?,
        layout: inside.layout,
        regions,
        threads,
        signals: SignalRecord {
            actions: inside.process.actions,
            pending: inside
                .shared_pending
                .iter()
                .map(|info| holdfast_image::bytes::Blob(info.to_vec()))
                .collect(),
            job_stopped: inside.threads.iter().all(|thread| thread.group_stopped),
        },
        itimers: inside.process.itimers,
        posix_timers: inside.timers,
        files,
        inject: target.area,
        flags: state::flags(pid, status),
    })
}
