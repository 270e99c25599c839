//! After the stop: what a cut has read becomes a process record and a list of pages.
//!
//! Called by `cut`, on the tracer thread, while the program runs on. What must hold: if anything is in doubt (a mapping
//! changed between the look before the stop and the stop) there is no image.

use crate::capture::maps;
use crate::capture::state;
use crate::cut::{CutError, CutOptions, HeldProgram, Inside, Kept, Target};
use crate::memory::FrozenMemory;
use crate::stop::Stragglers;
use crate::tracer::{Command, Current};
use crossbeam_channel::Sender;
use holdfast_image::bytes::Name;
use holdfast_image::pages::{PageRun, TakeList, coalesce};
use holdfast_image::record::{FileIdentity, ProcessRecord, Region, SignalRecord};
use std::fs::File;

/// Everything that needs no stop any more: the copy's own affairs, identities of files, the list of pages.
///
/// # Errors
/// The copy died, or the program changed meanwhile; the copy is ended, a held program let go.
pub fn after(
    target: &Target,
    options: &CutOptions,
    kept: &mut Kept,
    inside: Inside,
    held: Option<HeldProgram>,
    commands: &Sender<Command>,
    stragglers: &mut Stragglers,
) -> Result<(ProcessRecord, FrozenMemory, Current), CutError> {
    let mut inside = inside;
    let (current, pid) = match (inside.copy.take(), held) {
        (Some(copy), _) => {
            let pid = copy.pid;
            (Current::Copy(Box::new(copy)), pid)
        }
        (None, Some(held)) => {
            let live = held.living().unwrap_or(target.pid);
            (Current::Held(Box::new(held)), live)
        }
        (None, None) => return Err(CutError::Gone),
    };
    match describe(target, options, kept, inside, &current, pid, commands) {
        Ok((record, memory)) => Ok((record, memory, current)),
        Err(error) => {
            match current {
                Current::Copy(copy) => copy.end(),
                Current::Held(held) => held.resume(stragglers),
            }
            Err(error)
        }
    }
}

fn describe(
    target: &Target,
    options: &CutOptions,
    kept: &mut Kept,
    mut inside: Inside,
    current: &Current,
    pid: i32,
    commands: &Sender<Command>,
) -> Result<(ProcessRecord, FrozenMemory), CutError> {
    let mut flags = maps::flags_of(pid, pid)?;
    if let Current::Copy(copy) = current {
        copy.detach_from_program()?;
        maps::check_copy(&inside.mapped, &flags).map_err(|what| CutError::Busy { what })?;
    }
    // Mappings kept out of the clone have their flags from before.
    for mapped in inside.mapped.iter().filter(|mapped| mapped.outside_clone) {
        flags.entry(mapped.mapping.start).or_insert_with(|| vec!["dc".to_owned()]);
    }
    let (regions, mapped_files, whole) =
        maps::regions(&inside.mapped, &flags, &mut kept.identities, options.self_contained);
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut runs = maps::page_runs(&pagemap, &inside.mapped, &whole)?;
    inside.saved.sort();
    runs.extend(inside.saved.runs());
    order(&mut runs, options);
    let forced = File::open(format!("/proc/{pid}/mem"))?;
    let saved = std::mem::take(&mut inside.saved);
    let held = matches!(current, Current::Held(_));
    let record = record(target, kept, inside, regions, mapped_files)?;
    record.check().map_err(|what| CutError::Failed {
        what: format!("the record of the program is not sound: {what}"),
    })?;
    let memory = FrozenMemory {
        runs: TakeList::new(runs),
        saved,
        pid,
        forced,
        held,
        tracer: commands.clone(),
        ended: false,
    };
    Ok((record, memory))
}

/// Protected ranges first; only them, if so asked.
fn order(runs: &mut Vec<PageRun>, options: &CutOptions) {
    let inside = |ranges: &[PageRun]| {
        let mut part = Vec::new();
        for run in runs.iter() {
            for range in ranges {
                let (start, end) = (run.start.max(range.start), run.end().min(range.end()));
                if start < end {
                    let pages = holdfast_image::PageCount((end.0 - start.0) / holdfast_image::PAGE_SIZE);
                    part.push(PageRun { start, pages });
                }
            }
        }
        coalesce(&mut part);
        part
    };
    if let Some(only) = &options.only {
        *runs = inside(only);
        return;
    }
    // Whole runs move to the front: splitting them would only make frames smaller.
    let touches =
        |run: &PageRun| options.first.iter().any(|range| range.start < run.end() && run.start < range.end());
    runs.sort_by_key(|run| (!touches(run), run.start));
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
