//! Which images go when a new one is committed (`--keep`).
//!
//! Called by the checkpoint thread, and when the program has come to its end. What must hold: neither the newest image
//! nor the one that the program was restarted from, which it may still be mapped from, is deleted, nor, while the
//! program runs, what a run before that did not come to its end has left.

use super::context::JobContext;
use holdfast_image::Epoch;
use holdfast_tiers::policy::Pinned;
use holdfast_tiers::stack::Cascade;

/// Deletes what `--keep` no longer wants. A failure is only logged: the new image is safe.
pub fn apply(context: &JobContext, newest: Epoch) {
    with(context, newest, context.pinned());
}

/// The program has come to its end: nothing goes on from what an earlier run has left.
pub fn apply_at_the_end(context: &JobContext) {
    let images = context.job.images().unwrap_or_default();
    if let Some(newest) = images.iter().rev().find(|image| image.broken.is_none()) {
        with(context, newest.epoch, Pinned { run_before: None, ..context.pinned() });
    }
}

fn with(context: &JobContext, newest: Epoch, pinned: Pinned) {
    if let Some(cascade) = &context.cascade {
        return apply_with_tiers(context, cascade, newest, pinned);
    }
    let Some(keep) = context.settings().keep else { return };
    let images = match context.job.images() {
        Ok(images) => images,
        Err(error) => return tracing::warn!("looking for old images: {error}"),
    };
    let good: Vec<Epoch> =
        images.iter().filter(|image| image.broken.is_none()).map(|image| image.epoch).collect();
    for &epoch in good.iter().rev().skip(keep) {
        if epoch == newest || pinned.has(epoch.0) {
            continue;
        }
        remove(context, epoch);
    }
}

fn remove(context: &JobContext, epoch: Epoch) {
    match context.job.remove_image(&context.lock, epoch) {
        Ok(bytes) => tracing::info!("image {epoch} deleted, {bytes} bytes"),
        Err(error) => tracing::warn!("deleting image {epoch}: {error}"),
    }
}

/// What a lower tier has yet to get stays, within bounds.
fn apply_with_tiers(context: &JobContext, cascade: &Cascade, newest: Epoch, pinned: Pinned) {
    let rules = context.settings().store_rules();
    let (removals, given_up) = cascade.removals(&rules, pinned);
    for epoch in given_up {
        context.warn(format!(
            "warning: image {epoch} is deleted before its tiers have it: what waits for them has reached the bound \
             (max= of tier local)"
        ));
    }
    for epoch in removals.into_iter().map(Epoch).filter(|epoch| *epoch != newest) {
        remove(context, epoch);
    }
}
