//! `holdfast list`: the jobs of the store; removes what dead agents left behind on the way.

use crate::alive;
use crate::client::Agent;
use crate::exit::Failure;
use crate::report;
use crate::settings::Recipe;
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_tiers::{ImageInfo, Job};
use serde::Serialize;
use std::path::Path;

/// One job.
#[derive(Debug, Serialize)]
struct Row {
    job: String,
    /// "running"; "ending": its program has ended (or not begun); "no agent": the program runs, but cannot be
    /// checkpointed any more; "stopped".
    state: &'static str,
    pid: Option<i32>,
    agent_pid: Option<i32>,
    command: Vec<Name>,
    newest: Option<Epoch>,
    last_error: Option<String>,
    images: Vec<ImageInfo>,
}

/// Lists all jobs.
///
/// # Errors
/// Of the store.
pub fn run(json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let mut rows = Vec::new();
    for name in store.jobs()? {
        // A job that was pruned meanwhile is no error.
        let Ok(job) = store.job(&name) else { continue };
        rows.push(row(&job)?);
    }
    if json {
        return report::print_json(&rows);
    }
    if rows.is_empty() {
        return report::print(&format!("no jobs in {}\n", store.root().display()));
    }
    let head = ["JOB", "STATE", "PID", "IMAGES", "NEWEST", "AGE", "SIZE", "COMMAND"];
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    report::print(&report::table(&head, &cells, &[2, 3, 4, 5, 6]))
}

fn row(job: &Job) -> Result<Row, Failure> {
    let lock = job.lock();
    let left = alive::program(job);
    if let Ok(lock) = &lock {
        job.clean(lock)?;
        if left.is_none() {
            alive::forget(job, lock);
        }
    }
    let running = lock.is_err() && job.is_live();
    drop(lock);
    let status = if running { Agent::connect(job).and_then(|agent| agent.status()).ok() } else { None };
    let images = job.images()?;
    Ok(Row {
        job: job.name().to_owned(),
        state: match (running, &status, left) {
            (true, Some(status), _) if status.pid.is_none() => "ending",
            (true, ..) => "running",
            (false, _, Some(_)) => "no agent",
            (false, _, None) => "stopped",
        },
        pid: if running { status.as_ref().and_then(|status| status.pid) } else { left },
        agent_pid: status.as_ref().map(|status| status.agent_pid),
        command: Recipe::read(job).map(|recipe| recipe.command).unwrap_or_default(),
        newest: images.iter().rev().find(|image| image.broken.is_none()).map(|image| image.epoch),
        last_error: status.and_then(|status| status.last_error),
        images,
    })
}

fn cells(row: &Row) -> Vec<String> {
    let newest = row.images.iter().rev().find(|image| image.broken.is_none());
    let broken = row.images.iter().filter(|image| image.broken.is_some()).count();
    let dash = || "-".to_owned();
    let count = row.images.len();
    let command: Vec<String> = row.command.iter().map(Name::to_string).collect();
    let mut command = command.join(" ");
    if command.chars().count() > 60 {
        command = command.chars().take(59).chain(['…']).collect();
    }
    vec![
        row.job.clone(),
        row.state.to_owned(),
        row.pid.map_or_else(dash, |pid| pid.to_string()),
        if broken > 0 { format!("{count} ({broken} damaged)") } else { count.to_string() },
        newest.map_or_else(dash, |image| image.epoch.to_string()),
        newest.map_or_else(dash, |image| report::age(image.created_ns)),
        report::size(row.images.iter().map(|image| image.bytes).sum()),
        command,
    ]
}
