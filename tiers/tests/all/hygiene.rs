//! What is damaged on a tier is found and put back from the others, whatever dies in between; nothing intact is lost.

use crate::common::{
    Content, FOLDER, Free, MemorySource, Model, Narrow, TempDir, commit_record, options, page_of, read_all,
    run,
};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_lab::{Fault, Faults, Faulty};
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::hygiene::{
    Archive, ArchiveError, Mended, Verified, Verify, export, finish_repairs, remove, repair, survey, verify,
};
use holdfast_tiers::policy::SegmentId;
use holdfast_tiers::stack::{Way, copy_version};
use holdfast_tiers::tier::{LocalTier, TierError};
use holdfast_tiers::{HYGIENE_POINTS, Image, Job, PipelineOptions, Store, TierFolder};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A job with three images, on its store and on two lower tiers.
struct World {
    dir: TempDir,
    job: Job,
    then: Vec<Model>,
}

impl World {
    fn new() -> World {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
        job.write_recipe(&serde_json::json!({ "command": ["sim"] })).unwrap();
        let lock = job.lock().unwrap();
        let all: BTreeSet<u64> = (1000..1300).collect();
        let mut pages: Model = Model::new();
        let (mut parent, mut then) = (None, Vec::new());
        for epoch in 1..=3 {
            let dirty: BTreeSet<u64> =
                all.iter().copied().filter(|page| epoch == 1 || page % 10 == epoch).collect();
            let content = |page: u64| if page.is_multiple_of(3) { Content::Text } else { Content::Noise };
            pages.extend(dirty.iter().map(|&page| (page, page_of(content(page), page + 10_000 * epoch))));
            let unchanged = all.difference(&dirty).map(|&page| run(page, 1)).collect();
            let mut writer = job.begin(&lock, Epoch(epoch), parent).unwrap();
            let source = MemorySource::of_model(&pages, &dirty);
            let inherited = Inherited { unchanged, mapped: Vec::new() };
            writer.write_pages(&source, &inherited, &options(1), &|_, _| ()).unwrap();
            parent = Some(writer.commit(commit_record()).unwrap().1);
            then.push(pages.clone());
        }
        let world = World { dir, job, then };
        for root in ["a", "b"] {
            for epoch in 1..=3 {
                let (from, to) = (world.at(""), world.at(root));
                copy_version(&from, &to, Epoch(epoch), Some(b"{}"), Way::Down, &Free).unwrap();
            }
        }
        world
    }

    fn file(&self, root: &str, name: &str) -> PathBuf {
        if root.is_empty() {
            self.job.dir().join(name)
        } else {
            self.dir.0.join(root).join(FOLDER).join(name)
        }
    }

    /// Changes a byte.
    fn flip(&self, root: &str, name: &str, at: u64) {
        let path = self.file(root, name);
        let mut bytes = fs::read(&path).unwrap();
        let at = usize::try_from(at).unwrap() % bytes.len();
        bytes[at] ^= 0x10;
        fs::write(path, bytes).unwrap();
    }

    fn at(&self, root: &str) -> TierFolder {
        at(&self.dir.0, root)
    }

    fn verify(&self, root: &str) -> Verified {
        verify(&self.at(root), &all()).unwrap()
    }

    /// Repairs one tier from the two others.
    fn repair(&self, root: &str) -> Vec<Mended> {
        repair_at(&self.dir.0, root)
    }

    /// Restarts from one tier alone.
    fn reads(&self, root: &str, epoch: u64) -> bool {
        let image = Image::open(&[self.at(root)], Epoch(epoch));
        let pages = image.ok().and_then(|image| read_all(&image).ok());
        pages.is_some_and(|pages| pages == self.then[usize::try_from(epoch).unwrap() - 1])
    }
}

/// The job's folder in the store (""), or on a lower tier.
fn at(dir: &Path, root: &str) -> TierFolder {
    let (path, folder) = match root {
        "" => (dir.join("store/job"), ""),
        root => (dir.join(root), FOLDER),
    };
    TierFolder::new(Arc::new(LocalTier::open(&path).unwrap()), folder).unwrap()
}

fn all() -> Verify<'static> {
    Verify { epoch: None, record: &|_| Ok(()), total: &|_| (), passed: &|_| () }
}

