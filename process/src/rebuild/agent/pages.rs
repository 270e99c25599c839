//! Which pages of an image are copied, and which are mapped from segment files.
//!
//! [`PagesPlan::new`] is pure and runs before anything is mapped; [`super::fill`] copies once the address space is
//! complete. Pages without an extent are what a fresh mapping holds: zeros, or the file's bytes.

use crate::rebuild::error::RebuildError;
use holdfast_abi::SharedPage;
use holdfast_image::PAGE_SIZE;
use holdfast_image::pages::{Extent, ExtentSource};
use holdfast_image::record::{Backing, ProcessRecord, Region};
use std::collections::BTreeSet;
use std::ops::Range;

/// Shorter runs are copied: a mapping costs more than 64 pages of copying.
pub const MIN_MAPPED_LEN: u64 = 64 * PAGE_SIZE;
/// Mappings of segments, at most: the kernel's limit is 65530 for all (`vm.max_map_count`).
const MAX_MAPPED: usize = 20_000;
/// From this many bytes on a protected region is made writable for the copy instead of written past its protection.
const FORCED_LIMIT: u64 = 256 * PAGE_SIZE;

/// A run of pages that is mapped from a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedRun {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Protection of its region.
    pub prot: u32,
    /// Index of the segment.
    pub segment: u32,
    /// Byte offset in it.
    pub offset: u64,
}

/// A run of bytes that is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiedRun {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// All zero: not read.
    pub zero: bool,
    /// Its mapping is not writable.
    pub forced: bool,
}

impl CopiedRun {
    /// First byte after it.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// What is to be done for all pages of an image.
#[derive(Clone, Debug, Default)]
pub struct PagesPlan {
    /// Runs to be mapped, by address.
    pub mapped: Vec<MappedRun>,
    /// For each region: it is mapped writable first, and gets its protection after the copy.
    pub early_write: Vec<bool>,
    /// Runs to be copied, by address; each within one region.
    pub copied: Vec<CopiedRun>,
    /// Bytes of those that are compressed, in memory that could be mapped.
    pub compressed: u64,
    /// The same of those that are not, but too few in a row.
    pub scattered: u64,
}

/// A part of an extent that lies in one region.
#[derive(Clone, Copy)]
struct Part {
    region: usize,
    start: u64,
    len: u64,
    source: ExtentSource,
}

/// Cuts extents at the borders of regions. Both are ascending.
fn parts(regions: &[Region], extents: &[Extent]) -> Result<Vec<Part>, RebuildError> {
    let mut all = Vec::with_capacity(extents.len());
    let mut at = 0;
    for extent in extents {
        let (mut start, end) = (extent.run.start.0, extent.run.end().0);
        while start < end {
            while regions.get(at).is_some_and(|region| region.end.0 <= start) {
                at += 1;
            }
            let region = regions.get(at).filter(|region| region.start.0 <= start).ok_or_else(|| {
                RebuildError::Image(format!(
                    "the image has pages at {start:#x}, where the program has no mapping"
                ))
            })?;
            let stop = end.min(region.end.0);
            let source = match extent.source {
                ExtentSource::Mappable { segment, offset } => {
                    ExtentSource::Mappable { segment, offset: offset + (start - extent.run.start.0) }
                }
                other => other,
            };
            all.push(Part { region: at, start, len: stop - start, source });
            start = stop;
        }
    }
    Ok(all)
}

impl PagesPlan {
    /// Decides. `map`: whether to map what can be mapped from a segment. `served`: the number in a segment's place of a
    /// file that has each page at its address ([`holdfast_image::pages::PageProvider::is_served`]).
    ///
    /// # Errors
    /// The image has pages where the record has no mapping.
    pub fn new(
        record: &ProcessRecord,
        extents: &[Extent],
        map: impl Fn(u32) -> bool,
        served: Option<u32>,
    ) -> Result<PagesPlan, RebuildError> {
        let regions = &record.regions;
        let parts = parts(regions, extents)?;
        let groups = groups(record, &parts, served);
        let floor = mapping_floor(regions, groups.iter().map(|group| whole(&parts[group.clone()])), &map);
        let mut plan = PagesPlan::default();
        let mut copied = vec![0_u64; regions.len()];
        let mut copies = Vec::with_capacity(parts.len());
        let mut segments = BTreeSet::new();
        for group in groups {
            let part = whole(&parts[group.clone()]);
            let region = &regions[part.region];
            if let ExtentSource::Mappable { segment, offset } = part.source
                && part.len >= floor
                && map(segment)
                && may_be_mapped(region)
                && plan.mapped.len() < MAX_MAPPED
                // What libholdfast's table holds.
                && (segments.len() < SharedPage::LAZY_FILE_MAX || segments.contains(&segment))
            {
                segments.insert(segment);
                let (start, len, prot) = (part.start, part.len, region.prot);
                plan.mapped.push(MappedRun { start, len, prot, segment, offset });
                continue;
            }
            for part in &parts[group] {
                if plan.is_copied(region, part, &map) {
                    copied[part.region] += part.len;
                    copies.push((*part, part.source == ExtentSource::Zero));
                }
            }
        }
        plan.early_write = early_write(regions, &copied);
        for (part, zero) in copies {
            let region = &regions[part.region];
            let writable = region.prot & libc::PROT_WRITE.cast_unsigned() != 0
                || plan.early_write[part.region]
                || matches!(region.backing, Backing::SharedAnonymous { .. });
            let run = CopiedRun { start: part.start, len: part.len, zero, forced: !writable };
            plan.add(run, part.start > region.start.0);
        }
        Ok(plan)
    }

