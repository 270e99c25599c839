//! Which images go when a new one is committed (`--keep`).
//!
//! Called by the checkpoint thread. What must hold: neither the newest image nor the one that the program was restarted
//! from, which it may still be mapped from, is deleted.

use super::context::JobContext;
use holdfast_image::Epoch;
use holdfast_tiers::stack::Cascade;

/// Deletes what `--keep` no longer wants. A failure is only logged: the new image is safe.
pub fn apply(context: &JobContext, newest: Epoch) {
    if let Some(cascade) = &context.cascade {
        return apply_with_tiers(context, cascade, newest);
    }
    let Some(keep) = context.settings().keep else { return };
    let images = match context.job.images() {
        Ok(images) => images,
        Err(error) => return tracing::warn!("looking for old images: {error}"),
    };
    let good: Vec<Epoch> =
        images.iter().filter(|image| image.broken.is_none()).map(|image| image.epoch).collect();
    for &epoch in good.iter().rev().skip(keep) {
        if epoch == newest || context.restarted_from == Some(epoch) {
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
fn apply_with_tiers(context: &JobContext, cascade: &Cascade, newest: Epoch) {
    let settings = context.settings();
    let rules = settings.tiers.store_rules(settings.keep.and_then(|keep| u64::try_from(keep).ok()));
    let pinned = context.restarted_from.map(|epoch| epoch.0);
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
