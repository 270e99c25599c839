//! The redundancy between hosts as the agent does it: a thread of its own after each image of the gang.
//!
//! Called at the agent's start and by the checkpoint thread. Invariants: it waits for nothing; the program comes
//! first. Fails by: what the guard
//! tells.

use super::context::JobContext;
use crate::cascade::low_priority;
use std::sync::Arc;
use std::thread;

/// The user is told of what is not protected.
pub fn attach(context: &Arc<JobContext>) {
    let Some(guard) = context.gang.as_ref().and_then(|gang| gang.guard.as_ref()) else { return };
    let weak = Arc::downgrade(context);
    guard.attach(Box::new(move |text| match weak.upgrade() {
        Some(context) => context.warn(text),
        None => tracing::warn!("{text}"),
    }));
}

/// Makes the parity of the image before, if there is to be one.
pub fn start(context: &Arc<JobContext>) {
    let Some(guard) = context.gang.as_ref().and_then(|gang| gang.guard.clone()) else { return };
    let Some(task) = guard.next() else { return };
    let image = task.image;
    let (of_thread, of_guard) = (Arc::clone(context), Arc::clone(&guard));
    let thread = thread::Builder::new().name("guard".into()).spawn(move || {
        low_priority();
        of_guard.make(&of_thread.job, &of_thread.lock, &task);
    });
    if let Err(error) = thread {
        guard.tell(image, Some(error.to_string()));
    }
}
