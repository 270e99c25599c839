//! The one fake image of all tests: pages that are made when they are read. No part of the interface.

use crate::pages::{Extent, PageError, PageProvider};
use crate::{Addr, PAGE_SIZE};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

/// See the head of the file.
#[derive(Debug)]
pub struct FakeImage {
    /// What it has.
    pub extents: Vec<Extent>,
    /// Fills a page; gets its address.
    pub fill: fn(Addr, &mut [u8]),
    /// See [`PageProvider::shared_pages`]; the file becomes one page, that of address 0.
    pub shared_pages: Option<u32>,
    /// Reading and checking it finds a wrong byte.
    pub is_damaged: bool,
}

impl FakeImage {
    /// An intact image without shared pages.
    pub fn new(extents: Vec<Extent>, fill: fn(Addr, &mut [u8])) -> FakeImage {
        FakeImage { extents, fill, shared_pages: None, is_damaged: false }
    }
}

impl PageProvider for FakeImage {
    fn extents(&self) -> &[Extent] {
        &self.extents
    }
    fn segments(&self) -> &[PathBuf] {
        &[]
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError> {
        self.verify_mappable()?;
        for (at, page) in (start.0..).step_by(PAGE_SIZE as usize).zip(buffer.chunks_mut(PAGE_SIZE as usize)) {
            (self.fill)(Addr(at), page);
        }
        Ok(())
    }
    fn verify_mappable(&self) -> Result<(), PageError> {
        if self.is_damaged {
            let what = "a page does not match its checksum".to_owned();
            return Err(PageError::Damaged { path: PathBuf::from("/fake"), offset: 0, what });
        }
        Ok(())
    }
    fn shared_pages(&self) -> Option<u32> {
        self.shared_pages
    }
    fn fill_shared_pages(&self, mut file: &File) -> Result<(), PageError> {
        let mut page = vec![0; PAGE_SIZE as usize];
        self.read(Addr(0), &mut page)?;
        Ok(file.write_all(&page)?)
    }
}
