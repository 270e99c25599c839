//! What several processes have in common is unpacked once, and what is mapped from there is known again.

use crate::common::{Content, MemorySource, Model, PAGE, TempDir, commit_record, options, page_of, read_all};
use holdfast_image::pages::{Extent, ExtentSource, Inherited, MappedFrom, PageProvider, StoreMapping};
use holdfast_image::{Addr, Epoch, PAGE_SIZE, PageCount, address_space};
use holdfast_tiers::{Image, Job, JobLock, Lineage, Store};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGES: u64 = 2000;
/// Every so many pages a process has its own.
const OWN: u64 = 50;

/// The pages of one process, by their numbers.
fn process(number: u32, kind: Content) -> Model {
    let place = |own: u64| address_space::global(number, Addr((1000 + own) * PAGE_SIZE)).0 / PAGE_SIZE;
    let content = |own: u64| page_of(kind, if own.is_multiple_of(OWN) { place(own) } else { own });
    (0..PAGES).map(|own| (place(own), content(own))).collect()
}

struct Shop {
    _folder: TempDir,
    job: Job,
    lock: JobLock,
}

impl Shop {
    /// Pages read from the source.
    fn store(
        &self,
        parent: Option<Arc<Lineage>>,
        memory: &Model,
        dirty: &Model,
        mapped: Vec<StoreMapping>,
    ) -> (u64, Epoch, Arc<Lineage>) {
        let mut source = MemorySource::of_model(memory, &dirty.keys().copied().collect());
        source.several = true;
        let of_file: BTreeSet<u64> = mapped
            .iter()
            .flat_map(|mapping| (0..mapping.run.pages.0).map(|n| mapping.run.start.0 / PAGE_SIZE + n))
            .collect();
        let rest = memory.keys().filter(|page| !dirty.contains_key(page) && !of_file.contains(page));
        let unchanged = crate::common::runs_of(&rest.copied().collect());
        let epoch = self.job.next_epoch().unwrap();
        let mut writer = self.job.begin(&self.lock, epoch, parent).unwrap();
        writer.write_pages(&source, &Inherited { unchanged, mapped }, &options(2), &|_, _| ()).unwrap();
        let (_, lineage) = writer.commit(commit_record()).unwrap();
        let image = self.job.open_image(epoch).unwrap();
        assert_eq!(&read_all(&image).unwrap(), memory);
        (image.figures().pages_read, epoch, lineage)
    }
}

/// A family whose pages are stored once.
fn family(kind: Content) -> (Shop, Model, Image) {
    let folder = TempDir::new();
    let job = Store::open(&folder.store()).unwrap().create_job("tree").unwrap();
    let shop = Shop { lock: job.lock().unwrap(), job, _folder: folder };
    let mut memory = process(0, kind);
    let (_, _, lineage) = shop.store(None, &memory, &memory, Vec::new());
    let children: Model = process(1, kind).into_iter().chain(process(2, kind)).collect();
    memory.extend(children.clone());
    let (_, epoch, _) = shop.store(Some(lineage), &memory, &children, Vec::new());
    let image = shop.job.open_image(epoch).unwrap();
    (shop, memory, image)
}

fn in_common(image: &Image) -> Vec<(Extent, u64)> {
    let common = image.shared_pages();
    let place = |extent: &Extent| match extent.source {
        ExtentSource::Mappable { segment, offset } if Some(segment) == common => Some((*extent, offset)),
        _ => None,
    };
    image.extents().iter().filter_map(place).collect()
}

#[test]
fn it_is_unpacked_once_for_all() {
    let (_shop, memory, mut image) = family(Content::Text);
    assert_eq!((image.shared_pages(), in_common(&image).len()), (None, 0));
    image.share(false);
    let found = in_common(&image);
    for number in 0..3 {
        let own = found.iter().filter(|(extent, _)| address_space::split(extent.run.start).0 == number);
        let pages: u64 = own.map(|(extent, _)| extent.run.pages.0).sum();
        assert!(pages >= PAGES - PAGES / OWN, "{pages} of process {number}");
    }
    let file =
        File::options().read(true).write(true).create_new(true).open(_shop.job.dir().join("x")).unwrap();
    image.fill_shared_pages(&file).unwrap();
    assert!(file.metadata().unwrap().len() < 2 * PAGES * PAGE_SIZE, "not once for each");
    for (extent, offset) in found {
        let mut bytes = vec![0; extent.run.pages.0 as usize * PAGE];
        file.read_exact_at(&mut bytes, offset).unwrap();
        for (page, content) in (extent.run.start.0 / PAGE_SIZE..).zip(bytes.chunks(PAGE)) {
            assert!(content == memory[&page], "page {page}");
        }
    }
    assert_eq!(read_all(&image).unwrap(), memory, "it can be read as before");
}

#[test]
fn what_is_not_compressed_counts_if_it_is_wanted() {
    let (_shop, _, mut image) = family(Content::Noise);
    image.share(false);
    assert_eq!(image.shared_pages(), None, "a lazy restart maps it from the segments");
    image.share(true);
    let pages: u64 = in_common(&image).iter().map(|(extent, _)| extent.run.pages.0).sum();
    assert!(pages >= 3 * (PAGES - PAGES / OWN), "{pages}");
}

#[test]
fn one_process_has_nothing_in_common() {
    let folder = TempDir::new();
    let job = Store::open(&folder.store()).unwrap().create_job("tree").unwrap();
    let shop = Shop { lock: job.lock().unwrap(), job, _folder: folder };
    let memory = process(0, Content::Text);
    let (_, epoch, _) = shop.store(None, &memory, &memory, Vec::new());
    let mut image = shop.job.open_image(epoch).unwrap();
    image.share(false);
    assert_eq!(image.shared_pages(), None);
}

#[test]
fn what_is_mapped_from_it_is_unchanged_and_what_was_moved_is_read() {
    let (shop, mut memory, mut image) = family(Content::Text);
    image.share(false);
    let file =
        File::options().read(true).write(true).create_new(true).open(shop.job.dir().join("x")).unwrap();
    image.fill_shared_pages(&file).unwrap();
    let map =
        |extent: &Extent, offset| StoreMapping { run: extent.run, from: MappedFrom::SharedPages, offset };
    let mapped: Vec<StoreMapping> =
        in_common(&image).iter().map(|(extent, offset)| map(extent, *offset)).collect();
    let lineage = Lineage::of_image(&image);
    let (read, _, lineage) = shop.store(Some(lineage), &memory, &Model::new(), mapped.clone());
    assert_eq!(read, 0);
    // A written page is its own; the image after knows the others still. One run has got another's place.
    let (first, second) = (&mapped[0], &mapped[1]);
    let own = first.run.start.0 / PAGE_SIZE;
    let dirty = Model::from([(own, page_of(Content::Noise, 7))]);
    memory.extend(dirty.clone());
    let mut next = mapped.clone();
    next[0].run.start.0 += PAGE_SIZE;
    next[0].run.pages = PageCount(first.run.pages.0 - 1);
    next[0].offset += PAGE_SIZE;
    let pages = 5;
    next[1].run.pages = PageCount(pages);
    next[1].offset = second.offset + 7 * PAGE_SIZE;
    for n in 0..pages {
        let from = second.run.start.0 / PAGE_SIZE + 7 + n;
        memory.insert(from - 7, memory[&from].clone());
    }
    let (read, ..) = shop.store(Some(lineage), &memory, &dirty, next);
    assert_eq!(read, 1 + pages, "the written one and those that were moved");
}
