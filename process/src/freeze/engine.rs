//! What keeps the memory of the instant: pages copied inside the stop, or a frozen copy, or the program held.
//!
//! The last steps of a stop: [`collect`] re-arms the tracker, and from what is dirty [`take`] says which engine costs
//! less. What must hold: nothing of the agent's own writes into the program after the scan matters for the image
//! (they go to the scratch range alone); whatever fails, the caller resumes the program.

use crate::capture::maps::{self, Kind, Mapped};
use crate::capture::shared_memory::{self, SharedPages};
use crate::capture::state::{ProcessFacts, ThreadFacts};
use crate::capture::touched::Asked;
use crate::error::CutError;
use crate::error::TraceError;
use crate::freeze::clone;
use crate::freeze::frozen_memory::SavedPages;
use crate::freeze::guard::{self, Guard, Survey};
use crate::inject::live_thread::LiveThread;
use crate::job::target::Target;
use crate::mapped_files::MappedFiles;
use crate::options::{CutOptions, Engine, Plan};
use crate::refuse;
use crate::stop::threads::Thread;
use crate::track::tracking::Collected;
use holdfast_image::Addr;
use holdfast_image::kinds::{Tracker, UsedEngine};
use holdfast_image::manifest::StopBreakdown;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{Inherited, PageRun, StoreMapping};
use holdfast_image::record::InjectArea;
use holdfast_sys::clock::elapsed_ns;
use holdfast_sys::procmem::{self, ForcedMemory};
use std::fs::File;
use std::io;
use std::time::Instant;

/// The memory of the instant.
#[derive(Debug, Default)]
pub struct CutMemory {
    /// Pages copied inside the stop.
    pub saved: SavedPages,
    /// The frozen copy, if there is one.
    pub copy: Option<clone::Copy>,
    /// The guarded memory, if there is some.
    pub guard: Option<Guard>,
    /// Engine that was used.
    pub engine: UsedEngine,
    /// Pages to be read.
    pub dirty: PageSet,
    /// Those of them that are read from the frozen copy, or guarded: their first write costs a copy.
    pub frozen: PageSet,
    /// The first pieces of `saved`: shared memory, to be read besides.
    pub shared: usize,
    /// Those of `frozen` that may be pages of a file.
    pub of_files: PageSet,
    /// What was kept out of the copy.
    pub kept_out: Vec<PageRun>,
    /// Present pages of tracked memory.
    pub present: PageSet,
    /// Guard regions.
    pub guards: PageSet,
    /// Pages that are to be read from segment files, if at all.
    pub files: Vec<StoreMapping>,
}

impl CutMemory {
    /// What the image takes from elsewhere. After the stop.
    pub fn inherited(&self, options: &CutOptions) -> Inherited {
        if options.only.is_some() {
            return Inherited::default();
        }
        let unchanged = self.present.difference(&self.dirty).into_runs();
        Inherited { unchanged, mapped: self.files.clone() }
    }
}

/// Everything about the stopped program that this needs.
pub struct Scene<'a> {
    /// The program.
    pub target: &'a Target,
    /// How to cut.
    pub options: &'a CutOptions,
    /// Any thread of it.
    pub live: i32,
    /// Its memory.
    pub memory: &'a ForcedMemory,
    /// The thread that runs injected calls.
    pub host: &'a LiveThread,
    /// All mappings.
    pub mapped: &'a [Mapped],
    /// Mappings of files that are stored whole.
    pub whole: &'a [bool],
    /// The flags of all mappings are known from before the stop.
    pub flags_known: bool,
    /// All threads, and what they told of themselves.
    pub threads: &'a [Thread],
    /// See `threads`.
    pub facts: &'a [ThreadFacts],
    /// What one told of the process.
    pub process: &'a ProcessFacts,
    /// There are other processes.
    pub several: bool,
    /// A frozen copy would be noticed.
    pub no_clone: bool,
}

