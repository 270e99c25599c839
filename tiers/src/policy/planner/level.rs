//! What is planned with, and what a plan is.
//!
//! Used by the rest of the planner and its callers. Invariant: a [`Level`] that passed [`Level::check`] can be computed
//! with: none of its numbers is negative, or beyond all bounds.

use thiserror::Error;

/// More levels are not planned with: a state of the model has a bit for each.
pub const MOST_LEVELS: usize = 8;
/// More checkpoints between two of the highest level are not looked at.
pub const MOST_SLOTS: u32 = 512;
/// Longer times say nothing (a thousand years), seconds.
pub const MOST_SECONDS: f64 = 3.2e10;

/// A level: the lowest is the cheapest, and survives the fewest failures. Times in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Level {
    /// The program waits so long for a checkpoint of this level, all lower ones included.
    pub cost: f64,
    /// From a failure until the program goes on from an image of this level.
    pub restart: f64,
    /// From the checkpoint until this level has all of it, while the program runs; 0: it has it at once.
    pub flush: f64,
    /// By so much of its time the program is slower meanwhile: 0.1, it takes 1.1 times as long.
    pub slowdown: f64,
    /// Failures per second that an image of this level survives, and one of the level below does not.
    pub rate: f64,
    /// Each image of the level below is one of this level, too: what is in memory moves on to the store anyway.
    pub each: bool,
}

impl Level {
    /// What is wrong with it, by the name of the number.
    ///
    /// # Errors
    /// It is negative, no number or beyond all bounds.
    pub fn check(&self) -> Result<(), PlanError> {
        let times = [("cost", self.cost), ("restart", self.restart), ("flush", self.flush)];
        for (what, value) in times {
            if !(0.0..=MOST_SECONDS).contains(&value) {
                return Err(PlanError::Number { what, value, most: MOST_SECONDS });
            }
        }
        for (what, value, most) in [("slowdown", self.slowdown, 1000.0), ("rate", self.rate, 1e6)] {
            if !(0.0..=most).contains(&value) {
                return Err(PlanError::Number { what, value, most });
            }
        }
        Ok(())
    }
}

/// When which level is checkpointed.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// The program computes so long between two checkpoints, seconds of a program that nothing slows.
    pub interval: f64,
    /// Of each level but the highest: how many checkpoints it has between two of the level above.
    pub between: Vec<u32>,
}

impl Schedule {
    /// Of each level: one in so many checkpoints is of it, or of a higher one. The lowest has them all: 1. None: too
    /// many.
    pub fn periods(&self) -> Option<Vec<u32>> {
        let mut periods = vec![1_u32];
        for count in &self.between {
            let next = count.checked_add(1)?.checked_mul(periods.last().copied()?)?;
            periods.push(next);
        }
        Some(periods).filter(|periods| periods.last().is_some_and(|last| *last <= MOST_SLOTS))
    }
}

/// What becomes of a program's time, in the long run: parts of it, which add up to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Its work, done for good.
    pub efficiency: f64,
    /// It waits for checkpoints, or is slowed by what goes on behind them.
    pub checkpoints: f64,
    /// It is restarted.
    pub restarts: f64,
    /// It does what a failure has undone, once for nothing.
    pub redone: f64,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum PlanError {
    /// A number is none that can be.
    #[error("{what} is {value}: it must be from 0 to {most}")]
    Number {
        /// Which.
        what: &'static str,
        /// What it is.
        value: f64,
        /// The greatest.
        most: f64,
    },
    /// There is nothing to choose from.
    #[error("no level is given: what a checkpoint costs must be known")]
    NoLevel,
    /// More than [`MOST_LEVELS`].
    #[error("{0} levels are given: at most {MOST_LEVELS} can be planned with")]
    TooManyLevels(usize),
    /// No failure ever comes.
    #[error("no failures are given: without any no checkpoint is worth its time; say how often they come")]
    NoFailures,
    /// A schedule is not one of these levels.
    #[error("a schedule of this shape cannot be: {0}")]
    Shape(&'static str),
    /// A level gets its next image before it has the one before.
    #[error("level {level} does not have an image yet when it gets the next one: its flush takes too long")]
    Overrun {
        /// Which, from 0 on.
        level: usize,
    },
    /// Failures come faster than the program gets on.
    #[error("the program would never end: failures come faster than it can be restarted and checkpointed")]
    Hopeless,
}

/// Whether these levels can be planned with.
///
/// # Errors
/// There are none, or too many; a number is none; nothing ever fails.
pub(super) fn check(levels: &[Level]) -> Result<(), PlanError> {
    match levels.len() {
        0 => return Err(PlanError::NoLevel),
        count if count > MOST_LEVELS => return Err(PlanError::TooManyLevels(count)),
        _ => levels.iter().try_for_each(Level::check)?,
    }
    if levels.iter().all(|level| level.rate == 0.0) { Err(PlanError::NoFailures) } else { Ok(()) }
}
