//! What the agents of a store and its server of objects share on a host: memory, and the rate at which the store is
//! written ([`holdfast_tiers::Share`]).
//!
//! Used by agent and server. Fails by: nothing is shared, which is said in the log.

use holdfast_sys::cgroup::{self, Room};
use holdfast_tiers::{Claim, Share, Store};
use std::sync::Arc;

/// The part of this process in what a store's processes share.
pub fn of(store: &Store) -> Arc<Share> {
    Arc::new(Share::of(store.root()).unwrap_or_else(|why| {
        tracing::warn!("memory and rate are not shared with others who write into this store: {why}");
        Share::alone()
    }))
}

/// Bytes that those who have claims may still take in this room.
pub fn claimed(claims: &[Claim], room: &Room) -> u64 {
    let is_within = |claim: &&Claim| {
        room.group.parent().is_none()
            || cgroup::tightest(claim.pid).is_some_and(|theirs| theirs.group.starts_with(&room.group))
    };
    claims.iter().filter(is_within).fold(0, |sum, claim| sum.saturating_add(claim.memory))
}
