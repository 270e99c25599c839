//! Files without a name: memfds and deleted files, open or mapped.
//!
//! Called by [`super::FileReader`] for descriptors, and by the cut for files that are mapped only ([`add_mapped`]).
//! Inside the stop: their content can change. A file may have been opened by several names. Descriptors belong together
//! by device and inode, mappings too; a descriptor and a mapping by the inode, and the name or the device: stat(2) and
//! the maps file do not give the same device on every file system. What must hold: what shared mappings cover is saved
//! with the pages ([`crate::capture::shared_memory`]); the rest is in the record. Shared memory without a name
//! counts as such a file where something else than shared mappings leads to it: a descriptor, or a private mapping,
//! which both come from /proc/PID/map_files.

use super::covered::in_file;
use super::{FileReader, Found, Look, NAMELESS_LIMIT, Obstacle};
use crate::capture::identity::{DELETED, mtime_ns};
use crate::capture::maps::{self, Kind, Mapped};
use crate::capture::open_file::{self, OpenFile, Place};
use holdfast_image::bytes::{Blob, Name};
use holdfast_image::page_set::PageSet;
use holdfast_image::record::{ContentPiece, FileTable, NamelessFile, NamelessKind, Object};
use holdfast_sys::procfs::Mapping;
use holdfast_sys::procmem::ForcedMemory;
use holdfast_sys::{fd, memfd};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How the kernel prints the path of a memfd (mm/memfd.c).
const MEMFD: &[u8] = b"/memfd:";
/// And that of shared memory without a name (mm/shmem.c, shmem_zero_setup).
const SHARED_ZERO: &[u8] = b"/dev/zero";
/// How a restart calls the memfd that takes its place.
const FOR_ZERO: &[u8] = b"holdfast-shared";
/// File systems (include/uapi/linux/magic.h).
const HUGETLBFS: u64 = 0x9584_58f6;
const SECRETMEM: u64 = 0x5345_434d;

/// What private mappings show of objects whose name is none, by device and inode as the maps file has them.
pub fn mapped_privately<'a>(all: impl Iterator<Item = &'a [Mapped]>) -> BTreeSet<(u64, u64)> {
    let private =
        all.flatten().filter(|mapped| mapped.kind == Kind::PrivateFile).map(|mapped| &mapped.mapping);
    let nameless = private.filter(|mapping| mapping.name.ends_with(DELETED));
    nameless.map(|mapping| (mapping.device, mapping.inode)).collect()
}

/// A device of stat(2) as the maps file has it.
fn device_in_maps(device: u64) -> u64 {
    u64::from(libc::major(device)) << 32 | u64::from(libc::minor(device))
}

/// Kind, and name for the record.
fn understand(target: &[u8]) -> (NamelessKind, &[u8]) {
    let name = target.strip_suffix(DELETED).unwrap_or(target);
    if name == SHARED_ZERO {
        return (NamelessKind::Memfd, FOR_ZERO);
    }
    match name.strip_prefix(MEMFD) {
        Some(given) => (NamelessKind::Memfd, given),
        None => (NamelessKind::Deleted, name),
    }
}

/// The file of a mapping in a table.
pub fn of_mapping(files: &[NamelessFile], mapping: &Mapping) -> Option<u32> {
    let is = |file: &NamelessFile| {
        let (device, names) = &file.opened_as;
        file.inode == mapping.inode
            && (*device == mapping.device || names.iter().any(|name| name.0 == mapping.name))
    };
    files.iter().position(is).and_then(|index| u32::try_from(index).ok())
}

/// Whether all that a mapping shows of its file is in the record or among the pages of shared mappings: what a private
/// mapping has not written is there then. When all mappings have been added: beyond the end there is nothing to show.
pub fn is_known(files: &[NamelessFile], mapping: &Mapping) -> bool {
    let file = of_mapping(files, mapping).and_then(|index| files.get(index as usize));
    file.is_some_and(|file| !file.by_mapping || unshown(file, mapping).is_none_or(|first| first >= file.size))
}

/// The offset of the first page in a mapping that no shared mapping shows.
fn unshown(file: &NamelessFile, mapping: &Mapping) -> Option<u64> {
    let rest = PageSet::from(vec![in_file(mapping)]).difference(&file.shown);
    rest.runs().first().map(|run| run.start.0)
}

