//! The agent's half of a restart: takes over the new processes at their exec, and resumes the program.
//!
//! Order: all processes are met, seized and let execute; each is rebuilt ([`super::rebuild_process`]) but for what
//! runs from then on; all get their locks; files are put back; all get the rest (leases, timers, registers); all are
//! resumed, children before their parents. Until the last step the processes die with the agent (PTRACE_O_EXITKILL),
//! and any error kills all of them, as does a signal that tells the agent to end: there is no half-restarted program.

use super::ipc::IpcObjects;
use super::options::{RebuildOptions, Rebuilt};
use super::process_pages::ProcessPages;
use super::rebuild_process::{JobObjects, ProcessBuilder, ProcessPlan};
use super::resume::{KillOnDrop, resume_all};
use super::seize::{receive_all, seize_all};
use super::sysv_shm::SysvShm;
use super::taken_files::{self, TakenFiles};
use super::unlinked::UnlinkedFiles;
use super::{contents, queues, regular};
use crate::mapped_files::MappedFiles;
use crate::namespaces::Namespaces;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::kept_fds;
use crate::rebuild::members;
use crate::rebuild::rseq;
use crate::rebuild::shared_memfd;
use crate::rebuild::timings::RebuildTimings;
use crate::rebuild::vdso::{self, ForeignVdso};
use crate::rebuild::{inotify, processor};
use holdfast_image::address_space;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{MappableSegment, MappedFrom, PageProvider, PageRun, coalesce};
use holdfast_image::record::ProcessRecord;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::fault;
use holdfast_sys::procfs::Status;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Takes over the processes made by [`crate::rebuild::spawn`] at the other end of `front` and makes the program of
/// `record` of them. Returns when the program runs; calls `resuming` just before, with what the user should know. All
/// of it on the calling thread, but for the copying of pages.
///
/// # Errors
/// Names what failed; all new processes are dead then.
pub fn rebuild_job(
    record: &ProcessRecord,
    pages: &dyn PageProvider,
    front: OwnedFd,
    options: &RebuildOptions,
    resuming: &dyn Fn(&[String]),
) -> Result<Rebuilt, RebuildError> {
    let begun = Instant::now();
    record.check().map_err(RebuildError::Image)?;
    let job = Job::new(record);
    let shared = kept_fds::of_several(&job);
    let other = ForeignVdso::of(&record.host);
    let plan = |damaged: &PageSet| {
        let plan = |member| ProcessPlan::new(member, pages, damaged, &shared, other.as_ref(), options.lazy);
        job.members().map(plan).collect::<Result<Vec<ProcessPlan<'_>>, RebuildError>>()
    };
    let plans = plan(&PageSet::new())?;
    let connections = members::make(record, options.gang.as_deref(), &|| options.go_on())?;
    let ready_processes = receive_all(&front, &job, options, &connections)?;
    // The processes have them.
    drop(connections);
    let mut timings = RebuildTimings { files_ns: elapsed_ns(begun), ..RebuildTimings::default() };
    let phase = Instant::now();
    let first = ready_processes.first().map_or(0, |first| first.pid);
    // It has not run yet: they are none of its own making. Its parent stays where they are.
    let namespaces = Arc::new(job_namespaces(first));
    let mut not_resumed = KillOnDrop(ready_processes.iter().map(|ready_process| ready_process.pid).collect());
    seize_all(&ready_processes, &front)?;
    drop(front);
    timings.map_ns += elapsed_ns(phase);
    let phase = Instant::now();
    let damaged = damaged(&plans, pages)?;
    let plans = if damaged.is_empty() { plans } else { plan(&damaged)? };
    timings.memory_ns += elapsed_ns(phase);
    let (sysv_shm, ipc) = (SysvShm::claim(&job)?, IpcObjects::claim(&job)?);
    let (unlinked, common) =
        (UnlinkedFiles::from(&job, first)?, shared_memfd::take(&job, &shared, first, pages)?);
    let mut objects = JobObjects { unlinked, sysv_shm, ipc };
    let mut processes = Vec::with_capacity(plans.len());
    for (plan, ready_process) in plans.into_iter().zip(ready_processes) {
        options.go_on()?;
        plan.count(&mut timings);
        let process = ProcessBuilder::rebuild(plan, ready_process, &objects, options, &mut timings)
            .map_err(|error| of(&job, processes.len(), error))?;
        processes.push(process);
    }
    objects.unlinked.seal(&job)?;
    let phase = Instant::now();
    for (index, process) in processes.iter_mut().enumerate().rev() {
        process.lock().map_err(|error| of(&job, index, error))?;
    }
    let mut notes = Vec::new();
    let of_space = |space: u32| ProcessPages::new(pages, space, &damaged);
    let pids: Vec<i32> = processes.iter().map(ProcessBuilder::pid).collect();
    let pid = |index: usize| pids.get(index).copied();
    let take = |index: usize| taken_files::take(&job, index, pid);
    let (files, saved_dir) = (TakenFiles::new(&job, &take), &options.saved_dir);
    notes.extend(contents::put_back(&record.files, &files, &of_space(address_space::FILES), saved_dir)?);
    notes.extend(regular::put_back(&record.files, &files, saved_dir)?);
    notes.extend(regular::put_back_left(&options.left, record, saved_dir));
    for (index, process) in processes.iter_mut().enumerate().rev() {
        process.complete().map_err(|error| of(&job, index, error))?;
    }
    notes.extend(processes.iter_mut().flat_map(ProcessBuilder::take_notes));
    notes.extend(objects.notes());
    notes.extend(vdso::note(&record.host));
    notes.extend(rseq::note(record));
    notes.extend(processor::note(&record.host));
    objects.fill(&job, of_space)?;
    queues::put_back(&record.files, &files)?;
    options.go_on()?;
    fault::point("seed-let-go");
    let mapped = Arc::new(mapped_files(&processes, pages, common)?);
    objects.unlinked.close_all();
    // That is an event, too, where a folder is watched in which one was made.
    inotify::drain(&job, take)?;
    if let Some(gang) = &options.gang {
        members::meet_connected(gang.as_ref())?;
    }
    resume_all(&processes, &mut not_resumed, &|| resuming(&notes))?;
    fault::point("seed-resumed");
    objects.keep();
    timings.threads_ns += elapsed_ns(phase);
    timings.total_ns = elapsed_ns(begun);
    let restarts = processes.first().map_or(0, |process| process.restarts);
    let members = processes.into_iter().map(ProcessBuilder::into_member).collect();
    Ok(Rebuilt { members, mapped, namespaces, restarts, notes, timings })
}

