//! Images that build on earlier ones: whatever happens between two checkpoints, every image gives back the memory of
//! its cut, as long as it exists.

use crate::common::{
    Content, MemorySource, Model, TempDir, commit_record, options, page_of, read_all, run, runs_of,
    segments_of,
};
use holdfast_image::pages::{
    ExtentSource, Inherited, MappedFrom, PageError, PageProvider, PageRun, StoreMapping,
};
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use holdfast_tiers::{Image, ImageWriter, Job, JobLock, Lineage, PipelineOptions, Store};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;

/// What happens between two cuts.
#[derive(Clone, Debug)]
enum Step {
    /// Pages get this content; the same salt again writes the same bytes.
    Write {
        page: u64,
        pages: u64,
        content: Content,
        salt: u64,
    },
    /// Pages are written with what they hold.
    Rewrite {
        page: u64,
        pages: u64,
    },
    Unmap {
        page: u64,
        pages: u64,
    },
    /// Every `step`th dirty page is pre-copied; those from `gone` on cannot be read any more.
    Precopy {
        step: usize,
        gone: u64,
    },
}

#[derive(Clone, Debug)]
struct Interval {
    steps: Vec<Step>,
    /// The source fails at the cut, or the writer is dropped.
    fails: Option<bool>,
    /// Which of the older images is removed after it.
    remove: Option<usize>,
    /// The next image builds on the files and not on what is in memory.
    reopen: bool,
    /// Pages that are said to be mapped, of those that are mappable in the parent; and whether that is a lie.
    mapped: Option<(u64, bool)>,
}

const WORLD: u64 = 700;

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![1 => Just(Content::Zero), 3 => Just(Content::Text), 3 => Just(Content::Noise)]
}

fn step() -> impl Strategy<Value = Step> {
    let pages = || prop_oneof![3 => 1..9_u64, 1 => 60..300_u64];
    prop_oneof![
        6 => (0..WORLD, pages(), content(), 0..3_u64)
            .prop_map(|(page, pages, content, salt)| Step::Write { page, pages, content, salt }),
        2 => (0..WORLD, pages()).prop_map(|(page, pages)| Step::Rewrite { page, pages }),
        2 => (0..WORLD, pages()).prop_map(|(page, pages)| Step::Unmap { page, pages }),
        4 => (1..4_usize, prop_oneof![2 => Just(u64::MAX), 1 => 0..WORLD])
            .prop_map(|(step, gone)| Step::Precopy { step, gone }),
    ]
}

