//! An image that is on several tiers: each manifest, segment and frame from the fastest one that has it intact, or an
//! error that names them all. Never a wrong byte.

use crate::common::{
    MemorySource, Model, TempDir, commit_record, options, read_all, record, record_of, run, segments_of,
};
use holdfast_image::pages::{ExtentSource, Inherited, MappedFrom, PageProvider, PageRun};
use holdfast_image::{Addr, Epoch, PAGE_SIZE};
use holdfast_tiers::tier::address::{self, Address};
use holdfast_tiers::tier::{Blob, BlobName, BlobWriter, Listing, LocalTier, Tier, TierError, TierInfo};
use holdfast_tiers::{Image, Job, Lineage, PipelineOptions, Store, StoreError, TierFolder};
use std::fs::{self, File, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A job with one image of two segments, and a copy of it on each of two tiers below: a folder, and an object store.
struct Bed {
    dir: TempDir,
    job: Job,
    model: Model,
}

impl Bed {
    fn new() -> Bed {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
        let lock = job.lock().unwrap();
        let source = MemorySource::two_segments(1000, 5);
        let mut writer = job.begin(&lock, Epoch(1), None).unwrap();
        // Small parts: segments of several frames.
        let options = PipelineOptions { part_pages: Some(16), ..options(2) };
        writer.write_pages(&source, &Inherited::default(), &options, &|_, _| ()).unwrap();
        writer.commit(commit_record()).unwrap();
        drop(lock);
        let bed = Bed { dir, job, model: source.pages };
        LocalTier::open(&bed.below_root()).unwrap().publish(&BlobName::new("job/x").unwrap(), b"").unwrap();
        fs::create_dir_all(bed.lowest()).unwrap();
        for name in NAMES {
            fs::copy(bed.job.dir().join(name), bed.below().join(name)).unwrap();
            fs::copy(bed.job.dir().join(name), bed.lowest().join(name)).unwrap();
        }
        bed
    }
    /// The job's folder on the lowest tier.
    fn lowest(&self) -> PathBuf {
        self.dir.0.join("lowest/job")
    }
    /// Those below the first.
    fn all_below(&self) -> Vec<TierFolder> {
        let address = format!("file://{}", self.dir.0.join("lowest").display());
        let lowest: Arc<dyn Tier> = Arc::from(address::open(&Address::parse(&address).unwrap()).unwrap());
        vec![self.folder(), TierFolder::new(lowest, "job").unwrap()]
    }
    fn below_root(&self) -> PathBuf {
        self.dir.0.join("below")
    }
    /// The job's folder on the tier below.
    fn below(&self) -> PathBuf {
        self.below_root().join("job")
    }
    fn folder(&self) -> TierFolder {
        TierFolder::new(Arc::new(LocalTier::open(&self.below_root()).unwrap()), "job").unwrap()
    }
    fn open(&self) -> Result<Image, StoreError> {
        self.job.open_image_from(Epoch(1), &[self.folder()])
    }
    fn read(&self) -> Result<Model, String> {
        self.read_from(self.open())
    }
    fn read_from(&self, image: Result<Image, StoreError>) -> Result<Model, String> {
        let image = image.map_err(|error| error.to_string())?;
        assert_eq!(record_of(&image), record(4242));
        read_pages(&image).map_err(|error| error.to_string())
    }
}

const NAMES: [&str; 3] = ["manifest-000001", "segment-000001-000", "segment-000001-001"];

/// Page by page, as faults do, and in long runs.
fn read_pages(image: &Image) -> Result<Model, holdfast_image::pages::PageError> {
    let mut model = Model::new();
    for extent in image.extents() {
        for page in 0..extent.run.pages.0 {
            let at = extent.run.start.0 + page * PAGE_SIZE;
            let mut content = vec![0xee; PAGE_SIZE as usize];
            image.read(Addr(at), &mut content)?;
            model.insert(at / PAGE_SIZE, content);
        }
        let mut all = vec![0xee; extent.run.pages.bytes() as usize];
        image.read(extent.run.start, &mut all)?;
        for (number, content) in (extent.run.start.0 / PAGE_SIZE..).zip(all.chunks(PAGE_SIZE as usize)) {
            assert!(model[&number] == content, "page {number}");
        }
    }
    Ok(model)
}

/// Ways in which a blob is not what it was.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Missing,
    Truncated,
    Flipped,
    Zero,
    Others,
}