/// Those that a restart has given the first process.
fn job_namespaces(first: i32) -> Namespaces {
    let own = Namespaces::of_job(first);
    let parent = Status::read(first, first).ok().and_then(|status| status.number("PPid"));
    match parent.and_then(|parent| i32::try_from(parent).ok()).filter(|parent| *parent > 0) {
        Some(parent) => own.seen_by(parent),
        None => own,
    }
}

/// Checks what is to be mapped; what of it is damaged where it would be mapped from.
fn damaged(plans: &[ProcessPlan<'_>], pages: &dyn PageProvider) -> Result<PageSet, RebuildError> {
    let mut wanted: Vec<PageRun> = plans.iter().flat_map(ProcessPlan::mapped).collect();
    coalesce(&mut wanted);
    pages.check_mapped(&wanted).map(PageSet::from).map_err(RebuildError::pages("checking the image"))
}

/// What the processes have mapped. `common`: see [`shared_memfd`].
fn mapped_files(
    processes: &[ProcessBuilder<'_>],
    pages: &dyn PageProvider,
    common: Option<File>,
) -> Result<MappedFiles, RebuildError> {
    let mut mapped = MappedFiles::default();
    for (&segment, &number) in processes.iter().flat_map(|process| &process.files) {
        let common = common.as_ref().filter(|_| pages.shared_pages() == Some(segment));
        let is = match common {
            Some(file) => {
                Some(MappableSegment { from: MappedFrom::SharedPages, file, begin: 0, len: u64::MAX })
            }
            None => pages.segment(segment),
        };
        let is = is.ok_or_else(|| RebuildError::Image(format!("the image has no segment {segment}")))?;
        mapped.add(number, is).map_err(RebuildError::io("keeping the files of the image open"))?;
    }
    Ok(mapped)
}

/// An error of one of several processes, by its id.
fn of(job: &Job<'_>, index: usize, error: RebuildError) -> RebuildError {
    match job.member(index).filter(|_| !job.record.others.is_empty()) {
        Some(member) => RebuildError::In { pid: member.own.pid, error: Box::new(error) },
        None => error,
    }
}
