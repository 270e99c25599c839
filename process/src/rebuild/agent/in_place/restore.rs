//! The rollback itself, on the tracer thread, with all processes held.
//!
//! Order: files that are to be mapped are opened; from here on all die with the agent; of each process the mappings,
//! the pages, what the kernel keeps; files; of each process signals, timers and registers; all run on, children before
//! their parents. What must hold: [`InPlaceError::Untouched`] only before the first change. Afterwards the tracer
//! forgets what it knew of the processes.

use super::memory::{Staged, Writer};
use super::plan::{Member, Plan};
use super::{objects, state};
use crate::error::TraceError;
use crate::inject::live_thread::LiveThread;
use crate::job::target::Target;
use crate::job::tracer_state::TracerState;
use crate::rebuild::agent::address_space::{AddressSpaceBuilder, Files};
use crate::rebuild::agent::pages::PagesPlan;
use crate::rebuild::agent::process_pages::ProcessPages;
use crate::rebuild::agent::remote_calls::{CallArea, Need, SeedThread};
use crate::rebuild::agent::seed::Layout;
use crate::rebuild::agent::taken_files::{self, TakenFiles};
use crate::rebuild::agent::threads::{self, NewThread};
use crate::rebuild::agent::{attributes, contents, process_state, regular};
use crate::rebuild::error::RebuildError;
use crate::rebuild::inotify;
use crate::rebuild::job::{self, Job};
use crate::stop::interrupt;
use crate::stop::resume::StoppedProgram;
use holdfast_abi::SharedPage;
use holdfast_image::address_space;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageProvider;
use holdfast_image::record::{Description, Object, PosixTimer, ProcessRecord};
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::{fault, procfs, ptrace};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// include/uapi/asm-generic/mman-common.h, Linux 6.13.
const MADV_GUARD_REMOVE: u64 = 103;
/// Longest wait for threads that enter a call.
const ENTERING: Duration = Duration::from_secs(1);

/// Why the program was not put back.
#[derive(Debug)]
pub enum InPlaceError {
    /// Nothing was changed.
    Untouched(RebuildError),
    /// Some of it was: it must not go on.
    Broken(RebuildError),
}

/// Everything that [`put_back`] needs, for the tracer thread.
pub struct InPlace {
    /// What is to be done.
    pub plan: Plan,
    /// With the processes that it is for.
    pub targets: Vec<Target>,
    /// Pages that were read and checked.
    pub staged: Staged,
    /// Has the others.
    pub pages: Arc<dyn PageProvider + Send>,
    /// Where ends of files go that are cut off.
    pub saved_dir: PathBuf,
    /// The agent's socket.
    pub socket: PathBuf,
}

impl fmt::Debug for InPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlace").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Puts all processes back and lets them run on. `held`: all of them, by space. Returns what the user should know.
///
/// # Errors
/// See [`InPlaceError`]. Where nothing was changed they can be resumed as after any stop; else they are to be ended.
pub fn put_back(
    held: &mut [(u32, &mut StoppedProgram)],
    request: &InPlace,
    state: &mut TracerState,
) -> Result<Vec<String>, InPlaceError> {
    put_all_back(held, request, state).map_err(|error| match error {
        InPlaceError::Untouched(error) => InPlaceError::Untouched(error.of_rollback()),
        InPlaceError::Broken(error) => InPlaceError::Broken(error.of_rollback()),
    })
}

fn put_all_back(
    held: &mut [(u32, &mut StoppedProgram)],
    request: &InPlace,
    state: &mut TracerState,
) -> Result<Vec<String>, InPlaceError> {
    let plan = &request.plan;
    // POSIX timers are there already.
    let mut then = plan.then.clone();
    let timers: Vec<Vec<PosixTimer>> = std::iter::once(&mut then.posix_timers)
        .chain(then.others.iter_mut().map(|other| &mut other.posix_timers))
        .map(std::mem::take)
        .collect();
    let job = Job::new(&then);
    let untouched = InPlaceError::Untouched;
    for (_, program) in held.iter_mut() {
        ready(program).map_err(untouched)?;
    }
    fault::point("rollback-ready");
    let mut processes = Vec::with_capacity(plan.members.len());
    for (member, own) in plan.members.iter().zip(job.members()) {
        let program = held.iter().find(|(space, _)| *space == member.space).map(|(_, program)| &**program);
        let begun = program
            .ok_or_else(|| RebuildError::Refused(format!("process {} is not held", member.pid)))
            .and_then(|program| Process::begin(member, own, program, request));
        match begun {
            Ok(process) => processes.push(process),
            Err(error) => {
                held.iter().for_each(|(_, program)| restore_registers(program));
                return Err(untouched(error));
            }
        }
    }
    let notes = change(&mut processes, &job, &timers, request).map_err(InPlaceError::Broken)?;
    for target in &request.targets {
        state.forget(target);
    }
    let tids: Vec<(Vec<i32>, bool)> = processes.iter().rev().map(Process::tids).collect();
    resume(&tids).map_err(InPlaceError::Broken)?;
    fault::point("rollback-done");
    Ok(notes)
}

