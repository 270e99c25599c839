//! System V semaphores and message queues that a program uses.
//!
//! Part of the files part of the process record. Written by `process::capture::ipc`, read by `process::rebuild::ipc`.
//! Invariants: plain data; the kernel checks what it is given.

use crate::bytes::Blob;
use crate::inode::Ownership;
use serde::{Deserialize, Serialize};

/// A semaphore set or a message queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IpcObject {
    /// The kernel's id at the cut; the programs may know another one, which libholdfast's table has.
    pub id: i32,
    /// Its key; 0: none.
    pub key: i32,
    /// Permission bits.
    pub mode: u32,
    /// Whose it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Ownership>,
    /// The user that had made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<u32>,
    /// What is in it.
    pub content: IpcContent,
}

/// What is in it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IpcContent {
    /// The values of the semaphores of a set.
    Semaphores(Vec<u16>),
    /// The messages of a queue, the oldest first.
    Messages {
        /// Bytes that it may hold.
        room: u64,
        /// All.
        messages: Vec<Message>,
    },
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Its type, above 0.
    pub kind: i64,
    /// Its text.
    pub data: Blob,
}

impl IpcObject {
    /// What it is, for messages.
    pub fn name(&self) -> String {
        let kind = match self.content {
            IpcContent::Semaphores(_) => "semaphore set",
            IpcContent::Messages { .. } => "message queue",
        };
        format!("System V {kind} {}", self.id)
    }
}
