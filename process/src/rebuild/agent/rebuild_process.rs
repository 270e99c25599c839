//! One process under construction, from its exec to the moment before it is resumed. Runs in the agent.
//!
//! Called by [`super::rebuild_job`], for one process after the other: [`Draft`] before there is a process,
//! [`Site::build`], and [`Site::wind_up`] when all are built, because timers run from there. Order (the kernel's
//! demands are at the head of each module; docs/stop.md, C.1): address space, pages, break, descriptors and handlers, threads; locks, signals and
//! timers, registers.

use super::address_space::{Builder, seed_place};
use super::arrival::Arrival;
use super::options::{FinishOptions, RebuiltMember};
use super::pages::Plan;
use super::process_pages::View;
use super::remote_calls::{Hand, Task, Workplace};
use super::seed::{self, Layout};
use super::sysv_shm::Segments;
use super::unlinked::{self, Taken};
use super::{attributes, credentials, job_control, lazy, proc_files, process_state, threads, tracker};
use crate::rebuild::error::RebuildError;
use crate::rebuild::handshake::Handover;
use crate::rebuild::job::Member;
use crate::rebuild::kept_fds::SharedObject;
use crate::rebuild::processor;
use crate::rebuild::timings::RebuildFigures;
use crate::rebuild::vdso::Other;
use crate::stop::continuation;
use crate::track::tracking::Tracking;
use holdfast_image::pages::PageProvider;
use holdfast_image::record::ProcessRecord;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::fault;
use holdfast_sys::procmem::ForcedMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// What is known of a process before it is there.
pub struct Draft<'a> {
    member: Member<'a>,
    pages: View<'a>,
    layout: Layout,
    plan: Plan,
    shared: &'a BTreeMap<u64, SharedObject>,
    other_vdso: Option<&'a Other<'a>>,
}

impl<'a> Draft<'a> {
    /// Of one process. `checked`: see [`View`].
    ///
    /// # Errors
    /// Its memory cannot be rebuilt.
    pub fn new(
        member: Member<'a>,
        pages: &'a dyn PageProvider,
        checked: &'a AtomicBool,
        shared: &'a BTreeMap<u64, SharedObject>,
        other_vdso: Option<&'a Other<'a>>,
        lazy: bool,
    ) -> Result<Draft<'a>, RebuildError> {
        let record = member.own;
        let segments = member.job.record.files.segments.iter().map(|segment| segment.size);
        let layout = Layout::choose(record, segments.max().unwrap_or(0))?;
        let pages = View::new(pages, record.space, checked);
        // Without its page the library could not make up for the difference (see `lazy`).
        let can_map = record.inject.shared.0 != 0;
        let common = pages.common();
        let plan =
            Plan::new(record, pages.extents(), |segment| can_map && (lazy || Some(segment) == common))?;
        Ok(Draft { member, pages, layout, plan, shared, other_vdso })
    }

    /// Adds what will be copied and mapped.
    pub fn count(&self, figures: &mut RebuildFigures) {
        figures.copied_bytes += self.plan.copied_bytes();
        figures.mapped_bytes += self.plan.mapped_bytes();
        figures.mapped_runs += self.plan.mapped.len() as u64;
    }
}

/// A process that has all but what runs.
pub struct Site<'a> {
    /// Which.
    pub member: Member<'a>,
    /// Its threads, the leader first.
    pub tasks: Vec<Task>,
    /// Restarts that it has behind it.
    pub restarts: u64,
    hand: Hand,
    memory: ForcedMemory,
    tracking: Arc<Tracking>,
    notes: Vec<String>,
}

impl<'a> Site<'a> {
    /// Rebuilds a process that stands at its exec. `segments`: the job's System V shared memory.
    ///
    /// # Errors
    /// Names what failed.
    pub fn build(
        draft: Draft<'a>,
        arrival: Arrival,
        nameless: &Taken<'_>,
        segments: &Segments,
        options: &FinishOptions,
        figures: &mut RebuildFigures,
    ) -> Result<Site<'a>, RebuildError> {
        let Draft { member, pages, layout, plan, shared, other_vdso } = draft;
        let (record, Arrival { pid, handover }) = (member.own, arrival);
        let phase = Instant::now();
        let leader = Task { tid: pid, inner: handover.inner_pid };
        let hand = Hand::new(record, leader)?;
        let open = || {
            ForcedMemory::open(pid, pid).map_err(RebuildError::io("opening the memory of the new process"))
        };
        seed::plant(&hand, leader, &layout, &open()?)?;
        fault::point("seed-ready");
        let (ids, job) = (segments.ids(), member.job);
        let builder = Builder {
            hand: &hand,
            leader,
            layout,
            record,
            job,
            shared,
            segments: &ids,
            other_vdso: other_vdso.is_some(),
        };
        let mut notes: Vec<String> = builder.build(&plan, &pages)?.into_iter().collect();
        if let Some(other) = other_vdso {
            other.lead_on(record, pid, &open()?)?;
        }
        notes.extend(attributes::of_memory(&hand, seed_place(&layout), leader, record)?);
        figures.map_ns += elapsed_ns(phase);