fn pagemap_of(target: &Target, live: i32) -> Result<File, TraceError> {
    Ok(File::open(format!("/proc/{}/task/{live}/pagemap", target.pid))?)
}

/// Looks which pages were written, and re-arms the tracker. `live`, `mapped`: as in [`Scene`]; `files`: what
/// a restart has mapped. By any thread, but of
/// all processes before the first is [taken](take).
///
/// # Errors
/// Memory that cannot be looked at, or not be restored.
pub fn collect(
    target: &Target,
    live: i32,
    mapped: &[Mapped],
    files: &MappedFiles,
) -> Result<Collected, CutError> {
    let pagemap = pagemap_of(target, live)?;
    let collected = target.tracking.collect(&pagemap, live, mapped, files)?;
    let of_files = mapped.iter().filter(|mapped| mapped.kind == Kind::PrivateFile).map(Mapped::run);
    if !collected.guards.intersection(&of_files.collect()).is_empty() {
        refuse::unless_empty(maps::refuse_guards(&pagemap, mapped))?;
    }
    Ok(collected)
}

/// Keeps the memory of this instant. `shared_pages`: shared memory that was kept already, for another process.
///
/// # Errors
/// Memory that cannot be read; a clone that was refused.
pub fn take(
    scene: &Scene<'_>,
    collected: Collected,
    shared_pages: &mut SharedPages,
    breakdown: &mut StopBreakdown,
) -> Result<CutMemory, CutError> {
    let begun = Instant::now();
    let mut cut_memory = sort(scene.options, collected);
    if scene.options.only.is_none()
        && let Err(error) = save_shared(scene, shared_pages, &mut cut_memory.saved)
    {
        refuse::unless_empty(maps::refuse_guards(&pagemap_of(scene.target, scene.live)?, scene.mapped))?;
        return Err(error.into());
    }
    let shared = cut_memory.saved.pieces();
    let hold = scene.options.hold || scene.options.engine == Engine::Sync;
    let plan = if hold { Plan::default() } else { plan(scene, &cut_memory) };
    let guardable = if hold { None } else { guardable(scene, &cut_memory) };
    if hold {
        cut_memory.engine = UsedEngine::Sync;
    } else if let Some(guardable) = &guardable {
        cut_memory.engine = UsedEngine::Slots;
        save(scene, &mut cut_memory.saved, &cut_memory.dirty.difference(guardable.pages()))?;
        cut_memory.frozen = guardable.pages().clone();
    } else if plan.copy {
        cut_memory.engine = UsedEngine::Copy;
        save(scene, &mut cut_memory.saved, &cut_memory.dirty)?;
    } else {
        cut_memory.engine = UsedEngine::Fork;
        let outside = outside_clones(scene.mapped).intersection(&cut_memory.dirty);
        save(scene, &mut cut_memory.saved, &outside)?;
        cut_memory.frozen = cut_memory.dirty.difference(&outside);
    }
    breakdown.copy_ns += elapsed_ns(begun);

    let begun = Instant::now();
    if let Some(guardable) = guardable {
        let survey = survey(scene, &cut_memory.dirty);
        match guard::arm(&survey, guardable, &scene.options.guard, scene.host)? {
            Ok(guard) => cut_memory.guard = Some(guard),
            Err(unsuited) => {
                tracing::info!("engine fork instead of slots: {}", unsuited.0);
                cut_memory.engine = UsedEngine::Fork;
            }
        }
    }
    if cut_memory.engine == UsedEngine::Fork {
        let area = &scene.target.area;
        let keep_out = without_area(&plan.keep_out, area);
        // Their pages are saved already.
        let special = scene.mapped.iter().filter(|mapped| mapped.kept_out).map(Mapped::run);
        let keep_out: Vec<PageRun> = special.chain(keep_out).take(clone::KEEP_OUT_MAX).collect();
        cut_memory.copy = Some(clone::freeze(scene.host, area, &keep_out)?);
        cut_memory.kept_out = keep_out;
    }
    breakdown.clone_ns += elapsed_ns(begun);
    cut_memory.shared = shared;
    Ok(cut_memory)
}

