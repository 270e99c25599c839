//! Files without a name: memfds and deleted files, open or mapped.
//!
//! Called by [`super::FileReader`] for descriptors, and by the cut for files that are mapped only ([`add_mapped`]).
//! Inside the stop: their content can change. A descriptor and a mapping belong together if /proc calls their file by
//! the same inode and name: stat(2) and the maps file do not give the same device on every file system. What must
//! hold: what shared mappings cover is saved with the pages ([`crate::capture::maps::save_shared`]); the rest is in
//! the record.

use super::{DELETED, FileReader, Found, Look, NAMELESS_LIMIT, Obstacle};
use crate::capture::maps::{self, Kind, Mapped};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::record::{ContentPiece, FileTable, NamelessFile, NamelessKind, Object};
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::{fd, memfd};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// How the kernel prints the path of a memfd (mm/memfd.c).
const MEMFD: &[u8] = b"/memfd:";
/// File systems (include/uapi/linux/magic.h).
const HUGETLBFS: u64 = 0x9584_58f6;
const SECRETMEM: u64 = 0x5345_434d;

/// Inode, and name as /proc prints it.
pub(super) type Key = (u64, Vec<u8>);

/// What shared mappings cover of each file without a name, by offset in it.
#[derive(Debug, Default)]
pub struct Covered(HashMap<Key, PageSet>);

impl Covered {
    /// Adds the mappings of a process.
    pub fn add(&mut self, all: &[Mapped]) {
        for mapping in all.iter().filter(|m| m.kind == Kind::SharedNameless).map(|m| &m.mapping) {
            let known = self.0.entry((mapping.inode, mapping.name.clone())).or_default();
            *known = known.union(&PageSet::from(vec![in_file(mapping)]));
        }
    }
}

/// The pages that a mapping shows, by their offset in the file.
fn in_file(mapping: &Mapping) -> PageRun {
    PageRun::between(Addr(mapping.offset), Addr(mapping.offset + (mapping.end - mapping.start)))
}

/// Kind, and name for the record.
fn understand(target: &[u8]) -> (NamelessKind, &[u8]) {
    let name = target.strip_suffix(DELETED).unwrap_or(target);
    match name.strip_prefix(MEMFD) {
        Some(given) => (NamelessKind::Memfd, given),
        None => (NamelessKind::Deleted, name),
    }
}

/// The file of a mapping in a table.
pub fn of_mapping(files: &[NamelessFile], mapping: &Mapping) -> Option<u32> {
    let (kind, name) = understand(&mapping.name);
    let is = |file: &NamelessFile| (file.inode, file.kind, &file.name.0[..]) == (mapping.inode, kind, name);
    files.iter().position(is).and_then(|index| u32::try_from(index).ok())
}

/// Whether all of the content of a mapping's file is in the record or among the pages of shared mappings: what a
/// private mapping has not written is there then.
pub fn is_known(files: &[NamelessFile], mapping: &Mapping) -> bool {
    let file = of_mapping(files, mapping).and_then(|index| files.get(index as usize));
    file.is_some_and(|file| !file.by_mapping)
}

/// Adds files of which only shared mappings are left. Their length is known by pages, and that is enough: nobody can
/// ask for it.
pub fn add_mapped(table: &mut FileTable, all: &[Mapped], memory: &ForcedMemory) {
    for mapping in all.iter().filter(|m| m.kind == Kind::SharedNameless).map(|m| &m.mapping) {
        let size = mapping.offset + (maps::readable_end(memory, mapping.start, mapping.end) - mapping.start);
        match of_mapping(&table.nameless, mapping).and_then(|index| table.nameless.get_mut(index as usize)) {
            Some(file) if file.by_mapping => file.size = file.size.max(size),
            Some(_) => {}
            None => {
                let (kind, name) = understand(&mapping.name);
                let (name, inode) = (Name(name.to_vec()), mapping.inode);
                let content = Vec::new();
                let file =
                    NamelessFile { kind, name, inode, size, mode: 0, seals: 0, by_mapping: true, content };
                table.nameless.push(file);
            }
        }
    }
}

