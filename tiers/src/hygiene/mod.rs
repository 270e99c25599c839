//! The store's hygiene, on any tier: what is damaged is found and put back, what is too much goes, a version becomes
//! one file and a version again.
//!
//! * [`verify()`]: every byte that a job has on a tier; [`repair()`]: from other tiers.
//! * [`survey`], [`remove`]: what a tier has, for a plan, and its removal.
//! * [`export`], [`Archive`]: a version as one file.
//!
//! Called by the commands, with the job's lock held where something is changed; [`finish_repairs`] also by
//! [`crate::Job::clean`].
//! Invariants: memory is bounded whatever the images have; nothing here removes the last intact copy of anything that
//! an image needs.

mod archive;
mod prune;
mod repair;
mod segment;
mod verify;

pub use archive::{Archive, ArchiveError, export};
pub use prune::{Survey, remove, survey};
pub(crate) use repair::MENDED;
pub use repair::{Mended, finish_repairs, repair};
pub(crate) use segment::is_intact;
pub use verify::{Finding, Verified, VerifiedSet, Verify, verify};