fn intervals() -> impl Strategy<Value = Vec<Interval>> {
    let fails = prop_oneof![4 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let remove = prop_oneof![1 => Just(None), 1 => (0..5_usize).prop_map(Some)];
    let mapped = prop_oneof![2 => Just(None), 1 => (1..40_u64, any::<bool>()).prop_map(Some)];
    let interval = (prop::collection::vec(step(), 0..8), fails, remove, any::<bool>(), mapped)
        .prop_map(|(steps, fails, remove, reopen, mapped)| Interval { steps, fails, remove, reopen, mapped });
    prop::collection::vec(interval, 1..10)
}

struct World {
    job: Job,
    lock: JobLock,
    options: PipelineOptions,
    program: Model,
    dirty: BTreeSet<u64>,
    parent: Option<Arc<Lineage>>,
    images: BTreeMap<Epoch, Model>,
}

impl World {
    fn new(store: &Store, options: PipelineOptions) -> World {
        let job = store.create_job("job").unwrap();
        let lock = job.lock().unwrap();
        let (program, images) = (Model::new(), BTreeMap::new());
        World { job, lock, options, program, dirty: BTreeSet::new(), parent: None, images }
    }

    fn begin(&self) -> ImageWriter {
        self.job.begin(&self.lock, self.job.next_epoch().unwrap(), self.parent.clone()).unwrap()
    }

    fn write(&mut self, page: u64, pages: u64, content: Content, salt: u64) {
        for number in page..page + pages {
            self.program.insert(number + 1, page_of(content, number * 4 + salt));
            self.dirty.insert(number + 1);
        }
    }

    /// One step; what a pre-copy stored goes from the dirty set to `stored`.
    fn step(&mut self, step: &Step, writer: &mut ImageWriter, stored: &mut BTreeSet<u64>) {
        match *step {
            Step::Write { page, pages, content, salt } => self.write(page, pages, content, salt),
            Step::Rewrite { page, pages } => {
                self.dirty.extend(self.program.range(page..page + pages).map(|(number, _)| *number));
            }
            Step::Unmap { page, pages } => {
                for number in page..page + pages {
                    self.program.remove(&number);
                    self.dirty.remove(&number);
                }
            }
            Step::Precopy { step, gone } => {
                let wanted = self.dirty.iter().copied().step_by(step).collect();
                let mut source = MemorySource::of_model(&self.program, &wanted);
                source.gone = wanted.range(gone..).copied().collect();
                let done = writer.precopy(&source, &self.options, &|_, _| ()).unwrap();
                for number in done.runs().iter().flat_map(numbers) {
                    assert!(self.dirty.remove(&number), "{number} was not asked for");
                    assert!(number < gone);
                    stored.insert(number);
                }
            }
        }
    }

    /// Splits what is not dirty into unchanged pages and pages mapped from the parent's segments. Also returns how many
    /// pages have to be read because the mapping is not the one that the parent's index has.
    fn inherited(&self, mapped: Option<(u64, bool)>, stored: &BTreeSet<u64>) -> (Inherited, u64) {
        let mut unchanged: BTreeSet<u64> =
            self.program.keys().copied().filter(|number| !self.dirty.contains(number)).collect();
        let mut inherited = Inherited::default();
        let mut read = 0;
        if let (Some((step, lie)), Some(parent)) = (mapped, &self.parent) {
            let image = self.job.open_image(parent.epoch()).unwrap();
            for extent in image.extents().iter().step_by(2) {
                let ExtentSource::Mappable { segment, offset } = extent.source else { continue };
                let pages: BTreeSet<u64> = numbers(&extent.run)
                    .filter(|number| number % step < step.div_ceil(2) && !stored.contains(number))
                    .filter(|number| unchanged.remove(number))
                    .collect();
                for run in runs_of(&pages) {
                    let offset = offset + run.start.0 - extent.run.start.0 + if lie { PAGE_SIZE } else { 0 };
                    let from = image.segment(segment).unwrap().from;
                    inherited.mapped.push(StoreMapping { run, from, offset });
                    read += if lie { run.pages.0 } else { 0 };
                }
            }
        }
        inherited.unchanged = runs_of(&unchanged);
        (inherited, read)
    }

    fn interval(&mut self, interval: &Interval) {
        let mut writer = self.begin();
        let mut stored = BTreeSet::new();
        for step in &interval.steps {
            self.step(step, &mut writer, &mut stored);
        }
        let (inherited, mapped_read) = self.inherited(interval.mapped, &stored);
        let mut source = MemorySource::of_model(&self.program, &self.dirty);
        if interval.fails == Some(true) {
            source.fails_at = self.dirty.first().copied();
        }
        let result = writer.write_pages(&source, &inherited, &self.options, &|_, _| ());
        assert!(result.is_ok() || source.fails_at.is_some(), "{result:?}");
        if interval.fails.is_some() {
            drop(writer);
            self.dirty.extend(stored.into_iter().filter(|number| self.program.contains_key(number)));
        } else {
            let (info, lineage) = writer.commit(commit_record()).unwrap();
            let image = self.job.open_image(info.epoch).unwrap();
            let figures = image.figures();
            let seen = figures.pages_read + figures.pages_parent + figures.pages_precopied;
            assert_eq!(seen, self.program.len() as u64);
            assert_eq!(figures.pages_read, self.dirty.len() as u64 + mapped_read);
            let sum = figures.pages_zero + figures.pages_stored + figures.pages_unchanged;
            assert_eq!(figures.pages_read, sum);
            assert_eq!(image.info(), info);
            assert_eq!(info.program_bytes, self.program.len() as u64 * PAGE_SIZE);
            assert_eq!(info.parent, self.parent.as_ref().map(|parent| parent.epoch()));
            self.parent = Some(lineage);
            self.images.insert(info.epoch, self.program.clone());
            self.dirty.clear();
        }
        if let Some(remove) = interval.remove
            && remove + 1 < self.images.len()
        {
            let epoch = *self.images.keys().nth(remove).unwrap();
            self.job.remove_image(&self.lock, epoch).unwrap();
            self.images.remove(&epoch);
        }
        if interval.reopen
            && let Some(parent) = &self.parent
        {
            self.parent = Some(Lineage::of_image(&self.job.open_image(parent.epoch()).unwrap()));
        }
    }

    /// Every image is what it was, and there is no file that none of them needs.
    fn check(&self) {
        let mut needed = BTreeSet::new();
        for (epoch, model) in &self.images {
            let mut image = self.job.open_image(*epoch).unwrap();
            assert!(read_all(&image).unwrap() == *model, "image {epoch}");
            if let Some(newest) = &self.parent {
                image.know(newest);
                let fifth = fifth(&image).unwrap();
                assert!(fifth.iter().all(|(number, page)| model[number] == *page), "image {epoch}");
            }
            image.verify(&|_| ()).unwrap();
            if let Some((newest, its)) = self.parent.as_ref().zip(self.images.values().next_back()) {
                let common = image.in_common(newest);
                let same = |number| model.get(&number) == its.get(&number) && model.contains_key(&number);
                assert!(common.runs().iter().flat_map(numbers).all(same), "image {epoch}");
                assert!(*epoch != newest.epoch() || common.pages().0 == model.len() as u64);
            }
            let path = |from| match from {
                MappedFrom::Segment { version, number } => {
                    self.job.dir().join(format!("segment-{:06}-{number:03}", version.0))
                }
                MappedFrom::SharedPages => unreachable!(),
            };
            needed.extend(segments_of(&image).iter().map(|segment| path(segment.from)));
        }
        assert!(self.job.images().unwrap().iter().all(|image| image.complete));
        assert!(self.job.clean(&self.lock).unwrap().removed.is_empty());
        let segments = segments(&self.job);
        assert_eq!(segments, needed.into_iter().collect::<Vec<_>>());
    }
}

/// Every fifth page that is not all zero, read by itself.
fn fifth(image: &Image) -> Result<Model, PageError> {
    let stored = image.extents().iter().filter(|extent| extent.source != ExtentSource::Zero);
    let all = stored.flat_map(|extent| numbers(&extent.run));
    let wanted: Vec<PageRun> = all.filter(|number| number % 5 == 0).map(|number| run(number, 1)).collect();
    let found = Mutex::new(Model::new());
    image.gather(&wanted, &|parts| {
        let pages = parts.iter().map(|(start, page)| (start.0 / PAGE_SIZE, page.to_vec()));
        found.lock().extend(pages);
        Ok(())
    })?;
    Ok(found.into_inner())
}

fn numbers(run: &PageRun) -> std::ops::Range<u64> {
    run.start.0 / PAGE_SIZE..run.end().0 / PAGE_SIZE
}

fn segments(job: &Job) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = fs::read_dir(job.dir())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-"))
        .collect();
    found.sort();
    found
}

