//! What tests and benches put the store on and through, and an engine that they alone drive: nothing of it is in
//! the product.
//!
//! * [`Model`]: a tier in memory that can lose what was not durable; [`Faulty`]: a layer that fails when it is told to;
//!   [`Throttled`]: one that is no faster than a rate.
//! * [`SegmentMover`]: segments between caches that fill up, as [`holdfast_tiers::policy::Hierarchy`] says, by real
//!   threads.
//! * [`play`]: a program with failures, by drawing lots: what the planner computes.
//!
//! Used by tests and benches of `tiers` and of the stand-in driver, and by fuzz targets. The unit tests of `tiers`
//! compile `model.rs` and `faulty.rs` themselves, for they see another `holdfast-tiers` than this crate does.
//! Invariant: a layer keeps the promises of the door (`holdfast_tiers::tier`) if the tier below does, but for
//! [`Faulty`]; what decides here reads no clock, does no I/O and waits for nothing.

mod failures;
mod faulty;
mod model;
mod segment_mover;
mod throttled;

#[cfg(test)]
mod tests;

pub use failures::{Played, play};
pub use faulty::{Call, Fault, Faults, Faulty, Operation};
pub use model::{Damage, Model};
pub use segment_mover::{MoveError, MoverTier, SegmentMover};
pub use throttled::{Clock, Limits, SystemClock, Throttled};
