//! Memory above a job's folder: images land in memory, the folder gets them whole, and is enough when memory is gone;
//! what finds no room goes to the folder at once; no memory is ever another job's.

use crate::common::memory::Folder;
use crate::common::{Model, TempDir, read_all};
use crate::stack::{World, settled};
use holdfast_image::Epoch;
use holdfast_tiers::stack::{Cascade, CascadeOptions};
use holdfast_tiers::tier::{LocalTier, TierError};
use holdfast_tiers::{Image, Job, MemoryFirst, Store, TierFolder};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MOST: u64 = 1 << 30;

/// A job that lands in memory, and the folder above that.
fn world(dir: &TempDir, base: &Folder) -> World {
    fs::create_dir_all(&base.0).unwrap();
    let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
    let job = job.with_memory(&base.0).unwrap();
    job.memory().unwrap().limit(MOST);
    World::of(job)
}

fn memory(job: &Job) -> &MemoryFirst {
    job.memory().unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter(|name| name.starts_with("manifest") || name.starts_with("segment")).collect();
    names.sort();
    names
}

/// Copies everything to the folder, and leaves memory but for the newest `keep` images.
fn move_down(job: &Job, keep: usize) {
    let options = CascadeOptions {
        pinned: Default::default(),
        job: job.clone(),
        folder: String::new(),
        keep_in_memory: keep,
        tiers: vec!["local".parse().unwrap()],
        open: Arc::new(|_| Err(TierError::NotFound { object: "not asked for".into() })),
        pack: false,
        on_thread: || (),
        on_failure: Box::new(|_, _| ()),
        on_other: Box::new(|_, _| ()),
        host_of: |_| Some("pfs".into()),
        is_over: Box::new(|| false),
    };
    let states = settled(&Cascade::start(options).unwrap());
    assert!(states[0].error.is_none() && states[0].waiting.is_empty(), "{states:?}");
}

/// As another process sees the job.
fn again(dir: &TempDir) -> Job {
    Store::open(&dir.store()).unwrap().job("job").unwrap()
}

fn check(job: &Job, images: &[(u64, &Model)]) {
    let found: Vec<u64> = job.images().unwrap().iter().map(|image| image.epoch.0).collect();
    assert_eq!(found, images.iter().map(|(number, _)| *number).collect::<Vec<_>>());
    for (number, pages) in images {
        let image = job.open_image(Epoch(*number)).unwrap();
        assert!(read_all(&image).unwrap() == **pages, "image {number}");
    }
}

fn all(world: &World) -> Vec<(u64, &Model)> {
    (1..).zip(&world.then).collect()
}

#[test]
fn images_land_in_memory_move_down_and_outlive_it() {
    let (dir, base) = (TempDir::new(), Folder::new());
    let mut world = world(&dir, &base);
    for _ in 0..3 {
        world.checkpoint();
    }
    assert!(files(world.job.dir()).is_empty() && !files(memory(&world.job).root()).is_empty());
    assert_eq!(world.job.places(Epoch(3)), (true, false));
    check(&again(&dir), &all(&world));
    move_down(&world.job, 1);
    assert_eq!(world.job.places(Epoch(3)), (true, true));
    assert_eq!(world.job.places(Epoch(2)), (false, true));
    check(&world.job, &all(&world));
    // An image that is needed where it is stays there.
    memory(&world.job).pin(Epoch(3));
    assert_eq!(memory(&world.job).trim(0).unwrap(), 0);
    world.checkpoint();
    assert_eq!(world.job.places(Epoch(4)), (true, false));
    // The host was started anew: memory is gone, and image 4 with it.
    fs::remove_dir_all(memory(&world.job).root()).unwrap();
    let job = again(&dir);
    assert!(job.memory().is_none());
    check(&job, &all(&world)[..3]);
}

#[test]
fn what_finds_no_room_goes_to_the_folder_and_what_it_needs_goes_before() {
    // None at all; none for the next segment, nor for what makes it an image.
    for most in [0, 1 << 20] {
        let (dir, base) = (TempDir::new(), Folder::new());
        let mut world = world(&dir, &base);
        world.checkpoint();
        assert!(memory(&world.job).passed_by().is_none());
        memory(&world.job).limit(most);
        for _ in 0..4 {
            world.checkpoint();
        }
        let why = memory(&world.job).passed_by().unwrap();
        assert!(why.contains("no space left"), "{why}");
        check(&world.job, &all(&world));
        fs::remove_dir_all(memory(&world.job).root()).unwrap();
        let job = again(&dir);
        for image in job.images().unwrap() {
            assert!(image.complete, "{most}: {image:?}");
            let pages = read_all(&job.open_image(image.epoch).unwrap()).unwrap();
            assert!(pages == world.then[usize::try_from(image.epoch.0).unwrap() - 1]);
        }
        assert!(job.images().unwrap().iter().any(|image| image.epoch.0 > 1), "{most}");
    }
}

