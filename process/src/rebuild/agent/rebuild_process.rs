//! One process under construction, from its exec to the moment before it is resumed. Runs in the agent.
//!
//! Called by [`super::rebuild_job`], for one process after the other: [`ProcessPlan`] before there is a process,
//! [`ProcessBuilder::rebuild`], and [`ProcessBuilder::complete`] when all are built, because timers run from there.
//! Order (the kernel's demands are at the head of each module; docs/stop.md, C.1): address space, pages, break,
//! descriptors and handlers, threads; locks, signals and timers, registers.

use super::address_space::AddressSpaceBuilder;
use super::filters::Moment;
use super::ipc::IpcObjects;
use super::options::{RebuildOptions, RebuiltMember};
use super::owners::{self, Setter};
use super::pages::PagesPlan;
use super::process_pages::ProcessPages;
use super::remote_calls::{CallArea, SeedThread};
use super::seed::{self, Layout};
use super::seize::ReadyProcess;
use super::sysv_shm::SysvShm;
use super::threads::NewThread;
use super::unlinked::{self, UnlinkedFiles};
use super::{
    aio, attributes, credentials, environment, fill, filters, job_control, landlock, lazy, ldt, namespaces,
    own_folder, proc_files, process_state, protection_keys, root, threads, tracker,
};
use crate::mapped_files::FileNumber;
use crate::rebuild::addresses;
use crate::rebuild::error::RebuildError;
use crate::rebuild::handshake::ReadyMessage;
use crate::rebuild::job::{Job, Member};
use crate::rebuild::kept_fds::SharedObject;
use crate::rebuild::processor;
use crate::rebuild::timings::RebuildTimings;
use crate::rebuild::vdso::ForeignVdso;
use crate::stop::continuation;
use crate::track::tracking::Tracking;
use holdfast_image::Addr;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{PageProvider, PageRun};
use holdfast_image::record::ProcessRecord;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::fault;
use holdfast_sys::procmem::ForcedMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// What is known of a process before it is there.
pub struct ProcessPlan<'a> {
    member: Member<'a>,
    pages: ProcessPages<'a>,
    layout: Layout,
    pages_plan: PagesPlan,
    shared: &'a BTreeMap<u64, SharedObject>,
    other_vdso: Option<&'a ForeignVdso<'a>>,
}

impl<'a> ProcessPlan<'a> {
    /// Of one process. `damaged`: see [`ProcessPages`].
    ///
    /// # Errors
    /// Its memory cannot be rebuilt.
    pub fn new(
        member: Member<'a>,
        pages: &'a dyn PageProvider,
        damaged: &PageSet,
        shared: &'a BTreeMap<u64, SharedObject>,
        other_vdso: Option<&'a ForeignVdso<'a>>,
        lazy: bool,
    ) -> Result<ProcessPlan<'a>, RebuildError> {
        let record = member.own;
        let segments = member.job.record.files.segments.iter().map(|segment| segment.size);
        let layout = Layout::choose(record, segments.max().unwrap_or(0))?;
        let pages = ProcessPages::new(pages, record.space, damaged);
        // Without its page the library could not make up for the difference (see `lazy`).
        // What the library calls for that, filters may forbid, and a Landlock domain what it opens.
        let can_map = record.inject.shared.0 != 0 && record.filters.is_empty() && record.domain.is_empty();
        let common = pages.shared_pages();
        let map = |segment| can_map && (lazy || Some(segment) == common);
        let served = common.filter(|_| pages.is_served());
        let pages_plan = PagesPlan::new(record, pages.extents(), map, served)?;
        Ok(ProcessPlan { member, pages, layout, pages_plan, shared, other_vdso })
    }

    /// What will be mapped from segments, as all processes together have it. Ascending.
    pub fn mapped(&self) -> Vec<PageRun> {
        let common = self.pages.shared_pages();
        let of_segments = self.pages_plan.mapped.iter().filter(|run| Some(run.segment) != common);
        let runs = of_segments.map(|run| PageRun::between(Addr(run.start), Addr(run.start + run.len)));
        self.pages.global(&runs.collect::<Vec<PageRun>>())
    }

    /// Adds what will be copied and mapped.
    pub fn count(&self, timings: &mut RebuildTimings) {
        timings.copied_bytes += self.pages_plan.copied_bytes();
        timings.mapped_bytes += self.pages_plan.mapped_bytes();
        timings.mapped_runs += self.pages_plan.mapped.len() as u64;
        timings.compressed_bytes += self.pages_plan.compressed;
        timings.scattered_bytes += self.pages_plan.scattered;
    }

    /// The address space of a process that is stopped at its exec, with its pages; and what finds later changes.
    fn rebuild_memory(
        &self,
        ReadyProcess { pid, ready }: ReadyProcess,
        objects: &JobObjects<'_>,
        timings: &mut RebuildTimings,
        notes: &mut Vec<String>,
    ) -> Result<(SeedThread, Arc<Tracking>), RebuildError> {
        let (record, job, layout) = (self.member.own, self.member.job, self.layout);
        let phase = Instant::now();
        let leader = seed::plant(record, (pid, ready.inner_pid), &layout, &open_memory(pid)?)?;
        fault::point("seed-ready");
        protection_keys::allocate(leader, record)?;
        let segments = objects.sysv_shm.ids();
        let (shared, other_vdso) = (self.shared, self.other_vdso.is_some());
        let builder =
            AddressSpaceBuilder { leader, layout, record, job, shared, segments: &segments, other_vdso };
        notes.extend(builder.build(&self.pages_plan, &self.pages)?);
        if let Some(other) = self.other_vdso {
            other.redirect_entries(record, pid, &open_memory(pid)?)?;
        }
        notes.extend(attributes::of_memory(leader, record)?);
        timings.map_ns += elapsed_ns(phase);

        let phase = Instant::now();
        let memory = open_memory(pid)?;
        fill::fill(&builder, &self.pages_plan, &self.pages, pid, &memory)?;
        objects.unlinked.fill(record, &self.pages)?;
        builder.protect(&self.pages_plan)?;
        unlinked::close(&builder, job, self.pages.is_served())?;
        let tracking = Arc::new(tracker::make(&builder, pid, self.pages.extents()));
        fault::point("seed-memory");
        timings.memory_ns += elapsed_ns(phase);
        Ok((leader, tracking))
    }
}

