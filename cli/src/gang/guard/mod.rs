//! Redundancy between the hosts of a gang: each member keeps parity of what others have (`--protect`), and what a host
//! had that was lost is rebuilt of it on another one.
//!
//! * [`shelf`]: what a member lets the others read, over connections of their own. [`peers`]: how it reads theirs.
//! * [`encode`]: the parity of a set. [`rebuild`]: the stream of a member that was lost. [`offer`]: what members say of
//!   themselves at a checkpoint, and what becomes of that; [`repair`]: the same before a restart. [`state`]: what
//!   commands tell.
//!
//! Called by the agents after each image of the gang, and before a restart by the process that agrees on one. What a
//! set is, `holdfast_tiers::redundancy` says. Invariants: no checkpoint waits for it, nor fails by it; what was read of
//! others is used when it is what it was.

pub mod encode;
pub mod offer;
pub mod peers;
pub mod rebuild;
pub mod repair;
pub mod shelf;
pub mod state;

/// Bytes that are asked for at once.
pub(super) const PIECE: u64 = 1 << 20;