fn repair_at(dir: &Path, root: &str) -> Vec<Mended> {
    let others = ["", "a", "b"].into_iter().filter(|other| *other != root);
    let others: Vec<TierFolder> = others.map(|other| at(dir, other)).collect();
    let found = verify(&at(dir, root), &all()).unwrap();
    repair(&at(dir, root), &others, &found, &|_| Ok(()), &|_| ()).unwrap()
}

#[test]
fn what_is_whole_is_good_and_every_byte_is_counted() {
    let world = World::new();
    for root in ["", "a"] {
        let (total, passed) = (AtomicU64::new(0), AtomicU64::new(0));
        let note_total = |bytes| total.store(bytes, Ordering::Relaxed);
        let note_passed = |bytes| _ = passed.fetch_add(bytes, Ordering::Relaxed);
        let options = Verify { total: &note_total, passed: &note_passed, ..all() };
        let found = verify(&world.at(root), &options).unwrap();
        assert_eq!(found.versions.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(found.findings.is_empty() && found.unneeded.is_empty(), "{found:?}");
        assert!(passed.into_inner() > 0 && total.into_inner() > 0);
    }
    let one = verify(&world.at("a"), &Verify { epoch: Some(Epoch(2)), ..all() }).unwrap();
    assert_eq!(one.versions.len(), 1);
    let none = verify(&world.at("a"), &Verify { epoch: Some(Epoch(9)), ..all() });
    assert!(none.is_err());
}

#[test]
fn damage_is_named_with_its_place_and_with_the_versions_that_need_it() {
    let world = World::new();
    // The first frame of the first image: pages of which the later ones need some.
    world.flip("a", "segment-000001-000", 4097);
    let found = world.verify("a");
    let [finding] = found.findings.as_slice() else { panic!("{found:?}") };
    assert_eq!(finding.file, "segment-000001-000");
    assert!(finding.offset <= 4097 && finding.what.contains("checksum"), "{finding:?}");
    assert!(finding.object.contains("a/job/0123abcd/segment-000001-000"), "{finding:?}");
    assert_eq!(found.damaged(), BTreeSet::from([1, 2, 3]));
    // A segment of the last image is needed by that alone; so is its manifest.
    fs::remove_file(world.file("a", "segment-000003-000")).unwrap();
    world.flip("a", "manifest-000002", 100);
    let found = world.verify("a");
    let of =
        |file: &str| found.findings.iter().find(|finding| finding.file == file).unwrap().versions.clone();
    assert_eq!(of("segment-000003-000"), BTreeSet::from([3]));
    assert_eq!(of("manifest-000002"), BTreeSet::from([2]));
    // What no manifest names any more is told, and is no version's damage.
    fs::write(world.file("b", "segment-000009-000"), [7; 5000]).unwrap();
    let found = world.verify("b");
    assert_eq!(found.unneeded, [("segment-000009-000".to_owned(), 5000)]);
    assert!(found.damaged().is_empty() && found.findings.len() == 1, "{found:?}");
}

#[test]
fn a_tier_is_mended_from_the_others() {
    let world = World::new();
    for root in ["", "a"] {
        world.flip(root, "segment-000001-000", 4097);
        fs::write(world.file(root, "segment-000002-000"), [0; 77]).unwrap();
        fs::remove_file(world.file(root, "segment-000003-000")).unwrap();
        world.flip(root, "manifest-000003", 77);
    }
    fs::write(world.file("a", "job-000001"), "nonsense").unwrap();
    for root in ["", "a"] {
        let mended = world.repair(root);
        assert!(mended.iter().all(|mended| mended.lost.is_none()), "{mended:?}");
        assert_eq!(mended.len(), if root.is_empty() { 4 } else { 5 }, "{mended:?}");
        let found = world.verify(root);
        assert!(
            found.findings.is_empty() && found.unneeded.is_empty() && found.versions.len() == 3,
            "{found:?}"
        );
        assert!((1..=3).all(|epoch| world.reads(root, epoch)));
        for name in fs::read_dir(world.file(root, "x").parent().unwrap()).unwrap() {
            assert!(!name.unwrap().file_name().to_str().unwrap().contains("mended"));
        }
    }
}

#[test]
fn what_no_tier_has_is_lost_by_name_and_nothing_else() {
    let world = World::new();
    for root in ["", "a", "b"] {
        world.flip(root, "segment-000003-000", 10);
    }
    let before = fs::read(world.file("a", "segment-000003-000")).unwrap();
    let mended = world.repair("a");
    let [lost] = mended.as_slice() else { panic!("{mended:?}") };
    assert!(lost.object.ends_with("segment-000003-000") && lost.versions == BTreeSet::from([3]), "{lost:?}");
    assert!(lost.lost.as_ref().unwrap().contains("byte"), "{lost:?}");
    assert_eq!(fs::read(world.file("a", "segment-000003-000")).unwrap(), before, "it is left as it is");
    assert!(world.reads("a", 1) && world.reads("a", 2) && !world.reads("a", 3));
}

/// Another run of the job has the same numbers: its bytes are not mixed with ours.
#[test]
fn another_image_of_the_same_number_is_no_copy() {
    let (world, other) = (World::new(), World::new());
    world.flip("a", "manifest-000001", 90);
    for root in ["", "b"] {
        fs::copy(other.file(root, "manifest-000001"), world.file(root, "manifest-000001")).unwrap();
    }
    let mended = world.repair("a");
    assert!(
        mended.iter().any(|m| m.lost.as_ref().is_some_and(|why| why.contains("another run"))),
        "{mended:?}"
    );
    // And a segment of another run is damage, which the right one replaces.
    let world = World::new();
    fs::copy(other.file("a", "segment-000001-000"), world.file("a", "segment-000001-000")).unwrap();
    assert_eq!(world.verify("a").damaged(), BTreeSet::from([1, 2, 3]));
    assert!(world.repair("a").iter().all(|mended| mended.lost.is_none()));
    assert!((1..=3).all(|epoch| world.reads("a", epoch)));
}

/// Runs [`act_in_child`] to its death at a fault point.
fn in_child(dir: &Path, point: &str) -> Option<i32> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--ignored", "--exact", "hygiene::act_in_child"])
        .env("TEST_DIR", dir)
        .env("TEST_POINT", point);
    command.output().unwrap().status.code()
}

