//! Files without a name: memfds and deleted files, made anew.
//!
//! The first new process makes each and puts what the record has into it ([`NamelessFiles`]). Each stays open in all
//! processes at a number above all of the program's ([`number`]) across forks and exec, so that the agent can have it
//! mapped (`place`), bring in the pages that shared mappings cover and at last set permission bits and seals
//! ([`Taken`]): a seal against writing allows no writable mapping but those that are there already (F_SEAL_FUTURE_WRITE)
//! or none at all (mm/memfd.c, memfd_add_seals). [`close`] closes those numbers.
//! How it fails: an error names the file.

use super::address_space::Builder;
use super::error::RebuildError;
use super::member::Job;
use super::regular::make_nameless;
use super::remote_calls::Need;
use super::shared_memfd;
use holdfast_image::PAGE_SIZE;
use holdfast_image::pages::{Extent, ExtentSource, PageProvider};
use holdfast_image::record::{Backing, NamelessFile, NamelessKind, ProcessRecord, Region};
use holdfast_sys::memfd::{self, F_ADD_SEALS, F_SEAL_EXEC};
use holdfast_sys::{clone, fd, objects};
use std::ffi::CString;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};

/// Flags of open(2) that make or change a file, and that which forbids the way through /proc (shm_open(3) sets it).
const NOT_AGAIN: u32 =
    (libc::O_TMPFILE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW).cast_unsigned();
/// Bytes that are read from the image at once.
const PIECE_LEN: u64 = 1 << 20;

/// The number at which a file stays open until all is mapped; the first of them is the first that no process uses.
pub fn number(job: &Job<'_>, file: usize) -> i32 {
    job.free_number() + i32::try_from(file).unwrap_or(i32::MAX / 2)
}

/// The files of a record, in the new process.
#[derive(Debug, Default)]
pub struct NamelessFiles(Vec<OwnedFd>);

impl NamelessFiles {
    /// Makes all, as descriptors of at least `floor`, with what the record has of their content.
    ///
    /// # Errors
    /// Names the file.
    pub fn make(files: &[NamelessFile], floor: i32) -> Result<NamelessFiles, RebuildError> {
        let made = files.iter().map(|file| {
            let made = make(file).and_then(|made| objects::duplicate_above(made.as_raw_fd(), floor));
            made.map_err(|error| RebuildError::file(&file.name, format!("it cannot be made anew: {error}")))
        });
        made.collect::<Result<_, _>>().map(NamelessFiles)
    }

    /// A description of its own of one of them.
    ///
    /// # Errors
    /// As open.
    pub fn open(&self, file: u32, flags: u32, position: u64) -> io::Result<OwnedFd> {
        let master = self.0.get(file as usize).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let path = CString::new(format!("/proc/self/fd/{}", master.as_raw_fd())).unwrap_or_default();
        let made = objects::open(&path, flags & !NOT_AGAIN, 0)?;
        if flags & libc::O_PATH.cast_unsigned() == 0 {
            objects::seek(made.as_fd(), position)?;
        }
        Ok(made)
    }

    /// Leaves them open at their numbers for the agent.
    ///
    /// # Errors
    /// EBADF: RLIMIT_NOFILE is too low.
    pub fn put_in_place(&self, job: &Job<'_>) -> io::Result<()> {
        let mut numbered = self.0.iter().enumerate();
        numbered.try_for_each(|(file, made)| objects::duplicate_to(made.as_fd(), number(job, file)))
    }
}

fn make(file: &NamelessFile) -> io::Result<File> {
    let made = match file.kind {
        NamelessKind::Deleted => make_nameless(file.name.as_path())?,
        NamelessKind::Memfd => {
            let name = CString::new(file.name.0.clone())?;
            // One that may never be executable is allowed everywhere (vm.memfd_noexec).
            let executable = file.seals & F_SEAL_EXEC == 0 || file.mode & 0o111 != 0;
            File::from(memfd::create(&name, executable)?)
        }
    };
    made.set_len(file.size)?;
    file.content.iter().try_for_each(|piece| made.write_all_at(&piece.data.0, piece.offset))?;
    Ok(made)
}

