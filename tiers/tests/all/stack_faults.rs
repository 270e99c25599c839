//! The cascade over a tier that fails: its user dies before each operation, its host loses its power there, each
//! operation fails in each way. What is listed is whole, what was published stays, and nothing is left over.

use crate::common::{Content, FOLDER, Free, MemorySource, TempDir, commit_record, options, page_of, run};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_lab::{Call, Damage, Fault, Faults, Faulty, Model};
use holdfast_tiers::format::manifest::Manifest;
use holdfast_tiers::policy::{self, Retention, TierHolds, Wish};
use holdfast_tiers::stack::{
    Activity, Cascade, CascadeOptions, CopyError, LocalRules, Opener, TierSpec, TiersRecord, Way,
    copy_version,
};
use holdfast_tiers::tier::{Blob, BlobName, Tier, TierError, TierInfo};
use holdfast_tiers::{Job, Store, TierFolder, hygiene};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PAGES: std::ops::Range<u64> = 1000..1064;
/// Of the tier under test.
const KEEP: &str = "dir=/tier,keep=2";

/// A job with four images: 2 builds on 1, 4 on 3.
struct World {
    job: Job,
    _dir: TempDir,
}

impl World {
    fn new() -> World {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
        job.write_recipe(&serde_json::json!({ "command": ["sim"] })).unwrap();
        let lock = job.lock().unwrap();
        let mut parent = None;
        let mut pages: crate::common::Model =
            PAGES.map(|page| (page, page_of(Content::Noise, page))).collect();
        for number in 1..=4 {
            let increment = number % 2 == 0;
            let dirty: BTreeSet<u64> = PAGES.filter(|page| !increment || page % 4 == 0).collect();
            for page in &dirty {
                pages.insert(*page, page_of(Content::Noise, page + 10_000 * number));
            }
            let unchanged = PAGES.filter(|page| !dirty.contains(page)).map(|page| run(page, 1)).collect();
            let lineage = parent.take().filter(|_| increment);
            let mut writer = job.begin(&lock, Epoch(number), lineage).unwrap();
            let source = MemorySource::of_model(&pages, &dirty);
            let inherited = Inherited { unchanged, mapped: Vec::new() };
            writer.write_pages(&source, &inherited, &options(1), &|_, _| ()).unwrap();
            parent = Some(writer.commit(commit_record()).unwrap().1);
        }
        World { job, _dir: dir }
    }

    /// A tier that has images 1 and 2: 3 and 4 are wanted there, then 1 and 2 go.
    fn tier(&self) -> Model {
        let model = Model::new("tier");
        for number in 1..=2 {
            let recipe = std::fs::read(self.job.dir().join("job.json")).unwrap();
            copy_version(self.job.folder(), &place(&model), Epoch(number), Some(&recipe), Way::Down, &Free)
                .unwrap();
        }
        model
    }

    fn cascade(&self, model: &Model, faults: &Faults) -> Cascade {
        let (model, faults) = (model.clone(), faults.clone());
        let open = move |_: &TierSpec| -> Result<Arc<dyn Tier>, TierError> {
            Ok(Arc::new(Faulty::new(Box::new(model.clone()), faults.clone())))
        };
        self.cascade_by(Arc::new(open))
    }

    fn cascade_by(&self, open: Opener) -> Cascade {
        Cascade::start(CascadeOptions {
            keep_in_memory: 1,
            job: self.job.clone(),
            folder: FOLDER.into(),
            tiers: vec![KEEP.parse().unwrap()],
            pinned: Default::default(),
            open,
            pack: false,
            on_thread: || (),
            on_failure: Box::new(|_, _| ()),
            on_other: Box::new(|_, _| ()),
            host_of: |_| Some("pfs".into()),
            is_over: Box::new(|| false),
        })
        .unwrap()
    }

    /// Has the cascade do what there is to do; what fails is tried again at once. Ends earlier where its user has
    /// died.
    fn settle(&self, model: &Model, faults: &Faults) {
        let cascade = self.cascade(model, faults);
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let state = cascade.states().remove(0);
            match state.activity {
                _ if faults.stopped() => return,
                Activity::Idle if !cascade.is_busy() => return,
                Activity::Failed { .. } => cascade.hurry(),
                _ => {}
            }
            assert!(Instant::now() < end, "{state:?}");
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// A version that is listed has the bytes that it has here.
    fn check_whole(&self, model: &Model, what: &str) {
        let place = place(model);
        for number in place.inventory().unwrap().versions {
            let manifest = place.manifest(Epoch(number)).unwrap();
            let named = Manifest::open(&manifest).unwrap().segments().unwrap();
            let segments =
                named.iter().map(|entry| format!("segment-{:06}-{:03}", entry.epoch.0, entry.number));
            for file in segments.chain([format!("manifest-{number:06}")]) {
                let name = BlobName::within(FOLDER, &file).unwrap();
                let blob = model.open(&name).unwrap_or_else(|error| panic!("{what}: {number}: {error}"));
                assert!(read(&*blob) == std::fs::read(self.job.dir().join(&file)).unwrap(), "{what}: {file}");
            }
        }
    }
}

fn read(blob: &dyn Blob) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(blob.len()).unwrap()];
    blob.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Names and lengths of all that is there.
