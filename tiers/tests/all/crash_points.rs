//! An agent that dies, a host that loses its power, a call that fails or whose answer is lost, at each single operation
//! on the first tier: the newest image that was reported as committed is there, nothing half is listed, and nothing
//! leaks after the next run.

use crate::common::{
    Content, MemorySource, Model as Pages, TempDir, commit_record, options, page_of, read_all, run,
};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_lab::{Fault, Faults, Faulty, Model};
use holdfast_tiers::format::manifest::Manifest;
use holdfast_tiers::tier::{Tier, TierError};
use holdfast_tiers::{Job, Store, StoreError, TierFolder};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What the images hold, by number, and which of them was committed, or removed, for sure.
#[derive(Default)]
struct Done {
    committed: Vec<u64>,
    removed: Vec<u64>,
}

fn first() -> MemorySource {
    MemorySource::new(
        vec![run(100, 70), run(300, 3)],
        |n| if n < 200 { Content::Noise } else { Content::Text },
    )
}

fn second() -> (MemorySource, Inherited) {
    let mut source = MemorySource::new(vec![run(120, 2)], |_| Content::Noise);
    for page in 120..122 {
        source.pages.insert(page, page_of(Content::Noise, page + 1));
    }
    (source, Inherited { unchanged: vec![run(100, 20), run(122, 48)], mapped: Vec::new() })
}

/// Leaves two pages of the first image's segment, which are moved.
fn third() -> (MemorySource, Inherited) {
    let mut source = MemorySource::new(vec![run(102, 68)], |_| Content::Noise);
    for page in 102..170 {
        source.pages.insert(page, page_of(Content::Noise, page + 1000));
    }
    (source, Inherited { unchanged: vec![run(100, 2)], mapped: Vec::new() })
}

fn contents() -> BTreeMap<u64, Pages> {
    let one = first().pages;
    let mut two = one.clone();
    two.retain(|page, _| *page < 200);
    two.extend(second().0.pages);
    let mut three = two.clone();
    three.extend(third().0.pages);
    BTreeMap::from([(1, one), (2, two), (3, three)])
}

fn open_job(store: &Path, tier: Arc<dyn Tier>) -> Job {
    let job = Store::open(store).unwrap().create_job("job").unwrap();
    job.with_first_tier(TierFolder::new(tier, "job").unwrap())
}

/// Three images, increments but for the first; the last is compacted. The first goes before it, the second after it.
/// Stops at the first error.
fn live(job: &Job, done: &mut Done) -> Result<(), StoreError> {
    let lock = job.lock()?;
    job.clean(&lock)?;
    let mut writer = job.begin(&lock, Epoch(1), None)?;
    writer.write_pages(&first(), &Inherited::default(), &options(1), &|_, _| ())?;
    let (_, parent) = writer.commit(commit_record())?;
    done.committed.push(1);
    let (source, inherited) = second();
    let mut writer = job.begin(&lock, Epoch(2), Some(parent))?;
    writer.write_pages(&source, &inherited, &options(1), &|_, _| ())?;
    let (_, parent) = writer.commit(commit_record())?;
    done.committed.push(2);
    job.remove_image(&lock, Epoch(1))?;
    done.removed.push(1);
    let (source, inherited) = third();
    let mut writer = job.begin(&lock, Epoch(3), Some(parent))?;
    writer.write_pages(&source, &inherited, &options(1), &|_, _| ())?;
    writer.commit(commit_record())?;
    done.committed.push(3);
    job.remove_image(&lock, Epoch(2))?;
    done.removed.push(2);
    Ok(())
}

/// What a new agent finds: whole images, the right ones, and after it no byte that no image needs.
fn check(store: &Path, tier: &Model, done: &Done, what: &str) {
    let job = open_job(store, Arc::new(tier.clone()));
    let images = job.images().unwrap();
    for image in &images {
        assert!(image.complete && image.broken.is_none(), "{what}: {image:?}");
        let open = job.open_image(image.epoch).unwrap();
        open.verify(&|_| ()).unwrap();
        assert!(read_all(&open).unwrap() == contents()[&image.epoch.0], "{what}: image {}", image.epoch);
    }
    let found: Vec<u64> = images.iter().map(|image| image.epoch.0).collect();
    let newest = done.committed.last().copied().unwrap_or(0);
    assert!(found.last().copied().unwrap_or(0) >= newest, "{what}: {found:?}, {newest} was committed");
    assert!(done.removed.iter().all(|gone| !found.contains(gone)), "{what}: {found:?}");
    let lock = job.lock().unwrap();
    job.clean(&lock).unwrap();
    // Of an image that is gone, what a later one needs stays.
    let (mut manifests, mut segments) = (0, BTreeMap::new());
    for number in &found {
        let bytes = job.folder().manifest(Epoch(*number)).unwrap();
        let named = Manifest::open(&bytes).unwrap().segments().unwrap();
        segments.extend(named.iter().map(|entry| ((entry.epoch, entry.number), entry.len)));
        manifests += bytes.len() as u64;
    }
    let needed = manifests + segments.values().sum::<u64>();
    assert_eq!(tier.used_bytes(), needed, "{what}: {found:?}");
}

fn operations(store: &Path) -> u64 {
    let (tier, faults) = (Model::new("model"), Faults::none());
    let mut done = Done::default();
    live(&open_job(store, Arc::new(Faulty::new(Box::new(tier.clone()), faults.clone()))), &mut done).unwrap();
    check(store, &tier, &done, "no fault");
    assert_eq!((&done.committed[..], &done.removed[..]), (&[1, 2, 3][..], &[1, 2][..]));
    let compacted = open_job(store, Arc::new(tier.clone())).open_image(Epoch(3)).unwrap();
    assert_eq!(compacted.figures().pages_moved, 2);
    faults.operations()
}

#[test]
fn whoever_dies_at_any_operation_leaves_what_was_committed() {
    let dir = TempDir::new();
    let store = dir.store();
    let count = operations(&store);
    assert!(count > 20, "{count} operations");
    for number in 0..count {
        let (tier, faults) = (Model::new("model"), Faults::stop_at(number));
        let faulty = Faulty::new(Box::new(tier.clone()), faults.clone());
        let mut done = Done::default();
        // What only tidies up may be over without an error.
        let ended = live(&open_job(&store, Arc::new(faulty)), &mut done);
        let at = format!("stopped at {:?}: {ended:?}", faults.log().last());
        for seed in 0..4 {
            check(&store, &tier.after_power_cut(seed), &done, &format!("{at}, power cut {seed}"));
        }
        check(&store, &tier, &done, &at);
    }
}

fn unavailable(object: String) -> TierError {
    TierError::Unavailable { object, why: "a fault of a test".into() }
}

fn full(object: String) -> TierError {
    TierError::Full { object }
}

#[test]
fn a_call_that_fails_or_whose_answer_is_lost_leaves_no_half_image() {
    let dir = TempDir::new();
    let store = dir.store();
    let faults =
        [Fault::Fail(unavailable), Fault::Fail(full), Fault::LoseAnswer(unavailable), Fault::Tear(100)];
    for number in 0..operations(&store) {
        for fault in faults {
            let (tier, faults) = (Model::new("model"), Faults::once(number, fault));
            let faulty = Faulty::new(Box::new(tier.clone()), faults.clone());
            let mut done = Done::default();
            let ended = live(&open_job(&store, Arc::new(faulty)), &mut done);
            let at = format!("{fault:?} of {:?}: {ended:?}", faults.log().get(number as usize));
            check(&store, &tier, &done, &at);
        }
    }
}
