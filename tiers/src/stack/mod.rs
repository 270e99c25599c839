//! The store over several tiers: committed versions move down by themselves, and up again when they are missing.
//!
//! * [`TierSpec`]: a tier as the user names it, with its rules; [`JobTiers`]: those of a job, each at its [`Place`].
//! * [`copy_version`]: one version from one tier to another: segments, then the commit. Both ways.
//! * [`Cascade`]: the threads that keep lower tiers as their rules say; [`TierState`] is what they tell.
//! * [`local_removals`]: which images of the first tier may go.
//!
//! Called by the agent, by `holdfast sync` (what a dead agent left) and by `holdfast fetch` (up). What a tier takes and
//! keeps is decided by [`crate::policy::Retention`]. The cascade does not ask `policy::Hierarchy`: versions move as a
//! whole, each from the first tier, which has them all.
//! Invariants: a version is on a tier when its manifest is, and that is published when everything it names is there and
//! was checked while it was copied; nothing here is waited for by a checkpoint; a version that a lower tier wants is
//! never removed above because of `keep` alone.

mod backoff;
mod cascade;
mod copy;
pub(crate) mod inventory;
mod job_tiers;
mod local;
pub(crate) mod others;
mod packing;
mod place;
mod plan;
mod record;
mod remove;
mod segment_check;
mod shared;
mod spec;
mod worker;

pub use cascade::{Cascade, CascadeOptions};
pub use copy::{Copied, CopyError, Pace, Way, copy_version};
pub use inventory::Inventory;
pub use job_tiers::JobTiers;
pub use others::{HostOf, OtherImage, others};
pub use packing::Packing;
pub use place::Place;
pub use plan::{HeldVersion, LocalRules, local_removals, wanted};
pub use record::{TierRecord, TiersRecord};
pub(crate) use segment_check::SegmentCheck;
pub use shared::{Activity, IsOver, OnFailure, OnOther, Opener, TierState};
pub use spec::{Full, TierSpec};
