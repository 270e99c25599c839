//! Watches what the program writes, from a cut to the next one: a thread that samples the tracker.
//!
//! During the flush it feeds the recorder, says when the flush must hurry, and holds the program while there is no room
//! for more copies. After the flush it goes on slowly, so that it is known which pages are written late and which never.
//!
//! Invariants: the program is never held once [`Watch::flush_done`] or [`Watch::finish`] has returned, or the watch is
//! dropped; a sample that was begun before [`Watch::pause`] is not recorded after it. Lock order: `gate`, then `state`.
//! Fails by: a tracker that cannot be asked any more ends the sampling; what was not seen counts as not written.

use super::pace::Pace;
use holdfast_image::manifest::AccessCounts;
use holdfast_image::pages::PageRun;
use holdfast_image::set::PageSet;
use holdfast_image::{PAGE_SIZE, PageCount};
use holdfast_pager::{Budget, EpochAccess, FlushQueue, Recorder, Verdict};
use holdfast_process::{Class, Parked, Seen, Target, Tracer};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A sample may cost this part of the time to the next one, as long as there is room for copies.
const SHARE: u32 = 100;
/// Samples are no closer than this, but for the bound on copies.
const CLOSEST: Duration = Duration::from_millis(1);
/// The samples after the flush are no closer, and no further apart, than this.
const CLOSEST_AFTER: Duration = Duration::from_millis(20);
const FURTHEST: Duration = Duration::from_secs(1);
/// [`holdfast_process::Tracking::kind`] where samples say anything.
pub const TRACKED: &str = "userfaultfd";
/// While room is short, samples may be as close as this.
const SOON: Duration = Duration::from_micros(250);
/// How often it is looked whether a held program has room again.
const HELD: Duration = Duration::from_millis(1);

/// What is watched.
pub struct Scene {
    /// The program.
    pub target: Target,
    /// Holds it.
    pub tracer: Arc<Tracer>,
    /// Pages of the flush.
    pub dirty: PageSet,
    /// Those of them whose first write costs a copy.
    pub frozen: PageSet,
    /// All other pages that the program has.
    pub others: PageSet,
    /// Threads that may write at the same time.
    pub writers: u32,
    /// Most copies; none: no bound.
    pub limit: Option<PageCount>,
    /// When the cut was made.
    pub begun: Instant,
    /// What is known of the program's speed and of ours.
    pub pace: Pace,
    /// The program, if the cut has left it held.
    pub parked: Option<Parked>,
}

/// What a flush cost the program.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Costs {
    /// First writes while it went on.
    pub writes: AccessCounts,
    /// Most copies at a time.
    pub copies_peak: PageCount,
    /// How long the program was held, and how often.
    pub held: Duration,
    /// See `held`.
    pub holds: u64,
    /// For the next flush.
    pub pace: Pace,
}

struct State {
    recorder: Recorder,
    budget: Budget,
    flushing: bool,
    paused: bool,
    ended: bool,
    /// Changes whenever samples under way become invalid.
    generation: u64,
    held: Duration,
    holds: u64,
    pace: Pace,
}

struct Shared {
    scene: Scene,
    /// What is still to be stored: copied pages are moved up in it when room is short. Comes after the start.
    queue: OnceLock<Arc<FlushQueue>>,
    state: Mutex<State>,
    bell: Condvar,
    /// The program is held as long as something is in here.
    gate: Mutex<Option<(Parked, Instant)>>,
    urgent: AtomicBool,
}

