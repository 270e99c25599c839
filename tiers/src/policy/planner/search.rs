//! The schedule by which most of a program's time is its own.
//!
//! To the first order it is known what a schedule costs: its checkpoints, and half of what lies between two images of a
//! level for each failure that it survives. By that all counts of a coarse grid are compared, and the interval of each
//! is known; the best of them, and the counts that follow from Young's interval of each level by itself, are where the
//! model is asked. From there it goes on, count by count and interval by interval, until nothing is better. So it is a
//! search, no proof: a test compares it with trying all.
//!
//! Called by the planner alone. Pure.

use super::level::{Level, MOST_SECONDS, MOST_SLOTS, Outcome, PlanError, Schedule, check};
use super::model::outcome;
use super::young::young;

/// What a schedule is searched in.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// The shortest interval, seconds.
    pub least_interval: f64,
    /// The longest.
    pub most_interval: f64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { least_interval: 1e-3, most_interval: MOST_SECONDS }
    }
}

/// A schedule and what comes of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The schedule.
    pub schedule: Schedule,
    /// What comes of it.
    pub outcome: Outcome,
}

impl Found {
    fn efficiency(&self) -> f64 {
        self.outcome.efficiency
    }
}

/// Counts that the coarse grid has: fewer of them where there are many levels.
const COARSE: [u32; 16] = [0, 1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 140, 220, 450, 900];
/// More counts together are not compared.
const MOST_COMPARED: usize = 50_000;
/// So many of the coarse grid's best are where the model is asked, and so many of these are moved on.
const ASKED: usize = 8;
const KEPT: usize = 2;
/// Points of the grid of intervals.
const POINTS: u32 = 24;
/// The first steps of the logarithm of an interval, and the last, when it is searched and when it is found.
const FIRST_STEP: f64 = 0.35;
const LAST_STEP: f64 = 0.05;
const FINEST_STEP: f64 = 0.002;
/// A program that has less of the time does not get on.
const LEAST: f64 = 1e-4;
/// What is better by less is not better.
const BETTER: f64 = 1e-8;

/// The best schedule for these levels.
///
/// # Errors
/// The levels cannot be planned with, or the program gets on by no schedule.
pub fn best(levels: &[Level], bounds: &Bounds) -> Result<Found, PlanError> {
    check(levels)?;
    let search = Search { levels, bounds };
    let counts = search.first_counts();
    let mut found: Vec<Found> = counts.iter().filter_map(|between| search.first(between)).collect();
    if found.is_empty() {
        found.extend(counts.iter().filter_map(|between| search.on_a_grid(between)));
    }
    found.sort_by(|one, other| other.efficiency().total_cmp(&one.efficiency()));
    found.truncate(KEPT);
    let climbed = found.into_iter().map(|found| search.climb(found));
    let found = climbed.reduce(better).filter(|found| found.efficiency() >= LEAST);
    found.ok_or(PlanError::Hopeless)
}

/// The best interval for these counts.
///
/// # Errors
/// As [`best`]; the counts cannot be.
pub fn best_interval(levels: &[Level], between: &[u32], bounds: &Bounds) -> Result<Found, PlanError> {
    check(levels)?;
    if between.len() + 1 != levels.len() {
        return Err(PlanError::Shape("it needs a count for each level but the highest"));
    }
    let search = Search { levels, bounds };
    let found = search.on_a_grid(between).map(|found| search.narrow(found, LAST_STEP, FINEST_STEP));
    found.filter(|found| found.efficiency() >= LEAST).ok_or(PlanError::Hopeless)
}

fn better(one: Found, other: Found) -> Found {
    if other.efficiency() > one.efficiency() { other } else { one }
}

struct Search<'a> {
    levels: &'a [Level],
    bounds: &'a Bounds,
}

