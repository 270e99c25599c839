//! The cut of a checkpoint, tried again when the program could not be stopped in time.
//!
//! Runs in: the checkpoint thread. Fails by: [`CheckpointError`]; the program runs on.

use super::carry_over::CarryOver;
use super::context::JobContext;
use super::cuda::{Cuda, Ready};
use super::error::CheckpointError;
use super::gang;
use super::headroom::Headroom;
use super::kept::{TakenMemory, Taking};
use super::processes::Processes;
use super::request::CheckpointRequest;
use crate::inherited_fds::InheritedFd;
use crate::protected;
use crate::settings::{EngineChoice, OrderChoice, OutsideChoice, Settings};
use holdfast_image::cuda::CudaRecord;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::refusal::Refusal;
use holdfast_image::{Addr, PAGE_SIZE, PageCount, address_space};
use holdfast_pager::{CowLimit, History};
use holdfast_process::cuda::Suspended;
use holdfast_process::{
    Adopted, Awaited, Cut, CutError, CutOptions, Engine, GuardOptions, Members, Plan, Roster, SlotCount,
    Target, Tracer, refuse_process,
};
use holdfast_sys::fault;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a stop that passed its deadline is tried again: a disk that is slow for some seconds keeps threads from
/// stopping.
pub(super) const BUSY: Duration = Duration::from_secs(10);
/// The first pause, doubled each time, and the longest.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How long a process may take from its birth to its registration, while it has a processor, and how often that is
/// looked for.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
const MOMENT: Duration = Duration::from_millis(3);
/// How often a cut is begun anew because a process has begun to use CUDA.
const CUDA_TRIES: u32 = 3;
/// Longest stop before everything is resumed.
const DEADLINE: Duration = Duration::from_millis(50);

/// The processes that the agent knows.
struct Known {
    processes: Arc<Mutex<Processes>>,
    /// Only the program.
    alone: bool,
}

impl Known {
    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock()
    }
}

impl Roster for Known {
    fn targets(&self) -> Vec<Target> {
        let members = self.processes().members();
        let mut targets = members.map_or(Vec::new(), |members| members.targets().to_vec());
        if self.alone {
            targets.truncate(1);
        }
        targets
    }

    fn adopted(&self, adopted: Adopted) {
        let Adopted { pid, area, userfault } = adopted;
        if let Err(error) = self.processes().register(pid, area, true, userfault) {
            tracing::debug!("process {pid}, registered just now, has ended: {error}");
        }
    }
}

/// What comes of it.
pub struct Made {
    /// The cut.
    pub cut: Cut,
    /// What is to be flushed first.
    pub first: Vec<PageRun>,
    /// Processes that the CUDA driver has yet to restore.
    pub suspended: Option<Suspended>,
    /// Device memory that a keeper has.
    pub kept: Option<TakenMemory>,
    /// Pages that are zero in the image, whatever they hold.
    pub blank: PageSet,
}

/// Makes it; `whole`: of an image without a parent. Before the stop the driver checkpoints the processes that use CUDA;
/// one that begins to use it meanwhile is noticed in the stop, and all is begun anew.
///
/// # Errors
/// The program holds what is not supported, cannot be stopped, or has ended.
pub fn make(
    context: &JobContext,
    settings: &Settings,
    tracer: &Tracer,
    request: &CheckpointRequest,
    (carry_over, whole): (&CarryOver, bool),
) -> Result<Made, CheckpointError> {
    let mut tries = 0;
    loop {
        let members = request.members()?;
        let taking = if whole { Taking::Whole } else { Taking::Changed };
        let (suspended, records, kept) = match context.cuda.suspend(&members, taking, tracer)? {
            Some(Ready { suspended, records, kept }) => (Some(suspended), records, kept),
            None => (None, BTreeMap::new(), None),
        };
        let known: Vec<i32> = records.keys().copied().collect();
        // A device may have written to pinned memory past all page tables: what is unchanged is found by content.
        let users = members.targets().iter().filter(|target| known.contains(&target.pid));
        users.for_each(|target| target.tracking.doubt());
        let failed = match stop(context, settings, tracer, request, (carry_over, &records)) {
            Ok((mut cut, first)) => {
                kept.iter().for_each(|kept| kept.add_to(&mut cut));
                let blank = blank(&members, suspended.as_ref());
                return Ok(Made { cut, first, suspended, kept, blank });
            }
            Err(failed) => failed,
        };
        if let Err(left) = suspended.map_or(Ok(()), Suspended::undo) {
            return Err(CheckpointError::Failed(format!("{}; {left}", failed.line())));
        }
        tries += 1;
        let is_new = |members: Members| Cuda::users(&members).iter().any(|one| !known.contains(&one.pid));
        if tries >= CUDA_TRIES || !request.members().is_ok_and(is_new) {
            return Err(failed);
        }
        if request.round.is_some() {
            return Err(CheckpointError::Again(failed.line()));
        }
    }
}

