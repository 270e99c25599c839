//! Versions on several tiers: they move down as the rules say, come back whole, and nothing half is ever there,
//! whatever fails, or dies, in between.

use crate::common::{
    Content, FOLDER, Free, MemorySource, Model, Narrow, TempDir, commit_record, options, page_of, read_all,
    run,
};
use holdfast_image::Epoch;
use holdfast_image::pages::Inherited;
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::stack::{
    Activity, Cascade, CascadeOptions, CopyError, LocalRules, Pace, TierRecord, TierSpec, TierState,
    TiersRecord, Way, copy_version,
};
use holdfast_tiers::tier::{LocalTier, Tier, TierError};
use holdfast_tiers::{
    Image, Job, JobLock, Lineage, PipelineOptions, STACK_POINTS, Store, TierFolder, hygiene,
};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A job of which each image changes a tenth of 600 pages.
pub struct World {
    pub job: Job,
    pub lock: JobLock,
    parent: Option<Arc<Lineage>>,
    pages: Model,
    /// Its content at each image.
    pub then: Vec<Model>,
}

impl World {
    fn new(store: &Path) -> World {
        World::of(Store::open(store).unwrap().create_job("job").unwrap())
    }

    pub fn of(job: Job) -> World {
        job.write_recipe(&serde_json::json!({ "command": ["sim"] })).unwrap();
        let lock = job.lock().unwrap();
        let pages = (1000..1600).map(|page| (page, page_of(Content::Noise, page))).collect();
        World { job, lock, parent: None, pages, then: Vec::new() }
    }

    pub fn checkpoint(&mut self) -> u64 {
        let epoch = self.job.next_epoch().unwrap();
        let dirty: BTreeSet<u64> = match &self.parent {
            None => (1000..1600).collect(),
            Some(_) => (1000..1600).filter(|page| page % 10 == epoch.0 % 10).collect(),
        };
        for page in &dirty {
            self.pages.insert(*page, page_of(Content::Noise, page + 10_000 * epoch.0));
        }
        let unchanged = (1000..1600).filter(|page| !dirty.contains(page)).map(|page| run(page, 1)).collect();
        let mut writer = self.job.begin(&self.lock, epoch, self.parent.clone()).unwrap();
        let source = MemorySource::of_model(&self.pages, &dirty);
        let inherited = Inherited { unchanged, mapped: Vec::new() };
        writer.write_pages(&source, &inherited, &options(1), &|_, _| ()).unwrap();
        let (_, lineage) = writer.commit(commit_record()).unwrap();
        self.parent = Some(lineage);
        self.then.push(self.pages.clone());
        epoch.0
    }

    /// The next image stores all pages.
    pub fn build_on_nothing(&mut self) {
        self.parent = None;
    }

    pub fn checkpoints(store: &Path, count: u64) -> World {
        let mut world = World::new(store);
        assert_eq!((0..count).map(|_| world.checkpoint()).last(), Some(count));
        world
    }
}

/// The job's folder on the tier there.
pub fn at(root: &Path) -> TierFolder {
    TierFolder::new(Arc::new(LocalTier::open(root).unwrap()), FOLDER).unwrap()
}

pub fn open_at(root: &Path) -> impl Fn(&TierSpec) -> Result<Arc<dyn Tier>, TierError> + use<> {
    let root = root.to_owned();
    move |_| Ok(Arc::new(LocalTier::open(&root).unwrap()) as Arc<dyn Tier>)
}

pub fn cascade(
    job: &Job,
    rules: &[&str],
    open: impl Fn(&TierSpec) -> Result<Arc<dyn Tier>, TierError> + Send + Sync + 'static,
) -> Cascade {
    start(job, rules, open, |_| (), false)
}

/// One of a run that has come to its end.
fn cascade_at_the_end(job: &Job, root: &Path) -> Cascade {
    start(job, &["pfs"], open_at(root), |_| (), true)
}

/// One whose tier's other images are told.
pub fn cascade_that_tells(
    job: &Job,
    rules: &str,
    open: impl Fn(&TierSpec) -> Result<Arc<dyn Tier>, TierError> + Send + Sync + 'static,
    tell: impl Fn(u64) + Send + Sync + 'static,
) -> Cascade {
    start(job, &[rules], open, tell, false)
}