fn world(workers: usize) -> (TempDir, World) {
    let dir = TempDir::new();
    let store = Store::open(&dir.store()).unwrap();
    (dir, World::new(&store, options(workers)))
}

/// An interval in which only these steps happen.
fn only(steps: Vec<Step>) -> Interval {
    Interval { steps, fails: None, remove: None, reopen: false, mapped: None }
}

fn write(page: u64, pages: u64, content: Content, salt: u64) -> Step {
    Step::Write { page, pages, content, salt }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn every_image_is_the_memory_of_its_cut(
        intervals in intervals(),
        workers in 1..3_usize,
        part_pages in prop_oneof![Just(None), (1..40_u64).prop_map(Some)],
    ) {
        let (_dir, mut world) = world(workers);
        world.options.part_pages = part_pages;
        for interval in &intervals {
            world.interval(interval);
        }
        world.check();
    }
}

#[test]
fn the_last_precopy_counts() {
    let (_dir, mut world) = world(1);
    let precopy = || Step::Precopy { step: 1, gone: u64::MAX };
    world.interval(&only(vec![write(0, 100, Content::Noise, 0)]));
    world.interval(&only(vec![
        write(0, 50, Content::Noise, 1),
        precopy(),
        write(10, 10, Content::Zero, 0),
        write(20, 10, Content::Noise, 0),
        write(30, 10, Content::Text, 2),
        precopy(),
    ]));
    let image = world.job.open_image(Epoch(2)).unwrap();
    assert_eq!((image.figures().pages_read, image.figures().pages_precopied), (0, 50));
    world.check();
    // What is known of contents that were replaced must not be believed later.
    world.interval(&only(vec![write(0, 50, Content::Noise, 1)]));
    world.interval(&only(vec![write(0, 50, Content::Zero, 0), precopy(), Step::Unmap { page: 5, pages: 9 }]));
    world.interval(&only(vec![write(0, 50, Content::Noise, 1)]));
    world.check();
}

