//! What comes of a schedule: the chain of its states, solved.

use super::level::{Level, Outcome, PlanError, Schedule, check};
use super::{chain, solve};

/// What comes of a schedule.
///
/// # Errors
/// The levels or the schedule cannot be, or the program does not get on with it.
pub fn outcome(levels: &[Level], schedule: &Schedule) -> Result<Outcome, PlanError> {
    check(levels)?;
    let cycle = chain::Cycle::new(levels, schedule)?;
    let found = solve::mean(chain::build(&cycle)).ok_or(PlanError::Hopeless)?;
    let work = f64::from(cycle.slots) * schedule.interval;
    let efficiency = work / found.time;
    if !(efficiency.is_normal() && efficiency <= 1.0 + 1e-9) {
        return Err(PlanError::Hopeless);
    }
    let efficiency = efficiency.min(1.0);
    let checkpoints = (cycle.undisturbed() - work).max(0.0) / found.time;
    let restarts = found.restarting / found.time;
    let redone = (1.0 - efficiency - checkpoints - restarts).max(0.0);
    Ok(Outcome { efficiency, checkpoints, restarts, redone })
}

/// The chance that a failure which only this level survives takes an image before the level has all of it. Failures
/// that lower levels survive begin the flush anew.
///
/// # Errors
/// The levels cannot be; there is no such level.
pub fn overtaken(levels: &[Level], level: usize) -> Result<f64, PlanError> {
    check(levels)?;
    let of_all: f64 = levels.iter().map(|level| level.rate).sum();
    let worse: f64 = levels.iter().skip(level).map(|level| level.rate).sum();
    let flush = levels.get(level).ok_or(PlanError::Shape("there is no such level"))?.flush;
    let (fails, _) = solve::until_failure(of_all, flush);
    let (taken, ends) = (fails * worse / of_all, (-of_all * flush).exp());
    Ok(taken / (taken + ends))
}
