//! `holdfast checkpoint`: asks the agent for an image and shows how the flush goes.

use crate::args::CheckpointArgs;
use crate::client::{Agent, accepted, find_job};
use crate::exit::{Exit, Failure};
use crate::report;
use holdfast_image::control::{Reply, Request};
use holdfast_tiers::Job;
use std::path::Path;
use std::time::Duration;

/// How often the state of the flush is asked for.
const POLL: Duration = Duration::from_millis(200);

/// Takes a checkpoint.
///
/// # Errors
/// There is none; the program runs on.
pub fn run(args: &CheckpointArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = find_job(&store, &args.job)?;
    let agent = Agent::connect(&job)?;
    let wishes = args.changes.wishes();
    agent.send(&Request::Checkpoint { stop: args.stop, wait: !args.no_wait, wishes })?;
    let reply = accepted(&job, wait(&agent, &job)?)?;
    let Reply::Checkpointed { epoch, stop_ns, committed } = reply else {
        return Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {reply:?}")));
    };
    let info = job.images()?.into_iter().find(|image| committed && image.epoch == epoch);
    if args.json {
        return report::print_json(
            "checkpoint",
            serde_json::json!({
                "job": job.name(),
                "epoch": epoch,
                "stop_ns": stop_ns,
                "committed": committed,
                "bytes": info.as_ref().map(|image| image.bytes),
                "program_bytes": info.as_ref().map(|image| image.program_bytes),
                "unsaved": info.as_ref().map(|image| &image.unsaved),
            }),
        );
    }
    let lines = info.as_ref().map_or_else(Vec::new, |image| report::unsaved(&image.unsaved));
    lines.iter().for_each(|line| report::note(line));
    let stop = report::short_time(stop_ns);
    report::print(&match info {
        Some(image) => format!(
            "image {epoch} of job {}: stop time {stop}, {} of memory in {} on disk\n",
            job.name(),
            report::size(image.program_bytes),
            report::size(image.bytes)
        ),
        None => format!("image {epoch} of job {}: stop time {stop}, being written\n", job.name()),
    })
}

fn wait(agent: &Agent, job: &Job) -> Result<Reply, Failure> {
    let bar = report::progress("writing", 0);
    loop {
        if let Some(reply) = agent.receive(Some(POLL))? {
            bar.finish_and_clear();
            return Ok(reply);
        }
        if !bar.is_hidden()
            && let Ok(status) = Agent::connect(job).and_then(|other| other.status())
        {
            bar.set_length(status.flush_total_bytes);
            bar.set_position(status.flushed_bytes);
        }
    }
}