    /// Whether what is not mapped is copied; counts why.
    fn is_copied(&mut self, region: &Region, part: &Part, map: impl Fn(u32) -> bool) -> bool {
        match (part.source, &region.backing) {
            // Fresh memory is zero; a read-only shared file is what it is; files without a name are filled through
            // their descriptors (`unlinked`), System V shared memory by the agent (`sysv_shm`); the kernel's pages are
            // its own.
            (ExtentSource::Zero, Backing::Anonymous | Backing::SharedAnonymous { .. })
            | (
                _,
                Backing::SharedFile { writable: false, .. }
                | Backing::Nameless { shared: true, .. }
                | Backing::SystemV { .. }
                | Backing::Kernel { .. },
            ) => false,
            (source, _) => {
                match source {
                    _ if !may_be_mapped(region) => {}
                    ExtentSource::Mappable { segment, .. } if map(segment) => self.scattered += part.len,
                    ExtentSource::Stored => self.compressed += part.len,
                    _ => {}
                }
                true
            }
        }
    }

    /// Adds a run, joined with the one before if it goes on in the same region, `within` which it begins.
    fn add(&mut self, run: CopiedRun, within: bool) {
        match self.copied.last_mut() {
            Some(last)
                if within && (last.end(), last.zero, last.forced) == (run.start, run.zero, run.forced) =>
            {
                last.len += run.len;
            }
            _ => self.copied.push(run),
        }
    }

    /// Bytes that are copied.
    pub fn copied_bytes(&self) -> u64 {
        self.copied.iter().map(|run| run.len).sum()
    }

    /// Bytes that are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped.iter().map(|run| run.len).sum()
    }
}

/// Parts that are mapped together or not at all: each by itself, but for those that are `served` and lie near each
/// other in one region: the file has zeros between. Else memory with pages here and there would be as many mappings.
fn groups(record: &ProcessRecord, parts: &[Part], served: Option<u32>) -> Vec<Range<usize>> {
    let offset_of = |part: &Part| match part.source {
        ExtentSource::Mappable { segment, offset } if Some(segment) == served => Some(offset),
        _ => None,
    };
    // A guard region cannot be made in a mapping of a file before Linux 6.15 (mm/madvise.c, is_valid_guard_vma).
    let has_guard = |from: u64, to: u64| {
        let at = record.guards.partition_point(|guard| guard.end.0 <= from);
        record.guards.get(at).is_some_and(|guard| guard.start.0 < to)
    };
    let is_near = |last: &Part, next: &Part| {
        last.region == next.region
            && may_be_mapped(&record.regions[next.region])
            && !has_guard(last.start + last.len, next.start)
            && next.start - (last.start + last.len) <= MIN_MAPPED_LEN
            && offset_of(last)
                .zip(offset_of(next))
                .is_some_and(|(last_at, next_at)| next_at - last_at == next.start - last.start)
    };
    let mut groups: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate().filter(|(_, part)| part.source != ExtentSource::Zero) {
        match groups.last_mut() {
            Some(last) if is_near(&parts[last.end - 1], part) => last.end = at + 1,
            last => {
                let zeros = last.map_or(0, |last| last.end)..at;
                groups.extend(zeros.map(|zero| zero..zero + 1));
                groups.push(at..at + 1);
            }
        }
    }
    let zeros = groups.last().map_or(0, |last| last.end)..parts.len();
    groups.extend(zeros.map(|zero| zero..zero + 1));
    groups
}

