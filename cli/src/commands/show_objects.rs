//! `holdfast show` of an image of objects: which version it is, and what is in it.

use crate::exit::Failure;
use crate::names::objects_of;
use crate::report::{self, size};
use holdfast_image::objects::ObjectRecord;
use holdfast_tiers::{Image, Job};
use std::fmt::Write;

/// Whether it is one.
pub fn is_of_objects(image: &Image) -> bool {
    image.record().kind == ObjectRecord::KIND
}

/// Shows it.
///
/// # Errors
/// It is damaged.
pub fn run(job: &Job, image: &Image, tiers: &[String], json: bool) -> Result<(), Failure> {
    let record = objects_of(image)?;
    let runs = last_runs(job)?;
    if json {
        return report::print_json(
            "image",
            serde_json::json!({
                "job": job.name(),
                "image": image.info(),
                "created": report::utc(image.info().created_ns),
                "engine": image.engine(),
                "flush": image.figures(),
                "objects": record,
                "runs": runs,
                "tiers": tiers,
            }),
        );
    }
    report::print(&text(job.name(), image, &record, (tiers, &runs)))
}

/// The last run of each program that has put versions: what was done with them on their way to the store.
#[derive(serde::Serialize)]
struct LastRun {
    /// Build-id of the program.
    build: String,
    /// P as the settings say (profiled), U raw, C compressed, A3 three accumulated and compressed.
    ran: String,
}

fn last_runs(job: &Job) -> Result<Vec<LastRun>, Failure> {
    let runs = job.known_runs()?.into_iter().map(|(build, _)| {
        let ran = match job.known_run(&build) {
            Ok(known) => known.unwrap_or_default().ran,
            Err(error) => format!("not known: {error}"),
        };
        LastRun { build, ran }
    });
    Ok(runs.collect())
}

fn text(job: &str, image: &Image, record: &ObjectRecord, (tiers, runs): (&[String], &[LastRun])) -> String {
    let (info, figures) = (image.info(), image.figures());
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "image {} of {job}, {} ago", info.epoch, report::age(info.created_ns));
    let _ = writeln!(
        out,
        "  version    {} of the set {}, rank {} of {}",
        record.version, record.set, record.rank, record.ranks
    );
    let parent =
        info.parent.map_or_else(|| "none (a full image)".to_owned(), |parent| format!("image {parent}"));
    let _ = writeln!(out, "  parent     {parent}");
    let _ =
        writeln!(out, "  size       {} of objects in {} on disk", size(info.program_bytes), size(info.bytes));
    let _ = writeln!(
        out,
        "  pages      {} stored, {} as in the parent, {} zero",
        figures.pages_stored, figures.pages_unchanged, figures.pages_zero
    );
    if tiers.len() > 1 {
        let _ = writeln!(out, "  tiers      {}", tiers.join(", "));
    }
    for run in runs {
        let build = run.build.get(..8).unwrap_or(&run.build);
        let _ = writeln!(out, "  last run   {} (program of build-id {build}...)", run.ran);
    }
    let _ = writeln!(out, "\nobjects");
    for object in &record.objects {
        let _ = writeln!(out, "  {:<24} {:>10}", object.key, size(object.bytes));
    }
    out
}
