//! The files that a restart has mapped memory from: segments of the image, and what it has unpacked for several
//! processes ([`crate::rebuild`]).
//!
//! Made by the restart, used at every cut: mappings are known by their files' numbers, whatever the files are called
//! and whether they still have names; what is there is called by version and segment. Unchanged pages are read here.
//! Invariant: the files stay open as long as the program may have them mapped. Fails by: an errno.

use holdfast_image::Addr;
use holdfast_image::pages::{MappableSegment, MappedFrom, PageRun, StoreMapping};
use holdfast_sys::procfs::Mapping;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Device and inode as the kernel shows them in mappings: stat(2) gives other devices on some file systems.
pub type FileNumber = (u64, u64);

/// A segment, or what is in the place of one, in a file.
#[derive(Debug)]
struct Part {
    number: FileNumber,
    begin: u64,
    from: MappedFrom,
    file: File,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub struct MappedFiles(Vec<Part>);

impl MappedFiles {
    /// Adds a segment, whose file has this number.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn add(&mut self, number: FileNumber, segment: MappableSegment<'_>) -> io::Result<()> {
        let MappableSegment { from, file, begin, .. } = segment;
        let at = self.0.partition_point(|part| (part.number, part.begin) < (number, begin));
        if self.0.get(at).is_none_or(|part| (part.number, part.begin) != (number, begin)) {
            self.0.insert(at, Part { number, begin, from, file: file.try_clone()? });
        }
        Ok(())
    }

    /// Whether a restart has mapped nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is a mapping that a restart has made, or what has become of one.
    pub fn has(&self, mapping: &Mapping) -> bool {
        let parts = self.of_file((mapping.device, mapping.inode));
        !mapping.shared
            && mapping.inode != 0
            && parts.first().is_some_and(|part| part.begin <= mapping.offset)
    }

    fn of_file(&self, number: FileNumber) -> &[Part] {
        let from = self.0.partition_point(|part| part.number < number);
        let count = self.0[from..].partition_point(|part| part.number == number);
        &self.0[from..from + count]
    }

    /// What pages of a mapping that is one of these are, as the store calls it. The kernel joins mappings of neighbours
    /// in a file.
    pub fn name(&self, mapping: &Mapping, run: PageRun) -> Vec<StoreMapping> {
        let parts = self.of_file((mapping.device, mapping.inode));
        let place = |address: u64| mapping.offset + (address - mapping.start);
        let (mut found, mut at) = (Vec::new(), run.start.0);
        while at < run.end().0 {
            let next = parts.partition_point(|part| part.begin <= place(at));
            let Some(part) = next.checked_sub(1).and_then(|last| parts.get(last)) else { break };
            let left = parts.get(next).map_or(u64::MAX, |next| next.begin - place(at));
            let end = run.end().0.min(at.saturating_add(left));
            let offset = place(at) - part.begin;
            found.push(StoreMapping { run: PageRun::between(Addr(at), Addr(end)), from: part.from, offset });
            at = end;
        }
        found
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// As pread(2); ENOENT: nothing is mapped from there.
    pub fn read(&self, from: MappedFrom, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let part = self.0.iter().find(|part| part.from == from);
        let part = part.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        part.file.read_exact_at(buffer, part.begin + offset)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_image::{Epoch, PAGE_SIZE};
    use holdfast_sys::procfs;

    fn segment(number: u32) -> MappedFrom {
        MappedFrom::Segment { version: Epoch(3), number }
    }

    #[test]
    fn mappings_are_known_by_their_files_and_named_by_segments() {
        let file = File::open("/proc/self/exe").unwrap();
        let mut files = MappedFiles::default();
        let part = |number, begin| MappableSegment { from: segment(number), file: &file, begin, len: 0x2000 };
        files.add((0xfd_0000_0001, 7), part(1, 0x2000)).unwrap();
        files.add((0xfd_0000_0001, 7), part(0, 0)).unwrap();
        files.add((0xfd_0000_0001, 7), part(0, 0)).unwrap();
        let text = b"1000-5000 rw-p 00001000 fd:01 7 /s\n5000-6000 rw-p 00000000 00:00 0 \n\
            6000-7000 rw-s 00000000 fd:01 7 /s\n7000-8000 r--p 00000000 fd:01 8 /t\n";
        let maps = procfs::parse_maps(text).unwrap();
        assert_eq!(
            maps.iter().map(|mapping| files.has(mapping)).collect::<Vec<_>>(),
            [true, false, false, false]
        );
        let all = PageRun::between(Addr(0x1000), Addr(0x5000));
        let named = files.name(&maps[0], all);
        let runs: Vec<_> =
            named.iter().map(|one| (one.run.start.0, one.run.pages.0, one.from, one.offset)).collect();
        assert_eq!(runs, [(0x1000, 1, segment(0), PAGE_SIZE), (0x2000, 3, segment(1), 0)]);
        let mut bytes = [0; 4];
        files.read(segment(0), 0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\x7fELF");
        assert!(files.read(MappedFrom::SharedPages, 0, &mut bytes).is_err());
    }
}
