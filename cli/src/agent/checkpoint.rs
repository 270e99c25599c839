//! One checkpoint, from the pre-copy to the commit, in a thread of its own: the agent's loop goes on answering
//! meanwhile.
//!
//! The order of steps is here; [`precopy`], [`cut`], the flush ([`FlushSource`]) and the [`WriteMonitor`] have files
//! of their own. Invariants: at most one runs at a time; whatever fails, the writer is dropped (its files vanish),
//! the frozen copy is dropped (the program runs on), and what was written stays written down for the next image; the
//! program is ended only after the commit; what fails after that fails no image. Fails by: [`Event::Done`] with the
//! reason.

use super::carry_over::CarryOver;
use super::context::JobContext;
use super::cuda::{AfterCut, Cuda};
use super::cut;
use super::error::CheckpointError;
use super::events::{Event, NewImage, Progress, Reporter};
use super::flush::FlushSource;
use super::headroom::Headroom;
use super::kept::TakenMemory;
use super::precopy::{self, Precopied};
use super::request::CheckpointRequest;
use super::retention;
use super::slot_waiters;
use super::space;
use super::write_monitor::{Costs, Scene, WriteMonitor};
use super::{gang, guarding};
use crate::front_link::Tell;
use crate::last_run::{How, LastRun};
use crate::report;
use crate::settings::{OrderChoice, Settings};
use holdfast_image::addresses::{of_one_without_library, used};
use holdfast_image::bytes::Name;
use holdfast_image::control::Step;
use holdfast_image::kinds::{Tracker, UsedEngine};
use holdfast_image::manifest::{AccessCounts, EpochFigures};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{Inherited, PageRun, TakeList};
use holdfast_image::record::{ProcessRecord, UnsavedFile};
use holdfast_image::{Epoch, PageCount};
use holdfast_pager::{FlushQueue, Order as QueueOrder, Prediction};
use holdfast_process::cuda::Suspended;
use holdfast_process::{Cut, FrozenMemory, Members, Tracer, Tracking};
use holdfast_sys::clock::elapsed_ns;
use holdfast_tiers::stack::Cascade;
use holdfast_tiers::{CommitRecord, ImageWriter, Lineage, MemoryFirst, PipelineOptions, Record, StoreError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// Starts the thread.
///
/// # Errors
/// EAGAIN: no thread can be made.
pub fn start(
    context: Arc<JobContext>,
    tracer: Arc<Tracer>,
    request: CheckpointRequest,
    progress: Arc<Progress>,
    reporter: Reporter,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("checkpoint".into()).spawn(move || {
        let result = make_with_gang(&context, &tracer, request, &progress, &reporter);
        let result = result.map_err(|error| space::explain(&context, error));
        if let Ok(made) = &result
            && (context.gang.is_none() || made.gang_image.is_some())
        {
            retention::apply(&context, made.info.epoch);
            guarding::start(&context);
        }
        reporter.report(Event::Done(result));
    })
}

/// Makes it; where the members of a gang could not be stopped in time, the leader has them try again.
fn make_with_gang(
    context: &JobContext,
    tracer: &Arc<Tracer>,
    mut request: CheckpointRequest,
    progress: &Progress,
    reporter: &Reporter,
) -> Result<NewImage, CheckpointError> {
    let begun = Instant::now();
    loop {
        let made = make(context, tracer, &request, progress, reporter);
        let Some(round) = request.round.take() else { return made };
        let error = match made {
            Err(error) => gang::failed(&round, error),
            made => return made,
        };
        drop(round);
        match gang::again(context, &request, &error, begun) {
            Some(next) => request.round = Some(next),
            None => return Err(error),
        }
    }
}

/// Makes the image, and sees to it that no page is forgotten if that fails.
fn make(
    context: &JobContext,
    tracer: &Arc<Tracer>,
    request: &CheckpointRequest,
    progress: &Progress,
    reporter: &Reporter,
) -> Result<NewImage, CheckpointError> {
    let mut carry_over = context.carry_over.lock();
    let members = request.members()?;
    let settings = context.settings().with(&request.options.changes);
    let mut headroom = Headroom::of(&members)?;
    context.share.claim(|others| {
        headroom.leave(others);
        let Some(memory) = context.job.memory().filter(|memory| memory.is_written()) else { return 0 };
        let most = context.settings().tiers.memory().and_then(|spec| spec.rules.max_bytes);
        let used = memory.used();
        let limit = used.saturating_add(headroom.share_with_tier()).min(most.unwrap_or(u64::MAX));
        memory.limit(limit);
        limit.saturating_sub(used)
    });
    let settings = headroom.bounded(settings);
    let mut attempt = Attempt {
        context,
        settings: &settings,
        headroom,
        tracer,
        request,
        members,
        progress,
        reporter,
        carry_over: &mut carry_over,
    };
    let mut committed = false;
    let result = attempt.run(&mut committed);
    // What was taken others see for themselves.
    context.share.set_memory(0);
    if let Ok(made) = &result {
        attempt.tell_passed_by(made.info.epoch);
        attempt.carry_over.next = made.info.epoch.0.checked_add(1).map(Epoch);
    }
    attempt.members.tell(if committed { Tracking::committed } else { Tracking::failed });
    if let Some(contents) = context.contents.as_ref().filter(|_| committed) {
        contents.committed();
    }
    result
}

/// One checkpoint under way.
struct Attempt<'a> {
    context: &'a JobContext,
    settings: &'a Settings,
    headroom: Headroom,
    tracer: &'a Arc<Tracer>,
    request: &'a CheckpointRequest,
    /// Who was there when it was looked last.
    members: Members,
    progress: &'a Progress,
    reporter: &'a Reporter,
    carry_over: &'a mut CarryOver,
}