impl Search<'_> {
    /// The counts at which the model is asked first.
    fn first_counts(&self) -> Vec<Vec<u32>> {
        let steps = self.levels.len() - 1;
        let fits = |count: &usize| {
            u32::try_from(steps)
                .ok()
                .and_then(|steps| count.checked_pow(steps))
                .is_some_and(|all| all <= MOST_COMPARED)
        };
        let width = (1..=COARSE.len()).rev().find(fits).unwrap_or(1);
        let mut all: Vec<Vec<u32>> = vec![Vec::new()];
        for _ in 0..steps {
            let longer = |one: &Vec<u32>| {
                let one = one.clone();
                let counts = (0..width).map(move |number| COARSE[number * COARSE.len() / width]);
                counts.map(move |count| one.iter().copied().chain([count]).collect::<Vec<u32>>())
            };
            all = all.iter().flat_map(longer).filter(|between| self.may(between)).collect();
        }
        let cost = |between: &Vec<u32>| self.first_order(between).map_or(f64::INFINITY, |(_, cost)| cost);
        all.sort_by_cached_key(|between| ordered(cost(between)));
        all.truncate(ASKED);
        all.extend(Some(self.by_young()).filter(|between| self.may(between)));
        all
    }

    /// Each level at the interval that it would have alone, for what it costs beyond the level below.
    fn by_young(&self) -> Vec<u32> {
        let mut below = 0.0;
        let alone = |level: &Level| {
            let more = (level.cost - below).max(0.0) + level.slowdown * level.flush;
            below = level.cost;
            young(more, level.rate.max(f64::MIN_POSITIVE)).max(level.flush)
        };
        let intervals: Vec<f64> = self.levels.iter().map(alone).collect();
        let count =
            |two: &[f64]| (two[1] / two[0].max(f64::MIN_POSITIVE)).clamp(1.0, 100.0).round() as u32 - 1;
        let counts = intervals.windows(2).map(count).zip(&self.levels[1..]);
        counts.map(|(count, above)| if above.each { 0 } else { count }).collect()
    }

    /// Whether there can be such a schedule, also of the lowest levels alone.
    fn may(&self, between: &[u32]) -> bool {
        let is_free = between.iter().zip(&self.levels[1..]).all(|(count, above)| *count == 0 || !above.each);
        is_free && Schedule { interval: 1.0, between: between.to_vec() }.periods().is_some()
    }

    /// The interval for these counts, and the part of its time that the program loses, to the first order.
    fn first_order(&self, between: &[u32]) -> Option<(f64, f64)> {
        let periods = Schedule { interval: 1.0, between: between.to_vec() }.periods()?;
        let (mut checkpoint, mut lost, mut least, mut below) = (0.0, 0.0, 0.0_f64, 0.0);
        for (level, period) in self.levels.iter().zip(periods) {
            let period = f64::from(period);
            checkpoint += ((level.cost - below).max(0.0) + level.slowdown * level.flush) / period;
            below = level.cost;
            lost += level.rate * period / 2.0;
            least = least.max(level.flush / period - self.levels.first().map_or(0.0, |first| first.cost));
        }
        let (lowest, most) = self.range();
        // A flush must have ended: a little more than that.
        let interval = (checkpoint / lost).sqrt().max(least * 1.0001).clamp(lowest, most);
        Some((interval, checkpoint / interval + lost * interval))
    }

    fn at(&self, between: &[u32], interval: f64) -> Option<Found> {
        let schedule = Schedule { interval, between: between.to_vec() };
        let outcome = outcome(self.levels, &schedule).ok()?;
        Some(Found { schedule, outcome })
    }

    /// The range in which the interval can be: beyond ten times the time between failures there is nothing.
    fn range(&self) -> (f64, f64) {
        let rate: f64 = self.levels.iter().map(|level| level.rate).sum();
        let most = (10.0 / rate).clamp(self.bounds.least_interval, self.bounds.most_interval);
        let least = (1e-6 / rate).max(self.bounds.least_interval);
        (least.min(most), most)
    }

    /// The best near the interval of the first order.
    fn first(&self, between: &[u32]) -> Option<Found> {
        let (interval, _) = self.first_order(between)?;
        self.narrow(self.at(between, interval)?, FIRST_STEP, LAST_STEP).into()
    }

    /// The best of all intervals.
    fn on_a_grid(&self, between: &[u32]) -> Option<Found> {
        let (least, most) = self.range();
        let step = (most / least).ln() / f64::from(POINTS - 1);
        let all = (0..POINTS).filter_map(|number| self.at(between, least * (step * f64::from(number)).exp()));
        Some(self.narrow(all.reduce(better)?, step / 2.0, LAST_STEP))
    }

    /// Moves the interval up or down by a step, and where neither is better to the top of the parabola through the
    /// three, with a smaller step from there on.
    fn narrow(&self, mut best: Found, first: f64, last: f64) -> Found {
        let between = best.schedule.between.clone();
        let (least, most) = self.range();
        let at = |logarithm: f64| self.at(&between, logarithm.exp().clamp(least, most));
        let mut step = first;
        while step >= last {
            let middle = best.schedule.interval.ln();
            let (low, high) = (at(middle - step), at(middle + step));
            let [a, b, c] =
                [low.as_ref(), Some(&best), high.as_ref()].map(|one| one.map_or(0.0, Found::efficiency));
            if a.max(c) > b {
                best = [low, high].into_iter().flatten().fold(best, better);
                continue;
            }
            let curve = a - 2.0 * b + c;
            if a > 0.0 && curve < 0.0 {
                let top = middle + step * (a - c) / (2.0 * curve);
                best = at(top).into_iter().fold(best, better);
            }
            step /= 4.0;
        }
        best
    }

    /// Moves counts and interval as long as that is better.
    fn climb(&self, mut best: Found) -> Found {
        loop {
            let around = neighbours(&best.schedule.between).into_iter().filter(|between| self.may(between));
            let moved = around.filter_map(|between| {
                let found =
                    self.at(&between, scaled(&best.schedule, &between)).or_else(|| self.first(&between))?;
                Some(self.narrow(found, FIRST_STEP / 2.0, LAST_STEP))
            });
            match moved.reduce(better) {
                Some(next) if next.efficiency() > best.efficiency() + BETTER => best = next,
                _ => return self.narrow(best, LAST_STEP, FINEST_STEP),
            }
        }
    }
}

/// A number in its order: costs are neither negative nor none.
fn ordered(cost: f64) -> u64 {
    cost.to_bits()
}

/// The interval at which the highest level comes as often as before, but no more than twice or half.
fn scaled(schedule: &Schedule, between: &[u32]) -> f64 {
    let slots = |between: &[u32]| between.iter().map(|count| f64::from(*count) + 1.0).product::<f64>();
    schedule.interval * (slots(&schedule.between) / slots(between)).clamp(0.5, 2.0)
}

/// Counts that differ in one of them, by little or by a third.
fn neighbours(between: &[u32]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for (at, count) in between.iter().enumerate() {
        let far = (count / 3).max(2);
        let moved =
            [count.saturating_sub(far), count.saturating_sub(1), count.saturating_add(1), count + far];
        for count in moved.into_iter().filter(|moved| moved != count && *moved < MOST_SLOTS) {
            let mut other = between.to_vec();
            other[at] = count;
            if !all.contains(&other) {
                all.push(other);
            }
        }
    }
    all
}
