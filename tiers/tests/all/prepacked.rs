//! Pages that their source packs: they are stored as they come, and later images know what is not known of them.

use crate::common::{
    Content, MemorySource, Model, PAGE, TempDir, commit_record, options, page_of, read_all, run,
};
use holdfast_image::pages::{Inherited, PageError, PageRun, PageSource, SourceCodec};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_tiers::codec::{Codec, Coder, Compression};
use holdfast_tiers::{Image, Job, JobLock, Lineage, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages of a unit.
const UNIT: u64 = 16;

/// A device: packs whole units of its pages.
struct Device {
    memory: MemorySource,
    /// Units that it has no room for, of each batch.
    without_room: usize,
    lies: bool,
    packed: AtomicUsize,
}

impl Device {
    fn new(runs: Vec<PageRun>, content: impl Fn(u64) -> Content) -> Device {
        let memory = MemorySource::new(runs, content);
        Device { memory, without_room: 0, lies: false, packed: AtomicUsize::new(0) }
    }
}

impl PageSource for Device {
    fn pages(&self) -> PageCount {
        self.memory.pages()
    }
    fn take(&self, most: PageCount, into: &mut Vec<PageRun>) {
        self.memory.take(most, into);
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<bool, PageError> {
        self.memory.read(start, buffer)
    }
    fn release(&self, run: PageRun) {
        self.memory.release(run);
    }
    fn is_urgent(&self) -> bool {
        self.memory.is_urgent()
    }
    fn has_several(&self) -> bool {
        self.memory.has_several()
    }
    fn packable(&self, runs: &mut Vec<PageRun>) -> Vec<PageRun> {
        let whole =
            |run: &PageRun| run.start.0.is_multiple_of(UNIT * PAGE_SIZE) && run.pages.0.is_multiple_of(UNIT);
        let units = runs.extract_if(.., |run| whole(run)).flat_map(|long| {
            (0..long.pages.0)
                .step_by(UNIT as usize)
                .map(move |page| run(long.start.0 / PAGE_SIZE + page, UNIT))
        });
        units.collect()
    }
    fn read_packed(
        &self,
        units: &[PageRun],
        codec: SourceCodec,
        into: &mut Vec<u8>,
    ) -> Result<Vec<usize>, PageError> {
        let codec = if codec == SourceCodec::Lz4 { Codec::Lz4 } else { Codec::Zstd };
        let mut coder = Coder::default();
        let units = &units[..units.len().saturating_sub(self.without_room)];
        let pack = |unit: &PageRun| {
            let mut raw = vec![0; UNIT as usize * PAGE];
            self.memory.read(unit.start, &mut raw)?;
            let data = coder.encode(codec, &raw).unwrap_or(&raw);
            into.extend_from_slice(data);
            Ok(data.len() + usize::from(self.lies))
        };
        self.packed.fetch_add(units.len(), Ordering::Relaxed);
        units.iter().map(pack).collect()
    }
}

struct World {
    job: Job,
    lock: JobLock,
    parent: Option<Arc<Lineage>>,
    compression: Compression,
    _dir: TempDir,
}

impl World {
    fn new(codec: Codec) -> World {
        let dir = TempDir::new();
        let job = Store::open(&dir.store()).unwrap().create_job("job").unwrap();
        let lock = job.lock().unwrap();
        World { job, lock, parent: None, compression: Compression::By(codec), _dir: dir }
    }

    fn store(&mut self, source: &dyn PageSource) -> Result<Image, holdfast_tiers::StoreError> {
        let mut writer = self.job.begin(&self.lock, self.job.next_epoch()?, self.parent.clone())?;
        let mut options = options(1);
        options.compression = self.compression;
        writer.write_pages(source, &Inherited::default(), &options, &|_, _| ())?;
        let (info, lineage) = writer.commit(commit_record())?;
        self.parent = Some(lineage);
        self.job.open_image(info.epoch)
    }
}

fn all_kinds(number: u64) -> Content {
    [Content::Text, Content::Noise, Content::Zero][(number / UNIT % 3) as usize]
}

fn frames_of(image: &Image, codec: Codec) -> u64 {
    image.frames_by_codec().iter().filter(|of| of.codec == codec).map(|of| of.frames).sum()
}

#[test]
fn what_comes_packed_is_stored_so_and_read_as_it_was() {
    for codec in [Codec::Lz4, Codec::Zstd] {
        let mut world = World::new(codec);
        // 200 units, in two batches, and pages that are no unit.
        let device = Device::new(vec![run(160, 200 * UNIT), run(3, 5)], all_kinds);
        let image = world.store(&device).unwrap();
        device.memory.assert_all_released();
        assert!(read_all(&image).unwrap() == device.memory.pages, "{codec:?}");
        image.verify(&|_| ()).unwrap();
        let figures = image.figures();
        assert_eq!(device.packed.load(Ordering::Relaxed), 200);
        assert_eq!(figures.pages_read, 200 * UNIT + 5);
        assert_eq!(figures.bytes_compressed_on_device, 133 * UNIT * PAGE_SIZE, "noise is as it was");
        // Blocks of LZ4 are frames of their own.
        let frames = frames_of(&image, codec);
        assert!(if codec == Codec::Lz4 { frames >= 133 } else { frames < 100 }, "{frames}");
    }
}

#[test]
fn what_there_is_no_room_for_is_read() {
    let mut world = World::new(Codec::Lz4);
    let mut device = Device::new(vec![run(160, 200 * UNIT)], all_kinds);
    device.without_room = 100;
    let image = world.store(&device).unwrap();
    device.memory.assert_all_released();
    assert!(read_all(&image).unwrap() == device.memory.pages);
    assert_eq!(device.packed.load(Ordering::Relaxed), 28);
    // Where nothing is to be packed, or other pages are waited for, nothing is asked.
    for (codec, urgent) in [(Codec::Raw, false), (Codec::ShuffleLz4, false), (Codec::Lz4, true)] {
        let mut world = World::new(codec);
        let mut device = Device::new(vec![run(160, 2 * UNIT), run(3, 5)], all_kinds);
        device.memory.urgent = urgent;
        let image = world.store(&device).unwrap();
        assert!(read_all(&image).unwrap() == device.memory.pages);
        assert_eq!(device.packed.load(Ordering::Relaxed), 0, "{codec:?}");
    }
}

/// The hash of a page in an older image is not that of what came packed since.
#[test]
fn a_page_that_was_packed_is_not_taken_for_what_it_was_before() {
    let mut world = World::new(Codec::Lz4);
    let runs = || vec![run(160, 4 * UNIT)];
    let before = |_| Content::Text;
    let image = world.store(&MemorySource::new(runs(), before)).unwrap();
    let first: Model = read_all(&image).unwrap();
    let device = Device::new(runs(), |_| Content::Noise);
    let image = world.store(&device).unwrap();
    assert!(read_all(&image).unwrap() == device.memory.pages);
    // As in the first image, which is not the parent.
    let image = world.store(&MemorySource::new(runs(), before)).unwrap();
    assert_eq!(image.figures().pages_unchanged, 0);
    assert!(read_all(&image).unwrap() == first);
    // And what is as in the parent is found, although its hash was not known.
    let device = Device::new(runs(), |_| Content::Noise);
    world.store(&device).unwrap();
    let image = world.store(&MemorySource::new(runs(), |_| Content::Noise)).unwrap();
    assert_eq!(image.figures().pages_unchanged, 4 * UNIT);
    assert!(first.keys().all(|number| read_all(&image).unwrap()[number] == page_of(Content::Noise, *number)));
}

#[test]
fn a_source_that_has_less_than_it_says_fails_the_image() {
    let mut world = World::new(Codec::Lz4);
    let mut device = Device::new(vec![run(160, UNIT)], |_| Content::Text);
    device.lies = true;
    let error = world.store(&device).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("a source has packed less than it says"), "{error}");
}