fn start(
    job: &Job,
    rules: &[&str],
    open: impl Fn(&TierSpec) -> Result<Arc<dyn Tier>, TierError> + Send + Sync + 'static,
    tell: impl Fn(u64) + Send + Sync + 'static,
    is_over: bool,
) -> Cascade {
    let tiers = rules.iter().map(|rules| format!("dir=/{rules}").parse().unwrap()).collect();
    let options = CascadeOptions {
        job: job.clone(),
        folder: FOLDER.into(),
        keep_in_memory: 1,
        tiers,
        pinned: Default::default(),
        open: Arc::new(open),
        pack: false,
        on_thread: || (),
        on_failure: Box::new(|_, _| ()),
        on_other: Box::new(move |_, other| tell(other.image)),
        host_of: |_| Some("pfs".into()),
        is_over: Box::new(move || is_over),
    };
    Cascade::start(options).unwrap()
}

fn until(cascade: &Cascade, what: &str, enough: impl Fn(&[TierState]) -> bool) -> Vec<TierState> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let states = cascade.states();
        if enough(&states) {
            return states;
        }
        assert!(Instant::now() < end, "{what}: {states:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn settled(cascade: &Cascade) -> Vec<TierState> {
    let end = Instant::now() + Duration::from_secs(60);
    while cascade.is_busy() {
        assert!(Instant::now() < end, "{:?}", cascade.states());
        std::thread::sleep(Duration::from_millis(2));
    }
    cascade.states()
}

