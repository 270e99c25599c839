//! Tests of the planner. The simulator's are in `tiers/tests/all/planner.rs`.

use super::*;
use proptest::prelude::*;

fn sync(cost: f64, restart: f64, rate: f64) -> Level {
    Level { cost, restart, rate, ..Level::default() }
}

fn schedule(interval: f64, between: &[u32]) -> Schedule {
    Schedule { interval, between: between.to_vec() }
}

/// Daly's mean time of one interval with one level, written down: `(e^(rate (T + C)) - 1) e^(rate R) / rate`.
fn exact(level: &Level, interval: f64) -> f64 {
    let mean =
        (level.rate * (interval + level.cost)).exp_m1() * (level.rate * level.restart).exp() / level.rate;
    interval / mean
}

/// `(I - Q) x = t` by Gauss, with pivots, on the whole matrix.
fn by_gauss(chain: &solve::Chain) -> Option<f64> {
    let count = chain.rows.len();
    let mut matrix = vec![vec![0.0; count + 1]; count];
    for (at, row) in matrix.iter_mut().enumerate() {
        row[at] = 1.0;
        row[count] = chain.times[at][0];
        chain.rows[at].iter().for_each(|(to, part)| row[*to as usize] -= part);
    }
    for at in 0..count {
        let pivot =
            (at..count).max_by(|one, other| matrix[*one][at].abs().total_cmp(&matrix[*other][at].abs()))?;
        matrix.swap(at, pivot);
        let row = matrix[at].clone();
        for below in matrix.iter_mut().skip(at + 1) {
            let factor = below[at] / row[at];
            below.iter_mut().zip(&row).skip(at).for_each(|(value, above)| *value -= factor * above);
        }
    }
    let mut found = vec![0.0; count];
    for at in (0..count).rev() {
        let known: f64 = (at + 1..count).map(|to| matrix[at][to] * found[to]).sum();
        found[at] = (matrix[at][count] - known) / matrix[at][at];
    }
    Some(found[chain.start])
}

/// Levels and a schedule that they can follow.
fn any_plan() -> impl Strategy<Value = (Vec<Level>, Schedule)> {
    let level = (0.0..30.0, 0.0..300.0, 0.0..0.9, 0.0..0.5, -5.0..-2.7, 0..6_u32, any::<[bool; 2]>());
    prop::collection::vec(level, 1..5).prop_map(|drawn| {
        let (mut levels, mut between, mut period) = (Vec::new(), Vec::new(), 1.0);
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
        (levels, Schedule { interval: 100.0, between })
    })
}

#[test]
fn one_level_is_as_daly_wrote_it() {
    for rate in [1e-12, 1e-7, 1e-4, 1e-2] {
        for (cost, restart) in [(0.0, 0.0), (0.01, 3.0), (30.0, 60.0), (600.0, 0.0)] {
            for interval in [0.5, 100.0, 7200.0] {
                let level = sync(cost, restart, rate);
                let expected = exact(&level, interval);
                match outcome(&[level], &schedule(interval, &[])) {
                    Ok(found) => {
                        let off = found.efficiency / expected - 1.0;
                        assert!(off.abs() < 1e-9, "{level:?} {interval}: {found:?}, not {expected}");
                    }
                    Err(error) => assert!(expected < 1e-30, "{level:?} {interval}: {error}, not {expected}"),
                }
            }
        }
    }
}

#[test]
fn the_interval_is_that_of_young_and_daly() -> Result<(), PlanError> {
    let interval = |cost, rate| Ok(best(&[sync(cost, 60.0, rate)], &Bounds::default())?.schedule.interval);
    for (cost, rate) in [(1.0, 1e-8), (30.0, 1e-7), (5.0, 1e-6)] {
        // Where checkpoints are rare Young's is right.
        let off = interval(cost, rate)? / young(cost, rate) - 1.0;
        assert!(off.abs() < 0.01, "{cost} {rate}: {off}");
    }
    for (cost, rate) in [(30.0, 1e-4), (60.0, 1e-3), (300.0, 2e-4)] {
        let off = interval(cost, rate)? / daly(cost, rate) - 1.0;
        assert!(off.abs() < 0.01, "{cost} {rate}: {off}");
        // The optimum itself, by the slope: (1 - rate T) e^(rate (T + C)) = 1.
        let x = rate * interval(cost, rate)?;
        assert!(((1.0 - x) * (x + rate * cost).exp() - 1.0).abs() < 1e-3, "{cost} {rate}");
    }
    assert_eq!(daly(5000.0, 1e-3), 1000.0);
    Ok(())
}

