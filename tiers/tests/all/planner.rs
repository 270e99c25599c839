//! The planner's model beside a simulator that draws lots: less than one per cent apart.

use holdfast_lab::{Played, play};
use holdfast_tiers::policy::planner::{Bounds, Level, Outcome, Schedule, best, best_interval, outcome};
use proptest::prelude::*;

/// Lots are drawn until the simulator itself is so exact.
const EXACT: f64 = 0.0016;
/// Less of its time says little about a plan, and takes long to be played.
const LEAST: f64 = 0.15;

fn played(levels: &[Level], schedule: &Schedule, model: &Outcome, seed: u64) -> Played {
    let mut failures = 20_000;
    loop {
        let played = play(levels, schedule, failures, seed);
        if played.error < EXACT * model.efficiency || failures > 4_000_000 {
            return played;
        }
        failures *= 4;
    }
}

fn agree(levels: &[Level], schedule: &Schedule, seed: u64) {
    let model = outcome(levels, schedule).unwrap();
    let played = played(levels, schedule, &model, seed);
    let off = played.efficiency / model.efficiency - 1.0;
    assert!(off.abs() < 0.01, "off by {off}: {model:?} {played:?} {schedule:?} {levels:?}");
}

#[test]
fn best_plans_are_what_they_are_played_as() {
    let second =
        Level { cost: 31.7, restart: 544.0, flush: 5440.0, slowdown: 0.02, rate: 4.28e-6, each: false };
    let first = Level { cost: 31.7, restart: 10.0, rate: 2.14e-5, ..Level::default() };
    let third = Level { restart: 5000.0, flush: 40_000.0, rate: 3e-7, ..second };
    for levels in [&[first][..], &[first, second], &[first, second, third]] {
        let found = best(levels, &Bounds::default()).unwrap();
        assert_eq!(outcome(levels, &found.schedule).unwrap(), found.outcome);
        agree(levels, &found.schedule, 7);
    }
}

/// What `--every auto` does, beside all fixed intervals, as they are played: it is within 1 % of the best of them.
#[test]
fn the_planned_interval_is_that_of_a_sweep() {
    let first = Level { cost: 5.0, restart: 20.0, rate: 1.0 / 600.0, ..Level::default() };
    let second = Level { restart: 60.0, flush: 120.0, slowdown: 0.05, rate: 1.0 / 6000.0, ..first };
    for (levels, between) in [(&[first][..], &[][..]), (&[first, second], &[1]), (&[first, second], &[5])] {
        let planned = best_interval(levels, between, &Bounds::default()).unwrap().schedule;
        let at = |interval: f64| {
            let schedule = Schedule { interval, between: between.to_vec() };
            outcome(levels, &schedule).map_or(0.0, |_| play(levels, &schedule, 100_000, 3).efficiency)
        };
        let swept: Vec<(f64, f64)> =
            (0..24).map(|step| 10.0 * 1.25_f64.powi(step)).map(|t| (t, at(t))).collect();
        let (best, most) = swept.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap();
        let found = at(planned.interval);
        assert!(found > most * 0.99, "{between:?}: {planned:?} has {found}, {best} s has {most}");
        // The sweep does tell intervals apart.
        assert!(at(planned.interval * 4.0) < most * 0.95 && at(planned.interval / 8.0) < most * 0.95);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]
    /// One to four levels, with flushes and without, at any of their counts.
    #[test]
    fn the_model_is_what_is_played(
        drawn in prop::collection::vec(
            (0.0..30.0, 0.0..300.0, 0.0..0.95, 0.0..0.5, -5.0..-2.7, 0..6_u32, any::<[bool; 2]>()), 1..5),
        seed in any::<u64>(),
    ) {
        let (mut levels, mut between, mut period): (Vec<Level>, Vec<u32>, f64) = (Vec::new(), Vec::new(), 1.0);
        for (cost, restart, flush, slowdown, rate, count, [flushes, slows]) in drawn {
            levels.push(Level {
                cost,
                restart,
                flush: if flushes { flush * period * 100.0 } else { 0.0 },
                slowdown: if slows { slowdown } else { 0.0 },
                rate: 10_f64.powf(rate) / period,
                each: false,
            });
            period *= f64::from(count) + 1.0;
            between.push(count);
        }
        between.pop();
        let schedule = Schedule { interval: 100.0, between };
        prop_assume!(outcome(&levels, &schedule).is_ok_and(|found| found.efficiency > LEAST));
        agree(&levels, &schedule, seed);
    }
}
