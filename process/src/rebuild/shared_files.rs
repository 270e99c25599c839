//! Files with names that the programs of a job share by mappings: what of them the image has.
//!
//! What a mapping for writing covers is in the image with its pages, whatever else of the job has the file mapped for
//! reading only (launchers tell their workers something that way). So such a file is made anew where it is gone.
//! [`super::preflight`](fn@super::preflight) and `new_process::child` ask; both have the record of all processes.
//! Invariants: pure.

use holdfast_image::bytes::Name;
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{Backing, FileIdentity, ProcessRecord, Region};
use holdfast_image::{Addr, PAGE_SIZE};
use std::collections::BTreeMap;

/// What the image has of each file, by offset in it; of those that it has as contents all.
#[derive(Debug, Default)]
pub struct SharedFiles<'a>(BTreeMap<&'a Name, PageSet>);

/// The file of a shared mapping, and what of it is mapped.
pub fn shown<'a>(process: &'a ProcessRecord, region: &Region) -> Option<(&'a FileIdentity, PageRun)> {
    let Backing::SharedFile { file, offset, .. } = region.backing else { return None };
    let end = offset.checked_add(region.end.0.checked_sub(region.start.0)?)?;
    Some((process.files.mapped.get(file as usize)?, PageRun::between(Addr(offset), Addr(end))))
}

impl<'a> SharedFiles<'a> {
    /// Of all processes of a record.
    pub fn of(record: &'a ProcessRecord) -> SharedFiles<'a> {
        let mut all: BTreeMap<&Name, Vec<PageRun>> = BTreeMap::new();
        for content in &record.files.contents {
            let whole = PageRun::between(Addr(0), Addr(content.size.next_multiple_of(PAGE_SIZE)));
            all.entry(&content.path).or_default().extend(Some(whole).filter(|whole| whole.pages.0 > 0));
        }
        for process in record.processes() {
            let written = process.regions.iter().filter(|region| region.is_written());
            for (file, run) in written.filter_map(|region| shown(process, region)) {
                all.entry(&file.path).or_default().push(run);
            }
        }
        SharedFiles(all.into_iter().map(|(path, runs)| (path, PageSet::from(runs))).collect())
    }

    /// Whether the image has all of a file that this part of it shows.
    pub fn has(&self, file: &FileIdentity, part: PageRun) -> bool {
        self.has_until(&file.path, file.size, part)
    }

    /// Whether it has all of a file that is so long.
    pub fn has_whole(&self, path: &Name, size: u64) -> bool {
        self.has_until(path, size, PageRun::between(Addr(0), Addr(size.next_multiple_of(PAGE_SIZE))))
    }

    fn has_until(&self, path: &Name, size: u64, part: PageRun) -> bool {
        let end = Addr(size.next_multiple_of(PAGE_SIZE).min(part.end().0));
        let part = Some(PageRun::between(part.start, end)).filter(|part| part.pages.0 > 0);
        let part: PageSet = part.into_iter().collect();
        self.0.get(path).is_some_and(|known| part.difference(known).is_empty())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{record, region};

    #[test]
    fn what_one_maps_for_writing_the_image_has_for_all() {
        let file = FileIdentity {
            path: Name::from("/tmp/segment"),
            size: 5 * PAGE_SIZE + 1,
            mtime_ns: 1,
            build_id: None,
            mode: 0o600,
            inode: None,
            inside: None,
        };
        let of = |prot: u32, page: u64, pages: u64| {
            let backing = Backing::SharedFile { file: 0, offset: page * PAGE_SIZE, writable: prot & 2 != 0 };
            let mut process = record(vec![region(0x10000, pages, prot, backing)]);
            process.files.mapped.push(file.clone());
            process
        };
        let part = |page: u64, pages: u64| {
            PageRun::between(Addr(page * PAGE_SIZE), Addr((page + pages) * PAGE_SIZE))
        };
        let mut first = of(1, 0, 8);
        assert!(!SharedFiles::of(&first).has(&file, part(0, 1)), "nobody writes it");
        first.others = vec![of(3, 1, 3)];
        let known = SharedFiles::of(&first);
        assert_eq!(
            [part(1, 3), part(2, 1), part(0, 2), part(3, 2)].map(|part| known.has(&file, part)),
            [true, true, false, false]
        );
        assert!(!known.has_whole(&file.path, file.size));
        first.others.push(of(3, 0, 1));
        first.others.push(of(3, 4, 2));
        let known = SharedFiles::of(&first);
        assert!(
            known.has_whole(&file.path, file.size) && known.has(&file, part(0, 8)),
            "nothing is behind its end"
        );
    }
}
