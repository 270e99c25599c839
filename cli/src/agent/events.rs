//! What the checkpoint thread tells the agent's loop, and where a checkpoint is.

use super::error::CheckpointError;
use crate::gang::seat::Heard;
use holdfast_image::Epoch;
use holdfast_image::control::{Reply, Step, UnderWay};
use holdfast_sys::poll::Bell;
use holdfast_tiers::ImageInfo;
use parking_lot::Mutex;
use std::sync::{Arc, mpsc};

/// Where a checkpoint is. Written by its thread and the workers of its flush, read by status requests.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<UnderWay>>);

impl Progress {
    /// A step of this image begins.
    pub fn enter(&self, image: Epoch, step: Step) {
        *self.0.lock() = Some(UnderWay { image, step, done_bytes: 0, total_bytes: 0 });
    }
    /// So much of it is done, as one of several workers has counted.
    pub fn passed(&self, done: u64, total: u64) {
        if let Some(state) = self.0.lock().as_mut() {
            // What is found in another pass over memory is counted anew.
            let before = if state.total_bytes == total { state.done_bytes } else { 0 };
            (state.done_bytes, state.total_bytes) = (done.max(before).min(total), total);
        }
    }
    /// What is under way.
    pub fn now(&self) -> Option<UnderWay> {
        *self.0.lock()
    }
}

/// An image that is committed: the commit is one result, what follows it another one.
#[derive(Debug)]
pub struct NewImage {
    /// The image.
    pub info: ImageInfo,
    /// The image of the gang that it is a part of.
    pub gang_image: Option<u64>,
    /// What failed after the commit, with the image's number.
    pub failed: Option<CheckpointError>,
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
    Done(Result<NewImage, CheckpointError>),
    /// Images were deleted for a client.
    Removed {
        /// Its connection.
        client: u64,
        /// Its answer.
        reply: Reply,
    },
    /// The interval of a job that plans it, seconds, or why there is none.
    Planned(Result<u64, String>),
    /// The answer to who has asked for a rollback.
    RolledBack(Reply),
    /// From other members of the gang.
    Gang(Heard),
    /// The ssh has ended by which a member was started.
    SshEnded {
        /// Which.
        member: u32,
        /// How, and what it has said.
        why: String,
    },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_never_goes_back_and_never_beyond_its_end() {
        let progress = Progress::default();
        progress.passed(1, 2);
        assert_eq!(progress.now(), None);
        progress.enter(Epoch(3), Step::Flush);
        let seen = |done, total| {
            progress.passed(done, total);
            progress.now().map(|now| (now.done_bytes, now.total_bytes))
        };
        assert_eq!(seen(5, 9), Some((5, 9)));
        assert_eq!(seen(4, 9), Some((5, 9)));
        assert_eq!(seen(10, 9), Some((9, 9)));
        assert_eq!(seen(1, 2), Some((1, 2)), "another pass");
        progress.enter(Epoch(3), Step::Commit);
        assert_eq!(progress.now().map(|now| now.total_bytes), Some(0));
    }
}