/// A flush that is about to begin.
struct Flush {
    monitor: WriteMonitor,
    queue: Arc<FlushQueue>,
    /// See [`slot_waiters::run`].
    copies_first: Option<PageCount>,
    figures: EpochFigures,
    cuda: AfterCut,
    kept: Option<TakenMemory>,
    blank: PageSet,
}

/// For so many checkpoints a pre-copy is bounded that was in vain.
const WARY: u32 = 32;

/// The bound on copies as a number.
fn bound(limit: Option<PageCount>) -> u64 {
    limit.map_or(u64::MAX, |limit| limit.0)
}

/// On how many copies the order of the flush may count: half of the bound. The rest is for what the program does
/// otherwise than predicted.
fn copies_for_order(engine: UsedEngine, limit: Option<PageCount>) -> PageCount {
    PageCount(if engine.copies_on_write() { bound(limit) / 2 } else { 0 })
}

/// Writes down what the flush cost.
fn note(figures: &mut EpochFigures, costs: &Costs) {
    figures.flush = costs.writes;
    figures.copies_peak = costs.copies_peak.0;
    figures.held_ns = u64::try_from(costs.held.as_nanos()).unwrap_or(u64::MAX);
    figures.holds = costs.holds;
}

impl Attempt<'_> {
    fn run(&mut self, committed: &mut bool) -> Result<NewImage, CheckpointError> {
        // Behind the images that only lower tiers have, too.
        let lower = self.context.cascade.as_ref().map_or(0, Cascade::newest);
        let next = self.carry_over.next.take().map_or_else(|| self.context.job.next_epoch(), Ok)?;
        let epoch = next.max(Epoch(lower.saturating_add(1)));
        let parent = self.parent();
        let is_whole = parent.is_none();
        // Before the stop: a store that cannot be written must not cost the program anything.
        let mut writer = self.context.job.begin(&self.context.lock, epoch, parent)?;
        self.context.share.want_rate(self.settings.rate);
        writer.share_rate(&self.context.share);
        let options = self.pipeline(None);
        let mut precopied = Precopied::default();
        // All memory of a program that uses CUDA is read at the cut.
        if precopy::is_wanted(self.settings, self.request) && Cuda::users(&self.members).is_empty() {
            self.progress.enter(epoch, Step::Precopy);
            let passed = |done, total| self.progress.passed(done, total);
            precopied = precopy::run(&mut writer, &self.members, self.carry_over, &options, &passed)?;
        }
        self.progress.enter(epoch, Step::Stop);
        if let Some(monitor) = &self.carry_over.monitor {
            monitor.written(&precopied.dirty);
            monitor.pause();
            self.carry_over.write_rate = monitor.write_rate().next_epoch();
        }
        if let Some(contents) = self.context.contents.as_ref().filter(|_| !self.settings.only_protected) {
            let pids: Vec<i32> = self.members.targets().iter().map(|target| target.pid).collect();
            contents.read_ahead(&pids);
        }
        let seen = (&*self.carry_over, is_whole);
        let cut::Made { mut cut, first, suspended, kept, blank } =
            match cut::make(self.context, self.settings, self.tracer, self.request, seen) {
                Ok(made) => made,
                Err(failed) => {
                    self.carry_over.monitor.iter().for_each(WriteMonitor::go_on);
                    return Err(failed);
                }
            };
        let mut targets = cut.targets.clone();
        self.members = Members::new(targets.remove(0), targets);
        self.progress.enter(epoch, Step::Flush);
        let host_ns = cut.breakdown.total_ns;
        let stop_ns = suspended.as_ref().map_or(host_ns, |suspended| suspended.figures(host_ns).1);
        self.reporter.report(Event::Cut { epoch, stop_ns });
        let say = self.context.cuda.voice();
        let cuda = AfterCut::begin(suspended, cut.memory.is_held(), host_ns, say)?;
        // At once: from now on writes may cost copies.
        let limit = self.settings.cow.0.pages(cut.tracked);
        let monitor = match self.start_monitor(&mut cut, limit) {
            Ok(monitor) => monitor,
            Err(failed) => {
                // Before the driver's part, which needs the program's threads.
                drop(cut);
                return Err(failed);
            }
        };
        let unchanged = PageSet::from(cut.inherited.unchanged.clone());
        let is_lost = precopied.is_lost(&unchanged);
        self.carry_over.wary = if is_lost { WARY } else { self.carry_over.wary.saturating_sub(1) };
        let figures = self.end_epoch(&cut, &precopied, limit);
        let queue = self.queue(&cut, kept.as_ref(), &first, limit);
        monitor.set_queue(Arc::clone(&queue));
        let copies_first = self.copies_first(limit);
        self.flush(writer, cut, Flush { monitor, queue, copies_first, figures, cuda, kept, blank }, committed)
    }

    /// The image that the new one builds on. Where what it has on the first tier turned out to be damaged, all memory
    /// is stored.
    fn parent(&mut self) -> Option<Arc<Lineage>> {
        if self.settings.only_protected {
            return None;
        }
        let lineage = self.carry_over.lineage.clone()?;
        if lineage.may_be_parent() {
            return Some(lineage);
        }
        let epoch = lineage.epoch();
        tracing::warn!("the store lacks parts of image {epoch}: the next image stores all memory");
        self.members.tell(Tracking::doubt);
        if let Some(contents) = &self.context.contents {
            contents.doubt();
        }
        self.carry_over.lineage = None;
        None
    }

    fn pipeline(&self, limit: Option<PageCount>) -> PipelineOptions {
        let workers = thread::available_parallelism().map_or(1, |cores| cores.get().min(4));
        PipelineOptions {
            workers,
            compression: self.settings.compress,
            rate: self.settings.rate,
            // What a worker stores now cannot be overtaken by pages that make room.
            part_pages: limit.map(|limit| (limit.0 / (8 * workers as u64)).clamp(16, 1024)),
        }
    }

    /// Ends the epoch before: what it has taught goes into the history. Returns what is known of the new image so far.
    fn end_epoch(&mut self, cut: &Cut, precopied: &Precopied, limit: Option<PageCount>) -> EpochFigures {
        let tracker = self.members.kind();
        let ended = self.carry_over.monitor.take().filter(|monitor| monitor.is_of(&self.members));
        let mut counts = AccessCounts::default();
        if let (Some(monitor), Tracker::Userfaultfd) = (ended, tracker) {
            let epoch = monitor.finish(&cut.dirty);
            counts = epoch.counts();
            self.carry_over.history.push(epoch);
        }
        let order = if self.settings.is_sync() { OrderChoice::Sync } else { self.settings.order };
        let period = self.carry_over.history.period().map_or(0, |period| period.lag);
        EpochFigures {
            tracker: tracker.to_string(),
            order: order.name().to_owned(),
            pages_tracked: cut.tracked.0,
            pages_dirty: precopied.dirty.union(&cut.dirty).pages().0,
            pages_precopy: precopied.stored,
            ended: counts,
            copies_limit: limit.map_or(0, |limit| limit.0),
            period: u32::try_from(period).unwrap_or(0),
            ..EpochFigures::default()
        }
    }

    fn start_monitor(
        &self,
        cut: &mut Cut,
        limit: Option<PageCount>,
    ) -> Result<WriteMonitor, CheckpointError> {
        let threads: usize = cut.record.processes().map(|process| process.threads.len()).sum();
        let threads = u32::try_from(threads).unwrap_or(u32::MAX);
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        WriteMonitor::start(Scene {
            members: self.members.clone(),
            tracer: Arc::clone(self.tracer),
            dirty: cut.dirty.clone(),
            frozen: cut.frozen.clone(),
            others: PageSet::from(cut.inherited.unchanged.clone()),
            writers: threads.min(u32::try_from(cores).unwrap_or(u32::MAX)),
            // With engine slots the bound keeps itself.
            limit: limit.filter(|_| cut.engine != UsedEngine::Slots),
            room: self.headroom.most_copied(1),
            begun: cut.resumed_at,
            write_rate: self.carry_over.write_rate,
            parked: cut.parked.take(),
        })
        .map_err(|error| {
            CheckpointError::Failed(format!("starting the thread that monitors the program: {error}"))
        })
    }

    /// All that is dirty in the programs' own memory, in the order in which it will be stored.
    fn queue(
        &self,
        cut: &Cut,
        kept: Option<&TakenMemory>,
        first: &[PageRun],
        limit: Option<PageCount>,
    ) -> Arc<FlushQueue> {
        let history = &self.carry_over.history;
        let (order, prediction) = match self.settings.order {
            OrderChoice::History => (QueueOrder::History, history.predict()),
            OrderChoice::Classes => (QueueOrder::Classes, history.last()),
            OrderChoice::Address | OrderChoice::Sync => (QueueOrder::Address, Prediction::default()),
        };
        let prediction = prediction.with_copies(copies_for_order(cut.engine, limit));
        let host = kept.map(|kept| cut.dirty.difference(kept.changed()));
        Arc::new(FlushQueue::new(host.as_ref().unwrap_or(&cut.dirty), order, Some(&prediction), first))
    }

    /// From how many copies on, with engine `slots`, copies are stored before all others.
    fn copies_first(&self, limit: Option<PageCount>) -> Option<PageCount> {
        match self.settings.order {
            // By address is the flush that learns nothing, neither from before nor from what it sees: AI-Ckpt's
            // `async-no-pattern`.
            OrderChoice::Address | OrderChoice::Sync => None,
            OrderChoice::Classes => Some(PageCount(0)),
            OrderChoice::History if self.carry_over.history.is_empty() => Some(PageCount(0)),
            OrderChoice::History => Some(PageCount(bound(limit) / 4 * 3)),
        }
    }

    fn flush(
        &mut self,
        mut writer: ImageWriter,
        cut: Cut,
        flush: Flush,
        committed: &mut bool,
    ) -> Result<NewImage, CheckpointError> {
        // First, and so dropped last: the driver's part needs the program's threads.
        let Flush { cuda, monitor, queue, copies_first, mut figures, kept, blank } = flush;
        let Cut { record, mut breakdown, begun, resumed_at, engine, inherited, unsaved, memory, .. } = cut;
        self.tell_unsaved(&unsaved);
        self.tell_of_addresses(&record);
        let bounded = figures.copies_limit > 0 && engine.copies_on_write();
        let options = self.pipeline(bounded.then_some(PageCount(figures.copies_limit)));
        let source = FlushSource {
            memory: &memory,
            kept: kept.as_ref(),
            queue: &queue,
            devices: TakeList::new(
                kept.as_ref().map_or_else(Vec::new, |kept| kept.changed().runs().to_vec()),
            ),
            monitor: &monitor,
            blank: &blank,
            several: self.members.targets().len() > 1,
        };
        let flushing = Instant::now();
        let stored = self.store(&mut writer, &source, &inherited, &options, copies_first);
        if let Err(StoreError::Lost { .. }) = stored {
            self.members.tell(Tracking::doubt);
            if let Some(contents) = &self.context.contents {
                contents.doubt();
            }
        }
        stored?;
        self.carry_over.flush_rate.learn(queue.pages().0, flushing.elapsed());
        if memory.is_held() {
            breakdown.total_ns = elapsed_ns(begun);
        }
        // All is stored: unless the program is to be ended, let the copy go before the slow fsync.
        let held = if self.request.options.stop {
            Some(memory)
        } else {
            drop(memory);
            None
        };
        note(&mut figures, &monitor.flush_done());
        self.progress.enter(writer.epoch(), Step::Commit);
        let (suspended, restored) = cuda.finish(held.is_some(), &mut breakdown);
        let bytes = record.encode().map_err(CheckpointError::Failed)?;
        let (info, lineage) = writer.commit(CommitRecord {
            record: Record { kind: ProcessRecord::KIND, bytes },
            stop: breakdown,
            resumed_at,
            engine: engine.to_string(),
            command: self.context.command.clone(),
            run_ns: self.context.run_ns,
            protected_only: self.settings.only_protected,
            epoch: figures,
            unsaved,
            history: self.carry_over.history.encode(),
        })?;
        *committed = true;
        kept.into_iter().for_each(TakenMemory::committed);
        if !self.settings.only_protected {
            self.carry_over.lineage = Some(lineage);
        }
        self.carry_over.monitor = Some(monitor);
        let epoch = info.epoch;
        let committed_but =
            |what: String| CheckpointError::Failed(format!("image {epoch} is committed, but {what}"));
        // Before the program is ended, if it is to be.
        let named = self
            .request
            .round
            .as_ref()
            .map(|round| gang::name_image(self.context, round, epoch, self.request.options.stop));
        let (gang_image, unnamed) = match named.transpose() {
            Ok(image) => (image, None),
            Err(error) => (None, Some(error)),
        };
        let mut failed = restored.err().map(|left| format!("{left}; end the program and restart it"));
        if let Some(memory) = held.filter(|_| unnamed.is_none()) {
            match self.end_program(memory, epoch) {
                Ok(()) => suspended.into_iter().for_each(Suspended::ending),
                Err(error) => failed = Some(format!("ending the program failed: {error}")),
            }
        }
        Ok(NewImage { info, gang_image, failed: unnamed.or(failed.map(committed_but)) })
    }

    /// Says which files are not in the image, if it has not said so of the last.
    fn tell_unsaved(&mut self, unsaved: &[UnsavedFile]) {
        let names: Vec<&Name> = unsaved.iter().map(|file| &file.path).collect();
        if self.carry_over.unsaved.iter().ne(names.iter().copied()) {
            for line in report::unsaved(unsaved) {
                tracing::warn!("{line}");
                if let Some(link) = &self.context.link {
                    link.tell(&Tell::Warning { text: line });
                }
            }
            self.carry_over.unsaved = names.into_iter().cloned().collect();
        }
    }

    /// Says once that a process cannot be restarted where addresses are others.
    fn tell_of_addresses(&mut self, record: &ProcessRecord) {
        let without = record.processes().find(|process| process.inject.shared.0 == 0);
        let Some(process) = without.filter(|_| !self.carry_over.told_of_addresses) else { return };
        let name = process.threads.first().map_or_else(String::new, |leader| leader.comm.to_string());
        if let Some(text) = of_one_without_library(process.pid, &name, &used(record)) {
            self.carry_over.told_of_addresses = true;
            self.context.warn(text);
        }
    }

    /// Says once that an image found no room in memory.
    fn tell_passed_by(&mut self, epoch: Epoch) {
        let Some(why) = self.context.job.memory().and_then(MemoryFirst::passed_by) else { return };
        let text = format!("image {epoch} went to the store instead of tier memory: {why}");
        if std::mem::replace(&mut self.carry_over.told_passed_by, true) {
            tracing::info!("{text}");
        } else {
            self.context.warn(text);
        }
    }

    /// Stores all pages of the source.
    fn store(
        &self,
        writer: &mut ImageWriter,
        source: &FlushSource<'_>,
        inherited: &Inherited,
        options: &PipelineOptions,
        copies_first: Option<PageCount>,
    ) -> Result<(), StoreError> {
        let done = |done, total| self.progress.passed(done, total);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            if let Some(guard) = source.memory.guard() {
                scope.spawn(|| slot_waiters::run(guard, source.queue, source.monitor, copies_first, &over));
            }
            let result = writer.write_pages(source, inherited, options, &done);
            over.store(true, Ordering::Relaxed);
            result
        })
    }

    fn end_program(&self, memory: FrozenMemory, epoch: Epoch) -> io::Result<()> {
        if let Some(link) = &self.context.link {
            link.tell(&Tell::Stopping { epoch });
        }
        memory.kill_held()?;
        // The front does the same, if there is one.
        if let Some(run) = LastRun::read(&self.context.job).filter(|run| run.ended.is_none()) {
            run.end(&self.context.job, How::Checkpointed(epoch));
        }
        Ok(())
    }
}