/// From the first part of a group to its last.
fn whole(group: &[Part]) -> Part {
    let (first, last) = (group[0], group[group.len() - 1]);
    Part { len: last.start + last.len - first.start, ..first }
}

/// Which regions are mapped writable until their pages are copied. `copied`: bytes, of each.
fn early_write(regions: &[Region], copied: &[u64]) -> Vec<bool> {
    let is_early = |(region, &bytes): (&Region, &u64)| {
        let read_only = region.prot & libc::PROT_WRITE.cast_unsigned() == 0;
        // Only private memory can be written past its protection, and not of explicit huge pages (mm/gup.c,
        // check_vma_flags).
        let shared = matches!(region.backing, Backing::SharedFile { .. });
        // The kernel counts private memory when it is made writable.
        let counted = region.has("ac") && region.prot & libc::PROT_EXEC.cast_unsigned() == 0;
        read_only
            && (bytes > 0 && (shared || region.huge_shift().is_some() || bytes > FORCED_LIMIT) || counted)
    };
    regions.iter().zip(copied).map(is_early).collect()
}

/// Whether an image may be mapped into a region: plain private memory that does not grow down. Not what is locked (it
/// would be read at once) or sealed (libholdfast could not replace what the program advises away), or treated specially
/// at a fork (a file cannot be wiped, and libholdfast, which replaces what the program advises away, cannot see
/// DONTFORK), or code (the store may be on a file system without programs).
fn may_be_mapped(region: &Region) -> bool {
    const NOT: [&str; 5] = ["gd", "lo", "dc", "wf", "sl"];
    region.backing == Backing::Anonymous
        && region.prot & libc::PROT_EXEC.cast_unsigned() == 0
        && region.huge_shift().is_none()
        && !region.vm_flags.iter().any(|flag| NOT.contains(&flag.as_str()))
}