impl FileReader<'_> {
    /// What a descriptor of such a file is.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub(super) fn nameless(&self, found: &Found, metadata: &Metadata) -> Result<Object, Obstacle> {
        let position = found.info.position;
        let key = (found.inode, found.target.clone());
        let mut files = self.nameless.borrow_mut();
        let known = files.iter().position(|(known, _)| *known == key);
        let index = match known {
            Some(index) => index,
            None => {
                let file = self.nameless_file(found, metadata, &key)?;
                files.push((key, file));
                files.len() - 1
            }
        };
        Ok(Object::Nameless { file: u32::try_from(index).unwrap_or(u32::MAX), position })
    }

    fn nameless_file(&self, found: &Found, metadata: &Metadata, key: &Key) -> Result<NamelessFile, Obstacle> {
        let (kind, name) = understand(&found.target);
        let path = self.link_path(found);
        match fd::file_system_type(Path::new(&path)) {
            Ok(HUGETLBFS) => return Err("a file of huge pages (MFD_HUGETLB) is not supported".into()),
            Ok(SECRETMEM) => return Err("secret memory (memfd_secret) is not supported".into()),
            _ => {}
        }
        let unreadable = |error: io::Error| Obstacle::of("its content cannot be read: ", &error);
        // Opened anew: the offset of the program's own stays where it is.
        let file = File::open(&path).map_err(unreadable)?;
        let data = data_of(&file, metadata.len(), self.covered.0.get(key)).map_err(unreadable)?;
        let len: u64 = data.iter().map(|piece| piece.1 - piece.0).sum();
        if len > NAMELESS_LIMIT {
            return Err(too_long(kind, len).into());
        }
        let read = |&(start, end): &(u64, u64)| -> io::Result<ContentPiece> {
            let mut data = vec![0; usize::try_from(end - start).unwrap_or(0)];
            file.read_exact_at(&mut data, start)?;
            Ok(ContentPiece { offset: start, data: Blob(data) })
        };
        let content = match self.look {
            Look::Stopped => data.iter().map(read).collect::<io::Result<_>>().map_err(unreadable)?,
            Look::Running => Vec::new(),
        };
        Ok(NamelessFile {
            kind,
            name: Name(name.to_vec()),
            inode: found.inode,
            size: metadata.len(),
            mode: metadata.mode() & 0o7777,
            // Other files in memory have a seal against seals (mm/shmem.c, __shmem_get_inode).
            seals: if kind == NamelessKind::Memfd { memfd::seals(file.as_fd()) } else { 0 },
            by_mapping: false,
            content,
        })
    }
}

fn too_long(kind: NamelessKind, len: u64) -> String {
    let what = match kind {
        NamelessKind::Memfd => "a memfd",
        NamelessKind::Deleted => "a deleted file",
    };
    format!(
        "{what} with {} MiB that no shared mapping covers (the limit is {}): map it shared, or make it smaller",
        len >> 20,
        NAMELESS_LIMIT >> 20
    )
}

/// Ranges with data that no mapping covers.
pub fn data_of(file: &File, size: u64, covered: Option<&PageSet>) -> io::Result<Vec<(u64, u64)>> {
    let mut data = Vec::new();
    let mut at = 0;
    while at < size {
        let Some((start, end)) = memfd::next_data(file.as_fd(), at)? else { break };
        let (start, end) = (start / PAGE_SIZE * PAGE_SIZE, end.min(size));
        if start >= end {
            break;
        }
        data.push(PageRun::between(Addr(start), Addr(end.next_multiple_of(PAGE_SIZE))));
        at = end;
    }
    let data: PageSet = data.into_iter().collect();
    let left = covered.map_or(data.clone(), |covered| data.difference(covered));
    Ok(left.runs().iter().map(|run| (run.start.0, run.end().0.min(size))).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_data_that_nobody_maps_is_kept() {
        let file = File::from(memfd::create(c"data", true).unwrap());
        file.set_len(10 * PAGE_SIZE + 5).unwrap();
        file.write_all_at(b"a", PAGE_SIZE).unwrap();
        file.write_all_at(b"b", 4 * PAGE_SIZE).unwrap();
        file.write_all_at(b"c", 10 * PAGE_SIZE).unwrap();
        let size = file.metadata().unwrap().len();
        let page = |n: u64| (n * PAGE_SIZE, (n + 1) * PAGE_SIZE);
        assert_eq!(data_of(&file, size, None).unwrap(), [page(1), page(4), (10 * PAGE_SIZE, size)]);
        let covered = PageSet::from(vec![PageRun::between(Addr(0), Addr(5 * PAGE_SIZE))]);
        assert_eq!(data_of(&file, size, Some(&covered)).unwrap(), [(10 * PAGE_SIZE, size)]);
    }

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(understand(b"/memfd:a b (deleted)"), (NamelessKind::Memfd, &b"a b"[..]));
        assert_eq!(understand(b"/dev/shm/x (deleted)"), (NamelessKind::Deleted, &b"/dev/shm/x"[..]));
        assert_eq!(understand(b"/tmp/y"), (NamelessKind::Deleted, &b"/tmp/y"[..]));
    }
}