#[test]
fn two_levels_that_are_one_are_one() -> Result<(), PlanError> {
    let one = outcome(&[sync(30.0, 60.0, 3e-4)], &schedule(700.0, &[]))?.efficiency;
    for between in [0, 1, 5] {
        let levels = [sync(30.0, 60.0, 1e-4), sync(30.0, 60.0, 2e-4)];
        let two = outcome(&levels, &schedule(700.0, &[between]))?.efficiency;
        // Where each image is of both levels there is no difference; else the higher failures lose more.
        assert_eq!(between == 0, (two / one - 1.0).abs() < 1e-9, "{between}: {two}, {one}");
        assert!(two <= one + 1e-9);
        // Without failures of the higher level it is as if there were none, but for those during a restart.
        let levels = [sync(30.0, 0.0, 3e-4), sync(30.0, 0.0, 0.0)];
        let two = outcome(&levels, &schedule(700.0, &[between]))?.efficiency;
        let one = outcome(&levels[..1], &schedule(700.0, &[]))?.efficiency;
        assert!((two / one - 1.0).abs() < 1e-9, "{between}: {two}, {one}");
    }
    Ok(())
}

#[test]
fn no_other_schedule_is_better() -> Result<(), PlanError> {
    let flushed = Level { flush: 900.0, slowdown: 0.05, ..sync(31.0, 500.0, 4e-6) };
    let three = vec![sync(0.5, 5.0, 2e-5), sync(20.0, 60.0, 5e-6), flushed];
    let two = [vec![sync(31.0, 10.0, 1e-5), sync(500.0, 500.0, 3e-6)], vec![sync(31.0, 10.0, 2e-5), flushed]];
    for levels in two.into_iter().chain([three]) {
        let found = best(&levels, &Bounds::default())?;
        let counts: Vec<Vec<u32>> = match levels.len() {
            2 => (0..30).map(|count| vec![count]).collect(),
            _ => (0..12).flat_map(|low| (0..12).map(move |high| vec![low, high])).collect(),
        };
        for between in counts {
            for step in 0..60 {
                let interval = 50.0 * 1.12_f64.powi(step);
                let Ok(other) = outcome(&levels, &schedule(interval, &between)) else { continue };
                assert!(
                    other.efficiency < found.outcome.efficiency + 1e-6,
                    "{between:?} at {interval}: {} is better than {found:?}",
                    other.efficiency
                );
            }
        }
    }
    Ok(())
}

#[test]
fn a_level_that_each_image_reaches_is_never_left_out() -> Result<(), PlanError> {
    let mut levels = [sync(1.0, 5.0, 1e-5), sync(60.0, 60.0, 1e-6), sync(300.0, 600.0, 1e-6)];
    assert_ne!(best(&levels, &Bounds::default())?.schedule.between[0], 0);
    levels[1].each = true;
    assert_eq!(best(&levels, &Bounds::default())?.schedule.between[0], 0);
    Ok(())
}

#[test]
fn the_interval_alone_is_searched_too() -> Result<(), PlanError> {
    let levels = [sync(31.0, 10.0, 1e-5), sync(500.0, 500.0, 3e-6)];
    let all = best(&levels, &Bounds::default())?;
    let one = best_interval(&levels, &all.schedule.between, &Bounds::default())?;
    assert!((one.outcome.efficiency - all.outcome.efficiency).abs() < 1e-6, "{one:?} {all:?}");
    for count in [0, 40] {
        let other = best_interval(&levels, &[count], &Bounds::default())?;
        assert!(other.outcome.efficiency < all.outcome.efficiency && other.schedule.between == [count]);
        for factor in [0.9, 1.1] {
            let near = outcome(&levels, &schedule(other.schedule.interval * factor, &[count]))?;
            assert!(near.efficiency < other.outcome.efficiency, "{count} {factor}");
        }
    }
    assert!(matches!(best_interval(&levels, &[], &Bounds::default()), Err(PlanError::Shape(_))));
    assert_eq!(best_interval(&levels, &[100_000], &Bounds::default()), Err(PlanError::Hopeless));
    Ok(())
}

#[test]
fn bounds_are_kept() -> Result<(), PlanError> {
    let levels = [sync(0.001, 5.0, 1e-3)];
    let bounds = Bounds { least_interval: 10.0, ..Bounds::default() };
    assert!((best(&levels, &bounds)?.schedule.interval - 10.0).abs() < 1e-6);
    let bounds = Bounds { most_interval: 0.1, ..Bounds::default() };
    assert!((best(&levels, &bounds)?.schedule.interval - 0.1).abs() < 1e-6);
    Ok(())
}