#[test]
fn a_segment_that_has_begun_in_memory_ends_in_the_folder() {
    let (dir, base) = (TempDir::new(), Folder::new());
    let mut world = world(&dir, &base);
    memory(&world.job).limit(1 << 20);
    world.checkpoint();
    assert!(memory(&world.job).passed_by().is_some());
    assert!(files(world.job.dir()).contains(&"segment-000001-000".to_owned()));
    assert!(fs::read_dir(memory(&world.job).root()).unwrap().count() < 6, "nothing half is left");
    check(&again(&dir), &all(&world));
    move_down(&world.job, 0);
    assert_eq!(world.job.places(Epoch(1)), (false, true));
    check(&again(&dir), &all(&world));
}

#[test]
fn what_the_folder_has_makes_room_for_the_next() {
    let (dir, base) = (TempDir::new(), Folder::new());
    let mut world = world(&dir, &base);
    world.checkpoint();
    move_down(&world.job, 1);
    memory(&world.job).limit(memory(&world.job).used() + 1000);
    world.checkpoint();
    assert!(memory(&world.job).passed_by().is_none());
    assert_eq!((world.job.places(Epoch(1)).1, world.job.places(Epoch(2))), (true, (true, false)));
    check(&again(&dir), &all(&world));
}

#[test]
fn a_damaged_copy_in_memory_does_not_count_where_the_folders_is_intact() {
    let (dir, base) = (TempDir::new(), Folder::new());
    let mut world = world(&dir, &base);
    world.checkpoint();
    move_down(&world.job, 1);
    let root: PathBuf = memory(&world.job).root().into();
    let segment = files(&root).into_iter().find(|name| name.starts_with("segment")).unwrap();
    let mut bytes = fs::read(root.join(&segment)).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(root.join(&segment), bytes).unwrap();
    let job = again(&dir);
    check(&job, &all(&world));
    memory(&job).trim(0).unwrap();
    check(&again(&dir), &all(&world));
}

#[test]
fn an_image_that_was_removed_is_nowhere() {
    let (dir, base) = (TempDir::new(), Folder::new());
    let mut world = world(&dir, &base);
    for _ in 0..3 {
        world.checkpoint();
    }
    move_down(&world.job, 2);
    for number in [1, 2] {
        world.job.remove_image(&world.lock, Epoch(number)).unwrap();
        assert_eq!(world.job.places(Epoch(number)), (false, false));
    }
    check(&world.job, &all(&world)[2..]);
    world.job.discard_memory().unwrap();
    check(&again(&dir), &all(&world)[2..]);
}

#[test]
fn no_memory_is_another_jobs() {
    let (dir, base) = (TempDir::new(), Folder::new());
    let mut world = world(&dir, &base);
    world.checkpoint();
    let root: PathBuf = memory(&world.job).root().into();
    // A copy of the store has none, and gets its own.
    let copied = dir.0.join("copy");
    assert!(Command::new("cp").arg("-a").arg(dir.store()).arg(&copied).status().unwrap().success());
    let copy = Store::open(&copied).unwrap().job("job").unwrap();
    assert!(copy.memory().is_none() && copy.images().unwrap().is_empty());
    let copy = copy.with_memory(&base.0).unwrap();
    assert_ne!(memory(&copy).root(), root);
    check(&again(&dir), &all(&world));
    // That of a job that is no more goes when another one gets some.
    fs::remove_dir_all(&copied).unwrap();
    let gone: PathBuf = memory(&copy).root().into();
    drop(copy);
    // Of a store that is gone altogether, it cannot be said that it is not somewhere else.
    let other = Store::open(&dir.store()).unwrap().create_job("other").unwrap();
    let other = other.with_memory(&base.0).unwrap();
    assert!(gone.exists() && memory(&other).root().exists() && root.exists());
    let other_root: PathBuf = memory(&other).root().into();
    fs::remove_dir_all(other.dir()).unwrap();
    let third = || Store::open(&dir.store()).unwrap().create_job("third").unwrap().with_memory(&base.0);
    third().unwrap();
    assert!(other_root.exists(), "somebody writes there");
    drop(other);
    third().unwrap();
    assert!(!other_root.exists() && root.exists(), "a job that is no more");
    check(&again(&dir), &all(&world));
}