/// Adds files of which only mappings are left. Their length is known by pages, and that is enough: no process can ask
/// for it. `privately`: of [`mapped_privately`].
pub fn add_mapped(
    table: &mut FileTable,
    all: &[Mapped],
    privately: &BTreeSet<(u64, u64)>,
    memory: &ForcedMemory,
) {
    let is_file = |mapped: &&Mapped| match mapped.kind {
        Kind::SharedNameless => true,
        Kind::SharedAnonymous => privately.contains(&(mapped.mapping.device, mapped.mapping.inode)),
        _ => false,
    };
    for mapping in all.iter().filter(is_file).map(|m| &m.mapping) {
        let size = mapping.offset + (maps::readable_end(memory, mapping.start, mapping.end) - mapping.start);
        let shown = PageSet::from(vec![in_file(mapping)]);
        match of_mapping(&table.nameless, mapping).and_then(|index| table.nameless.get_mut(index as usize)) {
            Some(file) if file.by_mapping => {
                file.size = file.size.max(size);
                file.shown = file.shown.union(&shown);
            }
            Some(_) => {}
            None => {
                let (kind, name) = understand(&mapping.name);
                table.nameless.push(only_mapped(kind, name, mapping, (size, shown)));
            }
        }
    }
}

/// Adds files of which only private mappings are left that reach beyond the end: with its length a restart makes memory
/// that ends there, too (SIGBUS beyond). What the mappings show is stored with their pages.
pub fn add_privately_mapped(table: &mut FileTable, all: &[Mapped], memory: &ForcedMemory) {
    let private = |m: &&Mapped| m.kind == Kind::PrivateFile && m.mapping.name.ends_with(DELETED);
    for mapping in all.iter().filter(private).map(|m| &m.mapping) {
        let file = of_mapping(&table.nameless, mapping).and_then(|index| table.nameless.get(index as usize));
        if file.is_some_and(|file| !file.by_mapping || unshown(file, mapping).is_none()) {
            continue;
        }
        let end = maps::readable_end(memory, mapping.start, mapping.end);
        let size = if end > mapping.start { mapping.offset + (end - mapping.start) } else { 0 };
        match of_mapping(&table.nameless, mapping).and_then(|index| table.nameless.get_mut(index as usize)) {
            Some(file) => file.size = file.size.max(size),
            None if end == mapping.end => {}
            None => {
                let (kind, name) = match mapping.name.as_slice() {
                    // A segment of System V (ipc/shm.c, newseg).
                    name if name.starts_with(b"/SYSV") => (NamelessKind::Memfd, FOR_ZERO),
                    name => understand(name),
                };
                table.nameless.push(only_mapped(kind, name, mapping, (size, PageSet::new())));
            }
        }
    }
}

/// Where what is to be stored of a private mapping ends, if its file is one of those and ends before it.
pub fn end_in(files: &[NamelessFile], mapping: &Mapping) -> Option<u64> {
    let file = files.get(of_mapping(files, mapping)? as usize).filter(|file| file.by_mapping)?;
    let end = mapping.start + file.size.saturating_sub(mapping.offset);
    (end < mapping.end).then_some(end)
}

/// `size`, `shown`: see [`NamelessFile`].
fn only_mapped(
    kind: NamelessKind,
    name: &[u8],
    mapping: &Mapping,
    (size, shown): (u64, PageSet),
) -> NamelessFile {
    NamelessFile {
        kind,
        name: Name(name.to_vec()),
        inode: mapping.inode,
        size,
        mode: 0,
        seals: 0,
        owner: None,
        mtime_ns: None,
        by_mapping: true,
        content: Vec::new(),
        opened_as: (mapping.device, vec![Name(mapping.name.clone())]),
        shown,
    }
}