#[test]
fn what_cannot_be_is_said() {
    let good = sync(1.0, 1.0, 1e-5);
    let none = |levels: &[Level]| best(levels, &Bounds::default()).err();
    assert_eq!(none(&[]), Some(PlanError::NoLevel));
    assert_eq!(none(&[good; 9]), Some(PlanError::TooManyLevels(9)));
    assert_eq!(none(&[sync(1.0, 1.0, 0.0)]), Some(PlanError::NoFailures));
    for bad in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
        let is_number = |error| matches!(error, Some(PlanError::Number { .. }));
        assert!(is_number(none(&[Level { cost: bad, ..good }])), "{bad}");
        assert!(is_number(none(&[Level { rate: bad, ..good }])), "{bad}");
        assert!(matches!(outcome(&[good], &schedule(bad, &[])), Err(PlanError::Shape(_))), "{bad}");
    }
    assert!(matches!(outcome(&[good], &schedule(1.0, &[1])), Err(PlanError::Shape(_))));
    assert!(matches!(outcome(&[good; 3], &schedule(1.0, &[u32::MAX, 7])), Err(PlanError::Shape(_))));
    let slow = Level { flush: 500.0, ..good };
    assert_eq!(outcome(&[good, slow], &schedule(100.0, &[2])), Err(PlanError::Overrun { level: 1 }));
    assert_eq!(none(&[sync(3600.0, 36000.0, 1.0)]), Some(PlanError::Hopeless));
    assert_eq!(none(&[sync(3600.0, 60.0, 1e-2)]), Some(PlanError::Hopeless));
}

/// Table 4.4 of Sato's thesis (2014): per cent, at 1, 2, 10 and 50 times the size, as printed.
#[test]
fn a_level_two_write_is_overtaken_as_printed() -> Result<(), PlanError> {
    for (size, printed) in [(1.0, 0.0232), (2.0, 0.0929), (10.0, 2.45), (50.0, 84.5)] {
        let second = Level { flush: 544.0 * size, ..sync(0.0, 0.0, 4.28e-7 * size) };
        let ours = 100.0 * overtaken(&[sync(0.0, 0.0, 2.14e-6 * size), second], 1)?;
        assert!((ours / printed - 1.0).abs() < 0.02, "times {size}: {ours}, printed {printed}");
    }
    Ok(())
}

proptest! {
    #[test]
    fn elimination_is_as_gauss((levels, schedule) in any_plan()) {
        let cycle = chain::Cycle::new(&levels, &schedule).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assume!(cycle.slots < 60);
        let chain = chain::build(&cycle);
        chain.rows.iter().zip(&chain.ends).for_each(|(row, ends)| {
            let sum: f64 = row.iter().map(|(_, part)| part).sum::<f64>() + ends;
            assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        });
        let (other, found) = (by_gauss(&chain), solve::mean(chain));
        if let (Some(other), Some(found)) = (other, found) {
            // Gauss loses digits where a cycle hardly ever ends.
            let work = f64::from(cycle.slots) * schedule.interval;
            prop_assert!(work / found.time < 1e-3 || (found.time / other - 1.0).abs() < 1e-6, "{found:?} {other}");
        }
    }

    #[test]
    fn parts_of_the_time_add_up((levels, schedule) in any_plan()) {
        if let Ok(found) = outcome(&levels, &schedule) {
            let parts = [found.efficiency, found.checkpoints, found.restarts, found.redone];
            prop_assert!(parts.iter().all(|part| (0.0..=1.0).contains(part)), "{found:?}");
            prop_assert!((parts.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{found:?}");
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn no_number_makes_it_panic(
        numbers in prop::collection::vec(any::<[f64; 5]>(), 0..10),
        interval in any::<f64>(),
        between in prop::collection::vec(0..9_u32, 0..4),
    ) {
        let level = |[cost, restart, flush, slowdown, rate]: [f64; 5]| {
            Level { cost, restart, flush, slowdown, rate, each: rate.is_nan() }
        };
        let levels: Vec<Level> = numbers.iter().map(|numbers| level(*numbers)).collect();
        let _ = outcome(&levels, &Schedule { interval, between });
        // As they may be, but beyond all measure.
        let may_be = |number: &f64| (number.abs() % 1e12).clamp(0.0, MOST_SECONDS);
        let levels: Vec<Level> = levels
            .iter()
            .take(2)
            .map(|level| {
                let (cost, flush, rate) = (may_be(&level.cost), may_be(&level.flush), may_be(&level.rate) % 9.0);
                Level { cost, flush, rate, ..Level::default() }
            })
            .collect();
        let _ = best(&levels, &Bounds::default());
    }
}