fn harm(path: &Path, how: Harm) {
    let mut bytes = fs::read(path).unwrap();
    match how {
        Harm::Missing => return fs::remove_file(path).unwrap(),
        Harm::Truncated => bytes.truncate(bytes.len() / 2),
        // In the middle: of the frames of a segment, of the body of a manifest.
        Harm::Flipped => bytes.chunks_mut(4096).for_each(|page| page[page.len() / 2] ^= 0x10),
        Harm::Zero => bytes.fill(0),
        Harm::Others => {
            fs::copy(path.with_file_name("segment-000001-001"), path).unwrap();
            return;
        }
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_one_tier_has_not_intact_is_read_from_the_next() {
    for how in [Harm::Missing, Harm::Truncated, Harm::Flipped, Harm::Zero, Harm::Others] {
        for name in NAMES {
            // Any of the three tiers, and all of them.
            for which in 1..8 {
                let bed = Bed::new();
                let folders = [bed.job.dir().to_owned(), bed.below(), bed.lowest()];
                let paths: Vec<(bool, PathBuf)> =
                    (0..).zip(folders).map(|(n, folder)| (which >> n & 1 == 1, folder.join(name))).collect();
                for (_, path) in paths.iter().filter(|(harmed, _)| *harmed) {
                    harm(path, how);
                }
                let what = format!("{how:?} {name} on tiers {which:03b}");
                let is_same = matches!(how, Harm::Others) && name == "segment-000001-001";
                match bed.read_from(bed.job.open_image_from(Epoch(1), &bed.all_below())) {
                    Ok(read) => assert!(read == bed.model && (which != 7 || is_same), "{what}"),
                    Err(error) => {
                        assert!(which == 7, "{what}: {error}");
                        // One that is on no tier at all is simply not there.
                        let named = paths.iter().all(|(_, path)| error.contains(path.to_str().unwrap()));
                        let gone = name == NAMES[0] && matches!(how, Harm::Missing);
                        assert!(named || gone, "{what}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn halves_of_an_image_on_two_tiers_are_one() {
    let bed = Bed::new();
    // Of the segment with the most frames another one is damaged on each tier: the first, and the last.
    let len = |name: &&&str| fs::metadata(bed.job.dir().join(name)).unwrap().len();
    let name = NAMES[1..].iter().max_by_key(len).unwrap();
    for (path, at_end) in [(bed.job.dir().join(name), false), (bed.below().join(name), true)] {
        let mut bytes = fs::read(&path).unwrap();
        let blocks = bytes.len() - 4096;
        let end = bytes[..blocks].iter().rposition(|&byte| byte != 0).unwrap();
        bytes[if at_end { end } else { 100 }] ^= 1;
        fs::write(&path, bytes).unwrap();
    }
    assert!(bed.read().unwrap() == bed.model);
    assert!(bed.job.open_image(Epoch(1)).unwrap().verify(&|_| ()).is_err(), "each alone is damaged");
}

/// A program that was restarted lazily has its image open for days.
#[test]
fn a_copy_that_comes_back_is_read_by_an_image_that_is_open() {
    let bed = Bed::new();
    let image = bed.open().unwrap();
    for name in &NAMES[1..] {
        harm(&bed.job.dir().join(name), Harm::Flipped);
        fs::rename(bed.below().join(name), bed.dir.0.join(name)).unwrap();
    }
    assert!(read_pages(&image).is_err(), "no copy is intact");
    for name in &NAMES[1..] {
        fs::rename(bed.dir.0.join(name), bed.below().join(name)).unwrap();
    }
    assert!(read_pages(&image).unwrap() == bed.model);
}

#[test]
fn an_image_that_is_below_only_is_read_and_nothing_builds_on_it() {
    let bed = Bed::new();
    assert!(bed.open().unwrap().is_on_first_tier());
    for name in NAMES {
        fs::remove_file(bed.job.dir().join(name)).unwrap();
    }
    assert!(matches!(bed.job.open_image(Epoch(1)), Err(StoreError::NoImage { .. })));
    assert!(matches!(bed.job.open_image_from(Epoch(2), &[bed.folder()]), Err(StoreError::NoImage { .. })));
    let image = bed.open().unwrap();
    assert!(read_all(&image).unwrap() == bed.model);
    image.verify(&|_| ()).unwrap();
    assert!(!image.is_on_first_tier());
    let lock = bed.job.lock().unwrap();
    let begun = bed.job.begin(&lock, Epoch(2), Some(Lineage::of_image(&image)));
    assert!(begun.is_err_and(|error| error.to_string().contains("other tiers")));
    // What it maps lies below.
    for segment in segments_of(&image) {
        let path = fs::read_link(format!("/proc/self/fd/{}", segment.file.as_raw_fd())).unwrap();
        assert!(path.starts_with(bed.below().canonicalize().unwrap()), "{path:?}");
    }
    assert!(
        image.detours().iter().any(|line| line.contains("2 segments were read from")),
        "{:?}",
        image.detours()
    );
    assert!(image.extents().iter().any(|extent| matches!(extent.source, ExtentSource::Mappable { .. })));
}

#[test]
fn what_is_damaged_where_it_would_be_mapped_is_read_from_below() {
    let bed = Bed::new();
    let whole = bed.open().unwrap();
    let place = whole.extents().iter().find_map(|extent| match extent.source {
        ExtentSource::Mappable { segment, offset } => Some((segment, offset)),
        _ => None,
    });
    let (segment, offset) = place.unwrap();
    let MappedFrom::Segment { number, .. } = whole.segment(segment).unwrap().from else { panic!() };
    let name = bed.job.dir().join(format!("segment-000001-{number:03}"));
    let mut bytes = fs::read(&name).unwrap();
    bytes[offset as usize + 100] ^= 1;
    fs::write(&name, bytes).unwrap();
    let image = bed.open().unwrap();
    let mapped = image.extents().iter().filter(|e| matches!(e.source, ExtentSource::Mappable { .. }));
    let mapped: Vec<_> = mapped.map(|extent| extent.run).collect();
    let damaged = image.check_mapped(&mapped).unwrap();
    let pages = |runs: &[PageRun]| runs.iter().map(|run| run.pages.0).sum::<u64>();
    assert!(!damaged.is_empty() && pages(&damaged) < pages(&mapped), "{damaged:?} of {mapped:?}");
    assert_eq!(image.check_mapped(&mapped[mapped.len() - 1..]).unwrap(), [], "only what is asked for");
    for run in &damaged {
        let mut bytes = vec![0; run.pages.bytes() as usize];
        image.read(run.start, &mut bytes).unwrap();
        for (page, found) in (run.start.0 / PAGE_SIZE..).zip(bytes.chunks(PAGE_SIZE as usize)) {
            assert!(bed.model[&page] == found, "page {page}");
        }
    }
    let lines = image.detours();
    let paths = [name, bed.below()].map(|path| path.display().to_string());
    assert!(lines.len() == 1 && paths.iter().all(|path| lines[0].contains(path)), "{lines:?}");
    // Where no other tier has it, reading says so.
    let alone = bed.job.open_image(Epoch(1)).unwrap();
    let damaged = alone.check_mapped(&mapped).unwrap();
    assert!(alone.read(damaged[0].start, &mut vec![0; PAGE_SIZE as usize]).is_err());
}

/// A tier that hands no file out, and from some time on answers no read.
struct Remote {
    inner: LocalTier,
    down: Arc<std::sync::atomic::AtomicBool>,
}

struct RemoteBlob(Box<dyn Blob>, Arc<std::sync::atomic::AtomicBool>);

impl Blob for RemoteBlob {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), TierError> {
        if self.1.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(TierError::Unavailable { object: "s3://x".into(), why: "no route".into() });
        }
        self.0.read_at(offset, buffer)
    }
    fn mapping(&self) -> Option<(&File, u64)> {
        None
    }
}

impl Tier for Remote {
    fn info(&self) -> &TierInfo {
        self.inner.info()
    }
    fn list(&self, folder: &str) -> Result<Listing, TierError> {
        self.inner.list(folder)
    }
    fn open(&self, name: &BlobName) -> Result<Box<dyn Blob>, TierError> {
        Ok(Box::new(RemoteBlob(self.inner.open(name)?, Arc::clone(&self.down))))
    }
    fn create(&self, name: &BlobName, expected: Option<u64>) -> Result<Box<dyn BlobWriter>, TierError> {
        self.inner.create(name, expected)
    }
    fn publish(&self, name: &BlobName, bytes: &[u8]) -> Result<(), TierError> {
        self.inner.publish(name, bytes)
    }
    fn remove(&self, name: &BlobName) -> Result<(), TierError> {
        self.inner.remove(name)
    }
    fn clean(&self, folder: &str) -> Result<u64, TierError> {
        self.inner.clean(folder)
    }
}

#[test]
fn a_tier_that_goes_down_in_the_middle_is_left_for_the_next() {
    let bed = Bed::new();
    let down = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let remote = Remote { inner: LocalTier::open(&bed.below_root()).unwrap(), down: Arc::clone(&down) };
    let remote = TierFolder::new(Arc::new(remote), "job").unwrap();
    let image = Image::open(&[remote.clone(), bed.job.folder().clone()], Epoch(1)).unwrap();
    assert!(
        !image.extents().iter().any(|extent| matches!(extent.source, ExtentSource::Mappable { .. })),
        "what has no file is not mapped"
    );
    let mut page = vec![0; PAGE_SIZE as usize];
    image.read(run(1000, 1).start, &mut page).unwrap();
    down.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(read_pages(&image).unwrap() == bed.model);
    // Alone, it says what is wrong.
    let error = Image::open(&[remote], Epoch(1)).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("no route"), "{error}");
}

#[test]
fn a_folder_of_others_below_is_no_reason_to_fail() {
    let bed = Bed::new();
    fs::set_permissions(bed.below(), Permissions::from_mode(0o777)).unwrap();
    assert!(bed.read().unwrap() == bed.model);
    fs::remove_file(bed.job.dir().join(NAMES[1])).unwrap();
    let error = bed.read().unwrap_err();
    assert!(error.contains("others may write to it") && error.contains("is missing"), "{error}");
}
