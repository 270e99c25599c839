//! The states of a program with failures, and how it goes from one to another.
//!
//! A *cycle* is what lies between two checkpoints of the highest level: `slots` of them, each of one interval and the
//! checkpoint at its end. A checkpoint of a level is one of all lower levels, too. It begins when an image of the
//! highest level has just been made, which the levels may not have yet (`flush`), and ends when the next has been. A
//! failure of level i takes away what is below level i: the program goes back to the newest image that level i or a
//! higher one has, in this cycle or, as long as that is not there yet, in the one before; then it is *again* in a cycle
//! that it had done. So a state is [`At`]: slot, cycle and which levels have their newest image; in a slot it has a
//! part for each time between two ends of flushes; and after a failure there is a state in which it is restarted.
//!
//! Assumed: failures of each level come at any time alike (exponential), during a restart, too: one that the level that
//! is read survives (lower than it) begins the restart anew, another one takes the next higher level; the highest level
//! tries again. A flush gets on while the program runs, and goes on after a restart where it was at the image.
//!
//! Order of states, see [`State`]: restarts first, then what is last in a cycle. What is eliminated leads back to a few
//! images only, so rows stay short.

use super::level::{Level, MOST_SECONDS, PlanError, Schedule};
use super::solve::{Chain, until_failure};
use std::cmp::Reverse;
use std::collections::HashMap;

/// A schedule of some levels, with what it is computed from.
#[derive(Debug)]
pub(super) struct Cycle<'a> {
    pub levels: &'a [Level],
    pub interval: f64,
    /// Checkpoints in it.
    pub slots: u32,
    /// Of each level: one in so many checkpoints.
    periods: Vec<u32>,
    /// All failures.
    rate: f64,
    /// Of each slot and level: what is left of its flush at the begin, and whether it ends in the slot, where no
    /// failure comes.
    left: Vec<Vec<(f64, bool)>>,
    /// Length of a cycle without a failure.
    length: f64,
}

/// Where the program is, or where an image has it: a number of slots of a cycle is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct At {
    /// It had done this cycle before.
    again: bool,
    slot: Reverse<u32>,
    /// A bit for each level: it has its newest image.
    whole: u16,
}

/// A state. The order is that of the elimination.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum State {
    /// An image is restarted, by what this level has.
    Restarts(At, usize),
    /// It computes, or waits for the checkpoint: a part of the slot.
    Runs(At, Reverse<usize>),
}

/// A part of a slot: its length, and which levels have their newest image during it.
type Part = (f64, u16);

