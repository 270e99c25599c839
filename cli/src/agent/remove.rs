//! `holdfast prune` of a job that runs: its agent, which has the job's lock, deletes the images.
//!
//! Called by the loop; done by a thread, for files may be large. Invariants: the newest image stays, and the one that
//! the program was restarted from, which it may be mapped from. Fails by: what stays is said with its reason.

use super::context::JobContext;
use super::events::{Event, Reporter};
use holdfast_image::Epoch;
use holdfast_image::control::Reply;
use holdfast_tiers::StoreError;
use holdfast_tiers::stack::Cascade;
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
    let (mut freed, mut stays) = (0, Vec::new());
    for &epoch in images {
        let why = if Some(epoch) == newest {
            "it is the newest image of a running job".to_owned()
        } else if Some(epoch) == context.restarted_from {
            "the program was restarted from it".to_owned()
        } else {
            match context.job.remove_image(&context.lock, epoch) {
                Ok(bytes) => {
                    tracing::info!("image {epoch} deleted as asked, {bytes} bytes");
                    freed += bytes;
                    continue;
                }
                // By the job's own rules, meanwhile.
                Err(StoreError::NoImage { .. }) => continue,
                Err(error) => error.to_string(),
            }
        };
        stays.push((epoch, why));
    }
    // What is known of the store is written down anew.
    context.cascade.iter().for_each(Cascade::wake);
    Reply::Removed { freed, stays }
}