/// What is known of the first tier is written down a moment later.
fn recorded(job: &Job, enough: impl Fn(&TierRecord) -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !TiersRecord::read(job).tiers.first().is_some_and(&enough) {
        assert!(Instant::now() < end, "{:?}", TiersRecord::read(job));
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn numbers(versions: &BTreeSet<u64>) -> Vec<u64> {
    versions.iter().copied().collect()
}

/// Takes a version back into a store that has nothing, and compares it.
pub fn comes_back(root: &Path, store: &Path, epoch: u64, then: &Model) {
    let job = Store::open(store).unwrap().create_job("job").unwrap();
    let from = at(root);
    copy_version(&from, job.folder(), Epoch(epoch), None, Way::Up, &Free).unwrap();
    let image = job.open_image(Epoch(epoch)).unwrap();
    image.verify(&|_| ()).unwrap();
    assert!(read_all(&image).unwrap() == *then);
    assert!(from.recipe(Epoch(epoch)).unwrap().starts_with(b"{"));
}

fn segments(root: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(root.join(FOLDER))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("segment"))
        .collect();
    names.sort();
    names
}

#[test]
fn versions_move_down_and_come_back() {
    let dir = TempDir::new();
    let mut world = World::checkpoints(&dir.store(), 2);
    let root = dir.0.join("pfs");
    let cascade = cascade(&world.job, &["pfs"], open_at(&root));
    assert_eq!(numbers(&settled(&cascade)[0].versions), [1, 2]);
    world.checkpoint();
    cascade.wake();
    assert_eq!(numbers(&settled(&cascade)[0].versions), [1, 2, 3]);
    recorded(&world.job, |tier| tier.tier == "dir=/pfs" && tier.versions == [1, 2, 3]);
    for epoch in 1..=3 {
        let store = dir.0.join(format!("back-{epoch}"));
        comes_back(&root, &store, epoch, &world.then[epoch as usize - 1]);
    }
    // A damaged or missing segment is replaced by the good one.
    let store = dir.0.join("back-3");
    let mut names = fs::read_dir(store.join("job")).unwrap().map(|entry| entry.unwrap().path());
    let segment = names.find(|path| path.to_str().unwrap().contains("segment-000001")).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    fs::write(store.join("job/manifest-000003"), "not a manifest").unwrap();
    comes_back(&root, &store, 3, &world.then[2]);
}

#[test]
fn a_tier_is_told_that_the_run_has_come_to_its_end_and_that_it_goes_on() {
    let dir = TempDir::new();
    let mut world = World::checkpoints(&dir.store(), 2);
    let root = dir.0.join("pfs");
    settled(&cascade(&world.job, &["pfs"], open_at(&root)));
    assert!(!at(&root).inventory().unwrap().is_over());
    settled(&cascade_at_the_end(&world.job, &root));
    assert!(at(&root).inventory().unwrap().is_over());
    // A host that has older images alone says nothing of it.
    let old = World::checkpoints(&dir.0.join("old"), 1);
    settled(&cascade(&old.job, &["pfs"], open_at(&root)));
    assert!(at(&root).inventory().unwrap().is_over());
    world.checkpoint();
    settled(&cascade(&world.job, &["pfs"], open_at(&root)));
    let there = at(&root).inventory().unwrap();
    assert!(!there.is_over() && there.ends.is_empty(), "{there:?}");
    settled(&cascade_at_the_end(&world.job, &root));
    let survey = hygiene::survey(&at(&root)).unwrap();
    hygiene::remove(&at(&root), &survey, &BTreeSet::from([1, 2, 3]), &survey.loose()).unwrap();
    assert!(at(&root).inventory().unwrap().ends.is_empty(), "it goes with its image");
}

#[test]
fn a_tier_takes_and_keeps_what_its_rules_say() {
    let dir = TempDir::new();
    let mut world = World::checkpoints(&dir.store(), 3);
    let roots = [dir.0.join("a"), dir.0.join("b")];
    let both = roots.clone();
    let open = move |spec: &TierSpec| {
        let root = &both[usize::from(spec.name() == "dir=/b")];
        Ok(Arc::new(LocalTier::open(root).unwrap()) as Arc<dyn Tier>)
    };
    let cascade = cascade(&world.job, &["a,keep=2", "b,every=2"], open);
    let states = settled(&cascade);
    assert_eq!((numbers(&states[0].versions), numbers(&states[1].versions)), (vec![2, 3], vec![2]));
    for _ in 4..=6 {
        world.checkpoint();
        cascade.wake();
        settled(&cascade);
    }
    let states = settled(&cascade);
    assert_eq!((numbers(&states[0].versions), numbers(&states[1].versions)), (vec![5, 6], vec![2, 4, 6]));
    for root in &roots {
        comes_back(root, &root.with_extension("back"), 6, &world.then[5]);
        let named = root.with_extension("back").join("job");
        let needed = fs::read_dir(named).unwrap().count();
        assert!(segments(root).len() + 2 >= needed, "{needed}");
    }
    // Versions 1 to 4 are gone from the first; so are segments that only they named.
    let only_these = BTreeSet::from(["manifest-000005", "manifest-000006", "job-000005", "job-000006"]);
    let names = fs::read_dir(roots[0].join(FOLDER)).unwrap().map(|entry| entry.unwrap().file_name());
    let others: Vec<_> = names.filter(|name| !name.to_str().unwrap().starts_with("segment")).collect();
    assert_eq!(others.len(), only_these.len(), "{others:?}");
}

#[test]
fn what_waits_for_a_lower_tier_stays_above() {
    let dir = TempDir::new();
    let world = World::checkpoints(&dir.store(), 3);
    let reachable = Arc::new(AtomicBool::new(false));
    let (root, door) = (dir.0.join("pfs"), Arc::clone(&reachable));
    let open = move |_: &TierSpec| match door.load(Ordering::SeqCst) {
        true => Ok(Arc::new(LocalTier::open(&root).unwrap()) as Arc<dyn Tier>),
        false => Err(TierError::Unavailable { object: "dir=/pfs".into(), why: "no answer".into() }),
    };
    let cascade = cascade(&world.job, &["pfs,every=2"], open);
    until(&cascade, "a failure", |states| states[0].failures > 0);
    assert!(!cascade.is_busy(), "what failed is not waited for");
    let rules = LocalRules { keep: Some(1), max_bytes: None };
    assert_eq!(cascade.removals(&rules, &|_| false), (vec![1], vec![]));
    let tight = LocalRules { keep: Some(1), max_bytes: Some(1) };
    assert_eq!(cascade.removals(&tight, &|_| false), (vec![1, 2], vec![2]));
    assert_eq!(cascade.removals(&tight, &|number| number == 1), (vec![2], vec![2]));
    recorded(&world.job, |tier| tier.error.as_ref().is_some_and(|error| error.contains("no answer")));
    reachable.store(true, Ordering::SeqCst);
    cascade.hurry();
    let states = until(&cascade, "version 2", |states| states[0].versions.contains(&2));
    assert!(states[0].waiting.is_empty() || states[0].activity != Activity::Idle);
    settled(&cascade);
    assert_eq!(cascade.removals(&rules, &|_| false), (vec![1, 2], vec![]));
    recorded(&world.job, |tier| tier.error.is_none() && tier.versions == [2]);
}

#[test]
fn a_damaged_image_does_not_move_and_holds_up_no_other() {
    let dir = TempDir::new();
    let world = World::checkpoints(&dir.store(), 2);
    // The second image's own segment.
    let segment = world.job.dir().join("segment-000002-000");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let root = dir.0.join("pfs");
    let cascade = cascade(&world.job, &["pfs"], open_at(&root));
    let states = settled(&cascade);
    assert_eq!(numbers(&states[0].versions), [1]);
    let error = states[0].error.clone().unwrap();
    assert!(error.contains("image 2 stays") && error.contains("segment-000002-000"), "{error}");
    assert_eq!(segments(&root), ["segment-000001-000"]);
}

#[test]
fn another_job_of_the_same_folder_is_left_alone() {
    let dir = TempDir::new();
    let root = dir.0.join("pfs");
    let one = World::checkpoints(&dir.store(), 2);
    let first = cascade(&one.job, &["pfs"], open_at(&root));
    settled(&first);
    let other = World::checkpoints(&dir.0.join("other"), 3);
    let second = cascade(&other.job, &["pfs"], open_at(&root));
    let states = settled(&second);
    assert!(states[0].error.as_ref().unwrap().contains("there is another one"), "{states:?}");
    assert_eq!((numbers(&states[0].versions), numbers(&states[0].waiting)), (vec![], vec![1, 2, 3]));
    comes_back(&root, &dir.0.join("back"), 2, &one.then[1]);
}

/// Fails each call that would change something, but for every so-many-th.
struct Failing {
    inner: LocalTier,
    calls: Arc<AtomicU32>,
    every: u32,
}

impl Failing {
    fn fails(&self) -> Result<(), TierError> {
        match self.calls.fetch_add(1, Ordering::SeqCst) % self.every {
            0 => Ok(()),
            _ => Err(TierError::Unavailable { object: "dir=/pfs".into(), why: "try later".into() }),
        }
    }
}

impl Tier for Failing {
    fn info(&self) -> &holdfast_tiers::tier::TierInfo {
        self.inner.info()
    }
    fn list(&self, folder: &str) -> Result<holdfast_tiers::tier::Listing, TierError> {
        self.inner.list(folder)
    }
    fn open(
        &self,
        name: &holdfast_tiers::tier::BlobName,
    ) -> Result<Box<dyn holdfast_tiers::tier::Blob>, TierError> {
        self.inner.open(name)
    }
    fn create(
        &self,
        name: &holdfast_tiers::tier::BlobName,
        expected: Option<u64>,
    ) -> Result<Box<dyn holdfast_tiers::tier::BlobWriter>, TierError> {
        self.fails()?;
        self.inner.create(name, expected)
    }
    fn publish(&self, name: &holdfast_tiers::tier::BlobName, bytes: &[u8]) -> Result<(), TierError> {
        self.fails()?;
        self.inner.publish(name, bytes)
    }
    fn remove(&self, name: &holdfast_tiers::tier::BlobName) -> Result<(), TierError> {
        self.fails()?;
        self.inner.remove(name)
    }
    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.inner.clean(folder)
    }
}

