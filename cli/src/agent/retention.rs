//! Which images go when a new one is committed (`--keep`, `--keep-daily`).
//!
//! Called by the checkpoint thread, and when the program has come to its end. What must hold: neither the newest image
//! nor the one that the program was restarted from, which it may still be mapped from, is deleted, nor those that the
//! newest image of its gang and the newest one that is protected name, nor, while the program runs, what a run before
//! that did not come to its end has left.

use super::context::JobContext;
use super::gang;
use holdfast_image::Epoch;
use holdfast_tiers::policy::{Pinned, newest_of_days};
use holdfast_tiers::stack::{Cascade, LocalRules};
use std::collections::BTreeSet;

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
    let needed = match gang::needed(context) {
        Ok(needed) => needed,
        Err(error) => return tracing::warn!("no image is deleted, for the gang may need it: {error}"),
    };
    let settings = context.settings();
    let rules = settings.store_rules();
    if context.cascade.is_none() && rules.keep.is_none() {
        return;
    }
    // Tiers have a look of their own.
    let is_asked = context.cascade.is_none() || settings.keep_daily.is_some();
    let images = match is_asked.then(|| context.job.images()).transpose() {
        Ok(images) => images.unwrap_or_default(),
        Err(error) => return tracing::warn!("looking for old images: {error}"),
    };
    let good = || images.iter().filter(|image| image.broken.is_none());
    let dates = good().map(|image| (image.epoch.0, image.created_ns)).collect();
    let of_days = settings.keep_daily.map_or_else(BTreeSet::new, |days| newest_of_days(&dates, days));
    let stays = |number: u64| pinned.has(number) || needed.why(number).is_some() || of_days.contains(&number);
    let goes: Vec<Epoch> = match &context.cascade {
        Some(cascade) => beyond_tiers(context, cascade, &rules, &stays),
        None => {
            let keep = usize::try_from(rules.keep.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
            good().rev().skip(keep).map(|image| image.epoch).filter(|epoch| !stays(epoch.0)).collect()
        }
    };
    let goes: BTreeSet<Epoch> = goes.into_iter().filter(|epoch| *epoch != newest).collect();
    if goes.is_empty() {
        return;
    }
    let numbers = goes.iter().map(Epoch::to_string).collect::<Vec<_>>().join(", ");
    match context.job.remove_images(&context.lock, &goes) {
        Ok(bytes) => {
            tracing::info!("image {numbers} deleted, {bytes} bytes");
            gang::forget_removed(context);
        }
        Err(error) => tracing::warn!("deleting image {numbers}: {error}"),
    }
}

/// What a lower tier has yet to get stays, within bounds.
fn beyond_tiers(
    context: &JobContext,
    cascade: &Cascade,
    rules: &LocalRules,
    stays: &dyn Fn(u64) -> bool,
) -> Vec<Epoch> {
    let (removals, given_up) = cascade.removals(rules, stays);
    for epoch in given_up {
        context.warn(format!(
            "warning: image {epoch} is deleted before its tiers have it: what waits for them has reached the bound \
             (max= of tier local)"
        ));
    }
    removals.into_iter().map(Epoch).collect()
}