/// Copies shared memory that was not copied yet, and what servers have given to the process.
fn save_shared(
    scene: &Scene<'_>,
    shared_pages: &mut SharedPages,
    saved: &mut SavedPages,
) -> Result<(), TraceError> {
    let Scene { target, live, host, mapped, memory, .. } = *scene;
    let asked = Asked { pid: target.pid, live, host, area: &target.area };
    let pages = shared_pages.take(asked, memory, mapped)?;
    save(scene, saved, &pages)?;
    shared_memory::save_served(memory, mapped, saved)
}

/// Splits what the tracker has found into what is to be read and what the image takes from elsewhere.
fn sort(options: &CutOptions, collected: Collected) -> CutMemory {
    let Collected { dirty, present, of_files, mapped, guards } = collected;
    let mut cut_memory = CutMemory { saved: SavedPages::new(), of_files, guards, ..CutMemory::default() };
    match &options.only {
        Some(only) => {
            let only = PageSet::from(only.clone());
            let of_store: PageSet = mapped.iter().map(|mapping| mapping.run).collect();
            cut_memory.dirty = present.union(&of_store).intersection(&only);
        }
        None => cut_memory.dirty = dirty,
    }
    cut_memory.present = present;
    cut_memory.files = mapped;
    cut_memory
}

fn survey<'a>(scene: &Scene<'a>, dirty: &'a PageSet) -> Survey<'a> {
    Survey {
        pid: scene.target.pid,
        live: scene.live,
        area: &scene.target.area,
        mapped: scene.mapped,
        threads: scene.threads,
        facts: scene.facts,
        process: scene.process,
        dirty,
    }
}

/// What engine `slots` can guard, if it was chosen and suits.
fn guardable(scene: &Scene<'_>, cut_memory: &CutMemory) -> Option<guard::Guardable> {
    if scene.options.engine != Engine::Slots {
        return None;
    }
    // What the library does while memory is guarded, they may forbid.
    if scene.threads.iter().any(|thread| !thread.confinement.is_none()) {
        tracing::info!("engine fork instead of slots: seccomp filters");
        return None;
    }
    if scene.several {
        tracing::info!("engine fork instead of slots: several processes");
        return None;
    }
    // What is read from guarded memory is checked by asking the tracker. Pages of files that were never written are
    // not the program's own: only a frozen copy has them for sure.
    if scene.target.tracking.kind() != Tracker::Userfaultfd || scene.whole.contains(&true) {
        tracing::info!("engine fork instead of slots: no exact tracking, or a self-contained image");
        return None;
    }
    let slots = scene.options.guard.slots.of(cut_memory.present.pages());
    guard::survey(&survey(scene, &cut_memory.dirty), slots)
        .inspect_err(|unsuited| tracing::info!("engine fork instead of slots: {}", unsuited.0))
        .ok()
}

fn plan(scene: &Scene<'_>, cut_memory: &CutMemory) -> Plan {
    if scene.no_clone || clone::allow(scene.host).is_err() {
        return Plan { copy: true, keep_out: Vec::new() };
    }
    let fits = scene.options.most_copied.is_none_or(|most| cut_memory.dirty.pages() <= most);
    match scene.options.engine {
        Engine::Copy if fits => return Plan { copy: true, keep_out: Vec::new() },
        Engine::Sync => return Plan::default(),
        Engine::Copy | Engine::Auto | Engine::Fork | Engine::Slots => {}
    }
    let private: Vec<PageRun> = scene
        .mapped
        .iter()
        .filter(|mapped| !mapped.outside_clone)
        // What is mapped from the store costs a clone nothing until it is written to.
        .filter(|mapped| matches!(mapped.kind, Kind::Anonymous { whole: false } | Kind::PrivateFile))
        .map(Mapped::run)
        .collect();
    let mut plan = (scene.options.planner)(&cut_memory.dirty, &cut_memory.present, &private);
    plan.copy &= scene.options.engine == Engine::Auto && scene.flags_known && fits;
    // Where only some memory is asked for, absent pages of it are read as well.
    plan.copy &= scene.options.only.is_none();
    // Pages of files that were never written are not the program's own: only the frozen copy has them for sure.
    plan.copy &= !scene.whole.contains(&true);
    plan
}