impl<'a> Cycle<'a> {
    /// A schedule that these levels can follow.
    pub fn new(levels: &'a [Level], schedule: &Schedule) -> Result<Cycle<'a>, PlanError> {
        if schedule.between.len() + 1 != levels.len() {
            return Err(PlanError::Shape("it needs a count for each level but the highest"));
        }
        if !(schedule.interval > 0.0 && schedule.interval <= MOST_SECONDS) {
            return Err(PlanError::Shape("its interval is no time"));
        }
        let periods = schedule.periods().ok_or(PlanError::Shape("it has too many checkpoints"))?;
        let slots = periods.last().copied().unwrap_or(1);
        let rate = levels.iter().map(|level| level.rate).sum();
        let left = Vec::with_capacity(slots as usize);
        let mut cycle =
            Cycle { levels, interval: schedule.interval, slots, periods, rate, left, length: 0.0 };
        cycle.follow_flushes()?;
        Ok(cycle)
    }

    /// Length of a cycle without a failure.
    pub fn undisturbed(&self) -> f64 {
        self.length
    }

    /// What the flushes are like at each slot where no failure comes.
    fn follow_flushes(&mut self) -> Result<(), PlanError> {
        let mut left: Vec<f64> = self.levels.iter().map(|level| level.flush).collect();
        for slot in 0..self.slots {
            let begin = left.clone();
            let mut pending = self.pending(&left);
            self.length +=
                self.run(slot, &mut left, &mut pending).iter().map(|(length, _)| length).sum::<f64>();
            let ended = begin.iter().zip(&left).map(|(begin, left)| (*begin, *begin > 0.0 && *left <= 0.0));
            self.left.push(ended.collect());
            let made = self.level_of(slot + 1);
            for (number, (level, left)) in self.levels.iter().zip(&mut left).enumerate().take(made + 1) {
                if *left > 0.0 {
                    return Err(PlanError::Overrun { level: number });
                }
                *left = level.flush;
            }
        }
        Ok(())
    }

    /// Bits of the levels whose flush is not at its end.
    fn pending(&self, left: &[f64]) -> u16 {
        left.iter().enumerate().filter(|(_, left)| **left > 0.0).fold(0, |bits, (level, _)| bits | 1 << level)
    }

    /// Runs through a slot with these flushes; each part has the flushes that were pending in it.
    fn run(&self, slot: u32, left: &mut [f64], pending: &mut u16) -> Vec<Part> {
        let mut parts = Vec::new();
        // What is to be computed goes slower while a flush is under way, the checkpoint at its end does not.
        let cost = self.levels[self.level_of(slot + 1)].cost;
        for (mut todo, is_slowed) in [(self.interval, true), (cost, false)] {
            while todo > 0.0 {
                let under_way = || (0..left.len()).filter(|level| *pending >> level & 1 == 1);
                let slowdown: f64 = under_way().map(|level| self.levels[level].slowdown).sum();
                let factor = if is_slowed { 1.0 + slowdown } else { 1.0 };
                let next = under_way().map(|level| left[level]).fold(f64::INFINITY, f64::min);
                let whole = todo * factor;
                let length = whole.min(next);
                match parts.last_mut() {
                    Some((last, bits)) if *bits == *pending => *last += length,
                    _ => parts.push((length, *pending)),
                }
                let flushed: Vec<usize> = under_way().collect();
                for level in flushed {
                    left[level] = if left[level] <= length { 0.0 } else { left[level] - length };
                    if left[level] == 0.0 {
                        *pending &= !(1 << level);
                    }
                }
                todo = if next < whole { todo - next / factor } else { 0.0 };
            }
        }
        parts
    }

    /// The highest level of the checkpoint after so many slots.
    fn level_of(&self, slot: u32) -> usize {
        self.periods.iter().rposition(|period| slot.is_multiple_of(*period)).unwrap_or(0)
    }

    fn all(&self) -> u16 {
        u16::MAX >> (16 - self.levels.len())
    }

    /// What has been made of a checkpoint of this level, when its program goes on.
    fn after_checkpoint(&self, whole: u16, made: usize) -> u16 {
        self.levels.iter().enumerate().take(made + 1).fold(whole, |bits, (level, has)| {
            if has.flush > 0.0 { bits & !(1 << level) } else { bits | 1 << level }
        })
    }

    /// Where a cycle begins.
    fn begin(&self) -> At {
        let whole = self.after_checkpoint(0, self.levels.len() - 1);
        At { again: false, slot: Reverse(0), whole }
    }

    /// The parts of the slot that is next, and where the program is after it; none: the cycle has ended.
    fn parts(&self, at: At) -> (Vec<Part>, Option<At>) {
        let slot = at.slot.0;
        let flushes = &self.left[slot as usize];
        let mut left: Vec<f64> = flushes.iter().map(|(left, _)| *left).collect();
        let mut pending = !at.whole & self.all();
        let parts = self.run(slot, &mut left, &mut pending);
        let parts = parts.into_iter().map(|(length, pending)| (length, !pending & self.all())).collect();
        // A flush ends in the slot in which it does where no failure comes: this one is a little shorter, for another
        // one may have been at its end.
        let ended = flushes.iter().enumerate().filter(|(_, (_, ends))| *ends);
        let whole = ended.fold(at.whole, |bits, (level, _)| bits | 1 << level);
        if slot + 1 < self.slots {
            let whole = self.after_checkpoint(whole, self.level_of(slot + 1));
            return (parts, Some(At { again: at.again, slot: Reverse(slot + 1), whole }));
        }
        (parts, at.again.then(|| self.begin()))
    }

    /// The newest image that this level or a higher one has, and the lowest that has it.
    fn newest(&self, at: At, level: usize) -> (At, usize) {
        let order = |found: &At| (!found.again, found.slot.0);
        let mut best: Option<(At, usize)> = None;
        for (number, period) in self.periods.iter().enumerate().skip(level) {
            let made = at.slot.0 - at.slot.0 % period;
            let (again, slot) = match made.checked_sub(*period) {
                _ if at.whole >> number & 1 == 1 => (at.again, made),
                Some(earlier) => (at.again, earlier),
                None => (true, self.slots - period),
            };
            let whole = self.as_it_was(at, again, slot);
            let found = At { again, slot: Reverse(slot), whole };
            if best.as_ref().is_none_or(|(best, _)| order(&found) > order(best)) {
                best = Some((found, number));
            }
        }
        best.unwrap_or((at, level))
    }

    /// Which levels have their newest image after the program went back to this one: those that are older have ended.
    fn as_it_was(&self, at: At, again: bool, slot: u32) -> u16 {
        let newer = |period: &u32| (!at.again, at.slot.0 - at.slot.0 % period) > (!again, slot);
        let newer = self.periods.iter().enumerate().filter(|(_, period)| newer(period));
        newer.fold(at.whole, |bits, (level, _)| bits | 1 << level)
    }

    /// How long a state lasts, and what comes after it: none is the end.
    fn steps(&self, state: State) -> ([f64; 2], Vec<(Option<State>, f64)>) {
        let mut next = Vec::with_capacity(self.levels.len() + 1);
        let fails = |chance: f64, level: usize| chance * self.levels[level].rate / self.rate;
        let failing = || (0..self.levels.len()).filter(|level| self.levels[*level].rate > 0.0);
        match state {
            State::Runs(at, Reverse(part)) => {
                let (parts, after) = self.parts(at);
                let (length, whole) = parts[part];
                let (chance, mean) = until_failure(self.rate, length);
                let onward = match after {
                    _ if part + 1 < parts.len() => Some(State::Runs(at, Reverse(part + 1))),
                    after => after.map(|at| State::Runs(at, Reverse(0))),
                };
                next.push((onward, (-self.rate * length).exp()));
                for level in failing() {
                    let (image, from) = self.newest(At { whole, ..at }, level);
                    next.push((Some(State::Restarts(image, from)), fails(chance, level)));
                }
                ([mean, 0.0], next)
            }
            State::Restarts(image, from) => {
                let length = self.levels[from].restart;
                let (chance, mean) = until_failure(self.rate, length);
                next.push((Some(State::Runs(image, Reverse(0))), (-self.rate * length).exp()));
                for level in failing() {
                    let is_survived = level < from || from + 1 == self.levels.len();
                    let again =
                        if is_survived { (image, from) } else { self.newest(image, level.max(from + 1)) };
                    next.push((Some(State::Restarts(again.0, again.1)), fails(chance, level)));
                }
                ([mean, mean], next)
            }
        }
    }
}

/// The chain of a cycle: from its begin to its end.
pub(super) fn build(cycle: &Cycle) -> Chain {
    let start = State::Runs(cycle.begin(), Reverse(0));
    let mut steps = HashMap::new();
    let mut todo = vec![start];
    while let Some(state) = todo.pop() {
        if steps.contains_key(&state) {
            continue;
        }
        let (times, next) = cycle.steps(state);
        todo.extend(next.iter().filter_map(|(to, part)| to.filter(|_| *part > 0.0)));
        steps.insert(state, (times, next));
    }
    let mut states: Vec<State> = steps.keys().copied().collect();
    states.sort_unstable();
    let number: HashMap<State, u32> = states.iter().copied().zip(0..).collect();
    let mut chain = Chain::default();
    for (at, state) in states.iter().enumerate() {
        let (times, next) = &steps[state];
        let (mut row, mut ends): (Vec<(u32, f64)>, f64) = (Vec::with_capacity(next.len()), 0.0);
        for (to, part) in next.iter().filter(|(_, part)| *part > 0.0) {
            let Some(to) = to.and_then(|to| number.get(&to).copied()) else {
                ends += part;
                continue;
            };
            match row.iter_mut().find(|(there, _)| *there == to) {
                Some((_, sum)) => *sum += part,
                None => row.push((to, *part)),
            }
        }
        chain.rows.push(row);
        chain.ends.push(ends);
        chain.times.push(*times);
        if *state == start {
            chain.start = at;
        }
    }
    chain
}
