//! One checkpoint, from the pre-copy to the commit, in a thread of its own: the agent's loop goes on answering meanwhile.
//!
//! The order of steps is here; [`precopy`], [`cut`], the flush ([`FlushSource`]) and the [`WriteMonitor`] have files of their own.
//! Invariants: at most one runs at a time; whatever fails, the writer is dropped (its files vanish), the frozen copy is
//! dropped (the program runs on), and what was written stays written down for the next image; the program is ended
//! only after the commit.
//! Fails by: [`Event::Done`] with the reason.

use super::carry_over::CarryOver;
use super::cut;
use super::flush::FlushSource;
use super::precopy::{self, Precopied};
use super::processes::Processes;
use super::slot_waiters;
use super::write_monitor::{Costs, Scene, WriteMonitor};
use crate::front::inherited_fds::InheritedFd;
use crate::link::{Link, Tell};
use crate::settings::{Changes, OrderChoice, Settings};
use holdfast_image::bytes::Name;
use holdfast_image::control::Reply;
use holdfast_image::kinds::{Tracker, UsedEngine};
use holdfast_image::manifest::{AccessCounts, EpochFigures};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{Inherited, PageRun};
use holdfast_image::refusal::Refusal;
use holdfast_image::{Epoch, PageCount};
use holdfast_pager::{FlushQueue, Order as QueueOrder};
use holdfast_process::rebuild::SharedMemfd;
use holdfast_process::{Contents, Cut, FrozenMemory, Members, Tracer, Tracking};
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::poll::Bell;
use holdfast_tiers::{CommitRecord, ImageInfo, ImageWriter, Job, JobLock, PipelineOptions, StoreError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

/// What all checkpoints of the agent share.
pub struct JobContext {
    /// The job.
    pub job: Job,
    /// Held as long as the agent lives.
    pub lock: JobLock,
    /// Settings of the job.
    pub settings: Settings,
    /// Command line of the program.
    pub command: Vec<Name>,
    /// To the front, if there is one.
    pub link: Option<Link>,
    /// The program was started without a front: the library started the agent.
    pub attached: bool,
    /// The image that the program was restarted from: it may be mapped from it, so it is never deleted.
    pub restarted_from: Option<Epoch>,
    /// What the restart has put where all processes map it.
    pub common: OnceLock<Arc<SharedMemfd>>,
    /// What is saved of files, and what the last image has of that.
    pub contents: Option<Arc<Contents>>,
    /// What one checkpoint leaves for the next; locked as long as one runs.
    pub carry_over: Mutex<CarryOver>,
}

/// Where a flush is. Written by the checkpoint, read by status requests.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of the image; 0 before the cut.
    pub epoch: AtomicU64,
    /// Bytes to read.
    pub total: AtomicU64,
    /// Bytes read.
    pub done: AtomicU64,
}

/// What the loop is told.
#[derive(Debug)]
pub enum Event {
    /// The program runs again (or is held, if it is to be stopped).
    Cut {
        /// Number of the image to be.
        epoch: Epoch,
        /// Stop time, nanoseconds.
        stop_ns: u64,
    },
    /// The image is committed, or why not.
    Done(Result<ImageInfo, Failed>),
    /// The answer to those who asked what could not be checkpointed; see [`super::checks`].
    Checked(Reply),
}

/// Why there is no image.
#[derive(Clone, Debug)]
pub enum Failed {
    /// Objects that are not supported.
    Refused(Vec<Refusal>),
    /// Anything else.
    Error(String),
}

impl Failed {
    /// The answer to whoever asked for the checkpoint.
    pub fn reply(&self) -> Reply {
        match self {
            Failed::Refused(refusals) => Reply::Refused { reasons: bounded(refusals) },
            Failed::Error(message) => Reply::Error { message: message.clone() },
        }
    }
    /// One line for the status and the log.
    pub fn line(&self) -> String {
        match self {
            Failed::Refused(refusals) => {
                refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")
            }
            Failed::Error(message) => message.clone(),
        }
    }
}