#[test]
fn what_is_as_in_the_parent_is_not_stored_again() {
    let (_dir, mut world) = world(2);
    world.interval(&only(vec![write(0, 500, Content::Noise, 0), write(1000, 500, Content::Text, 0)]));
    for reopen in [false, true] {
        let again = vec![Step::Rewrite { page: 0, pages: 2000 }];
        world.interval(&Interval { reopen, ..only(again.clone()) });
        world.interval(&only(again));
        let image = world.job.open_image(world.parent.as_ref().unwrap().epoch()).unwrap();
        assert_eq!(image.figures().pages_unchanged, 1000);
        assert!(image.info().bytes < 16 << 10, "{:?}", image.info());
    }
    world.check();
}

#[test]
fn what_was_not_written_since_an_image_is_found_without_reading() {
    let (_dir, mut world) = world(1);
    world.interval(&only(vec![write(0, 500, Content::Noise, 0), write(600, 90, Content::Zero, 0)]));
    world.interval(&only(vec![write(100, 7, Content::Noise, 1), Step::Unmap { page: 300, pages: 20 }]));
    world.interval(&only(vec![write(200, 5, Content::Text, 0), write(600, 3, Content::Noise, 0)]));
    let image = world.job.open_image(Epoch(1)).unwrap();
    let common = image.in_common(world.parent.as_ref().unwrap());
    // Of what was written the pages of the first and of the last image differ.
    let written = [100..107_u64, 200..205, 600..603];
    let is_written = |number: &u64| written.iter().any(|range| range.contains(&(number - 1)));
    let unwritten: Vec<u64> = world.program.keys().copied().filter(|number| !is_written(number)).collect();
    let found: Vec<u64> = common.runs().iter().flat_map(numbers).collect();
    assert!(found == unwritten, "{} pages, not {}", found.len(), unwritten.len());
    world.check();
}

#[test]
fn single_pages_of_the_newest_image_are_compared_by_themselves() {
    let (_dir, mut world) = world(1);
    world.interval(&only(vec![write(0, 400, Content::Noise, 0)]));
    let newest = world.parent.clone().unwrap();
    let read = |is_known: bool| {
        let mut image = world.job.open_image(newest.epoch()).unwrap();
        if is_known {
            image.know(&newest);
        }
        fifth(&image)
    };
    let whole = read(true).unwrap();
    assert_eq!(whole.len(), 80);
    assert!(whole == read(false).unwrap());
    let damage = |number: u64| {
        let path = &segments(&world.job)[0];
        let mut bytes = fs::read(path).unwrap();
        let page = &world.program[&number][..];
        let at = bytes.windows(page.len()).position(|window| window == page).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    // One that is not asked for.
    damage(7);
    assert!(read(false).is_err());
    assert!(whole == read(true).unwrap());
    damage(10);
    assert!(read(true).is_err());
}

#[test]
fn a_tenth_dirty_costs_a_tenth() {
    let (_dir, mut world) = world(1);
    let pages = 4096;
    world.interval(&only(vec![write(0, pages, Content::Noise, 0)]));
    let full = world.job.images().unwrap()[0].bytes;
    let mut state = 1_u64;
    for salt in 1..5 {
        // A tenth of the pages, anywhere.
        let mut dirty = BTreeSet::new();
        while (dirty.len() as u64) < pages / 10 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            dirty.insert(state % pages);
        }
        world.interval(&only(dirty.into_iter().map(|page| write(page, 1, Content::Noise, salt)).collect()));
        let info = world.job.images().unwrap().pop().unwrap();
        assert!(info.bytes * 1000 <= full * 105, "{} of {full} bytes", info.bytes);
        assert!(info.total_bytes > full && info.parent.is_some());
    }
    world.check();
}

#[test]
fn a_page_that_nobody_has_fails_the_image() {
    let (_dir, mut world) = world(1);
    world.interval(&only(vec![write(100, 50, Content::Text, 0)]));
    let before = segments(&world.job);
    let mut writer = world.begin();
    let source = MemorySource::new(vec![run(200, 5)], |_| Content::Noise);
    let inherited = Inherited { unchanged: vec![run(149, 3), run(203, 4)], mapped: Vec::new() };
    let error = writer.write_pages(&source, &inherited, &options(1), &|_, _| ()).unwrap_err().to_string();
    assert!(error.contains(&format!("1 pages at {}", Addr(151 * PAGE_SIZE))), "{error}");
    assert!(writer.commit(commit_record()).is_err());
    assert_eq!(segments(&world.job), before);
    let mut writer = world.begin();
    let mut source = MemorySource::new(vec![run(200, 5)], |_| Content::Noise);
    source.gone.insert(202);
    let error = writer.write_pages(&source, &Inherited::default(), &options(1), &|_, _| ()).unwrap_err();
    assert!(error.to_string().contains("not there any more"), "{error}");
    drop(writer);
    world.check();
}