/// The file of a shared mapping, and the mapping's offset in it.
fn shared(region: &Region) -> Option<(u32, u64)> {
    match region.backing {
        Backing::Nameless { file, offset, shared: true, .. } => Some((file, offset)),
        _ => None,
    }
}

/// The files of a record, in the agent, which has them from the first new process.
#[derive(Debug)]
pub struct Taken<'a> {
    about: &'a [NamelessFile],
    files: Vec<File>,
}

impl<'a> Taken<'a> {
    /// From the process `pid`, in which they are at their numbers.
    ///
    /// # Errors
    /// The process is gone.
    pub fn from(job: &'a Job<'_>, pid: i32) -> Result<Taken<'a>, RebuildError> {
        let about = &job.record.files.nameless[..];
        if about.is_empty() {
            return Ok(Taken { about, files: Vec::new() });
        }
        let pidfd = clone::pidfd_open(pid).map_err(RebuildError::io("opening the new process"))?;
        let take = |(file, about): (usize, &NamelessFile)| {
            let taken = clone::pidfd_getfd(&pidfd, number(job, file));
            taken.map(File::from).map_err(RebuildError::io(format!("taking {}", about.name)))
        };
        Ok(Taken { about, files: about.iter().enumerate().map(take).collect::<Result<_, _>>()? })
    }

    /// Writes the pages of one process's shared mappings into them.
    ///
    /// # Errors
    /// Names the file.
    pub fn fill(&self, record: &ProcessRecord, pages: &dyn PageProvider) -> Result<(), RebuildError> {
        for region in &record.regions {
            let Some((file, offset)) = shared(region) else { continue };
            let (about, file) = (&self.about[file as usize], &self.files[file as usize]);
            let stored = within(pages.extents(), region).filter(|part| part.2 != ExtentSource::Zero);
            for (from, to, _) in stored {
                let put = |start: u64, bytes: &[u8]| {
                    // The last page may reach beyond the end, which a write would move.
                    let place = offset + (start - region.start.0);
                    let kept = about.size.saturating_sub(place).min(bytes.len() as u64);
                    file.write_all_at(&bytes[..usize::try_from(kept).unwrap_or(0)], place)
                };
                pieces(from, to, pages, put).map_err(RebuildError::io(format!("filling {}", about.name)))?;
            }
        }
        Ok(())
    }

    /// Sets permission bits and seals. After all mappings and all content of all processes.
    ///
    /// # Errors
    /// Names the file.
    pub fn seal(&self) -> Result<(), RebuildError> {
        for (file, about) in self.files.iter().zip(self.about).filter(|(_, about)| !about.by_mapping) {
            let failed = |what: &str| RebuildError::io(format!("{what} {}", about.name));
            file.set_permissions(Permissions::from_mode(about.mode))
                .map_err(failed("setting the permission bits of"))?;
            if about.kind == NamelessKind::Memfd && about.seals != 0 {
                fd::fcntl(file.as_fd(), F_ADD_SEALS, i64::from(about.seals))
                    .map_err(failed("sealing the memfd"))?;
            }
        }
        Ok(())
    }
}

/// The parts of extents that lie in a region: first byte, first byte after it, and where they are stored.
pub fn within<'a>(
    extents: &'a [Extent],
    region: &Region,
) -> impl Iterator<Item = (u64, u64, ExtentSource)> + use<'a> {
    let (start, end) = (region.start.0, region.end.0);
    let from = extents.partition_point(|extent| extent.run.end().0 <= start);
    extents[from..]
        .iter()
        .take_while(move |extent| extent.run.start.0 < end)
        .map(move |extent| (extent.run.start.0.max(start), extent.run.end().0.min(end), extent.source))
}

