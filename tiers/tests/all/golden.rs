//! Images of every released version of the format stay readable.
//!
//! `golden/vN/` holds one job, `golden/v3-codecs/` one with an image by each further codec. Files of an old version are
//! never written again; a new version adds a folder, made by
//! `cargo test -p holdfast-tiers --test all -- write_golden --ignored`.

use crate::common::{
    Content, MemorySource, Model, TempDir, commit_record, options, page_of, read_all, record, record_of, run,
    segments_of,
};
use holdfast_image::pages::Inherited;
use holdfast_image::{Epoch, PAGE_SIZE};
use holdfast_tiers::codec::{Codec, Compression};
use holdfast_tiers::{Image, Job, Lineage, PipelineOptions, Store, format};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn folder(version: u32) -> PathBuf {
    golden(&format!("v{version}"))
}

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Copies golden files into a job; how many there are.
fn copy_to(job: &Job, folder: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let copy = job.dir().join(entry.file_name());
        fs::copy(entry.path(), &copy).unwrap();
        // A checkout has the modes of the umask.
        fs::set_permissions(&copy, Permissions::from_mode(0o600)).unwrap();
        count += 1;
    }
    count
}

/// Copies what a job has become to where golden files are kept.
fn keep(job: &Job, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for entry in fs::read_dir(job.dir()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "lock" {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
    }
}

/// What every golden image holds: raw frames, compressed frames, zero pages, two segments.
fn source() -> MemorySource {
    MemorySource::two_segments(0x400, 3)
}

/// What the increment on it holds: some of its pages, others again, one of them zero now, and a new one.
fn increment() -> (MemorySource, Inherited) {
    let mut source =
        MemorySource::new(vec![run(0x400, 2), run(0x464, 5), run(0x900, 1)], |number| match number {
            0x401 => Content::Zero,
            0x900 => Content::Noise,
            _ => Content::Text,
        });
    source.pages.insert(0x400, page_of(Content::Noise, 1));
    // So many runs that the page index is compressed.
    let zero = (0..150).map(|n| run(0x4c8 + 2 * n, 1));
    let kept = [run(0x402, 1), run(0x40a, 1), run(0x469, 61), run(0x658, 70)];
    let unchanged = kept.into_iter().chain(zero).collect();
    (source, Inherited { unchanged, mapped: Vec::new() })
}

#[test]
fn images_of_all_versions_are_read() {
    for version in 1..=format::VERSION {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("golden").unwrap();
        assert!(copy_to(&job, &folder(version)) >= 3, "manifest and two segments of version {version}");
        let image = job.open_image(Epoch(1)).unwrap();
        image.verify(&|_| ()).unwrap();
        assert!(read_all(&image).unwrap() == source().pages);
        assert_eq!(record_of(&image), record(4242));
        assert_eq!(image.stop().total_ns, 7_000_000);
        assert_eq!(image.engine(), "fork");
        assert_eq!(image.command(), commit_record().command);
        assert!(job.images().unwrap()[0].complete);
        if version > 1 {
            check_increment(&job);
        }
        build_on(&job, &image);
    }
}

/// An increment of this version on an image of any: its segments are named by the version that they were written in.
fn build_on(job: &Job, image: &Image) {
    let lock = job.lock().unwrap();
    let mut writer = job.begin(&lock, Epoch(7), Some(Lineage::of_image(image))).unwrap();
    let (changed, inherited) = increment();
    writer.write_pages(&changed, &inherited, &options(1), &|_, _| ()).unwrap();
    let (info, _) = writer.commit(commit_record()).unwrap();
    let made = job.open_image(Epoch(7)).unwrap();
    assert!(made.is_on_first_tier() && segments_of(&made).len() == 3);
    made.verify(&|_| ()).unwrap();
    assert!(read_all(&made).unwrap() == increment_model());
    assert_eq!(job.images().unwrap().last(), Some(&info));
}

fn increment_model() -> Model {
    let (changed, inherited) = increment();
    let unchanged =
        |page: u64| inherited.unchanged.iter().any(|run| run.start.0 <= page && page < run.end().0);
    let mut model = source().pages;
    model.retain(|number, _| unchanged(number * PAGE_SIZE));
    model.extend(changed.pages);
    model
}

fn check_increment(job: &Job) {
    let image = job.open_image(Epoch(2)).unwrap();
    image.verify(&|_| ()).unwrap();
    assert!(read_all(&image).unwrap() == increment_model());
    assert_eq!(segments_of(&image).len(), 3, "both of image 1 and one of its own");
    assert_eq!(image.info().parent, Some(Epoch(1)));
    assert_eq!(image.history(), &commit_record().history[..]);
    assert_eq!(image.epoch_figures(), &commit_record().epoch);
}

#[test]
#[ignore = "writes the golden image of the current version, once, when the version is new"]
fn write_golden() {
    let folder = folder(format::VERSION);
    assert!(!folder.exists(), "{} exists: released bytes do not change", folder.display());
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("golden").unwrap();
    let lock = job.lock().unwrap();
    let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
    writer.write_pages(&source(), &Inherited::default(), &options(2), &|_, _| ()).unwrap();
    let (_, parent) = writer.commit(commit_record()).unwrap();
    let mut writer = job.begin(&lock, Epoch(2), Some(parent)).unwrap();
    let (changed, inherited) = increment();
    writer.write_pages(&changed, &inherited, &options(1), &|_, _| ()).unwrap();
    writer.commit(commit_record()).unwrap();
    check_increment(&job);
    keep(&job, &folder);
}

/// What each image of `v3-codecs` holds, by this codec.
fn source_by(codec: Codec) -> MemorySource {
    let first = 0x400 * u64::from(codec as u32);
    MemorySource::new(vec![run(first, 30), run(first + 100, 3)], |page| match page % 100 {
        7 => Content::Zero,
        8..10 => Content::Noise,
        _ => Content::Text,
    })
}

/// Image N is by codec N + 1.
const FURTHER: [Codec; 3] = [Codec::Zstd, Codec::ShuffleLz4, Codec::ShuffleZstd];

fn check_codecs(job: &Job) {
    for (epoch, codec) in (1..).zip(FURTHER) {
        let image = job.open_image(Epoch(epoch)).unwrap();
        image.verify(&|_| ()).unwrap();
        assert!(image.frames_by_codec().iter().any(|of| of.codec == codec && of.stored < of.bytes / 2));
        assert!(read_all(&image).unwrap() == source_by(codec).pages);
    }
}

#[test]
fn images_by_all_codecs_are_read() {
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("golden").unwrap();
    assert_eq!(copy_to(&job, &golden("v3-codecs")), 6);
    check_codecs(&job);
}

#[test]
#[ignore = "writes golden images by the codecs that came with version 3, once"]
fn write_golden_codecs() {
    let folder = golden("v3-codecs");
    assert!(!folder.exists(), "{} exists: released bytes do not change", folder.display());
    let dir = TempDir::new();
    let job = Store::open(&dir.store()).unwrap().create_job("golden").unwrap();
    let lock = job.lock().unwrap();
    for (epoch, codec) in (1..).zip(FURTHER) {
        let mut writer = job.begin(&lock, Epoch(epoch), None).unwrap();
        let options = PipelineOptions { compression: Compression::By(codec), ..options(1) };
        writer.write_pages(&source_by(codec), &Inherited::default(), &options, &|_, _| ()).unwrap();
        writer.commit(commit_record()).unwrap();
    }
    check_codecs(&job);
    keep(&job, &folder);
}