/// Memory that no clone freezes, but for what is shared.
fn outside_clones(all: &[Mapped]) -> PageSet {
    all.iter().filter(|mapped| mapped.is_saved()).map(Mapped::run).collect()
}

fn save(scene: &Scene<'_>, saved: &mut SavedPages, pages: &PageSet) -> Result<(), TraceError> {
    let (live, memory, several) = (scene.live, scene.memory, scene.several);
    let runs: Vec<PageRun> = pages.runs().iter().flat_map(|run| parts(*run)).collect();
    saved.add_all(&runs, |runs, mut buffer| {
        if several {
            // Slower by a little, but what processes share stays shared: see `Living` in `frozen_memory`.
            return save_forced(memory, runs, buffer);
        }
        for some in runs.chunks(procmem::MANY) {
            let len = |run: &PageRun| usize::try_from(run.pages.bytes()).unwrap_or(usize::MAX);
            let ranges: Vec<(u64, usize)> = some.iter().map(|run| (run.start.0, len(run))).collect();
            let (now, later) = buffer.split_at_mut(ranges.iter().map(|range| range.1).sum());
            if procmem::read_many(live, &ranges, now).is_err() {
                // Not readable for the program itself, or partly so.
                save_forced(memory, some, now)?;
            }
            buffer = later;
        }
        Ok(())
    })?;
    Ok(())
}

/// A run in parts that several threads may read.
fn parts(run: PageRun) -> impl Iterator<Item = PageRun> {
    const LEN: u64 = 4 << 20;
    let (start, end) = (run.start.0, run.end().0);
    let starts = (start..end).step_by(LEN as usize);
    starts.map(move |at| PageRun::between(Addr(at), Addr(end.min(at + LEN))))
}

fn save_forced(memory: &ForcedMemory, runs: &[PageRun], buffer: &mut [u8]) -> io::Result<()> {
    let mut rest = buffer;
    for run in runs {
        let (now, later) = rest.split_at_mut(usize::try_from(run.pages.bytes()).unwrap_or(usize::MAX));
        memory.read(run.start.0, now).map_err(|error| {
            io::Error::other(format!("reading {} pages at {}: {error}", run.pages.0, run.start))
        })?;
        rest = later;
    }
    Ok(())
}

/// The largest of the ranges, as many as go; the copy works with the stub and its tables to the end.
fn without_area(ranges: &[PageRun], area: &InjectArea) -> Vec<PageRun> {
    let touches = |run: &PageRun, start: Addr, len: u64| run.start.0 < start.0 + len && start < run.end();
    let mut ranges: Vec<PageRun> = ranges
        .iter()
        .filter(|run| {
            !touches(run, area.code, area.code_len) && !touches(run, area.scratch, area.scratch_len)
        })
        .copied()
        .collect();
    ranges.sort_unstable_by_key(|run| std::cmp::Reverse(run.pages));
    ranges.truncate(clone::KEEP_OUT_MAX);
    ranges
}

/// What the copy may drop at once: while it has a page, the program's next write to it costs a copy. After the stop.
pub fn surplus(all: &[Mapped], cut_memory: &CutMemory, area: &InjectArea) -> Vec<PageRun> {
    let private = |mapped: &&Mapped| !mapped.is_saved() && mapped.is_private();
    let there: PageSet = all.iter().filter(private).map(Mapped::run).collect();
    let mut needed = cut_memory.kept_out.clone();
    for (start, len) in [(area.code, area.code_len), (area.scratch, area.scratch_len)] {
        needed.push(PageRun::between(start, Addr(start.0 + len)));
    }
    there.difference(&cut_memory.frozen).difference(&PageSet::from(needed)).into_runs()
}
