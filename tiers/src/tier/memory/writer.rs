//! Writes one blob: into the pages of a spare while it has some, behind them by write(2).
//!
//! Called through [`BlobWriter`]. New pages are filled by write(2), because the kernel need not clear them then.
//! Invariants: the file has a name that no blob can have until it is whole; `len` bytes of it are reserved in the pool.
//! Fails by: an error that names the blob's path; the file vanishes with the writer.

use super::mapped::Mapped;
use super::pool::{LEAST, Memory, Pool};
use crate::tier::{BlobWriter, TierError, posix};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// See the head of the file.
pub(crate) struct MemoryWriter {
    pool: Arc<Pool>,
    file: File,
    /// The pages of a spare.
    mapped: Option<Mapped>,
    /// The name that it has.
    part: PathBuf,
    /// The name that it will have.
    path: PathBuf,
    /// Bytes that were appended.
    written: u64,
    /// Length of the file.
    len: u64,
    /// A write has failed: bytes are missing.
    failed: bool,
    finished: bool,
}

impl MemoryWriter {
    /// Begins the blob `path`, in a spare if there is one.
    pub(super) fn new(
        pool: &Arc<Pool>,
        path: PathBuf,
        expected: Option<u64>,
    ) -> Result<MemoryWriter, TierError> {
        let (file, part, mapped) = match pool.take(expected) {
            Some(Memory { file, path, mapped }) => (file, path, Some(mapped)),
            None => {
                // Whether there is room is said before anything is copied.
                let expected = expected.unwrap_or(0);
                pool.reserve(expected, &path)?;
                pool.release(expected);
                let (file, part) =
                    posix::create_part(&path, 0).map_err(TierError::io("create", posix::shown(&path)))?;
                (file, part, None)
            }
        };
        let len = mapped.as_ref().map_or(0, |mapped| mapped.len() as u64);
        let pool = Arc::clone(pool);
        Ok(MemoryWriter { pool, file, mapped, part, path, written: 0, len, failed: false, finished: false })
    }

    /// Leaves the file mapped, for the time when the blob is removed, if all of it is.
    fn keep(&mut self) {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        if let (Some(mut mapped), Ok(file)) = (self.mapped.take(), self.file.try_clone())
            && self.len >= LEAST
            && mapped.len() >= len
        {
            mapped.shorten(len);
            self.pool.keep(Memory { file, mapped, path: self.path.clone() });
        }
    }

    /// As [`BlobWriter::append`]; after [`TierError::Full`] it may be called again with the same bytes.
    pub(crate) fn try_append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        let done = self.write(bytes);
        self.failed |= done.as_ref().is_err_and(|error| !matches!(error, TierError::Full { .. }));
        done
    }

    /// Hands over what was appended so far.
    pub(crate) fn read_back(
        &self,
        each: &mut dyn FnMut(&[u8]) -> Result<(), TierError>,
    ) -> Result<(), TierError> {
        let failed = || TierError::io("read", posix::shown(&self.part));
        let file = File::open(&self.part).map_err(failed())?;
        let mut buffer = vec![0; usize::try_from(self.written.min(1 << 20)).unwrap_or(0)];
        let mut at = 0;
        while at < self.written {
            let count = usize::try_from(self.written - at).unwrap_or(usize::MAX).min(buffer.len());
            file.read_exact_at(&mut buffer[..count], at).map_err(failed())?;
            each(&buffer[..count])?;
            at += count as u64;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        let failed = || TierError::io("write", posix::shown(&self.path));
        let copied = match (&mut self.mapped, usize::try_from(self.written)) {
            (Some(mapped), Ok(from)) => mapped.write(from, bytes),
            _ => 0,
        };
        let (at, rest) = (self.written + copied as u64, &bytes[copied..]);
        if !rest.is_empty() {
            self.pool.reserve(rest.len() as u64, &self.path)?;
            while let Err(error) = self.file.write_all_at(rest, at) {
                // Others fill the tmpfs too: spares make way.
                if error.raw_os_error() != Some(libc::ENOSPC) || !self.pool.give_up_largest() {
                    self.pool.release(rest.len() as u64);
                    return Err(failed()(error));
                }
            }
            self.len += rest.len() as u64;
        }
        self.written += bytes.len() as u64;
        Ok(())
    }
}

impl BlobWriter for MemoryWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<(), TierError> {
        if self.failed {
            let error = io::Error::other("an earlier write has failed");
            return Err(TierError::io("write", posix::shown(&self.path))(error));
        }
        self.write(bytes).inspect_err(|_| self.failed = true)
    }

    fn finish(mut self: Box<Self>) -> Result<u64, TierError> {
        self.append(&[])?;
        let failed = |call| TierError::io(call, posix::shown(&self.path));
        if self.written < self.len {
            self.file.set_len(self.written).map_err(failed("cut"))?;
            self.pool.release(self.len - self.written);
            self.len = self.written;
        }
        if self.pool.is_dax() {
            self.file.sync_all().map_err(failed("sync"))?;
        }
        posix::rename_new(&self.part, &self.path).map_err(failed("rename"))?;
        self.finished = true;
        self.keep();
        Ok(self.written)
    }
}

impl Drop for MemoryWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed by `clean`.
            let _ = fs::remove_file(&self.part);
            self.pool.release(self.len);
        }
    }
}
