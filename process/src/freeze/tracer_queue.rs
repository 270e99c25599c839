//! What the owner of a cut's memory asks of the tracer thread: a leaf, so that memory need not know the tracer.
//!
//! Implemented by the tracer's queue of commands; used by the flush workers and where the memory is dropped.

use holdfast_image::pages::PageRun;
use std::fmt::Debug;
use std::sync::Arc;

/// The tracer thread, as the memory of a cut knows it. In the order of the calls; nothing is waited for.
pub trait TracerQueue: Debug + Send + Sync {
    /// These pages are stored.
    fn release(&self, run: PageRun);
    /// The memory of the cut is not needed any more; with `kill` a stopped program is ended by SIGKILL instead of
    /// resumed. False: the tracer thread is gone.
    fn end(&self, kill: bool) -> bool;
    /// Programs that were held for lack of room run on.
    fn unpark(&self);
}

/// Programs that are held; they run on when this is dropped.
#[derive(Debug)]
pub struct Parked {
    queue: Arc<dyn TracerQueue>,
}

impl Parked {
    /// For programs that the tracer thread holds.
    pub(crate) fn new(queue: &Arc<dyn TracerQueue>) -> Parked {
        Parked { queue: Arc::clone(queue) }
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.queue.unpark();
    }
}