#[test]
#[ignore = "run by the test below, to be killed"]
fn act_in_child() {
    let dir = PathBuf::from(std::env::var("TEST_DIR").unwrap());
    holdfast_tiers::set_fault_hook(|name| {
        if std::env::var("TEST_POINT").unwrap() == name {
            std::process::exit(77);
        }
    });
    match std::env::var("TEST_POINT").unwrap().split_once('-').unwrap().0 {
        "repair" => drop(repair_at(&dir, "a")),
        "prune" => drop(prune(&dir, &[1, 2])),
        _ => unpack(&fs::read(dir.join("file")).unwrap(), &at(&dir, "back")).unwrap(),
    }
}

/// Removes versions from a lower tier.
fn prune(dir: &Path, versions: &[u64]) -> u64 {
    let folder = at(dir, "a");
    let survey = survey(&folder).unwrap();
    remove(&folder, &survey, &versions.iter().copied().collect(), &survey.loose()).unwrap()
}

fn export_of(folder: &TierFolder, epoch: u64) -> Vec<u8> {
    let mut file = Vec::new();
    let bytes = export(folder, Epoch(epoch), b"{}", &mut file, (&|_| (), &|_| ())).unwrap();
    assert_eq!(bytes, file.len() as u64);
    file
}

fn unpack(mut file: &[u8], to: &TierFolder) -> Result<(), ArchiveError> {
    let archive = Archive::open(&mut file, &|_| Ok(()))?;
    assert_eq!(archive.origin(), b"{}");
    archive.unpack(to, &|_| ())
}

#[test]
fn a_version_becomes_a_file_and_a_version_again() {
    let world = World::new();
    for (root, epoch) in [("", 1), ("a", 3)] {
        let file = export_of(&world.at(root), epoch);
        let back = World { dir: TempDir::new(), job: world.job.clone(), then: world.then.clone() };
        unpack(&file, &back.at("back")).unwrap();
        assert!(back.reads("back", epoch));
        assert!(verify(&back.at("back"), &all()).unwrap().findings.is_empty());
        assert_eq!(export_of(&back.at("back"), epoch), file);
    }
    // What is damaged is not exported.
    world.flip("b", "segment-000001-000", 4097);
    let failed = export(&world.at("b"), Epoch(3), b"{}", &mut Vec::new(), (&|_| (), &|_| ()));
    assert!(failed.unwrap_err().to_string().contains("segment-000001-000"));
}