impl FileReader<'_> {
    /// What a descriptor of such a file is.
    ///
    /// # Errors
    /// Why it cannot be restored.
    pub(super) fn nameless(&self, found: &Found, metadata: &Metadata) -> Result<Object, Obstacle> {
        let position = found.info.position;
        let key = (metadata.dev(), metadata.ino());
        let mut files = self.nameless.borrow_mut();
        let known = files.iter().position(|(known, _)| *known == key);
        let index = match known {
            Some(index) => index,
            None => {
                let file = self.nameless_file(found, metadata)?;
                files.push((key, file));
                files.len() - 1
            }
        };
        Ok(Object::Nameless { file: u32::try_from(index).unwrap_or(u32::MAX), position })
    }

    fn nameless_file(&self, found: &Found, metadata: &Metadata) -> Result<NamelessFile, Obstacle> {
        let (kind, name) = understand(&found.target);
        let path = self.link_path(found);
        match fd::file_system_type(Path::new(&path)) {
            Ok(HUGETLBFS) => return Err("a file of huge pages (MFD_HUGETLB) is not supported".into()),
            Ok(SECRETMEM) => return Err("secret memory (memfd_secret) is not supported".into()),
            _ => {}
        }
        let unreadable = |error: io::Error| Obstacle::of("its content cannot be read: ", &error);
        let same = || self.with_inode(found.inode).filter(|other| other.device == found.device);
        let reads = |other: &&Found| open_file::may_read(other.info.flags.cast_signed());
        let file = self.open_file(same().find(reads).unwrap_or(found)).map_err(unreadable)?;
        let mut names: BTreeSet<Vec<u8>> = same().map(|other| other.target.clone()).collect();
        let device = device_in_maps(metadata.dev());
        let covered = self.covered.of(device, found.inode, &mut names);
        let data = file.data(covered).map_err(unreadable)?;
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
            seals: if kind == NamelessKind::Memfd { memfd::seals(self.take(found)?.as_fd()) } else { 0 },
            owner: Some((metadata.uid(), metadata.gid())),
            mtime_ns: Some(mtime_ns(metadata)),
            by_mapping: false,
            content,
            opened_as: (device, names.into_iter().map(Name).collect()),
            shown: PageSet::default(),
        })
    }
}

impl FileReader<'_> {
    /// The file of a descriptor, to be read.
    fn open_file(&self, found: &Found) -> io::Result<OpenFile> {
        let (pid, tid) = self.leads_from(found);
        let target = found.target.strip_suffix(DELETED).unwrap_or(&found.target);
        let (fd, flags) = (found.fd, found.info.flags.cast_signed());
        let name = Path::new(OsStr::from_bytes(target));
        OpenFile::of(Place { pid, tid, fd, flags, name }, self.watchers())
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::covered::Covered;
    use super::*;
    use crate::mapped_files::MappedFiles;
    use holdfast_sys::procfs::parse_maps;

    #[test]
    fn one_file_is_shown_whatever_it_was_opened_as() {
        let text = b"1000-3000 rw-s 00000000 fe:01 7 /tmp/b (deleted)\n\
            3000-4000 rw-s 00002000 fe:01 7 /tmp/c (deleted)\n\
            5000-6000 rw-s 00000000 fe:02 7 /tmp/a (deleted)\n";
        let all = maps::classify(parse_maps(text).unwrap(), &Vec::new(), &MappedFiles::default()).unwrap();
        let mut covered = Covered::default();
        covered.add(&all);
        let seen = |device: u64, name: &str| {
            let mut names = BTreeSet::from([format!("/tmp/{name} (deleted)").into_bytes()]);
            (covered.of(device, 7, &mut names).map(|pages| pages.pages().0), names.len())
        };
        // By the device; by a name, where the device is another one (btrfs, overlayfs); neither.
        assert_eq!(
            [seen(0xfe_0000_0001, "x"), seen(9, "b"), seen(9, "y")],
            [(Some(3), 3), (Some(3), 2), (None, 1)]
        );
        let device = libc::makedev(0xfe, 0x12345);
        assert_eq!(device_in_maps(device), 0xfe_0001_2345);
    }

    #[test]
    fn a_private_mapping_is_known_where_shared_ones_show_all_that_there_is() {
        let text = b"1000-3000 rw-s 00000000 00:01 7 /memfd:x (deleted)\n\
            4000-8000 rw-p 00001000 00:01 7 /memfd:x (deleted)\n";
        let all = maps::classify(parse_maps(text).unwrap(), &Vec::new(), &MappedFiles::default()).unwrap();
        let (shared, private) = (&all[0].mapping, &all[1].mapping);
        let shown = PageSet::from(vec![in_file(shared)]);
        let file = |size| vec![only_mapped(NamelessKind::Memfd, b"x", shared, (size, shown.clone()))];
        // It ends where the shared mapping does; there is more.
        assert!(is_known(&file(0x2000), private) && is_known(&file(0x1001), private));
        assert!(!is_known(&file(0x2001), private) && is_known(&file(0x2001), shared));
        assert!(!is_known(&[], private));
    }

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(understand(b"/memfd:a b (deleted)"), (NamelessKind::Memfd, &b"a b"[..]));
        assert_eq!(understand(b"/dev/shm/x (deleted)"), (NamelessKind::Deleted, &b"/dev/shm/x"[..]));
        assert_eq!(understand(b"/tmp/y"), (NamelessKind::Deleted, &b"/tmp/y"[..]));
        assert_eq!(understand(b"/dev/zero (deleted)"), (NamelessKind::Memfd, &b"holdfast-shared"[..]));
    }
}