#[test]
fn what_fails_is_tried_again_until_all_is_there() {
    let dir = TempDir::new();
    let world = World::checkpoints(&dir.store(), 4);
    let (root, calls) = (dir.0.join("pfs"), Arc::new(AtomicU32::new(1)));
    let at = root.clone();
    let open = move |_: &TierSpec| {
        let (inner, calls) = (LocalTier::open(&at).unwrap(), Arc::clone(&calls));
        Ok(Arc::new(Failing { inner, calls, every: 3 }) as Arc<dyn Tier>)
    };
    let cascade = cascade(&world.job, &["pfs,keep=2"], open);
    let end = Instant::now() + Duration::from_secs(60);
    while cascade.states()[0].versions.len() < 2 || cascade.states()[0].activity != Activity::Idle {
        cascade.hurry();
        assert!(Instant::now() < end, "{:?}", cascade.states());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(numbers(&cascade.states()[0].versions), [3, 4]);
    comes_back(&root, &dir.0.join("back"), 4, &world.then[3]);
}

fn in_child(store: &Path, root: &Path, action: &str) -> Option<i32> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "stack::child", "--ignored", "--nocapture"]).stdout(std::process::Stdio::null());
    command.env("TEST_STORE", store).env("TEST_ROOT", root).env("TEST_ACTION", action);
    command.status().unwrap().code()
}