#[test]
fn a_file_that_is_damaged_or_hostile_becomes_nothing() {
    let world = World::new();
    let file = export_of(&world.at(""), 2);
    let to = TierFolder::new(Arc::new(holdfast_lab::Model::new("model")), FOLDER).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        let error = unpack(bytes, &to).expect_err(what);
        assert!(matches!(error, ArchiveError::Bad { .. }), "{what}: {error}");
        assert_eq!(to.inventory().unwrap(), Default::default(), "{what}");
    };
    for at in (0..file.len()).step_by(file.len() / 60).chain(0..64).chain(file.len() - 64..file.len()) {
        let mut bytes = file.clone();
        bytes[at] ^= 4;
        // Padding between frames has no meaning, but the part has a checksum.
        refused(&bytes, &format!("byte {at}"));
        refused(&file[..at], &format!("{at} bytes"));
    }
    let mut longer = file.clone();
    longer.push(0);
    refused(&longer, "a byte more");
    refused(&fs::read(world.file("", "manifest-000001")).unwrap(), "a manifest");
    // A length that is only claimed.
    let mut claims = file;
    claims[64 + 24..64 + 32].copy_from_slice(&u64::MAX.to_le_bytes());
    let sum = xxhash_rust::xxh3::xxh3_64(&claims[64..64 + 56]);
    claims[64 + 56..128].copy_from_slice(&sum.to_le_bytes());
    refused(&claims, "an origin of so many bytes");
}

fn golden() -> PathBuf {
    crate::golden::golden("export-v3").join("image-000002")
}

/// The golden images of version 3, in a folder of their own.
fn golden_folder(dir: &Path) -> TierFolder {
    let from = crate::golden::golden("v3");
    let to = at(dir, "golden");
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = to.blob(entry.file_name().to_str().unwrap()).unwrap();
        to.tier().publish(&name, &fs::read(entry.path()).unwrap()).unwrap();
    }
    to
}

#[test]
fn the_golden_file_is_read_and_written_as_ever() {
    let dir = TempDir::new();
    let file = fs::read(golden()).unwrap();
    unpack(&file, &at(&dir.0, "back")).unwrap();
    assert!(verify(&at(&dir.0, "back"), &all()).unwrap().findings.is_empty());
    assert!(export_of(&golden_folder(&dir.0), 2) == file);
}

#[test]
#[ignore = "writes the golden file, once"]
fn write_golden_export() {
    assert!(!golden().exists(), "released bytes do not change");
    let dir = TempDir::new();
    fs::create_dir_all(golden().parent().unwrap()).unwrap();
    fs::write(golden(), export_of(&golden_folder(&dir.0), 2)).unwrap();
}

#[test]
fn an_import_that_is_killed_leaves_no_version() {
    for point in ["import-segment", "import-manifest"] {
        let world = World::new();
        fs::write(world.dir.0.join("file"), export_of(&world.at(""), 3)).unwrap();
        assert_eq!(in_child(&world.dir.0, point), Some(77), "{point}");
        let there = world.at("back").inventory().unwrap();
        assert_eq!(there.versions.len(), usize::from(point == "import-manifest"), "{point}");
    }
}

