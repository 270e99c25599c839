//! `holdfast prune` of a job that runs: its agent, which has the job's lock, deletes the images.
//!
//! Called by the loop; done by a thread, for files may be large. Invariants: the newest image stays, and the one that
//! the program was restarted from, which it may be mapped from. Fails by: what stays is said with its reason.

use super::context::JobContext;
use super::events::{Event, Reporter};
use super::gang;
use holdfast_image::Epoch;
use holdfast_image::control::Reply;
use holdfast_tiers::stack::Cascade;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::thread;

/// Starts the thread, which answers this client.
///
/// # Errors
/// EAGAIN: no thread can be made.
pub fn start(
    context: Arc<JobContext>,
    client: u64,
    images: Vec<Epoch>,
    reporter: Reporter,
) -> io::Result<()> {
    thread::Builder::new().name("remove".into()).spawn(move || {
        let reply = remove(&context, &images);
        reporter.report(Event::Removed { client, reply });
    })?;
    Ok(())
}

fn remove(context: &JobContext, images: &[Epoch]) -> Reply {
    let newest = match context.job.images() {
        Ok(all) => all.iter().filter(|image| image.broken.is_none()).map(|image| image.epoch).max(),
        Err(error) => return Reply::Error { message: error.to_string() },
    };
    let needed = match gang::needed(context) {
        Ok(needed) => needed,
        Err(failure) => return Reply::Error { message: failure.message },
    };
    let why_not = |epoch: Epoch| match Some(epoch) {
        _ if needed.why(epoch.0).is_some() => needed.why(epoch.0).map(str::to_owned),
        image if image == newest => Some("it is the newest image of a running job".to_owned()),
        image if image == context.restarted_from => Some("the program was restarted from it".to_owned()),
        _ => None,
    };
    let (goes, stays): (BTreeSet<Epoch>, BTreeSet<Epoch>) =
        images.iter().copied().partition(|epoch| why_not(*epoch).is_none());
    let mut stays: Vec<(Epoch, String)> =
        stays.into_iter().filter_map(|epoch| Some((epoch, why_not(epoch)?))).collect();
    let freed = match context.job.remove_images(&context.lock, &goes) {
        Ok(bytes) => {
            tracing::info!("{} images deleted as asked, {bytes} bytes", goes.len());
            bytes
        }
        Err(error) => {
            let is_there = |epoch: &Epoch| !matches!(context.job.image(*epoch), Ok(None));
            let why = error.to_string();
            stays.extend(goes.into_iter().filter(is_there).map(|epoch| (epoch, why.clone())));
            0
        }
    };
    // What is known of the store is written down anew.
    context.cascade.iter().for_each(Cascade::wake);
    Reply::Removed { freed, stays }
}
