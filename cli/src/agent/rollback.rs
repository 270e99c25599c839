//! One rollback: the program goes on from one of its images, in the processes that it has.
//!
//! In a thread of its own, as a checkpoint, and never beside one. Order: the image is opened and must be one of
//! this run; the CUDA driver checkpoints what uses it; all processes are held and recorded as at a checkpoint; what
//! they are now is compared with the image; what may differ of their memory is read, which checks it; only then
//! something is changed ([`holdfast_process::rebuild`]). Invariants: a refusal leaves the program as it is, and it
//! runs on; after the first change it goes on from the image or is ended; all that was written since the newest
//! image still counts as written, so that the next one is right. Fails by: a [`Reply`].

use super::carry_over::CarryOver;
use super::context::JobContext;
use super::cut;
use super::error::CheckpointError;
use super::events::{Event, Reporter};
use super::processes::Processes;
use super::request::{CheckpointOptions, CheckpointRequest};
use super::rollback_devices::Devices;
use super::write_monitor::WriteMonitor;
use crate::exit::{Exit, Failure};
use crate::inherited_fds::InheritedFd;
use crate::settings::Recipe;
use crate::{names, tiers};
use holdfast_image::control::{Reply, RolledBack};
use holdfast_image::page_set::PageSet;
use holdfast_image::record::ProcessRecord;
use holdfast_image::{Epoch, PAGE_SIZE};
use holdfast_process::rebuild::in_place::{Held, InPlace, Plan};
use holdfast_process::rebuild::{InPlaceError, RebuildError};
use holdfast_process::{Cut, Members, Target, Tracer, Tracking};
use holdfast_sys::clock::elapsed_ns;
use holdfast_tiers::stack::Cascade;
use holdfast_tiers::{Image, StoreError};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::thread;

/// What is to be done.
pub struct RollbackRequest {
    /// The processes of the job.
    pub processes: Arc<Mutex<Processes>>,
    /// Descriptors above 2 that it was started with.
    pub inherited_fds: Vec<InheritedFd>,
    /// The image; `None`: the newest of this run.
    pub image: Option<Epoch>,
}

/// Starts the thread, which reports one [`Event::RolledBack`].
///
/// # Errors
/// EAGAIN: no thread can be made.
pub fn start(
    context: Arc<JobContext>,
    tracer: Arc<Tracer>,
    request: RollbackRequest,
    reporter: Reporter,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name("rollback".into()).spawn(move || {
        let reply = match roll_back(&context, &tracer, &request) {
            Ok(done) => Reply::RolledBack(done),
            Err(reply) => *reply,
        };
        match &reply {
            Reply::RolledBack(done) => tracing::info!("went back to image {}: {done:?}", done.epoch),
            other => tracing::warn!("no rollback: {other:?}"),
        }
        reporter.report(Event::RolledBack(reply));
    })
}

type Answer<T> = Result<T, Box<Reply>>;

fn roll_back(context: &JobContext, tracer: &Tracer, request: &RollbackRequest) -> Answer<RolledBack> {
    let carry_over = context.carry_over.lock();
    let image = open(context, request.image)?;
    let record = names::record_of(&image).map_err(of_store)?;
    let options = CheckpointOptions { back: true, ..CheckpointOptions::default() };
    let cut_request = CheckpointRequest {
        processes: Arc::clone(&request.processes),
        options,
        inherited_fds: request.inherited_fds.clone(),
        round: None,
    };
    let members = cut_request.members().map_err(|error| Box::new(error.reply()))?;
    let devices = Devices::suspend(context, &members, tracer)?;
    carry_over.monitor.iter().for_each(WriteMonitor::pause);
    let done = in_stop(context, tracer, (&cut_request, devices), &carry_over, image, &record);
    members.tell(Tracking::failed);
    carry_over.monitor.iter().for_each(WriteMonitor::go_on);
    done
}

/// The image that is asked for: whole as far as its manifest tells, and of this run.
fn open(context: &JobContext, epoch: Option<Epoch>) -> Answer<Image> {
    let name = context.job.name();
    if context.gang.is_some() {
        return refused(vec![format!(
            "job {name} is a member of a gang, whose members go back together alone: end them, and `holdfast restart` \
             each"
        )]);
    }
    if context.settings().only_protected {
        return refused(vec![format!(
            "job {name} runs with --only-protected: its images have a part of its memory"
        )]);
    }
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => newest(context)?.ok_or_else(|| {
            let message =
                format!("job {name} has no image of this run yet; `holdfast checkpoint {name}` takes one");
            Box::new(Reply::NoImage { message })
        })?,
    };
    if let Some(from) = context.restarted_from.filter(|from| epoch <= *from) {
        return refused(vec![format!(
            "image {epoch} was taken before the program was restarted (from image {from}): its processes are others now"
        )]);
    }
    let recipe = Recipe::read(&context.job).map_err(|failure| of_failure(&failure))?;
    let image = context.job.open_image_from(epoch, &tiers::folders(name, &recipe)).map_err(of_store)?;
    let info = image.info();
    let is_ours =
        if info.run_ns == 0 { info.created_ns >= context.run_ns } else { info.run_ns == context.run_ns };
    if !is_ours {
        return refused(vec![format!(
            "image {epoch} is of an earlier run of job {name}: its processes are gone"
        )]);
    }
    if image.protected_only() {
        return refused(vec![format!("image {epoch} has a part of the program's memory (--only-protected)")]);
    }
    Ok(image)
}

