//! One job that was continued from a tier on a second host while the first one goes on: what one copies there the other
//! does not take away, nor lose by what the other removes.

use crate::common::{FOLDER, Free, TempDir, read_all};
use crate::stack::{World, at, cascade, comes_back, numbers, open_at, settled};
use holdfast_image::Epoch;
use holdfast_tiers::stack::{CopyError, Pace, Way, copy_version};
use holdfast_tiers::tier::{Blob, BlobName, BlobWriter, Listing, LocalTier, Tier, TierError, TierInfo};
use holdfast_tiers::{Image, Store, TierFolder};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Two hosts and the tier between them, which has images 1 and 2.
struct Hosts {
    one: World,
    two: World,
    root: PathBuf,
    dir: TempDir,
}

fn hosts() -> Hosts {
    let dir = TempDir::new();
    let root = dir.0.join("pfs");
    let one = World::checkpoints(&dir.store(), 2);
    settled(&cascade(&one.job, &["pfs"], open_at(&root)));
    let job = Store::open(&dir.0.join("two")).unwrap().create_job("job").unwrap();
    copy_version(&at(&root), job.folder(), Epoch(2), None, Way::Up, &Free).unwrap();
    Hosts { one, two: World::of(job), root, dir }
}

/// What the second host does: an image of its own, of all memory, which the tier gets; it keeps no other there.
fn goes_on(two: &mut World, root: &Path) {
    // Its image 3 has the number of the first host's, which is on its way.
    assert_eq!(two.checkpoint(), 3);
    let taken = copy_version(two.job.folder(), &at(root), Epoch(3), None, Way::Down, &Free);
    assert!(matches!(taken, Err(CopyError::Foreign { .. })), "{taken:?}");
    two.build_on_nothing();
    assert_eq!(two.checkpoint(), 4);
    let states = settled(&cascade(&two.job, &["pfs,keep=1"], open_at(root)));
    assert_eq!(numbers(&states[0].versions), [4], "{states:?}");
}

fn is_whole(root: &Path, epoch: u64) -> bool {
    Image::open(&[at(root)], Epoch(epoch)).is_ok_and(|image| read_all(&image).is_ok())
}

/// Something that happens once.
struct Once<F>(Mutex<Option<F>>);

impl<F: FnOnce()> Once<F> {
    fn of(action: F) -> Once<F> {
        Once(Mutex::new(Some(action)))
    }

    fn now(&self) {
        let action = self.0.lock().unwrap().take();
        if let Some(action) = action {
            action();
        }
    }
}

/// Right before the manifest is published, when all was looked at.
impl<F: FnOnce()> Pace for Once<F> {
    fn begin(&self, _total: u64) {}
    fn pass(&self, _bytes: u64) -> bool {
        true
    }
    fn commit(&self, commit: &mut dyn FnMut() -> Result<(), CopyError>) -> Result<(), CopyError> {
        self.now();
        commit()
    }
}

/// When all segments are there.
struct AtRecipe<F> {
    tier: LocalTier,
    action: Once<F>,
}

impl<F: FnOnce() + Send> Tier for AtRecipe<F> {
    fn info(&self) -> &TierInfo {
        self.tier.info()
    }
    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.tier.list(folder)
    }
    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        self.tier.open(name)
    }
    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        self.tier.create(name, expected)
    }
    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        if name.file().starts_with("job-") {
            self.action.now();
        }
        self.tier.publish(name, bytes)
    }
    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        self.tier.remove(name)
    }
    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.tier.clean(folder)
    }
}

#[test]
fn what_is_taken_away_while_a_version_is_copied_is_copied_again() {
    let Hosts { mut one, mut two, root, dir } = hosts();
    assert_eq!(one.checkpoint(), 3);
    let there = root.clone();
    let action = Once::of(move || goes_on(&mut two, &there));
    let tier = Arc::new(AtRecipe { tier: LocalTier::open(&root).unwrap(), action });
    let to = TierFolder::new(tier, FOLDER).unwrap();
    copy_version(one.job.folder(), &to, Epoch(3), Some(b"{}"), Way::Down, &Free).unwrap();
    comes_back(&root, &dir.0.join("back"), 3, &one.then[2]);
    assert!(is_whole(&root, 4), "that of the other host");
}

#[test]
fn what_is_taken_away_at_the_last_moment_is_copied_again_by_the_next_round() {
    let Hosts { mut one, mut two, root, dir } = hosts();
    assert_eq!(one.checkpoint(), 3);
    let there = root.clone();
    let last_moment = Once::of(move || goes_on(&mut two, &there));
    copy_version(one.job.folder(), &at(&root), Epoch(3), Some(b"{}"), Way::Down, &last_moment).unwrap();
    assert!(!is_whole(&root, 3) && is_whole(&root, 4));
    settled(&cascade(&one.job, &["pfs"], open_at(&root)));
    comes_back(&root, &dir.0.join("back"), 3, &one.then[2]);
    assert!(is_whole(&root, 4), "that of the other host");
}

#[test]
fn a_new_image_has_a_number_that_nothing_on_a_tier_has() {
    let dir = TempDir::new();
    let root = dir.0.join("pfs");
    let world = World::checkpoints(&dir.store(), 1);
    // Of an image that another host was copying when it was lost.
    fs::create_dir_all(root.join(FOLDER)).unwrap();
    fs::write(root.join(FOLDER).join("segment-000007-000"), "unfinished").unwrap();
    let cascade = cascade(&world.job, &["pfs"], open_at(&root));
    assert_eq!(numbers(&settled(&cascade)[0].versions), [1]);
    assert_eq!(cascade.newest(), 7);
    assert!(root.join(FOLDER).join("segment-000007-000").exists());
}