/// As in another mount namespace, or while the store is not mounted: what is not seen is not gone. Each of these took
/// the memory of a job, with images that only it had.
#[test]
fn the_memory_of_a_job_that_is_not_seen_stays() {
    let (dir, base) = (TempDir::new(), Folder::new());
    let mut world = world(&dir, &base);
    world.checkpoint();
    let root: PathBuf = memory(&world.job).root().into();
    let elsewhere = Store::open(&dir.0.join("elsewhere")).unwrap();
    let another = |name: &str| drop(elsewhere.create_job(name).unwrap().with_memory(&base.0).unwrap());
    let World { job, lock, then, .. } = world;
    drop((job, lock));
    let away = dir.0.join("away");
    fs::rename(dir.store(), &away).unwrap();
    another("a");
    assert!(root.exists(), "no store is there");
    fs::create_dir_all(dir.store().join("job")).unwrap();
    another("b");
    assert!(root.exists(), "another folder is there");
    fs::remove_dir_all(dir.store()).unwrap();
    fs::rename(&away, dir.store()).unwrap();
    fs::rename(dir.store().join("job"), dir.store().join("renamed")).unwrap();
    another("c");
    assert!(root.exists(), "the job has another name");
    fs::rename(dir.store().join("renamed"), dir.store().join("job")).unwrap();
    check(&again(&dir), &[(1, &then[0])]);
}

/// Memory at another place is a new one; images that the old one had alone are in the folder then.
#[test]
fn memory_that_is_left_leaves_its_images_in_the_folder() {
    let (dir, base, other) = (TempDir::new(), Folder::new(), Folder::new());
    let mut world = world(&dir, &base);
    world.checkpoint();
    let root: PathBuf = memory(&world.job).root().into();
    fs::create_dir_all(&other.0).unwrap();
    let moved = again(&dir).with_memory(&other.0).unwrap();
    assert!(!root.exists() && memory(&moved).root().starts_with(&other.0));
    assert_eq!(moved.places(Epoch(1)), (false, true));
    check(&again(&dir), &all(&world));
}

/// Not a test by itself: moves all down in a process of its own, which dies at the step that it is told.
#[test]
#[ignore = "run by another test"]
fn child() {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let Some(store) = std::env::var_os("TEST_STORE") else { return };
    holdfast_tiers::set_fault_hook(|_| {
        if std::env::var("TEST_STEP").unwrap() == PASSED.fetch_add(1, Ordering::Relaxed).to_string() {
            std::process::exit(77); // no destructor runs
        }
    });
    move_down(&Store::open(Path::new(&store)).unwrap().job("job").unwrap(), 0);
}

/// An agent that dies at any step of the way down leaves all images readable, and in the folder whole ones alone; the
/// next one does the rest, and nothing is left over.
#[test]
fn who_dies_on_the_way_down_loses_nothing() {
    for step in 0.. {
        let (dir, base) = (TempDir::new(), Folder::new());
        let mut world = world(&dir, &base);
        for _ in 0..3 {
            world.checkpoint();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "memory_first::child", "--ignored"]).stdout(std::process::Stdio::null());
        command.env("TEST_STORE", dir.store()).env("TEST_STEP", step.to_string());
        let code = command.status().unwrap().code();
        check(&again(&dir), &all(&world));
        // What would be left if the host went now.
        let below = TierFolder::new(Arc::new(LocalTier::open(again(&dir).dir()).unwrap()), "").unwrap();
        for number in below.inventory().unwrap().versions {
            let image = Image::open(std::slice::from_ref(&below), Epoch(number)).unwrap();
            let then = &world.then[usize::try_from(number).unwrap() - 1];
            assert!(read_all(&image).unwrap() == *then, "step {step}: image {number}");
        }
        world.job.clean(&world.lock).unwrap();
        move_down(&again(&dir), 0);
        assert_eq!(below.inventory().unwrap().versions.len(), 3, "step {step}");
        assert!(files(memory(&world.job).root()).is_empty(), "step {step}: nothing is left in memory");
        let hidden = fs::read_dir(again(&dir).dir()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(hidden.into_iter().all(|name| !name.to_str().unwrap().starts_with('.')), "step {step}");
        fs::remove_dir_all(memory(&world.job).root()).unwrap();
        check(&again(&dir), &all(&world));
        if code == Some(0) {
            // Three pieces, segments and manifests at least, and as many blobs that leave memory.
            assert!(step > 12, "{step} steps");
            return;
        }
        assert_eq!(code, Some(77), "step {step}");
    }
}
