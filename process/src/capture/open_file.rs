//! A file that the program has open, read so that neither the program nor who watches the file notices.
//!
//! To open it by a name, `/proc/PID/fd/N` too, breaks a lease on it (fs/open.c, do_dentry_open: break_lease; by default
//! SIGIO ends the program), and is an event for inotify and fanotify (vfs_open: fsnotify_open), as read(2) is. So it is
//! read through a duplicate of the program's descriptor, by a mapping ([`mapped_read`]). The offset that the duplicate
//! has in common with the program's is never moved: SEEK_DATA would. The duplicate lasts for one piece: it holds the
//! description's flocks, and who executes a file that is open for writing gets ETXTBSY.
//!
//! Two kinds of files cannot be read like this, and are opened: those open for writing only, and those with holes that
//! reading would take for data. Where the job itself would notice that ([`Watchers`]), they are an error instead.
//!
//! Called by `contents`, `written_files`, `running_files` and `files::unlinked`, mostly inside the stop. What must
//! hold: an access time is the only trace (mm/filemap.c, generic_file_mmap: file_accessed). How it fails: ENOENT: it is
//! not open there any more; else why it is not read.

use super::watchers::{self, Watchers};
use holdfast_image::page_set::PageSet;
use holdfast_image::pages::PageRun;
use holdfast_image::{Addr, PAGE_SIZE};
use holdfast_sys::{clone, fd, mapped_read, memfd};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// In memory (include/uapi/linux/magic.h): a hole that is read through a mapping takes memory (mm/shmem.c,
/// shmem_fault).
const TMPFS: u64 = 0x0102_1994;
/// Up to so many bytes holes are read, too.
const READ_WHOLE: u64 = 1 << 20;

/// Where a process has a file open.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The process, and any thread of it.
    pub pid: i32,
    /// See above.
    pub tid: i32,
    /// The number.
    pub fd: i32,
    /// Access mode and other flags, as open(2) has them.
    pub flags: i32,
    /// What the file is called.
    pub name: &'a Path,
}

/// See the head of the file.
#[derive(Debug)]
pub struct OpenFile {
    /// As it was when it was looked at.
    pub metadata: Metadata,
    /// That leads to it.
    link: String,
    way: Way,
}

/// How it is read.
#[derive(Debug)]
enum Way {
    /// There is nothing in it.
    Empty,
    /// By duplicates of this descriptor of the process.
    Duplicate(OwnedFd, i32),
    /// It was opened.
    Opened(File),
}

