//! The store's hygiene, on any tier: what is damaged is found and put back.
//!
//! * [`verify()`]: every byte that a job has on a tier; [`repair()`]: from other tiers.
//!
//! Called by the commands, with the job's lock held where something is changed; [`finish_repairs`] also by
//! [`crate::Job::clean`].
//! Invariants: memory is bounded whatever the images have; nothing here removes the last intact copy of anything that
//! an image needs.

mod repair;
mod segment;
mod verify;

pub use repair::{Mended, finish_repairs, repair};
pub use verify::{Finding, Verified, Verify, verify};