/// Ends what the cut has begun in it: every thread has its own registers and mask.
fn ready(program: &mut StoppedProgram) -> Result<(), RebuildError> {
    if let (Some(host), Some(area)) = (&program.host, program.under_way.take()) {
        host.finish(&area, 0, &mut |_| Ok(()))?;
    }
    program.host.take().as_ref().map_or(Ok(()), LiveThread::put_back)?;
    Ok(())
}

/// After calls in it that have changed nothing.
fn restore_registers(program: &StoppedProgram) {
    for thread in &program.threads {
        let regs = thread.repaired.unwrap_or(thread.regs);
        let put = ptrace::set_registers(thread.tid, &regs)
            .and_then(|()| ptrace::set_signal_mask(thread.tid, thread.mask))
            .and_then(|()| ptrace::set_options(thread.tid, libc::PTRACE_O_TRACESYSGOOD));
        if let Err(error) = put {
            tracing::warn!(tid = thread.tid, %error, "putting a thread back");
        }
    }
}

/// All changes, in their order.
fn change(
    processes: &mut [Process<'_>],
    job: &Job<'_>,
    timers: &[Vec<PosixTimer>],
    request: &InPlace,
) -> Result<Vec<String>, RebuildError> {
    let pages = &*request.pages;
    let mut notes = Vec::new();
    for process in &mut *processes {
        notes.extend(process.memory(request)?);
    }
    fault::point("rollback-changed");
    if fault::fails("rollback-changed") {
        return Err(RebuildError::Refused("HOLDFAST_FAULT asks for a failure".into()));
    }
    for process in &*processes {
        process.kernel(request)?;
    }
    let pids: Vec<i32> = processes.iter().map(|process| process.member.pid).collect();
    let take = |index: usize| taken_files::take(job, index, |place| pids.get(place).copied());
    let (files, saved_dir) = (TakenFiles::new(job, &take), &request.saved_dir);
    let of_files = ProcessPages::new(pages, address_space::FILES, &PageSet::new());
    notes.extend(contents::put_back(&job.record.files, &files, &of_files, saved_dir)?);
    notes.extend(regular::put_back(&job.record.files, &files, saved_dir)?);
    for (index, then) in job.descriptions().iter().enumerate().filter(|(_, one)| is_put_back(one)) {
        let Some(now) = now_of(processes, job, index) else { continue };
        let mut file = take(index).map_err(RebuildError::io("taking a descriptor of the program"))?;
        objects::put_back(now, then, &mut file)?;
    }
    // What this has done to files is no event of the program's.
    inotify::drain(job, take)?;
    for (process, timers) in processes.iter().zip(timers).rev() {
        process.complete(timers)?;
    }
    Ok(notes)
}

fn is_put_back(description: &Description) -> bool {
    description.object != Object::Own
}

/// What a description of the image is now.
fn now_of<'p>(processes: &'p [Process<'_>], job: &Job<'_>, index: usize) -> Option<&'p Description> {
    let (place, fd) = job.holder(index)?;
    let own = &processes.get(place)?.member.now.files;
    let number = own.descriptors.iter().find(|one| one.fd == fd)?.description;
    processes.first()?.member.now.files.descriptions.get(number as usize)
}

/// One process that is being put back.
struct Process<'a> {
    member: &'a Member,
    own: job::Member<'a>,
    /// The threads of the image, the leader first.
    threads: Vec<NewThread<'a>>,
    /// All of them, as we see them.
    tids: Vec<i32>,
    is_stopped: bool,
    /// What is to be mapped, as a record.
    missing: ProcessRecord,
    files: Option<Files>,
    memory: ForcedMemory,
    restarts: u64,
}

