//! The agent's half of a restart: takes over the new processes at their exec, and lets the program go.
//!
//! Order: all processes are met, seized and let execute; each is rebuilt ([`super::process`]) but for what runs from then
//! on; all get the rest (locks, timers, registers); all are let go, children before their parents. Until the last step
//! the processes die with the agent (PTRACE_O_EXITKILL), and any error kills all of them: there is no half-restarted
//! program.

use super::error::{FRONT, RebuildError};
use super::handshake::{GO, Handover};
use super::ipc::IpcObjects;
use super::member::Job;
use super::process::{Arrival, Draft, Site};
use super::process_pages::View;
use super::remote_calls::{Task, ended};
use super::shared_anonymous;
use super::shared_memfd::Common;
use super::sysv_shm::Segments;
use super::timings::RebuildFigures;
use super::unlinked::Taken;
use super::vdso::{self, Other};
use super::{contents, inotify, processor, regular};
use crate::error::TraceError;
use crate::stop::interrupt;
use crate::track::tracking::Tracking;
use holdfast_image::address_space;
use holdfast_image::pages::PageProvider;
use holdfast_image::record::{InjectArea, ProcessRecord};
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::fault;
use holdfast_sys::ptrace::{self, Wait};
use holdfast_sys::scm::{self, Received};
use holdfast_sys::{fd, poll, procfs};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Longest wait for threads that enter a call.
const ENTERING: Duration = Duration::from_secs(1);

/// How the agent finishes a restart.
#[derive(Clone, Debug)]
pub struct FinishOptions {
    /// Map pages from the image where that is possible, instead of copying all of them first.
    pub lazy: bool,
    /// The agent's socket, told to the library in the program.
    pub socket_path: PathBuf,
    /// Where ends of files go that are cut off because they were written after the checkpoint.
    pub saved_dir: PathBuf,
}

/// A program that runs again.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// Its processes, the first one first.
    pub members: Vec<RebuiltMember>,
    /// What they have in common until they write; for [`crate::CutOptions::common`].
    pub common: Option<Arc<Common>>,
    /// Restarts that it has behind it, this one included.
    pub restarts: u64,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
    /// Where the time went.
    pub figures: RebuildFigures,
}

/// One process of it.
#[derive(Clone, Debug)]
pub struct RebuiltMember {
    /// Its process id as the agent sees it.
    pub pid: i32,
    /// Number of its address space.
    pub space: u32,
    /// Where libholdfast reserved room for the agent.
    pub area: InjectArea,
    /// What is written from now on.
    pub tracking: Arc<Tracking>,
}

/// Kills the new processes unless they were let go.
struct Victims(Vec<i32>);

impl Drop for Victims {
    fn drop(&mut self) {
        for pid in &self.0 {
            let mut threads = procfs::tasks(*pid).unwrap_or_default();
            // A tracer must take note of the end of each thread, the leader's last, or its parent never hears of it.
            threads.sort_by_key(|tid| tid == pid);
            let _ = ptrace::kill(*pid, libc::SIGKILL);
            for tid in threads {
                while let Ok(state) = ptrace::wait(tid, true) {
                    if let Wait::Exited(_) = state {
                        break;
                    }
                }
            }
        }
    }
}

