//! One process's pages of an image of several, at the addresses that the process knows
//! ([`holdfast_image::address_space`]).
//!
//! Made by [`super::rebuild_job`] for each process. Invariant: processes are rebuilt one after the other.

use holdfast_image::pages::{Extent, PageProvider};
use holdfast_image::{Addr, address_space};
use std::io;
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
    fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()> {
        self.all.read(address_space::global(self.space, start), buffer)
    }
    fn verify_mappable(&self) -> io::Result<()> {
        if self.checked.swap(true, Ordering::Relaxed) { Ok(()) } else { self.all.verify_mappable() }
    }
    fn common(&self) -> Option<u32> {
        self.all.common()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::pages::{ExtentSource, PageRun};
    use holdfast_image::{PAGE_SIZE, PageCount};

    /// Pages that hold the numbers of their spaces.
    struct Pages(Vec<Extent>);
    impl PageProvider for Pages {
        fn extents(&self) -> &[Extent] {
            &self.0
        }
        fn segments(&self) -> &[PathBuf] {
            &[]
        }
        fn read(&self, start: Addr, buffer: &mut [u8]) -> io::Result<()> {
            buffer.fill(u8::try_from(address_space::split(start).0).unwrap());
            Ok(())
        }
        fn verify_mappable(&self) -> io::Result<()> {
            Err(io::Error::other("checked"))
        }
    }

    #[test]
    fn each_process_sees_its_own() {
        let own = |page: u64| PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(2) };
        let extent = |space, page| Extent {
            run: address_space::global_run(space, own(page)),
            source: ExtentSource::Stored,
        };
        let pages = Pages(vec![extent(0, 7), extent(2, 3), extent(2, 9), extent(3, 1)]);
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
        assert!(view.verify_mappable().is_err(), "the first asks");
        assert!(ProcessPages::new(&pages, 3, &checked).verify_mappable().is_ok());
    }
}
