//! Pages that several processes have are stored once, in one image and from image to image.

use crate::common::{Content, MemorySource, Model, TempDir, commit_record, options, page_of, read_all};
use holdfast_image::pages::{Inherited, PageSource};
use holdfast_image::{PAGE_SIZE, address_space};
use holdfast_tiers::{Job, JobLock, Lineage, Store};
use std::collections::BTreeSet;
use std::sync::Arc;

const PAGES: u64 = 2000;

/// Number of a page of process `number`.
fn page(number: u32, own: u64) -> u64 {
    address_space::global(number, holdfast_image::Addr((1000 + own) * PAGE_SIZE)).0 / PAGE_SIZE
}

/// The pages of one process: the same in all of them but for every `other`th.
fn process(number: u32, other: u64) -> Model {
    let content =
        |own: u64| page_of(Content::Noise, if own.is_multiple_of(other) { page(number, own) } else { own });
    (0..PAGES).map(|own| (page(number, own), content(own))).collect()
}

fn store(
    job: &Job,
    lock: &JobLock,
    parent: Option<Arc<Lineage>>,
    memory: &Model,
    dirty: &Model,
) -> (u64, Arc<Lineage>) {
    let mut source = MemorySource::of_model(memory, &dirty.keys().copied().collect());
    source.several = true;
    let unchanged: BTreeSet<u64> = memory.keys().filter(|page| !dirty.contains_key(page)).copied().collect();
    let inherited = Inherited { unchanged: crate::common::runs_of(&unchanged), mapped: Vec::new() };
    let epoch = job.next_epoch().unwrap();
    let mut writer = job.begin(lock, epoch, parent).unwrap();
    assert_eq!(source.pages().0, dirty.len() as u64);
    writer.write_pages(&source, &inherited, &options(2), &|_, _| ()).unwrap();
    let (_, lineage) = writer.commit(commit_record()).unwrap();
    let image = job.open_image(epoch).unwrap();
    assert_eq!(&read_all(&image).unwrap(), memory);
    (image.figures().pages_stored, lineage)
}

#[test]
fn what_a_parent_and_its_children_share_is_stored_once() {
    let folder = TempDir::new();
    let job = Store::open(&folder.store()).unwrap().create_job("tree").unwrap();
    let lock = job.lock().unwrap();
    let mut memory = process(0, 10);
    let (first, lineage) = store(&job, &lock, None, &memory, &memory.clone());
    assert_eq!(first, PAGES);
    // Two children, all of whose pages are new to the tracker.
    let children: Model = process(1, 10).into_iter().chain(process(2, 10)).collect();
    memory.extend(children.clone());
    let (second, lineage) = store(&job, &lock, Some(lineage), &memory, &children);
    assert_eq!(second, 2 * PAGES / 10);
    // A third writes half of its pages; the image goes on from there.
    let child = process(3, 2);
    memory.extend(child.clone());
    let (third, _) = store(&job, &lock, Some(lineage), &memory, &child);
    assert_eq!(third, PAGES / 2);
}

#[test]
fn one_image_of_them_all_holds_each_page_once_but_for_those_in_hand() {
    let folder = TempDir::new();
    let job = Store::open(&folder.store()).unwrap().create_job("tree").unwrap();
    let lock = job.lock().unwrap();
    let memory: Model = (0..4).flat_map(|number| process(number, 10)).collect();
    let (stored, _) = store(&job, &lock, None, &memory, &memory.clone());
    let least = PAGES + 3 * PAGES / 10;
    // Two workers, with a frame of 256 pages each that is not stored yet.
    assert!((least..least + 4 * 256).contains(&stored), "{stored} pages, at least {least}");
}
