//! `holdfast checkpoint`: asks the agent for an image and shows how far it is.

use super::gang;
use crate::args::CheckpointArgs;
use crate::client::{Agent, accepted, find_job};
use crate::exit::{Exit, Failure};
use crate::report;
use holdfast_image::control::{Reply, Request};
use holdfast_sys::poll;
use holdfast_sys::signals::{self, SignalMessages};
use holdfast_tiers::Job;
use holdfast_tiers::stack::{OtherImage, TierRecord, TiersRecord};
use serde::Serialize;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// How often it is asked how far the checkpoint is.
const POLL: Duration = Duration::from_millis(200);

/// Takes a checkpoint.
///
/// # Errors
/// There is none; the program runs on.
pub fn run(args: &CheckpointArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    if let Some(folder) = gang::of_name(&store, &args.job)? {
        return gang::checkpoint(args, &folder);
    }
    let job = find_job(&store, &args.job)?;
    let agent = Agent::connect(&job)?;
    let wishes = args.changes.wishes();
    agent.send(&Request::Checkpoint { stop: args.stop, wait: !args.no_wait, wishes })?;
    let reply = accepted(&job, wait(&agent, &job, args.stop)?)?;
    let Reply::Checkpointed { epoch, stop_ns, committed, .. } = reply else {
        return Err(Failure::new(Exit::Internal, format!("unexpected answer of the agent: {reply:?}")));
    };
    let info = if committed { job.image(epoch)? } else { None };
    let others = others(&job);
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
                "others": others,
            }),
        );
    }
    let lines = info.as_ref().map_or_else(Vec::new, |image| report::unsaved(&image.unsaved));
    lines.iter().for_each(|line| report::warn(line));
    if let Some(Other { tier, other }) = others.first() {
        let (own, name, remedy) = (other.image, job.name(), other.remedy());
        report::warn(&format!(
            "tier {tier}: {other}; image {own} of job {name} is in the store alone; {remedy}"
        ));
    }
    let stop = report::short_time(stop_ns);
    report::result(&match info {
        Some(image) => format!(
            "image {epoch} of job {}: stop time {stop}, {} of memory in {} on disk\n",
            job.name(),
            report::size(image.program_bytes),
            report::size(image.bytes)
        ),
        None => format!("image {epoch} of job {}: stop time {stop}, being written\n", job.name()),
    })
}

/// An image on a tier that has the number of one of the store's and is not that one.
#[derive(Serialize)]
struct Other {
    tier: String,
    #[serde(flatten)]
    other: OtherImage,
}

/// What is known of such images: no tier is waited for.
fn others(job: &Job) -> Vec<Other> {
    let of_tier = |tier: TierRecord| {
        let TierRecord { tier, others, .. } = tier;
        others.into_iter().map(move |other| Other { tier: tier.clone(), other })
    };
    TiersRecord::read(job).tiers.into_iter().flat_map(of_tier).collect()
}

/// Waits for the agent's answer. Ctrl-C ends only the waiting, and says so.
fn wait(agent: &Agent, job: &Job, stop: bool) -> Result<Reply, Failure> {
    // What the parent of this command has it ignore stays ignored.
    let ends = [libc::SIGINT, libc::SIGTERM].into_iter().filter(|signal| !signals::is_ignored(*signal));
    let ends = ends.map(signals::bit).sum();
    let mask = signals::block(ends);
    let messages = SignalMessages::new(ends).map_err(|error| Failure::system("signalfd", &error))?;
    let mut bar = report::Transient::default();
    loop {
        let ready = poll::readable(&[agent.as_fd(), messages.as_fd()], Some(POLL))
            .map_err(|error| Failure::system("waiting for the agent", &error))?;
        if ready.first() == Some(&true)
            && let Some(reply) = agent.receive(Some(Duration::ZERO))?
        {
            signals::set_mask(mask);
            return Ok(reply);
        }
        if let Some(arrived) = messages.next() {
            drop(bar);
            let name = job.name();
            let end = if stop { ", and ends the program then" } else { "" };
            report::note(&format!(
                "the checkpoint of job {name} goes on{end}; `holdfast list {name}` shows it"
            ));
            signals::die_by(arrived.signal);
            return Err(Failure::new(Exit::Internal, "this process did not end by a signal"));
        }
        if !report::Transient::is_hidden()
            && let Ok(status) = Agent::connect(job).and_then(|other| other.status())
            && let Some(now) = status.under_way
        {
            bar.show(report::step(now.step), now.done_bytes, now.total_bytes);
        }
    }
}