/// The length from which on runs are mapped, such that there are not too many.
fn mapping_floor(regions: &[Region], parts: impl Iterator<Item = Part>, map: impl Fn(u32) -> bool) -> u64 {
    let mut lengths: Vec<u64> = parts
        .filter(|part| {
            matches!(part.source, ExtentSource::Mappable { segment, .. } if map(segment))
                && may_be_mapped(&regions[part.region])
        })
        .map(|part| part.len)
        .filter(|&len| len >= MIN_MAPPED_LEN)
        .collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.get(MAX_MAPPED).map_or(MIN_MAPPED_LEN, |&len| len + PAGE_SIZE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::{record, region};
    use holdfast_image::pages::PageRun;
    use holdfast_image::{Addr, PageCount};

    fn extent(start: u64, pages: u64, source: ExtentSource) -> Extent {
        Extent { run: PageRun { start: Addr(start), pages: PageCount(pages) }, source }
    }

    #[test]
    fn an_extent_over_two_regions_is_cut_and_large_ones_are_mapped_lazily() {
        let record = record(vec![
            region(0x10000, 100, 3, Backing::Anonymous),
            region(0x10000 + 100 * PAGE_SIZE, 300, 1, Backing::Anonymous),
        ]);
        let extents = [extent(0x10000, 400, ExtentSource::Mappable { segment: 0, offset: 8192 })];
        let plan = PagesPlan::new(&record, &extents, |_| true, None).unwrap();
        assert_eq!(plan.mapped.len(), 2);
        assert_eq!(plan.mapped[1].offset, 8192 + 100 * PAGE_SIZE);
        assert_eq!((plan.mapped[0].prot, plan.mapped[1].prot, plan.copied_bytes()), (3, 1, 0));
        let eager = PagesPlan::new(&record, &extents, |_| false, None).unwrap();
        assert_eq!((eager.mapped.len(), eager.copied_bytes()), (0, 400 * PAGE_SIZE));
        // 300 pages in a read-only region: writable during the copy; nothing is written past a protection.
        assert_eq!(eager.early_write, [false, true]);
        assert!(eager.copied.iter().all(|run| !run.forced));
        assert_eq!(eager.copied.iter().map(|run| run.len / PAGE_SIZE).collect::<Vec<_>>(), [100, 300]);
    }

    #[test]
    fn special_memory_and_too_many_segments_are_copied() {
        let many = SharedPage::LAZY_FILE_MAX as u64 + 1;
        let at = |n: u64| 0x100_0000 + n * 128 * PAGE_SIZE;
        let plain = (0..many).map(|n| region(at(n), 128, 3, Backing::Anonymous));
        let special = ["gd", "lo", "dc", "wf"].iter().zip(many..).map(|(flag, n)| {
            let region = region(at(n), 128, 3, Backing::Anonymous);
            Region { vm_flags: vec![(*flag).to_owned()], ..region }
        });
        let code = region(at(many + 4), 128, 5, Backing::Anonymous);
        let record = record(plain.chain(special).chain([code]).collect());
        let segment = |n: u64| u32::try_from(n.min(many)).unwrap();
        let extents: Vec<Extent> = (0..many + 5)
            .map(|n| extent(at(n), 128, ExtentSource::Mappable { segment: segment(n), offset: 0 }))
            .collect();
        let plan = PagesPlan::new(&record, &extents, |_| true, None).unwrap();
        assert_eq!((plan.mapped.len(), plan.scattered), (SharedPage::LAZY_FILE_MAX, 128 * PAGE_SIZE));
        assert_eq!(plan.copied_bytes(), 6 * 128 * PAGE_SIZE);
    }

    #[test]
    fn what_is_served_is_joined_within_a_region() {
        let at = |page: u64| 0x100_0000 + page * PAGE_SIZE;
        let record = record(vec![
            region(at(0), 200, 3, Backing::Anonymous),
            region(at(200), 100, 3, Backing::Anonymous),
            region(at(300), 100, 5, Backing::Anonymous),
            // So little is copied, without what lies between.
            region(at(1000), 9, 3, Backing::Anonymous),
        ]);
        let served = |page: u64| ExtentSource::Mappable { segment: 4, offset: 7 * PAGE_SIZE + at(page) };
        let extents: Vec<Extent> = (0..400)
            .chain(1000..1008)
            .step_by(4)
            .flat_map(|page| [extent(at(page), 1, served(page)), extent(at(page + 2), 1, ExtentSource::Zero)])
            .collect();
        let plan = PagesPlan::new(&record, &extents, |_| true, Some(4)).unwrap();
        let run = |page, pages| MappedRun {
            start: at(page),
            len: pages * PAGE_SIZE,
            prot: 3,
            segment: 4,
            offset: 7 * PAGE_SIZE + at(page),
        };
        assert_eq!(plan.mapped, [run(0, 197), run(200, 97)]);
        // Code is copied, page by page: what lies between is not the image's.
        assert_eq!(plan.copied.len(), 27);
        assert_eq!(plan.scattered, 2 * PAGE_SIZE);
        assert!(PagesPlan::new(&record, &extents, |_| true, None).unwrap().mapped.is_empty());
    }

    #[test]
    fn zeros_are_written_over_files_only() {
        let file = Backing::PrivateFile { file: 0, offset: 0 };
        let record = record(vec![region(0x10000, 4, 3, Backing::Anonymous), region(0x20000, 4, 1, file)]);
        let extents = [extent(0x10000, 4, ExtentSource::Zero), extent(0x20000, 4, ExtentSource::Zero)];
        let plan = PagesPlan::new(&record, &extents, |_| true, None).unwrap();
        let all = CopiedRun { start: 0x20000, len: 4 * PAGE_SIZE, zero: true, forced: true };
        assert_eq!(plan.copied, [all]);
    }

    #[test]
    fn pages_outside_all_mappings_are_refused() {
        let record = record(vec![region(0x10000, 4, 3, Backing::Anonymous)]);
        for start in [0x8000, 0x14000, 0xf000] {
            assert!(
                PagesPlan::new(&record, &[extent(start, 1, ExtentSource::Stored)], |_| false, None).is_err(),
                "{start:#x}"
            );
        }
        assert!(
            PagesPlan::new(&record, &[extent(0x13000, 2, ExtentSource::Stored)], |_| false, None).is_err()
        );
    }

    #[test]
    fn neighbours_are_joined() {
        let record = record(vec![region(0x10000, 1000, 3, Backing::Anonymous)]);
        let extents: Vec<Extent> =
            (0..1000).map(|n| extent(0x10000 + n * PAGE_SIZE, 1, ExtentSource::Stored)).collect();
        let plan = PagesPlan::new(&record, &extents, |_| false, None).unwrap();
        let all = CopiedRun { start: 0x10000, len: 1000 * PAGE_SIZE, zero: false, forced: false };
        assert_eq!(plan.copied, [all]);
    }
}
