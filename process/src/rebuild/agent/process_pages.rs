//! One process's pages of an image of several, at the addresses that the process knows
//! ([`holdfast_image::address_space`]).
//!
//! Made by [`super::rebuild_job`] for each process. Invariant: processes are rebuilt one after the other.

use holdfast_image::page_set::PageSet;
use holdfast_image::pages::{
    Extent, ExtentSource, MappableSegment, PageError, PageProvider, PageRun, PutPages,
};
use holdfast_image::{Addr, address_space};
use std::fs::File;

/// See the head of the file.
pub struct ProcessPages<'a> {
    all: &'a dyn PageProvider,
    space: u32,
    extents: Vec<Extent>,
}

impl<'a> ProcessPages<'a> {
    /// The pages of one space. `damaged`: pages of all spaces that cannot be mapped, and are to be read.
    pub fn new(all: &'a dyn PageProvider, space: u32, damaged: &PageSet) -> ProcessPages<'a> {
        let extents = all.extents();
        let space_of = |extent: &Extent| address_space::split(extent.run.start).0;
        let from = extents.partition_point(|extent| space_of(extent) < space);
        let to = extents.partition_point(|extent| space_of(extent) <= space);
        let own = extents.get(from..to).unwrap_or_default().iter();
        let own = own.flat_map(|extent| without(extent, damaged));
        let extents =
            own.map(|extent| Extent { run: address_space::split_run(extent.run).1, ..extent }).collect();
        ProcessPages { all, space, extents }
    }
}

impl ProcessPages<'_> {
    /// The same runs as all processes together have them.
    pub fn global(&self, runs: &[PageRun]) -> Vec<PageRun> {
        runs.iter().map(|run| address_space::global_run(self.space, *run)).collect()
    }
}

/// An extent, cut into what may be mapped, and what is damaged and is to be read.
fn without(extent: &Extent, damaged: &PageSet) -> Vec<Extent> {
    let ExtentSource::Mappable { segment, offset } = extent.source else { return vec![*extent] };
    let (run, mut parts, mut at) = (extent.run, Vec::new(), extent.run.start);
    let mut add = |start: Addr, end: Addr, source| {
        let run = PageRun::between(start, end);
        parts.extend((run.pages.0 > 0).then_some(Extent { run, source }));
    };
    let mapped = |at: Addr| ExtentSource::Mappable { segment, offset: offset + (at.0 - run.start.0) };
    for bad in damaged.touching(run) {
        let (start, end) = (bad.start.max(run.start), bad.end().min(run.end()));
        add(at, start, mapped(at));
        add(start, end, ExtentSource::Stored);
        at = end;
    }
    add(at, run.end(), mapped(at));
    parts
}

impl PageProvider for ProcessPages<'_> {
    fn extents(&self) -> &[Extent] {
        &self.extents
    }
    fn segment(&self, number: u32) -> Option<MappableSegment<'_>> {
        self.all.segment(number)
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError> {
        self.all.read(address_space::global(self.space, start), buffer)
    }
    fn gather(&self, wanted: &[PageRun], put: &PutPages<'_>) -> Result<(), PageError> {
        self.all.gather(&self.global(wanted), &|runs| {
            let own: Vec<(Addr, &[u8])> =
                runs.iter().map(|(start, bytes)| (address_space::split(*start).1, *bytes)).collect();
            put(&own)
        })
    }
    fn check_mapped(&self, wanted: &[PageRun]) -> Result<Vec<PageRun>, PageError> {
        let damaged = self.all.check_mapped(&self.global(wanted))?;
        Ok(damaged.into_iter().map(|run| address_space::split_run(run).1).collect())
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
        let none = PageSet::new();
        let runs = |space| {
            let view = ProcessPages::new(&pages, space, &none);
            view.extents().iter().map(|extent| extent.run).collect::<Vec<PageRun>>()
        };
        assert_eq!((runs(0), runs(1), runs(2)), (vec![own(7)], vec![], vec![own(3), own(9)]));
        let view = ProcessPages::new(&pages, 2, &none);
        let mut buffer = [0; 8];
        view.read(own(3).start, &mut buffer).unwrap();
        assert_eq!(buffer, [2; 8]);
        pages.is_damaged = true;
        let view = ProcessPages::new(&pages, 2, &none);
        assert_eq!(view.check_mapped(&[own(3)]).unwrap(), [own(3)]);
    }

    #[test]
    fn what_is_damaged_is_read_and_not_mapped() {
        let run = |page: u64, pages: u64| {
            let own = PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) };
            address_space::global_run(2, own)
        };
        let mapped = |page: u64| ExtentSource::Mappable { segment: 7, offset: page * PAGE_SIZE };
        let pages = image(vec![Extent { run: run(10, 10), source: mapped(100) }]);
        let damaged = PageSet::from(vec![run(8, 3), run(14, 2), run(19, 9)]);
        let view = ProcessPages::new(&pages, 2, &damaged);
        let found: Vec<_> = view
            .extents()
            .iter()
            .map(|extent| (extent.run.start.0 / PAGE_SIZE, extent.run.pages.0, extent.source))
            .collect();
        let stored = ExtentSource::Stored;
        let parts =
            [(10, 1, stored), (11, 3, mapped(101)), (14, 2, stored), (16, 3, mapped(106)), (19, 1, stored)];
        assert_eq!(found, parts);
    }

    #[test]
    fn what_all_share_is_that_of_the_image() {
        let mut pages = image(Vec::new());
        let none = PageSet::new();
        assert_eq!(ProcessPages::new(&pages, 1, &none).shared_pages(), None);
        pages.shared_pages = Some(5);
        let view = ProcessPages::new(&pages, 1, &none);
        assert_eq!(view.shared_pages(), Some(5));
        let path = std::env::temp_dir().join(format!("shared-pages-{}", std::process::id()));
        view.fill_shared_pages(&File::create(&path).unwrap()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 4096]);
        std::fs::remove_file(path).unwrap();
    }
}