/// Takes over the processes made by [`super::spawn`] at the other end of `front` and makes the program of `record` of
/// them. Returns when the program runs. All of it on the calling thread, but for the copying of pages.
///
/// # Errors
/// Names what failed; all new processes are dead then.
pub fn finish(
    record: &ProcessRecord,
    pages: &dyn PageProvider,
    front: OwnedFd,
    options: &FinishOptions,
) -> Result<Rebuilt, RebuildError> {
    let begun = Instant::now();
    record.check().map_err(RebuildError::Image)?;
    let job = Job::new(record);
    let shared = shared_anonymous::of_several(&job);
    let checked = AtomicBool::new(false);
    let other = Other::of(&record.host);
    let draft = |member| Draft::new(member, pages, &checked, &shared, other.as_ref(), options.lazy);
    let drafts = job.members().map(draft);
    let drafts = drafts.collect::<Result<Vec<Draft<'_>>, RebuildError>>()?;
    let arrivals = meet_all(&front, &job)?;
    let mut figures = RebuildFigures { files_ns: elapsed_ns(begun), ..RebuildFigures::default() };
    let phase = Instant::now();
    let mut victims = Victims(arrivals.iter().map(|arrival| arrival.pid).collect());
    take_over(&arrivals, &front)?;
    drop(front);
    figures.map_ns += elapsed_ns(phase);
    let (mut segments, ipc) = (Segments::claim(&job)?, IpcObjects::claim(&job)?);
    let first = arrivals.first().map_or(0, |first| first.pid);
    let (nameless, common) = (Taken::from(&job, first)?, Common::take(&job, &shared, first, pages)?);
    let mut sites = Vec::with_capacity(drafts.len());
    for (draft, arrival) in drafts.into_iter().zip(arrivals) {
        draft.count(&mut figures);
        let site = Site::build(draft, arrival, &nameless, &segments, options, &mut figures)
            .and_then(|site| ipc.tell(site.memory(), site.member.own).map(|()| site))
            .map_err(|error| of(&job, sites.len(), error))?;
        sites.push(site);
    }
    nameless.seal()?;
    let phase = Instant::now();
    for (place, site) in sites.iter_mut().enumerate().rev() {
        site.wind_up().map_err(|error| of(&job, place, error))?;
    }
    let mut notes: Vec<String> = sites.iter_mut().flat_map(Site::take_notes).collect();
    notes.extend(segments.notes());
    notes.extend(ipc.notes());
    notes.extend(vdso::note(&record.host));
    notes.extend(processor::note(&record.host));
    let of_files = View::new(pages, address_space::FILES, &checked);
    notes.extend(contents::put_back(&record.files, &of_files, &options.saved_dir)?);
    notes.extend(regular::put_back(&record.files, &options.saved_dir)?);
    inotify::drain(&job, |place| sites.get(place).map(Site::pid))?;
    // What is found on the host is changed when nothing else can fail any more.
    for member in job.members() {
        segments.fill(member.own, &View::new(pages, member.own.space, &checked))?;
    }
    segments.settle()?;
    ipc.fill()?;
    fault::point("seed-let-go");
    let_go(&sites, &mut victims)?;
    segments.keep();
    ipc.keep();
    figures.threads_ns += elapsed_ns(phase);
    figures.total_ns = elapsed_ns(begun);
    let restarts = sites.first().map_or(0, |site| site.restarts);
    let members = sites.into_iter().map(Site::into_member).collect();
    Ok(Rebuilt { members, common: common.map(Arc::new), restarts, notes, figures })
}

/// An error of one of several processes, by its id.
fn of(job: &Job<'_>, place: usize, error: RebuildError) -> RebuildError {
    match job.member(place).filter(|_| !job.record.others.is_empty()) {
        Some(member) => RebuildError::In { pid: member.own.pid, error: Box::new(error) },
        None => error,
    }
}

/// Waits until the new processes have all their files; by their places in the job.
fn meet_all(front: &OwnedFd, job: &Job<'_>) -> Result<Vec<Arrival>, RebuildError> {
    scm::expect(front.as_fd()).map_err(RebuildError::io("waiting for the new processes"))?;
    if job.record.others.is_empty() {
        return Ok(vec![meet(front)?]);
    }
    let wanted: Vec<i32> = job.members().map(|member| member.own.pid).collect();
    let mut met: BTreeMap<i32, Arrival> = BTreeMap::new();
    while met.len() < wanted.len() {
        let arrival = meet(front)?;
        let id = arrival.handover.inner_pid;
        if !wanted.contains(&id) {
            return Err(RebuildError::Ids(format!("a new process has the id {id}, which nobody had")));
        }
        met.insert(id, arrival);
    }
    Ok(wanted.iter().filter_map(|id| met.remove(id)).collect())
}

