//! Random programs against [`Hierarchy`]: what no sequence of events may do, and that everything goes on.
//!
//! The driver has the bytes that the policy only names: which segment is whole on which tier.

use super::*;
use std::collections::BTreeMap;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

struct Driver {
    policy: Hierarchy,
    tiers: usize,
    random: Random,
    now: u64,
    next: u64,
    /// Whole, by segment: its tiers. Discardable and restored: not to be asked for any more.
    whole: BTreeMap<SegmentId, (Vec<bool>, bool)>,
    under_way: Vec<Transfer>,
    waiting: Vec<(SegmentId, bool)>,
    wake: Option<u64>,
    failures: bool,
    restored: u64,
    written: u64,
}

impl Driver {
    fn new(limits: &[TierLimits], seed: u64, failures: bool) -> Driver {
        Driver {
            policy: Hierarchy::new(limits, [Ties::Sum, Ties::Nearest][(seed % 2) as usize]),
            tiers: limits.len(),
            random: Random(seed),
            now: 0,
            next: 0,
            whole: BTreeMap::new(),
            under_way: Vec::new(),
            waiting: Vec::new(),
            wake: None,
            failures,
            restored: 0,
            written: 0,
        }
    }

    fn step(&mut self, event: Event) -> Result<(), PolicyError> {
        let actions = self.policy.step(self.now, event)?;
        for action in actions {
            match action {
                Action::Erase(segment, tier) => {
                    let end = |place| place == Place::Tier(tier);
                    let used =
                        self.under_way.iter().any(|t| t.segment == segment && (end(t.from) || end(t.to)));
                    assert!(!used, "{segment:?} erased on {tier} while it is copied");
                    let (whole, restorable) = self.whole.entry(segment).or_insert((vec![false; 3], true));
                    whole[tier] = false;
                    let lost = *restorable && !whole.contains(&true) && !self.failures;
                    let new = self.waiting.contains(&(segment, true));
                    assert!(!lost || new, "the last copy of {segment:?} was erased on {tier}");
                }
                Action::Copy(transfer) => {
                    if let Place::Tier(from) = transfer.from {
                        assert!(self.whole[&transfer.segment].0[from], "{transfer:?}: is not there");
                    }
                    let same =
                        |t: &Transfer| (t.link(), t.is_down()) == (transfer.link(), transfer.is_down());
                    assert!(!self.under_way.iter().any(same), "{transfer:?}: the link is in use");
                    self.under_way.push(transfer);
                }
                Action::Wake(at) => self.wake = Some(at),
                Action::Lost(segment) => {
                    assert!(self.failures || !self.whole[&segment].1, "{segment:?} lost");
                    self.waiting.retain(|&(id, _)| id != segment);
                }
            }
        }
        Ok(())
    }

    fn end_a_copy(&mut self) -> Result<(), PolicyError> {
        let index = self.random.below(self.under_way.len() as u64) as usize;
        let transfer = self.under_way.swap_remove(index);
        if self.failures && self.random.one_in(20) {
            return self.step(Event::Failed(transfer));
        }
        let discardable = self.discardable(transfer.segment);
        let entry = self.whole.entry(transfer.segment).or_insert((vec![false; 3], true));
        match transfer.to {
            Place::Tier(to) => entry.0[to] = true,
            Place::Application => {
                entry.1 = !discardable;
                self.restored += 1;
            }
        }
        let write = transfer.from == Place::Application;
        if write || transfer.to == Place::Application {
            let position = self.waiting.iter().position(|&waits| waits == (transfer.segment, write));
            assert!(position.is_some(), "{transfer:?}: nothing waits for it");
            self.waiting.swap_remove(position.unwrap_or(0));
            self.written += u64::from(write);
        }
        self.step(Event::Copied(transfer))
    }

    /// One segment in three is discardable.
    fn discardable(&self, segment: SegmentId) -> bool {
        segment.0.is_multiple_of(3)
    }