/// Not a test by itself: the part that runs in a process of its own, and dies at the point that it is told.
#[test]
#[ignore = "run by other tests"]
fn child() {
    let Some(store) = std::env::var_os("TEST_STORE") else { return };
    let root = PathBuf::from(std::env::var_os("TEST_ROOT").unwrap());
    holdfast_tiers::set_fault_hook(|name| {
        if std::env::var("TEST_ACTION").unwrap() == name {
            std::process::exit(77); // no destructor runs
        }
    });
    let job = Store::open(Path::new(&store)).unwrap().create_job("job").unwrap();
    if std::env::var("TEST_ACTION").unwrap().starts_with("fetch") {
        let from = at(&root);
        let recipe = from.recipe(Epoch(3)).unwrap();
        copy_version(&from, job.folder(), Epoch(3), Some(&recipe), Way::Up, &Free).unwrap();
    } else {
        settled(&cascade(&job, &["pfs,keep=2"], open_at(&root)));
    }
}

/// What is published is whole, the rest is finished later, and nothing is left over.
#[test]
fn a_crash_at_any_step_costs_nothing_but_time() {
    // What leaves memory has a test of its own.
    for point in STACK_POINTS.iter().filter(|point| !point.starts_with("memory")) {
        let dir = TempDir::new();
        let (root, store) = (dir.0.join("pfs"), dir.store());
        let mut world = World::checkpoints(&store, 2);
        let versions = |root: &Path| at(root).inventory().unwrap().versions;
        if !point.starts_with("cascade") {
            settled(&cascade(&world.job, &["pfs,keep=2"], open_at(&root)));
            // Something has to go: the heap is stored anew.
            world.build_on_nothing();
            world.checkpoint();
            world.checkpoint();
        }
        if point.starts_with("fetch") {
            settled(&cascade(&world.job, &["pfs"], open_at(&root)));
            let back = dir.0.join("back");
            assert_eq!(in_child(&back, &root, point), Some(77), "{point} was not passed");
            let job = Store::open(&back).unwrap().job("job").unwrap();
            assert!(job.images().unwrap().iter().all(|image| image.complete), "{point}");
            job.clean(&job.lock().unwrap()).unwrap();
            comes_back(&root, &back, 3, &world.then[2]);
            continue;
        }
        assert_eq!(in_child(&store, &root, point), Some(77), "{point} was not passed");
        for version in versions(&root) {
            let back = dir.0.join(format!("back-{version}"));
            comes_back(&root, &back, version, &world.then[version as usize - 1]);
        }
        // What nobody needs may be another host's, until a day has passed.
        age(&root.join(FOLDER));
        let states = settled(&cascade(&world.job, &["pfs,keep=2"], open_at(&root)));
        let all: u64 = if point.starts_with("cascade") { 2 } else { 4 };
        assert_eq!(numbers(&states[0].versions), [all - 1, all], "{point}");
        comes_back(&root, &dir.0.join("back"), all, &world.then[all as usize - 1]);
        let mine: BTreeSet<String> = segments(&root).into_iter().collect();
        let hidden = fs::read_dir(root.join(FOLDER)).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(hidden.filter(|name| name.to_str().unwrap().starts_with('.')).count(), 0, "{point}");
        let named = segments_named(&root, &states[0].versions);
        assert_eq!(mine, named, "{point}: neither more nor less than is named");
    }
}

