//! What the next checkpoint would take: told by `holdfast check`, of a program that runs on untouched.
//!
//! Memory is what the kernel counts now, or what the tracker has seen written since the last image; what that is on
//! disk, and how long the stop is, are as for the last images of the run. Fails by: nothing; what is not known is left
//! out.

use super::context::JobContext;
use super::headroom::Headroom;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::refusal::Estimate;
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_process::Members;
use holdfast_tiers::ImageInfo;

/// So many of the newest images count.
const NEWEST: usize = 5;

/// See the head of the file.
pub fn of(context: &JobContext, members: &Members) -> Option<Estimate> {
    let memory_bytes = Headroom::of(members).ok()?.resident();
    let mut images: Vec<ImageInfo> = context.job.images().ok()?;
    images.retain(|image| image.broken.is_none() && image.run_ns == context.run_ns);
    let newest = images.split_off(images.len().saturating_sub(NEWEST));
    // While a checkpoint is made nothing is known of the next one.
    let has_parent = context.carry_over.try_lock().is_some_and(|carry_over| carry_over.lineage.is_some());
    let dirty = if has_parent { written(members) } else { None };
    Some(estimate(memory_bytes, dirty, &newest))
}

/// What was written since the last image; none: it is not tracked.
fn written(members: &Members) -> Option<u64> {
    if members.pages().0 == 0 {
        return None;
    }
    // All that a process can have (x86-64, four levels of page tables).
    let end = 1_u64 << 47;
    let all: PageSet = members
        .targets()
        .iter()
        .map(|target| PageRun {
            start: Addr(u64::from(target.space) << 47),
            pages: PageCount(end / PAGE_SIZE - 1),
        })
        .collect();
    members.written(&all).ok().map(|pages| pages.pages().bytes())
}

fn estimate(memory_bytes: u64, dirty: Option<u64>, newest: &[ImageInfo]) -> Estimate {
    let increments = || newest.iter().filter(|image| image.parent.is_some());
    let dirty_bytes = dirty.unwrap_or(memory_bytes).min(memory_bytes);
    // What a byte of memory was on disk, of whole images.
    let whole: Vec<&ImageInfo> = newest.iter().filter(|image| image.parent.is_none()).collect();
    let (stored, read) = whole.iter().fold((0_u64, 0_u64), |(stored, read), image| {
        (stored.saturating_add(image.bytes), read.saturating_add(image.program_bytes))
    });
    let scaled = |bytes: u64| match read {
        0 => bytes,
        read => u64::try_from(u128::from(bytes) * u128::from(stored) / u128::from(read)).unwrap_or(bytes),
    };
    let image_bytes = match (dirty, middle(increments().map(|image| image.bytes).collect())) {
        // What the last ones added is nearer to it than what was written up to now.
        (_, Some(added)) => added,
        (_, None) => scaled(dirty_bytes),
    };
    Estimate {
        memory_bytes,
        dirty_bytes,
        image_bytes,
        stop_ns: middle(newest.iter().map(|image| image.stop_ns).collect()),
        images: newest.len() as u64,
    }
}

fn middle(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_image::Epoch;

    fn image(parent: Option<u64>, bytes: u64, stop_ns: u64) -> ImageInfo {
        ImageInfo {
            epoch: Epoch(9),
            created_ns: 0,
            run_ns: 1,
            bytes,
            total_bytes: bytes,
            program_bytes: 1000,
            stop_ns,
            parent: parent.map(Epoch),
            unsaved: Vec::new(),
            broken: None,
            complete: true,
        }
    }

    #[test]
    fn the_last_images_say_what_the_next_takes() {
        let first = estimate(4000, None, &[]);
        let all =
            Estimate { memory_bytes: 4000, dirty_bytes: 4000, image_bytes: 4000, stop_ns: None, images: 0 };
        assert_eq!(first, all);
        // A tenth of what was read was stored.
        let second = estimate(4000, Some(500), &[image(None, 100, 7)]);
        assert_eq!((second.dirty_bytes, second.image_bytes, second.stop_ns), (500, 50, Some(7)));
        let later =
            [image(None, 100, 9), image(Some(1), 30, 1), image(Some(2), 20, 2), image(Some(3), 40, 3)];
        let later = estimate(4000, Some(9000), &later);
        assert_eq!((later.dirty_bytes, later.image_bytes, later.stop_ns), (4000, 30, Some(3)));
        assert_eq!(later.images, 4);
    }
}