/// What the job has once, for all its processes.
pub struct JobObjects<'a> {
    /// Files without a name.
    pub unlinked: UnlinkedFiles<'a>,
    /// System V shared memory.
    pub sysv_shm: SysvShm,
    /// Semaphores and message queues.
    pub ipc: IpcObjects,
}

impl JobObjects<'_> {
    /// What the user should know.
    pub fn notes(&self) -> Vec<String> {
        self.sysv_shm.notes().into_iter().chain(self.ipc.notes()).collect()
    }

    /// Puts their content into what was found on the host, when nothing else can fail any more. `pages`: of one
    /// process.
    ///
    /// # Errors
    /// Names the object.
    pub fn fill<'p>(
        &mut self,
        job: &Job<'_>,
        pages: impl Fn(u32) -> ProcessPages<'p>,
    ) -> Result<(), RebuildError> {
        self.sysv_shm.clear(job)?;
        for member in job.members() {
            self.sysv_shm.fill(member.own, &pages(member.own.space))?;
        }
        self.sysv_shm.fill_unattached(&job.record.files.segment_contents)?;
        self.sysv_shm.settle()?;
        self.ipc.fill()
    }

    /// Leaves all to the program.
    pub fn keep(self) {
        self.sysv_shm.keep();
        self.ipc.keep();
    }
}

/// A process under construction: it has all but what runs.
pub struct ProcessBuilder<'a> {
    /// Which.
    pub member: Member<'a>,
    /// Its threads, the leader first.
    pub threads: Vec<NewThread<'a>>,
    /// Restarts that it has behind it.
    pub restarts: u64,
    /// The files behind the segments that are mapped.
    pub files: BTreeMap<u32, FileNumber>,
    memory: ForcedMemory,
    tracking: Arc<Tracking>,
    notes: Vec<String>,
}

impl<'a> ProcessBuilder<'a> {
    /// Rebuilds a process that is stopped at its exec.
    ///
    /// # Errors
    /// Names what failed.
    pub fn rebuild(
        plan: ProcessPlan<'a>,
        ready_process: ReadyProcess,
        objects: &JobObjects<'_>,
        options: &RebuildOptions,
        timings: &mut RebuildTimings,
    ) -> Result<ProcessBuilder<'a>, RebuildError> {
        let (member, ReadyProcess { pid, ready }) = (plan.member, ready_process);
        let record = member.own;
        let mut notes = Vec::new();
        let (leader, tracking) = plan.rebuild_memory(ready_process, objects, timings, &mut notes)?;
        let memory = open_memory(pid)?;

