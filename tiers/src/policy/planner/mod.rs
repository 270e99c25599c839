//! How often which level is to be checkpointed: a Markov model of a program with failures, and the search in it.
//!
//! * [`Level`]: what a checkpoint of a level costs, and how often failures come that it survives; [`Schedule`]: when
//!   which level has its turn; [`outcome`]: what comes of that; [`best`]: the schedule by which most of the time is the
//!   program's; [`young`], [`daly`]: what has been known for one level for long.
//! * `chain` has the states, `solve` the linear algebra, `model` both together, `search` the search.
//!
//! The model is that of Sato (SC'12) for any number of levels; docs/plan.md says what it assumes. Called by `holdfast
//! plan` and by agents with `--every auto`; checked by a simulator of its own (`tiers/lab`).
//! Invariants: pure; what comes in is checked by [`Level::check`], and no number of it makes anything here panic.

mod chain;
mod level;
mod model;
mod search;
mod solve;
mod young;

#[cfg(test)]
mod tests;

pub use level::{Level, MOST_LEVELS, MOST_SECONDS, MOST_SLOTS, Outcome, PlanError, Schedule};
pub use model::{outcome, overtaken};
pub use search::{Bounds, Found, best, best_interval};
pub use young::{daly, young};