/// See the head of the file.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Starts at a cut.
    ///
    /// # Errors
    /// EAGAIN: no thread can be made.
    pub fn start(mut scene: Scene) -> io::Result<Watch> {
        let gate = scene.parked.take().map(|parked| (parked, scene.begun));
        let state = State {
            recorder: Recorder::new(&scene.dirty, &scene.frozen),
            budget: Budget::new(scene.limit),
            flushing: true,
            paused: false,
            ended: false,
            generation: 0,
            held: Duration::ZERO,
            holds: u64::from(gate.is_some()),
            pace: scene.pace,
        };
        let shared = Arc::new(Shared {
            scene,
            queue: OnceLock::new(),
            state: Mutex::new(state),
            bell: Condvar::new(),
            gate: Mutex::new(gate),
            urgent: AtomicBool::new(false),
        });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("watch".into()).spawn(move || Sampler::new(&own).run())?;
        Ok(Watch { shared, thread: Some(thread) })
    }

    /// What is being flushed, and in which order.
    pub fn set_queue(&self, queue: Arc<FlushQueue>) {
        let _ = self.shared.queue.set(queue);
    }
    /// These pages are stored.
    pub fn stored(&self, run: PageRun) {
        locked(&self.shared.state).recorder.stored(run);
    }
    /// Whether the flush should do without compression.
    pub fn is_urgent(&self) -> bool {
        self.shared.urgent.load(Ordering::Relaxed)
    }
    /// Whether it is this address space that is watched.
    pub fn is_of(&self, target: &Target) -> bool {
        Arc::ptr_eq(&self.shared.scene.target.tracking, &target.tracking)
    }
    /// These pages were written, as somebody else has found out.
    pub fn written(&self, pages: &PageSet) {
        let at_us = self.shared.at_us();
        let mut state = locked(&self.shared.state);
        pages.runs().iter().for_each(|run| state.recorder.written(*run, at_us));
    }
    /// How the first write to a page went, as engine `slots` saw it.
    pub fn fault(&self, seen: &Seen) {
        let at_us = self.shared.at_us();
        let mut state = locked(&self.shared.state);
        match seen.class {
            Class::Wait => state.recorder.waited(seen.page, at_us),
            Class::Cow => state.recorder.slot(seen.page, at_us),
            // A page opened along with its neighbour: whether it is written the samples will tell.
            Class::Avoided if seen.predicted => {}
            Class::Avoided => {
                state.recorder.written(PageRun { start: seen.page, pages: PageCount(1) }, at_us);
            }
        }
    }
    /// Nothing is recorded until [`Watch::go_on`]: a cut is about to be made.
    pub fn pause(&self) {
        let mut state = locked(&self.shared.state);
        state.paused = true;
        state.generation += 1;
    }
    /// The cut failed: the epoch goes on.
    pub fn go_on(&self) {
        locked(&self.shared.state).paused = false;
        self.shared.bell.notify_all();
    }
    /// All pages are stored, or there will be no image: nobody is held any more. Returns what it cost.
    pub fn flush_done(&self) -> Costs {
        let at_us = self.shared.at_us();
        {
            let mut state = locked(&self.shared.state);
            state.flushing = false;
            state.recorder.flush_done(at_us);
        }
        self.shared.let_go();
        self.shared.bell.notify_all();
        let state = locked(&self.shared.state);
        Costs {
            writes: state.recorder.flush_counts(),
            copies_peak: state.recorder.copies_peak(),
            held: state.held,
            holds: state.holds,
            pace: state.pace,
        }
    }
    /// The epoch is over; `dirty`: what the cut has found written. Returns what is known of the program's speed, too.
    pub fn finish(mut self, dirty: &PageSet) -> (EpochAccess, Pace) {
        self.flush_done();
        self.written(dirty);
        self.end();
        let mut state = locked(&self.shared.state);
        (std::mem::take(&mut state.recorder).finish(), state.pace)
    }
    fn end(&mut self) {
        {
            let mut state = locked(&self.shared.state);
            state.ended = true;
            state.flushing = false;
        }
        self.shared.let_go();
        self.shared.bell.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ends after the sample under way, and cannot panic: there is nothing to be learned from the result.
            let _ = thread.join();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn at_us(&self) -> u64 {
        u64::try_from(self.scene.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Holds the program, unless the flush is over.
    fn hold(&self) -> bool {
        let mut gate = locked(&self.gate);
        if gate.is_some() || !locked(&self.state).flushing {
            return gate.is_some();
        }
        let begun = Instant::now();
        match self.scene.tracer.park(&self.scene.target) {
            Ok(parked) => {
                *gate = Some((parked, Instant::now()));
                let mut state = locked(&self.state);
                state.holds += 1;
                state.pace.parked_in(begun.elapsed());
                true
            }
            Err(error) => {
                tracing::debug!("the program could not be held: {error}");
                false
            }
        }
    }

    fn let_go(&self) {
        let mut gate = locked(&self.gate);
        if let Some((parked, since)) = gate.take() {
            drop(parked);
            locked(&self.state).held += since.elapsed();
        }
    }
}

/// When to take the next sample. `cost`: what the last one took.
fn pause_for(cost: Duration, flushing: bool) -> Duration {
    let closest = if flushing { CLOSEST } else { CLOSEST_AFTER };
    (cost * SHARE).clamp(closest, FURTHEST)
}

/// What the thread remembers.
struct Sampler<'a> {
    shared: &'a Shared,
    /// All pages of the program.
    all: PageSet,
    /// Cost of the last sample of all pages.
    cost: Duration,
    /// When all pages are sampled next.
    next: Instant,
    /// When the last sample was taken, with the program running since.
    last: Option<Instant>,
    /// When the next sample is due.
    due: Instant,
    /// What was found in the sample before, of the frozen pages and of all.
    copied: PageSet,
    found: u64,
    /// Copied pages that were moved up in the queue.
    moved_up: PageSet,
    /// The program was held: what it writes first now, it had to wait for.
    was_held: bool,
}

impl<'a> Sampler<'a> {
    fn new(shared: &'a Shared) -> Sampler<'a> {
        let now = Instant::now();
        Sampler {
            shared,
            all: PageSet::new(),
            cost: Duration::ZERO,
            // The first sample is of the frozen pages alone: it must be soon.
            next: now + CLOSEST,
            last: None,
            due: now,
            copied: PageSet::new(),
            found: 0,
            moved_up: PageSet::new(),
            was_held: locked(&shared.gate).is_some(),
        }
    }

    fn run(mut self) {
        if self.shared.scene.target.tracking.kind() != TRACKED {
            return;
        }
        holdfast_sys::clock::no_timer_slack();
        holdfast_sys::task::short_turns();
        loop {
            let state = locked(&self.shared.state);
            if state.ended {
                return;
            }
            let (flushing, paused, generation) = (state.flushing, state.paused, state.generation);
            drop(state);
            let held = self.was_held && locked(&self.shared.gate).is_some();
            if held {
                let late = Instant::now().saturating_duration_since(self.due);
                locked(&self.shared.state).pace.was_late(late);
            }
            if paused || held {
                self.last = None;
            } else if self.sample(generation).is_err() {
                return;
            }
            let gap = if flushing { self.bound() } else { FURTHEST };
            let full = if paused { FURTHEST } else { self.next.saturating_duration_since(Instant::now()) };
            let wait = gap.min(full);
            self.due = Instant::now() + wait;
            let state = locked(&self.shared.state);
            if state.ended {
                return;
            }
            if state.flushing == flushing && state.paused == paused {
                let _ = self.shared.bell.wait_timeout(state, wait);
            }
        }
    }

    /// Looks at all pages if it is time for that, else only at those that can cost a copy.
    fn sample(&mut self, generation: u64) -> io::Result<()> {
        let scene = &self.shared.scene;
        let began = Instant::now();
        let full = began >= self.next;
        if full && self.all.is_empty() {
            self.all = scene.dirty.union(&scene.others);
        }
        let within = if full { &self.all } else { &scene.frozen };
        let found = scene.target.tracking.written(scene.target.pid, within)?;
        let copied = if full { found.intersection(&scene.frozen) } else { found.clone() };
        let at_us = self.shared.at_us();
        let mut state = locked(&self.shared.state);
        if state.generation != generation || state.paused {
            return Ok(());
        }
        found.runs().iter().for_each(|run| state.recorder.written(*run, at_us));
        if std::mem::take(&mut self.was_held) {
            let late = copied.difference(&self.copied);
            for page in late.runs().iter().flat_map(pages_of) {
                state.recorder.waited(page.start, at_us);
            }
        }
        let pages = copied.pages().0;
        if let Some(last) = self.last.replace(began) {
            state.pace.saw(pages.saturating_sub(self.found), began - last);
            state.pace.was_late(began.saturating_duration_since(self.due));
        }
        (self.copied, self.found) = (copied, pages);
        if full {
            self.cost = began.elapsed();
            self.next = Instant::now() + pause_for(self.cost, state.flushing);
        }
        Ok(())
    }

    /// Asks the budget, does what it says, and returns how long that holds.
    fn bound(&mut self) -> Duration {
        let scene = &self.shared.scene;
        let (Some(limit), false) = (scene.limit, scene.frozen.is_empty()) else { return FURTHEST };
        let (verdict, gap) = {
            let state = &mut *locked(&self.shared.state);
            let (copies, left) = (state.recorder.copies(), state.recorder.unreleased());
            let least = Duration::from_micros(state.budget.gap_us(copies, left, scene.writers));
            let gap = match left <= limit {
                true => FURTHEST,
                false => {
                    let room = PageCount(limit.0.saturating_sub(copies.0));
                    let most = least.max(self.cost * SHARE);
                    state.pace.gap(room, scene.writers, SOON.min(least), most)
                }
            };
            let ahead_us = state.pace.ahead_us(gap, scene.writers);
            (state.budget.judge(copies, left, ahead_us, scene.writers), gap)
        };
        self.shared.urgent.store(verdict != Verdict::Run, Ordering::Relaxed);
        if verdict == Verdict::Hold {
            self.was_held |= self.shared.hold();
        } else {
            self.shared.let_go();
        }
        if verdict != Verdict::Run {
            self.move_up();
        }
        if verdict == Verdict::Hold { HELD } else { gap }
    }

    /// Copied pages go out first: each of them makes room.
    fn move_up(&mut self) {
        let Some(queue) = self.shared.queue.get() else { return };
        for page in self.copied.difference(&self.moved_up).runs().iter().flat_map(pages_of) {
            queue.slot(page.start);
        }
        self.moved_up = self.moved_up.union(&self.copied);
    }
}

fn pages_of(run: &PageRun) -> impl Iterator<Item = PageRun> + use<> {
    let start = run.start;
    (0..run.pages.0).map(move |page| PageRun {
        start: holdfast_image::Addr(start.0 + page * PAGE_SIZE),
        pages: PageCount(1),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::Addr;
    use holdfast_image::record::InjectArea;
    use holdfast_pager::Order;
    use holdfast_process::Tracking;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_sample_costs_a_hundredth_of_the_time() {
        assert_eq!(pause_for(Duration::ZERO, true), CLOSEST);
        assert_eq!(pause_for(MS, true), 100 * MS);
        assert_eq!(pause_for(MS / 100, false), CLOSEST_AFTER);
        assert_eq!(pause_for(Duration::from_secs(1), false), FURTHEST);
    }

    fn set(start: u64, pages: u64) -> PageSet {
        PageSet::from(vec![PageRun { start: Addr(start * PAGE_SIZE), pages: PageCount(pages) }])
    }

    #[test]
    fn an_epoch_is_recorded_from_cut_to_cut() {
        let target = Target {
            pid: std::process::id().cast_signed(),
            area: InjectArea::default(),
            tracking: Arc::new(Tracking::default()),
        };
        let dirty = set(100, 10);
        let watch = Watch::start(Scene {
            target: target.clone(),
            tracer: Arc::new(Tracer::spawn().unwrap()),
            frozen: dirty.clone(),
            dirty,
            others: set(200, 10),
            writers: 1,
            limit: Some(PageCount(5)),
            begun: Instant::now(),
            pace: Pace::default(),
            parked: None,
        })
        .unwrap();
        watch.set_queue(Arc::new(FlushQueue::new(&set(100, 10), Order::History, None, &[])));
        assert!(watch.is_of(&target));
        assert!(!watch.is_of(&Target { tracking: Arc::new(Tracking::default()), ..target }));
        watch.written(&set(100, 2));
        watch.stored(set(100, 5).runs()[0]);
        watch.written(&set(100, 3));
        let costs = watch.flush_done();
        let writes = AccessCounts { cow: 2, avoided: 1, untouched: 7, ..AccessCounts::default() };
        assert_eq!((costs.writes, costs.copies_peak, costs.holds), (writes, PageCount(2), 0));
        watch.pause();
        watch.go_on();
        let (ended, _) = watch.finish(&set(104, 100));
        assert_eq!(ended.counts(), AccessCounts { after: 6, untouched: 1, ..writes });
        assert!(ended.get(Addr(203 * PAGE_SIZE)).is_some_and(|page| !page.flushed));
    }
}
