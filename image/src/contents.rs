//! What was in files with names: those that the programs of a job change in place, or all that they write
//! (`run --save-files`).
//!
//! Part of the files part of the process record. Written by `process::capture::contents`, read by
//! `process::rebuild::contents`. The bytes are in the page index, in a space of their own
//! ([`crate::address_space::FILES`]): so they are stored once however often an image is taken, compressed, and
//! checked like memory. A page that is not in the index is a hole. Invariants: plain data; the places of two files do
//! not overlap ([`check`]).

use crate::bytes::Name;
use crate::inode::Ownership;
use crate::pages::PageRun;
use crate::{Addr, PAGE_SIZE};
use serde::{Deserialize, Serialize};

/// A file that was saved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileContent {
    /// Where it was.
    pub path: Name,
    /// Device and inode at the cut, as the descriptions that lead to it have them.
    pub device: u64,
    /// See `device`.
    pub inode: u64,
    /// Length.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Where its first byte is in its space.
    pub start: Addr,
    /// What shared mappings cover of it, by offset: that is in the image with their pages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub covered: Vec<PageRun>,
    /// What is appended to its path for files that belong to it (the journals of a database), and that were not there:
    /// one that is there at a restart was left by what the restart undoes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Name>,
    /// Whose it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Ownership>,
    /// It is small, and not changed in place: a restart uses it only where the file is gone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_if_gone: bool,
}

/// A file that the programs may have changed in place, and that is not in the image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnsavedFile {
    /// Where it is.
    pub path: Name,
    /// Bytes of data in it.
    pub bytes: u64,
    /// Why it cannot be read; none: all together they are too large.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl FileContent {
    /// The paths of [`FileContent::absent`].
    pub fn absent_paths(&self) -> impl Iterator<Item = Name> {
        self.absent.iter().map(|suffix| Name([&self.path.0[..], &suffix.0[..]].concat()))
    }
    /// Its place.
    pub fn run(&self) -> PageRun {
        PageRun::between(self.start, Addr(self.start.0 + self.size.next_multiple_of(PAGE_SIZE)))
    }
}

/// Whether places are in their space and apart.
///
/// # Errors
/// Names the file.
pub(crate) fn check(files: &[FileContent]) -> Result<(), String> {
    /// Bytes in a space.
    const END: u64 = 1 << 47;
    let mut places: Vec<(u64, u64, &Name)> = Vec::with_capacity(files.len());
    for file in files {
        let len = file.size.checked_next_multiple_of(PAGE_SIZE);
        let end = len.and_then(|len| file.start.0.checked_add(len)).filter(|end| *end <= END);
        let Some(end) = end.filter(|_| file.start.0.is_multiple_of(PAGE_SIZE)) else {
            return Err(format!("the saved content of {} is out of place", file.path));
        };
        let is_inside = |run: &PageRun| {
            let len = run.pages.0.checked_mul(PAGE_SIZE);
            let end = len.and_then(|len| run.start.0.checked_add(len));
            run.start.0.is_multiple_of(PAGE_SIZE) && end.is_some_and(|end| end <= END)
        };
        if !file.covered.iter().all(is_inside) {
            return Err(format!("what mappings cover of {} is out of place", file.path));
        }
        if file.absent.iter().any(|suffix| suffix.0.is_empty() || suffix.0.contains(&b'/')) {
            return Err(format!("what belongs to {} is in another folder", file.path));
        }
        places.push((file.start.0, end, &file.path));
    }
    places.sort_unstable();
    match places.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => Err(format!("{} and {} are saved in the same place", pair[0].2, pair[1].2)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageCount;

    #[test]
    fn places_are_apart_and_in_their_space() {
        let file = |start: u64, size| FileContent {
            path: Name::from("/x"),
            device: 1,
            inode: 2,
            size,
            mode: 0o600,
            start: Addr(start),
            covered: Vec::new(),
            absent: Vec::new(),
            owner: None,
            only_if_gone: false,
        };
        let beside = |suffix: &str| vec![FileContent { absent: vec![Name::from(suffix)], ..file(0, 7) }];
        assert_eq!(beside("-wal")[0].absent_paths().collect::<Vec<_>>(), [Name::from("/x-wal")]);
        assert!(check(&beside("-wal")).is_ok());
        assert!(check(&[file(PAGE_SIZE, PAGE_SIZE + 1), file(0, 7), file(3 * PAGE_SIZE, 0)]).is_ok());
        let covered = |start, pages| {
            let covered = vec![PageRun { start: Addr(start), pages: PageCount(pages) }];
            vec![FileContent { covered, ..file(0, 7) }]
        };
        assert!(check(&covered(PAGE_SIZE, 1)).is_ok());
        for wrong in [
            beside("/../y"),
            beside(""),
            covered(1, 1),
            covered(PAGE_SIZE, u64::MAX),
            covered(u64::MAX - PAGE_SIZE + 1, 1),
            vec![file(0, 7), file(0, 7)],
            vec![file(PAGE_SIZE, 1), file(0, PAGE_SIZE + 1)],
            vec![file(1, 7)],
            vec![file((1 << 47) - PAGE_SIZE, PAGE_SIZE + 1)],
            vec![file(PAGE_SIZE, u64::MAX)],
            vec![file(PAGE_SIZE, u64::MAX - PAGE_SIZE)],
        ] {
            assert!(check(&wrong).is_err(), "{wrong:?}");
        }
    }
}
