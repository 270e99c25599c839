//! `holdfast rollback`: asks the agent to have the program go on from an image, in its own processes.
//!
//! The agent does all of it (`agent/rollback.rs`); who ends this command does not end that. Fails by: what the agent
//! says; a refusal names each obstacle, and what goes back all the same.

use crate::args::RollbackArgs;
use crate::client::{Agent, accepted, find_job};
use crate::exit::{Exit, Failure};
use crate::report;
use holdfast_image::control::{Reply, Request, RolledBack};
use std::path::Path;

/// Rolls a job back.
///
/// # Errors
/// It was not: the program runs on, unless the message says that it was ended.
pub fn run(args: &RollbackArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = find_job(&store, &args.image.job)?;
    let agent = Agent::connect(&job)?;
    let reply = agent.ask(&Request::Rollback { image: args.image.epoch })?;
    let name = job.name();
    let done = match accepted(&job, reply) {
        Ok(Reply::RolledBack(done)) => done,
        Ok(other) => {
            return Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {other:?}")));
        }
        Err(failure) if failure.exit == Exit::Refused => {
            let image = args.image.epoch.map_or_else(|| name.to_owned(), |epoch| format!("{name}@{epoch}"));
            let remedy = format!(
                "the program runs on as it was; to go back all the same, in new processes: `holdfast kill --signal \
                 KILL {name}`, then `holdfast restart {image}`"
            );
            return Err(Failure { message: format!("{}\n{remedy}", failure.message), ..failure });
        }
        Err(failure) => return Err(failure),
    };
    let RolledBack { epoch, stop_ns, image_bytes, compared_bytes, written_bytes, .. } = done;
    if args.json {
        return report::print_json(
            "rollback",
            serde_json::json!({
                "job": name,
                "epoch": epoch,
                "stop_ns": stop_ns,
                "image_bytes": image_bytes,
                "compared_bytes": compared_bytes,
                "written_bytes": written_bytes,
                "device_bytes": done.device_bytes,
                "device_cached_bytes": done.device_cached_bytes,
                "notes": done.notes,
            }),
        );
    }
    report::notes(&done.notes);
    report::detail(&format!(
        "{} of memory compared with the image, {} written",
        report::size(compared_bytes),
        report::size(written_bytes)
    ));
    if done.device_bytes > 0 {
        report::detail(&format!(
            "{} of device memory put back: {} from the GPU cache, {} from the store",
            report::size(done.device_bytes),
            report::size(done.device_cached_bytes),
            report::size(done.device_bytes.saturating_sub(done.device_cached_bytes))
        ));
    }
    report::result(&format!(
        "job {name} goes on from image {epoch}: stopped for {}, {} of {} of memory put back\n",
        report::short_time(stop_ns),
        report::size(written_bytes),
        report::size(image_bytes)
    ))
}
