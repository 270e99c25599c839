//! The thread of a [`super::WriteMonitor`]: looks at what the program writes, and keeps the bound on copies.
//!
//! All pages are scanned, as often as that costs a hundredth of the time. In between the program's page faults are
//! counted, which costs next to nothing: every copy is a fault, so there are no more copies than the last scan has
//! found and faults since. Where those might have used up half of the room, the pages that can cost a copy are
//! scanned; where the next ones might use up all of it, the program is stopped, and scanned then.
//!
//! Invariant: a page counts as copied at the latest when the program has had as many faults as there is room for.
//! Fails by: a tracker or a counter that cannot be read any more ends the thread; what was not seen counts as not
//! written.

use super::state::Shared;
use crate::agent::write_rate::{HUGE, TELLING};
use holdfast_image::kinds::Tracker;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{PAGE_SIZE, PageCount};
use holdfast_pager::Verdict;
use holdfast_process::FaultCounters;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A scan of all pages may cost this part of the time to the next one.
const SHARE: u32 = 100;
/// Such scans are no closer than this.
const CLOSEST: Duration = Duration::from_millis(1);
/// After the flush they are no closer, and no further apart, than this.
const CLOSEST_AFTER: Duration = Duration::from_millis(20);
const FURTHEST: Duration = Duration::from_secs(1);
/// How often it is looked whether a stopped program has room again.
const HELD: Duration = Duration::from_millis(1);
/// Where a fault may stand for more pages than is known, the pages that can cost a copy are scanned, too; that may cost
/// this part of the time.
const SUSPICIOUS: u32 = 20;

/// When to scan next. `cost`: what the last scan took.
fn pause_for(cost: Duration, flushing: bool) -> Duration {
    let closest = if flushing { CLOSEST } else { CLOSEST_AFTER };
    (cost * SHARE).clamp(closest, FURTHEST)
}

/// What is done now.
#[derive(Clone, Copy)]
struct Moment {
    flushing: bool,
    paused: bool,
    held: bool,
    generation: u64,
}

/// What the thread remembers.
pub(super) struct Sampler<'a> {
    shared: &'a Shared,
    faults: FaultCounters,
    /// All pages of the program.
    all: PageSet,
    /// When all pages are scanned next.
    next: Instant,
    /// When this thread wanted to wake up.
    due: Instant,
    /// Faults before the last scan, and since.
    base: u64,
    since: u64,
    /// Part of the faults that are expected to be copies, by the last scan; at least an eighth.
    share: f64,
    /// When the last scan was begun, and what it took.
    scanned: (Instant, Duration),
    /// Since when, and from which number on, faults are counted of a program that ran all the time.
    counted: Option<(Instant, u64)>,
    /// What was found in the last scan of the frozen pages.
    copied: PageSet,
    /// Copied pages that were moved up in the queue.
    moved_up: PageSet,
    /// The program was stopped: what it writes first now, it had to wait for.
    was_held: bool,
}

