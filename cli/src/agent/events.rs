//! What the checkpoint thread tells the agent's loop, and where a flush is.

use super::error::CheckpointError;
use holdfast_image::Epoch;
use holdfast_image::control::Reply;
use holdfast_sys::poll::Bell;
use holdfast_tiers::ImageInfo;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};

/// Where a flush is. Written by the checkpoint, read by status requests.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of the image; 0 before the cut.
    pub epoch: AtomicU64,
    /// Bytes to read.
    pub total: AtomicU64,
    /// Bytes read.
    pub done: AtomicU64,
}

/// What the loop is told.
#[derive(Debug)]
pub enum Event {
    /// The program runs again (or is held, if it is to be stopped).
    Cut {
        /// Number of the image to be.
        epoch: Epoch,
        /// Stop time, nanoseconds.
        stop_ns: u64,
    },
    /// The image is committed, or why not.
    Done(Result<ImageInfo, CheckpointError>),
    /// The answer to those who asked what could not be checkpointed; see [`super::checks`].
    Checked(Reply),
}

/// Tells the loop.
#[derive(Clone, Debug)]
pub struct Reporter {
    /// Events go here.
    pub events: mpsc::Sender<Event>,
    /// And the loop is woken.
    pub bell: Arc<Bell>,
}

impl Reporter {
    /// Tells it.
    pub fn report(&self, event: Event) {
        // The receiver lives as long as the loop; without it there is none to tell.
        let _ = self.events.send(event);
        self.bell.ring();
    }
}
