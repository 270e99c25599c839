//! Whatever pages go in come out again, wherever the pipeline put them.

use crate::common::{
    Content, MemorySource, Model, PAGE, TempDir, commit_record, kept_record, options, read_all, run,
};
use holdfast_image::pages::{ExtentSource, Inherited, MappableSegment, PageProvider, PageRun};
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::{Image, PipelineOptions, Store};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![Just(Content::Zero), Just(Content::Text), Just(Content::Noise)]
}

/// Runs with gaps (0: neighbours) between them, in any order, each with a main content and a rarer one.
fn runs() -> impl Strategy<Value = Vec<(PageRun, Content, Content)>> {
    let pages = prop_oneof![4 => 1..9_u64, 2 => 60..70_u64, 1 => 250..600_u64];
    prop::collection::vec((0..5_u64, pages, content(), content()), 1..12)
        .prop_map(|parts| {
            let mut page = 1_u64 << 20;
            parts
                .into_iter()
                .map(|(gap, pages, usual, rare)| {
                    page += gap + pages;
                    (run(page - pages, pages), usual, rare)
                })
                .collect::<Vec<_>>()
        })
        .prop_shuffle()
}

fn source(runs: &[(PageRun, Content, Content)]) -> MemorySource {
    let content = |number: u64| {
        let (_, usual, rare) =
            runs.iter().find(|(run, ..)| (run.start.0..run.end().0).contains(&(number * PAGE_SIZE))).unwrap();
        if number.is_multiple_of(7) { *rare } else { *usual }
    };
    MemorySource::new(runs.iter().map(|(run, ..)| *run).collect(), content)
}

/// Extents are sorted, cover exactly the model, and what they say about the files is true.
fn check_extents(image: &Image, model: &Model) {
    let mut pages = model.iter();
    for extent in image.extents() {
        for n in 0..extent.run.pages.0 {
            let (number, content) = pages.next().unwrap();
            assert_eq!(extent.run.start.0 / PAGE_SIZE + n, *number);
            match extent.source {
                ExtentSource::Mappable { segment, offset } => {
                    let mut page = vec![0; PAGE];
                    let MappableSegment { file, begin, .. } = image.segment(segment).unwrap();
                    file.read_exact_at(&mut page, begin + offset + n * PAGE_SIZE).unwrap();
                    assert!(offset.is_multiple_of(PAGE_SIZE) && page == *content, "page {number}");
                }
                ExtentSource::Zero => assert!(content.iter().all(|&byte| byte == 0)),
                ExtentSource::Stored => {}
            }
        }
    }
    assert!(pages.next().is_none(), "a page is missing from the extents");
}

fn compression() -> impl Strategy<Value = Compression> {
    let codecs = Codec::ALL.map(Compression::By);
    prop_oneof![Just(Compression::Auto), prop::sample::select(codecs.to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn any_pages_come_back(runs in runs(), split in 0..12_usize, workers in 1..5_usize,
        compression in compression(),
        part_pages in prop_oneof![Just(None), (1..80_u64).prop_map(Some)]) {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
        let lock = job.lock().unwrap();
        let (first, second) = runs.split_at(split.min(runs.len()));
        let sources = [source(first), source(second)];
        let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
        let options = PipelineOptions { compression, part_pages, rate: None, workers };
        let most = AtomicU64::new(0);
        let progress = |done: u64, total: u64| {
            assert!(done <= total, "{done} of {total} bytes");
            most.fetch_max(done, Ordering::Relaxed);
        };
        let early = writer.precopy(&sources[0], &options, &progress).unwrap();
        prop_assert_eq!(early.pages().0, sources[0].pages.len() as u64);
        let inherited = Inherited { unchanged: early.into_runs(), mapped: Vec::new() };
        prop_assert_eq!(most.swap(0, Ordering::Relaxed), sources[0].pages.len() as u64 * PAGE_SIZE);
        writer.write_pages(&sources[1], &inherited, &options, &progress).unwrap();
        prop_assert_eq!(most.into_inner(), sources[1].pages.len() as u64 * PAGE_SIZE);
        sources.iter().for_each(MemorySource::assert_all_released);
        let (committed, _) = writer.commit(commit_record()).unwrap();
        let [first, second] = sources;
        let zero = second.pages.values().filter(|page| page.iter().all(|&byte| byte == 0)).count() as u64;
        let (early, late) = (first.pages.len() as u64, second.pages.len() as u64);
        let model: Model = first.pages.into_iter().chain(second.pages).collect();

        let image = job.open_image(Epoch(1)).unwrap();
        prop_assert_eq!(&committed, &image.info());
        prop_assert_eq!(&job.images().unwrap(), &vec![committed.clone()]);
        prop_assert_eq!(image.figures().pages_read, late);
        prop_assert_eq!(image.figures().pages_zero, zero);
        prop_assert_eq!(image.figures().pages_stored, late - zero);
        prop_assert_eq!(image.figures().pages_precopied, early);
        prop_assert_eq!(committed.program_bytes, model.len() as u64 * PAGE_SIZE);
        prop_assert_eq!(image.history(), &commit_record().history[..]);
        prop_assert_eq!(image.epoch_figures(), &commit_record().epoch);
        prop_assert_eq!(image.record(), &kept_record());
        let on_disk: u64 = std::fs::read_dir(job.dir()).unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name() != "lock")
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        prop_assert_eq!((committed.bytes, committed.total_bytes), (on_disk, on_disk));
        prop_assert_eq!(image.figures().bytes_stored, on_disk);
        check_extents(&image, &model);
        prop_assert!(read_all(&image).unwrap() == model);
        image.verify(&|_| ()).unwrap();
    }
}

/// A long run of incompressible pages must be mappable in few pieces, however many frames it has.
#[test]
fn a_long_run_has_few_extents() {
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
    let lock = job.lock().unwrap();
    let pages = 256 * 80; // 80 MiB: more frames than a block of headers has
    let source = MemorySource::new(vec![run(4096, pages)], |_| Content::Noise);
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    writer.write_pages(&source, &Inherited::default(), &options(1), &|_, _| ()).unwrap();
    writer.commit(commit_record()).unwrap();
    let image = job.open_image(Epoch(1)).unwrap();
    assert_eq!(image.extents().len(), 2, "one break, where the second block of headers is");
    check_extents(&image, &source.pages);
    image.verify(&|_| ()).unwrap();
    assert!(read_all(&image).unwrap() == source.pages);
}

#[test]
fn pages_outside_the_image_and_odd_requests_are_refused() {
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
    let lock = job.lock().unwrap();
    let source = MemorySource::new(vec![run(100, 10), run(120, 1)], |_| Content::Text);
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    writer.write_pages(&source, &Inherited::default(), &options(1), &|_, _| ()).unwrap();
    writer.commit(commit_record()).unwrap();
    let image = job.open_image(Epoch(1)).unwrap();
    let read = |start: u64, len: usize| image.read(Addr(start), &mut vec![0; len]);
    read(100 * PAGE_SIZE, 10 * PAGE).unwrap();
    for (start, len) in [(99, 1), (110, 1), (109, 2), (100, 21), (121, 1), (u64::MAX / PAGE_SIZE, 1)] {
        let error = read(start * PAGE_SIZE, len * PAGE).unwrap_err();
        assert!(error.to_string().contains("has no page at"), "{error}");
    }
    assert!(read(100 * PAGE_SIZE + 1, PAGE).is_err());
    assert!(read(100 * PAGE_SIZE, PAGE - 1).is_err());
}
