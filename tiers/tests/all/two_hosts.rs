//! One job that was continued from a tier on a second host while the first one goes on: what one copies there the other
//! does not take away, nor lose by what the other removes.

use crate::common::{FOLDER, Free, TempDir, read_all};
use crate::stack::{World, age, at, cascade, cascade_that_tells, comes_back, numbers, open_at, settled};
use holdfast_image::Epoch;
use holdfast_lab::{Call, Faults, Faulty, Operation};
use holdfast_tiers::stack::{
    CopyError, LocalRules, Pace, TierSpec, TierState, TiersRecord, Way, copy_version,
};
use holdfast_tiers::tier::{Blob, BlobName, BlobWriter, Listing, LocalTier, Tier, TierError, TierInfo};
use holdfast_tiers::{Image, Job, Store, TierFolder};
use std::collections::BTreeMap;
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

/// The second host has made an image 3 and an increment on it before it knew of the first one's 3, which the tier has.
fn both_make_image_three(hosts: &mut Hosts) {
    assert_eq!(hosts.one.checkpoint(), 3);
    settled(&cascade(&hosts.one.job, &["pfs"], open_at(&hosts.root)));
    assert_eq!((hosts.two.checkpoint(), hosts.two.checkpoint()), (3, 4));
}

fn state(job: &Job, rules: &str, root: &Path) -> TierState {
    settled(&cascade(job, &[rules], open_at(root))).remove(0)
}

