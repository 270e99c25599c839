//! POSIX message queues that the program has open.
//!
//! Part of the files part of the process record. Written by `process::capture::files::queues`, read by
//! `process::rebuild`. Invariants: plain data; the kernel checks what it is given.

use crate::bytes::{Blob, Name};
use crate::inode::Ownership;
use serde::{Deserialize, Serialize};

/// A queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PosixQueue {
    /// Its name, with a slash; of one that was removed the one that it had.
    pub name: Name,
    /// It was removed (mq_unlink(3)).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// Device and inode at the cut.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Permission bits.
    pub mode: u32,
    /// Whose it was.
    pub owner: Ownership,
    /// Most messages.
    pub room: u64,
    /// Most bytes of one.
    pub size: u64,
    /// What waits, in the order in which it is received.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<QueuedMessage>,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueuedMessage {
    /// Its priority.
    pub priority: u32,
    /// Its bytes.
    pub data: Blob,
}
