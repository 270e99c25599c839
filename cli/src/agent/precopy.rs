//! Pre-copy: pages that changed are stored while the program still runs, so that little is left at the stop.
//!
//! Runs in: the checkpoint thread, before the cut. Nothing is torn by it: the tracker is armed before a page is read,
//! and a page that is written again is stored again. What it costs in vain is bandwidth: [`Intake`] says what may be
//! stored, from what the program is seen to write before and meanwhile. Fails by: a store that fails fails the image. A
//! program that went away meanwhile is the cut's business.

use super::carry_over::CarryOver;
use super::error::CheckpointError;
use super::request::CheckpointRequest;
use crate::settings::{EngineChoice, Settings};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{PageError, PageRun, PageSource};
use holdfast_image::{Addr, PageCount};
use holdfast_pager::Intake;
use holdfast_process::{LiveMemory, Members};
use holdfast_tiers::{ImageWriter, PipelineOptions};
use parking_lot::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// How long it is watched what the program writes before anything is stored, and how often meanwhile. The history does
/// not make up for it: it tells what is written first after a cut, not whether the program goes over all of its memory
/// once more before the next.
const LOOK: Duration = Duration::from_millis(20);
/// Looks take at most this part of the time.
const LOOKING: u32 = 10;
/// From the last page that is taken to the stop: what workers have taken is stored, the stop is prepared.
const TAIL: Duration = Duration::from_millis(60);
/// How long it is waited until it is known what is written all the time.
const PATIENCE: Duration = Duration::from_millis(100);
/// Least and most pages that a worker takes at once, as many as are stored until the next look: what it has taken
/// cannot be given up.
const PART: (u64, u64) = (16, (4 << 20) / holdfast_image::PAGE_SIZE);
/// A second pass is worth its scan if the first one took longer and stored more than this.
const SECOND_AFTER: Duration = Duration::from_millis(50);
const SECOND_ABOVE: PageCount = PageCount((64 << 20) / holdfast_image::PAGE_SIZE);

/// What a pre-copy has done.
#[derive(Debug, Default)]
pub struct Precopied {
    /// All pages that were found to be written before the stop.
    pub dirty: PageSet,
    /// Pages that were stored, those of both passes counted twice.
    pub stored: u64,
    /// Pages that were stored.
    pages: PageSet,
    /// How many of them may be in vain.
    most: PageCount,
}

impl Precopied {
    /// Whether more was in vain than may be; `unchanged`: what the image has not to store again.
    pub fn is_lost(&self, unchanged: &PageSet) -> bool {
        self.pages.difference(unchanged).pages() > self.most
    }
}

/// Whether this checkpoint may have one.
pub fn is_wanted(settings: &Settings, request: &CheckpointRequest) -> bool {
    // Who waits for the cut would wait for it; who waits for the commit does so anyway, and all others run on
    // meanwhile.
    !request.options.until_cut
        && !settings.only_protected
        && !settings.is_sync()
        && matches!(settings.engine, EngineChoice::Auto | EngineChoice::Copy)
}

/// How many of `pages` a worker takes at once if all are stored in `flush`.
fn part(pages: PageCount, flush: Duration) -> PageCount {
    let speed = pages.0 as f64 / flush.as_secs_f64().max(1e-6);
    PageCount(((speed * LOOK.as_secs_f64()) as u64).clamp(PART.0, PART.1))
}

fn wants_second(took: Duration, stored: PageCount) -> bool {
    took > SECOND_AFTER && stored > SECOND_ABOVE
}

/// Stores what is worth it. `done` gets the bytes of a pass that are done with, and all of it.
///
/// # Errors
/// The store failed.
pub fn run(
    writer: &mut ImageWriter,
    members: &Members,
    carry_over: &CarryOver,
    options: &PipelineOptions,
    done: &(dyn Fn(u64, u64) + Sync),
) -> Result<Precopied, CheckpointError> {
    let mut result = Precopied::default();
    let begun = Instant::now();
    let mut live: Option<Live<'_>> = None;
    for number in 0..2 {
        let Some(dirty) = pass(members, &mut result) else { break };
        if members.may_have_transfers() {
            tracing::info!("no pre-copy: the program has files open with O_DIRECT");
            break;
        }
        let most = carry_over.flush_rate.time_for(dirty.pages().0, options.rate);
        let soon = carry_over.history.predict().soon(&dirty, most + PATIENCE + TAIL);
        let pages = dirty.difference(&soon);
        let flush = carry_over.flush_rate.time_for(pages.pages().0, options.rate);
        let live = live.get_or_insert_with(|| Live::new(members, dirty.pages(), carry_over.wary > 0));
        result.most = Intake::most(dirty.pages(), members.pages().max(dirty.pages()));
        live.begin(pages, &dirty, flush);
        let stored = writer.precopy(live, options, done)?;
        members.precopied(&stored);
        result.stored += stored.pages().0;
        result.pages = result.pages.union(&stored);
        tracing::debug!("pre-copy, pass {number}: {} of {} pages", stored.pages().0, dirty.pages().0);
        if live.has_ended() || !wants_second(begun.elapsed(), stored.pages()) {
            break;
        }
    }
    Ok(result)
}

/// Re-arms the tracker. `None`: the program is gone, or nothing is tracked.
fn pass(members: &Members, result: &mut Precopied) -> Option<PageSet> {
    let dirty = members.pass().ok().filter(|dirty| !dirty.is_empty())?;
    result.dirty = result.dirty.union(&dirty);
    Some(dirty)
}

