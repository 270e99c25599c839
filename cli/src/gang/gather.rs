//! How the members of a gang find each other, before anything is started.
//!
//! Called by each member's agent. The leader writes down where it is and waits for the others; they look for it.
//! Invariant: all have come, or none goes on. Fails by: who did not come, or why a member was refused.

use super::seat::Seat;
use super::waiting::{Meanwhile, Plan};
use super::{join, lead};
use crate::exit::Failure;
use std::sync::Arc;

/// Finds the others.
///
/// # Errors
/// See the head of the file.
pub fn gather(plan: &Plan<'_>, meanwhile: &Meanwhile<'_>) -> Result<Arc<Seat>, Failure> {
    if plan.place.is_leader() { lead::lead(plan, meanwhile) } else { join::join(plan, meanwhile) }
}
