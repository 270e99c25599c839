//! `holdfast prune`: deletes images of a job that is not running.

use crate::args::PruneArgs;
use crate::exit::Failure;
use crate::front::patience::Patience;
use crate::report;
use holdfast_tiers::{ImageInfo, Job};
use std::fs;
use std::path::Path;

/// Deletes all but the newest images, or the whole job. Damaged images are deleted when a newer good one is kept.
///
/// # Errors
/// The job is running, or files cannot be deleted.
pub fn run(args: &PruneArgs, root: Option<&Path>) -> Result<(), Failure> {
    let store = crate::names::open_store(root)?;
    let job = crate::names::open_job(&store, &args.job)?;
    crate::front::wait_for_lock::wait(&job, &Patience::default())?;
    let lock = job.lock()?;
    let images = job.images()?;
    let keep = if args.all { 0 } else { args.keep.unwrap_or(usize::MAX) };
    let doomed = doomed(&images, keep);
    let would = if args.dry_run { "would delete" } else { "deleted" };
    let (mut lines, mut total) = (String::new(), 0);
    for image in doomed {
        let bytes = if args.dry_run { image.bytes } else { job.remove_image(&lock, image.epoch)? };
        total += bytes;
        lines.push_str(&format!("{would} image {} ({})\n", image.epoch, report::size(bytes)));
    }
    if !args.dry_run {
        job.clean(&lock)?;
    }
    if args.all && !args.dry_run {
        lines.push_str(&remove_job(&job));
    }
    lines.push_str(&format!("{would} {} in all\n", report::size(total)));
    report::print(&lines)
}

/// What is not among the `keep` newest good images, oldest first.
fn doomed(images: &[ImageInfo], keep: usize) -> Vec<&ImageInfo> {
    let good = images.iter().rev().filter(|image| image.broken.is_none());
    let oldest_kept = good.take(keep).map(|image| image.epoch).min();
    images
        .iter()
        .filter(|image| oldest_kept.is_none_or(|kept| image.epoch < kept || image.broken.is_some()))
        .filter(|image| keep == 0 || oldest_kept.is_some() || image.broken.is_none())
        .collect()
}

/// Removes the folder of a job without images. File tails that a restart cut off belong to the user: they stay.
fn remove_job(job: &Job) -> String {
    let saved = job.saved_dir();
    if fs::read_dir(&saved).is_ok_and(|mut entries| entries.next().is_some()) {
        return format!("kept {}: parts of your files that restarts cut off\n", saved.display());
    }
    match fs::remove_dir_all(job.dir()) {
        Ok(()) => format!("deleted job {}\n", job.name()),
        Err(error) => format!("{} stays: {error}\n", job.dir().display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::Epoch;

    fn image(epoch: u64, broken: bool) -> ImageInfo {
        ImageInfo {
            epoch: Epoch(epoch),
            created_ns: 0,
            bytes: 1,
            total_bytes: 1,
            program_bytes: 1,
            stop_ns: 1,
            parent: None,
            unsaved: Vec::new(),
            broken: broken.then(|| "x".to_owned()),
            complete: !broken,
        }
    }

    #[test]
    fn the_newest_good_images_are_kept() {
        let images = [image(1, false), image(2, true), image(3, false), image(4, false), image(5, true)];
        let numbers = |keep| doomed(&images, keep).iter().map(|image| image.epoch.0).collect::<Vec<_>>();
        assert_eq!(numbers(0), [1, 2, 3, 4, 5]);
        assert_eq!(numbers(1), [1, 2, 3, 5]);
        assert_eq!(numbers(2), [1, 2, 5]);
        assert_eq!(numbers(9), [2, 5]);
        let all_broken = [image(1, true), image(2, true)];
        assert!(doomed(&all_broken, 1).is_empty());
        assert_eq!(doomed(&all_broken, 0).len(), 2);
    }
}