/// The memory of the running program, and what of it is worth storing.
struct Live<'a> {
    members: &'a Members,
    memory: LiveMemory,
    watch: Mutex<Watch>,
}

struct Watch {
    intake: Intake,
    looked: Instant,
    /// How long after that it is time for the next look.
    pause: Duration,
    /// Until when it is waited for the program to show what it writes all the time.
    patience: Instant,
    /// Most pages that a worker takes at once.
    part: PageCount,
    /// Nothing more was worth storing.
    ended: bool,
}

impl Live<'_> {
    fn new(members: &Members, dirty: PageCount, wary: bool) -> Live<'_> {
        let now = Instant::now();
        let intake = Intake::new(dirty, members.pages().max(dirty));
        let intake = if wary { intake.wary() } else { intake };
        let part = PageCount(PART.0);
        let watch = Watch { intake, looked: now, pause: LOOK, patience: now, part, ended: false };
        Live { members, memory: LiveMemory::new(members.targets()), watch: Mutex::new(watch) }
    }
    /// A pass has found `dirty` and is to store `pages`, which would take as long as `flush`. If they are more than may
    /// be stored in vain, the program is watched first.
    fn begin(&self, pages: PageSet, dirty: &PageSet, flush: Duration) {
        let mut watch = self.watch.lock();
        watch.intake.begin(pages, dirty);
        watch.looked = Instant::now();
        watch.pause = LOOK.min(flush / 2);
        watch.part = part(watch.intake.waiting(), flush);
        watch.patience = watch.looked + watch.pause + PATIENCE.min(flush);
        if watch.intake.waiting() > watch.intake.left() {
            thread::sleep(watch.pause);
            self.look(&mut watch);
        }
    }
    fn has_ended(&self) -> bool {
        self.watch.lock().ended
    }
    /// Finds out what was written since. If that cannot be found out, nothing more is handed out.
    fn look(&self, watch: &mut Watch) {
        let now = Instant::now();
        match self.members.changed(&watch.intake.watched()) {
            Ok(written) => watch.intake.saw(&written, now - watch.looked),
            Err(_) => watch.end(),
        }
        watch.looked = now;
        watch.pause = LOOK.max(now.elapsed() * LOOKING);
    }
}

impl Watch {
    /// How long it may be until the next look and the stop after it.
    fn ahead(&self) -> Duration {
        self.pause + TAIL
    }
    fn due(&self) -> Instant {
        self.looked + self.pause
    }
    fn end(&mut self) {
        self.intake.give_up();
        self.ended = true;
    }
}

impl PageSource for Live<'_> {
    fn pages(&self) -> PageCount {
        self.watch.lock().intake.waiting()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        let mut watch = self.watch.lock();
        if Instant::now() >= watch.due() {
            self.look(&mut watch);
        }
        while watch.intake.waiting().0 > 0 && !watch.intake.has_room(watch.ahead()) {
            if watch.intake.has_begun() || watch.due() > watch.patience {
                tracing::debug!("pre-copy ends early: {} pages are not worth it", watch.intake.waiting().0);
                watch.end();
                return;
            }
            thread::sleep(watch.due().saturating_duration_since(Instant::now()));
            self.look(&mut watch);
        }
        let part = watch.part;
        watch.intake.take(most.min(part), into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        Ok(self.memory.read(start, buffer))
    }
    fn release(&self, _: PageRun) {}
    fn is_urgent(&self) -> bool {
        // No copies are made before the cut.
        false
    }
    fn has_several(&self) -> bool {
        self.memory.has_several()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::OrderChoice;

    fn pages(count: u64) -> PageCount {
        PageCount(count)
    }

    #[test]
    fn what_a_worker_has_taken_is_stored_soon() {
        let second = Duration::from_secs(1);
        assert_eq!(part(pages(1000), second), pages(20));
        assert_eq!(part(pages(100), second), pages(PART.0));
        assert_eq!(part(pages(1_000_000), second), pages(PART.1));
        assert_eq!(part(pages(1), Duration::ZERO), pages(20_000).min(pages(PART.1)));
    }

    #[test]
    fn a_second_pass_needs_a_long_and_large_first_one() {
        assert!(wants_second(Duration::from_millis(51), pages(SECOND_ABOVE.0 + 1)));
        assert!(!wants_second(Duration::from_millis(50), pages(SECOND_ABOVE.0 + 1)));
        assert!(!wants_second(Duration::from_secs(1), SECOND_ABOVE));
    }

    #[test]
    fn only_engines_that_gain_by_it_have_one_and_nothing_waits_for_it() {
        use super::super::request::CheckpointOptions;
        let order = |until_cut| {
            CheckpointRequest::for_tests(CheckpointOptions { until_cut, ..CheckpointOptions::default() })
        };
        let auto = Settings::default();
        assert!(is_wanted(&auto, &order(false)));
        assert!(!is_wanted(&auto, &order(true)));
        for (engine, wanted) in [
            (EngineChoice::Copy, true),
            (EngineChoice::Fork, false),
            (EngineChoice::Slots, false),
            (EngineChoice::Sync, false),
        ] {
            assert_eq!(is_wanted(&Settings { engine, ..Settings::default() }, &order(false)), wanted);
        }
        assert!(!is_wanted(&Settings { order: OrderChoice::Sync, ..auto.clone() }, &order(false)));
        assert!(!is_wanted(&Settings { only_protected: true, ..auto }, &order(false)));
    }
}
