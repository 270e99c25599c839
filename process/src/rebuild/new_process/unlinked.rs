//! Files without a name: memfds and deleted files, made anew with what the record has of their content. The first
//! new process makes each; all keep them open for the agent ([`kept_fds`]), which brings in the pages that shared
//! mappings cover. How it fails: an error names the file.

use super::regular::make_unlinked;
use crate::rebuild::error::RebuildError;
use crate::rebuild::job::Job;
use crate::rebuild::kept_fds;
use crate::rebuild::paths::Opener;
use holdfast_image::record::{Backing, NamelessFile, NamelessKind, Object};
use holdfast_sys::memfd::{self, F_SEAL_EXEC};
use holdfast_sys::objects;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Flags of open(2) that make or change a file, and that which forbids the way through /proc (shm_open(3) sets it).
const NOT_AGAIN: u32 =
    (libc::O_TMPFILE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW).cast_unsigned();
/// The files of a record, in the new process.
#[derive(Debug, Default)]
pub struct UnlinkedFiles(Vec<OwnedFd>);

impl UnlinkedFiles {
    /// Makes all, each as the process that has it (`openers`: of all), as descriptors of at least `floor`, with what
    /// the record has of their content.
    ///
    /// # Errors
    /// Names the file.
    pub fn make(job: &Job<'_>, openers: &[Opener], floor: i32) -> Result<UnlinkedFiles, RebuildError> {
        let made = job.record.files.nameless.iter().enumerate().map(|(index, file)| {
            let opener = u32::try_from(index).ok().and_then(|index| openers.get(holder(job, index)));
            let _acting = opener.map(Opener::acting).transpose()?.flatten();
            let made = make(file).and_then(|made| objects::duplicate_above(made.as_raw_fd(), floor));
            made.map_err(|error| RebuildError::file(&file.name, format!("it cannot be made anew: {error}")))
        });
        made.collect::<Result<_, _>>().map(UnlinkedFiles)
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
        numbered.try_for_each(|(file, made)| {
            objects::duplicate_to(made.as_fd(), kept_fds::of_unlinked(job, file))
        })
    }
}

/// The process that has a file: open, or mapped alone.
pub fn holder(job: &Job<'_>, file: u32) -> usize {
    let is_it = |object: &Object| matches!(object, Object::Nameless { file: other, .. } if *other == file);
    let mut all = job.descriptions().iter().enumerate();
    let open = all.find_map(|(index, one)| is_it(&one.object).then(|| job.holder(index))?);
    let maps = |backing: &Backing| matches!(backing, Backing::Nameless { file: other, .. } if *other == file);
    let mapped = || {
        let mut members = job.members();
        members.find(|member| member.own.regions.iter().any(|region| maps(&region.backing)))
    };
    open.map(|(place, _)| place).or_else(|| mapped().map(|member| member.index)).unwrap_or(0)
}

fn make(file: &NamelessFile) -> io::Result<File> {
    let made = match file.kind {
        NamelessKind::Deleted => make_unlinked(file.name.as_path())?,
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::rebuild::testing::record;
    use holdfast_image::bytes::{Blob, Name};
    use holdfast_image::page_set::PageSet;
    use holdfast_image::record::ContentPiece;

    #[test]
    fn a_memfd_is_restored_with_holes_and_several_descriptions() {
        let content = vec![ContentPiece { offset: 8192, data: Blob(b"content".to_vec()) }];
        let file = NamelessFile {
            kind: NamelessKind::Memfd,
            name: Name(b"x y".to_vec()),
            inode: 1,
            size: 1 << 20,
            mode: 0o600,
            seals: 0,
            owner: None,
            mtime_ns: None,
            by_mapping: false,
            content,
            opened_as: (0, Vec::new()),
            shown: PageSet::default(),
        };
        let mut record = record(Vec::new());
        record.files.nameless.push(file);
        let files = UnlinkedFiles::make(&Job::new(&record), &[Opener::of(&record)], 100).unwrap();
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
}