/// As many reasons as fit a message.
fn bounded(refusals: &[Refusal]) -> Vec<String> {
    const ROOM: usize = 32 * 1024;
    let mut room = ROOM;
    let mut kept: Vec<String> = Vec::new();
    for reason in refusals.iter().map(Refusal::to_string) {
        if reason.len() > room {
            kept.push(format!("and {} more", refusals.len() - kept.len()));
            break;
        }
        room -= reason.len();
        kept.push(reason);
    }
    kept
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Error(error.to_string())
    }
}

/// How a checkpoint is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckpointOptions {
    /// End the program once the image is committed.
    pub stop: bool,
    /// What is done otherwise than the settings of the job say.
    pub changes: Changes,
    /// A process of the job has asked itself, and waits for the cut.
    pub until_cut: bool,
}

impl CheckpointOptions {
    /// Whether a checkpoint that is made so does what the other asks for.
    pub fn serves(&self, other: &CheckpointOptions) -> bool {
        (self.stop, self.changes) == (other.stop, other.changes)
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct CheckpointRequest {
    /// The processes of the job; those that are there at the cut count.
    pub processes: Arc<Mutex<Processes>>,
    /// CheckpointOptions.
    pub how: CheckpointOptions,
    /// Descriptors above 2 that it was started with.
    pub inherited_fds: Vec<InheritedFd>,
}

impl CheckpointRequest {
    /// The processes that are there now.
    ///
    /// # Errors
    /// None.
    pub fn members(&self) -> Result<Members, Failed> {
        let members = self.processes.lock().unwrap_or_else(PoisonError::into_inner).members();
        members.ok_or_else(|| Failed::Error("the program has ended".into()))
    }
}

/// Tells the loop.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Events go here.
    pub events: mpsc::Sender<Event>,
    /// And the loop is woken.
    pub bell: Arc<Bell>,
}

impl Reporter {
    /// Tells it.
    pub fn report(&self, event: Event) {
        // The receiver lives as long as the loop; without it nobody needs to know.
        let _ = self.events.send(event);
        self.bell.ring();
    }
}

/// Starts the thread.
///
/// # Errors
/// EAGAIN: no thread can be made.
pub fn start(
    context: Arc<JobContext>,
    tracer: Arc<Tracer>,
    order: CheckpointRequest,
    progress: Arc<Progress>,
    reporter: Reporter,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("checkpoint".into()).spawn(move || {
        let result = make(&context, &tracer, &order, &progress, &reporter);
        if let Ok(info) = &result {
            retain(&context, info.epoch);
        }
        reporter.report(Event::Done(result));
    })
}

/// Makes the image, and sees to it that no page is forgotten if that fails.
fn make(
    context: &JobContext,
    tracer: &Arc<Tracer>,
    order: &CheckpointRequest,
    progress: &Progress,
    reporter: &Reporter,
) -> Result<ImageInfo, Failed> {
    let settings = context.settings.with(&order.how.changes);
    let mut carry_over = context.carry_over.lock().unwrap_or_else(PoisonError::into_inner);
    let members = order.members()?;
    let mut attempt = Attempt {
        context,
        settings: &settings,
        tracer,
        order,
        members,
        progress,
        reporter,
        carry_over: &mut carry_over,
    };
    let mut committed = false;
    let result = attempt.run(&mut committed);
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
    tracer: &'a Arc<Tracer>,
    order: &'a CheckpointRequest,
    /// Who was there when it was looked last.
    members: Members,
    progress: &'a Progress,
    reporter: &'a Reporter,
    carry_over: &'a mut CarryOver,
}

/// A flush that is about to begin.
struct Flush {
    watch: WriteMonitor,
    queue: Arc<FlushQueue>,
    /// See [`slot_waiters::run`].
    copies_first: Option<PageCount>,
    figures: EpochFigures,
}

/// The bound on copies as a number.
fn bound(limit: Option<PageCount>) -> u64 {
    limit.map_or(u64::MAX, |limit| limit.0)
}

/// On how many copies the order of the flush may count: half of the bound. The rest is for what the program does otherwise
/// than predicted.
fn room_for_copies(engine: UsedEngine, limit: Option<PageCount>) -> PageCount {
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
    fn run(&mut self, committed: &mut bool) -> Result<ImageInfo, Failed> {
        let epoch = self.context.job.next_epoch()?;
        let parent = self.carry_over.lineage.clone().filter(|_| !self.settings.only_protected);
        // Before the stop: a store that cannot be written must not cost the program anything.
        let mut writer = self.context.job.begin(&self.context.lock, epoch, parent)?;
        let options = self.pipeline(None);
        let mut precopied = Precopied::default();
        if precopy::is_wanted(self.settings, self.order) {
            precopied = precopy::run(&mut writer, &self.members, self.carry_over, &options, &|_| ())?;
        }
        if let Some(watch) = &self.carry_over.watch {
            watch.written(&precopied.dirty);
            watch.pause();
        }
        let (mut cut, first) =
            match cut::make(self.context, self.settings, self.tracer, self.order, &self.carry_over.history) {
                Ok(made) => made,
                Err(failed) => {
                    self.carry_over.watch.iter().for_each(WriteMonitor::go_on);
                    return Err(failed);
                }
            };
        let mut targets = cut.targets.clone();
        self.members = Members::new(targets.remove(0), targets);
        self.progress.total.store(cut.dirty.pages().bytes(), Ordering::Relaxed);
        self.progress.epoch.store(epoch.0, Ordering::Relaxed);
        self.reporter.report(Event::Cut { epoch, stop_ns: cut.breakdown.total_ns });
        // At once: from now on writes may cost copies.
        let limit = self.settings.cow.0.pages(cut.tracked);
        let watch = self.start_watch(&mut cut, limit)?;
        let figures = self.end_epoch(&cut, &precopied, limit);
        let queue = self.queue(&cut, &first, limit);
        watch.set_queue(Arc::clone(&queue));
        let copies_first = self.copies_first(limit);
        self.flush(writer, cut, Flush { watch, queue, copies_first, figures }, committed)
    }

    fn pipeline(&self, limit: Option<PageCount>) -> PipelineOptions {
        let workers = thread::available_parallelism().map_or(1, |cores| cores.get().min(4));
        PipelineOptions {
            workers,
            compress: !self.settings.no_compress,
            rate: self.settings.rate,
            // What a worker has in hand cannot be overtaken by pages that make room.
            part_pages: limit.map(|limit| (limit.0 / (8 * workers as u64)).clamp(16, 1024)),
        }
    }

    /// Ends the epoch before: what it has taught goes into the history. Returns what is known of the new image so far.
    fn end_epoch(&mut self, cut: &Cut, precopied: &Precopied, limit: Option<PageCount>) -> EpochFigures {
        let tracker = self.members.kind();
        let ended = self.carry_over.watch.take().filter(|watch| watch.is_of(&self.members));
        let mut counts = AccessCounts::default();
        if let (Some(watch), Tracker::Userfaultfd) = (ended, tracker) {
            let (epoch, pace) = watch.finish(&cut.dirty);
            self.carry_over.pace = pace.next_epoch();
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

    fn start_watch(&self, cut: &mut Cut, limit: Option<PageCount>) -> Result<WriteMonitor, Failed> {
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
            // With engine slots nobody has to watch the bound.
            limit: limit.filter(|_| cut.engine != UsedEngine::Slots),
            begun: cut.resumed_at,
            pace: self.carry_over.pace,
            parked: cut.parked.take(),
        })
        .map_err(|error| Failed::Error(format!("starting the thread that watches the program: {error}")))
    }

    /// All that is dirty, in the order in which it will be stored.
    fn queue(&self, cut: &Cut, first: &[PageRun], limit: Option<PageCount>) -> Arc<FlushQueue> {
        let order = match self.settings.order {
            OrderChoice::History => QueueOrder::History,
            OrderChoice::Address | OrderChoice::Sync => QueueOrder::Address,
        };
        let prediction = self.carry_over.history.predict().with_room(room_for_copies(cut.engine, limit));
        Arc::new(FlushQueue::new(&cut.dirty, order, Some(&prediction), first))
    }

    /// From how many copies on, with engine `slots`, copies are stored before all others.
    fn copies_first(&self, limit: Option<PageCount>) -> Option<PageCount> {
        match self.settings.order {
            // By address is the flush that learns nothing, neither from before nor from what it sees: AI-Ckpt's
            // `async-no-pattern`.
            OrderChoice::Address | OrderChoice::Sync => None,
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
    ) -> Result<ImageInfo, Failed> {
        let Flush { watch, queue, copies_first, mut figures } = flush;
        let Cut { record, mut breakdown, begun, resumed_at, engine, inherited, memory, .. } = cut;
        let bounded = figures.copies_limit > 0 && engine.copies_on_write();
        let options = self.pipeline(bounded.then_some(PageCount(figures.copies_limit)));
        let source = FlushSource {
            memory: &memory,
            queue: &queue,
            watch: &watch,
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
        self.carry_over.rate.learn(queue.pages().0, flushing.elapsed());
        if memory.is_held() {
            breakdown.total_ns = elapsed_ns(begun);
        }
        // All is stored: unless the program is to be ended, let the copy go before the slow fsync.
        let held = if self.order.how.stop {
            Some(memory)
        } else {
            drop(memory);
            None
        };
        note(&mut figures, &watch.flush_done());
        let (info, lineage) = writer.commit(CommitRecord {
            record,
            stop: breakdown,
            resumed_at,
            engine: engine.to_string(),
            command: self.context.command.clone(),
            protected_only: self.settings.only_protected,
            epoch: figures,
            history: self.carry_over.history.encode(),
        })?;
        *committed = true;
        if !self.settings.only_protected {
            self.carry_over.lineage = Some(lineage);
        }
        self.carry_over.watch = Some(watch);
        if let Some(memory) = held {
            self.end_program(memory, info.epoch)?;
        }
        Ok(info)
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
        let done = |done| self.progress.done.store(done, Ordering::Relaxed);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            if let Some(guard) = source.memory.guard() {
                scope.spawn(|| slot_waiters::run(guard, source.queue, source.watch, copies_first, &over));
            }
            let result = writer.write_pages(source, inherited, options, &done);
            over.store(true, Ordering::Relaxed);
            result
        })
    }

    fn end_program(&self, memory: FrozenMemory, epoch: Epoch) -> Result<(), Failed> {
        if let Some(link) = &self.context.link {
            link.tell(&Tell::Stopping { epoch });
        }
        memory.kill_held().map_err(|error| {
            Failed::Error(format!("image {epoch} is committed, but ending the program failed: {error}"))
        })
    }
}

/// Deletes what `--keep` no longer wants. A failure is only logged: the new image is safe.
fn retain(context: &JobContext, newest: Epoch) {
    let Some(keep) = context.settings.keep else { return };
    let images = match context.job.images() {
        Ok(images) => images,
        Err(error) => return tracing::warn!("looking for old images: {error}"),
    };
    let good: Vec<Epoch> =
        images.iter().filter(|image| image.broken.is_none()).map(|image| image.epoch).collect();
    for &epoch in good.iter().rev().skip(keep) {
        if epoch == newest || context.restarted_from == Some(epoch) {
            continue;
        }
        match context.job.remove_image(&context.lock, epoch) {
            Ok(bytes) => tracing::info!("image {epoch} deleted, {bytes} bytes"),
            Err(error) => tracing::warn!("deleting image {epoch}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::refusal::Subject;

    impl CheckpointRequest {
        /// An order for a program that is not there.
        pub fn for_tests(how: CheckpointOptions) -> CheckpointRequest {
            CheckpointRequest { processes: Arc::default(), how, inherited_fds: Vec::new() }
        }
    }

    #[test]
    fn one_checkpoint_serves_all_who_want_the_same() {
        let plain = CheckpointOptions::default();
        assert!(plain.serves(&CheckpointOptions { until_cut: true, ..plain }));
        assert!(!plain.serves(&CheckpointOptions { stop: true, ..plain }));
        let changes = Changes { order: Some(OrderChoice::Address), ..Changes::default() };
        assert!(!plain.serves(&CheckpointOptions { changes, ..plain }));
    }

    #[test]
    fn a_refusal_always_fits_a_message() {
        let refusal = |fd| Refusal {
            subject: Subject::Descriptor { fd, name: "socket:[1]".into() },
            reason: "not supported yet".into(),
        };
        let many: Vec<Refusal> = (0..10_000).map(refusal).collect();
        let kept = bounded(&many);
        assert!(kept.iter().map(String::len).sum::<usize>() < 40_000);
        assert!(kept.last().is_some_and(|line| line.starts_with("and ") && line.ends_with(" more")));
        assert_eq!(bounded(&many[..1]), ["fd 0 (socket:[1]): not supported yet"]);
    }
}
