//! Who waits for a rollback: the one that is under way, and those to come.
//!
//! Kept by the loop. Invariant: a client is in it once, until it is answered.

use holdfast_image::Epoch;
use std::collections::VecDeque;
use std::thread::JoinHandle;

/// See the head of the file.
#[derive(Default)]
pub struct Rollbacks {
    /// Its thread, and who waits for it.
    pub running: Option<(JoinHandle<()>, u64)>,
    /// Clients, and the image that each wants.
    pub queued: VecDeque<(u64, Option<Epoch>)>,
}

impl Rollbacks {
    /// Whether there is one.
    pub fn is_under_way(&self) -> bool {
        self.running.is_some()
    }

    /// Whether a client waits for its answer.
    pub fn has(&self, client: u64) -> bool {
        self.running.as_ref().is_some_and(|(_, id)| *id == client)
            || self.queued.iter().any(|(id, _)| *id == client)
    }
}