/// All files of the tier, with their bytes.
fn bytes_of(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(root.join(FOLDER)).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

#[test]
fn an_image_of_the_same_number_is_no_copy_and_that_is_said() {
    let mut hosts = hosts();
    both_make_image_three(&mut hosts);
    let Hosts { one, mut two, root, dir } = hosts;
    let before = bytes_of(&root);
    let own = state(&one.job, "pfs", &root);
    assert!(own.others.is_empty() && own.error.is_none(), "{own:?}");
    assert_eq!(numbers(&own.versions), [1, 2, 3]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let cascade = {
        let (told, open) = (Arc::clone(&told), open_at(&root));
        cascade_that_tells(&two.job, "pfs", open, move |other| told.lock().unwrap().push(other))
    };
    let state = settled(&cascade).remove(0);
    assert_eq!((numbers(&state.versions), numbers(&state.waiting)), (vec![1, 2], vec![3, 4]), "{state:?}");
    let other = &state.others[&3];
    assert!(other.image == 3 && other.host.as_deref() == Some("pfs") && other.created_ns > 0, "{other:?}");
    let error = state.error.unwrap();
    assert!(error.contains("image 3 there is another one: made by another run on host pfs"), "{error}");
    assert_eq!(*told.lock().unwrap(), [3], "once");
    // None of its own goes, for the tier has no copy of it, whatever is committed later.
    two.checkpoint();
    cascade.wake();
    settled(&cascade);
    let rules = LocalRules { keep: Some(1), max_bytes: Some(u64::MAX) };
    assert_eq!(cascade.removals(&rules, &|_| false), (vec![2], vec![]));
    assert_eq!(*told.lock().unwrap(), [3]);
    drop(cascade);
    let record = TiersRecord::read(&two.job).tiers.remove(0);
    assert_eq!((record.versions, record.others.len()), (vec![1, 2], 1));
    assert!(bytes_of(&root) == before, "theirs is as it was");
    comes_back(&root, &dir.0.join("back"), 3, &one.then[2]);
    // An image that builds on nothing has nothing in the way.
    two.build_on_nothing();
    assert_eq!(two.checkpoint(), 6);
    let state = self::state(&two.job, "pfs", &root);
    assert_eq!((numbers(&state.versions), numbers(&state.waiting)), (vec![1, 2, 6], vec![3, 4, 5]));
}

#[test]
fn what_another_host_has_there_neither_counts_for_the_rules_of_a_tier_nor_goes_by_them() {
    let mut hosts = hosts();
    both_make_image_three(&mut hosts);
    let Hosts { mut one, two, root, .. } = hosts;
    // Theirs are older than a day: nothing but their manifests keeps their segments.
    one.checkpoint();
    settled(&cascade(&one.job, &["pfs"], open_at(&root)));
    age(&root.join(FOLDER));
    let state = state(&two.job, "pfs,keep=1", &root);
    assert_eq!(state.others.keys().collect::<Vec<_>>(), [&3, &4]);
    assert_eq!(numbers(&state.versions), [2], "the newest of its own");
    assert!(is_whole(&root, 2) && is_whole(&root, 3) && is_whole(&root, 4));
}

#[test]
fn a_tier_is_asked_once_which_image_one_is() {
    let mut hosts = hosts();
    both_make_image_three(&mut hosts);
    let Hosts { mut two, root, .. } = hosts;
    let faults = Faults::none();
    let looks = |faults: &Faults| {
        let log = faults.log();
        let is_look = |op: &&Operation| op.call == Call::Open && op.object.contains("manifest-00000");
        log.iter().filter(is_look).filter(|op| !op.object.ends_with('1')).count()
    };
    let opened = faults.clone();
    let open = move |_: &TierSpec| -> Result<Arc<dyn Tier>, TierError> {
        let tier = LocalTier::open(&root).unwrap();
        Ok(Arc::new(Faulty::new(Box::new(tier), opened.clone())))
    };
    let cascade = cascade(&two.job, &["pfs"], open);
    settled(&cascade);
    let first = looks(&faults);
    two.build_on_nothing();
    for _ in 0..3 {
        two.checkpoint();
        cascade.wake();
        settled(&cascade);
    }
    assert_eq!(numbers(&cascade.states()[0].versions), [1, 2, 5, 6, 7]);
    // Of 2 and 3 one each, and 3 is read by the rules of the tier, which keep what its segments need.
    assert_eq!((first, looks(&faults)), (3, 3));
}

#[test]
fn what_the_store_has_is_not_replaced_by_an_image_of_the_same_number() {
    let mut hosts = hosts();
    both_make_image_three(&mut hosts);
    let Hosts { two, root, .. } = hosts;
    let (one_s, own) = (at(&root), two.job.folder());
    let is_whole = |number: u64| two.job.open_image(Epoch(number)).unwrap().verify(&|_| ());
    let fetched = copy_version(&one_s, own, Epoch(3), None, Way::Up, &Free);
    assert!(matches!(fetched, Err(CopyError::Foreign { segment: None, .. })), "{fetched:?}");
    is_whole(3).unwrap();
    // Its manifest goes, and image 4 still needs its segment.
    two.job.remove_image(&two.lock, Epoch(3)).unwrap();
    let fetched = copy_version(&one_s, own, Epoch(3), None, Way::Up, &Free);
    assert!(matches!(fetched, Err(CopyError::Foreign { segment: Some(_), .. })), "{fetched:?}");
    is_whole(4).unwrap();
}

#[test]
fn where_the_store_lacks_a_part_an_image_of_the_same_number_is_no_remedy() {
    let mut hosts = hosts();
    both_make_image_three(&mut hosts);
    let Hosts { two, root, .. } = hosts;
    fs::remove_file(two.job.dir().join("segment-000003-000")).unwrap();
    let opened = two.job.open_image_from(Epoch(3), &[at(&root)]);
    let error = opened.map(|image| image.epoch()).unwrap_err().to_string();
    assert!(error.contains("belongs to another image"), "{error}");
}

#[test]
fn a_damaged_manifest_on_a_tier_is_no_copy() {
    let hosts = hosts();
    let Hosts { two, root, .. } = hosts;
    let file = root.join(FOLDER).join("manifest-000002");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..30]).unwrap();
    let cascade = cascade(&two.job, &["pfs"], open_at(&root));
    let found = settled(&cascade).remove(0);
    assert!(found.others[&2].damage.is_some() && numbers(&found.waiting) == [2], "{found:?}");
    assert!(found.error.unwrap().contains("--repair"));
    fs::write(&file, bytes).unwrap();
    cascade.wake();
    let found = settled(&cascade).remove(0);
    assert!(found.others.is_empty() && found.error.is_none() && found.waiting.is_empty(), "{found:?}");
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