/// Copies of device memory that the image need not have.
fn blank(members: &Members, suspended: Option<&Suspended>) -> PageSet {
    let discarded = suspended.map_or_else(Vec::new, Suspended::discarded);
    let run = |(pid, start, bytes): (i32, u64, u64)| {
        let space = members.targets().iter().find(|target| target.pid == pid)?.space;
        let run = PageRun { start: Addr(start), pages: PageCount(bytes / PAGE_SIZE) };
        Some(address_space::global_run(space, run))
    };
    discarded.into_iter().filter_map(run).collect()
}

/// Holds all processes and records them, without an image, and without reading files.
///
/// # Errors
/// As [`make`].
pub fn hold(
    context: &JobContext,
    settings: &Settings,
    tracer: &Tracer,
    request: &CheckpointRequest,
    seen: (&CarryOver, &BTreeMap<i32, CudaRecord>),
) -> Result<Cut, CheckpointError> {
    stop(context, settings, tracer, request, seen).map(|(cut, _)| cut)
}

/// Stops the program and cuts. With it: what is to be flushed first.
fn stop(
    context: &JobContext,
    settings: &Settings,
    tracer: &Tracer,
    request: &CheckpointRequest,
    (carry_over, cuda): (&CarryOver, &BTreeMap<i32, CudaRecord>),
) -> Result<(Cut, Vec<PageRun>), CheckpointError> {
    let (mut pause, mut moment) = (FIRST_PAUSE, MOMENT);
    let (mut tries, mut changing) = (0, false);
    let begun = Instant::now();
    let mut awaited = Awaited::new(begun);
    let processes = Arc::clone(&request.processes);
    if let Some(round) = &request.round {
        fault::point("gang-prepared");
        // All stop at the same time. Why not, the round knows.
        round.prepared(gang::STORING).map_err(|error| CheckpointError::Failed(error.to_string()))?;
    }
    let roster: Arc<dyn Roster> = Arc::new(Known { processes, alone: settings.only_protected });
    loop {
        let members = request.members()?;
        let options = options(context, settings, request, &members, carry_over)?;
        let options = with_cuda(CutOptions { changing, ..options }, cuda);
        let program = members.program();
        let result = match tracer.cut(&roster, &options) {
            Ok(cut) if !protected::is_whole(&cut.memory, &options, program) => {
                Err(CutError::Busy { what: "protected memory was added meanwhile".into() })
            }
            result => result,
        };
        match result {
            Ok(cut) => {
                let first = options.first.iter().map(|run| address_space::global_run(program.space, *run));
                return Ok((cut, first.collect()));
            }
            // The others are stopped, too: all try again together.
            Err(error @ (CutError::Busy { .. } | CutError::Changed { .. })) if request.round.is_some() => {
                return Err(CheckpointError::Again(error.to_string()));
            }
            Err(CutError::Unsettled(met)) if request.round.is_some() && !awaited.has_had(PATIENCE, &met) => {
                return Err(CheckpointError::Again(CheckpointError::Refused(met).line()));
            }
            // A process that was made just now registers in a moment. All were stopped for it: not too often.
            Err(CutError::Unsettled(met)) if !awaited.has_had(PATIENCE, &met) => {
                if begun.elapsed() > BUSY {
                    return Err(never_settled(&met));
                }
                thread::sleep(moment);
                moment = (moment * 2).min(FIRST_PAUSE * 2);
            }
            Err(error @ (CutError::Busy { .. } | CutError::Changed { .. })) if begun.elapsed() < BUSY => {
                tries += 1;
                // Once may be chance. A look inside the stop makes it longer.
                changing |= tries > 1 && matches!(error, CutError::Changed { .. });
                let what = error;
                tracing::info!("stop {tries} was given up: {what}; again in {pause:?}");
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(CutError::Busy { what } | CutError::Changed { what }) => {
                return Err(CheckpointError::Failed(format!(
                    "the program could not be stopped in {} tries: {what}; try again later",
                    tries + 1
                )));
            }
            Err(CutError::Unsettled(refusals) | CutError::Refused(refusals)) => {
                return Err(CheckpointError::Refused(refusals));
            }
            Err(CutError::Gone) => return Err(CheckpointError::NoProgram { awaited: false }),
            Err(CutError::Failed { what }) => return Err(CheckpointError::Failed(what)),
            // The round knows why.
            Err(CutError::Gang(error)) => return Err(CheckpointError::Failed(error.to_string())),
        }
    }
}

/// A guarded page cannot be pinned, and the driver pins pages when it restores (docs/cuda.md): the engine is another
/// one then. What is to be ended is held, for it must end as it is.
fn with_cuda(options: CutOptions, cuda: &BTreeMap<i32, CudaRecord>) -> CutOptions {
    if cuda.is_empty() {
        return options;
    }
    let engine = if options.engine == Engine::Slots { Engine::Fork } else { options.engine };
    let park_above = options.park_above.filter(|_| !options.hold);
    CutOptions { engine, park_above, cuda: cuda.clone(), ..options }
}

/// New processes all the time, or none that gets a processor.
fn never_settled(met: &[Refusal]) -> CheckpointError {
    let met: Vec<String> = met.iter().map(ToString::to_string).collect();
    let (limit, met) = (BUSY.as_secs(), met.join("; "));
    CheckpointError::Failed(format!(
        "in {limit} s there was no moment without a process that had just begun: {met}; try again later"
    ))
}

/// What the cut is to do with the pages, in its own words.
fn engine(settings: &Settings) -> Engine {
    if settings.is_sync() {
        return Engine::Sync;
    }
    match settings.engine {
        EngineChoice::Auto => Engine::Auto,
        EngineChoice::Copy => Engine::Copy,
        EngineChoice::Slots => Engine::Slots,
        EngineChoice::Fork | EngineChoice::Sync => Engine::Fork,
    }
}

/// The bound on copies, as engine `slots` wants it.
fn slots(limit: CowLimit) -> SlotCount {
    match limit {
        CowLimit::Share(share) => SlotCount::Share(u64::from(share)),
        CowLimit::Bytes(bytes) => SlotCount::Pages(PageCount(bytes / PAGE_SIZE)),
        CowLimit::Unlimited => SlotCount::Pages(PageCount(u64::MAX)),
    }
}

/// A bound that a program can use up before the watcher has looked for the first time: the program is resumed by the
/// watcher then.
fn small_bound(limit: CowLimit) -> Option<PageCount> {
    const SMALL: u64 = 8 << 20;
    match limit {
        CowLimit::Bytes(bytes) if bytes <= SMALL => Some(PageCount(bytes / PAGE_SIZE)),
        CowLimit::Bytes(_) | CowLimit::Share(_) | CowLimit::Unlimited => None,
    }
}

/// The pager's plan for the cut.
fn planner(dirty: &PageSet, present: &PageSet, private: &[PageRun]) -> Plan {
    let plan = holdfast_pager::plan(dirty, present, private);
    let mut keep_out = plan.keep_out;
    keep_out.sort_unstable();
    Plan { copy: plan.engine == holdfast_pager::plan::Engine::Copy, keep_out }
}

/// How memory is guarded for the engine `slots`; another one needs none of it.
fn guard(settings: &Settings, engine: Engine, history: &History) -> GuardOptions {
    let slots = slots(settings.cow.0);
    let likely = match (engine, settings.order) {
        (Engine::Slots, OrderChoice::History) => history.predict().together(),
        _ => PageSet::new(),
    };
    GuardOptions { slots, likely, ..GuardOptions::default() }
}

/// Refuses a program whose job stores only protected memory, and that has none.
pub fn nothing_protected(pid: i32) -> Refusal {
    let reason = "it has no protected memory yet (holdfast_malloc_protected), and --only-protected stores nothing else";
    refuse_process(pid, reason)
}

fn options(
    context: &JobContext,
    settings: &Settings,
    request: &CheckpointRequest,
    members: &Members,
    carry_over: &CarryOver,
) -> Result<CutOptions, CheckpointError> {
    let program = members.program();
    let shared = program.area.shared;
    let regions = protected::read(program.pid, shared);
    if let Some(other) = members.targets().get(1).filter(|_| settings.only_protected) {
        let reason = "child processes are not supported together with --only-protected";
        return Err(CheckpointError::Refused(vec![refuse_process(other.pid, reason)]));
    }
    let only = match (settings.only_protected, &regions) {
        (false, _) => None,
        (true, Ok(regions)) if !regions.is_empty() => Some(protected::runs_with_table(regions, shared)),
        (true, Ok(_)) => {
            return Err(CheckpointError::Refused(vec![nothing_protected(program.pid)]));
        }
        (true, Err(error)) => {
            return Err(CheckpointError::Failed(format!("reading the protected regions: {error}")));
        }
    };
    let (engine, headroom) = (engine(settings), Headroom::of(members)?);
    let bound = settings.cow.0.pages(members.pages());
    let outrun = bound.filter(|bound| carry_over.write_rate.outruns(*bound));
    Ok(CutOptions {
        engine,
        planner,
        most_copied: headroom.most_copied(members.targets().len()),
        guard: guard(settings, engine, &carry_over.history),
        hold: request.options.stop || request.options.back,
        park_above: small_bound(settings.cow.0).or(outrun).into_iter().chain(headroom.most_copied(1)).min(),
        self_contained: settings.self_contained,
        baseline: settings.cpu_baseline,
        socket: context.job.socket_path(),
        key: context.key().to_vec(),
        namespaces: Arc::clone(context.namespaces()),
        changing: false,
        mapped: context.mapped(),
        deadline: DEADLINE,
        only,
        // An unreadable table only costs the order.
        first: regions.unwrap_or_default().iter().map(|region| region.run).collect(),
        inherited: request.inherited_fds.iter().map(InheritedFd::identity).collect(),
        front: context.front(),
        lose_connections: settings.outside == OutsideChoice::Close,
        contents: context.contents.clone().filter(|_| !request.options.back),
        cuda: BTreeMap::new(),
        addresses: context.addresses.get().cloned().unwrap_or_default(),
        gang: request.round.clone().map(|round| round as _),
        together: gang::STOPPED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::{Addr, PAGE_SIZE, PageCount};

    #[test]
    fn engines_are_told_apart() {
        let settings = |engine, order| Settings { engine, order, ..Settings::default() };
        for (choice, expected) in [
            (EngineChoice::Auto, Engine::Auto),
            (EngineChoice::Copy, Engine::Copy),
            (EngineChoice::Fork, Engine::Fork),
            (EngineChoice::Slots, Engine::Slots),
            (EngineChoice::Sync, Engine::Sync),
        ] {
            assert_eq!(engine(&settings(choice, OrderChoice::Address)), expected);
            assert_eq!(engine(&settings(choice, OrderChoice::Sync)), Engine::Sync);
        }
    }

    #[test]
    fn what_stays_out_of_the_clone_is_told_in_ascending_order() {
        let run = |start: u64, pages| PageRun { start: Addr(start * PAGE_SIZE), pages: PageCount(pages) };
        let mappings = [run(512, 20_480), run(51_200, 40_960)];
        let present = PageSet::from(mappings.to_vec());
        let dirty: PageSet = (0..2_000).map(|n| run(600 + 2 * n, 1)).collect();
        let plan = planner(&dirty, &present, &mappings);
        assert!(!plan.copy);
        assert!(plan.keep_out.len() > 1 && plan.keep_out.is_sorted(), "{plan:?}");
        assert!(planner(&PageSet::new(), &present, &mappings).copy);
    }
}