        let phase = Instant::now();
        let memory = open()?;
        plan.carry_out(&pages, pid, &memory)?;
        nameless.fill(record, &pages)?;
        builder.protect(&plan)?;
        unlinked::close(&builder, member.job)?;
        let tracking = Arc::new(tracker::make(&builder, pid, pages.extents()));
        fault::point("seed-memory");
        figures.memory_ns += elapsed_ns(phase);

        let phase = Instant::now();
        let place = Workplace::in_area(&record.inject);
        threads::write_stub(&memory, &place)?;
        process_state::identity(&hand, place, leader, record, (layout.base, layout.end))?;
        proc_files::reopen(&hand, place, leader, member)?;
        process_state::descriptors_and_signals(&hand, place, leader, member)?;
        let tasks = make_threads(&hand, place, leader, record, handover, &mut notes)?;
        if !handover.ids_chosen {
            process_state::virtual_ids(&memory, record, &tasks)?;
        }
        lazy::tell(&memory, record, pid, &plan.mapped)?;
        segments.tell(&memory, record)?;
        let restarts = process_state::tell_library(&memory, record, &options.socket_path)?;
        figures.threads_ns += elapsed_ns(phase);
        Ok(Site { member, tasks, restarts, hand, memory, tracking, notes })
    }

    /// Its id as the agent sees it.
    pub fn pid(&self) -> i32 {
        self.tasks.first().map_or(0, |leader| leader.tid)
    }

    /// The rest: locks, pending signals, timers, registers, limits. Children before their parents.
    ///
    /// # Errors
    /// Names what failed.
    pub fn wind_up(&mut self) -> Result<(), RebuildError> {
        let Some(&leader) = self.tasks.first() else { return Ok(()) };
        let (record, hand) = (self.member.own, &self.hand);
        let place = Workplace::in_area(&record.inject);
        job_control::heard(hand, place, leader, self.member)?;
        process_state::locks(hand, place, leader, self.member)?;
        process_state::owners(hand, place, leader, self.member)?;
        credentials::give(hand, place, &self.tasks, record)?;
        self.notes.extend(attributes::at_the_end(hand, place, leader, record)?);
        process_state::pending_and_timers(hand, place, leader, self.member)?;
        restore(record, &self.memory, &self.tasks)?;
        process_state::limits(leader.tid, record);
        if record.signals.job_stopped { job_control::stand_still(&self.tasks, record) } else { Ok(()) }
    }

    /// Its memory.
    pub fn memory(&self) -> &ForcedMemory {
        &self.memory
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

/// All threads, each with what the kernel keeps for it.
fn make_threads(
    hand: &Hand,
    place: Workplace,
    leader: Task,
    record: &ProcessRecord,
    handover: Handover,
    notes: &mut Vec<String>,
) -> Result<Vec<Task>, RebuildError> {
    notes.extend(attributes::before_threads(hand, place, leader, record)?);
    let all = threads::create(hand, place, leader, record, handover.ids_chosen)?;
    fault::point("seed-threads");
    for (task, thread) in all.iter().zip(&record.threads) {
        notes.extend(attributes::of_thread(hand, place, *task, thread)?);
        threads::equip(hand, place, *task, thread, handover.drop_capabilities)?;
    }
    Ok(all)
}

/// Registers, states and masks of all threads, and what is left of timed waits.
fn restore(record: &ProcessRecord, memory: &ForcedMemory, all: &[Task]) -> Result<(), RebuildError> {
    for (task, thread) in all.iter().zip(&record.threads) {
        let regs = threads::final_registers(memory, thread)?;
        processor::check_frames(record, thread, regs.rsp, memory)?;
        threads::restore(*task, thread, &regs)?;
        process_state::scheduling(task.tid, thread);
    }
    for wait in record.threads.iter().filter_map(|thread| thread.wait) {
        continuation::rearm(memory, &record.inject, wait.slot, wait.remaining_ns)
            .map_err(RebuildError::io(format!("setting the rest of the wait of slot {}", wait.slot)))?;
    }
    Ok(())
}
