//! `holdfast show` of an image of objects: which version it is, and what is in it.

use crate::exit::Failure;
use crate::names::objects_of;
use crate::report::{self, size};
use holdfast_image::objects::ObjectRecord;
use holdfast_tiers::Image;
use std::fmt::Write;

/// Whether it is one.
pub fn is_of_objects(image: &Image) -> bool {
    image.record().kind == ObjectRecord::KIND
}

/// Shows it.
///
/// # Errors
/// It is damaged.
pub fn run(job: &str, image: &Image, tiers: &[String], json: bool) -> Result<(), Failure> {
    let record = objects_of(image)?;
    if json {
        return report::print_json(
            "image",
            serde_json::json!({
                "job": job,
                "image": image.info(),
                "created": report::utc(image.info().created_ns),
                "engine": image.engine(),
                "flush": image.figures(),
                "objects": record,
                "tiers": tiers,
            }),
        );
    }
    report::print(&text(job, image, &record, tiers))
}

fn text(job: &str, image: &Image, record: &ObjectRecord, tiers: &[String]) -> String {
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
    let _ = writeln!(out, "\nobjects");
    for object in &record.objects {
        let _ = writeln!(out, "  {:<24} {:>10}", object.key, size(object.bytes));
    }
    out
}
