//! System V shared memory that a program has attached, or has made or attached before.
//!
//! Part of the files part of the process record. Written by `process::capture::sysv_shm`, read by
//! `process::rebuild::sysv_shm`. Invariants: plain data.

use crate::PAGE_SIZE;
use crate::inode::Ownership;
use crate::region::{Backing, Region};
use crate::unlinked::ContentPiece;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SysvShmRecord {
    /// Its id, as the programs know it.
    pub id: i32,
    /// The kernel's id at the cut, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<i32>,
    /// Its key; 0: none.
    pub key: i32,
    /// Length.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// It was removed (IPC_RMID), and goes when it is detached last.
    pub removed: bool,
    /// Whose it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Ownership>,
    /// The user that had made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creator: Option<u32>,
}

/// What is in a segment that no process had attached. That of the others is in the page index.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SegmentContent {
    /// Its place among the segments.
    pub segment: u32,
    /// All that is not zero, ascending.
    pub content: Vec<ContentPiece>,
}

impl SysvShmRecord {
    /// The kernel's id at the cut.
    pub fn kernel_id(&self) -> i32 {
        self.kernel.unwrap_or(self.id)
    }
}

/// Whether content lies within its segment, which has one only.
///
/// # Errors
/// One that does not.
pub(crate) fn check_contents(segments: &[SysvShmRecord], contents: &[SegmentContent]) -> Result<(), String> {
    let mut known = BTreeSet::new();
    for SegmentContent { segment, content } in contents {
        let found = segments.get(*segment as usize).filter(|_| known.insert(*segment));
        let Some(found) = found else {
            return Err(format!("content is of segment {segment}, which there is not"));
        };
        let mut floor = 0;
        for piece in content {
            let end = piece.offset.checked_add(piece.data.0.len() as u64);
            // The last page is whole.
            let room = found.size.checked_next_multiple_of(PAGE_SIZE).unwrap_or(0);
            let end = end.filter(|end| *end <= room);
            if piece.offset < floor || end.is_none() {
                return Err(format!("System V shared memory {} has content out of place", found.id));
            }
            floor = end.unwrap_or(u64::MAX);
        }
    }
    Ok(())
}

/// Whether mappings lie within their segments. Those of explicit huge pages end where a page of theirs does.
///
/// # Errors
/// One that does not.
pub(crate) fn check<'a>(
    segments: &[SysvShmRecord],
    regions: impl Iterator<Item = &'a Region>,
) -> Result<(), String> {
    for region in regions {
        let Backing::SystemV { segment, offset, .. } = region.backing else { continue };
        let found = segments.get(segment as usize);
        let end = offset.checked_add(region.end.0 - region.start.0).filter(|_| offset % PAGE_SIZE == 0);
        let page = region.huge_shift().map_or(PAGE_SIZE, |shift| 1 << shift);
        let room = found.and_then(|found| found.size.checked_next_multiple_of(page));
        if end.zip(room).is_none_or(|(end, room)| end > room) {
            return Err(format!("mapping {}-{} is not of a segment", region.start, region.end));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Addr;
    use crate::bytes::Blob;

    #[test]
    fn a_mapping_lies_within_its_segment() {
        let segments = [SysvShmRecord {
            id: 1,
            kernel: None,
            key: 0,
            size: 5000,
            mode: 0o600,
            removed: false,
            owner: None,
            creator: None,
        }];
        let checked_as = |flags: &[&str], segment, offset, pages: u64| {
            let region = Region {
                start: Addr(0x10000),
                end: Addr(0x10000 + pages * PAGE_SIZE),
                prot: 3,
                backing: Backing::SystemV { segment, offset, writable: true },
                vm_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                name: None,
                memory_policy: None,
            };
            check(&segments, [&region].into_iter()).is_ok()
        };
        let checked = |segment, offset, pages| checked_as(&[], segment, offset, pages);
        assert!(checked(0, 0, 2) && checked(0, PAGE_SIZE, 1), "the last page is whole");
        assert!(!checked(1, 0, 1) && !checked(0, PAGE_SIZE, 2) && !checked(0, 0, 3) && !checked(0, 7, 1));
        assert!(!checked(0, u64::MAX - PAGE_SIZE + 1, 1));
        let content = |segment, offsets: &[u64]| {
            let piece = |offset: &u64| ContentPiece { offset: *offset, data: Blob(vec![1; 100]) };
            SegmentContent { segment, content: offsets.iter().map(piece).collect() }
        };
        let all = |contents: &[SegmentContent]| check_contents(&segments, contents).is_ok();
        assert!(all(&[content(0, &[0, 100, 8092])]) && all(&[]));
        assert!(!all(&[content(1, &[])]) && !all(&[content(0, &[0, 99])]) && !all(&[content(0, &[8093])]));
        assert!(!all(&[content(0, &[u64::MAX])]) && !all(&[content(0, &[]), content(0, &[])]));
        assert!(checked_as(&["hp21"], 0, 0, 512) && !checked_as(&["hp21"], 0, 0, 513));
    }
}