impl<'a> Sampler<'a> {
    /// `None`: there is nothing to be seen, or the program has ended.
    pub(super) fn new(shared: &'a Shared) -> Option<Sampler<'a>> {
        if shared.scene.members.kind() != Tracker::Userfaultfd {
            return None;
        }
        let faults = FaultCounters::open(&shared.scene.members).ok()?;
        let now = Instant::now();
        Some(Sampler {
            shared,
            faults,
            all: PageSet::new(),
            next: now + CLOSEST,
            due: now,
            // The first look is at the frozen pages: what was written since the cut is not counted yet.
            base: 0,
            since: u64::MAX,
            share: 1.0,
            scanned: (shared.scene.begun, Duration::ZERO),
            counted: None,
            copied: PageSet::new(),
            moved_up: PageSet::new(),
            was_held: shared.gate.lock().is_some(),
        })
    }

    /// Until the epoch is over.
    pub(super) fn run(mut self) {
        holdfast_sys::clock::no_timer_slack();
        holdfast_sys::sched::short_turns();
        while let Some(now) = self.moment() {
            let Ok(wait) = self.turn(now) else { return };
            self.due = Instant::now() + wait;
            let mut state = self.shared.state.lock();
            if state.ended {
                return;
            }
            if state.flushing == now.flushing && state.paused == now.paused {
                let _ = self.shared.bell.wait_for(&mut state, wait);
            }
        }
    }

    /// `None`: the epoch is over.
    fn moment(&self) -> Option<Moment> {
        let held = self.shared.gate.lock().is_some();
        let state = self.shared.state.lock();
        let (flushing, paused, generation) = (state.flushing, state.paused, state.generation);
        (!state.ended).then_some(Moment { flushing, paused, held, generation })
    }

    /// Looks, and does what follows; how long to wait then.
    fn turn(&mut self, now: Moment) -> io::Result<Duration> {
        self.count(now)?;
        if !now.paused && self.must_scan(now) {
            self.scan(now)?;
        }
        let gap = if now.flushing && !now.paused { self.bound() } else { FURTHEST };
        let full = match now.paused || now.held {
            true => FURTHEST,
            false => self.next.saturating_duration_since(Instant::now()),
        };
        Ok(gap.min(full))
    }

    /// Whether there is a bound that this thread keeps.
    fn bounded(&self) -> Option<PageCount> {
        self.shared.scene.limit.filter(|_| !self.shared.scene.frozen.is_empty())
    }

    /// Counts faults, and learns how fast the program is and how late this thread.
    fn count(&mut self, now: Moment) -> io::Result<()> {
        if !now.flushing || self.bounded().is_none() {
            return Ok(());
        }
        let at = Instant::now();
        let faults = self.faults.read()?;
        if self.since != u64::MAX {
            self.since = faults.saturating_sub(self.base);
        }
        let write_rate = &mut self.shared.state.lock().write_rate;
        write_rate.was_late(at.saturating_duration_since(self.due));
        match self.counted {
            _ if now.paused || now.held => self.counted = None,
            Some((since, before)) => {
                let copies = faults.saturating_sub(before) as f64 * self.share;
                if write_rate.saw(copies as u64, at.saturating_duration_since(since)) {
                    self.counted = Some((at, faults));
                }
            }
            None => self.counted = Some((at, faults)),
        }
        Ok(())
    }

    fn must_scan(&self, now: Moment) -> bool {
        if now.held {
            return self.since > 0 && self.bounded().is_some();
        }
        if Instant::now() >= self.next || self.was_held {
            return true;
        }
        match self.bounded() {
            Some(limit) if now.flushing => {
                let state = self.shared.state.lock();
                let room = limit.0.saturating_sub(state.recorder.copies().0);
                let (began, cost) = self.scanned;
                let may_be = self.since.saturating_mul(HUGE as u64);
                state.write_rate.pages_of(self.since) > room / 2
                    || (may_be > room / 2 && began.elapsed() > (cost * SUSPICIOUS).max(CLOSEST))
            }
            _ => false,
        }
    }

    /// Looks at all pages if it is time for that, else only at those that can cost a copy.
    fn scan(&mut self, now: Moment) -> io::Result<()> {
        let scene = &self.shared.scene;
        let began = Instant::now();
        let full = began >= self.next && !now.held;
        if full && self.all.is_empty() {
            self.all = scene.dirty.union(&scene.others);
        }
        let base = self.faults.read()?;
        let within = if full { &self.all } else { &scene.frozen };
        let found = scene.members.written(within)?;
        let copied = if full { found.intersection(&scene.frozen) } else { found.clone() };
        let at_us = self.shared.at_us();
        let mut state = self.shared.state.lock();
        if state.generation != now.generation || state.paused {
            return Ok(());
        }
        found.runs().iter().for_each(|run| state.recorder.written(*run, at_us));
        if !now.held && std::mem::take(&mut self.was_held) {
            let late = copied.difference(&self.copied);
            for page in late.runs().iter().flat_map(pages_of) {
                state.recorder.waited(page.start, at_us);
            }
        }
        // The program went on while it was scanned.
        let after = self.faults.read()?;
        let (faults, most) = (base.saturating_sub(self.base), after.saturating_sub(self.base));
        let new = copied.pages().0.saturating_sub(self.copied.pages().0);
        let is_judged = |limit| now.flushing && !now.held && state.recorder.unreleased() > limit;
        if self.bounded().is_some_and(is_judged) {
            state.write_rate.saw(new, began.saturating_duration_since(self.scanned.0));
        }
        // At the first scan it is not known how many faults there were since the cut.
        if self.base != 0 {
            state.write_rate.faulted(new, most);
            if faults >= TELLING {
                self.share = (2.0 * new as f64 / faults as f64).clamp(0.125, 1.0);
            }
        }
        (self.copied, self.base, self.since) = (copied, base, after.saturating_sub(base));
        self.scanned = (began, began.elapsed());
        if full {
            self.next = Instant::now() + pause_for(began.elapsed(), state.flushing);
        }
        Ok(())
    }

    /// Asks the budget, does what it says, and returns how long that holds.
    fn bound(&mut self) -> Duration {
        let Some(limit) = self.bounded() else { return FURTHEST };
        let writers = self.shared.scene.writers;
        let (verdict, gap) = {
            let state = &mut *self.shared.state.lock();
            let (known, left) = (state.recorder.copies(), state.recorder.unreleased());
            let since = state.write_rate.pages_of(self.since);
            let copies = PageCount(known.0.saturating_add(since).min(left.0));
            let gap = match left <= limit {
                true => FURTHEST,
                false => Duration::from_micros(state.budget.gap_us(copies, left, writers)),
            };
            let ahead_us = state.write_rate.ahead_us(gap, writers);
            (state.budget.judge(copies, left, ahead_us, writers), gap)
        };
        self.shared.urgent.store(verdict != Verdict::Run, Ordering::Relaxed);
        if verdict == Verdict::Hold {
            self.was_held |= self.shared.stop();
        } else {
            self.shared.resume();
        }
        if verdict != Verdict::Run {
            self.move_up();
        }
        match verdict {
            // Scanned at once: maybe it need not be stopped.
            Verdict::Hold if self.was_held && self.since > 0 => Duration::ZERO,
            Verdict::Hold => HELD,
            _ => gap,
        }
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
mod tests {
    use super::*;

    #[test]
    fn a_scan_costs_a_hundredth_of_the_time() {
        const MS: Duration = Duration::from_millis(1);
        assert_eq!(pause_for(Duration::ZERO, true), CLOSEST);
        assert_eq!(pause_for(MS, true), 100 * MS);
        assert_eq!(pause_for(MS / 100, false), CLOSEST_AFTER);
        assert_eq!(pause_for(Duration::from_secs(1), false), FURTHEST);
    }
}
