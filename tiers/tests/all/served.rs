//! An image whose pages are served: where they are, what gaps hold, and what later images know of them.
use crate::common::{
    self, Content, MemorySource, Model, PAGE, TempDir, commit_record, options, page_of, read_all,
};
use holdfast_image::pages::{Extent, ExtentSource, Inherited, MappedFrom, PageProvider, StoreMapping};
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_tiers::{Image, Job, JobLock, Lineage, Store};
use std::collections::BTreeSet;
use std::sync::Arc;

const FIRST: u64 = 5000;
const PAGES: u64 = 600;

struct Shop {
    _folder: TempDir,
    job: Job,
    lock: JobLock,
}

impl Shop {
    fn new() -> Shop {
        let folder = TempDir::new();
        let job = Store::open(&folder.store()).unwrap().create_job("served").unwrap();
        Shop { lock: job.lock().unwrap(), job, _folder: folder }
    }

    /// `memory` of which `dirty` is read; returns how many pages were, and the open image.
    fn store(
        &self,
        parent: Option<Arc<Lineage>>,
        memory: &Model,
        dirty: &BTreeSet<u64>,
        mapped: Vec<StoreMapping>,
    ) -> (u64, Image, Arc<Lineage>) {
        let source = MemorySource::of_model(memory, dirty);
        let of_file: BTreeSet<u64> = mapped
            .iter()
            .flat_map(|mapping| (0..mapping.run.pages.0).map(|n| mapping.run.start.0 / PAGE_SIZE + n))
            .collect();
        let rest = memory.keys().filter(|page| !dirty.contains(page) && !of_file.contains(page));
        let unchanged = common::runs_of(&rest.copied().collect());
        let epoch = self.job.next_epoch().unwrap();
        let mut writer = self.job.begin(&self.lock, epoch, parent).unwrap();
        writer.write_pages(&source, &Inherited { unchanged, mapped }, &options(2), &|_, _| ()).unwrap();
        let (_, lineage) = writer.commit(commit_record()).unwrap();
        let image = self.job.open_image(epoch).unwrap();
        assert_eq!(&read_all(&image).unwrap(), memory);
        (image.figures().pages_read, image, lineage)
    }

    /// Two increments of scattered pages, and every seventh page missing.
    fn scattered(&self) -> (Model, Image) {
        let all = (FIRST..FIRST + PAGES).filter(|page| page % 7 != 0);
        let mut memory: Model = all.map(|page| (page, page_of(Content::Noise, page))).collect();
        let (_, _, lineage) = self.store(None, &memory, &memory.keys().copied().collect(), Vec::new());
        let dirty: BTreeSet<u64> = memory.keys().copied().filter(|page| page % 3 == 0).collect();
        for page in &dirty {
            let kind = if page % 2 == 0 { Content::Zero } else { Content::Text };
            memory.insert(*page, page_of(kind, page + 1));
        }
        let (_, image, _) = self.store(Some(lineage), &memory, &dirty, Vec::new());
        (memory, image)
    }
}

#[test]
fn every_page_is_at_its_address_and_gaps_are_zero() {
    let shop = Shop::new();
    let (memory, mut image) = shop.scattered();
    assert!(!image.is_served() && image.shared_pages().is_none());
    image.serve();
    let number = image.shared_pages().unwrap();
    let mut seen = BTreeSet::new();
    for Extent { run, source } in image.extents() {
        let at = |n: u64| run.start.0 / PAGE_SIZE + n;
        let is_zero = *source == ExtentSource::Zero;
        assert!(is_zero || *source == ExtentSource::Mappable { segment: number, offset: run.start.0 });
        for n in 0..run.pages.0 {
            assert_eq!(memory[&at(n)].iter().all(|byte| *byte == 0), is_zero);
            seen.insert(at(n));
        }
    }
    assert_eq!(seen, memory.keys().copied().collect());
    // From before the first to behind the last.
    for (from, pages) in [(FIRST - 3, PAGES + 9), (FIRST + 4, 5), (1, 2), (FIRST + PAGES + 7, 1)] {
        let mut bytes = vec![1; pages as usize * PAGE];
        image.read_or_zero(Addr(from * PAGE_SIZE), &mut bytes).unwrap();
        for (page, found) in (from..).zip(bytes.chunks(PAGE)) {
            assert!(found == memory.get(&page).map_or(&[0; PAGE][..], |page| page), "page {page}");
        }
    }
}

#[test]
fn what_is_still_served_is_unchanged_and_what_was_moved_is_read() {
    let shop = Shop::new();
    let (mut memory, mut image) = shop.scattered();
    image.serve();
    let map = |page: u64, pages: u64, from: u64| StoreMapping {
        run: common::run(page, pages),
        from: MappedFrom::SharedPages,
        offset: from * PAGE_SIZE,
    };
    // The whole range is one mapping: what was missing is zero now.
    for page in FIRST..FIRST + PAGES {
        memory.entry(page).or_insert_with(|| vec![0; PAGE]);
    }
    let all = [map(FIRST, PAGES, FIRST)];
    let (read, _, lineage) =
        shop.store(Some(Lineage::of_image(&image)), &memory, &BTreeSet::new(), all.to_vec());
    assert_eq!(read, 0);
    // Then one page is written, and some are moved (mremap): to where others were.
    let written = FIRST + 10;
    memory.insert(written, page_of(Content::Noise, 3));
    let (to, from, moved) = (FIRST + 100, FIRST + 300, 20);
    for n in 0..moved {
        memory.insert(to + n, memory[&(from + n)].clone());
    }
    let next = vec![
        map(FIRST, 10, FIRST),
        map(written + 1, to - written - 1, written + 1),
        map(to, moved, from),
        map(to + moved, PAGES - 100 - moved, to + moved),
    ];
    let same = (0..moved).filter(|n| memory[&(from + n)].iter().all(|byte| *byte == 0)).count() as u64;
    let (read, _, lineage) = shop.store(Some(lineage), &memory, &BTreeSet::from([written]), next.clone());
    assert!(read > moved / 2 && read <= 1 + moved, "{read}, {same} of the moved ones are zero");
    // An image later it is as before.
    let (again, ..) = shop.store(Some(lineage), &memory, &BTreeSet::new(), next);
    assert!(again <= moved, "{again}");
}
