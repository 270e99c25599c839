//! One checkpoint, from the stop to the commit, in a thread of its own: the agent's loop goes on answering meanwhile.
//!
//! Invariants: at most one runs at a time; whatever fails, the writer is dropped (its files vanish) and the frozen
//! copy is dropped (the program runs on); the program is ended only after the commit.
//! Fails by: [`Event::Done`] with the reason.

use super::processes;
use crate::front::handed::Handed;
use crate::link::{Link, Tell};
use crate::protected;
use crate::settings::{EngineChoice, Settings};
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_image::control::Reply;
use holdfast_image::manifest::EpochFigures;
use holdfast_image::pages::{Inherited, PageSource};
use holdfast_image::record::InjectArea;
use holdfast_process::{Cut, CutError, CutOptions, Engine, Target, Tracer};
use holdfast_sys::poll::Bell;
use holdfast_tiers::{CommitRecord, ImageInfo, ImageWriter, Job, JobLock, PipelineOptions, StoreError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// How often a stop that passed its deadline is tried again, and how long the first pause is (doubled each time).
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest stop before everything is let go.
const DEADLINE: Duration = Duration::from_millis(50);

/// What all checkpoints of the agent share.
#[derive(Debug)]
pub struct Workshop {
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
}

/// Why there is no image.
#[derive(Clone, Debug)]
pub enum Failed {
    /// Objects that are not supported.
    Refused(Vec<String>),
    /// Anything else.
    Error(String),
}

impl Failed {
    /// The answer to whoever asked for the checkpoint.
    pub fn reply(&self) -> Reply {
        match self {
            Failed::Refused(reasons) => Reply::Refused { reasons: bounded(reasons) },
            Failed::Error(message) => Reply::Error { message: message.clone() },
        }
    }
    /// One line for the status and the log.
    pub fn line(&self) -> String {
        match self {
            Failed::Refused(reasons) => reasons.join("; "),
            Failed::Error(message) => message.clone(),
        }
    }
}

/// As many reasons as fit a message.
fn bounded(reasons: &[String]) -> Vec<String> {
    const ROOM: usize = 32 * 1024;
    let mut room = ROOM;
    let mut kept: Vec<String> = Vec::new();
    for reason in reasons {
        if reason.len() > room {
            kept.push(format!("and {} more", reasons.len() - kept.len()));
            break;
        }
        room -= reason.len();
        kept.push(reason.clone());
    }
    kept
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Error(error.to_string())
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Order {
    /// The program.
    pub pid: i32,
    /// Its area.
    pub area: InjectArea,
    /// End it once the image is committed.
    pub stop: bool,
    /// Descriptors above 2 that it was started with.
    pub handed: Vec<Handed>,
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
    fn report(&self, event: Event) {
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
    workshop: Arc<Workshop>,
    tracer: Arc<Tracer>,
    order: Order,
    progress: Arc<Progress>,
    reporter: Reporter,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("checkpoint".into()).spawn(move || {
        let result = make(&workshop, &tracer, &order, &progress, &reporter);
        if let Ok(info) = &result {
            retain(&workshop, info.epoch);
        }
        reporter.report(Event::Done(result));
    })
}

fn make(
    workshop: &Workshop,
    tracer: &Tracer,
    order: &Order,
    progress: &Progress,
    reporter: &Reporter,
) -> Result<ImageInfo, Failed> {
    let epoch = workshop.job.next_epoch()?;
    // Before the stop: a store that cannot be written must not cost the program anything.
    let writer = workshop.job.begin(&workshop.lock, epoch, None)?;
    let cut = cut(workshop, tracer, order)?;
    let total = cut.memory.pages().bytes();
    progress.total.store(total, Ordering::Relaxed);
    progress.epoch.store(epoch.0, Ordering::Relaxed);
    reporter.report(Event::Cut { epoch, stop_ns: cut.breakdown.total_ns });
    flush(workshop, writer, cut, order.stop, progress)
}

fn flush(
    workshop: &Workshop,
    mut writer: ImageWriter,
    cut: Cut,
    stop: bool,
    progress: &Progress,
) -> Result<ImageInfo, Failed> {
    let Cut { record, mut breakdown, begun, resumed_at, memory } = cut;
    let options = PipelineOptions {
        workers: thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
        compress: !workshop.settings.no_compress,
        rate: None,
        part_pages: None,
    };
    let nothing = Inherited::default();
    writer.write_pages(&memory, &nothing, &options, &|done| progress.done.store(done, Ordering::Relaxed))?;
    if memory.is_held() {
        breakdown.total_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    }
    // All is stored: unless the program is to be ended, let the copy go before the slow fsync.
    let held = if stop {
        Some(memory)
    } else {
        drop(memory);
        None
    };
    let (info, _) = writer.commit(CommitRecord {
        record,
        stop: breakdown,
        resumed_at,
        engine: workshop.settings.engine.name().to_owned(),
        command: workshop.command.clone(),
        protected_only: workshop.settings.only_protected,
        epoch: EpochFigures::default(),
        history: Vec::new(),
    })?;
    if let Some(memory) = held {
        if let Some(link) = &workshop.link {
            link.tell(&Tell::Stopping { epoch: info.epoch });
        }
        memory.kill_held().map_err(|error| {
            Failed::Error(format!(
                "image {} is committed, but ending the program failed: {error}",
                info.epoch
            ))
        })?;
    }
    Ok(info)
}

fn cut(workshop: &Workshop, tracer: &Tracer, order: &Order) -> Result<Cut, Failed> {
    let target = Target { pid: order.pid, area: order.area };
    let mut pause = FIRST_PAUSE;
    let mut tries = 0;
    loop {
        let children = processes::children(order.pid);
        if !children.is_empty() {
            return Err(Failed::Refused(children));
        }
        let options = cut_options(workshop, order)?;
        tries += 1;
        let result = match tracer.cut(&target, &options) {
            Ok(cut) if !protected::is_whole(&cut.memory, &options, order.area.shared) => {
                Err(CutError::Busy { what: "protected memory was added meanwhile".into() })
            }
            result => result,
        };
        match result {
            Ok(cut) => return Ok(cut),
            Err(CutError::Busy { what }) if tries < TRIES => {
                tracing::info!("stop {tries} let go: {what}; again in {pause:?}");
                thread::sleep(pause);
                pause *= 2;
            }
            Err(CutError::Busy { what }) => {
                return Err(Failed::Error(format!(
                    "the program could not be stopped in {tries} tries: {what}"
                )));
            }
            Err(CutError::Refused { reasons }) => return Err(Failed::Refused(reasons)),
            Err(CutError::Gone) => return Err(Failed::Error("the program has ended".into())),
            Err(CutError::Failed { what }) => return Err(Failed::Error(what)),
        }
    }
}

fn cut_options(workshop: &Workshop, order: &Order) -> Result<CutOptions, Failed> {
    let regions = protected::read(order.pid, order.area.shared);
    let only = match (workshop.settings.only_protected, &regions) {
        (false, _) => None,
        (true, Ok(regions)) if !regions.is_empty() => {
            Some(protected::runs_with_table(regions, order.area.shared))
        }
        (true, Ok(_)) => {
            return Err(Failed::Refused(vec![
                "the program has no protected memory yet (holdfast_malloc_protected), and --only-protected stores nothing else".into(),
            ]));
        }
        (true, Err(error)) => return Err(Failed::Error(format!("reading the protected regions: {error}"))),
    };
    let engine = match workshop.settings.engine {
        EngineChoice::Auto | EngineChoice::Fork => Engine::Fork,
        EngineChoice::Sync => Engine::Sync,
    };
    Ok(CutOptions {
        engine,
        hold: order.stop,
        self_contained: workshop.settings.self_contained,
        own_files: vec![workshop.job.dir().to_owned()],
        deadline: DEADLINE,
        only,
        // An unreadable table only costs the order.
        first: regions.unwrap_or_default().iter().map(|region| region.run).collect(),
        inherited: order.handed.iter().map(|entry| (entry.fd, entry.device, entry.inode)).collect(),
    })
}

/// Deletes what `--keep` no longer wants. A failure is only logged: the new image is safe.
fn retain(workshop: &Workshop, newest: Epoch) {
    let Some(keep) = workshop.settings.keep else { return };
    let images = match workshop.job.images() {
        Ok(images) => images,
        Err(error) => return tracing::warn!("looking for old images: {error}"),
    };
    let good: Vec<Epoch> =
        images.iter().filter(|image| image.broken.is_none()).map(|image| image.epoch).collect();
    for &epoch in good.iter().rev().skip(keep) {
        if epoch == newest || workshop.restarted_from == Some(epoch) {
            continue;
        }
        match workshop.job.remove_image(&workshop.lock, epoch) {
            Ok(bytes) => tracing::info!("image {epoch} deleted, {bytes} bytes"),
            Err(error) => tracing::warn!("deleting image {epoch}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_always_fits_a_message() {
        let many: Vec<String> = (0..10_000).map(|n| format!("fd {n}: not supported yet")).collect();
        let kept = bounded(&many);
        assert!(kept.iter().map(String::len).sum::<usize>() < 40_000);
        assert!(kept.last().is_some_and(|line| line.starts_with("and ") && line.ends_with(" more")));
        assert_eq!(bounded(&many[..3]), many[..3]);
    }
}