impl OpenFile {
    /// Looks at one.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn of(place: Place<'_>, watchers: &Watchers) -> io::Result<OpenFile> {
        let link = format!("/proc/{}/task/{}/fd/{}", place.pid, place.tid, place.fd);
        let metadata = fs::metadata(&link)?;
        let found = OpenFile { metadata, link, way: Way::Empty };
        if found.metadata.len() == 0 {
            return Ok(found);
        }
        let by_duplicate =
            may_read(place.flags) && !has_holes(&found.link, &found.metadata, place.name, watchers)?;
        if by_duplicate {
            let process = clone::pidfd_open(place.pid)?;
            match found.duplicate(&process, place.fd) {
                Ok(_) => return Ok(OpenFile { way: Way::Duplicate(process, place.fd), ..found }),
                // Some containers allow ptrace(2), and not this (moby's profiles/seccomp).
                Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {}
                Err(error) => return Err(error),
            }
        }
        let is_open = place.flags & libc::O_PATH == 0;
        watchers::allow_opening(place.name, &found.metadata, watchers, is_open)?;
        Ok(OpenFile { way: Way::Opened(open(&found.link, libc::O_NONBLOCK)?), ..found })
    }

    /// A file that no process needs to have open.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn beside(path: &Path, watchers: &Watchers) -> io::Result<OpenFile> {
        watchers::allow_opening(path, &fs::symlink_metadata(path)?, watchers, false)?;
        // Whatever it has become since it was looked at, this does not wait.
        let file = open(path, libc::O_NOFOLLOW | libc::O_NONBLOCK)?;
        Ok(OpenFile {
            metadata: file.metadata()?,
            link: path.to_string_lossy().into_owned(),
            way: Way::Opened(file),
        })
    }

    /// Where there are data that are not `covered`: first byte, first byte after them.
    ///
    /// # Errors
    /// As lseek.
    pub fn data(&self, covered: Option<&PageSet>) -> io::Result<Vec<(u64, u64)>> {
        let size = self.metadata.len();
        if let Way::Opened(file) = &self.way {
            return data_of(file, size, covered);
        }
        let end = Addr(size.next_multiple_of(PAGE_SIZE));
        let whole = PageSet::from(vec![PageRun::between(Addr(0), end)]);
        let left = covered.map_or_else(|| whole.clone(), |covered| whole.difference(covered));
        Ok(left.runs().iter().map(|run| (run.start.0, run.end().0.min(size))).collect())
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// See the head of the file.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.way {
            Way::Empty if buffer.is_empty() => Ok(()),
            Way::Empty => Err(io::ErrorKind::UnexpectedEof.into()),
            Way::Opened(file) => file.read_exact_at(buffer, offset),
            Way::Duplicate(process, number) => {
                let file = self.duplicate(process, *number)?;
                match mapped_read::read_exact_at(file.as_fd(), offset, buffer) {
                    // A file system without mappings.
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                        file.read_exact_at(buffer, offset)
                    }
                    done => done,
                }
            }
        }
    }

    fn duplicate(&self, process: &OwnedFd, number: i32) -> io::Result<File> {
        let closed = || io::Error::from_raw_os_error(libc::ENOENT);
        let file = clone::pidfd_getfd(process, number).map_err(|error| match error.raw_os_error() {
            Some(libc::EBADF) => closed(),
            _ => error,
        })?;
        let file = File::from(file);
        // While the program runs, the number may be another file's by now.
        if key(&file.metadata()?) == key(&self.metadata) { Ok(file) } else { Err(closed()) }
    }

    /// Has the kernel read it into memory. What cannot be had now may be later; this only saves time.
    pub fn will_need(&self, data: &[(u64, u64)]) {
        let told = |file: &File| {
            for &(from, to) in data {
                let _ = mapped_read::will_need(file.as_fd(), from, to - from);
            }
        };
        match &self.way {
            Way::Empty => {}
            Way::Opened(file) => told(file),
            Way::Duplicate(process, number) => {
                let _ = self.duplicate(process, *number).map(|file| told(&file));
            }
        }
    }

    /// As it is now.
    ///
    /// # Errors
    /// It is not open there any more.
    pub fn now(&self) -> io::Result<Metadata> {
        let now = fs::metadata(&self.link)?;
        if key(&now) == key(&self.metadata) { Ok(now) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// The type of its file system (statfs(2)).
    ///
    /// # Errors
    /// It is not open there any more.
    pub fn file_system_type(&self) -> io::Result<u64> {
        fd::file_system_type(Path::new(&self.link))
    }
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

/// Whether one may be read that was opened like this.
pub fn may_read(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_WRONLY && flags & libc::O_PATH == 0
}

fn key(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Whether it may have holes that are not to be read. Those whose opening would be noticed are read with their holes,
/// where that changes nothing.
fn has_holes(link: &str, metadata: &Metadata, name: &Path, watchers: &Watchers) -> io::Result<bool> {
    if metadata.blocks().saturating_mul(512) >= metadata.len() {
        return Ok(false);
    }
    let takes_memory = fd::file_system_type(Path::new(link))? == TMPFS;
    Ok(takes_memory || metadata.len() > READ_WHOLE && watchers.hear_of(name, metadata).is_none())
}

/// Without an access time, for who may have that (O_NOATIME: the owner, and root).
fn open(path: impl AsRef<Path>, flags: i32) -> io::Result<File> {
    let with = |more: i32| File::options().read(true).custom_flags(flags | libc::O_NOCTTY | more).open(&path);
    with(libc::O_NOATIME).or_else(|error| match error.raw_os_error() {
        Some(libc::EPERM) => with(0),
        _ => Err(error),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use holdfast_sys::attributes;
    use std::io::{Seek, SeekFrom};
    use std::os::fd::AsRawFd;

    #[test]
    fn only_data_that_no_process_maps_is_kept() {
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

    fn look(file: &File, flags: i32, name: &Path, watchers: &Watchers) -> io::Result<OpenFile> {
        let pid = attributes::own_pid();
        OpenFile::of(Place { pid, tid: pid, fd: file.as_raw_fd(), flags, name }, watchers)
    }

    #[test]
    fn what_may_be_read_is_read_by_duplicates_and_nothing_else_is_opened_under_a_watch() {
        let path = std::env::temp_dir().join(format!("open-file-{}", std::process::id()));
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        assert!(matches!(look(&file, libc::O_RDWR, &path, &Watchers::default()).unwrap().way, Way::Empty));
        file.write_all_at(&[7; 5000], 0).unwrap();
        file.seek(SeekFrom::Start(3)).unwrap();
        let metadata = file.metadata().unwrap();
        let mut watched = Watchers::default();
        watched.add_watch(super::watchers::in_kernel(metadata.dev()), metadata.ino(), libc::IN_OPEN);
        for watchers in [&Watchers::default(), &watched] {
            let open = look(&file, libc::O_RDWR, &path, watchers).unwrap();
            assert!(matches!(open.way, Way::Duplicate(..)));
            let mut bytes = [0; 5000];
            open.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((bytes[4999], open.data(None).unwrap()), (7, vec![(0, 5000)]));
            assert!(open.now().is_ok());
        }
        assert_eq!(file.stream_position().unwrap(), 3);
        let writes = look(&file, libc::O_WRONLY, &path, &Watchers::default()).unwrap();
        assert!(matches!(writes.way, Way::Opened(_)));
        let refused = look(&file, libc::O_WRONLY, &path, &watched).unwrap_err();
        assert!(refused.to_string().contains("inotify"), "{refused}");
        assert!(
            OpenFile::beside(&path, &watched).is_err()
                && OpenFile::beside(&path, &Watchers::default()).is_ok()
        );
        // No process gets a lease for writing on what is open elsewhere, and one on what is not is left alone.
        let lease = |file: &File| fd::fcntl(file.as_fd(), libc::F_SETLEASE, libc::F_WRLCK.into());
        let other = File::open(&path).unwrap();
        assert_eq!(lease(&other).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        let apart = path.with_extension("leased");
        let leased = File::options().write(true).create(true).truncate(true).open(&apart).unwrap();
        lease(&leased).unwrap();
        let refused = OpenFile::beside(&apart, &Watchers::default()).unwrap_err();
        assert!(refused.to_string().contains("a lease"), "{refused}");
        fs::remove_file(&apart).unwrap();
        // Another file under the number.
        let open = look(&file, libc::O_RDWR, &path, &watched).unwrap();
        holdfast_sys::fd::replace(file.as_raw_fd(), File::open("/dev/null").unwrap().as_fd()).unwrap();
        assert_eq!(open.read_exact_at(&mut [0], 0).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(open.now().is_err());
        fs::remove_file(&path).unwrap();
    }
}