impl<'a> Process<'a> {
    /// Makes ready, and opens files: nothing of it is to be seen by the program.
    fn begin(
        member: &'a Member,
        own: job::Member<'a>,
        program: &StoppedProgram,
        request: &InPlace,
    ) -> Result<Process<'a>, RebuildError> {
        let record = own.own;
        let memory = ForcedMemory::open(member.pid, member.pid)
            .map_err(RebuildError::io("opening the memory of the program"))?;
        // The calls that make this and what follows end the process where they are given up.
        for tid in program.tids() {
            let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
            ptrace::set_options(tid, options).map_err(TraceError::from)?;
        }
        let area = CallArea::of(&record.inject);
        threads::write_stub(&memory, &area)?;
        let leader = SeedThread::new(record, (member.pid, record.own_pid()), area)?;
        let mut all = Vec::with_capacity(record.threads.len());
        for then in &record.threads {
            let found = program.threads.iter().find(|thread| thread.inner == then.tid);
            let tid =
                found.ok_or_else(|| RebuildError::Image(format!("thread {} is not held", then.tid)))?.tid;
            let seed = if tid == member.pid { leader } else { leader.beside(tid, then.tid) };
            all.push(NewThread { seed, record: then });
        }
        let missing = ProcessRecord {
            regions: member.layout.missing.clone(),
            guards: member.layout.guard.clone(),
            others: Vec::new(),
            ..record.clone()
        };
        let restarts = restarts(&memory, record)?;
        let is_stopped = program.threads.iter().any(|thread| thread.stop_signal.is_some());
        let tids = program.tids();
        let mut process =
            Process { member, own, threads: all, tids, is_stopped, missing, files: None, memory, restarts };
        if !process.missing.regions.is_empty() {
            let pages = ProcessPages::new(&*request.pages, record.space, &PageSet::new());
            let files = process.builder(|builder| builder.open_more(&process.pages_plan(), &pages))?;
            process.files = Some(files);
        }
        Ok(process)
    }

    fn tids(&self) -> (Vec<i32>, bool) {
        (self.tids.clone(), self.is_stopped)
    }

    fn leader(&self) -> Result<SeedThread, RebuildError> {
        let leader = self.threads.first().map(|leader| leader.seed);
        leader.ok_or_else(|| RebuildError::Image("the record has a process without threads".into()))
    }

    /// Nothing is mapped from segments, and nothing is writable that is not to be.
    fn pages_plan(&self) -> PagesPlan {
        PagesPlan { early_write: vec![false; self.missing.regions.len()], ..PagesPlan::default() }
    }

    fn builder<T>(
        &self,
        then: impl FnOnce(&AddressSpaceBuilder<'_>) -> Result<T, RebuildError>,
    ) -> Result<T, RebuildError> {
        let shared = BTreeMap::new();
        then(&AddressSpaceBuilder {
            leader: self.leader()?,
            layout: Layout::nowhere(),
            record: &self.missing,
            job: self.own.job,
            shared: &shared,
            segments: &[],
            other_vdso: false,
        })
    }

    /// Mappings and pages.
    fn memory(&mut self, request: &InPlace) -> Result<Vec<String>, RebuildError> {
        let (leader, layout) = (self.leader()?, &self.member.layout);
        let mut batch = leader.batch();
        for range in &layout.unmap {
            let args = [range.start, range.end - range.start];
            batch.call(libc::SYS_munmap, &args, Need::Must("unmap", range.start))?;
        }
        for guard in &layout.open {
            let args = [guard.start.0, guard.end.0 - guard.start.0, MADV_GUARD_REMOVE];
            batch.call(libc::SYS_madvise, &args, Need::Must("remove the guard region at", guard.start.0))?;
        }
        for run in request.staged.given_back(self.member.space).runs() {
            let args = [run.start.0, run.pages.bytes(), libc::MADV_DONTNEED as u64];
            batch.call(libc::SYS_madvise, &args, Need::Must("give back memory at", run.start.0))?;
        }
        for (range, prot) in request.staged.to_be_writable(self.member.space) {
            let prot = u64::from(prot | libc::PROT_WRITE.cast_unsigned());
            let args = [range.start, range.end - range.start, prot];
            batch.call(libc::SYS_mprotect, &args, Need::Must("make writable memory at", range.start))?;
        }
        batch.finish()?;
        let mut notes = Vec::new();
        if let Some(files) = self.files.take() {
            notes.extend(self.builder(|builder| builder.map_more(&self.pages_plan(), files))?);
        }
        notes.extend(attributes::of_memory(leader, &self.missing)?);
        let tid = self.member.pid;
        let maps = procfs::maps(tid, tid).map_err(RebuildError::io("reading the mappings of the program"))?;
        let (space, forced) = (self.member.space, &self.memory);
        let writer = Writer { tid, space, maps: &maps, forced };
        request.staged.write(&writer, &*request.pages)?;
        threads::write_stub(&self.memory, &CallArea::of(&self.own.own.inject))?;
        self.protect(request)?;
        Ok(notes)
    }

    /// Protection, guard regions, locks.
    fn protect(&self, request: &InPlace) -> Result<(), RebuildError> {
        let mut batch = self.leader()?.batch();
        let opened = request.staged.to_be_writable(self.member.space);
        let protect = self.member.layout.protect.iter();
        // What is protected otherwise comes last.
        for (range, prot) in opened.iter().chain(protect) {
            let args = [range.start, range.end - range.start, u64::from(*prot)];
            batch.call(libc::SYS_mprotect, &args, Need::Must("protect memory at", range.start))?;
        }
        batch.finish()?;
        self.builder(|builder| builder.protect(&self.pages_plan()))
    }

    /// What the kernel keeps, but for what runs.
    fn kernel(&self, request: &InPlace) -> Result<(), RebuildError> {
        let (leader, now) = (self.leader()?, &self.member.now);
        let owns = now.files.descriptors.iter().filter(|one| {
            let all = request.plan.members.first().map(|first| &first.now.files.descriptions);
            let description = all.and_then(|all| all.get(one.description as usize));
            description.is_some_and(|description| description.object == Object::Own)
        });
        let mut batch = leader.batch();
        for own in owns {
            let fd = u64::from(own.fd.cast_unsigned());
            batch.call(libc::SYS_close, &[fd], Need::May)?;
        }
        batch.finish()?;
        state::stop_timers(leader, now, &state::timer_descriptors(self.own))?;
        state::settings(leader, now, self.own)?;
        self.update_library_page(request)
    }

    /// It counts as one more restart: libholdfast in the program must know that its connections are gone.
    fn update_library_page(&self, request: &InPlace) -> Result<(), RebuildError> {
        let (record, page) = (self.own.own, self.own.own.inject.shared.0);
        if page != 0 {
            self.memory
                .write(page + SharedPage::RESTARTS as u64, &self.restarts.to_le_bytes())
                .map_err(RebuildError::io("writing the page of libholdfast in the program"))?;
        }
        process_state::update_library_page(&self.memory, record, &request.socket).map(drop)
    }

    /// The rest: signals, timers, registers.
    fn complete(&self, timers: &[PosixTimer]) -> Result<(), RebuildError> {
        for thread in &self.threads {
            thread.seed.block_signals()?;
            state::drain(thread.seed)?;
        }
        state::signals_and_timers(&self.threads, self.own, timers)?;
        state::registers(&self.threads, &self.member.now, self.own.own, &self.memory)
    }
}