/// All files were written two days ago.
pub fn age(folder: &Path) {
    let then = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    for entry in fs::read_dir(folder).unwrap() {
        let file = fs::File::options().append(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(then).unwrap();
    }
}

/// The segments that these versions name.
fn segments_named(root: &Path, versions: &BTreeSet<u64>) -> BTreeSet<String> {
    let folder = at(root);
    let mut named = BTreeSet::new();
    for &version in versions {
        let bytes = folder.manifest(Epoch(version)).unwrap();
        let manifest = holdfast_tiers::format::manifest::Manifest::open(&bytes).unwrap();
        let names = manifest.segments().unwrap();
        named.extend(names.iter().map(|entry| format!("segment-{:06}-{:03}", entry.epoch.0, entry.number)));
    }
    named
}

#[test]
fn a_copy_that_is_stopped_leaves_no_version() {
    struct Stop;
    impl Pace for Stop {
        fn begin(&self, total: u64) {
            assert!(total > 0);
        }
        fn pass(&self, _bytes: u64) -> bool {
            false
        }
    }
    let dir = TempDir::new();
    let world = World::checkpoints(&dir.store(), 1);
    let (from, to) = (world.job.folder(), at(&dir.0.join("pfs")));
    let result = copy_version(from, &to, Epoch(1), None, Way::Down, &Stop);
    assert!(matches!(result, Err(CopyError::Stopped)), "{result:?}");
    assert_eq!(to.inventory().unwrap(), Default::default());
    let copied = copy_version(from, &to, Epoch(1), None, Way::Down, &Free).unwrap();
    assert!(copied.bytes > 0 && copied.found == 0);
    let again = copy_version(from, &to, Epoch(1), None, Way::Down, &Free).unwrap();
    assert!(again.bytes == 0 && again.found > 0, "{again:?}");
}

/// Bytes of segments below.
fn stored(root: &Path) -> u64 {
    let len = |name: &String| fs::metadata(root.join(FOLDER).join(name)).unwrap().len();
    segments(root).iter().map(len).sum()
}

#[test]
fn segments_are_packed_for_a_narrow_link_and_read_from_there_as_they_were() {
    let dir = TempDir::new();
    let root = dir.0.join("pfs");
    // Raw frames of text, over several stripes.
    let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
    let lock = job.lock().unwrap();
    let source = MemorySource::new(vec![run(1000, 700)], |page| match page % 7 {
        0 => Content::Noise,
        _ => Content::Text,
    });
    let options = PipelineOptions { compression: Compression::By(Codec::Raw), ..options(1) };
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    writer.write_pages(&source, &Inherited::default(), &options, &|_, _| ()).unwrap();
    writer.commit(commit_record()).unwrap();
    let plain = fs::read(job.dir().join("segment-000001-000")).unwrap();
    let (from, to) = (job.folder(), at(&root));
    let pace = Narrow::default();
    let copied = copy_version(from, &to, Epoch(1), Some(b"{}"), Way::Down, &pace).unwrap();
    assert_eq!(copied.bytes, plain.len() as u64);
    assert!(stored(&root) < copied.bytes / 2, "{} of {}", stored(&root), copied.bytes);
    let again = copy_version(from, &to, Epoch(1), Some(b"{}"), Way::Down, &Free).unwrap();
    assert!(again.bytes == 0 && again.found == 1, "{again:?}");
    // Read where it lies, beside others, and copied back byte for byte.
    let image = Image::open(std::slice::from_ref(&to), Epoch(1)).unwrap();
    image.verify(&|_| ()).unwrap();
    assert!(read_all(&image).unwrap() == source.pages);
    assert!(hygiene::survey(&to).unwrap().versions[0].whole);
    comes_back(&root, &dir.0.join("other"), 1, &source.pages);
    assert!(fs::read(dir.0.join("other/job/segment-000001-000")).unwrap() == plain);
    // A byte that changed is found by whoever needs it, and made up for by another tier.
    let path = root.join(FOLDER).join("segment-000001-000");
    let packed = fs::read(&path).unwrap();
    for at in (0..packed.len()).step_by(packed.len() / 50) {
        let mut bad = packed.clone();
        bad[at] ^= 0x20;
        fs::write(&path, bad).unwrap();
        let there = Image::open(std::slice::from_ref(&to), Epoch(1)).and_then(|image| image.verify(&|_| ()));
        assert!(there.is_err(), "byte {at}");
        let either = Image::open(&[to.clone(), from.clone()], Epoch(1)).unwrap();
        assert!(read_all(&either).unwrap() == source.pages, "byte {at}");
    }
    fs::write(&path, &packed[..packed.len() - 1]).unwrap();
    assert!(Image::open(&[to], Epoch(1)).is_err());
}

#[test]
fn what_does_not_become_smaller_is_copied_as_it_is() {
    let dir = TempDir::new();
    let root = dir.0.join("pfs");
    let world = World::checkpoints(&dir.store(), 1);
    let pace = Narrow::default();
    copy_version(world.job.folder(), &at(&root), Epoch(1), None, Way::Down, &pace).unwrap();
    for name in segments(&root) {
        let (ours, theirs) = (world.job.dir().join(&name), root.join(FOLDER).join(&name));
        assert!(fs::read(ours).unwrap() == fs::read(theirs).unwrap());
    }
}
