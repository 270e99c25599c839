//! `holdfast verify`: reads every byte of images and compares it with its checksums.

use crate::exit::{Exit, Failure};
use crate::names::ImageName;
use crate::report;
use holdfast_image::Epoch;
use holdfast_tiers::Job;
use serde::Serialize;
use std::path::Path;

#[derive(Debug, Serialize)]
struct Verdict {
    epoch: Epoch,
    good: bool,
    bytes: u64,
    error: Option<String>,
}

/// Verifies one image or all images of a job.
///
/// # Errors
/// One of them is damaged, or there is none.
pub fn run(name: &ImageName, json: bool, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, &name.job)?;
    let epochs: Vec<Epoch> = match name.epoch {
        Some(epoch) => vec![epoch],
        None => job.images()?.iter().map(|image| image.epoch).collect(),
    };
    if epochs.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("job {} has no image", job.name())));
    }
    let mut verdicts = Vec::new();
    for epoch in epochs {
        verdicts.push(verify(&job, epoch, name.epoch.is_some())?);
    }
    let bad = verdicts.iter().filter(|verdict| !verdict.good).count();
    if json {
        report::print_json(&verdicts)?;
    } else {
        let lines: String = verdicts.iter().map(|verdict| line(job.name(), verdict)).collect();
        report::print(&lines)?;
    }
    if bad > 0 {
        return Err(Failure::new(Exit::BadImage, format!("{bad} of {} images are damaged", verdicts.len())));
    }
    Ok(())
}

fn verify(job: &Job, epoch: Epoch, named: bool) -> Result<Verdict, Failure> {
    let result = job.open_image(epoch).and_then(|image| {
        let bar = report::progress(&format!("image {epoch}"), image.info().bytes);
        let result = image.verify(&|done| bar.set_position(done));
        bar.finish_and_clear();
        // The store does not know what is in it.
        crate::names::record_of(&image).and(result)
    });
    match result {
        Ok(report) => Ok(Verdict { epoch, good: true, bytes: report.bytes, error: None }),
        Err(error) if named && crate::exit::of_store(&error) != Exit::BadImage => Err(error.into()),
        Err(error) => Ok(Verdict { epoch, good: false, bytes: 0, error: Some(error.to_string()) }),
    }
}

fn line(job: &str, verdict: &Verdict) -> String {
    let epoch = verdict.epoch;
    match &verdict.error {
        None => format!("{job}@{epoch}: good, {} verified\n", report::size(verdict.bytes)),
        Some(error) => format!("{job}@{epoch}: damaged: {error}\n"),
    }
}