fn listing(model: &Model) -> Vec<(String, u64)> {
    model.list(FOLDER).unwrap().blobs.iter().map(|entry| (entry.name.to_string(), entry.len)).collect()
}

fn place(model: &Model) -> TierFolder {
    TierFolder::new(Arc::new(model.clone()), FOLDER).unwrap()
}

fn bytes_of(listing: &[(String, u64)]) -> u64 {
    listing.iter().map(|(_, len)| len).sum()
}

fn versions(model: &Model) -> BTreeSet<u64> {
    place(model).inventory().unwrap().versions
}

/// What there is after a run that nothing disturbs, and its operations.
fn undisturbed(world: &World) -> (Vec<(String, u64)>, Faults) {
    let (model, faults) = (world.tier(), Faults::none());
    world.settle(&model, &faults);
    assert_eq!(versions(&model), BTreeSet::from([3, 4]));
    world.check_whole(&model, "undisturbed");
    let listing = listing(&model);
    assert_eq!(model.used_bytes(), bytes_of(&listing));
    (listing, faults)
}

/// The versions that were published by one of these operations, and not removed by one.
fn published(faults: &Faults) -> BTreeSet<u64> {
    let mut there = BTreeSet::from([1, 2]);
    let log = faults.log();
    // The last one was not made.
    for operation in &log[..log.len() - 1] {
        let Some((_, number)) = operation.object.split_once("/manifest-") else { continue };
        let number = number.parse().unwrap();
        match operation.call {
            Call::Publish => there.insert(number),
            Call::Remove => there.remove(&number),
            _ => continue,
        };
    }
    there
}

#[test]
fn the_agent_or_the_host_may_die_before_every_operation() {
    let world = World::new();
    let (wanted, counted) = undisturbed(&world);
    assert!(counted.operations() > 20, "{:?}", counted.log());
    for number in 0..counted.operations() {
        let (model, faults) = (world.tier(), Faults::stop_at(number));
        world.settle(&model, &faults);
        let what = format!("before {:?}", faults.log().last().unwrap());
        let cuts = (0..3).map(|seed| model.after_power_cut(seed)).collect::<Vec<_>>();
        for after in cuts.into_iter().chain([model]) {
            assert_eq!(versions(&after), published(&faults), "{what}");
            world.check_whole(&after, &what);
            world.settle(&after, &Faults::none());
            world.check_whole(&after, &what);
            assert_eq!(listing(&after), wanted, "{what}");
            assert_eq!(after.used_bytes(), bytes_of(&wanted), "{what}: nothing is left over");
        }
    }
}

#[test]
fn every_operation_may_fail_in_every_way() {
    let world = World::new();
    let (wanted, counted) = undisturbed(&world);
    let down = |object| TierError::Unavailable { object, why: "try later".into() };
    let full = |object| TierError::Full { object };
    for fault in [Fault::Fail(down), Fault::LoseAnswer(down), Fault::Fail(full), Fault::Tear(5000)] {
        for number in 0..counted.operations() {
            let (model, faults) = (world.tier(), Faults::once(number, fault));
            world.settle(&model, &faults);
            let what = format!("{fault:?} at {:?}", faults.log()[usize::try_from(number).unwrap()]);
            world.check_whole(&model, &what);
            assert_eq!(listing(&model), wanted, "{what}");
            assert_eq!(model.used_bytes(), bytes_of(&wanted), "{what}");
        }
    }
}

#[test]
fn a_third_of_all_operations_may_fail() {
    let world = World::new();
    let (wanted, _) = undisturbed(&world);
    let down = |object| TierError::Unavailable { object, why: "try later".into() };
    for seed in 0..10 {
        for fault in [Fault::Fail(down), Fault::LoseAnswer(down)] {
            let (model, faults) = (world.tier(), Faults::random(seed, 3, fault));
            world.settle(&model, &faults);
            world.check_whole(&model, "at random");
            assert_eq!(listing(&model), wanted, "{seed} {fault:?}");
        }
    }
}

