//! `--max-space`: what a job's images may take of the store.
//!
//! The bound is a layer around the first tier. When an image that is being written does not fit, the oldest ones go,
//! those that a lower tier waits for later, and last what an earlier run that did not come to its end has left, each
//! with a warning; none, if all together would not be enough. Invariants: the newest good image, the one that the
//! program was restarted from and those that its gang needs stay; what other members keep of each other's images
//! (`--protect`) counts as taken, for no removal makes it free; when that is not enough the new image fails, its files
//! vanish, and nothing else has happened.

use super::context::JobContext;
use super::error::CheckpointError;
use super::gang;
use crate::exit::Failure;
use crate::settings::Settings;
use holdfast_image::Epoch;
use holdfast_image::size::Size;
use holdfast_tiers::hygiene;
use holdfast_tiers::layer::Bounded;
use holdfast_tiers::policy::{Held, Pinned};
use holdfast_tiers::{Job, TierFolder};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The job with the bound that its settings have.
///
/// # Errors
/// The job's folder cannot be listed.
pub fn bound(job: Job, settings: &Settings) -> Result<(Job, Option<Arc<Bounded>>), Failure> {
    let Some(max) = settings.max_space else { return Ok((job, None)) };
    let folder = job.folder().clone();
    let bounded = Arc::new(Bounded::new(Arc::clone(folder.tier()), folder.folder(), max)?);
    let tier: Arc<dyn holdfast_tiers::tier::Tier> = Arc::clone(&bounded) as _;
    let first = TierFolder::of(tier, folder.folder())?;
    Ok((job.with_first_tier(first), Some(bounded)))
}

/// From now on old images make room.
pub fn serve(context: &Arc<JobContext>) {
    if let Some(bounded) = &context.bounded {
        let context = Arc::downgrade(context);
        bounded.on_full(Box::new(move |missing| {
            context.upgrade().is_some_and(|context| make_room(&context, missing))
        }));
    }
}

/// Removes one image, if all that may go together make `missing` bytes free; whether it did.
fn make_room(context: &JobContext, missing: u64) -> bool {
    let Ok(survey) = hygiene::survey(context.job.folder()) else { return false };
    let Ok(needed) = gang::needed(context) else { return false };
    let newest = survey.versions.iter().filter(|held| held.whole).map(|held| held.number).max();
    let stays = |held: &&Held| {
        newest.is_none_or(|newest| held.number >= newest)
            || context.restarted_from == Some(Epoch(held.number))
            || needed.why(held.number).is_some()
    };
    let (stays, may_go): (Vec<&Held>, Vec<&Held>) = survey.versions.iter().partition(stays);
    let needed: BTreeSet<_> = stays.iter().flat_map(|held| &held.parts).collect();
    let worth: BTreeSet<_> =
        may_go.iter().flat_map(|held| &held.parts).filter(|part| !needed.contains(part)).collect();
    if worth.iter().map(|(_, bytes)| bytes).sum::<u64>() < missing {
        return false;
    }
    let states = context.cascade.iter().flat_map(|cascade| cascade.states());
    let waiting: BTreeSet<u64> = states.flat_map(|state| state.waiting).collect();
    let earlier = Pinned { run_before: context.earlier.kept(), ..Pinned::default() };
    let first = may_go
        .iter()
        .map(|held| held.number)
        .min_by_key(|number| (earlier.has(*number), waiting.contains(number), *number));
    let Some(epoch) = first else { return false };
    if earlier.has(epoch) {
        context.warn(format!(
            "warning: image {epoch}, of an earlier run that did not come to its end, is deleted: the next one would \
             not fit into --max-space"
        ));
    }
    if waiting.contains(&epoch) {
        context.warn(format!(
            "warning: image {epoch} is deleted before its tiers have it: the next one would not fit into --max-space"
        ));
    }
    match context.job.remove_image(&context.lock, Epoch(epoch)) {
        Ok(bytes) => tracing::info!("image {epoch} deleted, {bytes} bytes: --max-space"),
        Err(error) => {
            tracing::warn!("deleting image {epoch}: {error}");
            return false;
        }
    }
    true
}

/// Says so when the bound was the reason.
pub fn explain(context: &JobContext, error: CheckpointError) -> CheckpointError {
    let Some(bounded) = context.bounded.as_ref().filter(|bounded| bounded.take_refused()) else {
        return error;
    };
    let (name, max) = (context.job.name(), Size(bounded.max()));
    let images = context.job.images().unwrap_or_default();
    let beside = match images.iter().rev().find(|image| image.broken.is_none()) {
        Some(newest) => format!(" beside image {}, the last good one, which stays", newest.epoch),
        None => String::new(),
    };
    let guarded = context.gang.as_ref().is_some_and(|gang| gang.guard.is_some());
    let others =
        if guarded { "; images that other members need parts of (--protect) stay: --keep N" } else { "" };
    CheckpointError::Full(format!(
        "job {name}: the image does not fit into --max-space {max}{beside}{others}; \
         `holdfast restart --max-space SIZE {name}` gives it more"
    ))
}