/// Reads a range from an image and puts it, with its address, piece by piece.
///
/// # Errors
/// Of reading, or of putting.
pub fn pieces(
    from: u64,
    to: u64,
    pages: &dyn PageProvider,
    put: impl Fn(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0_u8; usize::try_from((to - from).min(PIECE_LEN)).unwrap_or(0)];
    let mut at = from;
    while at < to {
        let len = (to - at).min(PIECE_LEN);
        let bytes = &mut buffer[..usize::try_from(len).unwrap_or(0)];
        pages.read(holdfast_image::Addr(at), bytes)?;
        put(at, bytes)?;
        at += len;
    }
    debug_assert!((to - from).is_multiple_of(PAGE_SIZE));
    Ok(())
}

/// Closes what stayed open for the agent, in one process.
///
/// # Errors
/// The process is gone.
pub fn close(builder: &Builder<'_>, job: &Job<'_>) -> Result<(), RebuildError> {
    let mut batch = builder.batch();
    let files = (0..job.record.files.nameless.len()).map(|file| number(job, file));
    let common = shared_memfd::has_one(job).then(|| shared_memfd::number(job, builder.shared));
    for fd in files.chain(common) {
        let fd = u64::from(fd.cast_unsigned());
        batch.call(libc::SYS_close, &[fd], Need::Must("close descriptor", fd))?;
    }
    batch.finish().map(|_| ())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::pages::tests::region;
    use holdfast_image::bytes::{Blob, Name};
    use holdfast_image::pages::PageRun;
    use holdfast_image::record::ContentPiece;
    use holdfast_image::{Addr, PageCount};

    #[test]
    fn a_memfd_comes_back_with_holes_and_several_descriptions() {
        let content = vec![ContentPiece { offset: 8192, data: Blob(b"content".to_vec()) }];
        let file = NamelessFile {
            kind: NamelessKind::Memfd,
            name: Name(b"x y".to_vec()),
            inode: 1,
            size: 1 << 20,
            mode: 0o600,
            seals: 0,
            by_mapping: false,
            content,
        };
        let files = NamelessFiles::make(&[file], 100).unwrap();
        let reading = File::from(files.open(0, 0, 5).unwrap());
        let writing = File::from(files.open(0, libc::O_RDWR.cast_unsigned(), 0).unwrap());
        assert!(reading.as_raw_fd() != writing.as_raw_fd() && files.0[0].as_raw_fd() >= 100);
        let mut bytes = [0; 7];
        reading.read_exact_at(&mut bytes, 8192).unwrap();
        assert_eq!((&bytes, reading.metadata().unwrap().len()), (b"content", 1 << 20));
        assert!(reading.write_all_at(b"x", 0).is_err());
        writing.write_all_at(b"x", 0).unwrap();
        let name = std::fs::read_link(format!("/proc/self/fd/{}", reading.as_raw_fd())).unwrap();
        assert_eq!(name.to_string_lossy(), "/memfd:x y (deleted)");
        assert!(files.open(1, 0, 0).is_err());
    }

    #[test]
    fn extents_are_cut_at_the_mapping() {
        let extent = |page: u64, pages: u64, source| Extent {
            run: PageRun { start: Addr(page * PAGE_SIZE), pages: PageCount(pages) },
            source,
        };
        let extents = [
            extent(1, 4, ExtentSource::Stored),
            extent(6, 1, ExtentSource::Zero),
            extent(8, 9, ExtentSource::Stored),
        ];
        let region = region(3 * PAGE_SIZE, 7, 3, Backing::Anonymous);
        let parts: Vec<(u64, u64, ExtentSource)> = within(&extents, &region).collect();
        let (stored, zero) = (ExtentSource::Stored, ExtentSource::Zero);
        let expected = [(3, 5, stored), (6, 7, zero), (8, 10, stored)];
        assert_eq!(parts, expected.map(|(from, to, source)| (from * PAGE_SIZE, to * PAGE_SIZE, source)));
    }
}
