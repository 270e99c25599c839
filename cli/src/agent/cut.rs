//! The cut of a checkpoint, tried again when the program could not be stopped in time.
//!
//! Runs in: the checkpoint thread. Fails by: [`Failed`]; the program runs on.

use super::checkpoint::{Failed, Order, Workshop};
use super::processes;
use crate::protected;
use crate::settings::{EngineChoice, OrderChoice, Settings};
use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
use holdfast_image::{PAGE_SIZE, PageCount};
use holdfast_pager::{CowLimit, History};
use holdfast_process::{Cut, CutError, CutOptions, Engine, GuardOptions, Plan, SlotCount, Tracer};
use std::thread;
use std::time::Duration;

/// How often a stop that passed its deadline is tried again, and how long the first pause is (doubled each time).
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest stop before everything is let go.
const DEADLINE: Duration = Duration::from_millis(50);

/// Makes it. With it: what is to be flushed first.
///
/// # Errors
/// The program holds what is not supported, cannot be stopped, or has ended.
pub fn make(
    workshop: &Workshop,
    settings: &Settings,
    tracer: &Tracer,
    order: &Order,
    history: &History,
) -> Result<(Cut, Vec<PageRun>), Failed> {
    let mut pause = FIRST_PAUSE;
    let mut tries = 0;
    loop {
        let children = processes::children(order.program.pid);
        if !children.is_empty() {
            return Err(Failed::Refused(children));
        }
        let options = options(workshop, settings, order, history)?;
        tries += 1;
        let result = match tracer.cut(&order.program, &options) {
            Ok(cut) if !protected::is_whole(&cut.memory, &options, order.program.area.shared) => {
                Err(CutError::Busy { what: "protected memory was added meanwhile".into() })
            }
            result => result,
        };
        match result {
            Ok(cut) => return Ok((cut, options.first)),
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

/// A bound that a program can use up before the watcher has looked for the first time: the program is let go by the
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

fn options(
    workshop: &Workshop,
    settings: &Settings,
    order: &Order,
    history: &History,
) -> Result<CutOptions, Failed> {
    let shared = order.program.area.shared;
    let regions = protected::read(order.program.pid, shared);
    let only = match (settings.only_protected, &regions) {
        (false, _) => None,
        (true, Ok(regions)) if !regions.is_empty() => Some(protected::runs_with_table(regions, shared)),
        (true, Ok(_)) => {
            return Err(Failed::Refused(vec![
                "the program has no protected memory yet (holdfast_malloc_protected), and --only-protected stores nothing else".into(),
            ]));
        }
        (true, Err(error)) => return Err(Failed::Error(format!("reading the protected regions: {error}"))),
    };
    let engine = engine(settings);
    Ok(CutOptions {
        engine,
        planner,
        guard: guard(settings, engine, history),
        hold: order.how.stop,
        park_above: small_bound(settings.cow.0),
        self_contained: settings.self_contained,
        own_files: vec![workshop.job.dir().to_owned()],
        deadline: DEADLINE,
        only,
        // An unreadable table only costs the order.
        first: regions.unwrap_or_default().iter().map(|region| region.run).collect(),
        inherited: order.handed.iter().map(|entry| (entry.fd, entry.device, entry.inode)).collect(),
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
