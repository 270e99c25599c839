//! Children that have ended and that were not waited for.
//!
//! Part of [`crate::record`]. Invariants: plain data.

use crate::bytes::Name;
use serde::{Deserialize, Serialize};

/// A child that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ZombieRecord {
    /// Its id.
    pub pid: i32,
    /// The same in the pid namespace of its parent, if a program of the job has made that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner_pid: Option<i32>,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// As wait(2) will tell it.
    pub status: i32,
    /// Its name.
    pub comm: Name,
}