    fn act(&mut self) -> Result<(), PolicyError> {
        let any = SegmentId(self.random.below(self.next + 3));
        match self.random.below(10) {
            // Hints that are wrong: any segment, one that is not there yet, one that will never be restored.
            0..=3 => self.step(Event::Hint(any)),
            4..=5 if self.waiting.len() < 3 => {
                let segment = SegmentId(self.next);
                self.next += 1;
                let bytes = if self.random.one_in(50) { 300 } else { 1 + self.random.below(30) };
                self.waiting.push((segment, true));
                let discardable = self.discardable(segment);
                self.step(Event::Write { segment, bytes, discardable })
            }
            6..=8 if self.waiting.len() < 3 => {
                let near = SegmentId(self.next.saturating_sub(1 + self.random.below(60)));
                let there = self
                    .whole
                    .get(&near)
                    .is_some_and(|(whole, restorable)| *restorable && whole.contains(&true));
                if !there || self.waiting.contains(&(near, false)) {
                    return Ok(());
                }
                self.waiting.push((near, false));
                self.step(Event::Restore(near))
            }
            9 if self.random.one_in(10) => self.remove(any),
            9 if self.random.one_in(5) && self.policy.knows(any) => self.step(Event::Replaced(any)),
            9 if self.random.one_in(20) => self.step(Event::StartPrefetch),
            _ => Ok(()),
        }
    }

    /// Takes it from one of the tiers that have it, if another one does: what is copied just now says so and stays.
    fn remove(&mut self, segment: SegmentId) -> Result<(), PolicyError> {
        let Some((whole, _)) = self.whole.get(&segment) else { return Ok(()) };
        let tier = self.random.below(self.tiers as u64) as usize;
        let others = (0..self.tiers).any(|other| other > tier && whole[other]);
        if !whole[tier] || !others {
            return Ok(());
        }
        match self.step(Event::Remove(segment, tier)) {
            Err(PolicyError::InUse(..)) => Ok(()),
            result => result,
        }
    }

    fn run(&mut self, steps: u64) -> Result<(), PolicyError> {
        for _ in 0..steps {
            self.now += self.random.below(1000);
            if self.wake.is_some_and(|at| at <= self.now) {
                self.wake = None;
                self.step(Event::Tick)?;
            }
            if !self.under_way.is_empty() && self.random.one_in(2) {
                self.end_a_copy()?;
            } else {
                self.act()?;
            }
            self.goes_on()?;
        }
        Ok(())
    }

