//! One process's pages of an image of several, at the addresses that the process knows
//! ([`holdfast_image::address_space`]).
//!
//! Made by [`super::rebuild_job`] for each process. Invariant: processes are rebuilt one after the other.

use holdfast_image::pages::{Extent, PageError, PageProvider, PageRun, PutPages};
use holdfast_image::{Addr, address_space};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the head of the file.
pub struct ProcessPages<'a> {
    all: &'a dyn PageProvider,
    space: u32,
    extents: Vec<Extent>,
    /// What can be mapped is checked once for all processes.
    checked: &'a AtomicBool,
}

impl<'a> ProcessPages<'a> {
    /// The pages of one space.
    pub fn new(all: &'a dyn PageProvider, space: u32, checked: &'a AtomicBool) -> ProcessPages<'a> {
        let extents = all.extents();
        let space_of = |extent: &Extent| address_space::split(extent.run.start).0;
        let from = extents.partition_point(|extent| space_of(extent) < space);
        let to = extents.partition_point(|extent| space_of(extent) <= space);
        let own = extents.get(from..to).unwrap_or_default().iter();
        let extents =
            own.map(|extent| Extent { run: address_space::split_run(extent.run).1, ..*extent }).collect();
        ProcessPages { all, space, extents, checked }
    }
}

impl PageProvider for ProcessPages<'_> {
    fn extents(&self) -> &[Extent] {
        &self.extents
    }
    fn segments(&self) -> &[PathBuf] {
        self.all.segments()
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError> {
        self.all.read(address_space::global(self.space, start), buffer)
    }
    fn gather(&self, wanted: &[PageRun], put: &PutPages<'_>) -> Result<(), PageError> {
        let wanted: Vec<PageRun> =
            wanted.iter().map(|run| address_space::global_run(self.space, *run)).collect();
        self.all.gather(&wanted, &|runs| {
            let own: Vec<(Addr, &[u8])> =
                runs.iter().map(|(start, bytes)| (address_space::split(*start).1, *bytes)).collect();
            put(&own)
        })
    }
    fn verify_mappable(&self) -> Result<(), PageError> {
        if self.checked.swap(true, Ordering::Relaxed) { Ok(()) } else { self.all.verify_mappable() }
    }
    fn is_served(&self) -> bool {
        self.all.is_served()
    }
    fn shared_pages(&self) -> Option<u32> {
        self.all.shared_pages()
    }
    fn fill_shared_pages(&self, file: &File) -> Result<(), PageError> {
        self.all.fill_shared_pages(file)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::pages::ExtentSource;
    use holdfast_image::testing::FakeImage;
    use holdfast_image::{PAGE_SIZE, PageCount};

    /// Pages that hold the numbers of their spaces.
    fn image(extents: Vec<Extent>) -> FakeImage {
        FakeImage::new(extents, |start, page| {
            page.fill(u8::try_from(address_space::split(start).0).unwrap());
        })
    }

    #[test]
    fn each_process_sees_its_own() {
        let own = |page: u64| PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(2) };
        let extent = |space, page| Extent {
            run: address_space::global_run(space, own(page)),
            source: ExtentSource::Stored,
        };
        let mut pages = image(vec![extent(0, 7), extent(2, 3), extent(2, 9), extent(3, 1)]);
        let checked = AtomicBool::new(false);
        let runs = |space| {
            let view = ProcessPages::new(&pages, space, &checked);
            view.extents().iter().map(|extent| extent.run).collect::<Vec<PageRun>>()
        };
        assert_eq!((runs(0), runs(1), runs(2)), (vec![own(7)], vec![], vec![own(3), own(9)]));
        let view = ProcessPages::new(&pages, 2, &checked);
        let mut buffer = [0; 8];
        view.read(own(3).start, &mut buffer).unwrap();
        assert_eq!(buffer, [2; 8]);
        pages.is_damaged = true;
        let view = ProcessPages::new(&pages, 2, &checked);
        assert!(view.verify_mappable().is_err(), "the first asks");
        assert!(ProcessPages::new(&pages, 3, &checked).verify_mappable().is_ok());
    }

    #[test]
    fn what_all_share_is_that_of_the_image() {
        let mut pages = image(Vec::new());
        let checked = AtomicBool::new(false);
        assert_eq!(ProcessPages::new(&pages, 1, &checked).shared_pages(), None);
        pages.shared_pages = Some(5);
        let view = ProcessPages::new(&pages, 1, &checked);
        assert_eq!(view.shared_pages(), Some(5));
        let path = std::env::temp_dir().join(format!("shared-pages-{}", std::process::id()));
        view.fill_shared_pages(&File::create(&path).unwrap()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 4096]);
        std::fs::remove_file(path).unwrap();
    }
}
