//! What the tiers decide: which copy of a segment is where, what is flushed, evicted, prefetched, kept.
//!
//! * [`Hierarchy`]: segments over tiers, driven by [`Hierarchy::step`]; [`State`] is one instance's life cycle;
//!   `window` finds what in a cache makes room at the least cost.
//! * [`Profile`], [`schedule()`]: which segments go down raw, which are accumulated and compressed.
//! * [`WorthPacking`]: whether one thread that packs and stores should pack.
//! * [`planner`]: which level is to be checkpointed how often, by costs and failure rates.
//! * [`Retention`]: which versions a tier takes and keeps; [`prune()`]: what goes when a user asks for it.
//!
//! Called by the threads that move bytes, and by the simulator (`benches/policy`), which has a clock of its own.
//! Invariants: nothing here reads a clock, does I/O, waits or starts a thread; what the caller is to do is returned as
//! actions; a segment's last copy is never erased but if the caller said that it may be; hints never change what is
//! right, only what is fast.

mod dispatch;
mod evictable;
mod fragments;
mod hierarchy;
mod lane;
mod pieces;
pub mod planner;
mod profile;
mod prune;
mod rates;
mod restore_queue;
mod retention;
mod room;
mod schedule;
mod segment_id;
mod state;
mod transfer;
mod wanted;
mod window;
mod worth;

#[cfg(test)]
mod tests;

pub use hierarchy::{Action, Event, Hierarchy, PolicyError, TierLimits};
pub use profile::{CodecCurve, Profile, Sample};
pub use prune::{Held, PrunePlan, Removal, TierHolds, Why, Wish, prune};
pub use rates::{part, transfer_ns};
pub use retention::{Pinned, Retention, Version, newest_of_days};
pub use schedule::{BufferLimits, Choice, Objective, Plan, schedule};
pub use segment_id::SegmentId;
pub use state::{Change, IllegalChange, State};
pub use transfer::{Place, Transfer};
pub use window::Ties;
pub use worth::WorthPacking;