#[test]
fn a_prune_says_what_it_makes_free_and_leaves_what_others_need() {
    let world = World::new();
    let size = |root: &str| {
        let names = fs::read_dir(world.file(root, "x").parent().unwrap()).unwrap();
        names.map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let before = size("a");
    fs::write(world.file("a", "segment-000009-000"), [7; 5000]).unwrap();
    let young = survey(&world.at("a")).unwrap();
    assert!(young.leftovers(&BTreeSet::new()).is_empty(), "another host may be writing it");
    assert_eq!(young.loose(), [("segment-000009-000".to_owned(), 5000)]);
    let freed = prune(&world.dir.0, &[1, 2]);
    assert_eq!(before - size("a"), freed - 5000);
    assert!(world.reads("a", 3) && !world.reads("a", 1));
    let left = world.verify("a");
    assert!(left.findings.is_empty() && left.unneeded.is_empty() && left.versions.len() == 1, "{left:?}");
    prune(&world.dir.0, &[3]);
    assert_eq!(world.at("a").inventory().unwrap(), Default::default());
}

#[test]
fn a_prune_that_is_killed_has_removed_no_part_of_what_stays() {
    for point in ["prune-manifest", "prune-recipe", "prune-segment", "prune-leftover"] {
        let world = World::new();
        fs::write(world.file("a", "segment-000009-000"), [7; 5000]).unwrap();
        // The first image is of other segments than the last: something has to go.
        for name in ["manifest-000002", "manifest-000003"] {
            if point == "prune-segment" {
                fs::remove_file(world.file("a", name)).unwrap();
            }
        }
        assert_eq!(in_child(&world.dir.0, point), Some(77), "{point}");
        let left = survey(&world.at("a")).unwrap();
        assert!(left.versions.iter().all(|held| held.whole), "{point}");
        prune(&world.dir.0, &[1, 2]);
        let found = world.verify("a");
        assert!(found.findings.is_empty() && found.unneeded.is_empty(), "{point}: {found:?}");
    }
}

#[test]
fn a_repair_that_is_killed_is_finished_and_leaves_nothing() {
    for point in HYGIENE_POINTS.iter().filter(|point| point.starts_with("repair")) {
        for file in ["segment-000001-000", "manifest-000002", "job-000003"] {
            let world = World::new();
            world.flip("a", file, 0);
            assert_eq!(in_child(&world.dir.0, point), Some(77), "{point} {file}");
            finish_repairs(&world.at("a")).unwrap();
            let names: Vec<String> = fs::read_dir(world.file("a", "x").parent().unwrap())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            assert!(!names.iter().any(|name| name.contains("mended") || name.starts_with('.')), "{names:?}");
            let found = world.verify("a");
            assert!(found.findings.is_empty() && found.versions.len() == 3, "{point} {file}: {found:?}");
            assert!((1..=3).all(|epoch| world.reads("a", epoch)), "{point} {file}");
        }
    }
}

#[test]
fn an_import_that_fails_at_any_operation_leaves_nothing() {
    let world = World::new();
    let mut file = Vec::new();
    export(&world.at(""), Epoch(3), b"{}", &mut file, (&|_| (), &|_| ())).unwrap();
    let place = |model: &holdfast_lab::Model, faults: &Faults| {
        let tier = Faulty::new(Box::new(model.clone()), faults.clone());
        TierFolder::new(Arc::new(tier), FOLDER).unwrap()
    };
    let import = |to: &TierFolder| {
        Archive::open(&mut &file[..], &|_| Ok(())).and_then(|archive| archive.unpack(to, &|_| ()))
    };
    let counted = Faults::none();
    import(&place(&holdfast_lab::Model::new("model"), &counted)).unwrap();
    assert!(counted.operations() >= 10, "{:?}", counted.log());
    let down = |object| TierError::Unavailable { object, why: "a fault of a test".into() };
    for number in 0..counted.operations() {
        for fault in [Fault::Fail(down), Fault::LoseAnswer(down)] {
            let (model, faults) = (holdfast_lab::Model::new("model"), Faults::once(number, fault));
            let ended = import(&place(&model, &faults));
            let what = format!("{fault:?} of {:?}: {ended:?}", faults.log().get(number as usize));
            assert!(ended.is_err(), "{what}");
            for after in [model.clone(), model.after_power_cut(1)] {
                let left = place(&after, &Faults::none()).inventory().unwrap();
                assert_eq!(left, Default::default(), "{what}");
            }
        }
    }
}

/// Two images of text in raw frames, in the store and packed on the tier "a".
fn packed_world() -> World {
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
    job.write_recipe(&serde_json::json!({ "command": ["sim"] })).unwrap();
    let lock = job.lock().unwrap();
    let (mut parent, mut then) = (None, Vec::new());
    let all: BTreeSet<u64> = (1000..1700).collect();
    let mut pages: Model = Model::new();
    for epoch in 1..=2 {
        let dirty: BTreeSet<u64> = all.iter().copied().filter(|page| epoch == 1 || *page < 1100).collect();
        pages.extend(dirty.iter().map(|&page| (page, page_of(Content::Text, page + 10_000 * epoch))));
        let unchanged = all.difference(&dirty).map(|&page| run(page, 1)).collect();
        let mut writer = job.begin(&lock, Epoch(epoch), parent).unwrap();
        let raw = PipelineOptions { compression: Compression::By(Codec::Raw), ..options(1) };
        let inherited = Inherited { unchanged, mapped: Vec::new() };
        writer.write_pages(&MemorySource::of_model(&pages, &dirty), &inherited, &raw, &|_, _| ()).unwrap();
        parent = Some(writer.commit(commit_record()).unwrap().1);
        then.push(pages.clone());
    }
    let world = World { dir, job, then };
    for epoch in 1..=2 {
        let (from, to) = (world.at(""), world.at("a"));
        copy_version(&from, &to, Epoch(epoch), Some(b"{}"), Way::Down, &Narrow::default()).unwrap();
    }
    for segment in ["segment-000001-000", "segment-000002-000"] {
        let len = |root| fs::metadata(world.file(root, segment)).unwrap().len();
        assert!(len("a") < len("") / 2, "{segment} is packed");
    }
    world
}

#[test]
fn packed_segments_are_whole_versions_for_a_plan_and_count_as_what_they_take() {
    let world = packed_world();
    let found = survey(&world.at("a")).unwrap();
    assert!(found.versions.len() == 2 && found.versions.iter().all(|held| held.whole));
    let on_disk: u64 = fs::read_dir(world.file("a", "x").parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    let parts: BTreeMap<SegmentId, u64> = found.versions.iter().flat_map(|held| held.parts.clone()).collect();
    assert_eq!(parts.values().sum::<u64>(), on_disk);
    let told = verify(&world.at("a"), &all()).unwrap();
    assert!(told.findings.is_empty() && told.unneeded.is_empty(), "{told:?}");
    // One that cannot be unpacked is none.
    let path = world.file("a", "segment-000002-000");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let whole = survey(&world.at("a")).unwrap().versions.iter().map(|held| held.whole).collect::<Vec<_>>();
    assert_eq!(whole, [true, false]);
}

#[test]
fn what_is_packed_is_put_back_whole_from_the_store_and_the_store_from_it() {
    let world = packed_world();
    let (from, to) = (world.at(""), world.at("a"));
    for segment in ["segment-000001-000", "segment-000002-000"] {
        let good = fs::read(world.file("", segment)).unwrap();
        let packed = fs::read(world.file("a", segment)).unwrap();
        for at in [100, packed.len() as u64 / 2, packed.len() as u64 - 100, packed.len() as u64 - 10] {
            world.flip("a", segment, at);
            let found = verify(&to, &all()).unwrap();
            assert!(!found.findings.is_empty(), "{segment} byte {at}");
            repair(&to, std::slice::from_ref(&from), &found, &|_| Ok(()), &|_| ()).unwrap();
            assert_eq!(fs::read(world.file("a", segment)).unwrap(), good, "{segment} byte {at}");
            fs::write(world.file("a", segment), &packed).unwrap();
        }
        world.flip("", segment, good.len() as u64 / 2);
        let found = verify(&from, &all()).unwrap();
        repair(&from, std::slice::from_ref(&to), &found, &|_| Ok(()), &|_| ()).unwrap();
        assert_eq!(fs::read(world.file("", segment)).unwrap(), good);
        // What a crash has left beside a packed one that cannot be unpacked takes its place.
        fs::write(world.file("a", &format!("mended-{segment}")), &good).unwrap();
        world.flip("a", segment, packed.len() as u64 - 10);
        finish_repairs(&to).unwrap();
        assert_eq!(fs::read(world.file("a", segment)).unwrap(), good);
    }
    assert!((1..=2).all(|epoch| world.reads("a", epoch) && world.reads("", epoch)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    /// Any bytes of any blob on any two tiers: as long as the third is whole, all is whole again; and whatever
    /// happens, what one tier could read it can still read.
    #[test]
    fn any_damage_that_leaves_one_copy_is_mended(
        flips in prop::collection::vec((0..3_usize, 0..6_usize, any::<u32>()), 1..12),
        spare in 0..4_usize,
    ) {
        let world = World::new();
        let files = ["segment-000001-000", "segment-000002-000", "segment-000003-000",
            "manifest-000001", "manifest-000002", "manifest-000003"];
        for (root, file, at) in flips {
            if root != spare {
                world.flip(["", "a", "b"][root], files[file], at.into());
            }
        }
        let read = |root: &str| (1..=3).map(|epoch| world.reads(root, epoch)).collect::<Vec<_>>();
        let before = ["", "a", "b"].map(read);
        for root in ["", "a", "b", ""] {
            world.repair(root);
        }
        for (root, before) in ["", "a", "b"].into_iter().zip(before) {
            for (epoch, (before, after)) in (1..).zip(before.into_iter().zip(read(root))) {
                prop_assert!(after || !before, "image {} on {:?} was lost", epoch, root);
                prop_assert!(after || spare > 2, "image {} on {:?}", epoch, root);
            }
        }
    }
}
