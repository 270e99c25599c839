//! What the next checkpoint would take: told by `holdfast check`, of a program that runs on untouched.
//!
//! Memory is what the kernel counts now, or what the tracker has seen written since the last image; what that is on
//! disk, and how long the stop is, are as for the last images of the run. Before the first one the stop is as long as
//! for those of earlier runs, or, of a program that uses CUDA, as device memory has taken on an H200 ([`of_devices`]).
//! Fails by: nothing; what is not known is left out.

use super::context::JobContext;
use super::headroom::Headroom;
use holdfast_image::cuda::DeviceMemory;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::refusal::{Estimate, StopBy};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_process::Members;
use holdfast_tiers::ImageInfo;

/// So many of the newest images count.
const NEWEST: usize = 5;

/// See the head of the file. `devices`: how many processes use CUDA, and what they have on devices.
pub fn of(context: &JobContext, members: &Members, devices: Option<(u64, DeviceMemory)>) -> Option<Estimate> {
    let memory_bytes = Headroom::of(members).ok()?.resident();
    let mut images: Vec<ImageInfo> = context.job.images().ok()?;
    images.retain(|image| image.broken.is_none());
    let earlier: Vec<u64> =
        images.extract_if(.., |image| image.run_ns != context.run_ns).map(|image| image.stop_ns).collect();
    let newest = images.split_off(images.len().saturating_sub(NEWEST));
    // While a checkpoint is made nothing is known of the next one.
    let has_parent = context.carry_over.try_lock().is_some_and(|carry_over| carry_over.lineage.is_some());
    let dirty = if has_parent { written(members) } else { None };
    Some(with_first_stop(estimate(memory_bytes, dirty, &newest), &earlier, devices))
}

/// Before the first image of a run. `earlier`: stop times of other runs, the oldest first.
fn with_first_stop(told: Estimate, earlier: &[u64], devices: Option<(u64, DeviceMemory)>) -> Estimate {
    if told.stop_ns.is_some() {
        return told;
    }
    let newest = earlier.get(earlier.len().saturating_sub(NEWEST)..).unwrap_or_default();
    if let Some(stop_ns) = middle(newest.to_vec()) {
        let images = newest.len() as u64;
        return Estimate { stop_ns: Some(stop_ns), images, stop_by: Some(StopBy::EarlierRuns), ..told };
    }
    let Some((processes, memory)) = devices else { return told };
    let stop_ns = Some(of_devices(processes, memory, told.memory_bytes));
    Estimate { stop_ns, stop_by: Some(StopBy::OtherMachine), ..told }
}

/// How long the first image of programs took that had so much on devices, nanoseconds: an H200 with driver 580.159.04
/// (tests/gpu/results). Milliseconds of a process, whose contexts the driver ends and makes again one after the other,
/// and of a GiB: moved by the driver out and in; copied by libholdfast, and back; copied by a keeper on the device; of
/// the host's memory.
fn of_devices(processes: u64, memory: DeviceMemory, host_bytes: u64) -> u64 {
    const PROCESS: u64 = 650;
    const DRIVER: u64 = 750;
    const LIBRARY: u64 = 900;
    const KEEPER: u64 = 120;
    const HOST: u64 = 45;
    let of = |bytes: u64, ms: u64| (bytes >> 20).saturating_mul(ms).saturating_mul(1_000_000) >> 10;
    let DeviceMemory { library, keeper, driver } = memory;
    let parts = [(driver, DRIVER), (library, LIBRARY), (keeper, KEEPER), (host_bytes, HOST)];
    let all = parts.into_iter().fold(0_u64, |sum, (bytes, ms)| sum.saturating_add(of(bytes, ms)));
    all.saturating_add(processes.saturating_mul(PROCESS * 1_000_000))
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
        stop_by: None,
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
            Estimate { memory_bytes: 4000, dirty_bytes: 4000, image_bytes: 4000, ..Estimate::default() };
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
    #[test]
    fn before_the_first_image_earlier_runs_say_it_or_what_devices_took_elsewhere() {
        let none = estimate(1 << 30, None, &[]);
        assert_eq!(with_first_stop(none, &[], None), none, "not known");
        let earlier = with_first_stop(none, &[99, 99, 1, 2, 3, 4, 5], Some((1, DeviceMemory::default())));
        assert_eq!(
            (earlier.stop_ns, earlier.images, earlier.stop_by),
            (Some(3), 5, Some(StopBy::EarlierRuns))
        );
        let own = Estimate { stop_ns: Some(7), images: 1, ..none };
        assert_eq!(with_first_stop(own, &[3], None), own, "its own images know better");
        // Rows of tests/gpu/results: 4 GiB of the driver's took 4033 ms, of a keeper's 1211, of libholdfast's 4532.
        for (memory, measured) in [
            (DeviceMemory { driver: 4 << 30, ..DeviceMemory::default() }, 4033),
            (DeviceMemory { keeper: 4 << 30, ..DeviceMemory::default() }, 1211),
            (DeviceMemory { library: 4 << 30, ..DeviceMemory::default() }, 4532),
        ] {
            let told = with_first_stop(none, &[], Some((1, memory)));
            let ms = told.stop_ns.unwrap_or(0) / 1_000_000;
            assert!((measured * 3 / 4..measured * 5 / 4).contains(&ms), "{memory:?}: {ms} for {measured}");
            assert_eq!(told.stop_by, Some(StopBy::OtherMachine));
        }
        let most = DeviceMemory { driver: u64::MAX, ..DeviceMemory::default() };
        assert!(of_devices(1, most, u64::MAX) > 1 << 54, "no overflow");
    }
}