        let phase = Instant::now();
        let leader = leader.with_area(CallArea::of(&record.inject));
        threads::write_stub(&memory, &leader.area())?;
        process_state::identity(leader, record, (plan.layout.base, plan.layout.end))?;
        proc_files::reopen(leader, member)?;
        notes.extend(proc_files::log_in(leader, record)?);
        process_state::descriptors_and_signals(leader, member)?;
        namespaces::join(leader, member, plan.shared)?;
        let ready = namespaces::ready_inside(member, ready);
        aio::restore(leader, record, &memory)?;
        let threads = make_threads(leader, record, ready, &mut notes)?;
        own_folder::restore(leader, record, &threads)?;
        fault::point("seed-folders");
        if !ready.ids_chosen {
            process_state::virtual_ids(&memory, record, &threads)?;
        }
        let files = lazy::files(pid, &plan.pages_plan.mapped)?;
        lazy::write_ranges(&memory, record, &plan.pages_plan.mapped, &files)?;
        objects.sysv_shm.write_ids(&memory, record)?;
        let restarts = process_state::update_library_page(&memory, record, &options.socket_path)?;
        addresses::write(&memory, record, &options.addresses)?;
        environment::set(leader, record, &memory, &options.environment)?;
        timings.threads_ns += elapsed_ns(phase);
        objects.ipc.write_ids(&memory, record)?;
        Ok(ProcessBuilder { member, threads, restarts, files, memory, tracking, notes })
    }

    /// Its id as the agent sees it.
    pub fn pid(&self) -> i32 {
        self.threads.first().map_or(0, |leader| leader.seed.remote.tid)
    }

    /// Ids of its threads as the agent sees them, the leader first.
    pub fn tids(&self) -> impl Iterator<Item = i32> {
        self.threads.iter().map(|thread| thread.seed.remote.tid)
    }

    /// Its main thread, if that is to end before the others run.
    pub fn ending(&self) -> Option<i32> {
        let main = self.threads.first().filter(|main| main.record.ended.is_some())?;
        Some(main.seed.remote.tid)
    }

    /// Locks on files. Children before their parents.
    ///
    /// # Errors
    /// Names the file: another program has locked it meanwhile.
    pub fn lock(&mut self) -> Result<(), RebuildError> {
        let leader = self.threads.first().map(|leader| leader.seed);
        leader.map_or(Ok(()), |leader| process_state::locks(leader, self.member))
    }

    /// The rest: leases, pending signals, timers, registers, limits. Children before their parents; when files are put
    /// back.
    ///
    /// # Errors
    /// Names what failed.
    pub fn complete(&mut self) -> Result<(), RebuildError> {
        let Some(leader) = self.threads.first().map(|leader| leader.seed) else { return Ok(()) };
        let record = self.member.own;
        job_control::forget_stops(leader, self.member)?;
        process_state::leases(leader, self.member)?;
        self.notes.extend(owners::set(&self.threads, self.member, Setter::Restart)?);
        process_state::coredump_filter(leader.remote.tid, record);
        root::change(leader, record)?;
        filters::install(&self.threads, record, Moment::Suspended)?;
        fault::point("seed-filtered");
        credentials::restore(&self.threads, self.member)?;
        self.notes.extend(owners::set(&self.threads, self.member, Setter::Process)?);
        self.notes.extend(attributes::at_the_end(leader, record)?);
        landlock::restrict(&self.threads, record)?;
        fault::point("seed-restricted");
        process_state::pending_and_timers(leader, self.member)?;
        filters::install(&self.threads, record, Moment::Last)?;
        restore(record, &self.memory, &self.threads)?;
        process_state::limits(leader.remote.tid, record);
        if record.signals.job_stopped { job_control::stop_again(&self.threads, record) } else { Ok(()) }
    }

    /// What the user should know.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// What the agent keeps of it.
    pub fn into_member(self) -> RebuiltMember {
        let record = self.member.own;
        RebuiltMember { pid: self.pid(), space: record.space, area: record.inject, tracking: self.tracking }
    }
}

fn open_memory(pid: i32) -> Result<ForcedMemory, RebuildError> {
    ForcedMemory::open(pid, pid).map_err(RebuildError::io("opening the memory of the new process"))
}

/// All threads, each with what the kernel keeps for it.
fn make_threads<'a>(
    leader: SeedThread,
    record: &'a ProcessRecord,
    ready: ReadyMessage,
    notes: &mut Vec<String>,
) -> Result<Vec<NewThread<'a>>, RebuildError> {
    notes.extend(attributes::before_threads(leader, record)?);
    ldt::restore(leader, record)?;
    let all = threads::create(leader, record, ready.ids_chosen)?;
    fault::point("seed-threads");
    for thread in &all {
        notes.extend(attributes::of_thread(thread)?);
        threads::equip(thread, ready.drop_capabilities)?;
    }
    Ok(all)
}

/// Registers, states and masks of all threads, and what is left of timed waits.
fn restore(record: &ProcessRecord, memory: &ForcedMemory, all: &[NewThread<'_>]) -> Result<(), RebuildError> {
    for thread in all {
        let regs = match thread.record.ended {
            Some(status) => threads::registers_of_end(thread.seed, status),
            None => {
                let regs = threads::final_registers(memory, thread.record)?;
                processor::check_frames(record, thread.record, regs.rsp, memory)?;
                regs
            }
        };
        threads::restore(thread, &regs)?;
        process_state::scheduling(thread.seed.remote.tid, thread.record);
    }
    for wait in record.threads.iter().filter_map(|thread| thread.wait) {
        continuation::rearm(memory, &record.inject, wait.slot, wait.remaining_ns)
            .map_err(RebuildError::io(format!("setting the rest of the wait of slot {}", wait.slot)))?;
    }
    Ok(())
}