#[test]
fn a_damaged_blob_of_a_lower_tier_is_never_restored() {
    let world = World::new();
    let good = world.tier();
    for (name, len) in listing(&good) {
        let file = name.rsplit_once('/').unwrap().1.to_owned();
        let len = usize::try_from(len).unwrap();
        // The middle of a segment is in a frame.
        for damage in [Damage::Flip(len / 2), Damage::Missing, Damage::Zero, Damage::Truncate(len / 2)] {
            let (model, target) = (world.tier(), Model::new("target"));
            model.damage(&BlobName::new(&name).unwrap(), damage);
            let result = copy_version(&place(&model), &place(&target), Epoch(2), None, Way::Up, &Free);
            let needed = file == "manifest-000002" || file.starts_with("segment");
            match result {
                Ok(_) => world.check_whole(&target, &format!("{damage:?} of {name}")),
                Err(CopyError::Source(error)) => {
                    assert!(needed && error.to_string().contains(&file), "{damage:?} of {name}: {error}");
                    assert!(versions(&target).is_empty());
                    assert_eq!(target.used_bytes(), bytes_of(&listing(&target)));
                }
                Err(error) => panic!("{damage:?} of {name}: {error}"),
            }
        }
    }
}

#[test]
fn no_flipped_bit_of_a_segment_travels_in_either_direction() {
    let world = World::new();
    let good = world.tier();
    for (name, len) in listing(&good) {
        let file = name.rsplit_once('/').unwrap().1.to_owned();
        if !file.starts_with("segment") {
            continue;
        }
        // All of the block of headers at the end, and some bytes of each page before it.
        let block = usize::try_from(len).unwrap() - 4096;
        for at in (0..block).step_by(1021).chain((block..block + 4096).step_by(61)) {
            let name = BlobName::new(&name).unwrap();
            for way in [Way::Up, Way::Down] {
                let (model, target) = (world.tier(), Model::new("target"));
                model.damage(&name, Damage::Flip(at));
                let result = copy_version(&place(&model), &place(&target), Epoch(2), None, way, &Free);
                let error = result.expect_err("a flipped bit").to_string();
                assert!(error.contains(&file), "byte {at} of {name}: {error}");
                assert!(versions(&target).is_empty());
            }
        }
    }
}

#[test]
fn what_the_rules_would_remove_goes_first_where_there_is_no_room() {
    let world = World::new();
    // Two images of 64 pages fit, and not the 16 of the next.
    let info = TierInfo { capacity_bytes: Some(560_000), ..Model::new("tier").info().clone() };
    let model = Model::of(info);
    for number in [1, 3] {
        copy_version(world.job.folder(), &place(&model), Epoch(number), None, Way::Down, &Free).unwrap();
    }
    world.settle(&model, &Faults::none());
    assert_eq!(versions(&model), BTreeSet::from([3, 4]));
    world.check_whole(&model, "without room");
}