/// How many restarts the program has behind it.
fn restarts(memory: &ForcedMemory, record: &ProcessRecord) -> Result<u64, RebuildError> {
    let mut word = [0; 8];
    let page = record.inject.shared.0;
    if page != 0 {
        memory
            .read(page + SharedPage::RESTARTS as u64, &mut word)
            .map_err(RebuildError::io("reading the page of libholdfast in the program"))?;
    }
    Ok(u64::from_le_bytes(word))
}

/// Lets all run on: threads of processes, children first, and whether job control has stopped them.
fn resume(processes: &[(Vec<i32>, bool)]) -> Result<(), RebuildError> {
    let all = || processes.iter().flat_map(|(tids, _)| tids);
    for tid in all() {
        ptrace::set_options(*tid, libc::PTRACE_O_TRACESYSGOOD).map_err(TraceError::from)?;
    }
    let running = processes.iter().filter(|(_, is_stopped)| !is_stopped).flat_map(|(tids, _)| tids);
    let pauses = |tid: &&i32| ptrace::registers(**tid).is_ok_and(|regs| interrupt::pauses(&regs));
    let pausing: Vec<i32> = running.filter(pauses).copied().collect();
    let signals = interrupt::enter_pauses(&pausing, ENTERING);
    for tid in all() {
        if let Err(error) = ptrace::detach(*tid, signals.get(tid).copied().unwrap_or(0)) {
            // Killed meanwhile.
            tracing::debug!(tid, %error, "detach");
        }
    }
    Ok(())
}