#[test]
fn damage_of_an_ancestor_is_reported_by_the_increment() {
    let (_dir, mut world) = world(1);
    world.interval(&only(vec![write(0, 300, Content::Noise, 0)]));
    world.interval(&only(vec![write(10, 20, Content::Noise, 1)]));
    let (ancestor, name) = (segments(&world.job).remove(0), "segment-000001-000");
    let original = fs::read(&ancestor).unwrap();
    let mut flipped = original.clone();
    flipped[4096 + 200 * 4096 + 5] ^= 1;
    fs::write(&ancestor, &flipped).unwrap();
    let image = world.job.open_image(Epoch(2)).unwrap();
    for error in [image.verify(&|_| ()).unwrap_err().to_string(), read_all(&image).unwrap_err().to_string()] {
        assert!(error.contains(name) && error.contains("at byte "), "{error}");
    }
    // A page that cannot be compared is stored.
    world.parent = Some(Lineage::of_image(&image));
    world.interval(&only(vec![Step::Rewrite { page: 1, pages: 60 }]));
    let stored = world.job.open_image(Epoch(3)).unwrap().figures().pages_stored;
    assert_eq!(stored, 60 - 20, "those of image 2 can be compared");
    for (bytes, expected) in [(&original[..8192], "were written"), (&[0; 10][..], "were written")] {
        fs::write(&ancestor, bytes).unwrap();
        let error = world.job.open_image(Epoch(2)).err().unwrap().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    fs::remove_file(&ancestor).unwrap();
    assert!(world.job.open_image(Epoch(2)).err().unwrap().to_string().contains(name));
    let listed = world.job.images().unwrap();
    assert!(listed[..2].iter().all(|image| !image.complete), "{listed:?}");
    assert!(listed[1].broken.as_ref().unwrap().contains(name), "{listed:?}");
    // Nor is an image committed whose pages are gone.
    world.write(600, 1, Content::Text, 0);
    let mut writer = world.begin();
    let (inherited, _) = world.inherited(None, &BTreeSet::new());
    let source = MemorySource::of_model(&world.program, &world.dirty);
    writer.write_pages(&source, &inherited, &options(1), &|_, _| ()).unwrap();
    assert!(writer.commit(commit_record()).err().unwrap().to_string().contains(name));
    fs::write(&ancestor, &original).unwrap();
    world.check();
}

#[test]
fn segments_live_as_long_as_somebody_needs_them() {
    let (_dir, mut world) = world(1);
    world.interval(&only(vec![write(0, 200, Content::Noise, 0)]));
    world.interval(&only(vec![write(0, 20, Content::Noise, 1)]));
    world.interval(&only(vec![write(20, 20, Content::Noise, 1)]));
    assert_eq!(segments(&world.job).len(), 3);
    for epoch in [1, 2] {
        let freed = world.job.remove_image(&world.lock, Epoch(epoch)).unwrap();
        assert!(freed < 16 << 10, "only the manifest");
        world.images.remove(&Epoch(epoch));
    }
    assert_eq!(segments(&world.job).len(), 3);
    world.check();
    // What an image needs that is being written stays as well, and what an unreadable manifest may name.
    let writer = world.begin();
    world.job.remove_image(&world.lock, Epoch(3)).unwrap();
    assert!(world.job.clean(&world.lock).unwrap().removed.is_empty());
    assert_eq!(segments(&world.job).len(), 3);
    let manifest = world.job.dir().join("manifest-000002");
    fs::write(&manifest, "damaged").unwrap();
    fs::set_permissions(&manifest, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    drop(writer);
    let report = world.job.clean(&world.lock).unwrap();
    assert_eq!(report.unreadable, [Epoch(2)]);
    assert_eq!(report.removed, [world.job.dir().join("segment-000003-000")]);
    world.job.remove_image(&world.lock, Epoch(2)).unwrap();
    assert!(segments(&world.job).is_empty());
}

/// Any tenth of the memory is rewritten between two images, of which only the newest is kept.
#[test]
fn compaction_keeps_increments_small_and_space_bounded() {
    const PAGES: u64 = 2000;
    let (_dir, mut world) = world(1);
    world.interval(&only(vec![write(0, PAGES, Content::Noise, 0)]));
    let mut state = 1_u64;
    let mut most_bytes = 0;
    let mut moved = 0;
    for salt in 1..=60 {
        let mut chosen = BTreeSet::new();
        while (chosen.len() as u64) < PAGES / 10 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chosen.insert((state >> 33) % PAGES);
        }
        world.interval(&only(chosen.iter().map(|page| write(*page, 1, Content::Noise, salt)).collect()));
        let newest = *world.images.last_key_value().unwrap().0;
        let image = world.job.open_image(newest).unwrap();
        let figures = image.figures();
        assert!(figures.pages_stored + figures.pages_moved <= PAGES * 105 / 1000, "{newest}: {figures:?}");
        moved += figures.pages_moved;
        let old = world.images.pop_first().unwrap().0;
        world.job.remove_image(&world.lock, old).unwrap();
        let bytes: u64 = segments(&world.job).iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
        most_bytes = most_bytes.max(bytes);
    }
    assert!(moved > 0, "there was nothing to move");
    assert!(most_bytes < 5 * PAGES * PAGE_SIZE, "{most_bytes}");
    world.check();
}

#[test]
fn compaction_bounds_space_and_number_of_segments() {
    let (_dir, mut world) = world(1);
    world.interval(&only(vec![write(0, 400, Content::Noise, 0)]));
    world.interval(&only(vec![write(0, 390, Content::Noise, 1)]));
    // What is left of the first segment was moved.
    let image = world.job.open_image(Epoch(2)).unwrap();
    assert_eq!((image.figures().pages_moved, segments_of(&image).len()), (10, 1));
    assert_eq!(image.figures().pages_parent, 10);
    // More is left than may be moved.
    world.interval(&only(vec![write(0, 370, Content::Noise, 2)]));
    let image = world.job.open_image(Epoch(3)).unwrap();
    assert_eq!((image.figures().pages_moved, segments_of(&image).len()), (0, 2));
    let mut moved = 0;
    let old = world.images.pop_first().unwrap().0;
    world.job.remove_image(&world.lock, old).unwrap();
    for epoch in 0..110 {
        world.interval(&only(vec![write(500 + epoch, 1, Content::Noise, 0)]));
        let image = world.job.open_image(world.parent.as_ref().unwrap().epoch()).unwrap();
        assert!(segments_of(&image).len() <= 96);
        moved += image.figures().pages_moved;
        assert!(image.figures().pages_moved < 10, "the small ones are moved");
        let old = world.images.pop_first().unwrap().0;
        world.job.remove_image(&world.lock, old).unwrap();
    }
    assert!(moved > 0, "there was nothing to move");
    assert!(segments(&world.job).len() <= 97, "what the last two images need: {:?}", segments(&world.job));
    world.check();
}

#[test]
fn a_bound_on_the_rate_makes_small_steps_and_need_makes_none_of_compression() {
    let (_dir, mut world) = world(2);
    world.options.rate = Some(64 << 20);
    world.write(0, 300, Content::Text, 0);
    let wanted: BTreeSet<u64> = world.dirty.clone();
    let mut source = MemorySource::of_model(&world.program, &wanted);
    source.urgent = true;
    let mut writer = world.begin();
    writer.write_pages(&source, &Inherited::default(), &world.options, &|_, _| ()).unwrap();
    let (info, _) = writer.commit(commit_record()).unwrap();
    source.assert_all_released();
    assert!(source.released.lock().unwrap().iter().all(|run| run.pages.0 <= 16));
    let image = world.job.open_image(info.epoch).unwrap();
    assert_eq!(image.figures().bytes_compressed_from, 0);
    assert!(read_all(&image).unwrap() == world.program);
}

/// A zero page that was written again, next to zero pages of the parent: every page is counted once.
#[test]
fn zero_neighbours_are_counted() {
    let dir = TempDir::new();
    let store = Store::open(&dir.store()).unwrap();
    let options = options(1);
    let mut world = World::new(&store, options);
    let interval = |steps| Interval { steps, fails: None, remove: None, reopen: false, mapped: None };
    world.interval(&interval(vec![Step::Write { page: 178, pages: 179, content: Content::Zero, salt: 0 }]));
    world.interval(&interval(vec![Step::Rewrite { page: 0, pages: 180 }]));
}