/// Waits for one; its id as seen here, and what it says of itself.
fn meet(front: &OwnedFd) -> Result<Arrival, RebuildError> {
    let io = || RebuildError::io("waiting for the new process");
    let mut buffer = [0_u8; 64];
    let Received { len, pid, .. } = loop {
        if poll::readable(&[front.as_fd()], None).map_err(io())? == [true] {
            match scm::receive(front.as_fd(), &mut buffer) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => break other.map_err(io())?,
            }
        }
    };
    if len == 0 {
        return Err(RebuildError::Left(FRONT));
    }
    let handover = Handover::from_bytes(&buffer[..len]).ok_or_else(|| {
        RebuildError::Image("holdfast restart and the agent are of different versions".into())
    })?;
    if pid <= 0 {
        return Err(RebuildError::Ids("the new process has no id in the agent's pid namespace".into()));
    }
    Ok(Arrival { pid, handover })
}

/// Seizes the processes and waits until each has executed its executable.
fn take_over(arrivals: &[Arrival], front: &OwnedFd) -> Result<(), RebuildError> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_EXITKILL;
    for arrival in arrivals {
        ptrace::seize(arrival.pid, options).map_err(TraceError::from)?;
    }
    fault::point("seed-born");
    // Each takes one, whichever.
    for _ in arrivals {
        fd::send(front.as_fd(), GO, libc::MSG_NOSIGNAL)
            .map_err(RebuildError::io("telling the new processes to go on"))?;
    }
    arrivals.iter().try_for_each(|arrival| wait_for_exec(arrival.pid))
}

fn wait_for_exec(pid: i32) -> Result<(), RebuildError> {
    loop {
        match ptrace::wait(pid, true).map_err(TraceError::from)? {
            Wait::Event(libc::PTRACE_EVENT_EXEC) => return Ok(()),
            Wait::Exited(status) => return Err(ended(status)),
            _ => ptrace::cont(pid, 0).map_err(TraceError::from)?,
        }
    }
}

/// Takes the options away (the program must not die with the agent) and lets all threads run, children before parents; before them
/// all those enter pause(2) that waited there.
fn let_go(sites: &[Site<'_>], victims: &mut Victims) -> Result<(), RebuildError> {
    let all = || sites.iter().rev().flat_map(|site| &site.tasks);
    for task in all() {
        ptrace::set_options(task.tid, libc::PTRACE_O_TRACESYSGOOD).map_err(TraceError::from)?;
    }
    let running = sites.iter().filter(|site| !site.member.own.signals.job_stopped);
    let pauses = |tid: &i32| ptrace::registers(*tid).is_ok_and(|regs| interrupt::pauses(&regs));
    let pausing: Vec<i32> =
        running.flat_map(|site| &site.tasks).map(|task| task.tid).filter(pauses).collect();
    let signals = interrupt::enter_pauses(&pausing, ENTERING);
    for (number, Task { tid, .. }) in all().enumerate() {
        match ptrace::detach(*tid, signals.get(tid).copied().unwrap_or(0)) {
            Ok(()) => {}
            // Those before it run already, and one of them has ended this one. Its parent hears of that when a tracer
            // has taken note of the end of each thread (ptrace(2), "Death under ptrace").
            Err(error) if number > 0 && error.raw_os_error() == Some(libc::ESRCH) => {
                match ptrace::wait(*tid, true) {
                    Ok(Wait::Exited(_)) | Err(_) => {}
                    // It had no processor to enter its call in time.
                    Ok(Wait::Signal(signal)) => ptrace::detach(*tid, signal).map_err(TraceError::from)?,
                    Ok(_) => ptrace::detach(*tid, 0).map_err(TraceError::from)?,
                }
            }
            Err(error) => return Err(TraceError::from(error).into()),
        }
    }
    victims.0.clear();
    Ok(())
}
