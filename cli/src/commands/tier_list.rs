//! `holdfast list --tier`: the jobs that a tier has, or the images of one.
//!
//! Asks the tier, and nothing of this host: a job need not be known here.

use crate::exit::{Exit, Failure};
use crate::report;
use crate::settings::Recipe;
use crate::tiers;
use holdfast_image::Epoch;
use holdfast_image::bytes::Name;
use holdfast_tiers::stack::TierSpec;
use holdfast_tiers::tier::{Tier, TierError};
use serde::Serialize;
use std::sync::Arc;

/// A job on a tier. Two that have one name, from two places, are two rows.
#[derive(Debug, Serialize)]
struct Row {
    job: String,
    id: String,
    command: Vec<Name>,
    /// Numbers of its images, ascending.
    images: Vec<Epoch>,
}

/// Lists what a tier has.
///
/// # Errors
/// Of the tier; it has no such job.
pub fn run(job: Option<&str>, spec: &TierSpec, json: bool) -> Result<(), Failure> {
    let tier = tiers::open(spec)?;
    if tiers::lacks_its_folder(spec) {
        let why = format!(
            "tier {}: the folder is not there; mount its file system, or make the folder",
            spec.name()
        );
        return Err(Failure::new(Exit::Usage, why));
    }
    let jobs = match job {
        Some(job) => vec![job.to_owned()],
        None => tier.list("")?.folders,
    };
    let mut rows = Vec::new();
    for name in jobs {
        rows.extend(rows_of(&tier, &name)?);
    }
    if let Some(job) = job.filter(|_| rows.is_empty()) {
        let message = format!("tier {} has no image of job {job}", spec.name());
        return Err(Failure::new(Exit::NotFound, message));
    }
    if json {
        let fields = serde_json::json!({ "tier": spec.name(), "jobs": rows });
        return report::print_json("tier", fields);
    }
    if rows.is_empty() {
        return report::print(&format!("no jobs on tier {}\n", spec.name()));
    }
    let cells = |row: &Row| {
        let words: Vec<String> = row.command.iter().map(Name::to_string).collect();
        let images: Vec<String> = row.images.iter().map(Epoch::to_string).collect();
        vec![row.job.clone(), row.id.clone(), images.join(" "), words.join(" ")]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    report::print(&report::table(&["JOB", "ID", "IMAGES", "COMMAND"], &rows, &[]))
}

fn rows_of(tier: &Arc<dyn Tier>, job: &str) -> Result<Vec<Row>, TierError> {
    let mut rows: Vec<Row> = Vec::new();
    for found in tiers::versions(tier, job, None)? {
        let id = found.id().to_owned();
        match rows.iter_mut().find(|row| row.id == id) {
            Some(row) => row.images.push(found.epoch),
            None => {
                let recipe = found.folder.recipe(found.epoch).ok();
                let recipe = recipe.and_then(|bytes| serde_json::from_slice::<Recipe>(&bytes).ok());
                let command = recipe.map(|recipe| recipe.command).unwrap_or_default();
                rows.push(Row { job: job.to_owned(), id, command, images: vec![found.epoch] });
            }
        }
    }
    Ok(rows)
}
