//! The protected regions of a program: the table in libholdfast's page of shared variables.
//!
//! Read by the checkpoint thread from the program, and by `holdfast restart` from an image (`--only-protected` images
//! hold the table itself beside the regions, so names and memory are of the same instant). The page belongs to the
//! program: everything in it is checked before it is used, and what makes no sense is left out.

use holdfast_abi::{ProtectedRegion, SharedPage};
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE, PageCount, address_space};
use holdfast_process::{CutOptions, FrozenMemory, Target};
use holdfast_sys::procmem;
use std::io;

/// A region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Name given by the program.
    pub name: Vec<u8>,
    /// Its pages.
    pub run: PageRun,
}

/// The regions of a running program, in the order of the table.
///
/// # Errors
/// The program is gone, or the page is not libholdfast's.
pub fn read(pid: i32, shared: Addr) -> io::Result<Vec<Region>> {
    if shared.0 == 0 {
        return Ok(Vec::new());
    }
    let mut page = vec![0_u8; SharedPage::LEN];
    procmem::read(pid, shared.0, &mut page)?;
    parse(&page).ok_or_else(|| io::Error::other("libholdfast's page of shared variables is damaged"))
}

/// The pages of the table.
pub fn table_run(shared: Addr) -> PageRun {
    PageRun { start: shared, pages: PageCount((SharedPage::LEN as u64).div_ceil(PAGE_SIZE)) }
}

/// What an image of only these regions must hold.
pub fn runs_with_table(regions: &[Region], shared: Addr) -> Vec<PageRun> {
    regions.iter().map(|region| region.run).chain([table_run(shared)]).collect()
}

/// Whether a cut that was limited to some ranges holds all regions that the table of the same instant names: a region
/// that was added after the ranges were read would come back as zeros.
pub fn is_whole(memory: &FrozenMemory, options: &CutOptions, program: &Target) -> bool {
    let Some(only) = &options.only else { return true };
    let mut page = vec![0_u8; SharedPage::LEN];
    memory.read(address_space::global(program.space, program.area.shared), &mut page).is_ok()
        && parse(&page).is_some_and(|regions| regions.iter().all(|region| only.contains(&region.run)))
}

fn number(page: &[u8], at: usize) -> Option<u64> {
    page.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
}

/// The regions that a table names; `None` if it is none.
pub fn parse(page: &[u8]) -> Option<Vec<Region>> {
    if page.get(SharedPage::MAGIC..SharedPage::MAGIC + 8)? != SharedPage::MAGIC_BYTES {
        return None;
    }
    let count = usize::try_from(number(page, SharedPage::PROTECTED_COUNT)?)
        .unwrap_or(usize::MAX)
        .min(SharedPage::PROTECTED_MAX);
    let mut regions = Vec::with_capacity(count);
    for index in 0..count {
        let at = SharedPage::PROTECTED_TABLE + index * SharedPage::PROTECTED_ENTRY;
        let (start, len) =
            (number(page, at + ProtectedRegion::START)?, number(page, at + ProtectedRegion::LEN)?);
        let text = page.get(at + ProtectedRegion::NAME..at + SharedPage::PROTECTED_ENTRY)?;
        let name = text.split(|&c| c == 0).next().unwrap_or_default().to_vec();
        let run = PageRun { start: Addr(start), pages: PageCount(len.div_ceil(PAGE_SIZE)) };
        if run.is_valid() && !name.is_empty() {
            regions.push(Region { name, run });
        }
    }
    Some(regions)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_sensible_entries_are_taken() {
        let mut page = vec![0_u8; SharedPage::LEN];
        assert_eq!(parse(&page), None);
        page[..8].copy_from_slice(&SharedPage::MAGIC_BYTES);
        assert_eq!(parse(&page).unwrap(), []);
        let entries = [
            (0x10_0000_u64, 5000_u64, "a"),
            (0x10_0001, 4096, "b"),
            (0x20_0000, 0, "c"),
            (0x30_0000, u64::MAX, "d"),
            (0x40_0000, 1, ""),
        ];
        for (index, (start, len, name)) in entries.into_iter().enumerate() {
            let at = SharedPage::PROTECTED_TABLE + index * SharedPage::PROTECTED_ENTRY;
            page[at..at + 8].copy_from_slice(&start.to_le_bytes());
            page[at + 8..at + 16].copy_from_slice(&len.to_le_bytes());
            page[at + 16..at + 16 + name.len()].copy_from_slice(name.as_bytes());
        }
        page[SharedPage::PROTECTED_COUNT..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        let run = PageRun { start: Addr(0x10_0000), pages: PageCount(2) };
        assert_eq!(parse(&page).unwrap(), [Region { name: b"a".to_vec(), run }]);
        for len in [0, 7, SharedPage::PROTECTED_TABLE] {
            assert_eq!(parse(&page[..len]), None);
        }
    }
}