    /// For each that waits, something is under way.
    fn goes_on(&mut self) -> Result<(), PolicyError> {
        if self.under_way.is_empty() && (!self.waiting.is_empty() || !self.policy.is_flushed()) {
            let at = self.wake.take();
            assert!(at.is_some(), "deadlock: {:?} {:?}", self.waiting, self.policy);
            self.now = self.now.max(at.unwrap_or(0));
            self.step(Event::Tick)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), PolicyError> {
        while !self.under_way.is_empty() || !self.waiting.is_empty() || !self.policy.is_flushed() {
            if self.under_way.is_empty() {
                self.goes_on()?;
            } else {
                self.end_a_copy()?;
            }
        }
        let last = self.tiers - 1;
        for (segment, (whole, restorable)) in &self.whole {
            let kept = self.failures || !restorable || whole[last];
            assert!(kept, "{segment:?} did not reach the last tier");
        }
        Ok(())
    }
}

const LIMITS: [TierLimits; 3] = [
    TierLimits { capacity: Some(100), contiguous: true, rate: 1_000_000_000 },
    TierLimits { capacity: Some(250), contiguous: true, rate: 100_000_000 },
    TierLimits { capacity: None, contiguous: false, rate: 10_000_000 },
];

fn random_program(steps: u64, seed: u64, failures: bool) -> Result<(), PolicyError> {
    let contiguous = seed % 4 < 2;
    let limits = LIMITS.map(|tier| TierLimits { contiguous, ..tier });
    let mut driver = Driver::new(&limits, seed, failures);
    driver.run(steps)?;
    driver.finish()?;
    let enough = driver.written > steps / 100 && driver.restored > steps / 100;
    assert!(cfg!(miri) || enough, "{} {}", driver.written, driver.restored);
    Ok(())
}

#[test]
fn wrong_hints_never_stop_anything() -> Result<(), PolicyError> {
    let steps = if cfg!(miri) { 100 } else { 20_000 };
    (0..if cfg!(miri) { 1 } else { 5 }).try_for_each(|seed| random_program(steps, seed, false))
}

#[test]
fn failed_copies_never_stop_anything() -> Result<(), PolicyError> {
    let steps = if cfg!(miri) { 100 } else { 20_000 };
    (0..if cfg!(miri) { 1 } else { 5 }).try_for_each(|seed| random_program(steps, seed, true))
}

#[test]
fn a_million_steps_with_wrong_hints_end() -> Result<(), PolicyError> {
    random_program(if cfg!(miri) { 100 } else { 1_000_000 }, 77, false)
}

/// Ends copies, the oldest first, until none is under way.
fn settle(driver: &mut Driver) -> Result<(), PolicyError> {
    while !driver.under_way.is_empty() {
        driver.end_a_copy()?;
    }
    Ok(())
}

fn write(driver: &mut Driver, id: u64, bytes: u64) -> Result<(), PolicyError> {
    driver.waiting.push((SegmentId(id), true));
    driver.step(Event::Write { segment: SegmentId(id), bytes, discardable: false })
}

#[test]
fn a_segment_goes_down_tier_by_tier_and_up_by_a_hint() -> Result<(), PolicyError> {
    let mut driver = Driver::new(&LIMITS, 1, false);
    for id in 1..=5 {
        write(&mut driver, id, 50)?;
        settle(&mut driver)?;
    }
    // The first tier has room for two, the second for five.
    let states = |driver: &Driver, id| [0, 1, 2].map(|tier| driver.policy.state(SegmentId(id), tier));
    assert_eq!(states(&driver, 1), [None, Some(State::Flushed), Some(State::Written)]);
    assert_eq!(states(&driver, 5), [Some(State::Flushed), Some(State::Flushed), Some(State::Written)]);
    driver.step(Event::Hint(SegmentId(1)))?;
    assert!(driver.under_way.is_empty(), "prefetching has not begun");
    driver.step(Event::StartPrefetch)?;
    settle(&mut driver)?;
    assert_eq!(states(&driver, 1)[..2], [Some(State::Ready), Some(State::Consumed)]);
    driver.waiting.push((SegmentId(1), false));
    driver.step(Event::Restore(SegmentId(1)))?;
    assert_eq!(driver.step(Event::Remove(SegmentId(1), 0)), Err(PolicyError::InUse(SegmentId(1), 0)));
    settle(&mut driver)?;
    assert_eq!(states(&driver, 1)[..2], [Some(State::Consumed), Some(State::Consumed)]);
    driver.step(Event::Remove(SegmentId(1), 0))?;
    assert_eq!(states(&driver, 1)[..2], [None, Some(State::Consumed)]);
    Ok(())
}

/// Tiers in pieces, with these segments of 50 bytes.
fn written(count: u64) -> Result<Driver, PolicyError> {
    let mut driver = Driver::new(&LIMITS.map(|tier| TierLimits { contiguous: false, ..tier }), 1, false);
    for id in 1..=count {
        write(&mut driver, id, 50)?;
        settle(&mut driver)?;
    }
    Ok(driver)
}

#[test]
fn a_flush_costs_no_cached_copy_as_long_as_the_faster_tier_has_room() -> Result<(), PolicyError> {
    let driver = written(7)?;
    let cached = |id: &u64| (0..2).any(|tier| driver.policy.state(SegmentId(*id), tier).is_some());
    assert_eq!((1..=7).filter(cached).count(), 7, "the first tier has room for two, the second for five");
    assert!((1..=7).all(|id| driver.policy.state(SegmentId(id), 2).is_some()), "all are flushed");
    Ok(())
}

#[test]
fn what_is_wanted_next_goes_straight_to_the_fastest_tier() -> Result<(), PolicyError> {
    let mut driver = written(20)?;
    let is_gone = |id: &u64| (0..2).all(|tier| driver.policy.state(SegmentId(*id), tier).is_none());
    let gone: Vec<u64> = (1..=20).filter(is_gone).collect();
    let ends = |driver: &Driver| driver.under_way.iter().map(|copy| (copy.from, copy.to)).collect::<Vec<_>>();
    driver.step(Event::StartPrefetch)?;
    driver.step(Event::Hint(SegmentId(gone[0])))?;
    assert_eq!(ends(&driver), [(Place::Tier(2), Place::Tier(0))]);
    settle(&mut driver)?;
    // What is wanted later has the time to come by way of the other tier.
    for id in (1..=20).filter(|id| !gone.contains(id)).take(4).chain([gone[1]]) {
        driver.step(Event::Hint(SegmentId(id)))?;
    }
    assert!(ends(&driver).contains(&(Place::Tier(2), Place::Tier(1))), "{:?}", ends(&driver));
    Ok(())
}

#[test]
fn a_link_that_fails_keeps_nothing_waiting_that_can_go_elsewhere() -> Result<(), PolicyError> {
    let mut driver = Driver::new(&LIMITS, 1, false);
    for id in 1..=3 {
        write(&mut driver, id, 50)?;
        settle(&mut driver)?;
    }
    driver.step(Event::Hint(SegmentId(1)))?;
    driver.step(Event::StartPrefetch)?;
    settle(&mut driver)?;
    assert_eq!(driver.policy.state(SegmentId(1), 0), Some(State::Ready));
    write(&mut driver, 4, 50)?;
    driver.end_a_copy()?;
    let flush = driver.under_way.remove(0);
    assert_eq!((flush.segment, flush.to), (SegmentId(4), Place::Tier(1)));
    driver.step(Event::Failed(flush))?;
    // Only what was prefetched can go, for the flush may fail for ever.
    write(&mut driver, 5, 50)?;
    assert_eq!(driver.under_way.len(), 1);
    assert_eq!(driver.policy.state(SegmentId(1), 0), None);
    Ok(())
}

#[test]
fn a_tier_that_fails_takes_no_write_with_it() -> Result<(), PolicyError> {
    let mut driver = Driver::new(&LIMITS, 1, true);
    let fail = |driver: &mut Driver| {
        let copy = driver.under_way.remove(0);
        driver.step(Event::Failed(copy)).map(|()| copy.to)
    };
    write(&mut driver, 1, 10)?;
    assert_eq!(fail(&mut driver)?, Place::Tier(0));
    assert_eq!(driver.under_way[0].from, Place::Application);
    assert_eq!((fail(&mut driver)?, fail(&mut driver)?), (Place::Tier(1), Place::Tier(2)));
    assert_eq!(
        (driver.waiting.len(), driver.policy.state(SegmentId(1), 0)),
        (0, None),
        "the write has failed"
    );
    driver.failures = false;
    // As if it had never been.
    write(&mut driver, 1, 10)?;
    settle(&mut driver)?;
    assert_eq!(driver.policy.state(SegmentId(1), 2), Some(State::Written));
    // No write waits for a tier that has failed a moment ago.
    write(&mut driver, 2, 10)?;
    driver.end_a_copy()?;
    assert_eq!(fail(&mut driver)?, Place::Tier(1));
    write(&mut driver, 3, 10)?;
    assert_eq!(fail(&mut driver)?, Place::Tier(0));
    assert_eq!(driver.under_way[0].to, Place::Tier(2));
    Ok(())
}

#[test]
fn what_cannot_have_happened_is_an_error() -> Result<(), PolicyError> {
    let mut driver = Driver::new(&LIMITS, 1, false);
    write(&mut driver, 1, 10)?;
    let twice = Event::Write { segment: SegmentId(1), bytes: 10, discardable: false };
    assert_eq!(driver.policy.step(0, twice), Err(PolicyError::Twice(SegmentId(1))));
    assert_eq!(driver.policy.step(0, Event::Restore(SegmentId(2))), Err(PolicyError::Unknown(SegmentId(2))));
    let copy = Transfer { offset: 5, ..driver.under_way[0] };
    assert_eq!(driver.policy.step(0, Event::Copied(copy)), Err(PolicyError::NoSuchCopy(copy)));
    Ok(())
}
