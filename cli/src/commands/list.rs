//! `holdfast list`: the jobs of the store, or the images of one; removes what dead agents left behind on the way.

use crate::client::Agent;
use crate::exit::Failure;
use crate::pidfile;
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

/// Lists all jobs, or the images of one.
///
/// # Errors
/// Of the store; there is no such job.
pub fn run(name: Option<&str>, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    if let Some(name) = name {
        let row = row(&crate::names::open_job(&store, name)?)?;
        return if json { report::print_json(&[row]) } else { report::print(&images(&row)) };
    }
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
    let head = ["JOB", "STATE", "PID", "IMAGES", "NEWEST", "PARENT", "AGE", "ADDED", "SIZE", "COMMAND"];
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    report::print(&report::table(&head, &cells, &[2, 3, 4, 5, 6, 7, 8]))
}

fn row(job: &Job) -> Result<Row, Failure> {
    let lock = job.lock();
    let left = pidfile::program(job);
    if let Ok(lock) = &lock {
        job.clean(lock)?;
        if left.is_none() {
            pidfile::forget(job, lock);
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

fn images(row: &Row) -> String {
    if row.images.is_empty() {
        return format!("job {} has no image\n", row.job);
    }
    let cells = |image: &ImageInfo| {
        vec![
            image.epoch.to_string(),
            image.parent.map_or_else(|| "-".to_owned(), |parent| parent.to_string()),
            report::age(image.created_ns),
            report::short_time(image.stop_ns),
            report::size(image.program_bytes),
            report::size(image.bytes),
            remark(image),
        ]
    };
    let rows: Vec<Vec<String>> = row.images.iter().map(cells).collect();
    let head = ["IMAGE", "PARENT", "AGE", "STOP TIME", "MEMORY", "ADDED", "REMARK"];
    report::table(&head, &rows, &[0, 1, 2, 3, 4, 5])
}

/// What is wrong with an image.
fn remark(image: &ImageInfo) -> String {
    match (&image.broken, image.unsaved.len()) {
        (Some(broken), _) => broken.clone(),
        (None, 0) => String::new(),
        (None, 1) => "warning: a file is not saved".to_owned(),
        (None, count) => format!("warning: {count} files are not saved"),
    }
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
        match newest.map_or(0, |image| image.unsaved.len()) {
            _ if broken > 0 => format!("{count} ({broken} damaged)"),
            0 => count.to_string(),
            1 => format!("{count} (warning: a file is not saved)"),
            files => format!("{count} (warning: {files} files are not saved)"),
        },
        newest.map_or_else(dash, |image| image.epoch.to_string()),
        newest.and_then(|image| image.parent).map_or_else(dash, |parent| parent.to_string()),
        newest.map_or_else(dash, |image| report::age(image.created_ns)),
        newest.map_or_else(dash, |image| report::size(image.bytes)),
        report::size(row.images.iter().map(|image| image.bytes).sum()),
        command,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::record::UnsavedFile;

    fn image(epoch: u64, parent: Option<u64>, bytes: u64) -> ImageInfo {
        ImageInfo {
            epoch: Epoch(epoch),
            created_ns: u64::MAX,
            bytes,
            total_bytes: 4096,
            program_bytes: 1 << 20,
            stop_ns: 1_000_000,
            parent: parent.map(Epoch),
            unsaved: Vec::new(),
            broken: None,
            complete: true,
        }
    }

    #[test]
    fn images_tell_their_parent_and_what_they_added() {
        let row = Row {
            job: "sim".into(),
            state: "stopped",
            pid: None,
            agent_pid: None,
            command: vec![Name(b"./sim".to_vec())],
            newest: Some(Epoch(2)),
            last_error: None,
            images: vec![image(1, None, 4096), image(2, Some(1), 512)],
        };
        assert_eq!(
            images(&row),
            "IMAGE  PARENT  AGE  STOP TIME   MEMORY    ADDED  REMARK\n    \
             1       -   0s    1.00 ms  1.0 MiB  4.0 KiB\n    \
             2       1   0s    1.00 ms  1.0 MiB    512 B\n"
        );
        assert_eq!(cells(&row), ["sim", "stopped", "-", "2", "2", "1", "0s", "512 B", "4.5 KiB", "./sim"]);
        let unsaved = UnsavedFile { path: Name::from("/data"), bytes: 7, reason: None };
        let image = ImageInfo { unsaved: vec![unsaved], ..image(3, None, 1) };
        assert_eq!(remark(&image), "warning: a file is not saved");
        let row = Row { images: vec![image], ..row };
        assert_eq!(cells(&row)[3], "1 (warning: a file is not saved)");
        assert_eq!(images(&Row { images: Vec::new(), ..row }), "job sim has no image\n");
    }
}