#[test]
fn a_tier_that_is_too_small_keeps_what_it_has() {
    let world = World::new();
    let info = TierInfo { capacity_bytes: Some(300_000), ..Model::new("tier").info().clone() };
    let model = Model::of(info);
    copy_version(world.job.folder(), &place(&model), Epoch(1), None, Way::Down, &Free).unwrap();
    let cascade = world.cascade(&model, &Faults::none());
    let end = Instant::now() + Duration::from_secs(60);
    while cascade.states()[0].failures < 3 {
        cascade.hurry();
        assert!(Instant::now() < end, "{:?}", cascade.states());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(cascade.states()[0].error.as_ref().is_some_and(|error| error.contains("no space left")));
    assert_eq!(versions(&model), BTreeSet::from([1]));
    world.check_whole(&model, "too small");
}

/// Images 1 to 3 go, by a plan of `holdfast prune`; stops at the first error.
fn prune(model: &Model, faults: &Faults) -> Result<u64, TierError> {
    let tier = Faulty::new(Box::new(model.clone()), faults.clone());
    let place = TierFolder::new(Arc::new(tier), FOLDER).unwrap();
    let survey = hygiene::survey(&place)?;
    let wish = Wish::Rules(Retention { keep: Some(1), ..Retention::default() });
    let holds = TierHolds {
        wish,
        versions: survey.versions.clone(),
        waiting: BTreeSet::new(),
        others: BTreeSet::new(),
        needed: BTreeMap::new(),
    };
    let plan = policy::prune(&[holds], false);
    let going = plan.removals.iter().map(|removal| removal.version).collect();
    hygiene::remove(&place, &survey, &going, &survey.leftovers(&BTreeSet::new()))
}

#[test]
fn a_prune_that_ends_or_fails_at_any_operation_leaves_whole_versions_and_the_next_does_the_rest() {
    let world = World::new();
    let four = || {
        let model = world.tier();
        for number in 3..=4 {
            copy_version(world.job.folder(), &place(&model), Epoch(number), Some(b"{}"), Way::Down, &Free)
                .unwrap();
        }
        model
    };
    let (model, counted) = (four(), Faults::none());
    let before = model.used_bytes();
    assert_eq!(prune(&model, &counted).unwrap(), before - model.used_bytes(), "as much as it says");
    assert_eq!(versions(&model), BTreeSet::from([4]));
    let wanted = listing(&model);
    let down = |object| TierError::Unavailable { object, why: "try later".into() };
    for number in 0..counted.operations() {
        let ways = [
            Faults::stop_at(number),
            Faults::once(number, Fault::Fail(down)),
            Faults::once(number, Fault::LoseAnswer(down)),
        ];
        for faults in ways {
            let model = four();
            let ended = prune(&model, &faults);
            let what = format!("{:?}: {ended:?}", faults.log().get(usize::try_from(number).unwrap()));
            let cuts = (0..3).map(|seed| model.after_power_cut(seed)).collect::<Vec<_>>();
            for after in cuts.into_iter().chain([model]) {
                assert!(versions(&after).contains(&4), "{what}: the newest stays");
                world.check_whole(&after, &what);
                prune(&after, &Faults::none()).unwrap();
                world.check_whole(&after, &what);
                assert_eq!(listing(&after), wanted, "{what}");
                assert_eq!(after.used_bytes(), bytes_of(&wanted), "{what}: nothing is left over");
            }
        }
    }
}

/// As often as it is tried in ten minutes, without the waits: it gets nothing, all that it is to get stays above, what
/// is wrong is said; and when it is well again all is there.
#[test]
fn a_tier_that_is_down_full_or_refuses_for_long_loses_nothing() {
    const TRIES: u32 = 12;
    let world = World::new();
    let down: fn(String) -> TierError = |object| TierError::Unavailable { object, why: "no answer".into() };
    let full: fn(String) -> TierError = |object| TierError::Full { object };
    let denied: fn(String) -> TierError = |object| TierError::Denied { object, why: "no credentials".into() };
    for (error, said) in [(down, "no answer"), (full, "no space left"), (denied, "no credentials")] {
        let (model, faults) = (world.tier(), Faults::none());
        let is_written = |call| matches!(call, Call::Create | Call::Append | Call::Finish | Call::Publish);
        faults.set(move |operation| is_written(operation.call).then_some(Fault::Fail(error)));
        let cascade = world.cascade(&model, &faults);
        for tries in 1..=TRIES {
            let end = Instant::now() + Duration::from_secs(60);
            let is_recorded = || {
                let known = TiersRecord::read(&world.job).tiers.pop();
                known.is_some_and(|known| known.waiting == [3, 4] && known.error.is_some())
            };
            while cascade.states()[0].failures < tries || !is_recorded() {
                assert!(Instant::now() < end, "{said}: {:?}", cascade.states());
                std::thread::sleep(Duration::from_micros(300));
            }
            let state = cascade.states().remove(0);
            assert!(state.error.as_ref().is_some_and(|error| error.contains(said)), "{state:?}");
            assert_eq!(state.waiting, BTreeSet::from([3, 4]), "{said}");
            let rules = LocalRules { keep: Some(1), max_bytes: None };
            assert_eq!(
                cascade.removals(&rules, &|_| false),
                (vec![1, 2], vec![]),
                "{said}: what waits stays"
            );
            // One that is full may have made room.
            assert!(versions(&model).contains(&2), "{said}");
            cascade.hurry();
        }
        faults.set(|_| None);
        cascade.hurry();
        drop(cascade);
        world.settle(&model, &Faults::none());
        assert_eq!(versions(&model), BTreeSet::from([3, 4]), "{said}");
        world.check_whole(&model, said);
    }
}

/// A thread that is about to write down what it knows when the cascade ends, and comes to it after the next one has
/// written: what the next one knows stays.
#[test]
fn nothing_is_written_down_by_threads_of_a_cascade_that_has_ended() {
    let world = World::new();
    let next = TiersRecord { tiers: Vec::new() };
    for _ in 0..400 {
        let (model, is_open) = (world.tier(), Arc::new(()));
        let counted = Arc::clone(&is_open);
        let cascade = world.cascade_by(Arc::new(move |_| {
            let _is_held = &counted;
            Ok(Arc::new(model.clone()) as Arc<dyn Tier>)
        }));
        while cascade.states()[0].versions.is_empty() {
            std::thread::yield_now();
        }
        drop(cascade);
        next.write(&world.job).unwrap();
        while Arc::strong_count(&is_open) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(TiersRecord::read(&world.job), next);
    }
}
