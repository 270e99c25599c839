//! Which images go when a new one is committed (`--keep`).
//!
//! Called by the checkpoint thread. What must hold: neither the newest image nor the one that the program was restarted
//! from, which it may still be mapped from, is deleted.

use super::context::JobContext;
use holdfast_image::Epoch;

/// Deletes what `--keep` no longer wants. A failure is only logged: the new image is safe.
pub fn apply(context: &JobContext, newest: Epoch) {
    let Some(keep) = context.settings.keep else { return };
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
        match context.job.remove_image(&context.lock, epoch) {
            Ok(bytes) => tracing::info!("image {epoch} deleted, {bytes} bytes"),
            Err(error) => tracing::warn!("deleting image {epoch}: {error}"),
        }
    }
}