/// The newest of this run, in the store or, if that has none, on a lower tier.
fn newest(context: &JobContext) -> Answer<Option<Epoch>> {
    let all = context.job.images().map_err(of_store)?;
    let own = all.iter().filter(|image| image.run_ns == context.run_ns && image.broken.is_none());
    let of_store = own.map(|image| image.epoch).max();
    let below = context.cascade.as_ref().map(Cascade::newest).filter(|epoch| *epoch > 0);
    Ok(of_store.or(below.map(Epoch)))
}

/// Everything from the stop to its end.
fn in_stop(
    context: &JobContext,
    tracer: &Tracer,
    (request, mut devices): (&CheckpointRequest, Devices),
    carry_over: &CarryOver,
    mut image: Image,
    record: &ProcessRecord,
) -> Answer<RolledBack> {
    if let Some(newest) = &carry_over.lineage {
        image.know(newest);
    }
    let (epoch, image) = (image.epoch(), Arc::new(image));
    let cut = cut::hold(context, &context.settings(), tracer, request, (carry_over, &devices.records))
        .map_err(|error| Box::new(error.reply()))?;
    let held = held(context, &cut);
    let plan = Plan::new((&cut.record, &cut.targets), record, epoch, &held)
        .map_err(|refusals| Box::new(CheckpointError::Refused(refusals).reply()))?;
    let common = carry_over.lineage.as_ref().map_or_else(PageSet::new, |newest| image.in_common(newest));
    let wanted = plan.wanted(&held, &*image, &common);
    let staged = plan.stage(&wanted, &*image).map_err(of_rebuild)?;
    let is_last = carry_over.lineage.as_ref().is_some_and(|newest| newest.epoch() == epoch);
    devices.compare(context, &*image, is_last).map_err(|message| Box::new(Reply::Error { message }))?;
    let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE);
    let mut done = RolledBack {
        epoch,
        image_bytes: bytes(wanted.of_image),
        compared_bytes: bytes(wanted.pages()),
        written_bytes: bytes(staged.pages()),
        ..RolledBack::default()
    };
    let targets = cut.targets.clone();
    let put_back = tracer.put_back(InPlace {
        plan,
        targets: targets.clone(),
        staged,
        pages: Arc::<Image>::clone(&image),
        saved_dir: context.job.saved_dir(),
        socket: context.job.socket_path(),
    });
    match put_back {
        Ok(notes) => {
            done.notes = notes;
            let back = devices
                .finish(context, record, &targets, &*image)
                .map_err(|failure| Box::new(Reply::Error { message: failure.message }))?;
            (done.device_bytes, done.device_cached_bytes) = (back.bytes, back.cached);
            done.stop_ns = elapsed_ns(cut.begun);
            forget(context, targets);
            Ok(done)
        }
        Err(InPlaceError::Untouched(error)) => Err(of_rebuild(error)),
        Err(InPlaceError::Broken(error)) => {
            devices.ending();
            Err(end(context, cut, epoch, &error))
        }
    }
}

/// What was known of memory and files is not so any more.
fn forget(context: &JobContext, mut targets: Vec<Target>) {
    Members::new(targets.remove(0), targets).tell(Tracking::forget_known);
    if let Some(contents) = &context.contents {
        contents.doubt();
    }
}

/// The pages of all processes.
fn held(context: &JobContext, cut: &Cut) -> Held {
    let unchanged = PageSet::from(cut.inherited.unchanged.clone());
    let mapped: PageSet = cut.inherited.mapped.iter().map(|mapping| mapping.run).collect();
    let unchanged = unchanged.union(&mapped);
    Held { present: cut.dirty.union(&unchanged), unchanged, mapped_from_store: !context.mapped().is_empty() }
}

/// A program that is of two times at once is ended.
fn end(context: &JobContext, cut: Cut, epoch: Epoch, error: &RebuildError) -> Box<Reply> {
    let name = context.job.name();
    let ended = match cut.memory.kill_held() {
        Ok(()) => "the program was ended".to_owned(),
        Err(error) => format!("ending the program failed: {error}"),
    };
    let message = format!(
        "the rollback to image {epoch} failed half-way: {error}; {ended}: `holdfast restart {name}@{epoch}` goes on \
         from that image"
    );
    context.warn(message.clone());
    Box::new(Reply::Error { message })
}

fn refused<T>(reasons: Vec<String>) -> Answer<T> {
    Err(Box::new(Reply::Refused { reasons }))
}

fn of_store(error: StoreError) -> Box<Reply> {
    of_failure(&Failure::from(error))
}

fn of_rebuild(error: RebuildError) -> Box<Reply> {
    of_failure(&Failure::from(&error))
}

fn of_failure(failure: &Failure) -> Box<Reply> {
    let message = failure.message.clone();
    Box::new(match failure.exit {
        Exit::BadImage => Reply::BadImage { message },
        Exit::NotFound => Reply::NoImage { message },
        Exit::Refused => Reply::Refused { reasons: vec![message] },
        _ => Reply::Error { message },
    })
}
