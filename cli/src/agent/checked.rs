//! An image whose mappable bytes need not be read again before they are mapped, if that was done before on this boot.
//!
//! Used by the agent at a restart. A lazy restart maps pages that cannot be checked any more when they are touched, so
//! all of them are read and compared with their checksums first. A note in the job's folder says for which files that
//! was done: those with the same inode, length and time of change (which cannot be set) hold what they held. Bytes
//! that a disk has lost since are not found by it; `holdfast verify` reads them.
//! What must hold: a note counts only if it is a file of our own that no other user may write, of this boot, for these
//! very files, and if they had not just been changed when they were read; on file systems of other hosts none counts.
//! How it fails: everything is checked.

use super::restart_progress::RestartProgress;
use crate::file_system;
use holdfast_image::pages::{
    Extent, ExtentSource, MappableSegment, PageError, PageProvider, PageRun, PutPages,
};
use holdfast_image::{Addr, PAGE_SIZE, PageCount};
use holdfast_tiers::Image;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Name of the note.
const NAME: &str = "checked";
/// Longer ones are not ours: bytes.
const LONGEST: u64 = 4 << 20;
/// Files that were changed less long ago may be changed again within the same tick of the clock of their times.
const SETTLED: Duration = Duration::from_secs(2);

/// So much is checked before the front is told of it.
const PART: PageCount = PageCount((64 << 20) / PAGE_SIZE);

/// Runs of pages in parts of at most so many.
fn in_parts(runs: &[PageRun], most: PageCount) -> Vec<Vec<PageRun>> {
    let (mut parts, mut part, mut left) = (Vec::new(), Vec::new(), most.0);
    for run in runs {
        let (mut start, end) = (run.start.0, run.end().0);
        while start < end {
            let pages = ((end - start) / PAGE_SIZE).clamp(1, left);
            part.push(PageRun { start: Addr(start), pages: PageCount(pages) });
            start += pages * PAGE_SIZE;
            left -= pages;
            if left == 0 {
                parts.push(std::mem::take(&mut part));
                left = most.0;
            }
        }
    }
    parts.extend((!part.is_empty()).then_some(part));
    parts
}

/// See the head of the file.
pub struct CheckedImage<'a> {
    image: &'a Image,
    folder: &'a Path,
    progress: RestartProgress<'a>,
}

impl<'a> CheckedImage<'a> {
    /// An image, with the note in the job's `folder`.
    pub fn new(image: &'a Image, folder: &'a Path, progress: RestartProgress<'a>) -> CheckedImage<'a> {
        CheckedImage { image, folder, progress }
    }

    /// What the note says once these pages are checked. `None`: the files may change without notice.
    fn expected(&self, wanted: &[PageRun]) -> Option<String> {
        if !file_system::is_local(self.folder) {
            return None;
        }
        let mut mapped = DefaultHasher::new();
        wanted.hash(&mut mapped);
        let mut segments = BTreeSet::new();
        for extent in self.image.extents() {
            if let ExtentSource::Mappable { segment, offset } = extent.source {
                (segment, offset, extent.run).hash(&mut mapped);
                segments.insert(segment);
            }
        }
        let files = segments.into_iter().filter_map(|segment| self.image.segment(segment));
        let what = format!("{} {:016x}", self.image.epoch(), mapped.finish());
        of_files(files.map(|segment| segment.file), &what)
    }
}

/// The text of the note for files, of which `what` was checked.
fn of_files<'f>(files: impl Iterator<Item = &'f File>, what: &str) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let mut text = format!("{} {what}\n", boot.trim());
    for file in files {
        let is = file.metadata().ok()?;
        let (seconds, nanoseconds) = (u64::try_from(is.ctime()).ok()?, u32::try_from(is.ctime_nsec()).ok()?);
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
        SystemTime::now().duration_since(changed).ok().filter(|since| *since >= SETTLED)?;
        let (device, inode, len) = (is.dev(), is.ino(), is.len());
        writeln!(text, "{device} {inode} {len} {seconds}.{nanoseconds:09}").ok()?;
    }
    Some(text)
}

/// The note, if only this user can have written it.
fn read(folder: &Path) -> Option<String> {
    let mut text = String::new();
    file_system::open_own(&folder.join(NAME))?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

impl PageProvider for CheckedImage<'_> {
    fn extents(&self) -> &[Extent] {
        self.image.extents()
    }
    fn segment(&self, number: u32) -> Option<MappableSegment<'_>> {
        self.image.segment(number)
    }
    fn read(&self, start: Addr, buffer: &mut [u8]) -> Result<(), PageError> {
        self.image.read(start, buffer)
    }
    fn gather(&self, wanted: &[PageRun], put: &PutPages<'_>) -> Result<(), PageError> {
        self.progress.expect(wanted.iter().map(|run| run.pages.bytes()).sum());
        self.image.gather(wanted, &|runs| {
            put(runs)?;
            self.progress.passed(runs.iter().map(|(_, bytes)| bytes.len() as u64).sum());
            Ok(())
        })
    }
    fn check_mapped(&self, wanted: &[PageRun]) -> Result<Vec<PageRun>, PageError> {
        if self.is_served() {
            return Ok(Vec::new());
        }
        let expected = self.expected(wanted);
        if expected.is_some() && expected == read(self.folder) {
            tracing::info!("image {}: its segments were checked before on this boot", self.image.epoch());
            return Ok(Vec::new());
        }
        self.progress.expect(wanted.iter().map(|run| run.pages.bytes()).sum());
        let mut damaged = Vec::new();
        for part in in_parts(wanted, PART) {
            damaged.extend(self.image.check_mapped(&part)?);
            self.progress.passed(part.iter().map(|run| run.pages.bytes()).sum());
        }
        let is_still = |text: &String| damaged.is_empty() && self.expected(wanted).as_ref() == Some(text);
        if let Some(text) = expected.filter(is_still)
            && let Err(error) = file_system::write_own(&self.folder.join(NAME), text.as_bytes())
        {
            tracing::info!("the next restart checks everything again: {error}");
        }
        Ok(damaged)
    }
    fn is_served(&self) -> bool {
        self.image.is_served()
    }
    fn shared_pages(&self) -> Option<u32> {
        self.image.shared_pages()
    }
    fn fill_shared_pages(&self, file: &File) -> Result<(), PageError> {
        self.image.fill_shared_pages(file)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("checked-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn parts_are_all_of_it_in_order() {
        let run = |start: u64, pages| PageRun { start: Addr(start * PAGE_SIZE), pages: PageCount(pages) };
        let parts = in_parts(&[run(1, 2), run(9, 7)], PageCount(4));
        assert_eq!(parts, [vec![run(1, 2), run(9, 2)], vec![run(11, 4)], vec![run(15, 1)]]);
        assert!(in_parts(&[], PageCount(4)).is_empty());
    }

    #[test]
    fn files_that_have_just_changed_have_no_note() {
        let folder = folder("files");
        fs::write(folder.join("segment"), "x").unwrap();
        let file = File::open(folder.join("segment")).unwrap();
        assert_eq!(of_files([&file].into_iter(), "1"), None);
        // Some file that is older than a test.
        let old = PathBuf::from("/proc/self/exe")
            .canonicalize()
            .unwrap()
            .parent()
            .unwrap()
            .join("../../Cargo.lock");
        let settled =
            fs::metadata(&old).ok().and_then(|is| SystemTime::now().duration_since(is.modified().ok()?).ok());
        if settled.is_some_and(|since| since > SETTLED) {
            let old = File::open(old).unwrap();
            assert_ne!(of_files([&old].into_iter(), "1"), of_files([&old].into_iter(), "2"));
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
